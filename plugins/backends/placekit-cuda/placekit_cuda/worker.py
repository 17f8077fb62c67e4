"""The child process of `isolation: process`: `python -m placekit_cuda.worker FD` answers one request after another."""

from __future__ import annotations

import contextlib
import ctypes
import signal
import sys
from multiprocessing.connection import Connection
from typing import Any

from placekit_core import BackendError, PlacekitError, Problem, Session, installed

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Open the program that the parent sends, and answer until the pipe is closed."""
    with contextlib.suppress(OSError, AttributeError):  # Linux: do not outlive the parent, even if something hangs here
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    with contextlib.suppress(EOFError, OSError):  # the parent has closed the pipe
        _serve(Connection(int(sys.argv[1])))


def _serve(pipe: Connection) -> None:
    about = pipe.recv()
    try:
        session = opened(about["backend"], about["options"], about["recipe"], about["problem"])
    except Exception as e:
        pipe.send(("error", _text(e)))
        return
    pipe.send(("ready", None))
    while True:
        what, given = pipe.recv()
        try:
            answer = "answer", getattr(session, what)(given)
        except Exception as e:
            answer = "error", _text(e)
        pipe.send(answer)


def opened(backend: str, options: dict[str, object], recipe: dict[str, Any], problem: Problem) -> Session:
    """Open a session for the program that `recipe` builds. Raises BackendError if its graph is not that of `problem`."""
    programs = installed().build("importer", str(recipe["importer"]), recipe["options"]).load()
    program = next((p for p in programs if p.graph.fingerprint == problem.graph.fingerprint), None)
    if program is None:
        raise BackendError(
            f"importer {recipe['importer']!r} now makes another program {problem.graph.name!r} than before",
            "the code or a file that it reads has changed: start a new run",
        )
    session: Session = installed().build("backend", backend, options).open(problem, program.executable)
    return session


def _text(error: Exception) -> str:
    return str(error) if isinstance(error, PlacekitError) else f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    main()
