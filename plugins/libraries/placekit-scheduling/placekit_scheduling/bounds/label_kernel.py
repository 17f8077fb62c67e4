"""The compiled loops of labels.py; importing this imports numba. The proofs are in makespan.py: `detour_bound`, `tree_bound`.

The names are those of kernel.py, and these:

- Place 0 is the device D of the proofs, of one kind; place 1 + b is any other device of kind b. P = 1 + K.
- A *label* (t, w) of an operation is its earliest end t, and the least priced time w of D for its tree if it ends then. A
  list of labels is the first entries of two rows, with rising t and falling w.
- `price` [3] has the prices of a second of work on D, of a second of a transfer to D, and of one from D.
- `owner[u]` is the only operation that counts the tree of u.
"""
# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

from typing import Any

import numpy as np

from placekit_scheduling.jit import counted_inner, njit

LABELS = 16  # of an operation at a place; with fewer, the bound is lower but valid
SPAN = 16  # positions to search for each operation after a fork
INF = np.inf


@counted_inner
def _next_dependants(f: int, order: Any, position: Any, ptr: Any, other: Any, kernel: Any, row: Any, found: Any) -> Any:
    """Fill `found` with the next operations that depend on `f`, in `order`, and `row` with their rows. Returns how many."""
    length, most = 0, len(found)
    for i in range(position[f] + 1, min(len(order), position[f] + 1 + SPAN * most)):
        v = order[i]
        if not kernel[v]:
            continue
        for e in range(ptr[v], ptr[v + 1]):
            if other[e] == f or row[other[e]] >= 0:
                row[v], found[length] = length, v
                length += 1
                break
        if length == most:
            break
    return length


@counted_inner
def _push_label(t: Any, w: Any, length: int, time: float, work: float) -> Any:
    """Append a label of at most the last one's work, and remove labels that it beats. Returns the new number of labels."""
    while length > 0 and t[length - 1] >= time and w[length - 1] >= work:
        length -= 1
    if length > 0 and t[length - 1] <= time and w[length - 1] <= work:
        return length
    t[length], w[length] = time, work
    return length + 1


@counted_inner
def _copy_labels(t: Any, w: Any, length: int, t1: Any, w1: Any) -> None:
    """Copy `length` labels to (t1, w1). Slices would take much longer to compile."""
    for i in range(length):
        t1[i], w1[i] = t[i], w[i]


@counted_inner
def _reduce_labels(t: Any, w: Any, length: int) -> Any:
    """Reduce to at most LABELS labels: neighbours become one label of the least time and least work. Returns how many."""
    if length <= LABELS:
        return length
    for i in range(LABELS):
        first, last = i * length // LABELS, (i + 1) * length // LABELS - 1
        t[i], w[i] = t[first], w[last]
    return LABELS


@counted_inner
def _merge_alternatives(
    t1: Any, w1: Any, n1: int, t2: Any, w2: Any, n2: int, later: float, more: float, t: Any, w: Any
) -> Any:  # fmt: skip
    """Merge two lists of alternatives; labels of the second are `later` and cost `more`. Returns how many."""
    i, j, length = 0, 0, 0
    while i < n1 or j < n2:
        if j == n2 or (i < n1 and t1[i] <= t2[j] + later):
            length = _push_label(t, w, length, t1[i], w1[i])
            i += 1
        else:
            length = _push_label(t, w, length, t2[j] + later, w2[j] + more)
            j += 1
    return _reduce_labels(t, w, length)


@counted_inner
def _combine_inputs(t1: Any, w1: Any, n1: int, t2: Any, w2: Any, n2: int, t: Any, w: Any) -> Any:
    """Combine two lists of inputs, both needed: the later time, and the sum of the work. Returns how many."""
    i, j, length = 0, 0, 0
    while i < n1 and j < n2:
        length = _push_label(t, w, length, max(t1[i], t2[j]), w1[i] + w2[j])
        if j + 1 == n2 or (i + 1 < n1 and t1[i + 1] <= t2[j + 1]):
            i += 1
        else:
            j += 1
    return _reduce_labels(t, w, length)


@counted_inner
def _arrival_labels(
    u: int, edge: int, place: int, together: bool, cost: Any, into: float, out: float, t: Any, w: Any, n: Any, t1: Any,
    w1: Any, t2: Any, w2: Any,
) -> Any:  # fmt: skip
    """Fill (t1, w1) with labels of the arrival of row u's output on a device of `place`. Returns how many."""
    length = n[u, place]
    _copy_labels(t[u, place], w[u, place], length, t1, w1)
    for of in range(cost.shape[1]):
        if of == place and place > 0:  # it may be on the same device
            continue
        if of == place or together or n[u, of] == 0 or cost[edge, of, place] == INF:
            continue
        later = cost[edge, of, place]
        more = into * later if place == 0 else out * later if of == 0 else 0.0
        merged = _merge_alternatives(t1, w1, length, t[u, of], w[u, of], n[u, of], later, more, t2, w2)
        _copy_labels(t2, w2, merged, t1, w1)
        length = merged
    return length


@counted_inner
def _own_labels(t: Any, w: Any, temp: Any, inputs: int, least: float, since: float, seconds: float, own: float) -> Any:
    """Fill (t, w) with the labels of an operation that waits for labels in `temp` and starts at `least` or later.

    Returns its earliest start, and how many labels there are.
    """
    start, length = INF, 0
    for j in range(inputs):
        begin = max(temp[4, j], least)
        if temp[5, j] > 0:
            begin = max(begin, since + temp[5, j])
        start = min(start, begin)
        if begin < INF:
            length = _push_label(t, w, length, begin + seconds, temp[5, j] + own)
    return start, length


@counted_inner
def _input_labels(
    v: int, place: int, since: float, f: int, first: bool, row: Any, ptr: Any, other: Any, cost: Any, cluster: Any, owner: Any,
    late: Any, price: Any, t: Any, w: Any, n: Any, temp: Any,
) -> Any:  # fmt: skip
    """Fill rows 4 and 5 of `temp` with labels of all inputs of `v` at `place`. Returns how many.

    Row `row[u]` of `t`, `w` and `n` has the labels of u; without a row, u is ignored. Operation `f` is at place 0 and ends at
    time 0; if `first`, v counts the transfer of its output. Transfers of inputs that may end before `since` do not count.
    """
    t1, w1, t2, w2, t3, w3 = temp[0], temp[1], temp[2], temp[3], temp[4], temp[5]
    t3[0], w3[0], inputs = 0.0, 0.0, 1
    for e in range(ptr[v], ptr[v + 1]):
        u = other[e]
        if u == f:
            t1[0], w1[0], arrived = 0.0, 0.0, 1
            if place > 0:
                t1[0] = INF if cluster[u] == cluster[v] else cost[e, 0, place]
                arrived = 1 if t1[0] < INF else 0
                w1[0] = price[2] * t1[0] if first and arrived > 0 else 0.0
        elif row[u] >= 0:
            counts = 1.0 if late[u] >= since else 0.0
            arrived = _arrival_labels(
                row[u], e, place, cluster[u] == cluster[v], cost, counts * price[1], counts * price[2], t, w, n, t1, w1, t2, w2
            )  # fmt: skip
            if owner[u] != v and arrived > 0:
                w1[0], arrived = 0.0, 1
        else:
            continue
        inputs = _combine_inputs(t3, w3, inputs, t1, w1, arrived, t2, w2)
        _copy_labels(t2, w2, inputs, t3, w3)
    return inputs


@counted_inner
def _starts_after_fork(
    f: int, found: Any, length: int, row: Any, ptr: Any, other: Any, cost: Any, seconds: Any, may: Any, price: Any, cluster: Any,
    owner: Any, late: Any, t: Any, w: Any, n: Any, temp: Any, start: Any,
) -> None:  # fmt: skip
    """Raise the earliest `start` [length, P] of `found` at all places, after the end of `f` at place 0."""
    first = -1
    for i in range(length - 1, -1, -1):
        v = found[i]
        for e in range(ptr[v], ptr[v + 1]):
            owner[other[e]] = v  # its first reader in the end, because they are visited backwards
            first = v if other[e] == f else first
    for i in range(length):
        v = found[i]
        for place in range(cost.shape[1]):
            n[i, place] = 0
            if not may[v, place] or (place > 0 and cluster[v] == cluster[f]):
                start[i, place] = INF
                continue
            inputs = _input_labels(
                v, place, 0.0, f, v == first, row, ptr, other, cost, cluster, owner, late, price, t, w, n, temp
            )
            own = price[0] * seconds[v, place] if place == 0 else 0.0
            least, n[i, place] = _own_labels(t[i, place], w[i, place], temp, inputs, 0.0, 0.0, seconds[v, place], own)
            start[i, place] = max(start[i, place], least)


@njit(cache=True)
def detours(
    order: Any, position: Any, ptr: Any, other: Any, kernel: Any, fork: Any, cost: Any, seconds: Any, may: Any,
    prices: Any, cluster: Any, most: int, fork_of: Any, join_of: Any, after: Any,
) -> Any:  # fmt: skip
    """Fill pairs of a `fork` and a later operation, and the least seconds between them: `after` [pairs, K, P].

    `cost` [K, e, P, P], `seconds` and `may` [K, n, P] and `prices` [K, r, 3] are those around a device of each kind; the first
    row of prices is 0. Only pairs for which the other prices make a difference are filled. At most `most` operations are
    visited after each fork. Returns the number of pairs.
    """
    kinds, count = len(cost), 0
    row, found, owner = np.full(len(order), -1, np.int64), np.empty(most, np.int64), np.full(len(order), -1, np.int64)
    t, w = np.empty((most, 1 + kinds, 2 * LABELS + 2)), np.empty((most, 1 + kinds, 2 * LABELS + 2))
    n, temp = np.zeros((most, 1 + kinds), np.int64), np.empty((6, 2 * LABELS + 2))
    start, plain = np.empty((kinds, most, 1 + kinds)), np.empty((kinds, most, 1 + kinds))
    late = np.zeros(len(order))
    for f in order:
        if not fork[f]:
            continue
        length = _next_dependants(f, order, position, ptr, other, kernel, row, found)
        for kind in range(kinds):
            for i in range(length):
                for place in range(1 + kinds):
                    start[kind, i, place] = plain[kind, i, place] = 0.0 if may[kind, f, 0] else INF
            for r in range(prices.shape[1] if may[kind, f, 0] else 0):
                _starts_after_fork(
                    f, found, length, row, ptr, other, cost[kind], seconds[kind], may[kind], prices[kind, r], cluster, owner,
                    late, t, w, n, temp, plain[kind] if r == 0 else start[kind],
                )  # fmt: skip
        for i in range(length):
            if count == len(fork_of):
                break
            more = False
            for kind in range(kinds):
                for place in range(1 + kinds):
                    more |= start[kind, i, place] > plain[kind, i, place] * (1 + 1e-9)
                    after[count, kind, place] = start[kind, i, place]
            fork_of[count], join_of[count] = f, found[i]
            count += more
        for i in range(length):
            row[found[i]] = -1
    return count


@njit(cache=True)
def raise_by_trees(
    order: Any, ptr: Any, other: Any, owner: Any, cost: Any, seconds: Any, may: Any, prices: Any, cluster: Any,
    epochs: Any, pair_ptr: Any, pair_fork: Any, pair_after: Any, head: Any,
) -> None:  # fmt: skip
    """Raise `head` [n, K] by pairs (`pair_after` [pairs, K, K], rows by second operation), and by trees since `epochs` [r]."""
    kinds, times, size = len(cost), len(epochs), len(order)
    shape = (kinds, times, size, 1 + kinds)
    t, w, n = np.empty((*shape, LABELS)), np.empty((*shape, LABELS)), np.zeros(shape, np.int64)
    temp, row = np.empty((8, 2 * LABELS + 2)), np.arange(size)
    late = np.empty(size)
    for v in range(size):
        late[v] = head[v].min()
    for v in order:
        for a in range(kinds):
            for i in range(pair_ptr[v], pair_ptr[v + 1]):
                f, least = pair_fork[i], INF
                for b in range(kinds):
                    least = min(least, head[f, b] + seconds[b, f, 0] + pair_after[i, b, a])
                head[v, a] = max(head[v, a], least)
        for step in range(2):  # first the heads, on D; with them, the labels
            for a in range(kinds):
                for r in range(times):
                    for place in range(1 + kinds if step else 1):
                        if not may[a, v, place]:
                            continue
                        inputs = _input_labels(
                            v, place, epochs[r], -1, False, row, ptr, other, cost[a], cluster, owner, late, prices[a, r],
                            t[a, r], w[a, r], n[a, r], temp,
                        )  # fmt: skip
                        own = prices[a, r, 0] * seconds[a, v, 0] if place == 0 and late[v] >= epochs[r] else 0.0
                        least = head[v, a if place == 0 else place - 1] if step else 0.0
                        start, length = _own_labels(
                            temp[6], temp[7], temp, inputs, least, epochs[r], seconds[a, v, place], own
                        )
                        if step == 0:
                            head[v, a] = max(head[v, a], start)
                            continue
                        n[a, r, v, place] = length
                        _copy_labels(temp[6], temp[7], length, t[a, r, v, place], w[a, r, v, place])
