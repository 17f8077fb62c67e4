"""The contract of groupers: their partitions can be placed, and keep the promises of the grouper."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from placekit_core import PHASES, Graph, GraphBuilder, Grouper, Grouping, Labels, Problem, strongly_connected
from placekit_testing.children import digest, in_children
from placekit_testing.contract import Contract, Make, in_short, together
from placekit_testing.observed import global_random
from placekit_testing.strategies import machine, random_graph, random_step

_SIZES = (1, 2, 3, 5, 8, 12, 20, 30, 45, 60)


class GrouperContract(Contract):
    """The checks of a grouper, on random graphs and on graphs that look like training steps."""

    kind = "grouper"
    interface = Grouper

    @in_short
    def check_groups_can_be_placed(self, make: Make) -> None:
        """Groups are an int32 partition that keeps co-located operations together; each has a name and an allowed device."""
        for graph, grouping in _grouped(make):
            assert grouping.group_of.dtype == np.int32, f"groups are numbered by {grouping.group_of.dtype}, not int32"
            grouping.check(graph)
            assert all(grouping.names), f"{graph}: a group has an empty name"
            Problem.of(graph, machine(), grouping)  # raises an error that names a group that no device may run

    @in_short
    def check_forward_phase_is_acyclic(self, make: Make) -> None:
        """If `acyclic` promises it, no groups wait for each other in the forward phase."""
        if not make().acyclic:
            pytest.skip("this grouper promises no order among its groups")
        for graph, grouping in _grouped(make):
            forward = graph.kernel & (graph.phase == PHASES.index("forward"))
            u, v = graph.op_edges
            a, b = grouping.group_of[u], grouping.group_of[v]
            ordered = forward[u] & forward[v] & (a != b)
            pairs = np.unique(a[ordered].astype(np.int64) * grouping.count + b[ordered])
            component = strongly_connected(grouping.count, pairs // grouping.count, pairs % grouping.count)
            waiting = np.flatnonzero(np.bincount(component)[component] > 1)
            assert not len(waiting), f"{graph}: the groups {waiting.tolist()} wait for each other"

    @in_short
    def check_limit_is_kept(self, make: Make) -> None:
        """An option `max_groups` limits the number of groups if every operation may run anywhere."""
        if "max_groups" not in make().options_class.model_fields:
            pytest.skip("this grouper has no option `max_groups`")
        for limit in (1, 3, 8):
            for graph in _graphs():
                count = _group(make, graph.replace(allowed=Labels.of([""] * graph.n)), max_groups=limit).count
                assert count <= limit, f"{graph}: {count} groups, not {limit}"

    @in_short
    def check_same_seed_same_groups(self, make: Make) -> None:
        """Groups depend on the graph, the options and the given generator only; the graph is not changed."""
        for graph in _graphs():
            before = graph.replace().fingerprint, dict(graph.attributes)  # `replace`: graphs cache fingerprints
            grouping = _group(make, graph)
            with global_random(1) as untouched:
                again = _group(make, graph)
                assert untouched(), f"{graph}: a global generator was used"
            assert again.group_of.tolist() == grouping.group_of.tolist(), f"{graph}: other groups the second time"
            assert again.names == grouping.names, f"{graph}: other names the second time"
            assert (graph.replace().fingerprint, dict(graph.attributes)) == before, f"{graph} was changed"

    def check_other_processes_give_the_same(self, make: Make) -> None:
        """Two new processes, in which sets of strings are ordered differently, make the same groups."""
        found = in_children(make(), groups_digest)
        assert set(found) == {groups_digest(make())}, "other groups in another process"

    def check_unusual_graphs(self, make: Make) -> None:
        """Graphs of one kernel, of none, and of thousands of operations, also as one long chain, are grouped."""
        b = GraphBuilder("one")
        b.add("only", outputs=[4])
        assert _group(make, b.build()).group_of.tolist() == [0]
        assert _group(make, GraphBuilder("empty").build()).count == 0
        sources, b = GraphBuilder("sources"), GraphBuilder("chain")
        for i in range(3):
            sources.source(f"w{i}", 4)
        tensors = [b.source("x", 4)]
        for i in range(5000):
            tensors = b.add(f"op{i}", inputs=tensors, outputs=[4], module=f"m{i // 7}", flops=1e6)
        for graph in (sources.build(), b.build(), random_step(np.random.default_rng(0), 2500)):
            _group(make, graph).check(graph)

    test_groups = together(
        "Groups are well formed, and can be placed.",
        check_groups_can_be_placed,
        check_forward_phase_is_acyclic,
        check_limit_is_kept,
        check_unusual_graphs,
    )
    test_same_groups = together(
        "Groups depend only on graph, options and generator.",
        check_same_seed_same_groups,
        check_other_processes_give_the_same,
    )


def _graphs() -> Iterator[Graph]:
    for seed, n in enumerate(_SIZES):
        yield random_graph(np.random.default_rng(seed), n)
        yield random_step(np.random.default_rng(seed), n)


def groups_digest(grouper: Grouper) -> str:
    """A digest of the groups, and their names, that `grouper` makes for all graphs."""
    made = [grouper.group(graph, np.random.default_rng(7)) for graph in _graphs()]
    return digest(part for grouping in made for part in (grouping.group_of, grouping.names))


def _group(make: Make, graph: Graph, **options: int) -> Grouping:
    found: Grouping = make(**options).group(graph, np.random.default_rng(7))
    return found


def _grouped(make: Make) -> Iterator[tuple[Graph, Grouping]]:
    for graph in _graphs():
        yield graph, _group(make, graph)
