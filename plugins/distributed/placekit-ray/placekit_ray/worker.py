"""The Ray actor that evaluates placements."""

from __future__ import annotations

import os
import socket
import time
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

import ray

from placekit_core import Backend, BackendError, Executable, PlacekitError, Problem, Schedule, Session, installed
from placekit_ray.wire import measurements_as, placements_from, unpacked


class Worker:
    """Evaluates placements of several problems on one backend.

    Every call passes references to all problems, so that an actor that Ray has restarted can open them again.
    """

    def __init__(self) -> None:
        self.opened: list[tuple[Problem, Session, float]] = []

    def open(self, problems: Sequence[Any]) -> dict[str, Any]:
        """Build, open and compile all problems that are not open yet. Returns an exception as `raised` does, else {}.

        Each reference is to plain data: the `backend` (`{"name": ..., OPTION: ...}`), the `problem` (see `wire.packed`), the
        `recipe` of its executable, or None, and `least_s`.
        """
        try:
            for reference in list(problems)[len(self.opened) :]:
                about = ray.get(reference)
                options = {k: v for k, v in about["backend"].items() if k != "name"}
                backend: Backend = installed().build("backend", about["backend"]["name"], options)
                problem, recipe = unpacked(about["problem"]), about["recipe"]
                session = backend.open(problem, None if recipe is None else _executable(problem, recipe))
                if backend.simulated:  # the first evaluation compiles the simulator
                    session.evaluate(problem.placement(problem.allowed.argmax(axis=1)).batch())
                self.opened.append((problem, session, float(about["least_s"])))
        except Exception as e:
            return raised(e)
        return {}

    def evaluate(self, problems: Sequence[Any], number: int, placements: Mapping[str, Any]) -> dict[str, Any]:
        """Measure placements of problem `number`. Returns an exception as `raised` does."""
        if error := self.open(problems):
            return error
        try:
            began = time.perf_counter()
            _, session, least_s = self.opened[number]
            m = session.evaluate(placements_from(placements))
            time.sleep(max(0.0, least_s * len(m) - (time.perf_counter() - began)))
            return measurements_as(m)
        except Exception as e:
            return raised(e)

    def schedule(
        self, problems: Sequence[Any], number: int, placements: Mapping[str, Any]
    ) -> dict[str, Any] | Schedule:
        """The schedule of one placement of problem `number`. Returns an exception as `raised` does."""
        if error := self.open(problems):
            return error
        try:
            problem, session, _ = self.opened[number]
            return session.schedule(problem.placement(*placements_from(placements).one(0)))
        except Exception as e:
            return raised(e)


def _executable(problem: Problem, recipe: Mapping[str, Any]) -> Executable | None:
    """Build the executable of a program with its importer. Raises BackendError if that makes another program here."""
    programs = installed().build("importer", recipe["importer"], recipe["options"]).load()
    for program in programs:
        if program.graph.fingerprint == problem.graph.fingerprint:
            found: Executable | None = program.executable
            return found
    raise BackendError(
        f"importer {recipe['importer']!r} makes a different {problem.graph.name!r} on this machine",
        "use the same code, files and versions on all machines",
    )


def raised(error: Exception) -> dict[str, Any]:
    """An exception as plain data, so that the run reports the plugin's error instead of a failure of Ray."""
    message = error.message if isinstance(error, PlacekitError) else f"{type(error).__name__}: {error}"
    hint = error.hint if isinstance(error, PlacekitError) else "".join(traceback.format_tb(error.__traceback__)[-1:])
    return {"raised": message, "hint": " ".join(hint.split()), "host": socket.gethostname(), "pid": os.getpid()}


def failed(answer: Any) -> BackendError | None:
    """The error in an answer that `raised` made; None for other answers."""
    if not isinstance(answer, Mapping) or "raised" not in answer:
        return None
    where = f"process {answer['pid']} on {answer['host']}"
    return BackendError(f"{answer['raised']} (in {where})", answer["hint"])
