"""The program of a decoder as inference runtimes run it, from its tensors.

llama.cpp and vLLM do not run the operations of transformers' Python code: they run one kernel per weight matrix, attention that
reads its cache, and a few small kernels. `program` builds that program as a graph, without torch and in milliseconds, from the
list of tensors; `decoder` does from hyperparameters alone. Operations have the names of tensors in GGUF files
(`blk.3.ffn_up_exps`), and their weights add `.weight`, so that patterns of llama.cpp's `--override-tensor` select them.

What a tensor does follows from its name, for all architectures: tables below say which come before attention or a recurrence,
and which after; names `ffn_gate`, `ffn_up` and `ffn_down` with one ending form a network; matrices with other names are products
between the two additions of a layer.

A program is one step: `decode` computes one token of each sequence, `context` tokens deep; `prompt` computes `tokens` tokens
in micro-batches; each reads the cache that earlier ones have filled. Images go through the tower first.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import numpy as np

from placekit_core import Graph, GraphBuilder
from placekit_models.shape import Checkpoint, Shape, Tensor, Tower

LAUNCHES = 24
"""Kernels that a layer launches, the small ones included: llama.cpp of May 2024, whose kernels are not fused."""
ROUTING, LATENT = 5, 8
"""Kernels that a layer launches besides: for routing to experts (and one per active expert, to add their results up), and for
latent attention (norms of the low ranks, parts of heads)."""
OUTER_LAUNCHES = 3
"""Kernels outside of the layers: embedding, last norm, output."""
SMALL_BITS = 9.0
"""Weights of at most this many bits (8 and their scales) are expanded in the kernel: class `quantized_matmul`. The others are of
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
"""Up to this many tokens, kernels for vectors replace those for tiles (llama.cpp)."""
QUEUE = 800
"""Launches that wait for a device; then the host waits, and later micro-batches do not begin. llama.cpp describes it and made the
queue four times as long (pull request 19042, January 2026). So that prompts of Llama-3-8B on several GPUs have no bias."""
MANY_LAUNCHES = {False: 43, True: 50}
"""Kernels of a layer for a micro-batch, counted in llama.cpp of May 2024: products convert their inputs and results, and unpack
quantised weights (True)."""
ACTIVATION = 4
"""Bytes of an activation: float32, as in llama.cpp."""
MIXING = ("attn", "ssm", "shortconv", "time_mix", "indexer")
"""Beginnings of the names of tensors of attention and of recurrences."""
AFTER = ("attn_v_b", "attn_output", "attn_out", "ssm_out", "shortconv.out_proj", "time_mix_output")
"""Matrices after the attention or the recurrence, in their order; the others come before it."""
RECURRENT = ("ssm", "shortconv", "time_mix")
BEFORE = {
    "attn_q_b": "attn_q_a", "attn_kv_b": "attn_kv_a_mqa", "attn_k_b": "attn_q_b", "ssm_x": "ssm_in", "ssm_dt": "ssm_x",
    "indexer.attn_q_b": "attn_q_a",
}  # fmt: skip
"""Matrices that read another one's result, not the layer's norm."""
NETWORK = re.compile(r"ffn_(gate_up|gate|up|down)(?!_inp)(.*)")
ROUTER = "ffn_gate_inp"
BLOCK = re.compile(r"([va]\.blk\.(\d+)\.)(.+)")
"""Tensors in the layers of a tower."""


@dataclass(frozen=True)
class Use:
    """How a decoder is used.

    Attributes:
        mode: `decode` computes one token of each of `batch` sequences; `prompt` computes `tokens` tokens of one sequence.
        context: tokens in the cache before this step.
        ubatch: most tokens of a micro-batch of a prompt.
        bits, expert_bits: bits of a weight, scales included, and of a weight of the routed experts if they differ. For
            `decoder` only: tensors have their own.
        cache_bytes: bytes of a number in the cache.
        flash: whether attention is one fused kernel.
        overlap: whether devices work on several micro-batches of a prompt at once.
        room: tokens of each sequence that the cache can hold, if these are more than it holds.
        stage: layers on the last of several devices, whose queue of launches is limited; 0: no limit.
        images: images of each sequence that the tower encodes before a prompt. Their tokens are among `tokens`.
        copied: whether an output that shares the embedding's matrix has a copy of its own, so that it can be on another device.
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
    room: int = 0
    copied: bool = False
    images: int = 0


@dataclass
class _Pass:
    """One micro-batch: its number of tokens, those in the cache before it, and the suffix of its operations' names."""

    tokens: int
    past: int
    suffix: str
    values: int = -1  # tensor that the next operation reads


@dataclass
class _Layer:
    """A layer: its tensors by key, their sources, and its caches.

    Attributes:
        name: what its operations' names begin with; empty for the tensors outside of layers.
        module: path of its module.
        window: tokens that attention sees; 0: all.
        sources, caches: tensors of the graph by key.
        read: norms, biases and the like, by the key of the operation that reads them.
    """

    name: str
    tensors: dict[str, Tensor]
    module: str = ""
    window: int = 0
    sources: dict[str, int] = field(default_factory=dict)
    caches: dict[str, int] = field(default_factory=dict)
    read: dict[str, list[int]] = field(default_factory=dict)

    @cached_property
    def matrices(self) -> dict[str, Tensor]:
        return {key: t for key, t in self.tensors.items() if t.matrix}

    @cached_property
    def mixing(self) -> list[str]:
        """Keys of the matrices of attention and recurrence."""
        return [key for key in self.matrices if key.startswith(MIXING)]

    @cached_property
    def recurrent(self) -> bool:
        return any(key.startswith(RECURRENT) for key in self.tensors)

    @cached_property
    def attends(self) -> bool:
        return any(key.startswith(("attn_output", "attn_k", "attn_kv", "attn_v")) for key in self.mixing)

    def networks(self) -> dict[str, dict[str, str]]:
        """The networks by the end of their names (`_exps`): their matrices by `gate`, `up`, `down`."""
        found: dict[str, dict[str, str]] = {}
        for key in self.matrices:
            if match := NETWORK.fullmatch(key):
                found.setdefault(match[2], {})[match[1]] = key
        return found

    def reader(self, key: str) -> str:
        """Key of the operation that reads a tensor that is not a matrix: its own product, a norm, the recurrence, an addition."""
        own, mixing = key.rpartition(".")[0] or key, bool(self.mixing)
        if own in self.matrices or (own == "attn_norm" and mixing) or own == "ffn_norm":
            return own
        if key.startswith(MIXING) and mixing:
            return "mix"
        return "ffn_add" if self.networks() else "attn_add"

    def width(self, *keys: str) -> int:
        """Outputs of the first of these matrices that the layer has; 0 without any."""
        return next((math.prod(self.tensors[k].shape[1:]) for k in keys if k in self.tensors), 0)

    @cached_property
    def cached(self) -> int:
        """Numbers that attention caches for a token."""
        if not self.attends:
            return 0
        if "attn_kv_a_mqa" in self.tensors:
            return self.width("attn_kv_a_mqa")
        fused = self.width("attn_qkv") - self.inputs if "attn_qkv" in self.tensors else 0
        return fused or self.width("attn_k") + self.width("attn_v", "attn_k")

    @cached_property
    def inputs(self) -> int:
        """Width of what attention returns: heads times the width of a head."""
        return self.tensors["attn_output"].shape[0] if "attn_output" in self.tensors else self.width("attn_q")


@dataclass
class _Program:
    """Builds the graph."""

    checkpoint: Checkpoint
    use: Use
    b: GraphBuilder
    launches: list[float] = field(default_factory=list)

    def source(self, name: str, bytes_: float, type_: str = "parameter", module: str = "") -> int:
        """A source; returns its tensor."""
        self.launches.append(0.0)
        return self.b.source(name, round(bytes_), op_type=type_, dtype="float16", module=module)

    def kernel(
        self, p: _Pass, name: str, kind: str, reads: list[int], *, width: int, flops: float, traffic: float, n: float = 1,
        module: str = "",
    ) -> int:  # fmt: skip
        """A kernel that writes `width` numbers per token; returns the tensor."""
        self.launches.append(n)
        out = p.tokens * self.use.batch * width * ACTIVATION
        return self.b.add(
            name + p.suffix, op_type=name.rpartition(".")[2], op_class=kind, dtype="float16", inputs=reads, outputs=[out],
            flops=flops, bytes_accessed=traffic, module=module,
        )[0]  # fmt: skip

    def small(self, p: _Pass, layer: _Layer, key: str, reads: list[int], width: int, n: float) -> int:
        """A small kernel, or `n` of them: each reads and writes the activations."""
        numbers = p.tokens * self.use.batch * width
        kind = "normalization" if key.endswith("norm") else "elementwise"
        module = layer.tensors[key].module if key in layer.tensors else layer.module
        return self.kernel(
            p, layer.name + key, kind, [*reads, *layer.read.get(key, ())], width=width, flops=n * numbers,
            traffic=2 * n * numbers * ACTIVATION, n=n, module=module,
        )  # fmt: skip

    def product(self, p: _Pass, layer: _Layer, key: str, reads: list[int], name: str = "") -> int:
        """A kernel for a weight matrix, or for those of all experts of a layer."""
        tensor, rows = layer.tensors[key], p.tokens * self.use.batch
        inputs, outputs = tensor.shape[0], math.prod(tensor.shape[1:])
        matrices, times, computed = 1.0, 1, float(rows)
        if "exps" in key and len(tensor.shape) > 2:
            outputs, count = tensor.shape[1:]
            times = self.checkpoint.active
            matrices = distinct(count, times, rows)
            own = rows * times / matrices  # tokens of an expert
            computed = rows * times if rows <= VECTOR else matrices * max(TILE, own + TILE / 2)
        traffic = matrices * inputs * outputs * tensor.bits / 8 + rows * times * (inputs + outputs) * ACTIVATION
        kind = "quantized_matmul" if tensor.bits <= SMALL_BITS else "inference_matmul"
        return self.kernel(
            p, layer.name + (name or key), kind, [*reads, layer.sources[key], *layer.read.get(key, ())],
            width=outputs * times, flops=2.0 * computed * inputs * outputs, traffic=traffic, module=tensor.module,
        )  # fmt: skip

    def build(self, passes: list[_Pass]) -> Graph:
        """The graph: all sources, then one micro-batch after the other."""
        outer, layers = self.layers()
        embedding, head = outer.tensors["token_embd"], outer.tensors.get("output", outer.tensors["token_embd"])
        hidden = embedding.shape[0]
        outer.sources["token_embd"] = self.source(embedding.name, embedding.bytes, module=embedding.module)
        token = self.source("tokens", 4 * sum(p.tokens for p in passes) * self.use.batch, "input")
        for layer in layers:
            self.sources(layer, max(passes[-1].past + passes[-1].tokens, self.use.room))
        for key, tensor in outer.tensors.items():
            if key != "token_embd":
                outer.sources[key] = self.source(tensor.name, tensor.bytes, module=tensor.module)
        outer.read["output_norm"] = [i for k, i in outer.sources.items() if k.startswith("output_norm")]
        rest = [i for k, i in outer.sources.items() if k not in ("token_embd", "output") and "output_norm" not in k]
        images = self.images(self.checkpoint.tower) if self.checkpoint.tower else []
        done: list[list[int]] = []  # of each micro-batch, the tensors after each layer
        for p in passes:
            before = self.awaited(done, layers) if done else images
            read = p.tokens * self.use.batch * hidden * (embedding.bits / 8 + ACTIVATION)
            p.values = self.kernel(
                p, "token_embd", "embedding", [outer.sources["token_embd"], token, *rest, *before], width=hidden, flops=0,
                traffic=read, module=embedding.module,
            )  # fmt: skip
            done.append([])
            for layer in layers:
                self.layer(p, layer, hidden)
                done[-1].append(p.values)
        last = passes[-1]
        last.tokens = 1  # of a prompt, only the last token is sampled
        x = self.small(last, outer, "output_norm", [last.values], hidden, 1)
        self.product(last, outer, head.key, [x], "output")
        self.b.columns["launches"] = np.asarray(self.launches)
        return self.b.build()

    def layers(self) -> tuple[_Layer, list[_Layer]]:
        """The tensors outside of layers, and the layers."""
        outer, found = _Layer("", {}), [_Layer(f"blk.{i}.", {}) for i in range(self.checkpoint.layers)]
        for tensor in self.checkpoint.tensors:
            own = outer if tensor.layer < 0 else found[tensor.layer]
            own.tensors[tensor.key] = tensor
        if self.use.copied and "output" not in outer.tensors:
            outer.tensors["output"] = replace(outer.tensors["token_embd"], name="output.weight", module="lm_head")
        for i, layer in enumerate(found):
            paths = (re.match(rf"(?:[^.]+\.)*?{i}(?=\.)", t.module) for t in layer.tensors.values())
            layer.module = next((path[0] for path in paths if path), "")
            layer.window = self.checkpoint.window(i)
        return outer, found

    def images(self, tower: Tower) -> list[int]:
        """The tower's weights, and its kernels for each image; returns the results."""
        before, after, layers = _Layer("", {}), _Layer("", {}), dict[int, _Layer]()
        for t in tower.tensors:
            if match := BLOCK.fullmatch(t.key):
                own = layers.setdefault(
                    int(match[2]), _Layer(match[1], {}, re.sub(rf"(?<=\.{match[2]})\..*", "", t.module))
                )
                own.tensors[match[3]] = t
            else:
                (before if "patch_embd" in t.key else after).tensors[t.key] = t
        parts = [before, *(layers[i] for i in sorted(layers)), after]
        for layer in parts:
            self.weights(layer)
        number = self.use.images if self.use.mode == "prompt" else 0
        pixels = self.source("images", 4 * number * self.use.batch * tower.patches, "input") if number else -1
        # their suffixes are negative, because they come before micro-batch 0
        return [self.encode(_Pass(tower.patches, 0, f"@{i - number}", pixels), parts, tower) for i in range(number)]

    def encode(self, p: _Pass, parts: Sequence[_Layer], tower: Tower) -> int:
        """One image: patches go through the layers, then tokens through the projector; returns the result."""
        before, *layers, after = parts
        self.line(p, before)
        for i, layer in enumerate(layers):
            first = [key for key in layer.mixing if key not in AFTER]
            width = layer.width("ffn_down") or layer.width(*first)
            x = self.small(p, layer, "ln1", [p.values], width, 2)
            heads = [self.product(p, layer, key, [x]) for key in first]
            x = self.see(p, layer, heads or [x], layer.tensors["attn_out"].shape[0] if "attn_out" in layer.matrices else width,
                         tower.windows[i] if i < len(tower.windows) else 0)  # fmt: skip
            ends = [self.product(p, layer, key, [x]) for key in layer.mixing if key in AFTER]
            p.values = self.small(p, layer, "attn_add", [p.values, *(ends or [x])], width, 1)
            for own in layer.networks().values():
                x = self.small(p, layer, "ln2", [p.values], width, 2)
                p.values = self.small(p, layer, "ffn_add", [p.values, self.network(p, layer, own, [x])], width, 1)
        p.tokens = tower.tokens
        self.line(p, after)
        return p.values

    def line(self, p: _Pass, layer: _Layer) -> None:
        """One product after the other; tables of positions and words are not multiplied."""
        rest = [layer.sources[k] for k in layer.tensors if k not in layer.matrices]
        for key in layer.matrices:
            if "patch_embd" in key or not re.search("embd|embedding", key):
                p.values = self.product(p, layer, key, [p.values, *rest])
                rest = []

    def see(self, p: _Pass, layer: _Layer, reads: list[int], width: int, window: int) -> int:
        """Attention of a tower, without a cache or a mask: all patches see all others, or those in a window."""
        rows = p.tokens * self.use.batch
        return self.kernel(
            p, f"{layer.name}attn", "attention", [*reads, *layer.read.get("mix", ())], width=width,
            flops=4.0 * rows * min(window or p.tokens, p.tokens) * width, traffic=4 * rows * width * ACTIVATION, n=4,
            module=layer.module,
        )  # fmt: skip

    def awaited(self, done: list[list[int]], layers: Sequence[_Layer]) -> list[int]:
        """The tensor that the next micro-batch waits for, if any: devices do not overlap, or the queue of the last is full."""
        if not self.use.overlap:
            return [done[-1][-1]] if done else []
        if not self.use.stage:
            return []
        bits = next((t.bits for layer in layers for t in layer.matrices.values()), 16.0)
        launches = self.use.stage * MANY_LAUNCHES[bits <= SMALL_BITS]
        number = len(done) - QUEUE / launches  # on the last device, micro-batches are finished up to here
        whole = math.floor(number)
        layer = len(layers) - self.use.stage + math.floor((number - whole) * self.use.stage)
        return [done[whole][layer]] if whole >= 0 else []

    def weights(self, layer: _Layer) -> None:
        """The weights of a layer."""
        for key, tensor in layer.tensors.items():
            layer.sources[key] = self.source(tensor.name, tensor.bytes, module=tensor.module)
            if not tensor.matrix:
                layer.read.setdefault(layer.reader(key), []).append(layer.sources[key])

    def sources(self, layer: _Layer, depth: int) -> None:
        """The weights, the cache and the state of a layer."""
        c = self.checkpoint
        self.weights(layer)
        if layer.attends:
            kept = layer.cached * (min(depth, layer.window) if layer.window else depth) * self.use.cache_bytes
            layer.caches["cache"] = self.source(
                f"{layer.name}cache", kept * self.use.batch, "buffer", _around(layer, "attn")
            )
            self.b.attributes["cache"].append(f"{layer.name}cache")
        if layer.recurrent:
            kept = (c.state + c.convolution) * 4
            layer.caches["state"] = self.source(
                f"{layer.name}state", kept * self.use.batch, "buffer", _around(layer, *RECURRENT)
            )

    def layer(self, p: _Pass, layer: _Layer, hidden: int) -> None:
        """A layer of one micro-batch: attention or a recurrence or both, other matrices, networks, each added to its input."""
        mixing, networks = layer.mixing, layer.networks()
        routed = "_exps" in networks
        n = LAUNCHES - len(mixing) - 3 - 2 - 6  # a gated network, its activation; norms and additions
        n += (ROUTING + self.checkpoint.active if routed else 0) + (LATENT if "attn_kv_a_mqa" in layer.tensors else 0)
        if mixing:
            norm = self.small(p, layer, "attn_norm", [p.values], hidden, 2)
            ends = self.mix(p, layer, mixing, norm, max(n, 1))
            p.values = self.small(p, layer, "attn_add", [p.values, *ends], hidden, 1)
        taken = {*mixing, ROUTER, *(key for own in networks.values() for key in own.values())}
        for key in [k for k in layer.matrices if k not in taken]:
            y = self.product(p, layer, key, [p.values])
            p.values = self.small(p, layer, f"{key}_sum", [p.values, y], hidden, 1)
        if networks:
            norm = self.small(p, layer, "ffn_norm", [p.values], hidden, 2)
            ends = [self.network(p, layer, own, [norm]) for end, own in networks.items() if "exps" not in end]
            experts = [own for end, own in networks.items() if "exps" in end]
            if experts and ROUTER in layer.matrices:
                choice = [norm, self.product(p, layer, ROUTER, [norm])]
                ends += [self.network(p, layer, own, choice) for own in experts]
            p.values = self.small(p, layer, "ffn_add", [p.values, *ends], hidden, 1)

    def network(self, p: _Pass, layer: _Layer, parts: dict[str, str], reads: list[int]) -> int:
        """A network: one or two products, their activation, a product back."""
        first = [key for part, key in parts.items() if part != "down"]
        done = [self.product(p, layer, key, reads) for key in first] or reads
        if "down" not in parts:
            return done[-1]
        down = parts["down"]
        times = self.checkpoint.active if "exps" in down else 1
        act = re.sub("down", "act", down)
        values = self.small(p, layer, act, done, layer.tensors[down].shape[0] * times, 2)
        return self.product(p, layer, down, [values])

    def mix(self, p: _Pass, layer: _Layer, mixing: list[str], norm: int, n: float) -> list[int]:
        """Attention, a recurrence, or both, with the matrices before and after; returns the results."""
        done: dict[str, int] = {}
        for key in (k for k in mixing if k not in AFTER):
            before = BEFORE.get(key, "")
            done[key] = self.product(p, layer, key, [done.pop(before) if before in done else norm])
        parts = [part for part in ("attn", "ssm") if (layer.attends if part == "attn" else layer.recurrent)] or ["attn"]
        ends = []
        for part in parts:
            mine = [k for k in (*done, *AFTER) if len(parts) == 1 or k.startswith("attn") == (part == "attn")]
            reads = [*(done[k] for k in mine if k in done), *(layer.read.get("mix", ()) if part == parts[-1] else ())]
            after = [k for k in mine if k in layer.matrices and k in AFTER]
            width = layer.tensors[after[-1]].shape[0] if after else layer.width(*mixing)
            work = self.attend if part == "attn" and layer.attends else self.recur
            value = work(p, layer, reads, width, n / len(parts))
            for key in after:
                value = self.product(p, layer, key, [value])
            ends.append(value)
        return ends

    def recur(self, p: _Pass, layer: _Layer, reads: list[int], width: int, n: float) -> int:
        """A recurrence: it reads and writes its state, in float32; `n` launches."""
        rows, state = p.tokens * self.use.batch, self.checkpoint.state if layer.recurrent else 0
        traffic = 2 * width * rows * ACTIVATION * 3 + 2 * state * ACTIVATION * self.use.batch
        own = [layer.caches["state"]] if layer.recurrent else []  # none of unknown matrices with such names
        return self.kernel(
            p, f"{layer.name}ssm", "other", [*reads, *own], width=width, flops=6.0 * rows * state,
            traffic=traffic, n=n, module=_around(layer, *RECURRENT),
        )  # fmt: skip

    def attend(self, p: _Pass, layer: _Layer, reads: list[int], width: int, n: float) -> int:
        """Attention with its rotary embedding: it reads the cache; `n` launches."""
        rows, tensors, heads = p.tokens * self.use.batch, layer.tensors, self.checkpoint.heads
        depth = p.past + p.tokens
        seen = p.past + (p.tokens + 1) / 2  # by the average token
        if layer.window:
            depth, seen = min(depth, layer.window + p.tokens), min(seen, layer.window)
        if not self.use.flash and p.tokens > 1:
            seen = depth  # the masked half is computed, too
        flops = 2.0 * rows * seen * 2 * layer.inputs
        cache = layer.cached * depth * self.use.cache_bytes * self.use.batch
        if "attn_kv_a_mqa" in tensors:
            key = next(k for k in ("attn_kv_b", "attn_v_b", "attn_kv_a_mqa") if k in tensors)
            rank = tensors[key].shape[0]
            expanded = sum(tensors[k].numbers for k in ("attn_kv_b", "attn_k_b", "attn_v_b") if k in tensors) // rank
            if p.tokens > 1:  # keys and values are expanded for all tokens
                widths = layer.width("attn_q_b", "attn_q") + layer.inputs
                flops = 2.0 * rows * seen * widths + 2.0 * depth * rank * expanded * self.use.batch
            else:  # the projection is absorbed: attention works on what is cached
                flops = 2.0 * rows * seen * heads * (rank + layer.cached)
        if not self.use.flash:
            scores = SCORES * (heads or layer.inputs // 128) * rows * depth * ACTIVATION
            cache = UNFUSED * cache if p.tokens == 1 else cache + scores
        return self.kernel(
            p, f"{layer.name}attn", "attention", [*reads, layer.caches["cache"]], width=width, flops=flops,
            traffic=2 * width * rows * ACTIVATION * 3 + cache, n=n, module=_around(layer, "attn"),
        )  # fmt: skip


def _around(layer: _Layer, *begins: str) -> str:
    """The module around the last matrix whose key begins so: that of attention."""
    paths = [t.module for key, t in layer.matrices.items() if key.startswith(begins) and "." in t.module]
    return paths[-1].rpartition(".")[0] if paths else layer.module


def distinct(count: int, active: int, tokens: int) -> float:
    """The expected number of `count` experts that `tokens` tokens take, if all are equally likely."""
    return float(count * (1.0 - (1.0 - active / count) ** tokens))


def decoder(name: str, shape: Shape, use: Use) -> Graph:
    """The graph of a decoder from its hyperparameters, with the bits of `use`."""
    expert = use.bits if use.expert_bits is None else use.expert_bits
    return program(name, shape.checkpoint(lambda key: expert if key.endswith("_exps") else use.bits), use)


def program(name: str, checkpoint: Checkpoint, use: Use) -> Graph:
    """The graph of a decoder. Its attributes: `program` (`decoder`), `mode`, `batch`, `context`, `work` and `cache`."""
    b = GraphBuilder(name)
    work = [use.batch if use.mode == "decode" else use.tokens, "tokens"]
    b.attributes = {"program": "decoder", "mode": use.mode, "batch": use.batch, "context": use.context, "work": work}
    b.attributes["cache"] = []
    return _Program(checkpoint, use, b).build(list(_passes(use)))


def _passes(use: Use) -> Iterator[_Pass]:
    if use.mode == "decode":
        yield _Pass(1, use.context, "")
        return
    for i, begin in enumerate(range(0, use.tokens, use.ubatch)):
        yield _Pass(min(use.ubatch, use.tokens - begin), use.context + begin, f"@{i}")
