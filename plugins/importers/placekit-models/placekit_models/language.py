"""Models of transformers: `hf:NAME`, built from a configuration, with random weights."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import itertools
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from unittest import mock

import torch
from placekit_torch import Step
from placekit_torch.error_lines import first_line
from placekit_torch.known_values import TraceMode, numbers_of_tensors
from placekit_torch.tracing import compiling, fake_mode, is_fake, like, quiet
from torch._subclasses.fake_tensor import FakeTensor

from placekit_core import ImporterError, unknown
from placekit_models import configurations
from placekit_models.experts import routing
from placekit_models.extras import library
from placekit_models.network import Mode, Network
from placekit_models.options import Asked
from placekit_models.pictures import holder_of_size, needs_pictures, picture, size_of, takes_pictures, tokens_of
from placekit_models.quantized import INT4, INT8, Storage, quantise, quantised_experts, stored

CONTEXT = 2048
"""Default number of tokens in a sequence, if the network takes that many."""
_FRAMES, _SAMPLES = 1000, 160_000
"""Ten seconds of sound, as frames of 10 ms and as samples."""
_SPOKEN = 64
"""Tokens that are spoken meanwhile."""
_STATE = "it keeps the state of a recurrence or convolution, which placekit does not model"
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
            asks = {"return_loss": True} if self._paired else {}
            model.__class__ = _subclass(type(model), functools.partial(_loss, asks))
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
                model = self.cls._from_config(config, dtype=dtype, attn_implementation="eager")
                if any("attention" in type(m).__name__.lower() for m in model.modules()):
                    name = self.cls.__name__
                    warnings.warn(f"{name} has no fused attention: it is imported as products", stacklevel=2)
        if any(is_fake(p) or p.is_meta for p in model.parameters()):
            model.tie_weights()
        else:
            model.init_weights()
        return model

    @functools.cached_property
    def kept(self) -> Any:
        """The cache of each layer for a token; see `placekit_models.cache.record`. Raises ImporterError."""
        from placekit_models.cache import record

        if _has_state(self.config):
            raise self._no_cache(_STATE)
        mode = fake_mode()
        with quiet(), compiling(), numbers_of_tensors(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the model that is placed warns again
            with self._building():
                with torch.random.fork_rng(devices=[]):
                    inputs = self._inputs() if self.crossed or self._beside_text else {"input_ids": self._tokens(1)}
                    if self.crossed:
                        inputs["decoder_input_ids"] = self._tokens(1)
                with mode:
                    inputs, model = _faked(inputs, mode), self._build(self.dtype)
            try:
                with mode:
                    return record(model, inputs, cache_argument(self.cls), self.crossed)
            except (AttributeError, NotImplementedError, TypeError, ValueError, IndexError) as e:
                raise self._no_cache(_STATE if getattr(self.cls, "_is_stateful", False) else first_line(e)) from e
            except RuntimeError as e:
                raise ImporterError(
                    f"{self.cls.__name__} does not run with the configuration of {self.asked.name}: {first_line(e)}"
                ) from e

    @contextlib.contextmanager
    def _building(self) -> Iterator[None]:
        """Blame the configuration for errors in the block: transformers does not check whether most of its sizes fit."""
        try:
            yield
        except ImporterError:
            raise
        except Exception as e:
            what = f"{self.cls.__name__} cannot be built from the configuration of {self.asked.name}: {first_line(e)}"
            raise ImporterError(what) from e

    def _no_cache(self, why: str) -> ImporterError:
        return ImporterError(
            f"the cache of {self.cls.__name__} holds more than keys and values: {why}",
            f"plan it as llama.cpp runs it, with checkpoint={self.asked.name}; or place the pass over a whole sequence without"
            " a cache, with mode=inference",
        )

    def _with_cache(self, model: Any) -> Step:
        """Build a step of prefill, which fills the cache, or of decode: one token that reads the full cache."""
        from transformers.modeling_outputs import BaseModelOutput

        from placekit_models.cache import attach, windows

        filled, batch = self.mode == "decode", self.asked.batch
        cache = attach(model, self.kept, batch=batch, context=self.context, filled=filled)
        # one token attends to all keys in the cache; a mask would be as wide as the context, and a window is narrower
        unmasked = filled and (model.config._attn_implementation == "sdpa" or any(windows(model.config)))
        keywords: dict[str, Any] = {cache_argument(self.cls): cache, "use_cache": True}
        if "logits_to_keep" in inspect.signature(self.cls.forward).parameters:
            keywords["logits_to_keep"] = 1
        if not self.crossed:
            inputs = {"input_ids": self._tokens(1)} if filled else self._inputs()
        else:
            text = model.config.get_text_config()
            width = getattr(text, "d_model", None) or text.hidden_size
            source = next(shape.tokens for (crosses, _), shape in self.kept.items() if crosses)
            states = {"encoder_outputs": torch.randn(batch, source, width, dtype=model.dtype)}
            inputs = (states if filled else self._inputs()) | {"decoder_input_ids": self._tokens(1)}

        def cached(forward: Callable[..., Any], **given: Any) -> Any:
            if self.crossed:  # reset: tracing calls this several times, and each call marks the layers as updated
                cache.is_updated = dict.fromkeys(range(len(cache)), filled)
            if "encoder_outputs" in given:
                given["encoder_outputs"] = BaseModelOutput(last_hidden_state=given["encoder_outputs"])
                given["encoder_outputs"].router_logits = None  # mixtures of experts read it
                given["encoder_outputs"].attention_mask = None  # Moonshine reads it
            with _no_masks() if unmasked else contextlib.nullcontext():
                return forward(**given, **keywords).logits

        model.__class__ = _subclass(type(model), cached, self.storage)
        return Step(model, inputs)

    def _tokens(self, number: int) -> torch.Tensor:
        """Random tokens [batch, number]; no special ones for models that take pictures, because one stands for a picture."""
        found = torch.randint(0, self.config.get_text_config().vocab_size, (self.asked.batch, number))
        if not takes_pictures(self.cls):
            return found
        special = {v for k, v in vars(self.config).items() if re.search("token_(id|index)$", k) and isinstance(v, int)}
        plain = next(i for i in itertools.count() if i not in special)
        return found.masked_fill(torch.isin(found, torch.tensor(sorted(special))), plain)

    @functools.cached_property
    def pictures(self) -> tuple[dict[str, torch.Tensor], int]:
        """The inputs for a picture in each sequence, and the number of its tokens. Raises ImporterError."""
        name = self.cls.__name__
        if not takes_pictures(self.cls):
            return {}, 0
        side = self.asked.image or (max(_pair(size_of(self.config) or 224)) if needs_pictures(self.cls) else None)
        if side is None:
            in_cache = self.mode == "decode" and hasattr(self.cls, "get_image_features")
            if not in_cache:  # where a token of a picture takes as much as one of text
                warnings.warn(
                    f"{name} takes images, too, but this step has only text; image=512 adds an image to each sequence",
                    stacklevel=2,
                )
            return {}, 0
        given = picture(self.config, self.cls, self.asked.name, side, self.asked.batch)
        given = {k: v.to(self.dtype) if v.is_floating_point() else v for k, v in given.items()}
        if "qformer_input_ids" in inspect.signature(self.cls.forward).parameters:  # the text again, for InstructBLIP
            queries = self.config.qformer_config
            sizes = (self.asked.batch, min(self.context, queries.max_position_embeddings))
            given["qformer_input_ids"] = torch.arange(sizes[1]).expand(sizes) % queries.vocab_size
        mode = fake_mode()
        with quiet(), compiling(), mode, numbers_of_tensors(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with self._building():
                model = self._build(self.dtype)
            try:
                tokens = tokens_of(model, _faked(given, mode)) // self.asked.batch
            except Exception as e:
                raise ImporterError(f"{name} does not take the images of its processor: {first_line(e)}") from e
        if tokens >= self.context:
            raise ImporterError(
                f"an image of {side} x {side} is {tokens:,} tokens of {name}, no room for text in context={self.context}",
                f"give context={tokens + 64} or more, or a smaller image=",
            )
        what = f"is {tokens:,} of the {self.context:,} tokens" if tokens else "is read beside the tokens of text"
        pixels = given.get("pixel_values", torch.empty(0)).shape
        resized = len(pixels) == 4 and pixels[-2:] != (side, side)
        made = f", which its processor makes {pixels[-2]} x {pixels[-1]}," if resized else ""
        warnings.warn(f"an image of {side} x {side}{made} {what} of each sequence", stacklevel=2)
        return given, tokens

    @property
    def _beside_text(self) -> bool:
        """Whether layers attend to a picture that is not part of the text."""
        given, tokens = self.pictures
        return bool(given) and not tokens

    def _with_pictures(self) -> dict[str, torch.Tensor]:
        """Text with one picture, behind the first token of each sequence."""
        given, tokens = self.pictures
        text = self._tokens(self.context)
        if not given:
            return {"input_ids": text}
        takes, config = inspect.signature(self.cls.forward).parameters, self.config
        where = torch.zeros_like(text)
        where[:, 1 : 1 + tokens] = 1
        token = next(
            (t for k in ("image_token_id", "image_token_index") if (t := getattr(config, k, None)) is not None), None
        )
        found = {"input_ids": text if token is None else text.masked_fill(where.bool(), token), **given}
        for key in ("token_type_ids", "mm_token_type_ids", "image_embeds_position_mask"):
            if key in takes:
                found[key] = where
        if "cross_attention_mask" in takes and "aspect_ratio_mask" in given:  # Mllama: all tokens see all tiles
            found["cross_attention_mask"] = given["aspect_ratio_mask"][:, None].repeat(1, self.context, 1, 1)
        return found

    def _inputs(self) -> dict[str, torch.Tensor]:
        """Random inputs of the network, without those of a decoder behind an encoder. Raises ImporterError."""
        config, batch = self.config, self.asked.batch
        match self.cls.main_input_name:
            case _ if takes_pictures(self.cls):
                return self._with_pictures()
            case "input_ids":
                images = self._images() if self._paired else {}
                return {"input_ids": self._tokens(self.context), **self._mask(), **images}
            case "pixel_values":
                return self._images()
            case "input_features" | "input_values":
                shape = _sound(config)
                sound = {self.cls.main_input_name: torch.randn(batch, *shape, dtype=self.dtype)}
                if self.mode == "train" and "ForCTC" in self.cls.__name__ and len(shape) == 2:  # for the lengths
                    sound["attention_mask"] = torch.ones(batch, shape[0], dtype=torch.long)
                return sound
            case "flattened_patches":
                return picture(config, self.cls, self.asked.name, self.asked.image or 512, batch)
            case other:
                raise ImporterError(
                    f"{self.cls.__name__} takes {other!r}, which placekit cannot make up",
                    "write a function that returns a placekit_torch.Step, and give model=FILE.py:FUNCTION",
                )

    def _images(self) -> dict[str, torch.Tensor]:
        """Random images, or videos, of the size that the network takes."""
        config = self.config
        height, width = _pair(size_of(config) or self.asked.image or 224)
        frames = (config.num_frames,) if hasattr(config, "num_frames") else ()
        sizes = (self.asked.batch, *frames, getattr(config, "num_channels", 3), height, width)
        return {"pixel_values": torch.randn(sizes, dtype=self.dtype)}

    @property
    def _paired(self) -> bool:
        """Whether images and texts are encoded and compared, as by CLIP."""
        return {"return_loss", "pixel_values"} <= inspect.signature(self.cls.forward).parameters.keys()

    def _mask(self) -> dict[str, torch.Tensor]:
        """A mask of all tokens, for encoders that need one and do not make it while they are compiled."""
        needed = self.config.model_type in ("longt5", "switch_transformers", "pop2piano")
        return {"attention_mask": torch.ones(self.asked.batch, self.context, dtype=torch.long)} if needed else {}

    def _labels(self) -> dict[str, torch.Tensor]:
        """Random labels, with which the network computes its loss. Raises ImporterError."""
        name, batch = self.cls.__name__, self.asked.batch
        if self._paired:
            return {}
        if "labels" not in inspect.signature(self.cls.forward).parameters:
            heads = _with_loss(self.config)
            own = f', or name a class with a head in its config.json: "architectures": ["{heads[0]}"]' if heads else ""
            more = f" (or {', '.join(heads[1:])})" if heads[1:] else ""
            raise ImporterError(f"{name} computes no loss", f"use mode=inference{own}{more}")
        if "SemanticSegmentation" in name:
            size = self._inputs()["pixel_values"].shape[-2:]
            return {"labels": torch.randint(0, self.config.num_labels, (batch, *size))}
        if re.search("Detection|Segmentation", name):
            raise ImporterError(
                f"the loss of {name} matches objects to targets, whose number differs from image to image",
                "use mode=inference, or write a function with a loss of fixed shapes: model=FILE.py:FUNCTION",
            )
        if "ForCTC" in name:
            return {"labels": self._tokens(self.asked.context or _SPOKEN)}
        images = self.cls.main_input_name == "pixel_values" and not self.cls.can_generate()
        if images or re.search("(Sequence|Audio|Video)Classification", name):
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
    if asked.image is not None:
        if not {"pixel_values", "flattened_patches"} & inspect.signature(cls.forward).parameters.keys():
            raise ImporterError(f"{cls.__name__} takes no images", "leave out image=")
        if not takes_pictures(cls) and (holder := holder_of_size(config)) is not None:
            pair = isinstance(holder.image_size, list | tuple)
            holder.image_size = [asked.image] * 2 if pair else asked.image
    crossed = bool(getattr(config, "is_encoder_decoder", False))
    generates = bool(cls.can_generate()) and (crossed or cls.main_input_name == "input_ids") and not needs_pictures(cls)
    mode = asked.mode or ("decode" if generates else "inference")
    if mode in ("prefill", "decode") and not generates:
        why = "reads its image in every call" if needs_pictures(cls) else "generates no text"
        raise ImporterError(f"{cls.__name__} {why}, so it has no mode={mode}", "use mode=inference or train")
    if mode == "train" and storage is not None:
        raise ImporterError(
            f"weights of {storage.bits} bits are not trained", "leave out `weights`, or use another mode"
        )
    model = _Model(config, cls, mode, asked, generates, crossed, _context(config, asked, cls), storage)
    _ = model.pictures  # computed here: inside the tracer's modes these would take ten times as long
    if mode in ("prefill", "decode"):
        _ = model.kept
    name = asked.name.rstrip("/").removesuffix("/config.json").rpartition("/")[2]
    if name.strip(".") in ("", "config.json"):  # a folder relative to the current one
        name = Path(asked.name.removesuffix("config.json")).resolve().name
    reads_text = crossed or cls.main_input_name == "input_ids" or takes_pictures(cls)
    context = model.context if reads_text else 0
    return Network(name, mode, model.make, routing(config.get_text_config(decoder=True)), context=context)


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
        auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
        auto.MODEL_FOR_CAUSAL_LM_MAPPING,
        auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING,
        auto.MODEL_FOR_SEMANTIC_SEGMENTATION_MAPPING,
        auto.MODEL_MAPPING,
    ):
        if type(config) in mapping:
            found = mapping[type(config)]
            return found[0] if isinstance(found, tuple) else found
    raise ImporterError(f"transformers has no network for {config.model_type!r}", "name its class in `architectures`")


def _faked(given: dict[str, torch.Tensor], mode: TraceMode) -> dict[str, torch.Tensor]:
    """Fake tensors for inputs, with the values of integers."""
    found = {k: like(v, mode) for k, v in given.items()}
    for k, v in given.items():
        mode.know(cast(FakeTensor, found[k]), v)
    return found


def _has_state(config: Any) -> bool:
    """Whether layers are recurrent or convolutions, by their types in the configuration."""
    text = config.get_text_config(decoder=True)
    types = {str(t) for key in ("layer_types", "block_types") for t in getattr(text, key, None) or ()}
    return any(not t.endswith("attention") or t.startswith("linear") for t in types)


def _pair(size: Any) -> tuple[int, int]:
    height, width = size if isinstance(size, list | tuple) else (size, size)
    return height, width


def _sound(config: Any) -> tuple[int, ...]:
    """The shape of an input of sound, without the batch: features by frame, or samples."""
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
    return (_SAMPLES,)


def _context(config: Any, asked: Asked, cls: Any) -> int:
    """Tokens per sequence. Raises ImporterError if the network takes fewer."""
    text = config.get_text_config(decoder=True)
    limit = next((int(n) for key in _LIMITS if (n := getattr(text, key, None)) and n > 0), None)
    if limit and any(
        hasattr(c, "create_position_ids_from_input_ids") for c in vars(sys.modules[cls.__module__]).values()
    ):
        limit -= (text.pad_token_id or 0) + 1  # RoBERTa counts positions from the one behind padding
    if cls.main_input_name == "pixel_values" and not cls.can_generate():
        if asked.context is not None:
            raise ImporterError(f"{cls.__name__} takes images, so it has no context", "leave out context=")
        return 0
    if limit is not None and asked.context is not None and asked.context > limit:
        raise ImporterError(
            f"context={asked.context}, but {asked.name} takes {limit:,} tokens at most",
            "for more, copy its config.json into a folder of your own, raise its number of positions, and give the folder",
        )
    return asked.context or min(CONTEXT, limit or CONTEXT)


def _with_loss(config: Any) -> list[str]:
    """Names of classes for a configuration that compute a loss for labels that placekit can make up."""
    from transformers.models.auto import modeling_auto as auto

    heads: tuple[str, ...] = ("CTC",) if getattr(config, "vocab_size", None) else ()
    heads += ("AUDIO_CLASSIFICATION", "VIDEO_CLASSIFICATION", "IMAGE_CLASSIFICATION")
    heads += ("SEQUENCE_CLASSIFICATION", "TOKEN_CLASSIFICATION")
    found = [m[type(config)] for h in heads if type(config) in (m := getattr(auto, f"MODEL_FOR_{h}_MAPPING"))]
    return list(dict.fromkeys((f[0] if isinstance(f, tuple) else f).__name__ for f in found))


def cache_argument(cls: Any) -> str:
    """The argument of `forward` that takes the cache."""
    return "cache" if "cache" in inspect.signature(cls.forward).parameters else "past_key_values"


def _loss(asks: dict[str, bool], forward: Callable[..., Any], **given: Any) -> Any:
    return forward(**given, **asks).loss


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
