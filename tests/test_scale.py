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

from placekit_core import Graph, Problem, installed, load_programs, validate_graph

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
