"""Gradients of episodes, backwards through the history that `kernel.py` keeps."""
# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

from typing import Any

import numpy as np
from placekit_scheduling.jit import compiled

from placekit_placeto.arrays import SETS, STATIC, Floats
from placekit_placeto.kernel import begin, decide, episode, free, full, look, move, set_of
from placekit_placeto.layers import activate_back, copy, dense_back


@free
def climb(
    q: Any, rules: Any, w: Any, s: Any, g: Any, all_: Any, weight: Any, entropy_weight: float, kl_weight: float,
    first: int, last: int,
) -> None:  # fmt: skip
    """Add to `g` the gradient of sum(weight * log_prob) + entropy_weight * sum(entropy) - kl_weight * sum(kl)."""
    for n in range(first, last):
        e = episode(all_, n)
        begin(s, e)
        begun, steps = 0, e.order.shape[0]
        for t in range(steps):
            anew = full(s, t)
            if anew and t > begun:
                _back(q, rules, w, s, g, e, weight[n], entropy_weight, kl_weight, begun, t)
                begun = t
            look(q, rules, w, s, e.order, t, anew)
            decide(q, rules, w, s, e.order[t], t, s.log_p[t : t + 1])
            s.blocks_after[t, 0], s.blocks_after[t, 1] = s.used[1], s.used[3]
            move(s, e.order[t], e.device[t])
        _back(q, rules, w, s, g, e, weight[n], entropy_weight, kl_weight, begun, steps)


@compiled
def _back(
    q: Any, rules: Any, w: Any, s: Any, g: Any, e: Any, weight: Any, entropy_weight: float, kl_weight: float, begun: int,
    end: int,
) -> None:  # fmt: skip
    """Go back through the history of steps `begun` to `end`."""
    s.x_back[: s.used[0]] = 0.0
    s.message_back[: s.used[0]] = 0.0
    s.pooled_back[: s.used[2]] = 0.0
    for t in range(begun, end):
        _logits_back(s, t, s.log_p[t], e.log_p[t], e.device[t], weight[t], entropy_weight, kl_weight)
    _head_back(w, s, g, begun, end)
    for t in range(end - 1, begun - 1, -1):
        _spread(q, rules, s, e.order[t], t)
        blocks = s.blocks_after[t - 1, 0] if t > begun else 0
        pooled = s.blocks_after[t - 1, 1] if t > begun else 0
        while s.used[3] > pooled:
            s.used[3] -= 1
            _pool_back(w, s, g, s.used[3])
        while s.used[1] > blocks:
            s.used[1] -= 1
            _block_back(q, rules, w, s, g, s.used[1])


@compiled
def _logits_back(
    s: Any, t: int, log_p: Floats, old: Floats, device: int, weight: float, entropy_weight: float, kl_weight: float
) -> None:
    """Gradient by the logits of step t."""
    entropy = 0.0
    for i in range(log_p.shape[0]):
        if log_p[i] > -np.inf:
            entropy -= np.exp(log_p[i]) * log_p[i]
    for i in range(log_p.shape[0]):
        s.logit_back[t, i] = 0.0
        if log_p[i] > -np.inf:
            p = np.exp(log_p[i])
            s.logit_back[t, i] = (
                weight * ((1.0 if i == device else 0.0) - p)
                - entropy_weight * p * (log_p[i] + entropy)
                + kl_weight * (np.exp(old[i]) - p)
            )


@compiled
def _head_back(w: Any, s: Any, g: Any, begun: int, end: int) -> None:
    """Through the head and h of all steps, to the embeddings of their groups and the sums of l's outputs."""
    size, steps = s.x.shape[1], end - begun
    last, hidden = s.last[begun:end], s.hidden[begun:end]
    last_back, hidden_back = s.last_back[begun:end], s.hidden_back[begun:end]
    dense_back(last, s.logit_back[begun:end], w.head_out, g.head_out, g.head_out_bias, last_back, s.flat)
    activate_back(last, last_back)
    dense_back(hidden, last_back, w.head, g.head, g.head_bias, hidden_back, s.flat)
    activate_back(hidden, hidden_back)
    dense_back(s.seen[begun:end], hidden_back, w.head_in, g.head_in, g.head_in_bias, s.seen_back[begun:end], s.flat)
    out, small = s.small[0, :steps], s.small[1, :steps]
    for i in range(SETS):
        for t in range(steps):
            copy(out[t], s.seen_back[begun + t, (2 + i) * size : (3 + i) * size])
        dense_back(s.pool_hidden[i, begun:end], out, w.pool[i, 2], g.pool[i, 2], g.pool_bias[i, 3], small, s.flat)
        activate_back(s.pool_hidden[i, begun:end], small)
        into = s.sums_back[i, begun:end]
        dense_back(s.sums[i, begun:end], small, w.pool[i, 1], g.pool[i, 1], g.pool_bias[i, 2], into, s.flat)


@compiled
def _spread(q: Any, rules: Any, s: Any, v: int, t: int) -> None:
    """From the input of the head at step t to the rows that it was made of."""
    size, rounds = s.x.shape[1], s.row.shape[1] - 1
    if not rules.whole:
        for d in range(2):
            own = s.row[d, rounds, v]
            for j in range(size):
                s.x_back[own, j] += s.seen_back[t, d * size + j]
    for i in range(SETS):
        for j in range(size):
            s.sums_back[i, t, j] *= np.float32(q.pooled_share)
    for u in range(s.device.shape[0]):
        i = set_of(q, rules, v, u)
        if i >= 0:
            c = s.pooled[i, u]
            for j in range(size):
                s.pooled_back[c, j] += s.sums_back[i, t, j]


@compiled
def _pool_back(w: Any, s: Any, g: Any, b: int) -> None:
    """Through l, from a block of pooled rows to the embeddings that they were computed from."""
    start, end, i = s.pooled_block[b, 0], s.pooled_block[b, 1], s.pooled_block[b, 2]
    size, hidden = s.x.shape[1], s.pooled_hidden[start:end]
    small, wide = s.small[0, : end - start], s.wide[: end - start]
    dense_back(hidden, s.pooled_back[start:end], w.pool[i, 0], g.pool[i, 0], g.pool_bias[i, 1], small, s.flat)
    activate_back(hidden, small)
    dense_back(s.pooled_in[start:end], small, w.pool_in[i], g.pool_in[i], g.pool_bias[i, 0], wide, s.flat)
    for c in range(start, end):
        top, bottom = s.pooled_from[c, 0], s.pooled_from[c, 1]
        for j in range(size):
            s.x_back[top, j] += wide[c - start, j]
            s.x_back[bottom, j] += wide[c - start, size + j]
        s.pooled[i, s.pooled_owner[c]] = s.pooled_replaced[c]


@compiled
def _block_back(q: Any, rules: Any, w: Any, s: Any, g: Any, b: int) -> None:
    """Through a round of messages, to the embeddings of the round before, or to the weights of the groups' features."""
    start, end, d, k = s.block[b, 0], s.block[b, 1], s.block[b, 2], s.block[b, 3]
    x, back, message, bias = s.x[start:end], s.x_back[start:end], g.message[d], g.message_bias[d]
    small, other = s.small[0, : end - start], s.small[1, : end - start]
    if k + 1 < s.row.shape[1]:
        hidden = s.hidden_f[start:end]
        dense_back(hidden, s.message_back[start:end], w.message[d, 1], message[1], bias[1], small, s.flat)
        activate_back(hidden, small)
        dense_back(x, small, w.message[d, 0], message[0], bias[0], other, s.flat)
        for i in range(end - start):
            for j in range(back.shape[1]):
                back[i, j] += other[i, j]
    if k == 0:
        activate_back(x, back)
        _embed_back(q, s, g, start, end)
    else:
        hidden = s.hidden_g[start:end]
        dense_back(hidden, back, w.message[d, 3], message[3], bias[3], small, s.flat)
        activate_back(hidden, small)
        dense_back(s.total[start:end], small, w.message[d, 2], message[2], bias[2], other, s.flat)
        _receive_back(q, rules, s, d, k, start, end, other)
    for r in range(start, end):
        s.row[d, k, s.owner[r]] = s.replaced[r]


@compiled
def _receive_back(q: Any, rules: Any, s: Any, d: int, k: int, start: int, end: int, total_back: Floats) -> None:
    """From the sums of messages to the messages, and to the first embeddings."""
    for r in range(start, end):
        v = s.owner[r]
        if rules.residual:
            first = s.row[d, 0, v]
            for j in range(s.x_back.shape[1]):
                s.x_back[first, j] += s.x_back[r, j]
        for e in range(q.pointer[d, v], q.pointer[d, v + 1]):
            sender = s.row[d, k - 1, q.neighbour[d, e]]
            for j in range(s.x_back.shape[1]):
                s.message_back[sender, j] += q.share[d, v] * total_back[r - start, j]


@compiled
def _embed_back(q: Any, s: Any, g: Any, start: int, end: int) -> None:
    """To the weights of the groups' own features."""
    devices = g.head_out_bias.shape[0]
    for r in range(start, end):
        v = s.owner[r]
        for j in range(s.x_back.shape[1]):
            back = s.x_back[r, j]
            g.embed_bias[j] += back
            for i in range(STATIC):
                g.embed[i, j] += q.static[v, i] * back
            g.embed[STATIC + s.input[r, 0], j] += back
            if s.input[r, 1]:
                g.embed[STATIC + devices, j] += back
            if s.input[r, 2]:
                g.embed[STATIC + devices + 1, j] += back
