"""Backends that are wrong, each in one way, which the contract of backends must say: for the conformance kit's own tests."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from kit_backends import Measuring, MeasuringSession, Right, RightSession
from numpy.typing import NDArray
from placekit_scheduling import Kernel, Trace

from placekit_core import (
    Backend,
    Executable,
    Measurements,
    Options,
    PlacekitError,
    Placement,
    Placements,
    Problem,
    Schedule,
)


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
    """It computes the mean seconds of a kernel, and a graph without kernels has none."""

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


class MostUrgentFirst(RightSession):
    """It says that priorities do not matter, and runs what is urgent first."""

    def evaluate(self, placements: Placements) -> Measurements:
        result = super().evaluate(placements)
        late = 0.0 if placements.priority is None else placements.priority.std(axis=1)
        return replace(result, value_s=result.value_s * (1 + late))


class SortsPriorities(RightSession):
    """The priorities are replaced by their ranks, in the caller's array."""

    def evaluate(self, placements: Placements) -> Measurements:
        if placements.priority is not None:
            placements.priority[:] = placements.priority.argsort(axis=1)
        return super().evaluate(placements)


class ScalesCosts(RightSession):
    """The seconds of the problem are turned into microseconds in place."""

    def evaluate(self, placements: Placements) -> Measurements:
        self.problem.op_s.setflags(write=True)
        self.problem.op_s.__imul__(1e6)
        return super().evaluate(placements)


class LastOpened(RightSession):
    """All sessions read the costs of the session that was opened last."""

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
        assert self.open, "closed before"
        self.open = False


class LooksFirst(Measuring):
    """It uses the executable without checking that there is one: an AttributeError."""

    def open(self, problem: Problem, executable: Executable | None = None) -> MeasuringSession:
        _ = executable.random_ops  # type: ignore[union-attr]
        return super().open(problem, executable)


class HashOrderSession(RightSession):
    """That of `HashOrder`."""

    def evaluate(self, placements: Placements) -> Measurements:
        result, names = super().evaluate(placements), list(set(self.problem.graph.op_name))
        factor = 1 + 1e-9 * names.index(self.problem.graph.op_name[0])
        return replace(result, value_s=result.value_s * factor)


class HashOrder(Right):
    """Values depend on the order of a set of strings, which differs in every process."""

    session = HashOrderSession


class HiddenSetting(Right):
    """The constructor counts up a setting that is not an option."""

    made = itertools.count()

    def __init__(self, options: Options | None = None, **values: Any) -> None:
        super().__init__(options, **values)
        self.factor = 1.0 + next(self.made)

    def open(self, problem: Problem, executable: Executable | None = None) -> RightSession:
        session = super().open(problem)
        session.problem = replace(problem, costs=replace(problem.costs, op_s=problem.costs.op_s * self.factor))
        return session


class RaisesOutOfMemory(RightSession):
    """A placement that does not fit is an exception."""

    def evaluate(self, placements: Placements) -> Measurements:
        result = super().evaluate(placements)
        if not result.fits.all():
            raise PlacekitError("out of memory")
        return result


def persistent(problem: Problem, placements: Placements) -> NDArray[np.float64]:
    """[b, D] persistent bytes on each device."""
    bytes_, size = problem.group_persistent_bytes, problem.cluster.size
    return np.asarray([np.bincount(device, bytes_, minlength=size) for device in placements.device], np.float64)


class ForgetsParameters(RightSession):
    """The peak leaves out the persistent bytes."""

    def evaluate(self, placements: Placements) -> Measurements:
        result = super().evaluate(placements)
        return replace(result, peak_bytes=result.peak_bytes - persistent(self.problem, placements))


class ParametersOnly(RightSession):
    """The peak is the persistent bytes alone: outputs of kernels take no memory."""

    def evaluate(self, placements: Placements) -> Measurements:
        return replace(super().evaluate(placements), peak_bytes=persistent(self.problem, placements))


class NothingFits(RightSession):
    """`fits` is False whatever the peak."""

    def evaluate(self, placements: Placements) -> Measurements:
        result = super().evaluate(placements)
        return replace(result, fits=np.zeros_like(result.fits))


class ProvesTooMuch(RightSession):
    """The bound is twice the optimum."""

    def lower_bound(self) -> float:
        return 2 * super().lower_bound() + 1


class MeanLoad(RightSession):
    """The value is the mean load of the devices, not the largest."""

    def evaluate(self, placements: Placements) -> Measurements:
        p = self.problem
        load = p.group_s[np.arange(p.g), placements.device].sum(axis=1) / p.cluster.size
        return replace(super().evaluate(placements), value_s=load)


class SlowestOnly(RightSession):
    """The value is the longest group, not the sum: operations of one stream overlap."""

    def evaluate(self, placements: Placements) -> Measurements:
        result, p = super().evaluate(placements), self.problem
        return replace(result, value_s=p.group_s[np.arange(p.g), placements.device].max(axis=1))


class SharesTheWork(RightSession):
    """The value is divided by the number of all devices, not of those that work."""

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


def tracing(
    change: Callable[[RightSession, Trace, NDArray[np.int32], NDArray[np.float64]], None], says: str
) -> type[Right]:
    """The backend whose trace, in the working arrays of integers and floats, is changed like that."""

    class Session(RightSession):
        def kernel(self) -> Kernel | None:
            kernel = super().kernel()
            assert kernel is not None
            right, trace = kernel, kernel.trace

            def function(*arguments: Any) -> float:
                value = right.function(*arguments)
                if trace is not None:
                    change(self, trace, *arguments[4:6])
                return float(value)

            return replace(kernel, function=function)

    backend = running(Session)
    backend.__doc__ = says
    return backend


def producers(session: RightSession, trace: Trace, ints: NDArray[np.int32], floats: NDArray[np.float64]) -> None:
    """Causes are what an operation reads from."""
    graph = session.problem.graph
    for v in np.flatnonzero(graph.kernel).tolist():
        read = graph.tensor_producer[graph.inputs(v)].tolist()
        ints[trace.cause + v] = read[0] if read else -1


WRONG: dict[str, type[Backend]] = {
    "check_declares_what_it_is": SaysNothing,
    "check_measurements_have_their_shapes": running(OnlyTheBest),
    "check_values_are_seconds": running(MinusOne),
    "check_empty_batch": running(NeedsAPlacement),
    "check_sources_only": running(TimesKernels),
    "check_batch_equals_one_by_one": running(DependsOnTheBatch),
    "check_evaluating_twice_gives_the_same": running(Drifts),
    "check_placements_are_left_alone": running(SortsPriorities),
    "check_problem_is_left_alone": running(ScalesCosts),
    "check_sessions_are_independent": running(LastOpened),
    "check_closing_twice": running(ClosesOnce),
    "check_without_an_executable": LooksFirst,
    "check_options_rebuild_the_backend": HiddenSetting,
    "check_other_processes_give_the_same": HashOrder,
    "check_out_of_memory_is_a_value": running(RaisesOutOfMemory),
    "check_peaks_hold_what_is_persistent": running(ForgetsParameters),
    "check_peaks_hold_the_largest_output": running(ParametersOnly),
    "check_fits_means_within_memory": running(NothingFits),
    "check_no_value_beats_the_bound": running(ProvesTooMuch),
    "check_no_value_is_below_the_load": running(MeanLoad),
    "check_one_device_takes_the_sum": running(SlowestOnly),
    "check_idle_device_changes_nothing": running(SharesTheWork),
    "check_schedule_has_every_operation": scheduling(
        lambda p, s: {"op_start_s": s.op_start_s[p.graph.kernel]}, "The schedule has kernels only, and no sources."
    ),
    "check_operations_wait_for_their_inputs": scheduling(
        lambda p, s: {"op_start_s": np.zeros(p.graph.n)}, "All operations start at once."
    ),
    "check_transfers_wait_for_their_tensors": scheduling(
        lambda p, s: {"transfer_start_s": np.zeros(len(s.transfer_tensor))}, "All tensors are sent at the start."
    ),
    "check_streams_run_one_operation_at_a_time": scheduling(
        lambda p, s: {"op_end_s": s.op_end_s + 1}, "An operation still runs when the next one of its stream starts."
    ),
    "check_operations_take_their_seconds": scheduling(
        lambda p, s: {"op_start_s": s.op_end_s}, "Operations take no time: they start when they end."
    ),
    "check_transfers_take_their_seconds": scheduling(
        lambda p, s: {"transfer_end_s": s.transfer_start_s}, "Transfers arrive when they start."
    ),
    "check_schedule_agrees_with_the_value": scheduling(
        lambda p, s: {"value_s": 1000 * s.value_s}, "The schedule's value is in milliseconds."
    ),
    "check_priorities_matter_only_if_it_says_so": running(MostUrgentFirst),
    "check_kernel_equals_evaluate": running(RoundedKernel),
    "check_trace_says_why_everything_started": tracing(
        producers, "The cause of an operation is always its input, even if it waited for its device."
    ),
}
SAYS = {
    "check_declares_what_it_is": "deterministic is 'mostly'",
    "check_measurements_have_their_shapes": "value_s has shape (1,), not (5,)",
    "check_values_are_seconds": "values [",
    "check_empty_batch": "IndexError",
    "check_sources_only": "ZeroDivisionError",
    "check_batch_equals_one_by_one": "values [",
    "check_evaluating_twice_gives_the_same": "values [",
    "check_placements_are_left_alone": "the priorities were changed",
    "check_problem_is_left_alone": "were changed: problem.op_s",
    "check_sessions_are_independent": "values [",
    "check_closing_twice": "closed before",
    "check_without_an_executable": "AttributeError",
    "check_options_rebuild_the_backend": "values [",
    "check_other_processes_give_the_same": "other values in another process",
    "check_out_of_memory_is_a_value": "PlacekitError: out of memory",
    "check_peaks_hold_what_is_persistent": "are below [",
    "check_peaks_hold_the_largest_output": "are below [",
    "check_fits_means_within_memory": "whose peaks are within the memory does not fit",
    "check_no_value_beats_the_bound": "s is below the bound of",
    "check_no_value_is_below_the_load": "s is below the load of a device",
    "check_one_device_takes_the_sum": " s, not ",
    "check_idle_device_changes_nothing": "an idle device changes the value",
    "check_schedule_has_every_operation": "a column of operations has shape",
    "check_operations_wait_for_their_inputs": "'k0' starts before tensor 3 is there",
    "check_transfers_wait_for_their_tensors": "is sent before it is written",
    "check_streams_run_one_operation_at_a_time": "starts while its stream is busy",
    "check_operations_take_their_seconds": "takes 0.0 s, its cost is",
    "check_transfers_take_their_seconds": "is sent in 0.0 s, its route takes",
    "check_schedule_agrees_with_the_value": "s in the schedule",
    "check_priorities_matter_only_if_it_says_so": "values [",
    "check_kernel_equals_evaluate": "s from evaluate",
    "check_trace_says_why_everything_started": "s without a cause",
}
"""What the check must say of it."""
