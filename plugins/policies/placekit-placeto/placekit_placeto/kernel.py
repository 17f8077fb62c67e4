"""Episodes in compiled loops, and their gradients; `reference.py` computes the same in torch.

Between two steps, only the features of two groups change: of the one that was placed, and of the next one. So a step
computes only the embeddings that these features reach within K rounds of messages. Every sum is over the same terms in the
same order as when everything is computed anew, so the values are the same to the last bit.
"""
# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from placekit_scheduling.fields import row_of
from placekit_scheduling.jit import UNCOUNTED, compiled

from placekit_placeto.arrays import (
    HIDDEN_F,
    HIDDEN_G,
    SETS,
    STATIC,
    SUM,
    Episodes,
    F,
    Floats,
    Ints,
    X,
)
from placekit_placeto.layers import activate, dense

free: Any = njit(cache=True, nogil=True, **UNCOUNTED)  # other threads run meanwhile
episode = row_of(Episodes)


@compiled
def _new_row(s: Any, d: int, k: int, v: int) -> int:
    r = int(s.used[0])
    s.used[0] += 1
    s.replaced[r] = s.row[d, k, v]
    s.which[r] = (d * s.row.shape[1] + k) * s.row.shape[2] + v
    s.row[d, k, v] = r
    return r


@compiled
def _send(w: Any, s: Any, d: int, r: int) -> None:
    """The message f(x) of a row, for the next round."""
    dense(s.rows[r, X], w.message[d, 0], w.message_bias[d, 0], s.rows[r, HIDDEN_F])
    activate(s.rows[r, HIDDEN_F])
    dense(s.rows[r, HIDDEN_F], w.message[d, 1], w.message_bias[d, 1], s.rows[r, F])


@compiled
def _embed(q: Any, w: Any, s: Any, d: int, v: int, current: int) -> None:
    """The embedding of a group's own features: round 0."""
    r = _new_row(s, d, 0, v)
    devices = w.head_out_bias.shape[0]
    x = s.rows[r, X]
    s.input[r, 0] = s.device[v]
    s.input[r, 1] = 1 if v == current else 0
    s.input[r, 2] = 1 if s.visited[v] else 0
    for j in range(x.shape[0]):
        total = w.embed_bias[j] + w.embed[STATIC + s.device[v], j]
        for i in range(STATIC):
            total += q.static[v, i] * w.embed[i, j]
        if v == current:
            total += w.embed[STATIC + devices, j]
        if s.visited[v]:
            total += w.embed[STATIC + devices + 1, j]
        x[j] = total
    activate(x)
    if s.row.shape[1] > 1:
        _send(w, s, d, r)


@compiled
def _receive(q: Any, rules: Any, w: Any, s: Any, d: int, k: int, v: int) -> None:
    """The embedding of a group after round k: g of the sum of its neighbours' messages."""
    r = _new_row(s, d, k, v)
    total, x = s.rows[r, SUM], s.rows[r, X]
    for j in range(total.shape[0]):
        total[j] = 0.0
    for e in range(q.pointer[d, v], q.pointer[d, v + 1]):
        message = s.rows[s.row[d, k - 1, q.neighbour[d, e]], F]
        for j in range(total.shape[0]):
            total[j] += message[j]
    for j in range(total.shape[0]):
        total[j] *= q.share[d, v]
    dense(total, w.message[d, 2], w.message_bias[d, 2], s.rows[r, HIDDEN_G])
    activate(s.rows[r, HIDDEN_G])
    dense(s.rows[r, HIDDEN_G], w.message[d, 3], w.message_bias[d, 3], x)
    if rules.residual:
        first = s.rows[s.row[d, 0, v], X]
        for j in range(x.shape[0]):
            x[j] += first[j]
    if k + 1 < s.row.shape[1]:
        _send(w, s, d, r)


@compiled
def _mark(s: Any, v: int, count: int) -> int:
    """Add a group to the list `s.todo[1]`, unless it is there; returns the list's length."""
    last = s.mark.shape[0] - 1
    if s.mark[v] == s.mark[last]:
        return count
    s.mark[v] = s.mark[last]
    s.todo[1, count] = v
    return count + 1


@compiled
def _propagate(q: Any, rules: Any, w: Any, s: Any, d: int, changed: Ints, current: int) -> None:
    """Compute the embeddings that the features of the groups `changed` reach, in one direction."""
    last = s.mark.shape[0] - 1
    count = changed.shape[0]
    for i in range(count):
        _embed(q, w, s, d, changed[i], current)
        s.todo[0, i] = changed[i]
    for k in range(1, s.row.shape[1]):
        s.mark[last] += 1
        found = 0
        if rules.residual or changed.shape[0] == s.device.shape[0]:  # groups without senders, too
            for i in range(changed.shape[0]):
                found = _mark(s, changed[i], found)
        for i in range(count):  # whoever gets messages from v sends messages to v in the other direction
            v = s.todo[0, i]
            for e in range(q.pointer[1 - d, v], q.pointer[1 - d, v + 1]):
                found = _mark(s, q.neighbour[1 - d, e], found)
        for i in range(found):
            _receive(q, rules, w, s, d, k, s.todo[1, i])
            s.todo[0, i] = s.todo[1, i]
        count = found


@compiled
def set_of(q: Any, rules: Any, v: int, u: int) -> int:
    """The set that group u is in when v is the current one; -1: none."""
    if rules.whole:
        return 0
    if u == v:
        return -1
    word, bit = u >> 6, np.uint64(u & 63)
    if (q.before[v, word] >> bit) & np.uint64(1):
        return 0
    return 1 if (q.after[v, word] >> bit) & np.uint64(1) else 2


@compiled
def _pool(w: Any, s: Any, i: int, u: int) -> int:
    """The row of l's output for group u in set i, computed unless it is there."""
    rounds = s.row.shape[1] - 1
    top, bottom = s.row[0, rounds, u], s.row[1, rounds, u]
    c = int(s.pooled[i, u])
    if c >= 0 and s.pooled_from[c, 0] == top and s.pooled_from[c, 1] == bottom:
        return c
    c = int(s.used[1])
    s.used[1] += 1
    s.pooled_replaced[c] = s.pooled[i, u]
    s.pooled_which[c] = i * s.pooled.shape[1] + u
    s.pooled_from[c, 0], s.pooled_from[c, 1] = top, bottom
    s.pooled[i, u] = c
    both(s, top, bottom, s.wide[0])
    dense(s.wide[0], w.pool_in[i], w.pool_bias[i, 0], s.pooled_rows[c, 0])
    activate(s.pooled_rows[c, 0])
    dense(s.pooled_rows[c, 0], w.pool[i, 0], w.pool_bias[i, 1], s.pooled_rows[c, 1])
    return c


@compiled
def both(s: Any, top: int, bottom: int, into: Floats) -> None:
    """The embeddings of both directions, side by side."""
    size = s.rows.shape[2]
    for j in range(size):
        into[j] = s.rows[top, X, j]
        into[size + j] = s.rows[bottom, X, j]


@compiled
def decide(q: Any, rules: Any, w: Any, s: Any, v: int, t: int, log_p: Floats) -> None:
    """Fill the log-probabilities [D] of the devices of the current group v."""
    size, rounds = s.rows.shape[2], s.row.shape[1] - 1
    for i in range(SETS):
        for j in range(size):
            s.total[t, i, j] = 0.0
    for u in range(s.device.shape[0]):
        i = set_of(q, rules, v, u)
        if i >= 0:
            out = s.pooled_rows[_pool(w, s, i, u), 1]
            for j in range(size):
                s.total[t, i, j] += out[j]
    seen = s.seen[t]
    if rules.whole:
        seen[: 2 * size] = 0.0
    else:
        both(s, s.row[0, rounds, v], s.row[1, rounds, v], seen)
    for i in range(SETS):
        for j in range(size):
            s.total[t, i, j] *= np.float32(q.pooled_share)
        dense(s.total[t, i], w.pool[i, 1], w.pool_bias[i, 2], s.pool_hidden[t, i])
        activate(s.pool_hidden[t, i])
        dense(s.pool_hidden[t, i], w.pool[i, 2], w.pool_bias[i, 3], seen[(2 + i) * size : (3 + i) * size])
    dense(seen, w.head_in, w.head_in_bias, s.hidden[t])
    activate(s.hidden[t])
    dense(s.hidden[t], w.head, w.head_bias, s.last[t])
    activate(s.last[t])
    dense(s.last[t], w.head_out, w.head_out_bias, log_p)
    _normalise(q.allowed[v], log_p)


@compiled
def _normalise(allowed: Any, logit: Floats) -> None:
    """Logits become log-probabilities, in place."""
    highest, total = -np.inf, 0.0
    for i in range(logit.shape[0]):
        if allowed[i]:
            highest = max(highest, float(logit[i]))
    for i in range(logit.shape[0]):
        if allowed[i]:
            total += np.exp(logit[i] - highest)
    total = highest + np.log(total)
    for i in range(logit.shape[0]):
        logit[i] = logit[i] - total if allowed[i] else -np.inf


@compiled
def begin(s: Any, e: Any) -> None:
    for v in range(s.device.shape[0]):
        s.device[v] = e.start[v]
        s.visited[v] = False


@compiled
def full(s: Any, t: int) -> bool:
    """Whether the history starts anew with step t: nobody is visited any more, or the memory is used up."""
    g = s.device.shape[0]
    whole = 2 * s.row.shape[1] * g
    return bool(t % g == 0 or s.used[0] + whole > s.rows.shape[0] or s.used[1] + g > s.pooled_rows.shape[0])


@compiled
def look(q: Any, rules: Any, w: Any, s: Any, order: Any, t: int, anew: bool) -> None:
    """Compute the embeddings of step t, all of them or those that have changed."""
    if t % s.device.shape[0] == 0:
        s.visited[:] = False
    if anew:
        s.used[:] = 0
        s.row[:] = -1
        s.pooled[:] = -1
        for d in range(2):
            _propagate(q, rules, w, s, d, s.everyone, order[t])
    else:
        s.changed[0], s.changed[1] = order[t - 1], order[t]
        for d in range(2):
            _propagate(q, rules, w, s, d, s.changed, order[t])


@compiled
def move(s: Any, v: int, device: int) -> None:
    s.device[v] = device
    s.visited[v] = True


@compiled
def _chosen(log_p: Floats, draw: float, explore: bool) -> int:
    """The device drawn; the likeliest, the first of equal ones, without exploration."""
    best, total = -1, 0.0
    for i in range(log_p.shape[0]):
        if log_p[i] > -np.inf:
            if explore:
                best = i  # the last one that is allowed, should rounding leave a gap
                total += np.exp(log_p[i])
                if draw < total:
                    return i
            elif best < 0 or log_p[i] > log_p[best]:
                best = i
    return best


@free
def draw(q: Any, rules: Any, w: Any, s: Any, all_: Any, explore: bool, first: int, last: int) -> None:
    """Fill `device` and `log_p` of episodes `first` to `last`."""
    for n in range(first, last):
        e = episode(all_, n)
        begin(s, e)
        for t in range(e.order.shape[0]):
            look(q, rules, w, s, e.order, t, full(s, t))
            decide(q, rules, w, s, e.order[t], 0, e.log_p[t])
            e.device[t] = _chosen(e.log_p[t], e.draw[t], explore)
            move(s, e.order[t], e.device[t])


@free
def judge(q: Any, rules: Any, w: Any, s: Any, all_: Any, first: int, last: int) -> None:
    """Fill `log_p` of episodes `first` to `last`, with the devices that they have."""
    for n in range(first, last):
        e = episode(all_, n)
        begin(s, e)
        for t in range(e.order.shape[0]):
            look(q, rules, w, s, e.order, t, full(s, t))
            decide(q, rules, w, s, e.order[t], 0, e.log_p[t])
            move(s, e.order[t], e.device[t])
