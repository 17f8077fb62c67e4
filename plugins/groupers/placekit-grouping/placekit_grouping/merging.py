"""Small groups are merged with their neighbours."""

from __future__ import annotations

import heapq

from placekit_grouping.contraction import Contraction


def merge_small(groups: Contraction, max_groups: int | None, min_share: float) -> None:
    """While there are more than `max_groups`, or the cheapest costs less than `min_share` of the whole, merge it.

    It joins the neighbour with which it exchanges most bytes (in both directions, over all phases), among those that are
    safe and may run on the same device types. Without such a neighbour, it joins the cheaper of the two groups of these types
    next to it in the order, if that is safe; else it waits until a merge changes what is safe for it.
    """
    least = min_share * groups.total
    heap = [(groups.cost[x], x) for x in groups.groups()]
    heapq.heapify(heap)
    stuck: set[int] = set()
    while heap and (heap[0][0] < least or groups.left > (max_groups or groups.left)):
        cost, x = heapq.heappop(heap)
        if groups.into[x] != x or cost != groups.cost[x] or x in stuck:
            continue
        places = groups.safe(x) or groups.beside(x)
        if not places:
            stuck.add(x)
            continue
        y = min(places, key=lambda y: (-groups.bytes[x].get(y, 0), groups.cost[y], y))
        moved = x if places[y] == groups.at[y] else y
        # for the other groups, merging with the groups next to them is as safe as before
        freed = (groups.after[moved] & stuck) | (groups.before[moved] & stuck)
        kept = groups.merge(x, y, places[y])
        stuck -= freed | {x, y}
        for z in (freed - {x, y}) | {kept}:
            heapq.heappush(heap, (groups.cost[z], z))
