"""A first run compiles on several cores: other processes compile what it will need later.

In entry points of the group `placekit.compiled`, plugins name what a default run compiles: modules that compile when they are
imported, or functions that compile, with names in the order in which a run needs them. The run begins with the first of them, the
other processes further on, as far as possible from each other. numba keeps on disk what any of them has compiled.
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
"""A process in whose environment this is set compiles alone."""
# Python looks for modules where its parent does, and nowhere else.
_COMMAND = (
    "import sys; sys.path[:] = sys.argv[3:]; from placekit_scheduling.first_run import main; main(*sys.argv[1:3])"
)

_once = threading.Lock()
_helpers: list[subprocess.Popen[bytes]] = []
_held: list[Any] = []  # the lock file of this computer, once there are helpers


@cache
def _entries() -> list[EntryPoint]:
    return sorted(entry_points(group=GROUP), key=lambda e: e.name)


def get_help(package: str) -> None:
    """Start other processes if default runs compile something of `package`: one on every core but one, at most one per entry.

    Only the first such call of a process does, and only in one process of this computer and user at a time. A process of
    a sweep gets no help: the other processes of the sweep compile the same. The helpers end with this process; if it is
    killed, after the entry that they compile.
    """
    if _held or not _may_have_help():
        return
    entries = _entries()
    if package not in {e.module.partition(".")[0] for e in entries}:
        return
    with _once:
        if _held or not _only_one():
            return
        count, environment = min(usable_cores(), len(entries)) - 1, {**os.environ, ALONE: "1"}
        for number in range(count):
            first = (number + 1) * len(entries) // (count + 1)
            command = [sys.executable, "-I", "-c", _COMMAND, str(first), str(os.getpid()), *sys.path]
            nowhere = subprocess.DEVNULL
            with suppress(OSError, ValueError):  # no processes or memory left: the run compiles by itself
                _helpers.append(
                    subprocess.Popen(command, stdin=nowhere, stdout=nowhere, stderr=nowhere, env=environment)
                )
        atexit.register(end_help)


def _may_have_help() -> bool:
    """Not on Windows, whose processes do not know that their parent has ended; nor in an application that Python is a part of."""
    frozen = not sys.executable or getattr(sys, "frozen", False)
    return not (os.name == "nt" or frozen or os.environ.get(ALONE) or current_process().name != "MainProcess")


def _only_one() -> bool:
    """Whether no other process of this user has helpers; if so, none gets any until this one ends."""
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
    _held.append(file)
    return True


def end_help() -> None:
    """End the helpers: before something is measured, they must not keep cores busy."""
    while _helpers:
        helper = _helpers.pop()
        helper.kill()  # numba replaces files whole
        helper.wait()


def main(first: str, parent: str) -> None:
    """Compile everything, from entry number `first` on; end early if the process `parent` has ended."""
    entries = _entries()
    for entry in entries[int(first) :] + entries[: int(first)]:
        if os.getppid() != int(parent):
            return
        with suppress(Exception):  # the run itself meets what is wrong here, and says so
            found = entry.load()
            if callable(found):
                found()
