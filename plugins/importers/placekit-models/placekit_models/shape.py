"""Decoders as lists of tensors, which a file holds or which follow from hyperparameters (`Shape`)."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from placekit_core import parse_yaml, read_bytes
from placekit_models.shipped import SHAPES

Sizes = dict[str, tuple[int, ...]]
"""Sizes of tensors by their short name: widths of input and output, and for experts the number of matrices."""
ALONE = "M*-E"
"""Kinds of layers with one part instead of two, see `Shape.pattern`."""


@dataclass(frozen=True)
class Tensor:
    """A tensor, named as in GGUF files: `blk.3.ffn_up.weight`, `output.weight`.

    Attributes:
        shape: the width of the input comes first, then that of the output; then, for all experts of a layer, their number.
        bits: bits of a number, scales included.
        type: name of the numbers' type, to show.
        module: path of the module that has it in the model's own code; empty if that is unknown.
    """

    name: str
    shape: tuple[int, ...]
    bits: float
    type: str = ""
    module: str = ""

    @property
    def numbers(self) -> int:
        """The count of its numbers."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Its bytes in the file, and on the device."""
        return round(self.numbers * self.bits / 8)

    @cached_property
    def layer(self) -> int:
        """Its layer; -1 if it is outside of them."""
        first, number, *_ = [*self.name.split("."), ""]
        return int(number) if first == "blk" and number.isdigit() else -1

    @cached_property
    def key(self) -> str:
        """Its name without the layer and `.weight`."""
        return self.name.removeprefix(f"blk.{self.layer}.").removesuffix(".weight")

    @cached_property
    def matrix(self) -> bool:
        """Whether a kernel multiplies with it; the others are norms, biases, convolutions of a few steps, ..."""
        small = "_norm" in self.key or "conv1d" in self.key or self.key == "shortconv.conv"
        return self.name.endswith(".weight") and len(self.shape) > 1 and min(self.shape[:2]) > 1 and not small


@dataclass(frozen=True)
class Tower:
    """An encoder of images or sound beside a decoder, whose results are tokens of the prompt.

    Attributes:
        tensors: named as in llama.cpp's `mmproj` files: `v.blk.3.attn_q.weight` (images), `a.blk...` (sound), `mm.0.weight` (the
            projector). A convolution is a matrix: all inputs of an output are its first size.
        patches: patches of an image, or of 30 seconds of sound: the rows of products in its layers.
        tokens: tokens of the prompt that the patches become.
        windows: [layers] patches that attention sees; 0: all. Layers beyond the end see all.
        buffer: bytes that llama.cpp allocates for the values.
        file: the `mmproj` file, as command lines name it.
    """

    tensors: tuple[Tensor, ...]
    patches: int
    tokens: int
    windows: tuple[int, ...] = ()
    buffer: int = 0
    file: str = ""

    @property
    def bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(t.bytes for t in self.tensors)


@dataclass(frozen=True)
class Checkpoint:
    """The tensors of a decoder, and the hyperparameters that they do not show.

    Attributes:
        layers: how many layers there are.
        active: experts that a token uses.
        heads: heads of attention; 0: unknown.
        windows: [layers] tokens that a layer's attention sees; 0: all. Layers beyond the end see all.
        state, convolution: numbers that a recurrent layer keeps of a sequence, and those for its convolution.
        name, architecture: for people; the architecture is named as in GGUF files.
        notes: what is not modelled.
        tower: the encoder of images or sound; None: it is not loaded.
    """

    tensors: tuple[Tensor, ...]
    layers: int
    active: int = 0
    heads: int = 0
    windows: tuple[int, ...] = ()
    state: int = 0
    convolution: int = 0
    name: str = ""
    architecture: str = ""
    notes: tuple[str, ...] = ()
    tower: Tower | None = None

    @property
    def bytes(self) -> int:
        """Bytes of all tensors, the tower's included."""
        return sum(t.bytes for t in self.tensors) + (self.tower.bytes if self.tower else 0)

    def window(self, layer: int) -> int:
        """Tokens that the attention of a layer sees; 0: all."""
        return self.windows[layer] if layer < len(self.windows) else 0


@dataclass(frozen=True)
class Experts:
    """Experts of a layer: how many, how many a token uses, their width, and the width of the shared expert.

    The first `dense` layers have an ordinary network of width `dense_width` instead, as do all but every `every`th layer.
    """

    count: int
    active: int
    width: int
    shared_width: int = 0
    dense: int = 0
    dense_width: int = 0
    every: int = 1


@dataclass(frozen=True)
class Latent:
    """Multi-head latent attention: ranks of queries (0: none) and of keys and values, and widths of a head."""

    q_rank: int
    kv_rank: int
    rope: int
    nope: int
    value: int


@dataclass(frozen=True)
class Linear:
    """Layers with a recurrent state in place of a cache (gated delta rule): heads of keys and of values, and their width."""

    key_heads: int
    value_heads: int
    head: int


@dataclass(frozen=True)
class Ssm:
    """Layers with a state space in place of a cache: width, state per channel, groups, heads. Without heads it is Mamba's first
    version, with steps of rank `rank`."""

    inner: int
    state: int
    groups: int = 1
    heads: int = 0
    rank: int = 0
    kernel: int = 4


@dataclass(frozen=True)
class Shape:
    """Hyperparameters of a decoder.

    Attributes:
        ffn: width of the feed-forward network, unless there are `experts`.
        tied: whether output and embedding share their matrix.
        gated: whether attention has a gate on its output, as wide as the queries.
        plain: whether networks have no gate: two matrices instead of three.
        fused: whether queries, keys and values are one matrix, and gate and up another.
        pattern: the kinds of the layers, again and again: attention to all tokens (`a`), to the last `window` tokens (`w`), a
            recurrence (`l`: linear attention or a state space), both side by side (`b`), each with a network; and layers of
            one part: a recurrence `M`, attention `*`, a network `-`, experts `E`.
        architecture: as GGUF files name it.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    vocab: int
    ffn: int = 0
    head: int = 128
    tied: bool = False
    gated: bool = False
    plain: bool = False
    fused: bool = False
    experts: Experts | None = None
    latent: Latent | None = None
    linear: Linear | None = None
    ssm: Ssm | None = None
    window: int = 0
    pattern: str = "a"
    architecture: str = "llama"

    def kind(self, layer: int) -> str:
        """The kind of a layer, see `pattern`."""
        return self.pattern[layer % len(self.pattern)]

    def attention(self, layer: int) -> Sizes:
        """Sizes of the matrices of a layer's attention or recurrence."""
        kind = self.kind(layer)
        recurrence = self._recurrence() if kind in "lbM" else {}
        return recurrence | (self._attention() if kind in "awb*" else {})

    def _recurrence(self) -> Sizes:
        h = self.hidden
        if self.linear is not None:
            k, v = self.linear.key_heads * self.linear.head, self.linear.value_heads * self.linear.head
            rates = 2 * self.linear.value_heads
            return {"attn_qkv": (h, 2 * k + v), "attn_gate": (h, v), "ssm_ba": (h, rates), "ssm_out": (v, h)}
        s = self.ssm
        assert s is not None, "layers of kind l, b and M need `linear` or `ssm`"
        if s.heads:
            return {"ssm_in": (h, 2 * s.inner + 2 * s.groups * s.state + s.heads), "ssm_out": (s.inner, h)}
        return {
            "ssm_in": (h, 2 * s.inner),
            "ssm_x": (s.inner, s.rank + 2 * s.state),
            "ssm_dt": (s.rank, s.inner),
            "ssm_out": (s.inner, h),
        }

    def _attention(self) -> Sizes:
        h, heads = self.hidden, self.heads
        if m := self.latent:
            queries = heads * (m.nope + m.rope)
            low = {"attn_q_a": (h, m.q_rank), "attn_q_b": (m.q_rank, queries)} if m.q_rank else {"attn_q": (h, queries)}
            return {
                **low,
                "attn_kv_a_mqa": (h, m.kv_rank + m.rope),
                "attn_kv_b": (m.kv_rank, heads * (m.nope + m.value)),
                "attn_output": (heads * m.value, h),
            }
        width, kv = heads * self.head, self.kv_heads * self.head
        q = width * (1 + self.gated)
        if self.fused:
            return {"attn_qkv": (h, q + 2 * kv), "attn_output": (width, h)}
        return {"attn_q": (h, q), "attn_k": (h, kv), "attn_v": (h, kv), "attn_output": (width, h)}

    def mixture(self, layer: int) -> Experts | None:
        """The experts of a layer; None if it has none."""
        e, kind = self.experts, self.kind(layer)
        return e if e and kind not in "M*-" and layer >= e.dense and (layer + 1) % e.every == 0 else None

    def network(self, layer: int) -> Sizes:
        """As `attention`, for the feed-forward network without routed experts. `ffn_down...` comes last."""
        if self.kind(layer) in "M*":
            return {}
        e = self.experts
        if not self.mixture(layer):
            return self._network(self.hidden, e.dense_width if e else self.ffn, "")
        assert e is not None
        router: Sizes = {"ffn_gate_inp": (self.hidden, e.count)}
        return router | (self._network(self.hidden, e.shared_width, "_shexp") if e.shared_width else {})

    def routed(self, layer: int) -> Sizes:
        """As `network`, for all routed experts."""
        e = self.mixture(layer)
        apart = self._network(self.hidden, e.width, "_exps") if e else {}
        return {name: (*size, e.count) for name, size in apart.items()} if e else {}

    def _network(self, hidden: int, width: int, suffix: str) -> Sizes:
        """Two or three matrices, the last one back to `hidden`."""
        both = self.fused and not suffix and not self.plain
        up: Sizes = {f"ffn_up{suffix}": (hidden, width * (2 if both else 1))}
        gate: Sizes = {} if self.plain or both else {f"ffn_gate{suffix}": (hidden, width)}
        return gate | up | {f"ffn_down{suffix}": (width, hidden)}

    def small(self, layer: int) -> Sizes:
        """As `attention`, for norms and convolutions."""
        kind = self.kind(layer)
        found: Sizes = {"attn_norm": (self.hidden,)}
        if kind not in ALONE:
            found["ffn_norm"] = (self.hidden,)
        if kind in "lbM":
            found["ssm_conv1d"] = (self._kernel, self._channels)
        return found

    @property
    def _kernel(self) -> int:
        return self.ssm.kernel if self.ssm else 4

    @property
    def _channels(self) -> int:
        """Width of the convolution of a recurrent layer."""
        if n := self.linear:
            return (2 * n.key_heads + n.value_heads) * n.head
        s = self.ssm
        return s.inner + (2 * s.groups * s.state if s.heads else 0) if s else 0

    @cached_property
    def dense_weights(self) -> int:
        """Number of weights outside of the routed experts, with the embedding."""
        both = [m for i in range(self.layers) for m in (self.attention(i), self.network(i))]
        own = sum(math.prod(size) for matrices in both for size in matrices.values())
        return own + self.vocab * self.hidden * (1 if self.tied else 2)

    @cached_property
    def expert_weights(self) -> int:
        """Number of weights of the routed experts."""
        return sum(math.prod(size) for i in range(self.layers) for size in self.routed(i).values())

    @property
    def weights(self) -> int:
        """Number of weights; norms are left out."""
        return self.dense_weights + self.expert_weights

    def checkpoint(self, bits: Callable[[str], float]) -> Checkpoint:
        """The matrices, with the bits that `bits` gives for a name."""
        sizes: Sizes = {"token_embd": (self.hidden, self.vocab)}
        for i in range(self.layers):
            own = self.attention(i) | self.network(i) | self.routed(i)
            sizes |= {f"blk.{i}.{key}": size for key, size in own.items()}
        if not self.tied:
            sizes["output"] = (self.hidden, self.vocab)
        tensors = (Tensor(f"{name}.weight", size, bits(name)) for name, size in sizes.items())
        n = self.linear
        state = n.value_heads * n.head**2 if n else self.ssm.inner * self.ssm.state if self.ssm else 0
        return Checkpoint(
            tuple(tensors), self.layers, self.experts.active if self.experts else 0, self.heads,
            tuple(self.window if self.kind(i) == "w" else 0 for i in range(self.layers)),
            state, (self._kernel - 1) * self._channels, architecture=self.architecture,
        )  # fmt: skip

    def whole(self, name: str) -> Checkpoint:
        """All tensors, the small ones too, each number in 16 bits or, if it is not a matrix, 32."""
        plain = self.checkpoint(lambda _: 16.0)
        small = [
            Tensor(f"blk.{i}.{key}.weight", size, 32.0, "F32")
            for i in range(self.layers) for key, size in self.small(i).items()
        ]  # fmt: skip
        small.append(Tensor("output_norm.weight", (self.hidden,), 32.0, "F32"))
        return replace(plain, tensors=(*plain.tensors, *small), name=name)


def shapes() -> dict[str, Shape]:
    """The shapes in this package, by the name of the model."""
    parts: dict[str, Any] = {"experts": Experts, "latent": Latent, "linear": Linear, "ssm": Ssm}
    data: dict[str, dict[str, Any]] = parse_yaml(read_bytes(SHAPES))
    models = {name: values for name, values in data.items() if not name.startswith("_")}
    return {
        name: Shape(**{key: parts[key](**value) if key in parts else value for key, value in values.items()})
        for name, values in models.items()
    }


def known(name: str) -> Shape | None:
    """The shape of a model by its name, without its organisation and words that change no shape (`Instruct`); None if unknown."""
    found = shapes()
    same = {_bare(n): n for n in found}
    return found[same[_bare(name)]] if _bare(name) in same else None


def full_name(tag: str) -> str | None:
    """The name of the only shape with all words of a tag of ollama (`qwen3:30b`); None if no shape or several have them."""
    found, words = shapes(), _bare(tag)
    fits = {n: shape for n, shape in found.items() if {*words} <= {*_bare(n)}}
    exact = [n for n in fits if _bare(n) == words]
    if not exact and len({repr(shape) for shape in fits.values()}) == 1:
        exact = sorted(fits, key=len)
    return exact[0] if exact else None


def _bare(name: str) -> tuple[str, ...]:
    """The words of a name: those of `qwen3:14b`, `Qwen3_14B` and `Qwen/Qwen3-14B-Instruct` are `qwen`, `3`, `14b`."""
    title = name.lower().rpartition("/")[2].removeprefix("meta-")
    words = [word for word in re.split("[-_:]", title) if word not in SAME]
    return tuple(part for word in words for part in re.split(r"(?<=[a-z]{2})(?=\d)", word) if part)


SAME = {
    "instruct", "it", "chat", "base", "thinking", "gguf", "hf", "bf16", "fp8", "awq", "gptq", "int4", "int8", "nvfp4", "4k", "8k",
    "128k", "0324", "0528", "0905", "1124", "2501", "2507", "v0.1", "v0.2",
}  # fmt: skip
"""Words in names that change no shape."""
