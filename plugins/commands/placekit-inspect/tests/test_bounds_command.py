"""`placekit bounds`: the table of bounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from placekit_scheduling import all_bounds, makespan_bound

from placekit_core import installed
from placekit_core.cli.compose import assembled
from placekit_core.contracts.units import seconds

Run = Callable[..., Any]
SMALL = ("workload=chainmm_small", "cluster=p100x4")


def test_every_bound_and_which_binds(placekit: Run) -> None:
    shown = placekit("bounds", *SMALL)
    assert shown.code == 0
    lines = shown.out.splitlines()
    parts = assembled(list(SMALL), installed())
    problem = parts.problem(parts.programs[0])
    assert lines[0] == "chainmm on p100x4: 112 operations in 112 groups"
    assert {line.split()[0]: " ".join(line.split()[1:]) for line in lines[2:-1]} == {
        name: seconds(bound or None) for name, bound in all_bounds(problem).items()
    }
    assert lines[-1].startswith(f"proven: {seconds(makespan_bound(problem))}, by ")


def test_a_backend_of_another_objective_has_no_such_bounds(placekit: Run) -> None:
    outcome = placekit("bounds", "backend=max_load", *SMALL)
    assert (outcome.code, outcome.out) == (1, "")
    assert "backend 'max_load' minimizes the max_load, but this command bounds makespans" in outcome.err
    assert "Traceback" not in outcome.err
