"""Prefixes of a network: sets of blocks that can run before all others. The blocks between two prefixes can be a stage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from placekit_layers.units import Ints


class Lattice(NamedTuple):
    """All prefixes, smaller ones first.

    Attributes:
        ideals: the blocks of each prefix, as bits.
        ptr, block, after: arcs from each prefix to the prefixes with one block more, in compressed rows: this block, and the
            larger prefix.
    """

    ideals: list[int]
    ptr: list[int]
    block: list[int]
    after: list[int]


def lattice(count: int, source: Ints, target: Ints, limit: int) -> Lattice | None:
    """The prefixes of `count` blocks with data flow from `source` to `target`; None if there are more than `limit`."""
    needs, readers = [0] * count, [list[int]() for _ in range(count)]
    for a, b in zip(source.tolist(), target.tolist(), strict=True):
        needs[b] |= 1 << a
        readers[a].append(b)
    found = Lattice([0], [0], [], [])
    number, ready = {0: 0}, [sum(1 << block for block in range(count) if not needs[block])]
    for i, ideal in enumerate(found.ideals):  # grows while the loop runs
        rest = ready[i]
        while rest:
            block = rest.bit_length() - 1
            rest ^= 1 << block
            larger = ideal | 1 << block
            if larger not in number:
                number[larger] = len(number)
                found.ideals.append(larger)
                opened = sum(1 << x for x in set(readers[block]) if needs[x] & larger == needs[x])
                ready.append(ready[i] ^ 1 << block | opened)
            found.block.append(block)
            found.after.append(number[larger])
        found.ptr.append(len(found.block))
        if len(number) > limit:
            return None
    return found


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
        found = lattice(count, source, target, limit)
        exact = found is not None
        ideals = [(1 << i) - 1 for i in range(count + 1)] if found is None else found.ideals
        ideals = sorted(ideals, key=lambda x: (x.bit_count(), x))
        rows = [[j for j in range(i + 1, len(ideals)) if x & ideals[j] == x] for i, x in enumerate(ideals)]
        mask = np.asarray([[x >> b & 1 for b in range(count)] for x in ideals], np.bool_).reshape(len(ideals), count)
        ptr = np.cumsum([0, *map(len, rows)]).astype(np.int64)
        return cls(mask, ptr, np.asarray([j for row in rows for j in row], np.int64), exact)
