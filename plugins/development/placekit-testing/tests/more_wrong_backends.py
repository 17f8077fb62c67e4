"""Further backends that are wrong, each in one way: a check of the contract may have to notice several."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from kit_backends import Right, RightSession
from numpy.typing import NDArray
from placekit_scheduling import Trace
from wrong_backends import running, scheduling, tracing

from placekit_core import Executable, Measurements, Placements, Problem, Schedule


class FirstProcess(Right):
    """The first process to ask gets the values, all others somewhat higher ones; says that it is `parallel`."""

    def open(self, problem: Problem, executable: Executable | None = None) -> RightSession:
        owner = Path(os.environ["PLACEKIT_TEST_OWNER"])
        if not owner.exists():
            owner.write_text(str(os.getpid()))
        factor = 1.0 if owner.read_text() == str(os.getpid()) else 1.5
        return RightSession(replace(problem, costs=replace(problem.costs, op_s=problem.costs.op_s * factor)))


def writing(attribute: Callable[[Problem], NDArray[Any]], says: str) -> type[Right]:
    """The backend that writes into an array of its problem."""

    class Session(RightSession):
        def evaluate(self, placements: Placements) -> Measurements:
            array = attribute(self.problem)
            array.setflags(write=True)
            array[...] = True if array.dtype == np.bool_ else array + 1
            return super().evaluate(placements)

    Session.__name__ = says
    return running(Session)


def answering(says: str, objective: str = "makespan", **change: Callable[[Measurements], Any]) -> type[Right]:
    """The backend whose measurements are changed like that."""

    class Session(RightSession):
        def evaluate(self, placements: Placements) -> Measurements:
            result = super().evaluate(placements)
            return replace(result, **{name: function(result) for name, function in change.items()})

    Session.__name__ = says
    return type(says, (running(Session),), {"objective": objective})


def thrice(problem: Problem, schedule: Schedule) -> dict[str, Any]:
    """The columns of the transfers, repeated."""
    names = [f"transfer_{column}" for column in ("tensor", "src", "dst", "start_s", "end_s")]
    return {name: np.tile(getattr(schedule, name), 3) for name in names}


def one_round(problem: Problem, schedule: Schedule) -> dict[str, Any]:
    """Columns that say that everything starts in the first round."""
    rounds = (np.zeros(len(column), np.int32) for column in (schedule.op_start_s, schedule.transfer_start_s))
    return dict(zip(("op_round", "transfer_round"), rounds, strict=True))


class FivePercentTooHigh(RightSession):
    def lower_bound(self) -> float:
        return 1.05 * super().lower_bound()


def unnamed(session: RightSession, trace: Trace, ints: NDArray[np.int32], floats: NDArray[np.float64]) -> None:
    ints[trace.cause : trace.cause + trace.tasks] = -1


def circular(session: RightSession, trace: Trace, ints: NDArray[np.int32], floats: NDArray[np.float64]) -> None:
    """What takes no time may be its own cause by the clock."""
    last = ints[trace.last]
    if last >= 0:
        ints[trace.cause + last] = last


def not_run(session: RightSession, trace: Trace, ints: NDArray[np.int32], floats: NDArray[np.float64]) -> None:
    ints[trace.cause : trace.cause + trace.tasks] = trace.tasks - 1


def first_is_last(session: RightSession, trace: Trace, ints: NDArray[np.int32], floats: NDArray[np.float64]) -> None:
    ints[trace.last] = np.flatnonzero(session.problem.graph.kernel)[0]


def nothing_sent(session: RightSession, trace: Trace, ints: NDArray[np.int32], floats: NDArray[np.float64]) -> None:
    ints[trace.copies] = 0


def in_milliseconds(session: RightSession, trace: Trace, ints: NDArray[np.int32], floats: NDArray[np.float64]) -> None:
    floats *= 1000


TRACE = "check_trace_says_why_everything_started"
MORE = [  # further wrong ones, and what is said of them
    ("check_declares_what_it_is", type("Noisy", (Right,), {"deterministic": False}), "simulation, and not determin"),
    ("check_values_are_seconds", answering("Spread", spread_s=lambda r: r.value_s - 5), "the spread of the values"),
    ("check_problem_is_left_alone", writing(lambda p: p.allowed, "Allowed"), "problem.allowed"),
    (
        "check_problem_is_left_alone",
        writing(lambda p: p.group_persistent_bytes, "Persistent"),
        "group_persistent_bytes",
    ),
    ("check_problem_is_left_alone", writing(lambda p: p.cluster.memory_bytes, "Memory"), "cluster.memory_bytes"),
    ("check_problem_is_left_alone", writing(lambda p: p.cluster.routes.latency_s, "Latency"), "routes.latency_s"),
    ("check_no_value_beats_the_bound", running(FivePercentTooHigh), "below the bound"),
    ("check_one_device_takes_the_sum", answering("Huge", "max_load", value_s=lambda r: r.value_s + 1e9), "s, not"),
    (
        "check_one_device_takes_the_sum",
        answering("Half", "blocking_latency", value_s=lambda r: r.value_s / 2),
        "s, not",
    ),
    ("check_schedule_has_every_operation", scheduling(one_round, "All starts are in one round."), "in no later round"),
    ("check_transfers_take_their_seconds", scheduling(thrice, "Sends everything thrice."), "more than once"),
    ("check_other_processes_give_the_same", FirstProcess, "other values in another process"),
    (TRACE, tracing(unnamed, "Causes are -1."), "s without a cause"),
    (TRACE, tracing(circular, "The last is its own cause."), "its own cause"),
    (TRACE, tracing(not_run, "Causes did not run."), "did not run"),
    (TRACE, tracing(first_is_last, "The first is last."), "is not the last one to end"),
    (TRACE, tracing(nothing_sent, "No copies."), "not the transfers of the schedule"),
    (TRACE, tracing(in_milliseconds, "Milliseconds."), "the starts in the trace are not those of the schedule"),
]
