"""Models of transformers: `hf:NAME`, built from a configuration, with random weights."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from placekit_torch import Step
from placekit_torch.error_lines import first_line
from placekit_torch.tracing import compiling, fake_mode, is_fake, quiet

from placekit_core import ImporterError, unknown
from placekit_models import configurations
from placekit_models.experts import routing
from placekit_models.extras import library
from placekit_models.network import Mode, Network
from placekit_models.options import Asked
from placekit_models.quantized import INT4, INT8, Storage, quantise, quantised_experts, stored

CONTEXT = 2048
"""Default number of tokens in a sequence, for networks that take as many."""
_FRAMES, _SAMPLES = 1000, 160_000
"""Ten seconds of sound, as frames of 10 ms and as samples."""
_LIMITS = ("max_position_embeddings", "max_target_positions", "n_positions", "max_sequence_length")


@dataclass
class _Model:
    """Builds a step of one class of transformers.

    Attributes:
        generates: whether it generates text, token by token.
        crossed: whether it has an encoder, to whose output the decoder attends.
        context: tokens per sequence.
        storage: how quantised weights are stored, or None.
    """

    config: Any
    cls: Any
    mode: Mode
    asked: Asked
    generates: bool
    crossed: bool
    context: int
    storage: Storage | None

    def make(self) -> Step:
        """Build the step."""
        if hasattr(self.config, "vision_config") and self.cls.main_input_name == "input_ids":
            warnings.warn(f"{self.cls.__name__} takes images, too: this is a step of its text alone", stacklevel=2)
        model = self._build(self.dtype)
        if self.storage is not None:
            quantise(model, self.storage)
        if self.mode == "train":
            inputs = self._inputs() | self._labels()
            if self.crossed:  # the first token of the decoder and the padding of labels, which shift them
                for key in ("decoder_start_token_id", "pad_token_id"):
                    if getattr(model.config, key, None) is None:
                        setattr(model.config, key, 0)
            if self.generates and getattr(model, "loss_type", "") is None:
                model.loss_type = "ForCausalLM"  # the default of transformers, which warns
            model.__class__ = _subclass(type(model), _loss)
            return Step(model, inputs, optimizer=lambda p: torch.optim.AdamW(p, lr=1e-4))
        if self.mode == "inference":
            inputs = self._inputs()
            if self.crossed and "decoder_input_ids" in inspect.signature(self.cls.forward).parameters:  # DETR has none
                inputs |= {"decoder_input_ids": self._tokens(self.context)}
            model.__class__ = _subclass(type(model), _output, self.storage)
            return Step(model, inputs)
        return self._with_cache(model)

    @property
    def dtype(self) -> torch.dtype:
        """Type of weights and of floating-point inputs."""
        dtype: torch.dtype = getattr(
            torch, self.asked.dtype or str(self.config.dtype or "float32").removeprefix("torch.")
        )
        return dtype

    def _build(self, dtype: torch.dtype) -> Any:
        """The model, with random weights, unless they are fake or on the meta device."""
        from transformers.initialization import no_init_weights

        config = copy.deepcopy(self.config)
        config.use_cache = self.mode in ("prefill", "decode")
        with no_init_weights():
            try:
                model = self.cls._from_config(copy.deepcopy(config), dtype=dtype, attn_implementation="sdpa")
            except ValueError as e:
                if "scaled_dot_product_attention" not in str(e):
                    raise
                warnings.warn(f"{self.cls.__name__} has no fused attention: it is imported as products", stacklevel=2)
                model = self.cls._from_config(config, dtype=dtype, attn_implementation="eager")
        if any(is_fake(p) or p.is_meta for p in model.parameters()):
            model.tie_weights()
        else:
            model.init_weights()
        return model

    @functools.cached_property
    def kept(self) -> Any:
        """What each layer caches of a token; see `placekit_models.cache.record`. Raises ImporterError."""
        from placekit_models.cache import record

        with quiet(), compiling(), fake_mode(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the model that is placed warns again
            try:
                inputs = self._inputs() if self.crossed else {"input_ids": self._tokens(1)}
                if self.crossed:
                    inputs["decoder_input_ids"] = self._tokens(1)
                model = self._build(self.dtype)
            except ImporterError:
                raise
            except Exception as e:  # such as sizes that do not fit, most of which transformers does not check
                raise ImporterError(
                    f"no {self.cls.__name__} can be built as {self.asked.name} says: {first_line(e)}"
                ) from e
            try:
                return record(model, inputs, cache_argument(self.cls), self.crossed)
            except (AttributeError, NotImplementedError, TypeError, ValueError, IndexError) as e:
                what = first_line(e)
                if getattr(self.cls, "_is_stateful", False):
                    what = "it keeps the state of a recurrence or convolution, which placekit does not model"
                raise ImporterError(
                    f"the cache of {self.cls.__name__} is not made of keys and values alone: {what}",
                    "mode=inference is the pass over a whole sequence, without a cache",
                ) from e
            except RuntimeError as e:
                raise ImporterError(
                    f"{self.cls.__name__} does not run as {self.asked.name} says: {first_line(e)}"
                ) from e

    def _with_cache(self, model: Any) -> Step:
        """Build a step of prefill, which fills the cache, or of decode: one token that reads the full cache."""
        from transformers.modeling_outputs import BaseModelOutput

        from placekit_models.cache import attach, windows

        filled, batch = self.mode == "decode", self.asked.batch
        cache = attach(model, self.kept, batch=batch, context=self.context, source=self.source, filled=filled)
        # one token attends to all keys in the cache; a mask would have a column per token of the context, and not of a window
        unmasked = filled and (model.config._attn_implementation == "sdpa" or any(windows(model.config)))
        keywords: dict[str, Any] = {cache_argument(self.cls): cache, "use_cache": True}
        if "logits_to_keep" in inspect.signature(self.cls.forward).parameters:
            keywords["logits_to_keep"] = 1
        if not self.crossed:
            inputs = {"input_ids": self._tokens(1 if filled else self.context)}
        else:
            width = getattr(model.config, "d_model", None) or model.config.hidden_size
            states = {"encoder_outputs": torch.randn(batch, self.source, width, dtype=model.dtype)}
            inputs = (states if filled else self._inputs()) | {"decoder_input_ids": self._tokens(1)}

        def cached(forward: Callable[..., Any], **given: Any) -> Any:
            if self.crossed:  # reset: tracing calls this several times, and each call marks the layers as updated
                cache.is_updated = dict.fromkeys(range(len(cache)), filled)
            if "encoder_outputs" in given:
                given["encoder_outputs"] = BaseModelOutput(last_hidden_state=given["encoder_outputs"])
                given["encoder_outputs"].router_logits = None  # mixtures of experts read it
            with _no_masks() if unmasked else contextlib.nullcontext():
                return forward(**given, **keywords).logits

        model.__class__ = _subclass(type(model), cached, self.storage)
        return Step(model, inputs)

    @property
    def source(self) -> int:
        """Number of tokens that the encoder outputs for cross-attention."""
        return int(getattr(self.config, "max_source_positions", self.context)) if self.crossed else 0

    def _tokens(self, number: int) -> torch.Tensor:
        config = self.config.get_text_config()
        return torch.randint(0, config.vocab_size, (self.asked.batch, number))

    def _inputs(self) -> dict[str, torch.Tensor]:
        """Random inputs of the network, without those of a decoder behind an encoder. Raises ImporterError."""
        config, batch = self.config, self.asked.batch
        match self.cls.main_input_name:
            case "input_ids":
                return {"input_ids": self._tokens(self.context)}
            case "pixel_values":
                vision = getattr(config, "vision_config", None)
                size = getattr(config, "image_size", None) or getattr(vision, "image_size", None)
                size = size or self.asked.image or 224
                height, width = size if isinstance(size, list | tuple) else (size, size)
                frames = (config.num_frames,) if hasattr(config, "num_frames") else ()
                sizes = (batch, *frames, getattr(config, "num_channels", 3), height, width)
                return {"pixel_values": torch.randn(sizes, dtype=self.dtype)}
            case "input_features" | "input_values" if (shape := _sound(config)) is not None:
                return {self.cls.main_input_name: torch.randn(batch, *shape, dtype=self.dtype)}
            case other:
                raise ImporterError(
                    f"{self.cls.__name__} takes {other!r}, which placekit cannot make up",
                    "write a function that returns a placekit_torch.Step, and give model=FILE.py:FUNCTION",
                )

    def _labels(self) -> dict[str, torch.Tensor]:
        """Random labels, with which the network computes its loss. Raises ImporterError."""
        name, batch = self.cls.__name__, self.asked.batch
        if "labels" not in inspect.signature(self.cls.forward).parameters:
            raise ImporterError(
                f"{name} computes no loss", "use mode=inference, or a class with a head: `architectures`"
            )
        if self.cls.main_input_name == "pixel_values" or "SequenceClassification" in name:
            return {"labels": torch.randint(0, self.config.num_labels, (batch,))}
        if "TokenClassification" in name:
            return {"labels": torch.randint(0, self.config.num_labels, (batch, self.context))}
        return {"labels": self._tokens(self.context)}


def network(asked: Asked, source: str) -> Network:
    """The network `hf:NAME`. Raises ImporterError."""
    library("transformers", "hf")
    data = configurations.find(asked.name, "hf")
    quantization = data.pop("quantization_config", None)
    storage = {"int8": INT8, "int4": INT4}[asked.weights] if asked.weights else stored(quantization)
    config = _config(data, asked)
    cls = _architecture(config)
    generates = bool(cls.can_generate()) and cls.main_input_name in ("input_ids", "input_features")
    mode = asked.mode or ("decode" if generates else "inference")
    if mode in ("prefill", "decode") and not generates:
        raise ImporterError(
            f"{cls.__name__} generates no text, so it has no mode={mode}", "use mode=inference or train"
        )
    if mode == "train" and storage is not None:
        raise ImporterError(
            f"weights of {storage.bits} bits are not trained", "leave out `weights`, or use another mode"
        )
    crossed = bool(getattr(config, "is_encoder_decoder", False))
    model = _Model(config, cls, mode, asked, generates, crossed, _context(config, asked, cls), storage)
    if mode in ("prefill", "decode"):
        _ = model.kept  # computed here: inside the tracer's modes it would take ten times as long
    name = asked.name.rstrip("/").removesuffix("/config.json").rpartition("/")[2]
    if name.strip(".") in ("", "config.json"):  # a folder relative to the current one
        name = Path(asked.name.removesuffix("config.json")).resolve().name
    return Network(name, mode, model.make, routing(config.get_text_config(decoder=True)))


def _config(data: dict[str, Any], asked: Asked) -> Any:
    """The configuration as an object of transformers. Raises ImporterError. Code that comes with a model is never run."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING, AutoConfig

    if "_class_name" in data:
        raise ImporterError(f"{asked.name} is a model of diffusers", f"give model=diffusers:{asked.name}")
    values = {k: v for k, v in data.items() if k not in ("auto_map", "transformers_version")}
    kind = values.pop("model_type", None)
    if kind is None:
        raise ImporterError(f"the configuration of {asked.name} has no `model_type`", "it is not one of transformers")
    if kind not in CONFIG_MAPPING:
        error = unknown("model_type", str(kind), CONFIG_MAPPING.keys(), ImporterError)
        own = "; code that comes with a model is never run" if "auto_map" in data else ""
        raise ImporterError(f"{asked.name}: {error.message} in this transformers{own}", error.hint)
    if asked.image is not None:
        values["image_size"] = asked.image
    try:
        return AutoConfig.for_model(kind, **values)
    except Exception as e:
        raise ImporterError(f"transformers refuses the configuration of {asked.name}: {first_line(e)}") from e


def _architecture(config: Any) -> Any:
    """The class of the model: the one that the configuration names, else the first that fits. Raises ImporterError."""
    import transformers
    from transformers.models.auto import modeling_auto as auto

    for name in config.architectures or ():
        cls = getattr(transformers, str(name), None)
        if isinstance(cls, type) and issubclass(cls, transformers.PreTrainedModel):
            return cls
    for mapping in (
        auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING,
        auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
        auto.MODEL_FOR_MASKED_LM_MAPPING,
        auto.MODEL_FOR_CAUSAL_LM_MAPPING,
        auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
        auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING,
        auto.MODEL_FOR_SEMANTIC_SEGMENTATION_MAPPING,
        auto.MODEL_MAPPING,
    ):
        if type(config) in mapping:
            found = mapping[type(config)]
            return found[0] if isinstance(found, tuple) else found
    raise ImporterError(f"transformers has no network for {config.model_type!r}", "name its class in `architectures`")


def _sound(config: Any) -> tuple[int, ...] | None:
    """The shape of an input of sound, without the batch: features by frame, or samples; None if it is not known."""
    encoder = getattr(config, "encoder_config", config)
    bins = getattr(encoder, "num_mel_bins", None)
    positions, features = (getattr(config, k, None) for k in ("max_source_positions", "input_feat_per_channel"))
    if positions and features:  # Speech2Text
        return positions, features
    if positions and bins:  # Whisper: features first, and half as many positions as frames
        return bins, 2 * positions
    width = bins or getattr(config, "feature_projection_input_dim", None)
    if width:
        return getattr(config, "max_length", None) or _FRAMES, width
    return (_SAMPLES,) if getattr(config, "conv_stride", None) else None


def _context(config: Any, asked: Asked, cls: Any) -> int:
    """Tokens per sequence. Raises ImporterError if the network takes fewer."""
    text = config.get_text_config(decoder=True)
    limit = next((int(n) for key in _LIMITS if (n := getattr(text, key, None)) and n > 0), None)
    if limit and any(
        hasattr(c, "create_position_ids_from_input_ids") for c in vars(sys.modules[cls.__module__]).values()
    ):
        limit -= (text.pad_token_id or 0) + 1  # as in RoBERTa, whose positions are counted from behind that of padding
    if cls.main_input_name == "pixel_values":
        if asked.context is not None:
            raise ImporterError(f"{cls.__name__} takes images, so it has no context", "leave out context=")
        return 0
    if limit is not None and asked.context is not None and asked.context > limit:
        raise ImporterError(
            f"context={asked.context}, but {asked.name} takes {limit:,} tokens at most",
            "a longer one is a change of its config.json (positions), in a folder of your own",
        )
    return asked.context or min(CONTEXT, limit or CONTEXT)


def cache_argument(cls: Any) -> str:
    """The argument of `forward` that takes the cache."""
    return "cache" if "cache" in inspect.signature(cls.forward).parameters else "past_key_values"


def _loss(forward: Callable[..., Any], **given: Any) -> Any:
    return forward(**given).loss


def _output(forward: Callable[..., Any], **given: Any) -> Any:
    """The main output: logits if there are any, else the first result."""
    found = forward(**given)
    return found.logits if getattr(found, "logits", None) is not None else found[0]


def _subclass(cls: Any, call: Callable[..., Any], storage: Storage | None = None) -> Any:
    """A subclass of the same name whose `forward` is `call(forward, ...)`. A wrapper would change the modules' paths."""

    def forward(self: Any, **given: Any) -> Any:
        with _sets_in_order(self), quantised_experts(storage) if storage else contextlib.nullcontext():
            return call(functools.partial(cls.forward, self), **given)

    return type(cls.__name__, (cls,), {"forward": forward, "__module__": cls.__module__})


class _InOrder(set[Any]):
    """A set whose order does not depend on Python's hash seed."""

    def __iter__(self) -> Iterator[Any]:
        return iter(sorted(super().__iter__(), key=str))


@contextlib.contextmanager
def _sets_in_order(model: torch.nn.Module) -> Iterator[None]:
    """Let the code of `model` iterate over sets in one order.

    Many models make their masks `for layer_type in set(config.layer_types)`: the order of operations would differ from
    process to process, and with it the graph's fingerprint.
    """
    with contextlib.ExitStack() as stack:
        for name in {n for m in model.modules() if (n := type(m).__module__).startswith("transformers.")}:
            stack.enter_context(mock.patch.object(sys.modules[name], "set", _InOrder, create=True))
        yield


def _no_masks() -> Any:
    """Let transformers make no masks of attention: one token attends to all keys in the cache."""
    from transformers.masking_utils import AttentionMaskInterface

    return mock.patch.dict(AttentionMaskInterface._global_mapping, clear=True)
