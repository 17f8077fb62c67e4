"""The program of a decoder as inference runtimes run it, from its hyperparameters alone.

llama.cpp and vLLM do not run the operations of transformers' Python code: they run one kernel per weight matrix, attention that
reads its cache, and a few small kernels. `decoder` builds that program as a graph, without torch and in milliseconds. Operations
have the names of tensors in GGUF files (`blk.3.ffn_up_exps`), and their weights add `.weight`, so that patterns of llama.cpp's
`--override-tensor` select them.

A program is one step: `decode` computes one token of each sequence, `context` tokens deep; `prompt` computes `tokens` tokens
in micro-batches, each of which reads the cache that the ones before have filled.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np

from placekit_core import Graph, GraphBuilder

LAUNCHES = 24
"""Kernels that a layer launches, the small ones included: llama.cpp of May 2024, whose kernels are not fused."""
ROUTING, LATENT = 5, 8
"""Kernels that a layer launches besides: for routing to experts (and one per active expert, to add their results up), and for
latent attention (norms of the low ranks, parts of heads)."""
OUTER_LAUNCHES = 3
"""Kernels outside of the layers: embedding, last norm, output."""
SMALL_BITS = 9.0
"""Weights of at most so many bits (8 and their scales) are expanded in the kernel: class `quantized_matmul`. The others are of
class `inference_matmul`: llama.cpp's kernels for 16 bits reach other fractions than those of libraries."""
UNFUSED = 3.0
"""How often attention without a fused kernel (flash attention) reads its cache: the median of Llama-3-8B on 15 single GPUs is
2.7, from how the time per token grows between 512 and 8,192 tokens (XiongjieDai/GPU-Benchmarks-on-LLM-Inference, May 2024)."""
SCORES = 6.0
"""How often a prompt's attention without a fused kernel passes over its scores in float32: products, softmax, mask, conversion.
With six, the rates of products in prompts of Llama-3-8B do not depend on their length (512 to 8,192 tokens, 21 single GPUs)."""
TILE = 128
"""Rows that a product computes at once, on devices with tensor cores (`get_mmq_x_max_host` in llama.cpp). The tokens of an expert
fill their last tile in part, and its arithmetic is done in full."""
VECTOR = 8
"""Up to so many tokens, kernels for vectors are used in place of tiles (llama.cpp)."""
QUEUE = 800
"""Launches that wait for a device; then the host waits, and later micro-batches do not begin. llama.cpp describes it and made the
queue four times as long (pull request 19042, January 2026). So that prompts of Llama-3-8B on several GPUs have no bias."""
MANY_LAUNCHES = {False: 43, True: 50}
"""Kernels of a layer for a micro-batch, counted in llama.cpp of May 2024: products convert their inputs and results, and unpack
quantised weights (True)."""
Sizes = dict[str, tuple[int, int]]
"""Widths of input and output of matrices, by name."""
ACTIVATION = 4
"""Bytes of an activation: float32, as in llama.cpp."""


@dataclass(frozen=True)
class Experts:
    """Experts of a layer: how many, how many a token takes, their width, that of the shared one; the first `dense` layers
    have an ordinary network of width `dense_width` instead."""

    count: int
    active: int
    width: int
    shared_width: int = 0
    dense: int = 0
    dense_width: int = 0

    def distinct(self, tokens: int) -> float:
        """The expected number of experts that `tokens` tokens take, if all are equally likely."""
        return float(self.count * (1.0 - (1.0 - self.active / self.count) ** tokens))


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
class Shape:
    """Hyperparameters of a decoder.

    Attributes:
        ffn: width of the feed-forward network, unless there are `experts`.
        tied: whether output and embedding share their matrix.
        gated: whether attention has a gate on its output, as wide as the queries.
        full_every: every so manieth layer has attention to all tokens; 0: all have. The others see the last `window`
            tokens, or are `linear`.
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
    experts: Experts | None = None
    latent: Latent | None = None
    linear: Linear | None = None
    window: int = 0
    full_every: int = 0

    def is_full(self, layer: int) -> bool:
        """Whether a layer attends to all tokens."""
        return self.full_every == 0 or (layer + 1) % self.full_every == 0

    def attention(self, layer: int) -> Sizes:
        """Width of input and output of the matrices of a layer's attention, by name. `attn_output` is the last."""
        h, heads = self.hidden, self.heads
        if self.linear is not None and not self.is_full(layer):
            k, v = self.linear.key_heads * self.linear.head, self.linear.value_heads * self.linear.head
            rates = 2 * self.linear.value_heads
            return {"attn_qkv": (h, 2 * k + v), "attn_gate": (h, v), "ssm_ba": (h, rates), "ssm_out": (v, h)}
        if m := self.latent:
            queries = heads * (m.nope + m.rope)
            q = {"attn_q_a": (h, m.q_rank), "attn_q_b": (m.q_rank, queries)} if m.q_rank else {"attn_q": (h, queries)}
            return q | {
                "attn_kv_a_mqa": (h, m.kv_rank + m.rope),
                "attn_kv_b": (m.kv_rank, heads * (m.nope + m.value)),
                "attn_output": (heads * m.value, h),
            }
        width, kv = heads * self.head, self.kv_heads * self.head
        return {
            "attn_q": (h, width * (1 + self.gated)),
            "attn_k": (h, kv),
            "attn_v": (h, kv),
            "attn_output": (width, h),
        }

    def network(self, layer: int) -> Sizes:
        """As `attention`, for the feed-forward network without routed experts. `ffn_down...` comes last."""
        e = self.experts
        if e is None or layer < e.dense:
            return _gated(self.hidden, e.dense_width if e else self.ffn, "")
        router = {"ffn_gate_inp": (self.hidden, e.count)}
        return router | (_gated(self.hidden, e.shared_width, "_shexp") if e.shared_width else {})

    def routed(self, layer: int) -> Sizes:
        """As `network`, for one routed expert."""
        e = self.experts
        return {} if e is None or layer < e.dense else _gated(self.hidden, e.width, "_exps")

    @cached_property
    def dense_weights(self) -> int:
        """Number of weights outside of the routed experts, with the embedding."""
        both = [m for i in range(self.layers) for m in (self.attention(i), self.network(i))]
        own = sum(rows * columns for matrices in both for rows, columns in matrices.values())
        return own + self.vocab * self.hidden * (1 if self.tied else 2)

    @cached_property
    def expert_weights(self) -> int:
        """Number of weights of the routed experts."""
        return sum(
            self.experts.count * rows * columns
            for i in range(self.layers) if self.experts for rows, columns in self.routed(i).values()
        )  # fmt: skip

    @property
    def weights(self) -> int:
        """Number of weights; norms are left out."""
        return self.dense_weights + self.expert_weights

    def cached(self, layer: int) -> int:
        """Numbers that a layer caches for a token."""
        if self.linear is not None and not self.is_full(layer):
            return 0
        return self.latent.kv_rank + self.latent.rope if self.latent else 2 * self.kv_heads * self.head


def _gated(hidden: int, width: int, suffix: str) -> Sizes:
    return {f"ffn_{part}{suffix}": (hidden, width) for part in ("gate", "up")} | {f"ffn_down{suffix}": (width, hidden)}


@dataclass(frozen=True)
class Use:
    """How a decoder is used.

    Attributes:
        mode: `decode` computes one token of each of `batch` sequences; `prompt` computes `tokens` tokens of one sequence.
        context: tokens in the cache before this step.
        ubatch: most tokens of a micro-batch of a prompt.
        bits, expert_bits: of a weight, scales included; of the routed experts where they differ.
        cache_bytes: of a number in the cache.
        flash: whether attention is one fused kernel.
        overlap: whether devices work on several micro-batches of a prompt at once.
        stage: layers on the last of several devices, whose queue of launches is limited; 0: it is not.
    """

    mode: Literal["decode", "prompt"] = "decode"
    context: int = 0
    batch: int = 1
    tokens: int = 1
    ubatch: int = 512
    bits: float = 16.0
    expert_bits: float | None = None
    cache_bytes: float = 2.0
    flash: bool = True
    overlap: bool = True
    stage: int = 0


@dataclass
class _Pass:
    """One micro-batch: its number of tokens, those in the cache before it, and the suffix of its operations' names."""

    tokens: int
    past: int
    suffix: str
    values: int = -1  # tensor that the next operation reads


@dataclass
class _Program:
    """Builds the graph."""

    shape: Shape
    use: Use
    b: GraphBuilder
    launches: list[float] = field(default_factory=list)

    def source(self, name: str, bytes_: float, type_: str = "parameter") -> int:
        """A source; returns its tensor."""
        self.launches.append(0.0)
        return self.b.source(name, round(bytes_), op_type=type_, dtype="float16")

    def kernel(
        self, p: _Pass, name: str, kind: str, reads: list[int], *, width: int, flops: float, traffic: float, n: float = 1
    ) -> int:  # fmt: skip
        """A kernel that writes `width` numbers per token; returns the tensor."""
        self.launches.append(n)
        out = p.tokens * self.use.batch * width * ACTIVATION
        return self.b.add(
            name + p.suffix, op_type=name.rpartition(".")[2], op_class=kind, dtype="float16", inputs=reads, outputs=[out],
            flops=flops, bytes_accessed=traffic,
        )[0]  # fmt: skip

    def small(self, p: _Pass, name: str, reads: list[int], width: int, n: float, kind: str = "elementwise") -> int:
        """A small kernel, or `n` of them: each reads and writes the activations."""
        numbers = p.tokens * self.use.batch * width
        return self.kernel(
            p, name, kind, reads, width=width, flops=n * numbers, traffic=2 * n * numbers * ACTIVATION, n=n
        )

    def product(
        self, p: _Pass, name: str, weight: int, size: tuple[int, int], reads: list[int], expert: bool = False
    ) -> int:
        """A kernel for a weight matrix, or for those of all experts of a layer."""
        rows = p.tokens * self.use.batch
        inputs, outputs = size
        matrices, times, computed = 1.0, 1, float(rows)
        if expert:
            assert self.shape.experts is not None
            matrices, times = self.shape.experts.distinct(rows), self.shape.experts.active
            own = rows * times / matrices  # tokens of an expert
            computed = rows * times if rows <= VECTOR else matrices * max(TILE, own + TILE / 2)
        bits = self.bits(expert)
        traffic = matrices * inputs * outputs * bits / 8 + rows * times * (inputs + outputs) * ACTIVATION
        kind = "quantized_matmul" if bits <= SMALL_BITS else "inference_matmul"
        return self.kernel(
            p, name, kind, [*reads, weight], width=outputs * times, flops=2.0 * computed * inputs * outputs,
            traffic=traffic,
        )  # fmt: skip

    def bits(self, expert: bool) -> float:
        """Bits of a weight."""
        return self.use.expert_bits if expert and self.use.expert_bits is not None else self.use.bits

    def build(self, passes: list[_Pass]) -> Graph:
        """The graph: all sources, then one micro-batch after the other."""
        s, per_weight = self.shape, self.use.bits / 8
        embedding = self.source("token_embd.weight", s.vocab * s.hidden * per_weight)
        token = self.source("tokens", 4 * sum(p.tokens for p in passes) * self.use.batch, "input")
        layers = [self.sources(layer, passes[-1].past + passes[-1].tokens) for layer in range(s.layers)]
        head = embedding if s.tied else self.source("output.weight", s.vocab * s.hidden * per_weight)
        done: list[list[int]] = []  # of each micro-batch, the tensors after each layer
        for p in passes:
            before = self.awaited(done)
            read = p.tokens * self.use.batch * s.hidden * (per_weight + ACTIVATION)
            p.values = self.kernel(
                p, "token_embd", "embedding", [embedding, token, *before], width=s.hidden, flops=0, traffic=read
            )
            done.append([])
            for layer, weights in enumerate(layers):
                self.layer(p, layer, weights)
                done[-1].append(p.values)
        last = passes[-1]
        last.tokens = 1  # of a prompt, only the last token is sampled
        x = self.small(last, "output_norm", [last.values], s.hidden, 1, "normalization")
        self.product(last, "output", head, (s.hidden, s.vocab), [x])
        self.b.columns["launches"] = np.asarray(self.launches)
        return self.b.build()

    def awaited(self, done: list[list[int]]) -> list[int]:
        """The tensor that the next micro-batch waits for, if any: devices do not overlap, or the queue of the last is full."""
        if not self.use.overlap:
            return [done[-1][-1]] if done else []
        if not self.use.stage:
            return []
        launches = self.use.stage * MANY_LAUNCHES[self.use.bits <= SMALL_BITS]
        number = len(done) - QUEUE / launches  # on the last device, micro-batches are finished up to here
        whole = math.floor(number)
        layer = self.shape.layers - self.use.stage + math.floor((number - whole) * self.use.stage)
        return [done[whole][layer]] if whole >= 0 else []

    def sources(self, layer: int, depth: int) -> dict[str, int]:
        """The weights and the cache of a layer: their tensors by name."""
        s, name, routed = self.shape, f"blk.{layer}.", self.shape.routed(layer)
        found = {}
        for key, (rows, columns) in (s.attention(layer) | s.network(layer) | routed).items():
            experts = s.experts.count if s.experts and key in routed else 1
            found[key] = self.source(f"{name}{key}.weight", experts * rows * columns * self.bits(key in routed) / 8)
        if not s.is_full(layer) and s.window:
            depth = min(depth, s.window)
        kept = s.cached(layer) * depth * self.use.cache_bytes or self.state_bytes
        return found | {"cache": self.source(f"{name}cache", kept * self.use.batch, "buffer")}

    def layer(self, p: _Pass, layer: int, weights: dict[str, int]) -> None:
        """A layer of one micro-batch."""
        s, name = self.shape, f"blk.{layer}."
        attention, network, routed = s.attention(layer), s.network(layer), s.routed(layer)
        mixing = LAUNCHES - len(attention) - 3 - 2 - 6  # a gated network, its activation; norms and additions
        mixing += (ROUTING + s.experts.active if routed and s.experts else 0) + (LATENT if s.latent else 0)
        x = p.values
        norm = self.small(p, f"{name}attn_norm", [x], s.hidden, 2, "normalization")
        *inner, (last, size) = attention.items()
        mixed = self.mix(p, layer, [*self.inner(p, name, inner, weights, norm), weights["cache"]], size[0], mixing)
        y = self.product(p, f"{name}{last}", weights[last], size, [mixed])
        x = self.small(p, f"{name}attn_add", [x, y], s.hidden, 1)
        norm = self.small(p, f"{name}ffn_norm", [x], s.hidden, 2, "normalization")
        ends = [self.branch(p, name, network, weights, norm, ())] if set(network) != {"ffn_gate_inp"} else []
        if routed:
            gate = "ffn_gate_inp"
            choice = self.product(p, name + gate, weights[gate], network[gate], [norm])
            ends.append(self.branch(p, name, routed, weights, norm, (choice,)))
        p.values = self.small(p, f"{name}ffn_add", [x, *ends], s.hidden, 1)

    def inner(
        self, p: _Pass, name: str, matrices: list[tuple[str, tuple[int, int]]], weights: dict[str, int], norm: int
    ) -> list[int]:
        """The products between the norm and the attention; those of low rank follow one another."""
        found: dict[str, int] = {}
        for key, size in matrices:
            before = {"attn_q_b": "attn_q_a", "attn_kv_b": "attn_kv_a_mqa"}.get(key)
            reads = [found.pop(before)] if before else [norm]
            found[key] = self.product(p, name + key, weights[key], size, reads)
        return list(found.values())

    def branch(
        self, p: _Pass, name: str, matrices: Sizes, weights: dict[str, int], norm: int, choice: tuple[int, ...]
    ) -> int:
        """A gated network: two products, their activation, a product."""
        gate, up, down = (key for key in matrices if key != "ffn_gate_inp")
        expert = gate.endswith("_exps")
        times = self.shape.experts.active if expert and self.shape.experts else 1
        first = [self.product(p, name + k, weights[k], matrices[k], [norm, *choice], expert) for k in (gate, up)]
        act = self.small(p, f"{name}{gate.replace('gate', 'act')}", first, matrices[down][0] * times, 2)
        return self.product(p, name + down, weights[down], matrices[down], [act], expert)

    @property
    def state_bytes(self) -> float:
        """Of the recurrent state of a layer, in float32."""
        linear = self.shape.linear
        return linear.value_heads * linear.head**2 * 4 if linear else 0

    def mix(self, p: _Pass, layer: int, reads: list[int], width: int, n: float) -> int:
        """Attention with its rotary embedding, or the recurrence of a linear layer: `n` launches."""
        s, rows, name = self.shape, p.tokens * self.use.batch, f"blk.{layer}.attn"
        passes = 2 * width * rows * ACTIVATION * 3  # queries, keys, values: rotated and stored
        if s.linear is not None and not s.is_full(layer):
            work = 6.0 * rows * s.linear.value_heads * s.linear.head**2
            traffic = passes + 2 * self.state_bytes * self.use.batch
            return self.kernel(p, name, "other", reads, width=width, flops=work, traffic=traffic, n=n)
        depth = p.past + p.tokens
        seen = p.past + (p.tokens + 1) / 2  # by the average token
        if not s.is_full(layer) and s.window:
            depth, seen = min(depth, s.window + p.tokens), min(seen, s.window)
        if not self.use.flash and p.tokens > 1:
            seen = depth  # the masked half is computed, too
        flops = 2.0 * rows * seen * s.heads * 2 * s.head
        cache = s.cached(layer) * depth * self.use.cache_bytes * self.use.batch
        if m := s.latent:
            if p.tokens > 1:  # keys and values are expanded for all tokens
                flops = 2.0 * rows * seen * s.heads * (m.nope + m.rope + m.value)
                flops += 2.0 * depth * m.kv_rank * s.heads * (m.nope + m.value)
            else:  # the projection is absorbed: attention works on what is cached
                flops = 2.0 * rows * seen * s.heads * (2 * m.kv_rank + m.rope)
        if not self.use.flash:
            cache = UNFUSED * cache if p.tokens == 1 else cache + SCORES * s.heads * rows * depth * ACTIVATION
        return self.kernel(p, name, "attention", reads, width=width, flops=flops, traffic=passes + cache, n=n)


def decoder(name: str, shape: Shape, use: Use) -> Graph:
    """The graph of a decoder. Its attributes say what it is: `program` is `decoder`, `mode`, `batch` and `context`."""
    b = GraphBuilder(name)
    b.attributes = {"program": "decoder", "mode": use.mode, "batch": use.batch, "context": use.context}
    return _Program(shape, use, b).build(list(_passes(use)))


def _passes(use: Use) -> Iterator[_Pass]:
    if use.mode == "decode":
        yield _Pass(1, use.context, "")
        return
    for i, begin in enumerate(range(0, use.tokens, use.ubatch)):
        yield _Pass(min(use.ubatch, use.tokens - begin), use.context + begin, f"@{i}")
