"""`placekit bounds`: the table, and certificates that are made and checked."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
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


def test_a_certificate_is_made_and_checked(placekit: Run, tmp_path: Path) -> None:
    made = placekit("bounds", *SMALL, "--certificate", "b.json")
    assert made.code == 0
    assert made.out.startswith("b.json proves ")
    again = placekit("bounds", "--check", "b.json", *SMALL)
    assert again.code == 0
    assert "b.json proves that no placement of chainmm on p100x4 that fits is faster than" in again.out

    data = json.loads((tmp_path / "b.json").read_text())
    data["bound_s"] *= 1.01
    (tmp_path / "wrong.json").write_text(json.dumps(data))
    wrong = placekit("bounds", "--check", "wrong.json", *SMALL)
    assert (wrong.code, wrong.out) == (1, "")
    assert wrong.err.startswith("placekit: wrong.json proves nothing of chainmm on p100x4: it claims ")

    other = placekit("bounds", "--check", "b.json", "workload=mlp", "cluster=p100x4")
    assert "b.json proves nothing of mlp on p100x4 (the file says that it is of chainmm on p100x4): " in other.err

    data["bound_s"] = 0.0
    (tmp_path / "nothing.json").write_text(json.dumps(data))
    assert (
        "nothing.json proves nothing of chainmm on p100x4: its bound is 0 s"
        in placekit("bounds", "--check", "nothing.json", *SMALL).err
    )


@pytest.mark.slow
def test_a_family_has_a_table_for_each_program(placekit: Run) -> None:
    out = placekit("bounds", "workload=placeto_ptb_small", "cluster=p100x4").out
    assert out.count("\nproven: ") == 3
    assert len(out.split("\n\n")) == 3


def test_mistakes(placekit: Run, tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text("{}")
    for words, said in (
        (["--certificate", "old.json", *SMALL], "old.json exists already"),
        (["--check", "old.json", *SMALL], "old.json is not a readable certificate of a bound"),
        (["--check", "none.json", *SMALL], "cannot read certificate of a bound none.json"),
        (["--check", "old.json", "--certificate", "new.json", *SMALL], "not allowed with argument"),
        (
            ["backend=max_load", *SMALL],
            "backend 'max_load' has the objective max_load, and these are bounds of makespans",
        ),
    ):
        outcome = placekit("bounds", *words)
        assert (outcome.code, outcome.out) == (1, "")
        assert said in outcome.err
        assert "Traceback" not in outcome.err
