"""Prefixes of a network: sets of blocks that can run before all others. The blocks between two prefixes can be a stage."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placekit_layers.units import Ints


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
        needs = [0] * count
        for a, b in zip(source.tolist(), target.tolist(), strict=True):
            needs[b] |= 1 << a
        found = {0}
        stack = [0]
        while stack and len(found) <= limit:
            ideal = stack.pop()
            for block in range(count):
                bit = 1 << block
                if not ideal & bit and needs[block] & ideal == needs[block] and ideal | bit not in found:
                    found.add(ideal | bit)
                    stack.append(ideal | bit)
        exact = len(found) <= limit
        ideals = sorted(found, key=lambda x: (x.bit_count(), x)) if exact else [(1 << i) - 1 for i in range(count + 1)]
        rows = [[j for j in range(i + 1, len(ideals)) if x & ideals[j] == x] for i, x in enumerate(ideals)]
        mask = np.asarray([[x >> b & 1 for b in range(count)] for x in ideals], np.bool_).reshape(len(ideals), count)
        ptr = np.cumsum([0, *map(len, rows)]).astype(np.int64)
        return cls(mask, ptr, np.asarray([j for row in rows for j in row], np.int64), exact)
