"""`isolation: process`: a child process measures, so that a crash loses one measurement and nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from multiprocessing.connection import Connection, Pipe
from typing import Any

import numpy as np

from placekit_core import BackendError, Executable, Measurements, Placement, Placements, Problem, Schedule, Session
from placekit_cuda import MeasuringOptions
from placekit_cuda.engine import MemoryExceeded
from placekit_cuda.session import Row, joined

_GRACE_S = 30.0  # extra time for the work besides the steps: planning, copies of the parameters
_LONGEST_S = 1e6  # the longest timeout that the system accepts


class IsolatedSession(Session):
    """A `MeasuredSession` in a child process, which builds the program anew from its recipe.

    Attributes:
        process: the child; None before the first measurement, and after a crash until the next one.
    """

    def __init__(self, backend: str, options: MeasuringOptions, problem: Problem, executable: Executable) -> None:
        if not executable.recipe:
            raise BackendError(
                f"another process cannot build {problem.graph.name!r}: it was made from objects in Python",
                "name it for an importer (`importer=torch importer.module=package.module:factory`), or backend.isolation=none",
            )
        self.problem, self.options = problem, options
        self._about = {
            "backend": backend,
            "options": options.model_dump() | {"isolation": "none"},
            "recipe": dict(executable.recipe),
            "problem": problem,
        }
        self.process: subprocess.Popen[bytes] | None = None
        self._pipe: Connection | None = None

    def evaluate(self, placements: Placements) -> Measurements:
        """Measure a batch, one placement at a time; if the child dies or hangs, the measurement has that as its error."""
        rows = [self._row(placements[i : i + 1]) for i in range(len(placements))]
        return joined(rows, self.problem.cluster.size)

    def schedule(self, placement: Placement) -> Schedule:
        """The timed events of one step. Raises BackendError if the child dies."""
        answer = self._ask("schedule", placement, 1 + self.options.warm_up)
        if isinstance(answer, str):
            raise BackendError(f"the schedule could not be measured: {answer}")
        found: Schedule = answer
        return found

    def close(self) -> None:
        """End the child, which frees its memory."""
        self._end()

    def _row(self, placement: Placements) -> Row:
        found = self._ask("evaluate", placement, self.options.warm_up + self.options.steps)
        if isinstance(found, str):
            return np.nan, np.nan, np.full(self.problem.cluster.size, np.nan), found
        error = found.error[0]
        if error is not None and not error.startswith(MemoryExceeded.__name__):
            self._end()  # it may hang, or its device may be broken
        return float(found.value_s[0]), float(found.spread_s[0]), found.peak_bytes[0], error

    def _ask(self, what: str, about: Any, steps: int) -> Any:
        """The answer of the child, or a text that says how the child ended."""
        if self.process is None:
            self._start()
        assert self._pipe is not None
        try:
            self._pipe.send((what, about))
            if not self._pipe.poll(min(steps * self.options.timeout_s + _GRACE_S, _LONGEST_S)):
                self._end()
                return "the process that ran it did not answer, and was ended"
            kind, answer = self._pipe.recv()
        except (EOFError, OSError):
            return f"the process that ran it {self._end()}"
        except BaseException:  # Ctrl-C: else the next request would get this answer
            self._end()
            raise
        if kind == "error":
            self._end()
        return answer

    def _start(self) -> None:
        """Start the child. Raises BackendError if it cannot open the program."""
        here, there = Pipe()
        there_fd = there.fileno()
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        command = [sys.executable, "-m", "placekit_cuda.worker", str(there_fd)]
        # in a session of its own: Ctrl-C goes to this process only, which ends the child
        self.process = subprocess.Popen(
            command, pass_fds=[there_fd], env=environment, stdin=subprocess.DEVNULL, start_new_session=True
        )
        there.close()  # the child's end of the pipe: while it is open here, reading would not end when the child dies
        self._pipe = here
        try:
            here.send(self._about)
            kind, answer = here.recv()
        except (EOFError, OSError):
            raise BackendError(f"the process that is to run {self.problem.graph.name!r} {self._end()}") from None
        except BaseException:
            self._end()
            raise
        if kind == "error":
            self._end()
            raise BackendError(answer)

    def _end(self) -> str:
        """End the child, and return how it ended."""
        if self.process is None:
            return "had ended"
        if self._pipe is not None:
            self._pipe.close()
        try:
            code = self.process.wait(timeout=2.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        self.process = self._pipe = None
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
