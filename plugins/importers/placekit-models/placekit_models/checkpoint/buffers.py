"""The memory that llama.cpp allocates besides the weights: caches, and buffers for the values of a micro-batch.

Before it runs, llama.cpp builds the graph of a full micro-batch at the full context (`llama_context::sched_reserve` in
src/llama-context.cpp) and reserves room for its values. `Buffers` does the same with the values that take room, in the order of
llama.cpp's graphs (src/models/*.cpp, src/llama-graph.cpp) of October 2026. It leaves out the memory that CUDA takes
for itself, and room for weights that are converted while it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntFlag
from functools import cached_property, partial

from placekit_models.checkpoint.values import Values
from placekit_models.shape import Checkpoint, Tensor

CELLS = 256
"""Caches have room for a multiple of this many tokens (`llama_context`, `llama_kv_cache_iswa`)."""
ROTATED, UNROTATED = 64, 16
"""Heads of a multiple of this width are rotated for caches of fewer bits (`attn_rot_k` in `llama_kv_cache`)."""
EMBEDDINGS = 2
"""Values in host memory as wide as the model, and inputs as wide: for words and for pictures (`build_inp_embd`)."""
F32 = 4
KERNEL = 4
"""Steps of the convolution in a recurrence."""
OFFLOADED = 32
"""From this many tokens on, the first GPU multiplies with weights in host memory (`ggml_backend_cuda_device_offload_op`)."""


class Part(IntFlag):
    """The part of a layer that a device computes in a prompt: the layer without routed experts, the experts, or nothing (0).

    `COPIED` and `COPIED_EXPERTS`: the weights are in host memory (those of the layer with its cache), and are copied to the
    device for each product. `ARRIVES`: the values before it come from another device.
    """

    LAYER = 1
    EXPERTS = 2
    COPIED = 4
    COPIED_EXPERTS = 8
    ARRIVES = 16


@dataclass
class _Graph(Values):
    """The values of layers for `tokens` tokens of `users` sequences; `bits`: of a number in a cache."""

    checkpoint: Checkpoint
    hidden: int
    tokens: int
    users: int
    flash: bool
    copies: int
    bits: float

    def __post_init__(self) -> None:
        super().__init__()
        self.copied = False
        self.kept: list[int] = []
        self.shared: list[int] = []  # inputs that all layers read

    def row(self, width: int, *reads: int, over: bool = False) -> int:
        """A value of `width` numbers per token."""
        return self.add(width * self.tokens * F32, *reads, over=over)

    def times(self, t: Tensor, *reads: int) -> int:
        """The product with a matrix."""
        return self.row(t.shape[1], *reads, *self.copy(t))

    def copy(self, t: Tensor) -> list[int]:
        """The copy of a weight that is in host memory; few tokens are computed there instead."""
        return [self.add(t.bytes)] if self.copied and self.tokens >= OFFLOADED else []

    def positions(self) -> None:
        """Positions of the tokens, which all layers read."""
        self.shared = self.shared or [self.input(4 * self.tokens)]

    def norm(self, x: int) -> int:
        """The norm of a layer's values."""
        n = self.row(self.hidden, x, over=True)
        return self.row(self.hidden, n, self.add(self.hidden * F32), over=True) if self.copied else n

    def input(self, bytes_: int) -> int:
        """A value from elsewhere. If it has copies, all of them stay in memory."""
        all_ = [self.add(bytes_) for _ in range(self.copies)]
        self.kept += all_ if self.copies > 1 else []
        return all_[0]

    def attention(self, n: int, t: dict[str, Tensor], mask: Callable[[], int], cells: int) -> int:
        """Attention to `cells` tokens. Queries and keys are rotated in another form, whose block cannot be taken over."""
        width, gate = t["attn_output"].shape[0], -1
        if "attn_kv_a_mqa" in t:
            return self.latent(n, t, mask, cells)
        if "attn_qkv" in t:
            v = self.times(t["attn_qkv"], n)
            q, k = self.row(width, v), self.row((t["attn_qkv"].shape[1] - width) // 2, v)
        else:
            copy = self.copy(t["attn_q"])
            if "attn_q_norm" not in t:
                self.positions()
            q = self.row(t["attn_q"].shape[1], n, *copy)
            self.positions()
            gate = q if t["attn_q"].shape[1] > width else -1
            q = self.rotated(t, width, self.row(width, q))
            kv = t["attn_k"].shape[1]
            v = self.rotated(t, kv, self.times(t["attn_v" if "attn_v" in t else "attn_k"], n))
            k = self.rotated(t, kv, self.row(kv, self.times(t["attn_k"], n)))
        self.add(0, k)
        self.add(0, v)
        cache = (
            [self.add(round(cached(t) / 2 * self.users * self.bits / 8 * cells)) for _ in "kv"] if self.copied else []
        )
        out = self.row(width, self.scores(q, cells), mask(), *cache, *self.shared)
        out = self.rotated(t, width, out if self.flash else self.row(width, out))
        return self.times(t["attn_output"], out if gate < 0 else self.row(width, out, self.row(width, gate)))

    def rotated(self, t: dict[str, Tensor], width: int, x: int) -> int:
        """A value, rotated for a quantised cache."""
        head = t["attn_output"].shape[0] // max(self.checkpoint.heads, 1)
        return self.row(width, x) if self.bits < UNROTATED and head % ROTATED == 0 else x

    def latent(self, n: int, t: dict[str, Tensor], mask: Callable[[], int], cells: int) -> int:
        """Multi-head latent attention, with the projection of keys and values absorbed."""
        width, heads = t["attn_output"].shape[0], self.checkpoint.heads
        rank, both = t["attn_kv_b" if "attn_kv_b" in t else "attn_v_b"].shape[0], t["attn_kv_a_mqa"].shape[1]
        up = [t[key] for key in ("attn_k_b", "attn_v_b") if key in t] or [t["attn_kv_b"]] * 2
        low = self.times(t["attn_q_a"], n) if "attn_q_a" in t else n
        q = self.times(t["attn_q_b" if "attn_q_a" in t else "attn_q"], low)
        copy = self.copy(up[0])
        self.positions()
        absorbed = self.row(heads * rank, q, *copy)
        q = self.row(heads * both, absorbed, self.row(heads * (both - rank), q))
        kv = self.times(t["attn_kv_a_mqa"], n)
        self.add(0, self.row(both, self.row(rank, kv), self.row(both - rank, kv)))
        cache = [self.add(round(both * self.users * self.bits / 8 * cells)) for _ in "kv"] if self.copied else []
        out = self.row(heads * rank, self.scores(q, cells), mask(), *cache, *self.shared)
        return self.times(t["attn_output"], self.row(width, self.row(width, out, *self.copy(up[1]))))

    def scores(self, q: int, cells: int) -> int:
        """The scores of attention, which one fused kernel does not store."""
        return q if self.flash else self.row(self.checkpoint.heads * cells, q)

    def recurrence(self, n: int, t: dict[str, Tensor]) -> int:
        """Linear attention (`build_layer_attn_linear`) or a state space (`build_mamba2_layer`)."""
        c, out, linear = self.checkpoint, t["ssm_out"].shape[0], "attn_qkv" in t
        channels, state = c.convolution // (KERNEL - 1), c.state * self.users * F32
        first = self.times(t["attn_qkv" if linear else "ssm_in"], n)
        before = self.add(channels * (self.tokens + (KERNEL - 1) * self.users) * F32, first)
        if linear:
            old = self.add(state)
            conv = self.row(channels, before)
            q, k = (self.row(out, self.row((channels - out) // 2, conv)) for _ in range(2))
            y = self.row(out, self.add(out * self.tokens * F32 + state, q, k, conv, old))
            gate = self.row(out, self.times(t["attn_gate"], n))
            return self.times(t["ssm_out"], self.row(out, y, gate, over=True))
        conv = self.row(channels, before)
        steps = [self.row(out, n)] if "ssm_x" in t else []
        y = self.add(out * self.tokens * F32 + state, conv, *steps)
        z = self.row(out, first)
        return self.times(t["ssm_out"], self.row(out, self.row(out, z, self.row(out, conv, y))))

    def routing(self, n: int, t: dict[str, Tensor]) -> list[int]:
        """The experts of each token, and their weights."""
        count = t["ffn_down_exps"].shape[-1]
        logits = self.row(count, n)
        choice = self.row(count, logits)
        return [choice, self.row(self.checkpoint.active, logits, choice)]

    def network(self, n: int, t: dict[str, Tensor], end: str, *routed: int) -> int:
        """A network (`build_ffn`). If `end` is `_exps`, the networks of all experts (`build_moe_ffn`)."""
        down, times = t[f"ffn_down{end}"], self.checkpoint.active if routed else 1
        ups = [t[k + end] for k in ("ffn_gate_up", "ffn_gate", "ffn_up") if k + end in t]
        values = [self.row(up.shape[1] * times, n, *routed[:1], *self.copy(up)) for up in ups]
        if sum(up.shape[1] for up in ups) > down.shape[0]:  # a gate
            values = [self.row(down.shape[0] * times, *values)]
        out = self.row(self.hidden * times, *values, *routed[:1], *self.copy(down))
        if not routed:
            return out
        return self.row(self.hidden, self.row(self.hidden * times, out, *routed[1:], over=True))

    def experts(self, n: int, t: dict[str, Tensor], part: Part, x: int, alone: bool) -> int:
        """Routed experts, here or on another device, which also adds their results up, and if they are `alone`, adds `x`.

        Without the layer, values come from the device that has it. Returns -1 if the result stays on the other device.
        """
        if Part.LAYER in part:
            routed = self.routing(n, t)
            if Part.EXPERTS not in part:
                self.add(0, n, *routed, *[x] * alone)
                return -1 if alone else self.row(self.hidden)
        else:
            n, x = self.row(self.hidden), self.row(self.hidden) if alone else -1
            routed = [self.row(t["ffn_down_exps"].shape[-1]), self.row(self.checkpoint.active)]
        self.copied = Part.COPIED_EXPERTS in part
        out = self.network(n, t, "_exps", *routed)
        self.copied = Part.COPIED in part
        return self.row(self.hidden, out, x, over=True) if alone else out

    def layer(
        self, x: int, t: dict[str, Tensor], part: Part, mask: Callable[[], int], cells: int, outputs: int = 0
    ) -> int:
        """A layer, or the part of it that is here; with `outputs`, only that many tokens go on after its attention.

        Returns -1 if the result is on another device.
        """
        self.copied = Part.COPIED in part
        if Part.LAYER in part and ("attn_output" in t or "ssm_out" in t):
            n = self.norm(x)
            ends = [self.recurrence(n, t)] if "ssm_out" in t else []
            ends += [self.attention(n, t, mask, cells)] if "attn_output" in t else []
            if outputs:
                self.tokens = outputs
                ends, x = [self.row(self.hidden, *ends)], self.row(self.hidden, x)
            x = self.row(self.hidden, *ends, x, over=True)
        self.tokens = outputs or self.tokens
        networks = _networks(t)
        if Part.LAYER not in part:
            return self.experts(-1, t, part, -1, len(networks) == 1)
        if not networks:
            return x
        n, results = self.norm(x), []
        for end in networks:
            if end == "_exps":
                results.append(self.experts(n, t, part, x, len(networks) == 1))
            else:
                results.append(self.network(n, t, end))
        return results[0] if networks == ["_exps"] else self.row(self.hidden, *results, x, over=True)


WHOLE = Part.LAYER | Part.EXPERTS
SAME, SAME_COPIED = 2, 8
"""How many of several equal layers are laid out: more need no more room. With copies of weights, the gaps between blocks settle
later."""


@dataclass(frozen=True)
class Buffers:
    """The bytes that llama.cpp allocates besides the weights.

    Attributes:
        context: tokens of each user: `llama-server -np USERS -c TOKENS`, with users * context tokens.
        outputs: tokens of a micro-batch that have an output; None: one per user, as in llama-server since June 2026 (pull
            request 23861). Before, all tokens had one.
        copies: of inputs: 4 if several GPUs have all layers and no tensor is placed by `-ot` or `--n-cpu-moe`
            (`pipeline_parallel` in `llama_context`, `GGML_SCHED_MAX_COPIES`).
    """

    checkpoint: Checkpoint
    context: int
    users: int = 1
    ubatch: int = 512
    cache_bits: float = 16.0
    flash: bool = True
    outputs: int | None = None
    copies: int = 1

    @cached_property
    def cache(self) -> tuple[int, ...]:
        """[layers] the cache or the state of each layer, for all users."""
        state = (self.checkpoint.state + self.checkpoint.convolution) * F32
        return tuple(
            self.users * (round(cached(t) * n * self.cache_bits / 8) + ("ssm_out" in t) * state)
            for t, n in zip(self._layers, self._cells, strict=True)
        )

    def values(self, parts: Sequence[int], *, begins: bool = False, ends: bool = False) -> int:
        """Values on a device that computes these parts [layers] of a prompt, after the embedding if it `begins`, and the
        output if it `ends`."""
        own = self._few(parts)
        key = tuple((self._kinds[i], part, i == len(parts) - 1) for i, part in own), begins, ends
        if key not in self._peaks:
            self._peaks[key] = self._peak(own, begins, ends)
        return self._peaks[key]

    @property
    def first(self) -> int:
        """Values on the first of several devices."""
        return self.values([*[WHOLE] * (self.checkpoint.layers - 1), 0], begins=True)

    @property
    def layers(self) -> int:
        """Values on a device in the middle."""
        return self.values([*[WHOLE] * (self.checkpoint.layers - 1), 0])

    @property
    def output(self) -> int:
        """Values on the last of several devices."""
        return self.values([WHOLE] * self.checkpoint.layers, ends=True)

    @property
    def only(self) -> int:
        """Values on the only device."""
        return self.values([WHOLE] * self.checkpoint.layers, begins=True, ends=True)

    @cached_property
    def host(self) -> int:
        """Values in host memory if there are devices."""
        inputs = sum(self._masks.values()) + 8 * self._tokens * (1 + self._wide) * len(self._masks) + 20 * self._tokens
        embeddings = EMBEDDINGS * self._hidden * self._tokens * F32
        return self.copies * (inputs + embeddings) + embeddings

    @cached_property
    def cpu(self) -> int:
        """Values without any device."""
        return self._peak(self._few([WHOLE] * self.checkpoint.layers), True, True, cpu=True)

    @cached_property
    def _peaks(self) -> dict[object, int]:
        return {}

    @cached_property
    def _layers(self) -> list[dict[str, Tensor]]:
        """[layers] the tensors of each layer, by key."""
        found: list[dict[str, Tensor]] = [{} for _ in range(self.checkpoint.layers)]
        for tensor in self.checkpoint.tensors:
            if tensor.layer >= 0:
                found[tensor.layer][tensor.key] = tensor
        return found

    @cached_property
    def _embedding(self) -> tuple[int, ...]:
        return next(t.shape for t in self.checkpoint.tensors if t.key == "token_embd")

    @property
    def _hidden(self) -> int:
        return self._embedding[0]

    @cached_property
    def _room(self) -> int:
        """Places for tokens of each user."""
        return -(-self.context // CELLS) * CELLS

    @cached_property
    def _tokens(self) -> int:
        """Tokens of a micro-batch (`graph_reserve`)."""
        return -(-min(self.ubatch, self._room * self.users) // self.users) * self.users

    @cached_property
    def _cells(self) -> list[int]:
        """[layers] tokens of each user that a layer's cache has."""
        tokens, window = min(self.ubatch, self._room * self.users), self.checkpoint.window
        seen = [(window(i), -(-(window(i) + tokens) // CELLS) * CELLS) for i in range(self.checkpoint.layers)]
        return [min(self._room, n) if w else self._room for w, n in seen]

    @cached_property
    def _mask_of(self) -> list[tuple[int, bool]]:
        """[layers] the mask of each layer; windows have one of their own, however wide."""
        return [(n, bool(self.checkpoint.window(i))) for i, n in enumerate(self._cells)]

    @cached_property
    def _masks(self) -> dict[tuple[int, bool], int]:
        """Bytes of each mask."""
        own = (key for key, t in zip(self._mask_of, self._layers, strict=True) if "attn_output" in t)
        return {key: key[0] * self._tokens * (2 if self.flash else F32) for key in own}

    @cached_property
    def _wide(self) -> int:
        """Places in the cache: of tokens or, without the fused kernel, of numbers, because values are stored transposed."""
        widths = (t["attn_v"].shape[1] for t in self._layers if "attn_v" in t)
        return 1 if self.flash else max(widths, default=1)

    @cached_property
    def _kinds(self) -> list[int]:
        """[layers] equal numbers for layers with tensors of equal shapes and equal masks."""
        numbers: dict[object, int] = {}
        keys = (
            (mask, *((k, v.shape) for k, v in t.items())) for mask, t in zip(self._mask_of, self._layers, strict=True)
        )
        return [numbers.setdefault(key, len(numbers)) for key in keys]

    def _few(self, parts: Sequence[int]) -> list[tuple[int, int]]:
        """The layers that are laid out, with the parts that are on this device: a few of several equal ones, see `SAME`."""
        number: dict[object, int] = {}
        own = []
        for i, key in enumerate(zip(self._kinds, parts, strict=True)):
            number[key] = number.get(key, 0) + 1
            if key[1] and (number[key] <= (SAME_COPIED if key[1] & Part.COPIED else SAME) or i == len(parts) - 1):
                own.append((i, key[1]))
        return own

    def _peak(self, own: Sequence[tuple[int, int]], begins: bool, ends: bool, cpu: bool = False) -> int:
        """Bytes of the values of these layers and parts."""
        c, hidden, tokens, last = self.checkpoint, self._hidden, self._tokens, self.checkpoint.layers - 1
        outputs = self.users if self.outputs is None else self.outputs
        g = _Graph(c, hidden, tokens, self.users, self.flash, self.copies, self.cache_bits)
        pictures = [g.input(4 * hidden * tokens), g.input(4 * hidden * tokens), g.input(8 * tokens)] if begins else []
        x = g.row(hidden, g.row(hidden)) if cpu else -1
        if x < 0 and (begins or (own and own[0][1] & Part.LAYER)):
            x = g.input(4 * hidden * tokens)
        made: dict[tuple[int, bool], int] = {}

        def mask(key: tuple[int, bool], places: bool = False) -> int:
            """The mask, with the places in the cache."""
            g.shared += [g.input(8 * tokens), g.input(8 * tokens * self._wide)] if places else []
            if key not in made:
                made[key] = g.input(self._masks[key])
            return made[key]

        here = list(dict.fromkeys(
            self._mask_of[i] for i, p in own if p & (Part.LAYER | Part.COPIED) == Part.LAYER and "attn_output" in self._layers[i]
        ))  # fmt: skip
        for at, (i, part) in enumerate(own):
            if not part & Part.COPIED:  # an input of a device comes with its first layer that is there
                g.positions()
                for key in here:
                    mask(key, places=True)
                here = []
            if not at and pictures:  # written to a view, which nothing reads; its block is never free again
                g.kept.append(g.row(hidden, *pictures))
            if at and x >= 0 and part & (Part.LAYER | Part.ARRIVES) != Part.LAYER:
                g.add(0, x)  # another device reads it
            if part & Part.LAYER and (x < 0 or (part & Part.ARRIVES and at)):
                x = g.add(4 * hidden * tokens)
            key = self._mask_of[i]
            shown = partial(mask, key)
            x = g.layer(x, self._layers[i], Part(part), shown, self._cells[i], outputs * (i == last))
        if ends:
            x = g.add(self._embedding[1] * outputs * F32, *[x] * (x >= 0))
        g.add(0, *[x] * (x >= 0), *g.kept)
        return g.peak()


def _networks(t: dict[str, Tensor]) -> list[str]:
    """Ends of the names of a layer's networks."""
    return sorted(k.removeprefix("ffn_down") for k in t if k.startswith("ffn_down") and t[k].matrix)


def cached(t: dict[str, Tensor]) -> int:
    """Numbers that a layer caches for a token."""
    if "attn_output" not in t:
        return 0
    if "attn_kv_a_mqa" in t:
        return t["attn_kv_a_mqa"].shape[1]
    if "attn_qkv" in t:
        return t["attn_qkv"].shape[1] - t["attn_output"].shape[0]
    return t["attn_k"].shape[1] + t["attn_v" if "attn_v" in t else "attn_k"].shape[1]
