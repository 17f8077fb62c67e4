"""Compiled loops of policy `chain`: tables of lower bounds for the rest of a split, and the search that uses them.

`loops` compiles them. `chain_arrays` defines *sets* of devices.
"""
# mypy: ignore-errors
# numba checks the types here; the signature of `explore` is explicit.

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import types
from placekit_scheduling import kernel_signature
from placekit_scheduling.fields import numba_type
from placekit_scheduling.jit import SMALL, compiled_for, counted_inner, interpreted, njit

from placekit_pipeline.chain_arrays import BACK, BUSIEST, CLOSE, FLOW, MAX, SUM, TOKEN, WAIT, Found, Table

_table, _floats4 = numba_type(Table), types.float64[:, :, :, ::1]


@njit(inline="always")
def _fits(t, s, k, q):
    """Whether segment s fits on a device of class k as the q-th stage from the end."""
    return t.fixed_bytes[s] + t.flight[q] * t.saved_bytes[s] <= t.room[k]


@njit(inline="always")
def _wait(t, s, k, q):
    """Least seconds by which a step exceeds the sum of all stages because of segment s, the q-th stage from the end.

    Before its first backward task, the stage runs at most min(M, q) forward tasks (1F1B). All but the first of them run while
    later stages work on the first micro-batch; for the rest of that time, the stage idles. Earlier stages work before it
    starts and after it ends. So a step takes at least the sum of all stages, plus M - 1 times this stage, minus those
    forward tasks. This holds if each stage sends only to the next.
    """
    if t.ahead[s, k] < 0.0:
        return -np.inf
    m = t.numbers[1]
    return m * t.seconds[s, k] - t.passing[s, k] - (min(m, q) - 1) * t.ahead[s, k]


@njit(cache=True, nogil=True)
def completions(t):
    """[4, u, i, A] tables `SUM` to `WAIT`: bounds of all splits of the blocks after prefix i over all devices of set u.

    A is the class of the device before, whose messages to the first segment count.
    """
    sets, places, ways = len(t.size), len(t.ptr) - 1, t.hop_s.shape[1]
    m = t.numbers[1]
    best = np.full((4, sets, places, ways), np.inf)
    for a in range(ways):
        for kind in range(4):
            best[kind, 0, places - 1, a] = -np.inf if kind == WAIT else 0.0
    for u in range(1, sets):  # removing a device from a set gives a lower number, whose entries are known
        q = t.size[u]
        for k in range(len(t.radix)):
            if t.of_set[u, k] == 0:
                continue
            rest = u - t.radix[k]
            b = k if ways > 1 else 0
            for i in range(places - 1):
                total, largest, back, wait = np.inf, np.inf, np.inf, np.inf
                for s in range(t.ptr[i], t.ptr[i + 1]):
                    j = t.after[s]
                    if best[SUM, rest, j, b] == np.inf or t.seconds[s, k] == np.inf or not _fits(t, s, k, q):
                        continue
                    seconds = t.seconds[s, k]
                    total = min(total, t.passing[s, k] + best[SUM, rest, j, b])
                    largest = min(largest, max(seconds, best[MAX, rest, j, b]))
                    back = min(back, max(m * seconds, t.passing[s, k] + best[BACK, rest, j, b]))
                    wait = min(wait, max(_wait(t, s, k, q), best[WAIT, rest, j, b]))
                if total == np.inf:
                    continue
                for a in range(ways):
                    hop = t.hop_s[i, a, b]
                    best[SUM, u, i, a] = min(best[SUM, u, i, a], hop + total)
                    best[MAX, u, i, a] = min(best[MAX, u, i, a], max(t.queue_s[i, a, b], largest))
                    best[BACK, u, i, a] = min(best[BACK, u, i, a], hop + back)
                    best[WAIT, u, i, a] = min(best[WAIT, u, i, a], wait)
    return best


@njit(cache=True, nogil=True)
def with_spare(t, best):
    """The tables for splits that leave one device of the set unused: the least over all devices to leave out."""
    found = np.full(best.shape, np.inf)
    for u in range(1, len(t.size)):
        for k in range(len(t.radix)):
            if t.of_set[u, k] > 0:
                for x in range(4):
                    for i in range(best.shape[2]):
                        for a in range(best.shape[3]):
                            found[x, u, i, a] = min(found[x, u, i, a], best[x, u - t.radix[k], i, a])
    return found


@counted_inner
def _bound(t, best, u, i, a, total, largest, back, wait, first):
    """A lower bound of all splits that continue a partial split with these sums from prefix i on the devices of set u."""
    kind, m = t.numbers[0], t.numbers[1]
    if kind == TOKEN:
        return total + best[SUM, u, i, a]
    if kind == BUSIEST:
        return max(largest, best[MAX, u, i, a])
    if kind == FLOW:
        return total + best[SUM, u, i, a] + (m - 1) * max(largest, best[MAX, u, i, a]) + first
    stages = total + best[SUM, u, i, a]
    return max(max(back, total + best[BACK, u, i, a]), stages + max(wait, best[WAIT, u, i, a])) + first


@counted_inner
def _evaluate_split(evaluate, t, ints, floats, work_ints, work_floats, peak, memory_bytes, path, depth, found, device):
    """Evaluate the split into the segments of `path`, and keep it if it fits and is the best."""
    left = t.many.copy()
    block = np.zeros(t.mask.shape[1], np.int16)
    before = 0
    for x in range(depth):
        s, k = path[x, 0], path[x, 1]
        d = t.device[t.class_ptr[k] + t.many[k] - left[k]]
        left[k] -= 1
        for b in range(t.mask.shape[1]):
            if t.mask[t.after[s], b] and not t.mask[before, b]:
                block[b] = d
        before = t.after[s]
    for group in range(len(device)):
        device[group] = block[t.of_group[group]]
    value = evaluate(device, np.empty(0, np.float32), ints, floats, work_ints, work_floats, peak)
    found.counts[0] += 1
    fits = value < math.inf
    for d in range(len(peak)):
        fits = fits and peak[d] <= memory_bytes[d]
    found.total[0] += value if fits else found.failing[0]
    better = fits and value < found.value[0]
    if better:
        found.value[0] = value
    none = found.counts[0] == 1 and found.value[0] == math.inf
    if better or none:  # the first has the least bound: kept in case none fits
        for group in range(len(device)):
            found.device[group] = device[group]


_explore = types.void(
    types.FunctionType(kernel_signature()), types.int32[::1], types.float64[::1], types.int64, types.int64,
    types.float64[::1], _table, _floats4, numba_type(Found), types.int64, types.int64,
)  # fmt: skip


@njit(cache=True, nogil=True)
def explore(evaluate, ints, floats, scratch_ints, scratch_floats, memory_bytes, t, best, found, evaluations, visits):
    """Search all splits into `t.numbers[2]` stages, depth first, the lowest bound first.

    Skips splits whose bound is not below the best split found. Sets `found.counts[2]` if it ends early, after `evaluations`
    or `visits`.
    """
    stages, end, last = t.numbers[2], len(t.ptr) - 2, len(t.size) - 1
    classes, ways = len(t.radix), t.hop_s.shape[1]
    work_ints, work_floats = np.zeros(scratch_ints, np.int32), np.zeros(scratch_floats)
    peak, device = np.zeros(len(memory_bytes)), np.zeros(len(found.device), np.int16)
    widest = 0
    for i in range(end + 1 if end > 0 else 0):
        widest = max(widest, (t.ptr[i + 1] - t.ptr[i]) * classes)
    bound = np.empty((stages, widest))
    segment, of_class = np.empty((stages, widest), np.int64), np.empty((stages, widest), np.int64)
    order = np.empty((stages, widest), np.int64)
    count, turn = np.zeros(stages, np.int64), np.zeros(stages, np.int64)
    path = np.zeros((stages, 2), np.int64)
    # of the partial split before each stage: prefix, devices left, class of its last segment; its sums
    place, left, way = np.zeros(stages + 1, np.int64), np.full(stages + 1, last), np.zeros(stages + 1, np.int64)
    total, largest, back = np.zeros(stages + 1), np.zeros(stages + 1), np.zeros(stages + 1)
    first, wait = np.zeros(stages + 1), np.full(stages + 1, -np.inf)
    depth, fresh = 0, True
    m = t.numbers[1]
    while depth >= 0:
        if fresh:
            n, q = 0, stages - depth
            i, u = place[depth], left[depth]
            for s in range(t.ptr[i], t.ptr[i + 1]):
                j = t.after[s]
                if (j == end) != (q == 1):
                    continue
                for k in range(classes):
                    if t.of_set[u, k] == 0 or t.seconds[s, k] == math.inf or not _fits(t, s, k, q):
                        continue
                    a = k if ways > 1 else 0
                    hop, seconds = t.hop_s[i, way[depth], a], t.seconds[s, k]
                    here = total[depth] + hop
                    low = _bound(
                        t,
                        best,
                        u - t.radix[k],
                        j,
                        a,
                        here + t.passing[s, k],
                        max(largest[depth], seconds, hop if t.numbers[0] == BUSIEST else 0.0),
                        max(back[depth], here + m * seconds),
                        max(wait[depth], _wait(t, s, k, q)),
                        first[depth] if depth > 0 else t.update[s, k],
                    )
                    if low < found.value[0] * (1.0 - CLOSE):
                        bound[depth, n], segment[depth, n], of_class[depth, n] = low, s, k
                        n += 1
            count[depth], turn[depth] = n, 0
            for c in range(n):  # sorted by insertion: numpy's sorting takes seconds to compile
                at = c
                while at > 0 and bound[depth, order[depth, at - 1]] > bound[depth, c]:
                    order[depth, at] = order[depth, at - 1]
                    at -= 1
                order[depth, at] = c
            fresh = False
            found.counts[1] += 1
            if found.counts[1] >= visits:
                found.counts[2] = 1
                return
        if turn[depth] == count[depth]:
            depth -= 1
            continue
        c = order[depth, turn[depth]]
        turn[depth] += 1
        if not bound[depth, c] < found.value[0] * (1.0 - CLOSE):
            depth -= 1  # all others have higher bounds
            continue
        s, k = segment[depth, c], of_class[depth, c]
        path[depth, 0], path[depth, 1] = s, k
        if depth + 1 == stages:
            if found.counts[0] >= evaluations:
                found.counts[2] = 1
                return
            _evaluate_split(
                evaluate, t, ints, floats, work_ints, work_floats, peak, memory_bytes, path, stages, found, device
            )
            continue
        a = k if ways > 1 else 0
        hop, seconds = t.hop_s[place[depth], way[depth], a], t.seconds[s, k]
        here = total[depth] + hop
        place[depth + 1], left[depth + 1], way[depth + 1] = t.after[s], left[depth] - t.radix[k], a
        total[depth + 1] = here + t.passing[s, k]
        largest[depth + 1] = max(largest[depth], seconds, hop if t.numbers[0] == BUSIEST else 0.0)
        back[depth + 1] = max(back[depth], here + m * seconds)
        wait[depth + 1] = max(wait[depth], _wait(t, s, k, stages - depth))
        first[depth + 1] = first[depth] if depth > 0 else t.update[s, k]
        depth += 1
        fresh = True


_SIGNATURES = {completions: _floats4(_table), with_spare: _floats4(_table, _floats4), explore: _explore}


def loops(t: Table) -> list[Any]:
    """`completions`, `with_spare` and `explore`, compiled; for a small table, run by Python."""
    if len(t.size) * t.seconds.size <= SMALL:
        return [interpreted(function) for function in _SIGNATURES]
    return [compiled_for(signature, function) for function, signature in _SIGNATURES.items()]
