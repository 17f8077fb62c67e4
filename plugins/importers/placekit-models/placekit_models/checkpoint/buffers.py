"""What llama.cpp allocates besides the weights: caches, and buffers for the values of a micro-batch.

Before it runs, llama.cpp builds the graph of a full micro-batch at the full context (`llama_context::sched_reserve` in
src/llama-context.cpp) and reserves room for its values. `buffers` does the same with the values that take room, in the order of
llama.cpp's graphs (src/models/*.cpp, src/llama-graph.cpp) of October 2026. Not in it: what CUDA takes for itself, and
its room for weights that it converts while it runs.
"""

from __future__ import annotations

from dataclasses import dataclass

from placekit_models.checkpoint.values import Values
from placekit_models.shape import Checkpoint, Tensor

CELLS = 256
"""Caches have room for a multiple of so many tokens (`llama_context`, `llama_kv_cache_iswa`)."""
EMBEDDINGS = 2
"""Values in host memory as wide as the model, and as many more inputs: for words and for pictures (`build_inp_embd`)."""
F32 = 4
KERNEL = 4
"""Steps of the convolution in a recurrence."""


@dataclass(frozen=True)
class Buffers:
    """Bytes that llama.cpp allocates besides the weights.

    Attributes:
        cache: [layers] the cache or the state of each layer, for all users.
        first, layers, output: values on the device of the first layer, on one in the middle, on the one of the output.
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


@dataclass
class _Graph(Values):
    """The values of layers for `tokens` tokens of `users` sequences; see `buffers`."""

    checkpoint: Checkpoint
    hidden: int
    tokens: int
    users: int
    flash: bool
    streamed: int
    copies: int

    def __post_init__(self) -> None:
        super().__init__()
        self.kept: list[int] = []
        self.shared: list[int] = []  # inputs that all layers read

    def row(self, width: int, *reads: int, over: bool = False) -> int:
        """A value of `width` numbers per token."""
        return self.add(width * self.tokens * F32, *reads, over=over)

    def input(self, bytes_: int) -> int:
        """A value from elsewhere. If it has copies, all of them stay."""
        all_ = [self.add(bytes_) for _ in range(self.copies)]
        self.kept += all_ if self.copies > 1 else []
        return all_[0]

    def attention(self, n: int, t: dict[str, Tensor], mask: int, cells: int) -> int:
        """Attention to `cells` tokens. Queries and keys are rotated in another form, whose block cannot be taken over."""
        width, gate = t["attn_output"].shape[0], -1
        if "attn_kv_a_mqa" in t:
            return self.latent(n, t, mask, cells)
        if "attn_qkv" in t:
            v = self.row(t["attn_qkv"].shape[1], n)
            q, k = self.row(width, v), self.row((t["attn_qkv"].shape[1] - width) // 2, v)
        else:
            q = self.row(t["attn_q"].shape[1], n)
            gate = q if t["attn_q"].shape[1] > width else -1
            q = self.row(width, q)
            v = self.row(t["attn_v" if "attn_v" in t else "attn_k"].shape[1], n)
            k = self.row(t["attn_k"].shape[1], self.row(t["attn_k"].shape[1], n))
        self.add(0, k)
        self.add(0, v)
        out = self.row(width, self.scores(q, cells), mask, *self.shared)
        out = out if self.flash else self.row(width, out)
        return self.row(self.hidden, out if gate < 0 else self.row(width, out, self.row(width, gate)))

    def latent(self, n: int, t: dict[str, Tensor], mask: int, cells: int) -> int:
        """Multi-head latent attention, with the projection of keys and values absorbed."""
        width, heads = t["attn_output"].shape[0], self.checkpoint.heads
        rank, both = t["attn_kv_b" if "attn_kv_b" in t else "attn_v_b"].shape[0], t["attn_kv_a_mqa"].shape[1]
        low = self.row(t["attn_q_a"].shape[1], n) if "attn_q_a" in t else n
        q = self.row(t["attn_q_b" if "attn_q_a" in t else "attn_q"].shape[1], low)
        absorbed = self.row(heads * rank, q)
        q = self.row(heads * both, absorbed, self.row(heads * (both - rank), q))
        kv = self.row(both, n)
        self.add(0, self.row(both, self.row(rank, kv), self.row(both - rank, kv)))
        out = self.row(heads * rank, self.scores(q, cells), mask, *self.shared)
        return self.row(self.hidden, self.row(width, self.row(width, out)))

    def scores(self, q: int, cells: int) -> int:
        """The scores of attention, which one fused kernel does not store."""
        return q if self.flash else self.row(self.checkpoint.heads * cells, q)

    def recurrence(self, n: int, t: dict[str, Tensor]) -> int:
        """Linear attention (`build_layer_attn_linear`) or a state space (`build_mamba2_layer`)."""
        c, out, linear = self.checkpoint, t["ssm_out"].shape[0], "attn_qkv" in t
        channels, state = c.convolution // (KERNEL - 1), c.state * self.users * F32
        first = self.row(t["attn_qkv" if linear else "ssm_in"].shape[1], n)
        before = self.add(channels * (self.tokens + (KERNEL - 1) * self.users) * F32, first)
        if linear:
            old = self.add(state)
            conv = self.row(channels, before)
            q, k = (self.row(out, self.row((channels - out) // 2, conv)) for _ in range(2))
            y = self.row(out, self.add(out * self.tokens * F32 + state, q, k, conv, old))
            return self.row(self.hidden, self.row(out, y, self.row(out, self.row(out, n)), over=True))
        conv = self.row(channels, before)
        steps = [self.row(out, n)] if "ssm_x" in t else []
        y = self.add(out * self.tokens * F32 + state, conv, *steps)
        z = self.row(out, first)
        return self.row(self.hidden, self.row(out, self.row(out, z, self.row(out, conv, y))))

    def network(self, n: int, t: dict[str, Tensor], end: str) -> int:
        """A network (`build_ffn`), or with `end` `_exps` those of all experts (`build_moe_ffn`)."""
        routed, down, choice, weights = "exps" in end, t[f"ffn_down{end}"], [], []
        times = self.checkpoint.active if routed else 1
        if routed:
            logits = self.row(down.shape[-1], n)
            choice = [self.row(down.shape[-1], logits)]
            weights = [self.row(times, logits, *choice)]
        widths = [t[k + end].shape[1] for k in ("ffn_gate_up", "ffn_gate", "ffn_up") if k + end in t]
        values = [self.row(width * times, n, *choice, *self.copied(routed)) for width in widths]
        if sum(widths) > down.shape[0]:  # a gate
            values = [self.row(down.shape[0] * times, *values)]
        out = self.row(self.hidden * times, *values, *choice, *self.copied(routed))
        if not routed:
            return out
        return self.row(self.hidden, self.row(self.hidden * times, out, *weights, over=True))

    def copied(self, routed: bool) -> list[int]:
        """The copy of a weight that is in host memory."""
        return [self.add(self.streamed)] if self.streamed and routed else []

    def layer(self, x: int, t: dict[str, Tensor], mask: int, cells: int, outputs: int = 0) -> int:
        """A layer; with `outputs`, only so many tokens go on after its attention."""
        if "attn_output" in t or "ssm_out" in t:
            n = self.row(self.hidden, x, over=True)
            ends = [self.recurrence(n, t)] if "ssm_out" in t else []
            ends += [self.attention(n, t, mask, cells)] if "attn_output" in t else []
            if outputs:
                self.tokens = outputs
                ends, x = [self.row(self.hidden, *ends)], self.row(self.hidden, x)
            x = self.row(self.hidden, *ends, x, over=True)
        networks = sorted(k.removeprefix("ffn_down") for k in t if k.startswith("ffn_down") and t[k].matrix)
        if networks:
            n = self.row(self.hidden, x, over=True)
            x = self.row(self.hidden, *(self.network(n, t, end) for end in networks), x, over=True)
        return x


def buffers(
    checkpoint: Checkpoint, *, context: int, users: int = 1, ubatch: int = 512, cache_bits: float = 16.0, flash: bool = True,
    outputs: int | None = None, streamed: int = 0, copies: int = 1,
) -> Buffers:  # fmt: skip
    """What llama.cpp allocates besides the weights.

    Args:
        context: tokens of each user: `llama-server -np USERS -c TOKENS`, with users * context tokens.
        outputs: tokens of a micro-batch that have an output; null: one per user, as in llama-server since June 2026 (pull
            request 23861). Before, all tokens had one.
        streamed: bytes of the largest tensor of experts in host memory, of which a device gets a copy to compute prompts.
        copies: of inputs: 4 if several GPUs have all layers and no tensor is placed by `-ot` or `--n-cpu-moe`
            (`pipeline_parallel` in `llama_context`, `GGML_SCHED_MAX_COPIES`).
    """
    c = checkpoint
    layers = _layers(c)
    hidden, vocabulary = next(t.shape for t in c.tensors if t.key == "token_embd")
    cells = -(-context // CELLS) * CELLS
    tokens, outputs = min(ubatch, cells * users), users if outputs is None else outputs
    seen = [min(cells, -(-(c.window(i) + tokens) // CELLS) * CELLS) if c.window(i) else cells for i in range(c.layers)]
    tokens = -(-tokens // users) * users  # `graph_reserve`
    state = (c.state + c.convolution) * F32
    cache = (
        users * (round(cached(t) * n * cache_bits / 8) + ("ssm_out" in t) * state)
        for t, n in zip(layers, seen, strict=True)
    )
    # places in the cache: of tokens or, without the fused kernel, of numbers, because values are then stored transposed
    wide = 1 if flash else max((t["attn_v"].shape[1] for t in layers if "attn_v" in t), default=1)
    mask_of = [(n, bool(c.window(i))) for i, n in enumerate(seen)]  # windows have one of their own, however wide
    own = (key for key, t in zip(mask_of, layers, strict=True) if "attn_output" in t)
    masks = {key: key[0] * tokens * (2 if flash else F32) for key in own}
    two = _two_of_each(layers, mask_of)

    def peak(*, begins: bool = False, ends: bool = False, cpu: bool = False) -> int:
        g = _Graph(c, hidden, tokens, users, flash, streamed, copies)
        pictures = [g.input(4 * hidden * tokens), g.input(4 * hidden * tokens), g.input(8 * tokens)] if begins else []
        x = g.row(hidden, g.row(hidden)) if cpu else g.input(4 * hidden * tokens)
        g.shared = [g.input(4 * tokens)]
        mask = {}
        for key, size in masks.items():
            g.shared += [g.input(8 * tokens), g.input(8 * tokens * wide)]
            mask[key] = g.input(size)
        # pictures are written to a view, which nothing reads; its block is never free again
        g.kept += [g.row(hidden, *pictures)] if begins else []
        for i in two[: -1 if ends and two[-1] == c.layers - 1 else None]:
            x = g.layer(x, layers[i], mask.get(mask_of[i], -1), seen[i])
        if ends:
            x = g.layer(x, layers[-1], mask.get(mask_of[-1], -1), seen[-1], outputs)
            x = g.add(vocabulary * outputs * F32, x)
        g.add(0, x, *g.kept)
        return g.peak()

    inputs = sum(masks.values()) + 8 * tokens * (1 + wide) * len(masks) + 20 * tokens
    host = copies * (inputs + EMBEDDINGS * hidden * tokens * F32) + EMBEDDINGS * hidden * tokens * F32
    return Buffers(
        tuple(cache), peak(begins=True), peak(), peak(ends=True), peak(begins=True, ends=True), host,
        peak(begins=True, ends=True, cpu=True),
    )  # fmt: skip


def _layers(c: Checkpoint) -> list[dict[str, Tensor]]:
    """[layers] the tensors of each layer, by key."""
    found: list[dict[str, Tensor]] = [{} for _ in range(c.layers)]
    for tensor in c.tensors:
        if tensor.layer >= 0:
            found[tensor.layer][tensor.key] = tensor
    return found


def _two_of_each(layers: list[dict[str, Tensor]], masks: list[tuple[int, bool]]) -> list[int]:
    """Two layers of each kind: more take no more room."""
    kinds: dict[object, list[int]] = {}
    for i, t in enumerate(layers):
        kinds.setdefault((masks[i], *((k, v.shape) for k, v in t.items())), []).append(i)
    return sorted(i for same in kinds.values() for i in same[:2])


def cached(t: dict[str, Tensor]) -> int:
    """Numbers that a layer caches for a token."""
    if "attn_output" not in t:
        return 0
    if "attn_kv_a_mqa" in t:
        return t["attn_kv_a_mqa"].shape[1]
    if "attn_qkv" in t:
        return t["attn_qkv"].shape[1] - t["attn_output"].shape[0]
    return t["attn_k"].shape[1] + t["attn_v" if "attn_v" in t else "attn_k"].shape[1]
