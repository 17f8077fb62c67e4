"""Compiled loops over segments: what crosses their borders, and what they keep."""
# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

import numpy as np
from placekit_scheduling.jit import njit


@njit(cache=True)
def crossing(inside, of, received, producer, ptr, reader, figure):  # type: ignore[no-untyped-def]
    """[s] sum of the figures of the nets `of` that come into each segment, or go out of it."""
    total = np.zeros(len(inside))
    for s in range(len(inside)):
        for x in range(len(producer)):
            if not of[x] or inside[s, producer[x]] == received:
                continue
            for i in range(ptr[x], ptr[x + 1]):
                if inside[s, reader[i]] == received:
                    total[s] += figure[x]
                    break
    return total


@njit(cache=True)
def held_in(inside, ptr, holder):  # type: ignore[no-untyped-def]
    """[s, y] 1 where a segment holds a store, else 0."""
    held = np.zeros((len(inside), len(ptr) - 1))
    for s in range(len(inside)):
        for y in range(len(ptr) - 1):
            for i in range(ptr[y], ptr[y + 1]):
                if inside[s, holder[i]]:
                    held[s, y] = 1.0
                    break
    return held
