"""Models of transformers: `hf:NAME`, built from a configuration, with random weights."""

from __future__ import annotations

import copy
import functools
import inspect
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from placekit_torch import Step
from placekit_torch.error_lines import first_line
from placekit_torch.tracing import is_fake

from placekit_core import ImporterError, unknown
from placekit_models import configurations
from placekit_models.experts import routing
from placekit_models.extras import library
from placekit_models.network import Mode, Network
from placekit_models.options import Asked
from placekit_models.quantized import quantise, stored_bits

CONTEXT = 2048
"""Default number of tokens in a sequence, for networks that take as many."""
_LIMITS = ("max_position_embeddings", "max_target_positions", "n_positions", "max_sequence_length")
_UNMASKED = "placekit"  # name of an attention that sees all keys, for which transformers makes no mask


@dataclass
class _Model:
    """Builds a step of one class of transformers.

    Attributes:
        generates: whether it generates text, token by token.
        crossed: whether it has an encoder, to whose output the decoder attends.
        context: tokens per sequence.
        bits: bits per stored weight of quantised linear layers, or None.
    """

    config: Any
    cls: Any
    mode: Mode
    asked: Asked
    generates: bool
    crossed: bool
    context: int
    bits: int | None

    def make(self) -> Step:
        """Build the step."""
        model = self._build(self.dtype)
        if self.bits is not None:
            quantise(model, self.bits)
        if self.mode == "train":
            inputs = self._inputs() | self._labels()
            if self.generates and getattr(model, "loss_type", "") is None:
                model.loss_type = "ForCausalLM"  # the default of transformers, which warns
            model.__class__ = _subclass(type(model), _loss)
            return Step(model, inputs, optimizer=lambda p: torch.optim.AdamW(p, lr=1e-4))
        if self.mode == "inference":
            inputs = self._inputs()
            if self.crossed and "decoder_input_ids" in inspect.signature(self.cls.forward).parameters:  # DETR has none
                inputs |= {"decoder_input_ids": self._tokens(self.context)}
            model.__class__ = _subclass(type(model), _output)
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

        with torch.device("meta"):
            try:
                inputs = self._inputs() if self.crossed else {"input_ids": self._tokens(1)}
                if self.crossed:
                    inputs["decoder_input_ids"] = self._tokens(1)
                # on the meta device, grouped matrix products of experts exist only in bfloat16
                inputs = {k: t.bfloat16() if t.is_floating_point() else t for k, t in inputs.items()}
                model = self._build(torch.bfloat16)
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

        from placekit_models.cache import attach

        filled, batch = self.mode == "decode", self.asked.batch
        cache = attach(model, self.kept, batch=batch, context=self.context, source=self.source, filled=filled)
        if filled and model.config._attn_implementation == "sdpa":
            _register_unmasked()
            model.config._attn_implementation = _UNMASKED
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
            return forward(**given, **keywords).logits

        model.__class__ = _subclass(type(model), cached)
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
                size = getattr(config, "image_size", None) or self.asked.image or 224
                height, width = size if isinstance(size, list | tuple) else (size, size)
                channels = getattr(config, "num_channels", 3)
                return {"pixel_values": torch.randn(batch, channels, height, width, dtype=self.dtype)}
            case "input_features" if hasattr(config, "max_source_positions"):
                frames = 2 * config.max_source_positions
                return {"input_features": torch.randn(batch, config.num_mel_bins, frames, dtype=self.dtype)}
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
    bits = (
        {"int8": 8, "int4": 4}[asked.weights] if asked.weights else stored_bits(data.pop("quantization_config", None))
    )
    config = _config(data, asked)
    cls = _architecture(config)
    generates = bool(cls.can_generate()) and cls.main_input_name in ("input_ids", "input_features")
    mode = asked.mode or ("decode" if generates else "inference")
    if mode in ("prefill", "decode") and not generates:
        raise ImporterError(
            f"{cls.__name__} generates no text, so it has no mode={mode}", "use mode=inference or train"
        )
    if mode == "train" and bits is not None:
        raise ImporterError(f"weights of {bits} bits are not trained", "leave out `weights`, or use another mode")
    crossed = bool(getattr(config, "is_encoder_decoder", False))
    model = _Model(config, cls, mode, asked, generates, crossed, _context(config, asked, cls), bits)
    if mode in ("prefill", "decode"):
        _ = model.kept  # computed here: inside the tracer's modes it would take ten times as long
    name = asked.name.rstrip("/").removesuffix("/config.json").rpartition("/")[2]
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
        auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING,
        auto.MODEL_MAPPING,
    ):
        if type(config) in mapping:
            found = mapping[type(config)]
            return found[0] if isinstance(found, tuple) else found
    raise ImporterError(f"transformers has no network for {config.model_type!r}", "name its class in `architectures`")


def _context(config: Any, asked: Asked, cls: Any) -> int:
    """Tokens per sequence. Raises ImporterError if the network takes fewer."""
    text = config.get_text_config(decoder=True)
    limit = next((int(n) for key in _LIMITS if (n := getattr(text, key, None))), None)
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


def _subclass(cls: Any, call: Callable[..., Any]) -> Any:
    """A subclass of the same name whose `forward` is `call(forward, ...)`. A wrapper would change the modules' paths."""

    def forward(self: Any, **given: Any) -> Any:
        return call(functools.partial(cls.forward, self), **given)

    return type(cls.__name__, (cls,), {"forward": forward, "__module__": cls.__module__})


def _register_unmasked() -> None:
    """Register attention without a mask: transformers makes no mask for names for which it has no mask function."""
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    AttentionInterface.register(_UNMASKED, cast(Any, sdpa_attention_forward))
