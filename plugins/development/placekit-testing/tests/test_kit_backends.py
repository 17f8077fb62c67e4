"""The contract of backends passes for right backends, and finds planted bugs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from kit_backends import Measured, Measuring, MeasuringSession, Right, RightSession
from kit_tools import catches, changed, outcome, own_checks, skipped
from placekit_testing import BackendContract
from wrong_backends import KERNEL, SCHEDULE, WRONG, running

from placekit_core import Executable, Placement, Problem, Schedule

CHECKS = own_checks(BackendContract)


def test_passes_for_right_backends(tmp_path: Path) -> None:
    assert skipped(BackendContract, CHECKS, Right, tmp_path) == {"check_without_an_executable"}
    assert skipped(Measured, CHECKS, Measuring, tmp_path) == {
        "check_sources_only", "check_batch_equals_one_by_one", "check_values_repeat", KERNEL,
        "check_other_processes_give_the_same", "check_no_value_beats_the_bound", "check_schedule_agrees_with_the_value",
        "check_priorities_matter_only_if_it_says_so",
    }  # fmt: skip


def test_passes_for_a_backend_with_another_objective_and_nothing_optional(tmp_path: Path) -> None:
    bare = changed(RightSession, lower_bound=lambda self: None, kernel=lambda self: None)
    backend = running(bare, objective="max_load")
    assert skipped(BackendContract, CHECKS, backend, tmp_path) == {
        "check_without_an_executable", "check_other_processes_give_the_same", "check_no_value_beats_the_bound", KERNEL,
    }  # fmt: skip


def test_finds_planted_bugs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PLACEKIT_TEST_OWNER", str(tmp_path / "owner"))
    measured = "check_without_an_executable"
    catches(BackendContract, {*CHECKS} - {measured}, [w for w in WRONG if w[0] != measured], tmp_path)
    catches(Measured, [measured], [w for w in WRONG if w[0] == measured], tmp_path)


def test_clocks_may_differ_by_so_much_only(tmp_path: Path) -> None:
    class Late(MeasuringSession):
        def schedule(self, placement: Placement) -> Schedule:
            schedule = super().schedule(placement)
            producer = self.problem.graph.tensor_producer[schedule.transfer_tensor]
            return replace(schedule, transfer_start_s=schedule.op_end_s[producer] - 0.5e-6)

    class BackendLate(Measuring):
        def open(self, problem: Problem, executable: Executable | None = None) -> MeasuringSession:
            assert executable is not None
            return Late(problem, executable)

    class OneClock(Measured):
        clock_s = 0.0

    assert outcome(Measured, SCHEDULE, BackendLate, tmp_path) == "passed"
    assert "is sent before it is written" in outcome(OneClock, SCHEDULE, BackendLate, tmp_path)
    two_clocks = changed(BackendContract, clock_s=1e-6)
    assert "one clock" in outcome(two_clocks, "check_declares_what_it_is", Right, tmp_path)


def test_no_problems_are_no_success(tmp_path: Path) -> None:
    contract = changed(BackendContract, seeds=range(0))
    assert "nothing would be checked" in outcome(contract, "check_measurements", Right, tmp_path)
