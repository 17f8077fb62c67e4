"""Gradients of episodes, backwards through the history that `kernel.py` keeps."""
# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

from typing import Any

import numpy as np
from placekit_scheduling.jit import compiled

from placekit_placeto.arrays import HIDDEN_F, HIDDEN_G, SETS, STATIC, SUM, Floats, X
from placekit_placeto.kernel import begin, both, decide, episode, free, full, look, move, set_of
from placekit_placeto.layers import activate_back, dense_back


@free
def climb(
    q: Any, rules: Any, w: Any, transposed: Any, s: Any, g: Any, all_: Any, weight: Any, entropy_weight: float,
    kl_weight: float, first: int, last: int,
) -> None:  # fmt: skip
    """Add to `g` the gradient of sum(weight * log_prob) + entropy_weight * sum(entropy) - kl_weight * sum(kl)."""
    for n in range(first, last):
        e = episode(all_, n)
        begin(s, e)
        begun, steps = 0, e.order.shape[0]
        for t in range(steps):
            anew = full(s, t)
            if anew and t > begun:
                _back(q, rules, w, transposed, s, g, e, weight[n], entropy_weight, kl_weight, begun, t)
                begun = t
            look(q, rules, w, s, e.order, t, anew)
            decide(q, rules, w, s, e.order[t], t, s.log_p[t])
            s.rows_after[t], s.pooled_after[t] = s.used[0], s.used[1]
            move(s, e.order[t], e.device[t])
        _back(q, rules, w, transposed, s, g, e, weight[n], entropy_weight, kl_weight, begun, steps)


@compiled
def _back(
    q: Any, rules: Any, w: Any, transposed: Any, s: Any, g: Any, e: Any, weight: Any, entropy_weight: float,
    kl_weight: float, begun: int, end: int,
) -> None:  # fmt: skip
    """Go back through the history of steps `begun` to `end`."""
    s.back[: s.used[0]] = 0.0
    s.pooled_back[: s.used[1]] = 0.0
    for t in range(end - 1, begun - 1, -1):
        _logits_back(s, s.log_p[t], e.log_p[t], e.device[t], weight[t], entropy_weight, kl_weight)
        _decide_back(q, rules, transposed, s, g, e.order[t], t)
        rows = s.rows_after[t - 1] if t > begun else 0
        pooled = s.pooled_after[t - 1] if t > begun else 0
        while s.used[1] > pooled:
            s.used[1] -= 1
            _pool_back(transposed, s, g, s.used[1])
        while s.used[0] > rows:
            s.used[0] -= 1
            _row_back(q, rules, transposed, s, g, s.used[0])


@compiled
def _logits_back(
    s: Any, log_p: Floats, old: Floats, device: int, weight: float, entropy_weight: float, kl_weight: float
) -> None:
    """Gradient by the logits of a step."""
    entropy = 0.0
    for i in range(log_p.shape[0]):
        if log_p[i] > -np.inf:
            entropy -= np.exp(log_p[i]) * log_p[i]
    for i in range(log_p.shape[0]):
        s.logit_back[i] = 0.0
        if log_p[i] > -np.inf:
            p = np.exp(log_p[i])
            s.logit_back[i] = (
                weight * ((1.0 if i == device else 0.0) - p)
                - entropy_weight * p * (log_p[i] + entropy)
                + kl_weight * (np.exp(old[i]) - p)
            )


@compiled
def _decide_back(q: Any, rules: Any, transposed: Any, s: Any, g: Any, v: int, t: int) -> None:
    """Through the head and h, to the embeddings of the current group and the outputs of l."""
    size, rounds = s.rows.shape[2], s.row.shape[1] - 1
    dense_back(s.last[t], s.logit_back, transposed.head_out, g.head_out, g.head_out_bias, s.last_back)
    activate_back(s.last[t], s.last_back)
    dense_back(s.hidden[t], s.last_back, transposed.head, g.head, g.head_bias, s.hidden_back)
    activate_back(s.hidden[t], s.hidden_back)
    dense_back(s.seen[t], s.hidden_back, transposed.head_in, g.head_in, g.head_in_bias, s.seen_back)
    if not rules.whole:
        for d in range(2):
            own = s.back[s.row[d, rounds, v], 0]
            for j in range(size):
                own[j] += s.seen_back[d * size + j]
    for i in range(SETS):
        out = s.seen_back[(2 + i) * size : (3 + i) * size]
        small = s.small[0]
        dense_back(s.pool_hidden[t, i], out, transposed.pool[i, 2], g.pool[i, 2], g.pool_bias[i, 3], small)
        activate_back(s.pool_hidden[t, i], small)
        dense_back(s.total[t, i], small, transposed.pool[i, 1], g.pool[i, 1], g.pool_bias[i, 2], s.total_back[i])
    for u in range(s.device.shape[0]):
        i = set_of(q, rules, v, u)
        if i >= 0:
            into = s.pooled_back[s.pooled[i, u]]
            for j in range(size):
                into[j] += np.float32(q.pooled_share) * s.total_back[i, j]


@compiled
def _pool_back(transposed: Any, s: Any, g: Any, c: int) -> None:
    """Through l, to the embeddings that a pooled row was computed from."""
    i, u = s.pooled_which[c] // s.pooled.shape[1], s.pooled_which[c] % s.pooled.shape[1]
    top, bottom, size = s.pooled_from[c, 0], s.pooled_from[c, 1], s.rows.shape[2]
    small, wide = s.small[0], s.wide[1]
    dense_back(s.pooled_rows[c, 0], s.pooled_back[c], transposed.pool[i, 0], g.pool[i, 0], g.pool_bias[i, 1], small)
    activate_back(s.pooled_rows[c, 0], small)
    both(s, top, bottom, s.wide[0])
    dense_back(s.wide[0], small, transposed.pool_in[i], g.pool_in[i], g.pool_bias[i, 0], wide)
    for j in range(size):
        s.back[top, 0, j] += wide[j]
        s.back[bottom, 0, j] += wide[size + j]
    s.pooled[i, u] = s.pooled_replaced[c]


@compiled
def _row_back(q: Any, rules: Any, transposed: Any, s: Any, g: Any, r: int) -> None:
    """Through a round of messages, to the embeddings of the round before, or to the weights of a group's features."""
    groups, depth = s.row.shape[2], s.row.shape[1]
    v, k, d = s.which[r] % groups, s.which[r] // groups % depth, s.which[r] // groups // depth
    back, small, other = s.back[r, 0], s.small[0], s.small[1]
    if k + 1 < depth:
        dense_back(
            s.rows[r, HIDDEN_F], s.back[r, 1], transposed.message[d, 1], g.message[d, 1], g.message_bias[d, 1], small
        )
        activate_back(s.rows[r, HIDDEN_F], small)
        dense_back(s.rows[r, X], small, transposed.message[d, 0], g.message[d, 0], g.message_bias[d, 0], other)
        for j in range(back.shape[0]):
            back[j] += other[j]
    if k > 0:
        if rules.residual:
            first = s.back[s.row[d, 0, v], 0]
            for j in range(back.shape[0]):
                first[j] += back[j]
        dense_back(s.rows[r, HIDDEN_G], back, transposed.message[d, 3], g.message[d, 3], g.message_bias[d, 3], small)
        activate_back(s.rows[r, HIDDEN_G], small)
        dense_back(s.rows[r, SUM], small, transposed.message[d, 2], g.message[d, 2], g.message_bias[d, 2], other)
        for e in range(q.pointer[d, v], q.pointer[d, v + 1]):
            sender = s.back[s.row[d, k - 1, q.neighbour[d, e]], 1]
            for j in range(back.shape[0]):
                sender[j] += q.share[d, v] * other[j]
    else:
        activate_back(s.rows[r, X], back)
        devices = g.head_out_bias.shape[0]
        for j in range(back.shape[0]):
            g.embed_bias[j] += back[j]
            for i in range(STATIC):
                g.embed[i, j] += q.static[v, i] * back[j]
            g.embed[STATIC + s.input[r, 0], j] += back[j]
            if s.input[r, 1]:
                g.embed[STATIC + devices, j] += back[j]
            if s.input[r, 2]:
                g.embed[STATIC + devices + 1, j] += back[j]
    s.row[d, k, v] = s.replaced[r]
