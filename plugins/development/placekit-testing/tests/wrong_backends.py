"""Backends with planted bugs, each with the check that must find it and words of its error."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from kit_backends import Measuring, Right, RightSession
from kit_tools import changed, writable
from numpy.typing import NDArray
from placekit_scheduling import Kernel, Trace

from placekit_core import Backend, Executable, Measurements, Options, PlacekitError, Placement, Placements, Problem

Ints, Floats = NDArray[np.int32], NDArray[np.float64]


class HashOrderSession(RightSession):
    """The session of `HashOrder`."""

    def evaluate(self, placements: Placements) -> Measurements:
        result, names = super().evaluate(placements), list(set(self.problem.graph.op_name))
        factor = 1 + 1e-9 * names.index(self.problem.graph.op_name[0])
        return replace(result, value_s=result.value_s * factor)


class HashOrder(Right):
    """Values depend on the order of a set of strings, which differs in every process."""

    session = HashOrderSession


class FirstProcess(Right):
    """The first process to ask gets the values, all others somewhat higher ones."""

    def open(self, problem: Problem, executable: Executable | None = None) -> RightSession:
        owner = Path(os.environ["PLACEKIT_TEST_OWNER"])
        if not owner.exists():
            owner.write_text(str(os.getpid()))
        factor = 1.0 if owner.read_text() == str(os.getpid()) else 1.5
        return RightSession(replace(problem, costs=replace(problem.costs, op_s=problem.costs.op_s * factor)))


class HiddenSetting(Right):
    """The constructor counts up a setting that is not an option."""

    made = itertools.count()

    def __init__(self, options: Options | None = None, **values: Any) -> None:
        super().__init__(options, **values)
        self.factor = 1.0 + next(self.made)

    def open(self, problem: Problem, executable: Executable | None = None) -> RightSession:
        return RightSession(replace(problem, costs=replace(problem.costs, op_s=problem.costs.op_s * self.factor)))


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


def running(session: type[RightSession], **members: Any) -> type[Right]:
    """The backend with these sessions."""
    return changed(Right, session=session, **members)


def having(**methods: Any) -> type[Right]:
    """The backend whose sessions have these methods."""
    return running(changed(RightSession, **methods))


def answering(change: Callable[..., Any], column: str = "value_s", objective: str = "makespan") -> type[Right]:
    """The backend with this column of its measurements computed from (session, measurements, placements)."""

    def evaluate(self: RightSession, placements: Placements) -> Measurements:
        result = RightSession.evaluate(self, placements)
        return replace(result, **{column: change(self, result, placements)})

    return running(changed(RightSession, evaluate=evaluate), objective=objective)


def before(change: Callable[[RightSession, Placements], None]) -> type[Right]:
    """The backend that does something before each evaluation."""

    def evaluate(self: RightSession, placements: Placements) -> Measurements:
        change(self, placements)
        return RightSession.evaluate(self, placements)

    return having(evaluate=evaluate)


def writing(attribute: Callable[[Problem], NDArray[Any]]) -> type[Right]:
    """The backend that writes into an array of its problem."""

    def write(session: RightSession, placements: Placements) -> None:
        array = writable(attribute(session.problem))
        array[...] = True if array.dtype == np.bool_ else array + 1

    return before(write)


def scheduling(change: Callable[[Problem, Any], dict[str, Any]]) -> type[Right]:
    """The backend with these columns of its schedules changed."""

    def schedule(self: RightSession, placement: Placement) -> Any:
        right = RightSession.schedule(self, placement)
        return replace(right, **change(self.problem, right))

    return having(schedule=schedule)


def tracing(change: Callable[[RightSession, Trace, Ints, Floats], None]) -> type[Right]:
    """The backend whose trace, in the working arrays of integers and floats, is changed."""

    def kernel(self: RightSession) -> Kernel:
        right = RightSession.kernel(self)
        assert right is not None

        def function(*arguments: Any) -> float:
            value = right.function(*arguments)
            if right.trace is not None:
                change(self, right.trace, *arguments[4:6])
            return float(value)

        return replace(right, function=function)

    return having(kernel=kernel)


def rounded_kernel(self: RightSession) -> Kernel:
    kernel = RightSession.kernel(self)
    assert kernel is not None
    return replace(kernel, function=lambda *arguments: float(np.float32(kernel.function(*arguments))) * (1 + 1e-7))


def sorts_priorities(session: RightSession, placements: Placements) -> None:
    if placements.priority is not None:
        placements.priority[:] = placements.priority.argsort(axis=1)


def persistent(session: RightSession, result: Measurements, placements: Placements) -> Floats:
    """[b, D] persistent bytes on each device."""
    bytes_, size = session.problem.group_persistent_bytes, session.problem.cluster.size
    return np.asarray([np.bincount(device, bytes_, minlength=size) for device in placements.device], np.float64)


def group_seconds(session: RightSession, placements: Placements) -> Floats:
    return session.problem.group_s[np.arange(session.problem.g), placements.device]


def mean_of_kernels(session: RightSession, result: Measurements, placements: Placements) -> Floats:
    kernels = int(session.problem.graph.kernel.sum())
    return np.asarray([kernels * (v / kernels) for v in result.value_s.tolist()])


def out_of_memory(self: RightSession, placements: Placements) -> Measurements:
    result = RightSession.evaluate(self, placements)
    if not result.fits.all():
        raise PlacekitError("out of memory")
    return result


def looks_first(self: Measuring, problem: Problem, executable: Any = None) -> Any:
    _ = executable.random_ops
    return Measuring.open(self, problem, executable)


def thrice(problem: Problem, schedule: Any) -> dict[str, Any]:
    names = [f"transfer_{column}" for column in ("tensor", "src", "dst", "start_s", "end_s")]
    return {name: np.tile(getattr(schedule, name), 3) for name in names}


def late_ends(problem: Problem, schedule: Any) -> dict[str, Any]:
    """Operations whose outputs nobody reads still run when the next one of their stream starts."""
    graph = problem.graph
    read = np.isin(np.arange(graph.n), graph.tensor_producer[graph.input_tensor])
    return {"op_end_s": schedule.op_end_s + ~read}


def one_round(problem: Problem, schedule: Any) -> dict[str, Any]:
    rounds = (np.zeros(len(column), np.int32) for column in (schedule.op_start_s, schedule.transfer_start_s))
    return dict(zip(("op_round", "transfer_round"), rounds, strict=True))


def producers(session: RightSession, trace: Trace, ints: Ints, floats: Floats) -> None:
    """Causes are what an operation reads from, even if it waited for its device."""
    graph = session.problem.graph
    for v in np.flatnonzero(graph.kernel).tolist():
        read = graph.tensor_producer[graph.inputs(v)].tolist()
        ints[trace.cause + v] = read[0] if read else -1


def causes(value: Callable[[Trace], int]) -> type[Right]:
    def change(session: RightSession, trace: Trace, ints: Ints, floats: Floats) -> None:
        ints[trace.cause : trace.cause + trace.tasks] = value(trace)

    return tracing(change)


def circular(session: RightSession, trace: Trace, ints: Ints, floats: Floats) -> None:
    """An operation that takes no time may be its own cause by the clock."""
    last = ints[trace.last]
    if last >= 0:
        ints[trace.cause + last] = last


def first_is_last(session: RightSession, trace: Trace, ints: Ints, floats: Floats) -> None:
    ints[trace.last] = np.flatnonzero(session.problem.graph.kernel)[0]


def nothing_sent(session: RightSession, trace: Trace, ints: Ints, floats: Floats) -> None:
    ints[trace.copies] = 0


def in_milliseconds(session: RightSession, trace: Trace, ints: Ints, floats: Floats) -> None:
    floats *= 1000


DECLARES, MEASURED, INPUTS, REPEAT = (
    "check_declares_what_it_is", "check_measurements", "check_inputs_are_unchanged", "check_values_repeat",
)  # fmt: skip
PROCESSES, PEAKS, BOUND, LOAD = (
    "check_other_processes_give_the_same", "check_peaks_are_complete", "check_no_value_beats_the_bound",
    "check_values_hold_the_seconds_of_operations",
)  # fmt: skip
SCHEDULE, KERNEL = "check_schedule_is_possible", "check_kernel_equals_evaluate"
WRONG: list[tuple[str, type[Backend], str]] = [
    (DECLARES, changed(Right, deterministic="mostly"), "deterministic is 'mostly'"),
    (DECLARES, changed(Right, deterministic=False), "a simulation must be deterministic"),
    (MEASURED, answering(lambda s, r, p: r.value_s[:1]), "value_s has shape (1,), not (8,)"),
    (MEASURED, answering(lambda s, r, p: np.where(p.device[:, 0] == 0, -1.0, r.value_s)), "values ["),
    (MEASURED, answering(lambda s, r, p: r.value_s - 5, "spread_s"), "spread ["),
    (MEASURED, answering(lambda s, r, p: np.zeros_like(r.fits), "fits"), "are within the memory does not fit"),
    (MEASURED, before(lambda s, p: p.device[0].sum()), "IndexError"),
    ("check_sources_only", answering(mean_of_kernels), "ZeroDivisionError"),
    (INPUTS, before(sorts_priorities), "the priorities were changed"),
    (INPUTS, writing(lambda p: p.op_s), "were changed: problem.op_s"),
    (INPUTS, writing(lambda p: p.allowed), "problem.allowed"),
    (INPUTS, writing(lambda p: p.group_persistent_bytes), "group_persistent_bytes"),
    (INPUTS, writing(lambda p: p.cluster.memory_bytes), "cluster.memory_bytes"),
    (INPUTS, writing(lambda p: p.cluster.routes.latency_s), "routes.latency_s"),
    ("check_closing_twice", running(ClosesOnce), "closed before"),
    ("check_without_an_executable", changed(Measuring, open=looks_first), "AttributeError"),
    (
        "check_batch_equals_one_by_one",
        answering(lambda s, r, p: r.value_s * (1 + 1e-9 * np.arange(len(p)))),
        "values [",
    ),
    (REPEAT, answering(lambda s, r, p: r.value_s * (1 + 1e-9 * s.evaluated)), "values ["),
    (REPEAT, running(LastOpened), "values ["),
    (REPEAT, HiddenSetting, "values ["),
    (PROCESSES, HashOrder, "other values in another process"),
    (PROCESSES, FirstProcess, "other values in another process"),
    ("check_out_of_memory_is_a_value", having(evaluate=out_of_memory), "PlacekitError: out of memory"),
    (PEAKS, answering(lambda s, r, p: r.peak_bytes - persistent(s, r, p), "peak_bytes"), "are below ["),
    (PEAKS, answering(persistent, "peak_bytes"), "are below ["),
    (BOUND, having(lower_bound=lambda self: 2 * RightSession.lower_bound(self) + 1), "s is below the bound of"),
    (BOUND, having(lower_bound=lambda self: 1.05 * RightSession.lower_bound(self)), "s is below the bound of"),
    (LOAD, answering(lambda s, r, p: group_seconds(s, p).sum(axis=1) / s.problem.cluster.size), "below the load"),
    (LOAD, answering(lambda s, r, p: group_seconds(s, p).max(axis=1)), "below the load"),
    (LOAD, answering(lambda s, r, p: r.value_s + 1e9, objective="max_load"), " s, not "),
    (LOAD, answering(lambda s, r, p: r.value_s / 2, objective="blocking_latency"), " s, not "),
    (
        "check_idle_device_changes_nothing",
        answering(lambda s, r, p: r.value_s / s.problem.cluster.size),
        "an idle device changes the value",
    ),
    (SCHEDULE, scheduling(lambda p, s: {"op_start_s": s.op_start_s[p.graph.kernel]}), "a column of operations has"),
    (SCHEDULE, scheduling(lambda p, s: {"op_start_s": np.zeros(p.graph.n)}), "'k0' starts before tensor 3 is there"),
    (
        SCHEDULE,
        scheduling(lambda p, s: {"transfer_start_s": np.zeros(len(s.transfer_tensor))}),
        "is sent before it is written",
    ),
    (SCHEDULE, scheduling(lambda p, s: {"op_stream": s.op_stream + 9}), "a stream that does not exist"),
    (SCHEDULE, scheduling(lambda p, s: {"op_start_s": s.op_end_s}), "takes 0.0 s, its cost is"),
    (SCHEDULE, scheduling(lambda p, s: {"transfer_end_s": s.transfer_start_s}), "is sent in 0.0 s, its route takes"),
    (SCHEDULE, scheduling(late_ends), "starts while its stream is busy"),
    (SCHEDULE, scheduling(one_round), "in no later round"),
    (SCHEDULE, scheduling(thrice), "more than once"),
    (
        "check_schedule_agrees_with_the_value",
        scheduling(lambda p, s: {"value_s": 1000 * s.value_s}),
        "s in the schedule",
    ),
    (
        "check_priorities_matter_only_if_it_says_so",
        answering(lambda s, r, p: r.value_s * (1 + (0 if p.priority is None else p.priority.std(axis=1)))),
        "values [",
    ),
    (KERNEL, having(kernel=rounded_kernel), "s from evaluate"),
    (KERNEL, tracing(producers), "s without a cause"),
    (KERNEL, causes(lambda trace: -1), "s without a cause"),
    (KERNEL, tracing(circular), "its own cause"),
    (KERNEL, causes(lambda trace: trace.tasks - 1), "did not run"),
    (KERNEL, tracing(first_is_last), "is not the last one to end"),
    (KERNEL, tracing(nothing_sent), "not the transfers of the schedule"),
    (KERNEL, tracing(in_milliseconds), "the starts in the trace are not those of the schedule"),
]
