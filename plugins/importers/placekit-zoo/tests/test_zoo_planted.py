"""Planted graphs: the optimum is reached, proven, and missed by list schedulers."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from placekit_scheduling import ListScheduler, b_level, critical_path_bound, makespan_bound
from placekit_testing import ImporterContract
from placekit_testing.contract import Make
from placekit_testing.speed import mostly_slow
from placekit_zoo.family_options import PlantedOptions
from placekit_zoo.planted import PlantedImporter
from pydantic import ValidationError

from placekit_core import Placements, Problem, Program, Session, installed

SHAPES: list[dict[str, Any]] = [
    {},
    {"layers": 2, "strands": 1},
    {"layers": 20, "devices": 2, "width": 5},
    {"devices": 3, "communication": 1.5, "reads": 3},
    {"devices": 8, "strands": 3, "width": 4, "reads": 0},
    {"devices": 3, "speeds": [1, 2]},
    {"devices": 4, "speeds": [8, 1, 4], "communication": 4.0, "width": 16},
]


class TestPlanted(ImporterContract):
    @pytest.fixture
    def make(self) -> Make:
        return partial(PlantedImporter, layers=3, devices=3, strands=1)


def opened(**options: Any) -> tuple[Program, Problem, Session, float]:
    program = PlantedImporter(**options).load()[0]
    problem = Problem.of(program.graph, program.cluster)
    entry = installed().get("backend", "simulator")
    session = entry.build(entry.component.config()).open(problem)
    return program, problem, session, program.graph.attributes["optimal_makespan_s"]


def etf(problem: Problem, session: Session) -> float:
    schedule = ListScheduler(problem).run("etf", b_level(problem, communication=0.0), None)
    placement = schedule.placement(b_level(problem))
    return float(session.evaluate(Placements.of(placement.device, placement.priority)).value_s[0])


@pytest.mark.parametrize("options", mostly_slow(SHAPES, SHAPES[:-1], SHAPES[-1:]))
def test_the_planted_placement_has_the_optimal_makespan(options: dict[str, Any]) -> None:
    for seed in range(3 if options.get("width", 0) < 16 else 1):  # bounds on unlike devices take seconds
        program, problem, session, optimum = opened(**options, seed=seed)
        columns = program.graph.columns
        planted = Placements.of(columns["planted_device"], columns["planted_priority"])
        measured = session.evaluate(planted)
        assert measured.value_s[0] == optimum
        assert measured.fits[0]
        assert optimum * (1 - 1e-3) <= makespan_bound(problem) <= optimum
        assert critical_path_bound(problem) < 0.8 * optimum


@pytest.mark.parametrize("options", SHAPES)
def test_every_device_is_busy_all_the_time(options: dict[str, Any]) -> None:
    program, problem, _, optimum = opened(**options)
    device = program.graph.columns["planted_device"]
    seconds = problem.op_s[np.arange(problem.graph.n), device]
    assert np.bincount(device, seconds).tolist() == [optimum] * problem.cluster.size


@pytest.mark.parametrize("options", SHAPES)
def test_list_schedulers_miss_it(options: dict[str, Any]) -> None:
    for seed in range(10):
        _, problem, session, optimum = opened(**options, seed=seed)
        assert etf(problem, session) >= 1.15 * optimum


def test_size_and_names() -> None:
    graph = PlantedImporter(layers=5, devices=3, strands=2, width=4).load()[0].graph
    assert graph.n == 5 * 3 * 2 * 4
    assert graph.depth.max() == 4
    assert graph.kernel.all()
    other = PlantedImporter(layers=5, devices=3, strands=2, width=4, seed=1).load()[0].graph
    assert other.fingerprint != graph.fingerprint
    # neither the order of the operations nor their names give the placement away
    device = graph.columns["planted_device"]
    assert (np.diff(device) == 0).mean() < 0.6


def test_wrong_options_are_refused() -> None:
    for wrong in ({"layers": 1}, {"width": 2}, {"communication": 1.0}, {"speeds": [3]}, {"speeds": []}, {"devices": 1}):
        with pytest.raises(ValidationError):
            PlantedOptions(**wrong)
    with pytest.raises(ValidationError, match="with two devices"):
        PlantedOptions(devices=2, width=4)
    with pytest.raises(ValidationError, match=r"these are 4,194,312 operations .*, more than 4,194,304"):
        PlantedOptions(layers=174763)
    with pytest.raises(ValidationError, match=r"the operations read 18,022,400 tensors .*, more than 16,777,216"):
        PlantedOptions(layers=10, devices=40, strands=16, width=16, reads=160)
