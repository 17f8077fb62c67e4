"""The contract of groupers passes for right groupers, and finds planted bugs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
from kit_tools import catches, changed, outcome, own_checks, skipped
from numpy.random import Generator
from placekit_testing import GrouperContract
from pydantic import Field

from placekit_core import Graph, Grouper, Grouping, Options, strongly_connected

CHECKS = own_checks(GrouperContract)


class LimitedOptions(Options):
    max_groups: int | None = Field(None, ge=1)


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
        stretch = at * min(self.options.max_groups or count, count) // max(1, count)
        return Grouping.of(stretch[first.group_of])


class SetOrder(Right):
    """Groups are numbered in the order of a set of strings, which differs in every process."""

    def group(self, graph: Graph, rng: Generator) -> Grouping:
        grouping = super().group(graph, rng)
        order = np.asarray([int(name) for name in {str(i) for i in range(grouping.count)}], np.int32)
        return Grouping(order[grouping.group_of])


class FailsElsewhere(Right):
    """Raises an error in another process."""

    def group(self, graph: Graph, rng: Generator) -> Grouping:
        if "PLACEKIT_CHILD" in os.environ:
            raise OSError("not here")
        return super().group(graph, rng)


def around(change: Callable[[Graph, Grouping], Grouping | None]) -> type[Grouper]:
    """A grouper that changes right groups, or only something else (None)."""

    def group(self: Right, graph: Graph, rng: Generator) -> Grouping:
        grouping = Right.group(self, graph, rng)
        return change(graph, grouping) or grouping

    return changed(Right, group=group)


def own_randomness(graph: Graph, grouping: Grouping) -> Grouping:
    finest = Grouping.colocated(graph)
    return Grouping.of(np.random.default_rng().integers(0, 3, finest.count)[finest.group_of])


def writes_into_the_graph(graph: Graph, grouping: Grouping) -> None:
    graph.columns["group"] = grouping.group_of  # type: ignore[index]


def recurses(graph: Graph, grouping: Grouping) -> None:
    def level(op: int) -> int:
        return 1 + max((level(int(graph.tensor_producer[t])) for t in graph.inputs(op)), default=0)

    _ = level(graph.n - 1) if graph.n > 100 else 0


PLACED, SAME, UNUSUAL = "check_groups_can_be_placed", "check_same_seed_same_groups", "check_unusual_graphs"
WRONG = [
    (PLACED, around(lambda graph, g: Grouping(g.group_of + np.int32(1))), "group numbers must be 0..g-1"),
    (PLACED, around(lambda graph, g: Grouping(g.group_of, ("",) * g.count)), "a group has an empty name"),
    (PLACED, around(lambda graph, g: Grouping(np.arange(graph.n, dtype=np.int32))), "that it must share a device with"),
    (PLACED, around(lambda graph, g: Grouping(np.zeros(graph.n, np.int32))), "no device of 'mesh' may run"),
    ("check_forward_phase_is_acyclic", around(lambda graph, g: Grouping.of(g.group_of % 2)), "wait for each other"),
    ("check_limit_is_kept", around(lambda graph, g: Grouping.colocated(graph)), "9 groups, not 1"),
    (SAME, around(own_randomness), "other groups the second time"),
    (SAME, around(lambda graph, g: np.random.seed(0)), "a global generator was used"),
    (SAME, around(writes_into_the_graph), "was changed"),
    ("check_other_processes_give_the_same", SetOrder, "other groups in another process"),
    ("check_other_processes_give_the_same", FailsElsewhere, "OSError: not here"),
    (UNUSUAL, around(lambda graph, g: graph.tensor_producer[graph.input_tensor[0]] * 0 or None), "IndexError"),
    (UNUSUAL, around(lambda graph, g: graph.flops[graph.kernel].max() * 0 or None), "ValueError: zero-size array"),
    (UNUSUAL, around(recurses), "RecursionError"),
]


def test_passes_for_a_right_grouper(tmp_path: Path) -> None:
    assert skipped(GrouperContract, CHECKS, Right, tmp_path) == set()


def test_finds_planted_bugs(tmp_path: Path) -> None:
    catches(GrouperContract, CHECKS, WRONG, tmp_path)


def test_a_failure_in_other_processes_does_not_answer_the_next_check(tmp_path: Path) -> None:
    name = "check_other_processes_give_the_same"
    assert "OSError: not here" in outcome(GrouperContract, name, FailsElsewhere, tmp_path)
    assert outcome(GrouperContract, name, Right, tmp_path) == "passed"


def test_checks_that_do_not_apply_are_skipped(tmp_path: Path) -> None:
    class NoPromise(Right):
        acyclic = False
        options_class = Options

        def group(self, graph: Graph, rng: Generator) -> Grouping:
            return Grouping.colocated(graph)

    assert skipped(GrouperContract, CHECKS, NoPromise, tmp_path) == {
        "check_forward_phase_is_acyclic", "check_limit_is_kept",
        "check_other_processes_give_the_same",  # no other process can import a class in a function
    }  # fmt: skip
