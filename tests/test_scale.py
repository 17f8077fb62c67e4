"""The work of each stage is linear in the size of the graph; counted in calls, because seconds depend on the machine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from placekit_layers import sequence
from placekit_scheduling import ListScheduler, b_level
from placekit_search.coarsening import coarsen
from placekit_testing.fakes import gpus

from placekit_core import Graph, GraphBuilder, Grouping, Problem, installed, load_programs, quotient, validate_graph
from placekit_core.contracts import grouping as groupings

SIZES, LARGE = (60, 240), (420, 4200)  # layers of planted graphs with 24 operations each
SLACK = 1.25
"""How much faster than the graph the number of calls may grow."""


def planted(layers: int) -> Graph:
    [program] = load_programs("planted", layers=layers)
    return program.graph


def problem_of(graph: Graph) -> Problem:
    return Problem.of(graph, gpus(4, memory_bytes=2**40))


def grouped(graph: Graph) -> Any:
    return installed().build("grouper", "heavy_edge", {"max_groups": 64}).group(graph, np.random.default_rng(0))


STAGES: dict[str, Callable[[Graph], Any]] = {
    "import": lambda graph: planted(graph.n // 24),
    "validate": validate_graph,
    "quotient": lambda graph: problem_of(graph).grouped,
    "levels": lambda graph: b_level(problem_of(graph)),
    "coarsen": lambda graph: coarsen(problem_of(graph)),
    "list schedule": lambda graph: ListScheduler(problem_of(graph)).run("earliest_finish"),
    "blocks": lambda graph: sequence(problem_of(graph)),
    "contract": grouped,
}


def calls(stage: Callable[[Graph], Any], graph: Graph) -> int:
    """Calls of Python and C functions that the stage makes; compiled loops are one."""
    count = 0

    def counted(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(counted)
    try:
        stage(graph)
    finally:
        sys.setprofile(before)
    return count


def check_linear(name: str, sizes: tuple[int, int]) -> None:
    stage = STAGES[name]
    stage(planted(10))  # compiles, and imports
    small, large = (planted(layers) for layers in sizes)
    few, many = calls(stage, small), calls(stage, large)
    assert many <= SLACK * few * large.n / small.n, f"{few} calls for {small.n} operations, {many} for {large.n}"


@pytest.mark.parametrize("name", STAGES)
def test_work_is_linear(name: str) -> None:
    check_linear(name, SIZES)


def random_graph(rng: np.random.Generator, n: int) -> Graph:
    """Sources, kernels and updates in sets that share a device."""
    builder = GraphBuilder("random")
    tensors = [builder.source(f"w{i}", 8, colocate=i) for i in range(5)]
    for i in range(n):
        read = rng.choice(len(tensors), min(3, len(tensors)), replace=False).tolist()
        update = i > n - 5
        tensors += builder.add(
            f"y{i}", inputs=[tensors[t] for t in read], outputs=[int(rng.integers(1, 9))], flops=float(rng.random()),
            colocate=i - n + 5 if update else -1,
        )  # fmt: skip
    return builder.build()


def test_groups_have_the_same_order_without_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """The short way, where any topological order of the groups will do, gives the graph of the long way."""
    rng, answers, real = np.random.default_rng(0), list[bool](), groupings._follows

    def told(*arguments: Any) -> bool:
        answers.append(real(*arguments))
        return answers[-1]

    for _ in range(60):
        graph = random_graph(rng, 40)
        fine = Grouping.colocated(graph)
        runs = np.sort(rng.integers(0, 12, fine.count))  # neighbours, so that some graphs of groups have no cycle
        grouping = Grouping.of(runs[fine.group_of]) if rng.random() < 0.5 else fine
        with monkeypatch.context() as patch:
            patch.setattr(groupings, "_follows", told)
            fast = quotient(graph, grouping)
            patch.setattr(groupings, "_follows", lambda *_: False)
            assert quotient(graph, grouping).fingerprint == fast.fingerprint
    assert any(answers), "no graph took the short way"
    assert False in answers
