"""Each check of the contract of backends passes for a right backend, and catches one that is wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from kit_backends import Measured, Measuring, MeasuringSession, Right, RightSession
from kit_tools import fails, run_check
from more_wrong_backends import MORE
from placekit_testing import BackendContract, Contract
from placekit_testing.contract import checks_of
from wrong_backends import SAYS, WRONG, running

from placekit_core import Backend, Executable, Placement, Problem, Schedule

CHECKS = [name for name in checks_of(BackendContract) if name not in checks_of(Contract)]


def contract_of(backend: type[Backend]) -> type[BackendContract]:
    """The contract, with something to run for backends that measure."""
    return Measured if issubclass(backend, Measuring) else BackendContract


def test_each_check_has_its_wrong_backend() -> None:
    assert list(WRONG) == list(SAYS) == CHECKS


def test_passes_for_a_right_backend(tmp_path: Path) -> None:
    for name in CHECKS:
        if name == "check_without_an_executable":
            continue  # that is for backends that run something
        run_check(BackendContract, name, Right, tmp_path)


NOT_MEASURED = {  # checks that need a simulation, or values that repeat
    "check_sources_only", "check_batch_equals_one_by_one", "check_evaluating_twice_gives_the_same",
    "check_sessions_are_independent",
    "check_options_rebuild_the_backend", "check_other_processes_give_the_same", "check_peaks_hold_what_is_persistent",
    "check_peaks_hold_the_largest_output", "check_no_value_beats_the_bound", "check_no_value_is_below_the_load",
    "check_one_device_takes_the_sum", "check_idle_device_changes_nothing", "check_operations_take_their_seconds",
    "check_transfers_take_their_seconds", "check_schedule_agrees_with_the_value",
    "check_priorities_matter_only_if_it_says_so", "check_kernel_equals_evaluate",
    "check_trace_says_why_everything_started",
}  # fmt: skip


def test_passes_for_a_backend_that_measures(tmp_path: Path) -> None:
    assert skipped(Measured, Measuring, tmp_path) == NOT_MEASURED


def test_clocks_may_differ_by_so_much_only(tmp_path: Path) -> None:
    class OneClock(Measured):
        clock_s = 0.0

    class Late(MeasuringSession):
        def schedule(self, placement: Placement) -> Schedule:
            schedule = super().schedule(placement)
            producer = self.problem.graph.tensor_producer[schedule.transfer_tensor]
            return replace(schedule, transfer_start_s=schedule.op_end_s[producer] - 0.5e-6)

    class BackendLate(Measuring):
        def open(self, problem: Problem, executable: Executable | None = None) -> MeasuringSession:
            assert executable is not None
            return Late(problem, executable)

    fails(OneClock, "check_transfers_wait_for_their_tensors", BackendLate, tmp_path, "is sent before it is written")
    run_check(Measured, "check_transfers_wait_for_their_tensors", BackendLate, tmp_path)


def test_a_simulation_has_one_clock(tmp_path: Path) -> None:
    class TwoClocks(BackendContract):
        clock_s = 1e-6

    fails(TwoClocks, "check_streams_run_one_operation_at_a_time", Right, tmp_path, "one clock")


def test_no_problems_are_no_success(tmp_path: Path) -> None:
    class NoSeeds(BackendContract):
        seeds = range(0)

    fails(NoSeeds, "check_values_are_seconds", Right, tmp_path, "nothing would be checked")


def skipped(contract: type[BackendContract], backend: type[Backend], folder: Path) -> set[str]:
    """The checks that say that they are not for this backend; all others pass."""
    found = set()
    for name in CHECKS:
        try:
            run_check(contract, name, backend, folder)
        except pytest.skip.Exception:
            found.add(name.removeprefix("test_"))
    return found


def test_catches_the_wrong_backend(tmp_path: Path) -> None:
    for name in WRONG:
        fails(contract_of(WRONG[name]), name, WRONG[name], tmp_path, SAYS[name])


@pytest.mark.parametrize(("name", "backend", "says"), MORE, ids=[f"{n}-{b.__name__}" for n, b, _ in MORE])
def test_catches_more(
    name: str, backend: type[Backend], says: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PLACEKIT_TEST_OWNER", str(tmp_path / "owner"))
    fails(BackendContract, name, backend, tmp_path, says)


def test_of_an_objective_that_is_no_makespan_less_is_checked(tmp_path: Path) -> None:
    backend = type("MaxLoad", (Right,), {"objective": "max_load"})
    assert skipped(BackendContract, backend, tmp_path) == {
        "check_without_an_executable", "check_other_processes_give_the_same", "check_peaks_hold_the_largest_output",
        "check_idle_device_changes_nothing", "check_operations_take_their_seconds", "check_transfers_take_their_seconds",
    }  # fmt: skip


def test_what_is_not_offered_is_not_checked(tmp_path: Path) -> None:
    class Bare(RightSession):
        def lower_bound(self) -> None:
            return None

        def kernel(self) -> None:
            return None

    for name in (
        "check_no_value_beats_the_bound",
        "check_kernel_equals_evaluate",
        "check_trace_says_why_everything_started",
    ):
        with pytest.raises(pytest.skip.Exception, match=r"this backend (proves no bound|offers no compiled)"):
            run_check(BackendContract, name, running(Bare), tmp_path)
