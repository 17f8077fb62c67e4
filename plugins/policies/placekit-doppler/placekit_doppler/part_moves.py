"""Changes of a part of a placement, compiled: the groups that change together, PLC's features, and the move itself."""
# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

from typing import Any

import numpy as np
from placekit_scheduling.jit import njit
from placekit_scheduling.list_scheduling.placement_levels import LEAST_FACTOR, MOST_FACTOR, set_levels

from placekit_doppler.parts import BINS

SINGLE, PIECE, CHAIN, ALIKE, SWAP, EXCHANGE, TRANSFER, ORDER, LEVEL = range(9)
KINDS = ("single", "piece", "chain", "alike", "swap", "exchange", "transfer", "order", "level")
"""Kinds of change: one group; a connected piece on one device; a group with the producers that only it reads; groups of the
same type and seconds on one device (repeated blocks); two of these exchanged; two devices exchanged for an interval of
b-levels; sender or readers of a transfer on the critical path to the other's device; another order; every group's priority is
the b-level that it has on the present devices, with transfers that take `LEAST_FACTOR` to `MOST_FACTOR` times as long."""
NUMBERS = 8  # random numbers of a change
SHIFTED = 0.3  # share of changes of the order that shift a priority by chance


@njit(cache=True)
def grow(flow: Any, device: Any, kind: int, seed: int, size: int, random: Any, part: Any, inside: Any) -> int:
    """Fill `part` with the groups of the part that begins at group `seed`; returns how many. `inside` [g] is all False."""
    part[0] = seed
    count = 1
    if kind == ALIKE:
        row = flow.alike_of[seed]
        a, b = flow.alike_ptr[row], flow.alike_ptr[row + 1]
        first = int(random[0] * (b - a))
        for i in range(b - a):
            x = flow.alike[a + (first + i) % (b - a)]
            if count < size and x != seed and device[x] == device[seed]:
                part[count] = x
                count += 1
        return count
    if kind in (SINGLE, SWAP, TRANSFER, ORDER, LEVEL):
        return count
    if kind == EXCHANGE:
        m = len(flow.urgent)
        length = int(2.0 ** (random[0] * np.log2(m)))
        first = max(min(flow.rank[seed] - int(random[1] * length), m - length), 0)
        for i in range(first, first + length):
            x = flow.urgent[i]
            if x != seed and device[x] == device[seed]:
                part[count] = x
                count += 1
        return count
    inside[seed] = True
    at = 0
    while at < count and count < size:
        g = part[at]
        lo, many = flow.near_ptr[g], flow.near_ptr[g + 1] - flow.near_ptr[g]
        turn = int(random[at % len(random)] * many)
        for i in range(many):
            x = flow.near[lo + (turn + i) % many]
            if count >= size or inside[x] or flow.source[x]:
                continue
            if (device[x] == device[seed]) if kind == PIECE else (flow.only[x] >= 0 and inside[flow.only[x]]):
                inside[x] = True
                part[count] = x
                count += 1
        at += 1
    for i in range(count):
        inside[part[i]] = False
    return count


@njit(cache=True)
def compare(flow: Any, v: Any, device: Any, part: Any, count: int, inside: Any, features: Any, may: Any) -> None:
    """Fill PLC's features [D, DEVICE_FEATURES] of the part, and where it may go: all but its seed's device."""
    devices, here = len(v.load), device[part[0]]
    features[:], may[:] = 0.0, True
    may[here] = False
    load, whole, own, a, b = max(np.mean(v.load), 1e-300), 1e-300, 1e-300, 1.0, 0.0
    for i in range(count):
        inside[part[i]] = True
        a, b = min(a, v.start[part[i]]), max(b, v.end[part[i]])
        own += flow.seconds[part[i], here]
    for i in range(count):
        g = part[i]
        for d in range(devices):
            may[d] = may[d] and flow.allowed[g, d]
            features[d, 0] += flow.seconds[g, d] - flow.seconds[g, here]
            features[d, 2] = max(features[d, 2], v.spared[g, d])
        for e in range(flow.near_ptr[g], flow.near_ptr[g + 1]):
            x = flow.near[e]
            if inside[x] or (flow.source[x] and flow.only[x] >= 0):
                continue
            whole += flow.near_s[e]
            features[device[x], 1] += flow.near_s[e]
            features[device[x], 3] = max(features[device[x], 3], v.critical[x])
            features[device[x], 7] = 1.0
    at = features[here, 1]
    lo, hi = int(a * (BINS - 1)), min(int(b * (BINS - 1)) + 2, BINS)
    for d in range(devices):
        features[d, 0] = min(max(features[d, 0] / own, -1.0), 1.0)
        features[d, 1] = (features[d, 1] - at) / whole
        features[d, 4] = v.load[d] / load - 1.0
        features[d, 5] = (v.busy[d, hi] - v.busy[d, lo]) * BINS / (hi - lo)
        features[d, 6] = v.used[d] / flow.memory[d]
    for i in range(count):
        inside[part[i]] = False


@njit(cache=True)
def _follow(flow: Any, device: Any, g: int, before: int) -> None:
    """Parameters and inputs that nothing reads any more on their device go with the group that was moved from there."""
    for e in range(flow.near_ptr[g], flow.near_ptr[g + 1]):
        x = flow.near[e]
        if not flow.source[x] or device[x] != before or not flow.allowed[x, device[g]]:
            continue
        needed = False
        for f in range(flow.near_ptr[x], flow.near_ptr[x + 1]):
            needed = needed or device[flow.near[f]] == before
        if not needed:
            device[x] = device[g]


@njit(cache=True)
def move(flow: Any, device: Any, part: Any, count: int, to: int, swap: int) -> None:
    """Place the part on device `to`; with a group `swap` >= 0, that group goes where the seed was."""
    here = device[part[0]]
    for i in range(count):
        before = device[part[i]]
        device[part[i]] = to
        _follow(flow, device, part[i], before)
    if swap >= 0:
        device[swap] = here
        _follow(flow, device, swap, to)


@njit(cache=True)
def _spare(flow: Any, v: Any, device: Any, part: Any, random: Any) -> Any:
    """Fill `part` with the sender or the readers of a transfer of the critical path; returns how many, and where they go."""
    i = int(random[0] * v.counts[1])
    tensor, to = v.sent[i, 0], v.sent[i, 1]
    sender, count = flow.group_of[flow.producer[tensor]], 0
    if random[1] < 0.5 and not flow.source[sender]:
        part[0] = sender
        return 1, to
    for k in range(flow.consumer_ptr[tensor], flow.consumer_ptr[tensor + 1]):
        x = flow.group_of[flow.consumer_op[k]]
        known = False
        for j in range(count):
            known = known or part[j] == x
        if device[x] == to and not known:
            part[count] = x
            count += 1
    return count, device[sender]


@njit(cache=True)
def _back(flow: Any, device: Any, part: Any, to: int, random: Any) -> None:
    """The other half of an exchange: what is on device `to` in the same interval goes to the seed's device."""
    here, seed, m = device[part[0]], part[0], len(flow.urgent)
    length = int(2.0 ** (random[0] * np.log2(m)))
    first = max(min(flow.rank[seed] - int(random[1] * length), m - length), 0)
    for i in range(first, first + length):
        x = flow.urgent[i]
        if device[x] == to and flow.allowed[x, here]:
            device[x] = here
            _follow(flow, device, x, to)


@njit(cache=True)
def begin(
    flow: Any, v: Any, device: Any, kind: Any, seed: Any, random: Any, part: Any, count: Any, features: Any, may: Any
) -> None:  # fmt: skip
    """For b changes of `kind` [b] at groups `seed` [b]: fill `part` [b, g], `count` [b], and PLC's view of each.

    The device of a spared transfer is given: it is the only one that the part may go to.
    """
    inside = np.zeros(len(device), np.bool_)
    for i in range(len(kind)):
        size = int(2.0 ** (1.0 + 4.0 * random[i, 0]))
        to = -1
        if kind[i] == TRANSFER and v.counts[1] > 0:
            count[i], to = _spare(flow, v, device, part[i], random[i])
            to = to if count[i] > 0 else -1
        if to < 0:
            count[i] = grow(flow, device, kind[i], seed[i], size, random[i, 1:5], part[i], inside)
        compare(flow, v, device, part[i], count[i], inside, features[i], may[i])
        for d in range(may.shape[1]):
            may[i, d] = may[i, d] and (to < 0 or d == to)


@njit(cache=True)
def _reorder(priority: Any, v: Any, seed: int, random: Any) -> bool:
    """Let a critical group go before the one that held its device, or shift the seed; returns whether the seed mattered."""
    if v.counts[0] > 0 and random[5] >= SHIFTED:
        i = int(random[6] * v.counts[0])
        first, other = v.waits[i, 0], v.waits[i, 1]
        low, high = priority[first], priority[other]
        priority[first] = max(low, high)
        priority[other] = low if random[7] < 0.5 else high - abs(high) * 1e-4
        return False
    most = np.max(np.abs(priority))
    step = most * 2.0 ** (-6.0 * random[6])
    priority[seed] = min(max(priority[seed] + (step if random[7] < 0.5 else -step), -most), most)
    return True


@njit(cache=True)
def finish(
    flow: Any, v: Any, kind: Any, part: Any, count: Any, to: Any, may: Any, random: Any, device: Any,
    priority: Any, decided: Any,
) -> None:  # fmt: skip
    """Make the b changes in `device` and `priority` [b, g]; fill `decided` [b, 3]: kind, seed and device had a part in it."""
    for i in range(len(kind)):
        decided[i, 0], decided[i, 1], decided[i, 2] = True, True, False
        seed = part[i, 0]
        if kind[i] == ORDER:
            decided[i, 1] = _reorder(priority[i], v, seed, random[i])
        elif kind[i] == LEVEL:
            decided[i, 1] = False
            factor = LEAST_FACTOR * (MOST_FACTOR / LEAST_FACTOR) ** random[i, 5]
            set_levels(flow.levels, device[i], factor, np.empty(len(flow.group_of)), priority[i])
        elif may[i].any():
            decided[i, 1] = kind[i] != TRANSFER or v.counts[1] == 0
            decided[i, 2] = may[i].sum() > 1
            swap = -1
            if kind[i] == EXCHANGE:
                _back(flow, device[i], part[i], to[i], random[i, 1:5])
            if kind[i] == SWAP:
                row = flow.alike_of[seed]
                first, end = flow.alike_ptr[row], flow.alike_ptr[row + 1]
                turn = int(random[i, 5] * (end - first))
                for k in range(end - first):
                    x = flow.alike[first + (turn + k) % (end - first)]
                    if device[i, x] == to[i] and flow.allowed[x, device[i, seed]]:
                        swap = x
                        break
            move(flow, device[i], part[i], count[i], to[i], swap)
