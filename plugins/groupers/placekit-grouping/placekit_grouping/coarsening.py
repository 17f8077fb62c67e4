"""Merges groups: along chains, along heavy edges, by matching in levels, or small ones into neighbours."""

from __future__ import annotations

import heapq
from itertools import pairwise

from placekit_grouping.contraction import Contraction

HEAVIEST = 0.02  # largest share of the graph's cost in one group of `contract_heavy_edges`
STALLED = 0.9  # if matching with neighbours leaves more than this share of the groups, also match in order


def contract_chains(groups: Contraction) -> None:
    """Merge each group with its only predecessor if that has no other successor, in topological order."""
    for x in sorted(groups.groups(), key=lambda x: groups.at[x]):
        before = groups.before[x]
        if len(before) == 1:
            (u,) = before
            if len(groups.after[u]) == 1 and groups.types[u] == groups.types[x]:
                groups.merge(u, x, groups.at[u])


def contract_heavy_edges(groups: Contraction, max_groups: int | None) -> None:
    """Repeatedly merge the two groups that exchange most bytes, if this is safe and `HEAVIEST` allows it.

    A merged group exchanges the bytes of both. When no pair is left, pairs that were not safe are tried again, the heaviest
    first.
    """
    limit = HEAVIEST * groups.total

    def edge(x: int, y: int) -> tuple[int, int, int]:
        return -groups.bytes[x][y], min(x, y), max(x, y)

    blocked = {edge(x, y) for x in groups.groups() for y in groups.bytes[x]}
    before = groups.remaining + 1
    while groups.remaining < before:
        before, heap, blocked = groups.remaining, sorted(blocked), set()
        while heap and groups.remaining > (max_groups or 1):
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

    At each level every group is merged at most once. The lightest groups choose first, each the safe neighbour with which it
    exchanges most bytes. No group grows beyond 1.5 times the average of k groups. If this leaves too many groups (a hub merges
    with only one of its leaves per level), light groups are matched with the next group of their device types in the order,
    connected or not, if this is safe. If more than k groups remain, they are merged in the same way with a limit of 2
    averages. This is enough if all types are equal: of m > k groups in an order, two that follow each other cost at most
    2 total / (m - 1) <= 2 total / k.
    """
    for limit in (1.5 * groups.total / k, 2 * groups.total / k):
        before = groups.remaining + 1
        while k < groups.remaining < before:
            before = groups.remaining
            _match_neighbours(groups, k, limit)
            if groups.remaining > STALLED * before:
                _match_in_order(groups, k, limit)


def _match_neighbours(groups: Contraction, k: int, limit: float) -> None:
    matched: set[int] = set()
    for x in sorted(groups.groups(), key=lambda x: (groups.cost[x], groups.at[x])):
        if groups.remaining == k:
            return
        if x in matched or groups.merged_into[x] != x:
            continue
        places = {
            y: place
            for y, place in groups.safe_neighbours(x).items()
            if y not in matched and groups.cost[x] + groups.cost[y] <= limit
        }
        if places:
            y = min(places, key=lambda y: (-groups.bytes[x].get(y, 0), groups.cost[y], y))
            matched.add(groups.merge(x, y, places[y]))


def _match_in_order(groups: Contraction, k: int, limit: float) -> None:
    order = sorted(groups.groups(), key=lambda x: (groups.types[x], groups.at[x]))
    matched: set[int] = set()
    for x, y in sorted(pairwise(order), key=lambda pair: groups.cost[pair[0]] + groups.cost[pair[1]]):
        if groups.remaining == k or groups.cost[x] + groups.cost[y] > limit:
            return
        if x in matched or y in matched:
            continue
        place = groups.place(x, y)
        if place is not None:
            groups.merge(x, y, place)
            matched |= {x, y}


def merge_small(groups: Contraction, max_groups: int | None) -> None:
    """While there are more than `max_groups` groups, merge the cheapest one.

    It joins the neighbour with which it exchanges most bytes (in both directions, over all phases), among neighbours that are
    safe and may run on the same device types. Without such a neighbour, it joins the cheaper of the two groups of these types
    next to it in the order, if this is safe. Otherwise it waits until another merge changes what is safe.
    """
    most = max_groups or groups.remaining
    heap = [(groups.cost[x], x) for x in groups.groups()]
    heapq.heapify(heap)
    stuck: set[int] = set()
    while heap and groups.remaining > most:
        cost, x = heapq.heappop(heap)
        if groups.merged_into[x] != x or cost != groups.cost[x] or x in stuck:
            continue
        places = groups.safe_neighbours(x) or groups.safe_adjacent(x)
        if not places:
            stuck.add(x)
            continue
        y = min(places, key=lambda y: (-groups.bytes[x].get(y, 0), groups.cost[y], y))
        moved = x if places[y] == groups.at[y] else y
        # only for these neighbours may the merge make other merges safe
        freed = (groups.after[moved] & stuck) | (groups.before[moved] & stuck)
        kept = groups.merge(x, y, places[y])
        stuck -= freed | {x, y}
        for z in (freed - {x, y}) | {kept}:
            heapq.heappush(heap, (groups.cost[z], z))
