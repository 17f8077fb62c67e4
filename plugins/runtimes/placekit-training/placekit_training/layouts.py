"""Which devices form the copies of a model, and which stages they run: rows for `backend.replicas`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

Layout = tuple[tuple[int, ...], ...]
FEW = 4
"""Up to this many devices, copies of unlike lengths are tried, too."""


def layouts(devices: Sequence[int], kind: Sequence[str]) -> list[Layout]:
    """Regular ways to form two or more copies, at least one with several stages; the first row is the longest.

    Args:
        devices: the devices to use, the fastest first.
        kind: [D] the kind of each device: of layouts that differ in devices of one kind only, the first is kept.
    """
    found: dict[tuple[tuple[str, ...], ...], Layout] = {}
    for layout in [*_equal(devices), *(_unlike(devices) if len(devices) <= FEW else ())]:
        rows = tuple(tuple(kind[d] for d in row) for row in layout)
        shape = tuple(tuple(row.index(d) for d in row) for row in layout)  # devices that run several stages
        found.setdefault((*rows, *(tuple(map(str, s)) for s in shape)), layout)
    return list(found.values())


def _equal(devices: Sequence[int]) -> Iterator[Layout]:
    """Copies with equally many stages: neighbours in the order of speed are one copy, or run the same stage."""
    for stages in range(2, len(devices) // 2 + 1):
        copies = len(devices) // stages
        used = devices[: copies * stages]
        yield tuple(tuple(used[r * stages : (r + 1) * stages]) for r in range(copies))
        yield tuple(tuple(used[s * copies + r] for s in range(stages)) for r in range(copies))


def _unlike(devices: Sequence[int]) -> Iterator[Layout]:
    """Copies of unlike lengths: the devices of the shorter ones run several of the stages of the longest."""
    for length in range(2, len(devices)):
        for leader in combinations(devices, length):
            others = [d for d in devices if d not in leader]
            for rows in _rows(others, length):
                if any(len(set(row)) < length for row in rows):
                    yield (leader, *rows)


def _rows(devices: Sequence[int], length: int) -> Iterator[Layout]:
    """Ways to form rows of `length` stages from all devices."""
    if not devices:
        yield ()
    for size in range(1, min(length, len(devices)) + 1):
        for own in combinations(devices[1:], size - 1):
            members = (devices[0], *own)
            for cuts in combinations(range(1, length), size - 1):
                row = tuple(members[sum(cut <= s for cut in cuts)] for s in range(length))
                for rest in _rows([d for d in devices if d not in members], length):
                    yield (row, *rest)
