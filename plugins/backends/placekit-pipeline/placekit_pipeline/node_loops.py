"""The compiled loop of `node_splits`: the best split between prefixes, by the largest load."""
# mypy: ignore-errors
# numba checks the types here; the signature is explicit.

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from placekit_scheduling.fields import numba_type
from placekit_scheduling.jit import SMALL, compiled_for, inlined, interpreted, njit

from placekit_pipeline.node_splits import States


@inlined
def _transfers(t, x, inside, made, extra, sign):
    """Add what each class pays for net x to `extra` [K], times `sign`."""
    for k in range(len(extra)):
        if made[x]:
            if inside[x] < t.members[x]:
                extra[k] += sign * t.send_s[x, k]
        elif inside[x] > 0:
            extra[k] += sign * t.receive_s[x, k]


@njit(cache=True, nogil=True)
def best_split(t, limit):
    """[i, u] least largest load of the first prefixes on each set of devices, and the last stage: its begin and its class.

    Tables over prefixes, from the smallest: from each prefix a search of all larger ones visits each once, and adds up what
    the nodes between the two take. It skips loads that are not below `limit`, or the best load so far, and prefixes after
    which the other devices have too little time left.
    """
    prefixes, sets = len(t.ptr) - 1, len(t.spare)
    count, classes = t.seconds.shape
    value = np.full((prefixes, sets), np.inf)
    begin, of_class = np.zeros((prefixes, sets), np.int32), np.zeros((prefixes, sets), np.int16)
    value[0, 0] = 0.0
    rest_s = np.full(prefixes, t.least_s.sum())
    for i in range(prefixes):
        for a in range(t.ptr[i], t.ptr[i + 1]):
            rest_s[t.after[a]] = rest_s[i] - t.least_s[t.node[a]]
    little = 1e-9 * rest_s[0]
    seen, inside, made = np.full(prefixes, -1), np.zeros(len(t.members), np.int64), np.zeros(len(t.members), np.bool_)
    # of the path in the search: prefixes, arcs tried, added nodes, and their sums
    place, turn, added = np.zeros(count + 1, np.int64), np.zeros(count + 1, np.int64), np.zeros(count + 1, np.int64)
    own, extra, held = np.zeros((count + 1, classes)), np.zeros((count + 1, classes)), np.zeros(count + 1)
    open_, some, free, fits = np.zeros(sets, np.int64), 0, np.zeros(classes, np.bool_), np.zeros(classes, np.bool_)
    for i in range(prefixes - 1):
        some, free[:] = 0, False
        for u in range(sets):
            if value[i, u] < limit and not rest_s[i] > t.spare[u] * limit + little:
                open_[some] = u
                some += 1
                free |= t.of_set[u] < t.many
        depth = 0 if some > 0 else -1
        place[0], turn[0] = i, t.ptr[i]
        while depth >= 0:
            if turn[depth] == t.ptr[place[depth] + 1]:
                if depth > 0:
                    v = added[depth]
                    for e in range(t.net_ptr[v], t.net_ptr[v + 1]):
                        inside[t.net[e]] -= 1
                        made[t.net[e]] &= not t.makes[e]
                depth -= 1
                continue
            a = turn[depth]
            turn[depth] += 1
            j, v = t.after[a], t.node[a]
            if seen[j] == i:
                continue
            seen[j] = i
            held[depth + 1] = held[depth] + t.bytes_[v]
            runs = False
            for k in range(classes):
                own[depth + 1, k] = own[depth, k] + t.seconds[v, k]
                fits[k] = free[k] and own[depth + 1, k] < limit and held[depth + 1] <= t.room[k]
                runs = runs or fits[k]
            if not runs:
                continue  # neither do larger ones
            depth += 1
            place[depth], turn[depth], added[depth] = j, t.ptr[j], v
            extra[depth] = extra[depth - 1]
            for e in range(t.net_ptr[v], t.net_ptr[v + 1]):
                x = t.net[e]
                _transfers(t, x, inside, made, extra[depth], -1.0)
                inside[x] += 1
                made[x] |= t.makes[e]
                _transfers(t, x, inside, made, extra[depth], 1.0)
            for k in range(classes):
                load = own[depth, k] + extra[depth, k]
                if not fits[k] or load >= limit:
                    continue
                for c in range(some):
                    u = open_[c]
                    w = u + t.radix[k]
                    if t.of_set[u, k] == t.many[k]:
                        continue
                    largest = max(load, value[i, u])
                    if largest < min(limit, value[j, w]) and not rest_s[j] > t.spare[w] * limit + little:
                        value[j, w], begin[j, w], of_class[j, w] = largest, i, k
                        if j == prefixes - 1:
                            limit = largest
    return value, begin, of_class


_signature = types.Tuple((types.float64[:, ::1], types.int32[:, ::1], types.int16[:, ::1]))(
    numba_type(States), types.float64
)


def loop(states: int) -> Any:
    """`best_split`, compiled; for few states, run by Python."""
    return interpreted(best_split) if states <= SMALL else compiled_for(_signature, best_split)
