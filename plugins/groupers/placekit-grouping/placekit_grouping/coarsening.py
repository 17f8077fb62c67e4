"""Which groups a Contraction merges: three ways to group by the shape of the graph alone, and small groups into neighbours."""

from __future__ import annotations

import heapq
from itertools import pairwise

from placekit_grouping.contraction import Contraction

HEAVIEST = 0.02  # share of the graph that a group may cost which heavy edges make
STALLED = 0.9  # if a level of matching leaves more than this share of the groups, their neighbours are used up


def contract_chains(groups: Contraction) -> None:
    """Merge each group with its successor where neither has another neighbour on that side, in topological order."""
    for x in sorted(groups.groups(), key=lambda x: groups.at[x]):
        before = groups.before[x]
        if len(before) == 1:
            (u,) = before
            if len(groups.after[u]) == 1 and groups.types[u] == groups.types[x]:
                groups.merge(u, x, groups.at[u])


def contract_heavy_edges(groups: Contraction, max_groups: int | None) -> None:
    """Merge the two groups that exchange most bytes, again and again, among pairs that are safe.

    Bytes are summed as groups grow. No merge makes a group that costs more than `HEAVIEST` of the whole. Pairs that were
    not safe have another turn, heaviest first, when no other pair is left.
    """
    limit = HEAVIEST * groups.total

    def edge(x: int, y: int) -> tuple[int, int, int]:
        return -groups.bytes[x][y], min(x, y), max(x, y)

    blocked = {edge(x, y) for x in groups.groups() for y in groups.bytes[x]}
    before = groups.left + 1
    while groups.left < before:
        before, heap, blocked = groups.left, sorted(blocked), set()
        while heap and groups.left > (max_groups or 1):
            size, x, y = heapq.heappop(heap)
            if groups.bytes[x].get(y) != -size or groups.cost[x] + groups.cost[y] > limit:
                continue
            place = groups.place(x, y)
            if place is None:
                blocked.add((size, x, y))
                continue
            changed = list(groups.bytes[x] if len(groups.bytes[x]) <= len(groups.bytes[y]) else groups.bytes[y])
            kept = groups.merge(x, y, place)
            for z in changed:
                if z != kept and z in groups.bytes[kept]:
                    heapq.heappush(heap, edge(kept, z))


def match_by_levels(groups: Contraction, k: int) -> None:
    """Halve the number of groups level by level, until there are k: heavy-edge matching.

    On a level every group is merged once at most. The lightest groups choose first, each the safe neighbour with which it
    exchanges most bytes. No group grows over 1.5 times the average of k groups. Where neighbours are used up (a hub with
    many leaves takes one per level), light groups are matched with the next one of their device types in the order, related
    or not, if that is safe. If more than k groups are left then, they are merged in the same way under a limit of 2 averages.
    That is enough where all types are equal: of m > k groups in an order, some two that follow each other cost
    2 total / (m - 1) <= 2 total / k at most.
    """
    for limit in (1.5 * groups.total / k, 2 * groups.total / k):
        before = groups.left + 1
        while k < groups.left < before:
            before = groups.left
            _match_neighbours(groups, k, limit)
            if groups.left > STALLED * before:
                _match_in_order(groups, k, limit)


def _match_neighbours(groups: Contraction, k: int, limit: float) -> None:
    matched: set[int] = set()
    for x in sorted(groups.groups(), key=lambda x: (groups.cost[x], groups.at[x])):
        if groups.left == k:
            return
        if x in matched or groups.into[x] != x:
            continue
        places = {
            y: place
            for y, place in groups.safe(x).items()
            if y not in matched and groups.cost[x] + groups.cost[y] <= limit
        }
        if places:
            y = min(places, key=lambda y: (-groups.bytes[x].get(y, 0), groups.cost[y], y))
            matched.add(groups.merge(x, y, places[y]))


def _match_in_order(groups: Contraction, k: int, limit: float) -> None:
    order = sorted(groups.groups(), key=lambda x: (groups.types[x], groups.at[x]))
    matched: set[int] = set()
    for x, y in sorted(pairwise(order), key=lambda pair: groups.cost[pair[0]] + groups.cost[pair[1]]):
        if groups.left == k or groups.cost[x] + groups.cost[y] > limit:
            return
        if x in matched or y in matched:
            continue
        place = groups.place(x, y)
        if place is not None:
            groups.merge(x, y, place)
            matched |= {x, y}


def merge_small(groups: Contraction, max_groups: int | None) -> None:
    """While there are more than `max_groups`, merge the cheapest.

    It joins the neighbour with which it exchanges most bytes (in both directions, over all phases), among those that are
    safe and may run on the same device types. Without such a neighbour, it joins the cheaper of the two groups of these types
    next to it in the order, if that is safe; else it waits until a merge changes what is safe for it.
    """
    most = max_groups or groups.left
    heap = [(groups.cost[x], x) for x in groups.groups()]
    heapq.heapify(heap)
    stuck: set[int] = set()
    while heap and groups.left > most:
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
