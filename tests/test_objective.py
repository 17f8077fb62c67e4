"""A backend may minimise something that is no time: its values have its unit wherever a user sees them."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from placekit_testing import BackendContract
from placekit_testing.fakes import FakeBackend, FakeSession
from placekit_testing.registries import listed

from placekit_core import Executable, Problem
from placekit_core.cli.main import main
from placekit_core.contracts.result import compared
from placekit_core.contracts.units import format_value

WATTS = 250.0


class EnergySession(FakeSession):
    """Joules: every device draws the same power while it works."""

    def _value_s(self, device: NDArray[np.int16]) -> NDArray[np.float64]:
        return WATTS * super()._value_s(device)


class Energy(FakeBackend):
    """What a step costs in joules."""

    name = "energy"
    objective = "energy"
    unit = "J"

    def open(self, problem: Problem, executable: Executable | None = None) -> EnergySession:
        return EnergySession(problem, self.options.failing, self.options.compiled)


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The backend is installed for the time of a test."""
    listed(monkeypatch, tmp_path, "backend", Energy)


class TestEnergy(BackendContract):
    seeds = range(2)

    @pytest.fixture
    def make(self) -> type[Energy]:
        return Energy


def test_a_run_shows_the_unit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    line = "run workload=chainmm_small +policy=random +backend=energy cluster=p100x4 budget.evaluations=20"
    for seed in (0, 1):
        monkeypatch.setattr(sys, "argv", ["placekit", *line.split(), f"seed={seed}", f"run_dir=out/{seed}"])
        assert main() == 0
    shown = capsys.readouterr()
    found = json.loads((tmp_path / "out" / "0" / "result.json").read_text())
    value = format_value(found["value_s"], "J")
    assert value.endswith(" J")
    assert (found["objective"], found["unit"]) == ("energy", "J")
    assert value in shown.out
    assert "faster" not in shown.out + shown.err
    assert not re.search("(faster|slower) than|as fast as", (tmp_path / "out" / "0" / "report.html").read_text())
    monkeypatch.setattr(sys, "argv", ["placekit", "compare", "out"])
    assert main() == 0
    table = capsys.readouterr().out
    assert " J" in table
    assert " ms" not in table + shown.out
    assert " us" not in table + shown.out
    for line in (
        "evaluate out/0/placement.json workload=chainmm_small +backend=energy cluster=p100x4",
        "apply out/0 --format msr",
    ):
        monkeypatch.setattr(sys, "argv", ["placekit", *line.split()])
        assert main() == 0
        told = capsys.readouterr()
        assert value in told.out + told.err


def test_what_is_no_time_is_not_faster() -> None:
    assert compared(3.0, 4.0, unit="J") == "25.0% less than"
    assert compared(9.0, 3.0, unit="J") == "200.0% more than"
    assert compared(3.0, 3.0, unit="$") == "as much as"
    assert compared(3.0, 4.0) == "33.3% faster than"
