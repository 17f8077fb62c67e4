"""Each check of the contract of backends passes for a right backend, and catches one that is wrong."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from placekit_core.errors import PlacekitError
from placekit_core.interfaces import Backend, Executable
from placekit_core.measurement import Kernel, Measurements, Schedule
from placekit_core.placement import Placement, Placements
from placekit_core.problem import Problem
from placekit_core.testing import BackendContract, Contract
from placekit_core.testing.contract import checks_of
from placekit_core.testing.fakes import FakeBackend, FakeOptions, FakeSession
from tests.kit_tools import fails, run_check

CHECKS = [name for name in checks_of(BackendContract) if name not in checks_of(Contract)]


class RightSession(FakeSession):
    """That of the kit's fake, with a kernel."""

    def kernel(self) -> Kernel | None:
        """The same in plain Python: what is called is what counts here."""

        def function(
            device: NDArray[np.int16], priority: Any, ints: Any, floats: Any, a: Any, b: Any, peak: Any
        ) -> float:
            result = self.evaluate(Placements.of(device))
            peak[:] = result.peak_bytes[0]
            return float(result.value_s[0])

        return Kernel(function, np.empty(0, np.int32), np.empty(0), 0, 0)


class Right(FakeBackend):
    """The kit's fake, with a kernel."""

    session: ClassVar[type[RightSession]] = RightSession

    def open(self, problem: Problem, executable: Executable | None = None) -> FakeSession:
        return self.session(problem)


class SaysNothing(Right):
    """`deterministic` is a word, not True or False."""

    deterministic = "mostly"  # type: ignore[assignment]


def running(session: type[RightSession]) -> type[Right]:
    """The backend with these sessions, and the docstring of theirs."""
    return type(session.__name__, (Right,), {"session": session, "__doc__": session.__doc__})


class OnlyTheBest(RightSession):
    """A batch is answered by the value of its best placement alone."""

    def evaluate(self, placements: Placements) -> Measurements:
        result = super().evaluate(placements)
        return replace(result, value_s=result.value_s[:1])


class MinusOne(RightSession):
    """Some placements have the value -1 instead of an error."""

    def evaluate(self, placements: Placements) -> Measurements:
        result = super().evaluate(placements)
        return replace(result, value_s=np.where(placements.device[:, 0] == 0, -1.0, result.value_s))


class NeedsAPlacement(RightSession):
    """An empty batch is an IndexError."""

    def evaluate(self, placements: Placements) -> Measurements:
        _ = placements.device[0]
        return super().evaluate(placements)


class TimesKernels(RightSession):
    """The mean seconds of a kernel are computed on the way, of which a graph without kernels has none."""

    def evaluate(self, placements: Placements) -> Measurements:
        result, kernels = super().evaluate(placements), int(self.problem.graph.kernel.sum())
        return replace(result, value_s=np.asarray([kernels * (v / kernels) for v in result.value_s.tolist()]))


class DependsOnTheBatch(RightSession):
    """A value depends on where in its batch the placement is."""

    def evaluate(self, placements: Placements) -> Measurements:
        result = super().evaluate(placements)
        return replace(result, value_s=result.value_s * (1 + 1e-9 * np.arange(len(placements))))


class Drifts(RightSession):
    """Values depend on how much was evaluated before."""

    def evaluate(self, placements: Placements) -> Measurements:
        result = super().evaluate(placements)
        return replace(result, value_s=result.value_s * (1 + 1e-9 * self.evaluated))


class SortsPriorities(RightSession):
    """The priorities are replaced by their ranks, in the caller's array."""

    def evaluate(self, placements: Placements) -> Measurements:
        if placements.priority is not None:
            placements.priority[:] = placements.priority.argsort(axis=1)
        return super().evaluate(placements)


class ScalesCosts(RightSession):
    """The seconds of the problem are turned into microseconds in place."""

    def evaluate(self, placements: Placements) -> Measurements:
        self.problem.op_s.__imul__(1e6)
        return super().evaluate(placements)


class LastOpened(RightSession):
    """All sessions share what they read costs from: that of the session opened last."""

    scale = 1.0

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        LastOpened.scale = float(problem.graph.n)

    def evaluate(self, placements: Placements) -> Measurements:
        result = super().evaluate(placements)
        return replace(result, value_s=result.value_s * LastOpened.scale)


class ClosesOnce(RightSession):
    """A second `close` is an error."""

    open = True

    def close(self) -> None:
        assert self.open
        self.open = False


class HiddenSetting(Right):
    """A setting is counted up in the constructor and is no option."""

    made = itertools.count()

    def __init__(self, options: FakeOptions | None = None, **values: Any) -> None:
        super().__init__(options, **values)
        self.factor = 1.0 + next(self.made)

    def open(self, problem: Problem, executable: Executable | None = None) -> FakeSession:
        session = super().open(problem)
        session.problem = replace(problem, costs=replace(problem.costs, op_s=problem.costs.op_s * self.factor))
        return session


class RaisesOutOfMemory(RightSession):
    """What does not fit is an exception."""

    def evaluate(self, placements: Placements) -> Measurements:
        result = super().evaluate(placements)
        if not result.fits.all():
            raise PlacekitError("out of memory")
        return result


class ForgetsParameters(RightSession):
    """The peak is what is alive beside the parameters: nothing, in this simulation."""

    def evaluate(self, placements: Placements) -> Measurements:
        result = super().evaluate(placements)
        return replace(result, peak_bytes=np.zeros_like(result.peak_bytes))


class NothingFits(RightSession):
    """`fits` is False whatever the peak."""

    def evaluate(self, placements: Placements) -> Measurements:
        result = super().evaluate(placements)
        return replace(result, fits=np.zeros_like(result.fits))


class ProvesTooMuch(RightSession):
    """The bound is twice the optimum."""

    def lower_bound(self) -> float:
        return 2 * super().lower_bound() + 1


class SlowestOnly(RightSession):
    """The value is the longest group, not the sum: operations of one stream overlap."""

    def evaluate(self, placements: Placements) -> Measurements:
        result, p = super().evaluate(placements), self.problem
        return replace(result, value_s=p.group_s[np.arange(p.g), placements.device].max(axis=1))


class SharesTheWork(RightSession):
    """The value is divided by the devices that there are, not by those that work."""

    def evaluate(self, placements: Placements) -> Measurements:
        result = super().evaluate(placements)
        return replace(result, value_s=result.value_s / self.problem.cluster.size)


def scheduling(change: Callable[[Problem, Schedule], dict[str, Any]], says: str) -> type[Right]:
    """The backend whose schedules are changed like that."""

    class Session(RightSession):
        def schedule(self, placement: Placement) -> Schedule:
            schedule = super().schedule(placement)
            return replace(schedule, **change(self.problem, schedule))

    backend = running(Session)
    backend.__doc__ = says
    return backend


class RoundedKernel(RightSession):
    """The compiled evaluation calculates in single precision."""

    def kernel(self) -> Kernel | None:
        kernel = super().kernel()
        assert kernel is not None
        return replace(kernel, function=lambda *arguments: float(np.float32(kernel.function(*arguments))) * (1 + 1e-7))


WRONG: dict[str, type[Backend]] = {
    "test_declares_what_it_is": SaysNothing,
    "test_measurements_have_their_shapes": running(OnlyTheBest),
    "test_values_are_seconds": running(MinusOne),
    "test_empty_batch": running(NeedsAPlacement),
    "test_sources_only": running(TimesKernels),
    "test_batch_equals_one_by_one": running(DependsOnTheBatch),
    "test_evaluating_twice_gives_the_same": running(Drifts),
    "test_placements_are_left_alone": running(SortsPriorities),
    "test_problem_is_left_alone": running(ScalesCosts),
    "test_sessions_are_independent": running(LastOpened),
    "test_closing_twice": running(ClosesOnce),
    "test_options_rebuild_the_backend": HiddenSetting,
    "test_out_of_memory_is_a_value": running(RaisesOutOfMemory),
    "test_peaks_hold_what_is_persistent": running(ForgetsParameters),
    "test_fits_means_within_memory": running(NothingFits),
    "test_no_value_beats_the_bound": running(ProvesTooMuch),
    "test_one_device_takes_the_sum": running(SlowestOnly),
    "test_idle_device_changes_nothing": running(SharesTheWork),
    "test_schedule_has_every_operation": scheduling(
        lambda p, s: {"op_start_s": s.op_start_s[p.graph.kernel]}, "The schedule has kernels only, and no sources."
    ),
    "test_operations_wait_for_their_inputs": scheduling(
        lambda p, s: {"op_start_s": np.zeros(p.graph.n)}, "All operations start at once."
    ),
    "test_transfers_wait_for_their_tensors": scheduling(
        lambda p, s: {"transfer_start_s": np.zeros(len(s.transfer_tensor))}, "All tensors are sent at the start."
    ),
    "test_streams_run_one_operation_at_a_time": scheduling(
        lambda p, s: {"op_end_s": s.op_end_s + 1}, "Operations go on while the next one of their stream runs."
    ),
    "test_schedule_agrees_with_the_value": scheduling(
        lambda p, s: {"value_s": 1000 * s.value_s}, "The schedule's value is in milliseconds."
    ),
    "test_kernel_equals_evaluate": running(RoundedKernel),
}


def test_each_check_has_its_wrong_backend() -> None:
    assert list(WRONG) == CHECKS


@pytest.mark.parametrize("name", CHECKS)
def test_passes_for_a_right_backend(name: str, tmp_path: Path) -> None:
    run_check(BackendContract, name, Right, tmp_path)


@pytest.mark.parametrize("name", WRONG)
def test_catches_the_wrong_backend(name: str, tmp_path: Path) -> None:
    fails(BackendContract, name, WRONG[name], tmp_path)


DETERMINISTIC = {"batch_equals_one_by_one", "evaluating_twice_gives_the_same", "sessions_are_independent"}
MAKESPAN = {"one_device_takes_the_sum", "idle_device_changes_nothing"}


@pytest.mark.parametrize(
    ("declared", "skipped"),
    [
        ({"deterministic": False}, DETERMINISTIC | {"options_rebuild_the_backend", "schedule_agrees_with_the_value"}),
        ({"simulated": False}, MAKESPAN | {"schedule_agrees_with_the_value"}),
        ({"objective": "max_load"}, MAKESPAN),
    ],
    ids=["measured", "not simulated", "another objective"],
)
def test_what_is_not_declared_is_not_checked(declared: dict[str, Any], skipped: set[str], tmp_path: Path) -> None:
    backend = type("Declared", (Right,), declared)
    found = set()
    for name in CHECKS:
        try:
            run_check(BackendContract, name, backend, tmp_path)
        except pytest.skip.Exception:
            found.add(name.removeprefix("test_"))
    assert found == skipped


def test_what_is_not_offered_is_not_checked(tmp_path: Path) -> None:
    class Bare(RightSession):
        def lower_bound(self) -> None:
            return None

        def kernel(self) -> None:
            return None

    for name in ("test_no_value_beats_the_bound", "test_kernel_equals_evaluate"):
        with pytest.raises(pytest.skip.Exception, match=r"this backend (proves no bound|offers no compiled)"):
            run_check(BackendContract, name, running(Bare), tmp_path)
