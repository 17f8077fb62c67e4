"""grouping.py: partitions, and the quotient graph of any partition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from placekit_core import Graph, GraphBuilder, GraphError, Grouping, quotient, strongly_connected


def random_graph(rng: np.random.Generator, n: int, sources: bool = True) -> Graph:
    b = GraphBuilder("random")
    tensors: list[int] = []
    for v in range(n):
        if sources and rng.random() < 0.25:
            tensors.append(b.source(f"s{v}", int(rng.integers(1, 100))))
            continue
        reads = [t for t in tensors if rng.random() < 3 / (len(tensors) + 1)]
        outputs = rng.integers(1, 100, int(rng.integers(1, 3))).tolist()
        kind = ("", "", "cpu", "cpu|gpu")[rng.integers(4)]
        tensors += b.add(f"op{v}", inputs=reads, outputs=outputs, flops=float(rng.integers(0, 50)), allowed=kind)
    return b.build()


def crossing_bytes(graph: Graph, grouping: Grouping) -> int:
    """Each tensor once per other group that reads it, by definition."""
    total = 0
    for t in range(graph.t):
        home = grouping.group_of[graph.tensor_producer[t]]
        total += int(graph.tensor_bytes[t]) * len(set(grouping.group_of[graph.consumers(t)].tolist()) - {int(home)})
    return total


@given(st.integers(0, 2**32), st.integers(1, 60), st.integers(1, 20))
@settings(max_examples=150, deadline=None)
def test_quotient_of_any_partition(seed: int, n: int, groups: int) -> None:
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, n)
    grouping = Grouping.of(rng.integers(0, groups, n)).check(graph)
    q = quotient(graph, grouping)  # `build` validates: it is acyclic, and has no double edge
    assert q.n == grouping.count
    assert int(q.tensor_bytes.sum()) == crossing_bytes(graph, grouping)
    assert q.flops.sum() == pytest.approx(graph.flops.sum())
    assert q.persistent_bytes.sum() == graph.persistent_bytes.sum()
    # one tensor per connected pair, read by the other group of the pair
    pairs = {
        frozenset((int(grouping.group_of[u]), int(grouping.group_of[v]))) for u, v in zip(*graph.op_edges, strict=True)
    }
    u, v = q.op_edges
    assert {frozenset(p) for p in zip(u.tolist(), v.tolist(), strict=True)} == {p for p in pairs if len(p) == 2}
    assert q.t == q.e == len(u)
    for g in range(q.n):
        members = np.flatnonzero(grouping.group_of == g)
        limits = [set(graph.allowed[m].split("|")) for m in members if graph.allowed[m]]
        common = set.intersection(*limits) if limits else {""}
        assert set(q.allowed[g].split("|")) == (common or {"none"})
        assert q.kernel[g] == graph.kernel[members].any()


@given(st.integers(0, 2**32), st.integers(2, 50), st.integers(1, 12))
@settings(max_examples=150, deadline=None)
def test_quotient_follows_the_true_order_where_there_is_one(seed: int, n: int, groups: int) -> None:
    """Groups that are intervals of the operations' order have a true order: no edge may be turned around."""
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, n, sources=False)
    grouping = Grouping.of(np.sort(rng.integers(0, groups, n)))
    u, v = quotient(graph, grouping).op_edges
    a, b = graph.op_edges
    a, b = grouping.group_of[a], grouping.group_of[b]
    true = set(zip(a.tolist(), b.tolist(), strict=True)) - {(g, g) for g in range(grouping.count)}
    assert set(zip(u.tolist(), v.tolist(), strict=True)) == true


def test_true_order_between_components() -> None:
    """{fwd1, bwd1} and {fwd2, bwd2} exchange data both ways; what follows both still comes after both."""
    b = GraphBuilder("step")
    (x,) = b.add("fwd1", outputs=[10])
    (y,) = b.add("fwd2", inputs=[x], outputs=[20])
    (g2,) = b.add("bwd2", inputs=[y], outputs=[30])
    (g1,) = b.add("bwd1", inputs=[g2, x], outputs=[40])
    b.add("log", inputs=[g1])
    graph = b.build()
    q = quotient(graph, Grouping(np.asarray([0, 1, 1, 0, 2], np.int32), ("one", "two", "log")))
    edges = {(int(u), int(v)): int(w) for u, v, w in zip(q.tensor_producer, q.edge_op, q.tensor_bytes, strict=True)}
    assert edges == {(0, 1): 10 + 30, (0, 2): 40}
    assert q.op_name == ("0:one", "1:two", "2:log")


def test_colocated_sets() -> None:
    b = GraphBuilder("sets")
    for i, number in enumerate([-1, 5, 0, 5, -1, 0]):
        b.add(f"op{i}", colocate=number)
    grouping = Grouping.colocated(b.build())
    assert grouping.group_of.tolist() == [0, 1, 2, 1, 3, 2]
    assert grouping.names == ("op0", "op1", "op2", "op4")


@pytest.mark.parametrize(
    ("groups", "names", "message"),
    [
        ([0, 1], (), "has 2 operations, 'three' has 3"),
        ([0, 2, 2], (), "every one of them used"),
        ([-1, 0, 0], (), "group numbers must be"),
        ([0, 1, 1], ("one",), "2 groups and 1 names"),
        ([0, 1, 0], (), "separates 'b' from"),
    ],
)
def test_check_refuses(groups: list[int], names: tuple[str, ...], message: str) -> None:
    b = GraphBuilder("three")
    b.add("a", colocate=3)
    b.add("b", colocate=3)
    b.add("c")
    with pytest.raises(GraphError, match=message):
        Grouping(np.asarray(groups, np.int32), names).check(b.build())


@given(st.integers(0, 2**32), st.integers(1, 25))
@settings(max_examples=100, deadline=None)
def test_strongly_connected_against_reachability(seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    adjacent = rng.random((n, n)) < 1.5 / n
    source, target = np.nonzero(adjacent)
    component = strongly_connected(n, source.astype(np.int64), target.astype(np.int64))
    reach = adjacent | np.eye(n, dtype=bool)
    for _ in range(n):
        reach = reach | (reach.astype(int) @ reach.astype(int) > 0)
    assert np.array_equal(component[:, None] == component[None, :], reach & reach.T)
    # numbered in topological order
    assert (component[source] <= component[target]).all()
    assert sorted(set(component.tolist())) == list(range(component.max() + 1))


def test_sources_apart() -> None:
    """Parameters go into groups of their own, with their state and updates; not with what else is tied to a source."""
    b = GraphBuilder("network")
    w, v = b.source("w", 4, colocate=0), b.source("v", 4)
    cache = b.source("cache", 4, colocate=1)
    [x] = b.add("first", inputs=[w, v], outputs=[2])
    b.add("append", inputs=[x, cache], colocate=1)
    b.add("second", inputs=[x])
    b.add("update", inputs=[w], colocate=0, phase="update")
    b.source("input", 1)
    graph = b.build()
    groups = Grouping(np.asarray([0, 0, 1, 0, 1, 1, 0, 2], np.int32), ("a", "b", "in"))
    apart = groups.sources_apart(graph).check(graph)
    assert apart.group_of.tolist() == [0, 0, 1, 2, 1, 1, 0, 3]
    assert apart.names == ("weights of a", "b", "a", "in")
    assert apart.sources_apart(graph).names == apart.names
    plain = Grouping.colocated(graph)
    assert plain.sources_apart(graph).names == plain.names
