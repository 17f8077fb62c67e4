"""Lets a first run compile on several cores: helper processes compile functions that the run will need later.

Plugins list the compiled parts of a default run as entry points of the group `placekit.compiled`: modules that compile when
imported, or functions that compile when called. Their names sort in the order in which a run needs them. The run begins with
the first entry, and each helper further on, as far as possible from the others. numba shares the compiled code on disk.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from multiprocessing import current_process
from typing import Any

from placekit_core import usable_cores

GROUP = "placekit.compiled"
ALONE = "PLACEKIT_COMPILE_ALONE"
"""A process with this environment variable starts no helpers."""
# The helper looks for modules in the same places as its parent.
_COMMAND = (
    "import sys; sys.path[:] = sys.argv[3:]; from placekit_scheduling.first_run import main; main(*sys.argv[1:3])"
)

_once = threading.Lock()
_helpers: list[subprocess.Popen[bytes]] = []
_lock_files: list[Any] = []  # the open lock file, once this process has helpers


@cache
def _entries() -> list[EntryPoint]:
    return sorted(entry_points(group=GROUP), key=lambda e: e.name)


def start_helpers(package: str) -> None:
    """Start helpers if a default run compiles functions of `package`: one on every core but one, at most one per entry.

    Only the first such call of a process starts them, and only one process per user and computer has helpers at a time. A
    process of a sweep gets none, because the other processes of the sweep compile the same functions. Helpers end with this
    process; if it is killed, they end after the entry that they are compiling.
    """
    if _lock_files or not _helpers_can_work():
        return
    entries = _entries()
    if package not in {e.module.partition(".")[0] for e in entries}:
        return
    with _once:
        if _lock_files or not _take_lock():
            return
        count, environment = min(usable_cores(), len(entries)) - 1, {**os.environ, ALONE: "1"}
        for number in range(count):
            first = (number + 1) * len(entries) // (count + 1)
            command = [sys.executable, "-I", "-c", _COMMAND, str(first), str(os.getpid()), *sys.path]
            nowhere = subprocess.DEVNULL
            with suppress(OSError, ValueError):  # no processes or memory left: the run compiles alone
                _helpers.append(
                    subprocess.Popen(command, stdin=nowhere, stdout=nowhere, stderr=nowhere, env=environment)
                )
        atexit.register(end_help)


def _helpers_can_work() -> bool:
    """Whether helpers can work: not on Windows, where they do not see that their parent has ended, nor in a frozen app."""
    frozen = not sys.executable or getattr(sys, "frozen", False)
    return not (os.name == "nt" or frozen or os.environ.get(ALONE) or current_process().name != "MainProcess")


def _take_lock() -> bool:
    """Take the lock that allows one process of this user to have helpers. Returns False if another process has it."""
    import fcntl

    path = os.path.join(tempfile.gettempdir(), f"placekit-compiling-{os.getuid()}")
    try:
        file = os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        return False
    _lock_files.append(file)
    return True


def end_help() -> None:
    """End the helpers. Call this before measuring, because they keep cores busy."""
    while _helpers:
        helper = _helpers.pop()
        helper.kill()  # safe, because numba writes its files atomically
        helper.wait()


def main(first: str, parent: str) -> None:
    """Compile all entries, beginning with number `first`. Ends early if the process `parent` has ended."""
    entries = _entries()
    for entry in entries[int(first) :] + entries[: int(first)]:
        if os.getppid() != int(parent):
            return
        with suppress(Exception):  # the run itself will meet the same error and report it
            found = entry.load()
            if callable(found):
                found()
