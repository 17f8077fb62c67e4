"""Episodes in compiled loops, and their gradients; `reference.py` computes the same in torch.

Between two steps, only the features of two groups change: of the one that was placed, and of the next one. So a step
computes only the embeddings that these features reach within K rounds of messages. That is exact: every sum is over the same
terms as when everything is computed anew.

Arguments: `q` is the problem (`Groups`), `w` the parameters (`Weights`), `s` the working memory (`Work`), `all_` the episodes and
`e` one of them (`Episodes`).
"""
# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

from typing import Any

import numpy as np
from placekit_scheduling.fields import row_of
from placekit_scheduling.jit import UNCOUNTED, compiled, njit

from placekit_placeto.arrays import SETS, SLOPE, STATIC, Episodes, Floats, Ints
from placekit_placeto.layers import copy, dense, dense_active

free: Any = njit(cache=True, nogil=True, **UNCOUNTED)  # other threads run meanwhile
episode = row_of(Episodes)


@compiled
def _new_row(s: Any, d: int, k: int, v: int) -> int:
    r = int(s.used[0])
    s.used[0] += 1
    s.owner[r] = v
    s.replaced[r] = s.row[d, k, v]
    s.row[d, k, v] = r
    return r


@compiled
def _send(w: Any, s: Any, d: int, k: int, start: int) -> None:
    """End the block of rows that begins at `start`: the messages f(x), for the next round."""
    end = int(s.used[0])
    b = int(s.used[1])
    s.used[1] += 1
    s.block[b, 0], s.block[b, 1], s.block[b, 2], s.block[b, 3] = start, end, d, k
    if k + 1 < s.row.shape[1]:
        dense_active(s.x[start:end], w.message[d, 0], w.message_bias[d, 0], s.hidden_f[start:end])
        dense(s.hidden_f[start:end], w.message[d, 1], w.message_bias[d, 1], s.message[start:end])


@compiled
def _embed(q: Any, w: Any, s: Any, d: int, v: int, current: int) -> None:
    """The embedding of a group's own features: round 0."""
    r = _new_row(s, d, 0, v)
    devices = w.head_out_bias.shape[0]
    s.input[r, 0] = s.device[v]
    s.input[r, 1] = 1 if v == current else 0
    s.input[r, 2] = 1 if s.visited[v] else 0
    for j in range(s.x.shape[1]):
        total = w.embed_bias[j] + w.embed[STATIC + s.device[v], j]
        for i in range(STATIC):
            total += q.static[v, i] * w.embed[i, j]
        if v == current:
            total += w.embed[STATIC + devices, j]
        if s.visited[v]:
            total += w.embed[STATIC + devices + 1, j]
        s.x[r, j] = total if total > 0 else SLOPE * total


@compiled
def _receive(q: Any, rules: Any, w: Any, s: Any, d: int, k: int, found: int) -> None:
    """The embeddings after round k of the groups in `s.todo[1]`: g of the sums of their neighbours' messages."""
    start = int(s.used[0])
    end = start + found
    for i in range(found):
        v = s.todo[1, i]
        r = _new_row(s, d, k, v)
        total = s.total[r]
        for j in range(total.shape[0]):
            total[j] = 0.0
        for e in range(q.pointer[d, v], q.pointer[d, v + 1]):
            message = s.message[s.row[d, k - 1, q.neighbour[d, e]]]
            for j in range(total.shape[0]):
                total[j] += message[j]
        for j in range(total.shape[0]):
            total[j] *= q.share[d, v]
    dense_active(s.total[start:end], w.message[d, 2], w.message_bias[d, 2], s.hidden_g[start:end])
    dense(s.hidden_g[start:end], w.message[d, 3], w.message_bias[d, 3], s.x[start:end])
    if rules.residual:
        for r in range(start, end):
            first = s.row[d, 0, s.owner[r]]
            for j in range(s.x.shape[1]):
                s.x[r, j] += s.x[first, j]
    _send(w, s, d, k, start)


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
    count, start = changed.shape[0], int(s.used[0])
    for i in range(count):
        _embed(q, w, s, d, changed[i], current)
        s.todo[0, i] = changed[i]
    _send(w, s, d, 0, start)
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
        if found:
            _receive(q, rules, w, s, d, k, found)
        copy(s.todo[0, :found], s.todo[1])
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
def _pool(q: Any, rules: Any, w: Any, s: Any, i: int, v: int) -> None:
    """Compute l's outputs for the groups of set i of the current group v, unless they are there."""
    rounds, size, start = s.row.shape[1] - 1, s.x.shape[1], int(s.used[2])
    for u in range(s.device.shape[0]):
        if set_of(q, rules, v, u) != i:
            continue
        top, bottom, c = s.row[0, rounds, u], s.row[1, rounds, u], s.pooled[i, u]
        if c >= 0 and s.pooled_from[c, 0] == top and s.pooled_from[c, 1] == bottom:
            continue
        c = int(s.used[2])
        s.used[2] += 1
        s.pooled_replaced[c] = s.pooled[i, u]
        s.pooled_owner[c] = u
        s.pooled_from[c, 0], s.pooled_from[c, 1] = top, bottom
        s.pooled[i, u] = c
        copy(s.pooled_in[c, :size], s.x[top])
        copy(s.pooled_in[c, size:], s.x[bottom])
    end = int(s.used[2])
    if end > start:
        b = int(s.used[3])
        s.used[3] += 1
        s.pooled_block[b, 0], s.pooled_block[b, 1], s.pooled_block[b, 2] = start, end, i
        dense_active(s.pooled_in[start:end], w.pool_in[i], w.pool_bias[i, 0], s.pooled_hidden[start:end])
        dense(s.pooled_hidden[start:end], w.pool[i, 0], w.pool_bias[i, 1], s.pooled_out[start:end])


@compiled
def decide(q: Any, rules: Any, w: Any, s: Any, v: int, t: int, log_p: Floats) -> None:
    """Fill the log-probabilities [1, D] of the devices of the current group v."""
    size, rounds = s.x.shape[1], s.row.shape[1] - 1
    for i in range(SETS):
        _pool(q, rules, w, s, i, v)
        s.sums[i, t] = 0.0
    for u in range(s.device.shape[0]):
        i = set_of(q, rules, v, u)
        if i >= 0:
            c = s.pooled[i, u]
            for j in range(size):
                s.sums[i, t, j] += s.pooled_out[c, j]
    seen = s.seen[t]
    if rules.whole:
        seen[: 2 * size] = 0.0
    else:
        copy(seen[:size], s.x[s.row[0, rounds, v]])
        copy(seen[size : 2 * size], s.x[s.row[1, rounds, v]])
    for i in range(SETS):
        for j in range(size):
            s.sums[i, t, j] *= np.float32(q.pooled_share)
        dense_active(s.sums[i, t : t + 1], w.pool[i, 1], w.pool_bias[i, 2], s.pool_hidden[i, t : t + 1])
        dense(s.pool_hidden[i, t : t + 1], w.pool[i, 2], w.pool_bias[i, 3], s.pool_out[i, t : t + 1])
        copy(seen[(2 + i) * size : (3 + i) * size], s.pool_out[i, t])
    dense_active(s.seen[t : t + 1], w.head_in, w.head_in_bias, s.hidden[t : t + 1])
    dense_active(s.hidden[t : t + 1], w.head, w.head_bias, s.last[t : t + 1])
    dense(s.last[t : t + 1], w.head_out, w.head_out_bias, log_p)
    _normalise(q.allowed[v], log_p[0])


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
    return bool(t % g == 0 or s.used[0] + whole > s.x.shape[0] or s.used[2] + g > s.pooled_out.shape[0])


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
            decide(q, rules, w, s, e.order[t], 0, e.log_p[t : t + 1])
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
            decide(q, rules, w, s, e.order[t], 0, e.log_p[t : t + 1])
            move(s, e.order[t], e.device[t])
