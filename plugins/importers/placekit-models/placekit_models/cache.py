"""The key-value cache of attention, as buffers of the attention modules that are updated in place.

transformers calls `Cache.update(keys, values, layer)` in every attention module. Here each layer's cache writes to two buffers
of that module, `key_cache` and `value_cache` [batch, heads, tokens, width]. So they count as persistent bytes of the layer, and
stay on its device. A layer with a sliding window keeps only the window's tokens, in a ring buffer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from placekit_torch.tracing import is_fake
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin, DummyLayer, EncoderDecoderCache, get_layer_types_and_kwargs

from placekit_core import ImporterError

LayerKey = tuple[bool, int]
"""Whether an attention module is cross-attention, and its layer."""


@dataclass(frozen=True)
class Kept:
    """The cache of a layer: heads, widths of a key and of a value, and the number of tokens in this pass."""

    heads: int
    key: int
    value: int
    tokens: int


class _Layer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """Base of the layers of a cache: the methods that transformers calls besides `update`."""

    def __init__(self, past: int = 0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.past, self.is_initialized = past, True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Does nothing: the buffers exist already."""

    def get_seq_length(self) -> int:
        """Number of tokens before this step."""
        return self.past

    def get_max_length(self) -> int:
        """-1: no maximum."""
        return -1

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Length and offset of the keys."""
        return query_length + self.past, 0


class _Recorder(_Layer):  # type: ignore[no-untyped-call]
    """Records the shapes of keys and values, and caches nothing."""

    kept: Kept | None = None

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        self.kept = Kept(key_states.shape[1], key_states.shape[-1], value_states.shape[-1], key_states.shape[2])
        return key_states, value_states


class _Buffers(_Layer):  # type: ignore[no-untyped-call]
    """Writes to the buffers of `owner`: the new token at its `cache_slot` if the cache is `filled`, else all from the start."""

    def __init__(self, owner: torch.nn.Module, past: int, filled: bool) -> None:
        self.owner, self.filled = owner, filled
        super().__init__(past)

    @property
    def keys(self) -> Any:
        """The buffer; transformers reads it where cross-attention is not computed again."""
        return self.owner.key_cache

    @keys.setter
    def keys(self, value: Any) -> None:
        assert value is None  # the base class's constructor

    @property
    def values(self) -> Any:
        """As `keys`."""
        return self.owner.value_cache

    @values.setter
    def values(self, value: Any) -> None:
        assert value is None

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write the new keys and values; return all that this step attends to."""
        for buffer, new in ((self.keys, key_states), (self.values, value_states)):
            kept = min(new.shape[2], buffer.shape[2])
            if self.filled:
                buffer.index_copy_(2, self.owner.cache_slot, new)
            elif kept == buffer.shape[2]:
                buffer.copy_(new[:, :, -kept:])
            else:
                buffer[:, :, :kept] = new
        return (self.keys, self.values) if self.filled else (key_states, value_states)


def record(model: Any, inputs: Mapping[str, Tensor], argument: str, crossed: bool) -> dict[LayerKey, Kept]:
    """Find the cache of each layer for a token, by a forward pass on the meta device, which computes nothing.

    `model` and `inputs` are on the meta device; `argument` names the parameter that takes a cache; `crossed` says whether
    there is cross-attention.
    """
    own = Cache(layer_class_to_replicate=_Recorder)
    cross = Cache(layer_class_to_replicate=_Recorder)
    cache = EncoderDecoderCache(own, cross) if crossed else own
    with torch.no_grad():
        model(**inputs, **{argument: cache}, use_cache=True)
    both: tuple[tuple[bool, list[Any]], ...] = ((False, own.layers), (True, cross.layers))
    kept = {(crosses, i): layer.kept for crosses, layers in both for i, layer in enumerate(layers) if layer.kept}
    if not kept:
        raise ImporterError(
            f"{type(model).__name__} keeps no keys and values that placekit can find",
            "place the pass without a cache, with mode=inference",
        )
    return kept


def windows(config: Any) -> list[int | None]:
    """For each layer of the decoder, the size of its sliding window in tokens; None without one."""
    try:
        _, options = get_layer_types_and_kwargs(config.get_text_config(decoder=True))
    except AttributeError:  # a configuration without types of layers
        return []
    return [each.get("sliding_window") for each in options]


def attach(model: Any, kept: Mapping[LayerKey, Kept], *, batch: int, context: int, filled: bool) -> Any:
    """Give attention modules their buffers, and return the cache that writes to them.

    Self-attention has buffers for `context` tokens. Cross-attention has buffers for the tokens of the encoder, or of a picture
    (Mllama keeps both kinds in one cache). With `filled`, the step computes the last of the `context` tokens only, and reads
    the keys and values of cross-attention from the buffers.
    """
    owners = dict(_owners(model))
    window = windows(model.config)
    pictures = {key for key in kept if not key[0] and key not in owners and (True, key[1]) in owners}
    text = next((shape.tokens for key, shape in kept.items() if not key[0] and key not in pictures), 1)
    context = max(context, text)  # more if pictures stand before the text
    fresh = torch.empty if any(map(is_fake, model.parameters())) else torch.zeros  # fake tensors take no memory
    layers: dict[bool, dict[int, Any]] = {False: {}, True: {}}
    for (cross, i), shape in kept.items():
        crossed = cross or (cross, i) in pictures
        owner = owners.get((crossed, i))
        if owner is None:
            raise ImporterError(f"{type(model).__name__} has no attention module for layer {i}", "use mode=inference")
        limit = window[i] if i < len(window) else None
        tokens = shape.tokens if crossed else min(context, limit or context)
        for name, width in (("key_cache", shape.key), ("value_cache", shape.value)):
            owner.register_buffer(name, fresh(batch, shape.heads, tokens, width, dtype=model.dtype))
        if filled and not crossed:
            owner.register_buffer("cache_slot", torch.tensor([(context - 1) % tokens]))
        layers[cross][i] = _Buffers(owner, context - 1 if filled and not cross else 0, filled)
    own = _cache(layers[False])
    if not layers[True]:
        return own
    return EncoderDecoderCache(own, _cache(layers[True]))


def _cache(layers: Mapping[int, Any]) -> Cache:
    empty: Any = DummyLayer()  # type: ignore[no-untyped-call]
    empty.is_initialized = False
    return Cache(layers=[layers.get(i) or empty for i in range(max(layers) + 1)])


def _owners(model: Any) -> Iterator[tuple[LayerKey, torch.nn.Module]]:
    """The attention modules of the decoder, by the number of their layer. Of nested modules, the innermost counts."""
    decoder = model.get_decoder() if model.config.is_encoder_decoder else model
    found: dict[str, tuple[int, torch.nn.Module]] = {}
    for path, module in decoder.named_modules():
        layer = next((n for k in ("layer_idx", "layer_id") if (n := getattr(module, k, None)) is not None), None)
        if isinstance(layer, int) and re.search("attention|mla", type(module).__name__.lower()):
            found[path] = layer, module
    for path, (layer, module) in found.items():
        if not any(other.startswith(f"{path}.") for other in found):
            yield (bool(re.search("cross|encdec|encoder_(decoder_)?att", path.lower())), layer), module
