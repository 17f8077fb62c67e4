"""What llama.cpp allocates besides the weights: caches, and buffers for the values of a micro-batch.

Before it runs, llama.cpp builds the graph of a full micro-batch at the full context (`llama_context::sched_reserve` in
src/llama-context.cpp) and lets ggml assign addresses to the values (ggml/src/ggml-alloc.c): a value gets the smallest free block
that holds it, or takes over the block of an operand that nothing else reads; its block is free after its last reader. This module
does the same with the values that take room, in the order of llama.cpp's graphs (src/models/*.cpp) of October 2026.

CUDA allocates more while it runs: 300 to 500 MiB for itself, and room for weights that it converts.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from placekit_models.shape import Checkpoint, Tensor

CELLS = 256
"""Caches have room for a multiple of so many tokens (`llama_context`, `llama_kv_cache_iswa`)."""
ALIGNMENT = 128
"""Addresses on CUDA devices are multiples of it, in bytes."""
EMBEDDINGS = 4
"""Values in host memory as wide as the model, for words and for pictures (`llm_graph_context::build_inp_embd`)."""
F32 = 4


@dataclass(frozen=True)
class Buffers:
    """Bytes that llama.cpp allocates besides the weights.

    Attributes:
        cache: [layers] the cache or the state of each layer, for all users.
        first, layers, output: values on the device of the first layer, on one in the middle, and on the last one.
        only: values on the only device.
        host: values in host memory if devices have all layers.
        cpu: values without any device.
    """

    cache: tuple[int, ...]
    first: int
    layers: int
    output: int
    only: int
    host: int
    cpu: int


class _Values:
    """Values of a graph in the order in which they are computed: bytes, what they read, whether they may take over a block."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, tuple[int, ...], bool]] = []

    def add(self, bytes_: float, *reads: int, over: bool = False) -> int:
        """A value; returns its number."""
        self.steps.append((-(-int(bytes_) // ALIGNMENT) * ALIGNMENT, reads, over))
        return len(self.steps) - 1

    def peak(self) -> int:
        """Bytes of the blocks and of the gaps between them (`ggml_gallocr_allocate_node`, `ggml_dyn_tallocr_alloc`)."""
        readers = [0] * len(self.steps)
        for value in (value for _, reads, _ in self.steps for value in reads):
            readers[value] += 1
        free, most, at = [(0, 2**62)], 0, [-1] * len(self.steps)
        for i, (size, reads, over) in enumerate(self.steps):
            taken = next((v for v in reads if over and readers[v] == 1 and at[v] >= 0 and self.steps[v][0] == size), -1)
            if taken >= 0:
                at[i], at[taken] = at[taken], -1
            else:
                hole = min((b for b in free[:-1] if b[1] >= size), key=lambda b: (b[1], -b[0]), default=free[-1])
                at[i], most = hole[0], max(most, hole[0] + size)
                free[free.index(hole)] = (hole[0] + size, hole[1] - size)
            for value in reads:
                readers[value] -= 1
                if not readers[value] and at[value] >= 0:
                    free = _merged([*free, (at[value], self.steps[value][0])])
        return most


def _merged(free: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Free blocks, each an address and a size, with neighbours joined."""
    out: list[tuple[int, int]] = []
    for begin, size in sorted(free):
        if out and sum(out[-1]) == begin:
            out[-1] = (out[-1][0], out[-1][1] + size)
        elif size:
            out.append((begin, size))
    return out


class _Graph(_Values):
    """The values of layers for `tokens` tokens of `users` sequences."""

    def __init__(self, c: Checkpoint, tokens: int, users: int, flash: bool, streamed: int) -> None:
        super().__init__()
        self.checkpoint, self.tokens, self.users, self.flash, self.streamed = c, tokens, users, flash, streamed
        self.hidden = c.tensors[0].shape[0]
        self.inputs: tuple[int, ...] = ()

    def row(self, width: int, *reads: int, over: bool = False) -> int:
        """A value of `width` numbers per token."""
        return self.add(width * self.tokens * F32, *reads, over=over)

    def attention(self, n: int, t: dict[str, Tensor], mask: tuple[int, int]) -> int:
        """Attention with its matrices; `mask`: its value and its tokens."""
        width, heads = t["attn_output"].shape[0], self.checkpoint.heads
        read = (*self.inputs, mask[0])
        if "attn_kv_a_mqa" in t:
            rank, both = t[next(k for k in ("attn_kv_b", "attn_v_b") if k in t)].shape[0], t["attn_kv_a_mqa"].shape[1]
            q = self.row(t["attn_q_b"].shape[1], self.row(t["attn_q_a"].shape[1], n)) if "attn_q_b" in t else self.row(t["attn_q"].shape[1], n)
            absorbed = self.row(heads * rank, q)
            q = self.row(heads * both, absorbed, self.row(heads * (both - rank), q))
            kv = self.row(both, n)
            k = self.row(both, self.row(rank, kv), self.row(both - rank, kv))
            self.add(0, k)
            out = self.row(heads * rank, self.scores(q, heads, mask[1]), *read)
            return self.row(self.hidden, self.row(width, self.row(width, out)))
        gate = -1
        if "attn_qkv" in t:
            v = self.row(t["attn_qkv"].shape[1], n)
            q, k = self.row(width, v), self.row((t["attn_qkv"].shape[1] - width) // 2, v)
        else:  # after the product another form of it is read, whose block cannot be taken over
            q = self.row(t["attn_q"].shape[1], n)
            gate = q if t["attn_q"].shape[1] > width else -1
            q = self.row(width, q)
            v = self.row(t["attn_v" if "attn_v" in t else "attn_k"].shape[1], n)
            k = self.row(t["attn_k"].shape[1], self.row(t["attn_k"].shape[1], n))
        self.add(0, k)
        self.add(0, v)
        out = self.row(width, self.scores(q, heads, mask[1]), *read)
        if not self.flash:
            out = self.row(width, out)
        if gate >= 0:
            out = self.row(width, out, self.row(width, gate))
        return self.row(self.hidden, out)

    def scores(self, q: int, heads: int, cells: int) -> int:
        """The scores of attention, which one fused kernel does not store."""
        return q if self.flash else self.row(heads * cells, q)

    def recurrence(self, n: int, t: dict[str, Tensor]) -> int:
        """A recurrence with its matrices."""
        c, out = self.checkpoint, t["ssm_out"].shape[0]
        channels, state = c.convolution // 3, c.state * self.users * F32
        first = self.row(t["attn_qkv" if "attn_qkv" in t else "ssm_in"].shape[1], n)
        before = self.add(channels * (self.tokens + 3 * self.users) * F32, first)
        kept = self.add(state) if "attn_qkv" in t else -1
        conv = self.row(channels, before)
        if kept >= 0:
            q, k = (self.row(out, self.row((channels - out) // 2, conv)) for _ in range(2))
            y = self.add(out * self.tokens * F32 + state, q, k, conv, kept)
            y = self.row(out, y)
            y = self.row(out, y, self.row(out, self.row(out, n)), over=True)
        else:
            y = self.add(out * self.tokens * F32 + state, conv, *([self.row(out, n)] if "ssm_x" in t else []))
            z = self.row(out, first)
            y = self.row(out, self.row(out, z, self.row(out, conv, y)))
        return self.row(self.hidden, y)

    def network(self, n: int, t: dict[str, Tensor], end: str, over: int = -1) -> int:
        """A network, all of whose tokens or, with `end` "_exps", each of whose experts read `n`."""
        times = self.checkpoint.active if "exps" in end else 1
        router, weights = [], []
        if times > 1 or "exps" in end:
            experts = t[f"ffn_down{end}"].shape[-1]
            logits = self.row(experts, n)
            router = [self.row(experts, logits)]
            weights = [self.row(times, logits, router[0])]
        def product(width: int, *reads: int) -> int:
            copy = [self.add(self.streamed)] if self.streamed and "exps" in end else []
            return self.row(width * times, *reads, *router, *copy)

        width = t[f"ffn_down{end}"].shape[0]
        first = [k for k in ("ffn_gate_up", "ffn_gate", "ffn_up") if k + end in t]
        values = [product(t[k + end].shape[1], n) for k in first]
        if len(values) > 1 or t[first[0] + end].shape[1] > width:
            values = [self.row(width * times, *values)]
        down = product(self.hidden, *values)
        if weights:
            down = self.row(self.hidden * times, down, *weights, over=True)
        return self.row(self.hidden, down) if times > 1 else down

    def layer(self, x: int, t: dict[str, Tensor], mask: tuple[int, int] | None, outputs: int = 0) -> int:
        """A layer; with `outputs`, only so many tokens go on after its attention."""
        def norm() -> int:
            return self.row(self.hidden, x, over=True)

        if any(k in t for k in ("attn_output", "ssm_out")):
            n = norm()
            ends = []
            if "ssm_out" in t:
                ends.append(self.recurrence(n, t))
            if "attn_output" in t and mask:
                ends.append(self.attention(n, t, mask))
            if outputs:
                self.tokens = outputs
                ends, x = [self.row(self.hidden, *ends)], self.row(self.hidden, x)
            x = self.row(self.hidden, *ends, x, over=True)
        ends_of = [k.removeprefix("ffn_down") for k in t if k.startswith("ffn_down") and t[k].matrix]
        if ends_of:
            n = norm()
            x = self.row(self.hidden, *(self.network(n, t, end) for end in sorted(ends_of)), x, over=True)
        return x


def buffers(
    checkpoint: Checkpoint, *, context: int, users: int = 1, ubatch: int = 512, cache_bits: float = 16.0, flash: bool = True,
    outputs: int | None = None, streamed: int = 0,
) -> Buffers:  # fmt: skip
    """What llama.cpp allocates besides the weights.

    Args:
        context: tokens of each user.
        outputs: tokens of a micro-batch with an output: one per user (null) in llama-server since June 2026 (pull request
            23861), before that all.
        streamed: bytes of the largest weight in host memory with which a device computes prompts: it gets a copy.
    """
    c = checkpoint
    by_layer: list[dict[str, Tensor]] = [{} for _ in range(c.layers)]
    for tensor in c.tensors:
        if tensor.layer >= 0:
            by_layer[tensor.layer][tensor.key] = tensor
    cells = -(-context // CELLS) * CELLS
    tokens = min(ubatch, cells * users)
    outputs = users if outputs is None else outputs
    window = [min(cells, -(-(c.window(i) + tokens) // CELLS) * CELLS) if c.window(i) else cells for i in range(c.layers)]
    cache = tuple(
        round(_cached(t) * window[i] * users * cache_bits / 8)
        + ((c.state + c.convolution) * F32 * users if "ssm_out" in t else 0)
        for i, t in enumerate(by_layer)
    )

    # places in the cache: of tokens, and without the fused kernel of numbers, because values are stored transposed
    indices = 8 * tokens * (1 if flash else max((t["attn_v"].shape[1] for t in by_layer if "attn_v" in t), default=1))
    vocabulary = next(t.shape[1] for t in c.tensors if t.key == "token_embd")
    kinds: dict[object, list[int]] = {}
    for i, t in enumerate(by_layer):
        kinds.setdefault((window[i], *((k, v.shape) for k, v in t.items())), []).append(i)
    numbers = sorted(i for same in kinds.values() for i in same[:2])

    def peak(*, begins: bool, ends: bool, host: bool = False) -> int:
        g = _Graph(c, tokens, users, flash, streamed)
        embedded = []
        if begins:
            embedded = [g.row(g.hidden), g.row(g.hidden), g.add(8 * tokens)]
        x = g.row(g.hidden, *([g.row(g.hidden)] if host else []))
        g.inputs = (g.add(4 * tokens), )
        masks = {}
        for size in dict.fromkeys(window):
            g.inputs += (g.add(8 * tokens), g.add(indices))
            masks[size] = (g.add(size * tokens // 1 * (2 if flash else F32)), size)
        # nothing reads the view of it into which pictures are written, and it stays
        kept = [g.row(g.hidden, *embedded)] if begins else []
        for i in numbers:
            x = g.layer(x, by_layer[i], masks[window[i]])
        if ends:
            x = g.layer(x, by_layer[-1], masks[window[-1]], outputs)
            x = g.add(vocabulary * outputs * F32, x)
        g.add(0, x, *kept)
        return g.peak()

    inputs = sum(size * tokens * (2 if flash else F32) + indices for size in dict.fromkeys(window))
    hidden = c.tensors[0].shape[0]
    return Buffers(
        cache, peak(begins=True, ends=False), peak(begins=False, ends=False), peak(begins=False, ends=True),
        peak(begins=True, ends=True), inputs + EMBEDDINGS * hidden * tokens * F32 + 40 * tokens, peak(begins=True, ends=True, host=True),
    )  # fmt: skip


def _cached(t: dict[str, Tensor]) -> int:
    """Numbers that a layer caches for a token."""
    if "attn_output" not in t:
        return 0
    if "attn_kv_a_mqa" in t:
        return t["attn_kv_a_mqa"].shape[1]
    if "attn_qkv" in t:
        return t["attn_qkv"].shape[1] - t["attn_output"].shape[0]
    return t["attn_k"].shape[1] + t["attn_v" if "attn_v" in t else "attn_k"].shape[1]
