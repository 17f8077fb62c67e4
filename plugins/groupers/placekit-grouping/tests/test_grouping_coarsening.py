"""`chains`, `heavy_edge` and `metis`: what they merge, by hand and on random graphs."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from placekit_grouping import coarsening
from placekit_grouping.contraction import Contraction
from placekit_grouping.groupers import ChainsGrouper, HeavyEdgeGrouper, MetisGrouper
from placekit_layers.repeated import nominal_s
from placekit_layers.units import Units

from placekit_core import Graph, GraphBuilder, Grouper

RNG = np.random.default_rng(0)


def drawn(edges: Iterable[tuple[str, str, int]], seconds: float = 1e-3) -> Graph:
    """A graph of kernels that take `seconds` each; (u, v, bytes) is a tensor of its own."""
    edges = list(edges)
    names = sorted({name for u, v, _ in edges for name in (u, v)})  # every edge goes to a later letter
    b, tensor = GraphBuilder("drawn"), dict[tuple[str, str], int]()
    for name in names:
        out = [(u, v, size) for u, v, size in edges if u == name]
        ins = [tensor[u, v] for u, v, _ in edges if v == name]
        made = b.add(name, inputs=ins, outputs=[size for *_, size in out], flops=seconds * 1e13)
        tensor |= {(u, v): t for (u, v, _), t in zip(out, made, strict=True)}
    return b.build()


def layered(n: int, width: int, seed: int = 0) -> Graph:
    """n kernels of different costs, each reading two of the last `width`."""
    rng, b = np.random.default_rng(seed), GraphBuilder("layered")
    made: list[int] = []
    for i in range(n):
        reads = {made[-1 - int(k)] for k in rng.integers(0, min(len(made), width), 2)} if made else ()
        size, flops = int(rng.integers(1, 10**6)), float(rng.integers(1, 10**9))
        made += b.add(f"op{i}", inputs=reads, outputs=[size], flops=flops)
    return b.build()


def groups(graph: Graph, grouper: Grouper) -> list[str]:
    """The members of each group, by the first letters of their names."""
    group_of = grouper.group(graph, RNG).group_of
    return ["".join(graph.op_name[v][0] for v in np.flatnonzero(group_of == g)) for g in range(group_of.max() + 1)]


def shares(graph: Graph, grouper: Grouper) -> np.ndarray:
    """[g] the cost of each group as a share of the whole."""
    grouping, cost = grouper.group(graph, RNG), nominal_s(graph)
    return np.bincount(grouping.group_of, cost) / cost.sum()


DIAMOND = drawn(
    [("a", "b", 1), ("b", "c", 9), ("b", "d", 1), ("c", "e", 1), ("d", "e", 1), ("e", "f", 1), ("f", "g", 1)]
)


def test_chains_by_hand() -> None:
    """a -> b, then c and d side by side, then e -> f -> g."""
    assert groups(DIAMOND, ChainsGrouper()) == ["ab", "c", "d", "efg"]


@pytest.fixture
def of_any_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups that heavy edges make may cost as much as the whole graph."""
    monkeypatch.setattr(coarsening, "HEAVIEST", 1.0)


def test_heavy_edges_make_no_group_that_costs_much() -> None:
    assert groups(DIAMOND, HeavyEdgeGrouper()) == list("abcdefg")


@pytest.mark.usefixtures("of_any_cost")
def test_heavy_edges_by_hand() -> None:
    """b -> c carries most; then all edges are equal."""
    assert groups(DIAMOND, HeavyEdgeGrouper(max_groups=6)) == ["a", "bc", "d", "e", "f", "g"]
    assert groups(DIAMOND, HeavyEdgeGrouper()) == ["abcdefg"]


@pytest.mark.usefixtures("of_any_cost")
def test_the_heaviest_edge_waits_until_it_is_safe() -> None:
    """a -> c is heaviest, but b is between them: it joins one of the two first."""
    graph = drawn([("a", "b", 5), ("a", "c", 90), ("b", "c", 1)])
    assert groups(graph, HeavyEdgeGrouper(max_groups=2)) == ["ab", "c"]
    # with x, the heaviest, in the group of a and b, the 90 bytes are an edge again, and the next to go
    graph = drawn([("a", "b", 5), ("a", "c", 90), ("b", "c", 1), ("c", "d", 2), ("d", "e", 3)])
    assert groups(graph, HeavyEdgeGrouper(max_groups=3)) == ["abc", "d", "e"]


@pytest.mark.usefixtures("of_any_cost")
def test_matching_merges_pairs_level_by_level() -> None:
    """Edges of 9, 8, 7 bytes in a line: greedy makes one group of four; on a level each is matched once."""
    graph = drawn(
        [("a", "b", 8), ("b", "c", 9), ("c", "d", 8), ("d", "e", 1), ("e", "f", 7), ("f", "g", 1), ("g", "h", 7)]
    )
    assert groups(graph, HeavyEdgeGrouper(max_groups=5)) == ["abcd", "e", "f", "g", "h"]
    assert groups(graph, MetisGrouper(max_groups=4)) == ["ab", "cd", "ef", "gh"]


@given(st.integers(0, 2**32), st.integers(2, 120), st.integers(1, 30))
@settings(max_examples=60, deadline=None)
def test_metis_never_exceeds_two_averages(seed: int, n: int, k: int) -> None:
    """Unless a single operation does."""
    graph = layered(n, 1 + seed % 20, seed)
    found, single = shares(graph, MetisGrouper(max_groups=k)), nominal_s(graph)
    assert len(found) == min(k, n)
    assert found.max() <= max(2 / k, single.max() / single.sum()) + 1e-12


def typed(seed: int, n: int) -> Graph:
    """n kernels in a random order, each reading from up to three others, for up to three sets of device types."""
    rng, b = np.random.default_rng(seed), GraphBuilder("typed")
    density, kinds = rng.random(), ["", "cpu", "gpu"][: int(rng.integers(1, 4))]
    made: list[int] = []
    for i in range(n):
        reads = (
            {made[int(k)] for k in rng.integers(0, i, int(rng.integers(1, 4)))} if i and rng.random() < density else ()
        )
        allowed = kinds[int(rng.integers(len(kinds)))]
        made += b.add(
            f"op{i}", inputs=reads, outputs=[int(rng.integers(1, 9))], allowed=allowed, flops=1e9 * rng.random()
        )
    return b.build()


def contraction(graph: Graph) -> Contraction:
    units = Units.build(graph)
    return Contraction(units, np.arange(units.count))


def reached(groups: Contraction, x: int) -> set[int]:
    """All that is after x: by walking."""
    found, work = set[int](), [x]
    while work:
        new = groups.after[work.pop()] - found
        found |= new
        work += new
    return found


def closes_cycle(groups: Contraction, x: int, y: int) -> bool:
    """Whether a path leads from one of the two to the other through a third."""
    return any(b in reached(groups, z) for a, b in ((x, y), (y, x)) for z in groups.after[a] - {b})


def meets_rule(groups: Contraction, x: int, y: int) -> bool:
    """The rule of `Contraction`, as it is written there."""
    at = groups.at
    x, y = (x, y) if at[x] < at[y] else (y, x)
    return groups.types[x] == groups.types[y] and (
        max((at[z] for z in groups.before[y]), default=-1) <= at[x]
        or min((at[z] for z in groups.after[x]), default=len(at)) >= at[y]
    )


@given(st.integers(0, 2**32), st.integers(1, 14))
@settings(max_examples=150, deadline=None)
def test_which_merges_are_safe(seed: int, n: int) -> None:
    """Whatever has been merged: what is called safe closes no cycle, and leaves a topological order."""
    groups, rng = contraction(typed(seed, n)), np.random.default_rng(seed)
    while True:
        left = sorted(groups.groups(), key=lambda x: groups.at[x])
        assert len({groups.at[x] for x in left}) == len(left)
        assert all(groups.at[x] < groups.at[y] for x in left for y in groups.after[x])
        choices = []
        for x, y in permutations(left, 2):
            place = groups.place(x, y)
            assert (place is not None) == meets_rule(groups, x, y)
            choices += [(x, y, place)] if place is not None else []
        for x in left:
            same = [y for y in left if groups.types[y] == groups.types[x]]
            i = same.index(x)
            assert groups.adjacent(x) == same[max(i - 1, 0) : i] + same[i + 1 : i + 2]
            assert set(groups.safe_adjacent(x)) == {y for y in groups.adjacent(x) if meets_rule(groups, x, y)}
            choices += [
                (x, y, place)
                for known in (groups.safe_neighbours(x), groups.safe_adjacent(x))
                for y, place in known.items()
            ]
        assert not any(closes_cycle(groups, x, y) or groups.types[x] != groups.types[y] for x, y, _ in choices)
        assert all(place in (groups.at[x], groups.at[y]) for x, y, place in choices)
        assert bool(choices) == any(groups.safe_adjacent(x) for x in left)
        if not choices:
            break
        groups.merge(*choices[int(rng.integers(len(choices)))])
