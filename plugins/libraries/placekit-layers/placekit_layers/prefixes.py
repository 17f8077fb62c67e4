"""Prefixes of a network: sets of blocks that can run before all others. The blocks between two prefixes can be a stage."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placekit_layers.units import Ints


def ideals(count: int, source: Ints, target: Ints, limit: int) -> list[int] | None:
    """The prefixes of `count` blocks with data flow from `source` to `target`, as bits; None if there are more than `limit`."""
    needs, readers = [0] * count, [set[int]() for _ in range(count)]
    for a, b in zip(source.tolist(), target.tolist(), strict=True):
        needs[b] |= 1 << a
        readers[a].add(b)
    ready = {0: sum(1 << block for block in range(count) if not needs[block])}  # what may follow each prefix
    found = [0]
    for ideal in found:  # grows while the loop runs
        rest = ready[ideal]
        while rest and len(found) <= limit:
            block = rest.bit_length() - 1
            rest ^= 1 << block
            larger = ideal | 1 << block
            if larger not in ready:
                opened = sum(1 << x for x in readers[block] if needs[x] & larger == needs[x])
                ready[larger] = ready[ideal] ^ 1 << block | opened
                found.append(larger)
    return found if len(found) <= limit else None


@dataclass(frozen=True, eq=False)
class Prefixes:
    """All prefixes (the ideals of the blocks' partial order); if these are too many, those along one order of the blocks.

    Attributes:
        mask: [i, b] whether each prefix holds each block; the first is empty, the last holds all.
        ptr, after: larger prefixes of each prefix, in compressed rows. A row is a segment: the blocks between the two.
        exact: whether these are all prefixes.
    """

    mask: NDArray[np.bool_]
    ptr: Ints
    after: Ints
    exact: bool

    @classmethod
    def of(cls, count: int, source: Ints, target: Ints, limit: int) -> Prefixes:
        """The prefixes of `count` blocks with data flow from `source` to `target`; over `limit`, those of one order."""
        every = ideals(count, source, target, limit)
        exact = every is not None
        some = sorted(every or [(1 << i) - 1 for i in range(count + 1)], key=lambda x: (x.bit_count(), x))
        rows = [[j for j in range(i + 1, len(some)) if x & some[j] == x] for i, x in enumerate(some)]
        mask = np.asarray([[x >> b & 1 for b in range(count)] for x in some], np.bool_).reshape(len(some), count)
        ptr = np.cumsum([0, *map(len, rows)]).astype(np.int64)
        return cls(mask, ptr, np.asarray([j for row in rows for j in row], np.int64), exact)
