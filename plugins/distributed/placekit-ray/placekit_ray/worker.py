"""The process that evaluates placements: a Ray actor."""

from __future__ import annotations

import os
import socket
import time
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from placekit_core import Backend, BackendError, Executable, PlacekitError, Problem, Schedule, Session, installed
from placekit_ray.wire import measurements_as, placements_from, unpacked

UNREADY = {"unready": True}
"""The answer of a process that Ray has started in place of one that died, before it was told anything."""


class Worker:
    """Evaluates placements of some problems on one backend.

    It knows nothing before it is told: an actor that Ray has restarted is a new process, and is told again.
    """

    opened: Sequence[tuple[Problem, Session]] = ()
    least_s = 0.0

    def ready(self, about: Mapping[str, Any]) -> dict[str, Any]:
        """Get ready: build programs, open sessions, compile; what is open already stays.

        The answer says where this process is, or what was raised.

        `about` is plain data: the `backend` (`{"name": ..., OPTION: ...}`), `problems` (see `wire.packed`), for each the
        `recipes` of its executable, or None, and `least_s`.
        """
        try:
            options = {k: v for k, v in about["backend"].items() if k != "name"}
            backend: Backend = installed().build("backend", about["backend"]["name"], options)
            found = list(self.opened)
            for data, recipe in list(zip(about["problems"], about["recipes"], strict=True))[len(found) :]:
                problem = unpacked(data)
                session = backend.open(problem, None if recipe is None else _executable(problem, recipe))
                found.append((problem, session))
                if backend.simulated:  # the first evaluation compiles
                    session.evaluate(problem.placement(problem.allowed.argmax(axis=1)).batch())
            self.opened, self.least_s = found, float(about["least_s"])
        except Exception as e:
            return raised(e)
        return {"host": socket.gethostname(), "pid": os.getpid()}

    def evaluate(self, number: int, placements: Mapping[str, Any]) -> dict[str, Any]:
        """The measurements of placements of problem `number`, or what was raised."""
        if number >= len(self.opened):
            return dict(UNREADY)
        try:
            began = time.perf_counter()
            m = self.opened[number][1].evaluate(placements_from(placements))
            time.sleep(max(0.0, self.least_s * len(m) - (time.perf_counter() - began)))
            return measurements_as(m)
        except Exception as e:
            return raised(e)

    def schedule(self, number: int, placements: Mapping[str, Any]) -> dict[str, Any] | Schedule:
        """The schedule of one placement of problem `number`, or what was raised."""
        if number >= len(self.opened):
            return dict(UNREADY)
        try:
            problem, session = self.opened[number]
            return session.schedule(problem.placement(*placements_from(placements).one(0)))
        except Exception as e:
            return raised(e)


def _executable(problem: Problem, recipe: Mapping[str, Any]) -> Executable | None:
    """The executable of a program, which its importer builds here. Raises BackendError if it is another program."""
    programs = installed().build("importer", recipe["importer"], recipe["options"]).load()
    for program in programs:
        if program.graph.fingerprint == problem.graph.fingerprint:
            found: Executable | None = program.executable
            return found
    raise BackendError(
        f"importer {recipe['importer']!r} makes another program {problem.graph.name!r} on this machine",
        "all machines need the same code, files and versions",
    )


def raised(error: Exception) -> dict[str, Any]:
    """An exception as plain data: the exception of a plugin is told as the plugin's, not as a failure of Ray."""
    message = error.message if isinstance(error, PlacekitError) else f"{type(error).__name__}: {error}"
    hint = error.hint if isinstance(error, PlacekitError) else "".join(traceback.format_tb(error.__traceback__)[-1:])
    return {"raised": message, "hint": " ".join(hint.split()), "host": socket.gethostname(), "pid": os.getpid()}


def failed(answer: Any) -> BackendError | None:
    """The error in the answer of a process, if it is one."""
    if not isinstance(answer, Mapping) or "raised" not in answer:
        return None
    where = f"process {answer['pid']} on {answer['host']}"
    return BackendError(f"{answer['raised']} (in {where})", answer["hint"])
