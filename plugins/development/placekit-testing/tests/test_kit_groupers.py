"""Each check of the contract of groupers passes for a right grouper, and catches one that is wrong."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from kit_tools import fails, run_check
from numpy.random import Generator
from placekit_testing import Contract, GrouperContract
from placekit_testing.contract import checks_of
from pydantic import Field

from placekit_core import Graph, Grouper, Grouping, Options, strongly_connected

CHECKS = [name for name in checks_of(GrouperContract) if name not in checks_of(Contract)]


class LimitedOptions(Options):
    limit: int | None = Field(None, ge=1)


class Right(Grouper):
    """Co-located operations with what is between them in the forward phase; with a limit, stretches of the order."""

    name = "right"
    options_class = LimitedOptions

    def group(self, graph: Graph, rng: Generator) -> Grouping:
        first = Grouping.colocated(graph)
        u, v = graph.op_edges
        forward = graph.kernel & (graph.phase == 0)
        a, b = first.group_of[u].astype(np.int64), first.group_of[v]
        pairs = np.unique((a * first.count + b)[forward[u] & forward[v] & (a != b)])
        at = strongly_connected(first.count, pairs // max(1, first.count), pairs % max(1, first.count))
        count = int(at.max(initial=-1)) + 1
        stretch = at * min(self.options.limit or count, count) // max(1, count)
        return Grouping.of(stretch[first.group_of])


class CountsFromOne(Right):
    """Groups are numbered from 1."""

    def group(self, graph: Graph, rng: Generator) -> Grouping:
        return Grouping(super().group(graph, rng).group_of + np.int32(1))


class EmptyNames(Right):
    """Groups have names that are empty."""

    def group(self, graph: Graph, rng: Generator) -> Grouping:
        grouping = super().group(graph, rng)
        return Grouping(grouping.group_of, ("",) * grouping.count)


class TearsApart(Right):
    """Every operation is a group of its own, even if it must share a device with others."""

    def group(self, graph: Graph, rng: Generator) -> Grouping:
        return Grouping(np.arange(graph.n, dtype=np.int32))


class EveryOther(Right):
    """The steps of the forward phase go into two groups, by turns."""

    def group(self, graph: Graph, rng: Generator) -> Grouping:
        return Grouping.of(super().group(graph, rng).group_of % 2)


class AllInOne(Right):
    """One group holds everything, so neither a CPU nor a GPU may run it."""

    def group(self, graph: Graph, rng: Generator) -> Grouping:
        return Grouping(np.zeros(graph.n, np.int32))


class IgnoresItsLimit(Right):
    """The option exists, but nothing reads it."""

    def group(self, graph: Graph, rng: Generator) -> Grouping:
        return Grouping.colocated(graph)


class OwnRandomness(Right):
    """Draws random groups from its own generator, not from the given one."""

    def group(self, graph: Graph, rng: Generator) -> Grouping:
        finest = Grouping.colocated(graph)
        return Grouping.of(np.random.default_rng().integers(0, 3, finest.count)[finest.group_of])


class SetOrder(Right):
    """Groups are numbered in the order of a set of strings, which differs in every process."""

    def group(self, graph: Graph, rng: Generator) -> Grouping:
        grouping = super().group(graph, rng)
        order = np.asarray([int(name) for name in {str(i) for i in range(grouping.count)}], np.int32)
        return Grouping(order[grouping.group_of])


class SeedsNumpy(Right):
    """Seeds numpy's global generator, to be reproducible."""

    def group(self, graph: Graph, rng: Generator) -> Grouping:
        np.random.seed(0)
        return super().group(graph, rng)


class MaxGroupsOptions(Options):
    max_groups: int | None = Field(None, ge=1)


class IgnoresMaxGroups(Grouper):
    """There is an option `max_groups`, and nothing reads it."""

    name = "ignores"
    options_class = MaxGroupsOptions

    def group(self, graph: Graph, rng: Generator) -> Grouping:
        return Grouping.colocated(graph)


class WritesIntoTheGraph(Right):
    """The groups are left in a column of the graph."""

    def group(self, graph: Graph, rng: Generator) -> Grouping:
        grouping = super().group(graph, rng)
        graph.columns["group"] = grouping.group_of  # type: ignore[index]
        return grouping


class NeedsAnEdge(Right):
    """It looks at the first edge: a graph without edges is an IndexError."""

    def group(self, graph: Graph, rng: Generator) -> Grouping:
        _ = graph.tensor_producer[graph.input_tensor[0]]
        return super().group(graph, rng)


class NeedsAKernel(Right):
    """It looks for the largest operation: a graph without kernels is a ValueError."""

    def group(self, graph: Graph, rng: Generator) -> Grouping:
        _ = graph.flops[graph.kernel].max()
        return super().group(graph, rng)


class Recurses(Right):
    """Levels are found by recursion: a long chain is a RecursionError."""

    def group(self, graph: Graph, rng: Generator) -> Grouping:
        def level(op: int) -> int:
            return 1 + max((level(int(graph.tensor_producer[t])) for t in graph.inputs(op)), default=0)

        _ = level(graph.n - 1) if graph.n > 100 else 0
        return super().group(graph, rng)


WRONG: dict[str, type[Grouper]] = {
    "check_groups_are_numbered": CountsFromOne,
    "check_groups_have_names": EmptyNames,
    "check_co_located_operations_stay_together": TearsApart,
    "check_forward_phase_is_acyclic": EveryOther,
    "check_every_group_has_a_device": AllInOne,
    "check_limit_is_kept": IgnoresItsLimit,
    "check_same_seed_same_groups": OwnRandomness,
    "check_other_processes_give_the_same": SetOrder,
    "check_graph_is_left_alone": WritesIntoTheGraph,
    "check_one_operation": NeedsAnEdge,
    "check_no_kernels": NeedsAKernel,
    "check_large_graphs": Recurses,
}
SAYS = {
    "check_groups_are_numbered": "the groups are numbered [1]",
    "check_groups_have_names": "a group has an empty name",
    "check_co_located_operations_stay_together": "co-located operations are in the groups [1, 11]",
    "check_forward_phase_is_acyclic": "the groups [0, 1] wait for each other",
    "check_every_group_has_a_device": "ClusterError: no device of 'mesh' may run",
    "check_limit_is_kept": "9 groups, not 1",
    "check_same_seed_same_groups": "other groups the second time",
    "check_other_processes_give_the_same": "other groups in another process",
    "check_graph_is_left_alone": "was changed",
    "check_one_operation": "IndexError",
    "check_no_kernels": "ValueError: zero-size array",
    "check_large_graphs": "RecursionError",
}
"""What the check must say of it."""


class Limited(GrouperContract):
    limit_option = "limit"


def test_each_check_has_its_wrong_grouper() -> None:
    assert list(WRONG) == list(SAYS) == CHECKS


def test_passes_for_a_right_grouper(tmp_path: Path) -> None:
    for name in CHECKS:
        run_check(Limited, name, Right, tmp_path)


def test_catches_the_wrong_grouper(tmp_path: Path) -> None:
    for name in WRONG:
        fails(Limited, name, WRONG[name], tmp_path, SAYS[name])


def test_global_generators_are_left_alone(tmp_path: Path) -> None:
    fails(Limited, "check_same_seed_same_groups", SeedsNumpy, tmp_path, "a global generator was used")


def test_max_groups_is_a_limit_unless_that_is_denied(tmp_path: Path) -> None:
    class NoLimit(GrouperContract):
        limit_option = ""

    fails(GrouperContract, "check_limit_is_kept", IgnoresMaxGroups, tmp_path, "groups, not 1")
    with pytest.raises(pytest.skip.Exception, match="no option that limits"):
        run_check(NoLimit, "check_limit_is_kept", IgnoresMaxGroups, tmp_path)


def test_what_no_other_process_can_import_is_skipped(tmp_path: Path) -> None:
    class Inside(Right):
        pass

    with pytest.raises(pytest.skip.Exception, match="no other process can import"):
        run_check(Limited, "check_other_processes_give_the_same", Inside, tmp_path)


class FailsElsewhere(Right):
    def group(self, graph: Graph, rng: Generator) -> Grouping:
        if os.environ.get("PYTHONHASHSEED") in ("1", "2"):
            raise OSError("not here")
        return super().group(graph, rng)


def test_what_fails_in_another_process_says_how(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    fails(Limited, "check_other_processes_give_the_same", FailsElsewhere, tmp_path, "OSError: not here")


def test_what_is_not_promised_is_not_checked(tmp_path: Path) -> None:
    class NoPromise(EveryOther):
        acyclic = False

    with pytest.raises(pytest.skip.Exception, match="promises no order"):
        run_check(GrouperContract, "check_forward_phase_is_acyclic", NoPromise, tmp_path)
    with pytest.raises(pytest.skip.Exception, match="no option that limits"):
        run_check(GrouperContract, "check_limit_is_kept", partial(IgnoresItsLimit), tmp_path)
