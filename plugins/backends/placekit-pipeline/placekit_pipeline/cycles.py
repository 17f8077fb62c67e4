"""Finds a cycle of a small graph, for messages about parts of a placement that wait for each other."""

from __future__ import annotations


def cycle(edges: set[tuple[int, int]]) -> list[int]:
    """A cycle of a graph, its first node repeated at the end; empty if there is none."""
    after: dict[int, list[int]] = {}
    for a, b in sorted(edges):
        after.setdefault(a, []).append(b)
    done: set[int] = set()
    for root in after:
        path, stack = [root], [iter(after[root])]
        while stack and root not in done:
            nxt = next(stack[-1], None)
            if nxt is None:
                done.add(path.pop())
                stack.pop()
            elif nxt in path:
                return [*path[path.index(nxt) :], nxt]
            elif nxt not in done:
                path.append(nxt)
                stack.append(iter(after.get(nxt, [])))
    return []
