"""A run returns a placement that fits, if a simple one does, whatever its budget and whatever its policy did with it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from placekit_testing.small import chain, machine

from placekit_core import (
    Cluster,
    GraphBuilder,
    NotApplicable,
    NothingFits,
    Placement,
    PlacementError,
    Problem,
    Task,
    installed,
    load_programs,
    place,
)
from placekit_core.run.last_resort import simplest


def lopsided(big: float = 2**40, tiny: float = 1.0) -> Cluster:
    """Two devices of the same speed and other memory."""
    [(name, kind)] = machine(1).model_dump(mode="json")["kinds"].items()
    return Cluster.parse({
        "name": "lopsided",
        "kinds": {name: {**kind, "memory_bytes": big}, "tiny": {**kind, "memory_bytes": tiny}},
        "devices": [{"kind": "tiny"}, {"kind": name}],
        "links": [{"mesh": "*", "bytes_per_s": 1e9}],
    })  # fmt: skip


def bad(task: Task, rng: np.random.Generator) -> Placement:
    """A search that finds nothing that fits before its budget ends."""
    wrong = task.problem.placement([0] * task.problem.g)
    while task.evaluate.remaining > 0:
        task.evaluate(wrong.batch())
    return wrong


@pytest.mark.parametrize("budget", [{"evaluations": 3}, {"evaluations": None, "seconds": 1e-6}])
def test_a_search_whose_budget_ends_has_the_simplest_placement(budget: dict[str, Any]) -> None:
    result = place(chain(6), cluster=lopsided(), policy=bad, budget=budget, baselines=[])
    summary, [program] = result.summary, result.summary.programs
    assert summary.fits
    assert result.placement is not None
    assert result.placement.device.tolist() == [1] * 7
    assert program.fallback == "all that may run there on gpu:0"
    assert any("found no placement that fits within its budget" in note for note in summary.notes)
    assert summary.evaluations == (budget["evaluations"] or 1), "it takes nothing of the budget"
    assert len(result.programs[0].history) == summary.evaluations, "and is in no history"


def test_a_policy_that_ends_by_itself_is_not_replaced() -> None:
    """Its placement does not fit: that is its result."""
    with pytest.raises(NothingFits):
        place(
            chain(6), cluster=lopsided(), policy=lambda task, _: task.problem.placement([0] * task.problem.g), budget=3
        )


def test_nothing_fits_where_no_simple_placement_does() -> None:
    with pytest.raises(NothingFits) as failed:
        place(chain(6), cluster=lopsided(big=1400.0), policy=bad, budget=3, baselines=[])
    assert failed.value.result.summary.programs[0].fallback == ""


def test_large_parameters_are_spread_in_order() -> None:
    """No device holds all of them: each gets a run of the chain, with the parameters that its kernels read."""
    builder, x = GraphBuilder("deep"), [0]
    x = [builder.source("x", 1)]
    for i in range(8):
        w = builder.source(f"w{i}", 100)
        x = builder.add(f"y{i}", inputs=[*x, w], outputs=[1], flops=1.0)
    graph = builder.build()
    [(name, kind)] = machine(1).model_dump(mode="json")["kinds"].items()
    cluster = Cluster.parse({
        "name": "small", "kinds": {name: {**kind, "memory_bytes": 450}}, "devices": [{"kind": name, "count": 2}],
        "links": [{"mesh": "*", "bytes_per_s": 1e9}],
    })  # fmt: skip
    result = place(graph, cluster=cluster, policy=bad, budget=2, baselines=[])
    assert result.summary.programs[0].fallback.startswith("its groups in order")
    assert result.placement is not None
    device = dict(zip(graph.op_name, result.problem.expand(result.placement.device).tolist(), strict=True))
    assert [device[f"w{i}"] for i in range(8)] == [device[f"y{i}"] for i in range(8)] == [0] * 4 + [1] * 4


def test_the_simplest_placements_are_allowed_ones_and_few() -> None:
    """One device of each kind is tried."""
    problem = Problem.of(chain(6), machine(16))
    every = list(simplest(problem))
    assert len(every) == 3
    assert len({text for text, _ in every}) == 3
    for _, device in every:
        problem.placement(device)


@pytest.mark.parametrize("policy", ["portfolio", "annealing"])
def test_a_search_by_the_clock_evaluates_the_simplest_placement_first(policy: str) -> None:
    """However few the seconds: one device for all, if it holds all parameters."""
    budget: Any = {"evaluations": None, "seconds": 1e-9}
    result = place(chain(6), cluster=lopsided(tiny=500), policy=policy, budget=budget, baselines=[])
    assert result.placement is not None
    assert set(result.placement.device.tolist()) == {1}
    assert (result.summary.evaluations, result.summary.programs[0].fallback) == (1, "")


@pytest.mark.slow
def test_every_policy_returns_a_placement_in_any_number_of_seconds() -> None:
    """Learners, too; policies that refuse the program are not asked again."""
    [program] = load_programs("mlp", hidden=[16, 16], batch=4)
    budget: Any = {"evaluations": None, "seconds": 1e-3}
    placed = []
    for name in installed().names("policy"):
        try:
            result = place(program, cluster="p100x4", policy=name, budget=budget, baselines=[])
        except (NotApplicable, PlacementError):
            continue
        assert result.summary.fits, name
        placed.append(name)
    assert {"portfolio", "annealing", "etf", "single_device", "doppler", "placeto", "seq2seq"} <= set(placed)
