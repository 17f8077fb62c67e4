"""The contract of groupers: their partitions can be placed, and keep all promises of the grouper."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import pytest

from placekit_core import PHASES, Graph, GraphBuilder, Grouper, Grouping, Labels, Problem, strongly_connected
from placekit_testing.children import digest, in_children
from placekit_testing.contract import Contract, Make, in_short, together
from placekit_testing.observed import global_random
from placekit_testing.strategies import machine, random_graph, random_step

_SIZES = (1, 2, 3, 5, 8, 12, 20, 30, 45, 60)


class GrouperContract(Contract, defines_checks=True):
    """The checks of a grouper, on random graphs and on graphs that look like training steps."""

    kind = "grouper"
    interface = Grouper
    limit_option: ClassVar[str | None] = None
    """Name of the option that limits the number of groups. None: `max_groups` if there is such an option; "": no option."""

    def check_groups_are_numbered(self, make: Make) -> None:
        """`group_of` has one int32 per operation: numbers from 0 on, without gaps."""
        for graph, grouping in _grouped(make):
            group_of = grouping.group_of
            assert group_of.shape == (graph.n,), f"{graph}: {group_of.shape} groups"
            assert group_of.dtype == np.int32, f"groups are numbered by {group_of.dtype}, not int32"
            used = np.unique(group_of)
            assert used.tolist() == list(range(len(used))), f"{graph}: the groups are numbered {used.tolist()}"

    def check_groups_have_names(self, make: Make) -> None:
        """Either no group has a name, or every one has."""
        for graph, grouping in _grouped(make):
            if grouping.names:
                assert len(grouping.names) == grouping.count, f"{graph}: {len(grouping.names)} names"
                assert all(grouping.names), f"{graph}: a group has an empty name"

    @in_short
    def check_co_located_operations_stay_together(self, make: Make) -> None:
        """Operations that must share a device are in one group."""
        for graph, grouping in _grouped(make):
            for tied in np.unique(graph.colocate[graph.colocate >= 0]).tolist():
                groups = np.unique(grouping.group_of[graph.colocate == tied])
                assert len(groups) == 1, f"{graph}: co-located operations are in the groups {groups.tolist()}"

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
    def check_every_group_has_a_device(self, make: Make) -> None:
        """On a machine with CPU and GPU, no group mixes CPU-only operations with GPU-only ones."""
        for graph, grouping in _grouped(make):
            Problem.of(graph, machine(), grouping)  # raises an error that names a group that no device may run

    @in_short
    def check_limit_is_kept(self, make: Make) -> None:
        """The option that limits the number of groups is kept if every operation may run anywhere."""
        option = self.limit_option
        if option is None:
            option = "max_groups" if "max_groups" in make().options_class.model_fields else ""
        if not option:
            pytest.skip("this grouper has no option that limits the number of groups")
        for limit in (1, 3, 8):
            for graph in _graphs():
                anywhere = graph.replace(allowed=Labels.of([""] * graph.n))
                count = _group(make, anywhere, **{option: limit}).count
                assert count <= limit, f"{graph}: {count} groups, not {limit}"

    @in_short
    def check_same_seed_same_groups(self, make: Make) -> None:
        """Groups depend on the graph, the options and the given generator; numpy's and Python's generators are not used."""
        for graph, grouping in _grouped(make):
            with global_random(1) as untouched:
                again = _group(make, graph.replace())
                assert untouched(), f"{graph}: a global generator was used"
            assert again.group_of.tolist() == grouping.group_of.tolist(), f"{graph}: other groups the second time"
            assert again.names == grouping.names, f"{graph}: other names the second time"

    def check_other_processes_give_the_same(self, make: Make) -> None:
        """Two new processes, in which sets of strings are ordered differently, make the same groups."""
        found = in_children(make(), groups_digest)
        assert set(found) == {groups_digest(make())}, "other groups in another process"

    def check_graph_is_left_alone(self, make: Make) -> None:
        """Grouping does not change the graph, nor its extra columns and attributes."""
        for graph in _graphs():
            before = graph.replace().fingerprint, dict(graph.attributes)  # `replace`: graphs cache fingerprints
            _group(make, graph)
            assert (graph.replace().fingerprint, dict(graph.attributes)) == before, f"{graph} was changed"

    def check_one_operation(self, make: Make) -> None:
        """A graph of one kernel has one group."""
        b = GraphBuilder("one")
        b.add("only", outputs=[4])
        assert _group(make, b.build()).group_of.tolist() == [0]

    def check_no_kernels(self, make: Make) -> None:
        """Graphs without kernels are grouped: an empty one has no group, one of sources has some."""
        assert _group(make, GraphBuilder("empty").build()).count == 0
        b = GraphBuilder("sources")
        for i in range(3):
            b.source(f"w{i}", 4)
        graph = b.build()
        assert 1 <= _group(make, graph).check(graph).count <= 3

    def check_large_graphs(self, make: Make) -> None:
        """Several thousand operations, also as one long chain, are grouped without deep recursion."""
        b = GraphBuilder("chain")
        tensors = [b.source("x", 4)]
        for i in range(5000):
            tensors = b.add(f"op{i}", inputs=tensors, outputs=[4], module=f"m{i // 7}", flops=1e6)
        for graph in (b.build(), random_step(np.random.default_rng(0), 2500)):
            _group(make, graph).check(graph)

    test_groups = together(
        "Groups are well formed, and can be placed.",
        check_groups_are_numbered,
        check_groups_have_names,
        check_co_located_operations_stay_together,
        check_forward_phase_is_acyclic,
        check_every_group_has_a_device,
        check_limit_is_kept,
    )
    test_same_groups = together(
        "Groups depend only on graph, options and generator.",
        check_same_seed_same_groups,
        check_other_processes_give_the_same,
        check_graph_is_left_alone,
    )
    test_unusual_graphs = together(
        "Very small and very large graphs are grouped.",
        check_one_operation,
        check_no_kernels,
        check_large_graphs,
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
