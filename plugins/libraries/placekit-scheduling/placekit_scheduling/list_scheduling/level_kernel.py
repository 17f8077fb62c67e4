"""The compiled loops of levels.py. Importing this imports numba."""
# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

from typing import Any

from placekit_scheduling.jit import compiled


@compiled
def to_exit(order: Any, out: Any, first: Any, reader: Any, own: Any, sent: Any, level: Any) -> None:
    """Fill `level` [n] with the longest path from each operation to an exit; `order` is topological."""
    for i in range(len(order) - 1, -1, -1):
        v = order[i]
        longest = 0.0
        for t in range(out[v], out[v + 1]):
            for k in range(first[t], first[t + 1]):
                longest = max(longest, sent[t] + level[reader[k]])
        level[v] = own[v] + longest


@compiled
def from_entry(order: Any, first: Any, read: Any, producer: Any, own: Any, sent: Any, level: Any) -> None:
    """Fill `level` [n], first zeros, with the longest path to the start of each operation; `order` is topological."""
    for v in order:
        longest = 0.0
        for k in range(first[v], first[v + 1]):
            t = read[k]
            u = producer[t]
            longest = max(longest, level[u] + own[u] + sent[t])
        level[v] = longest
