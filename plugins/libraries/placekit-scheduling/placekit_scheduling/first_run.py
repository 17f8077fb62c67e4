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
from contextlib import suppress
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from multiprocessing import current_process

from placekit_core import usable_cores

GROUP = "placekit.compiled"
ALONE = "PLACEKIT_COMPILE_ALONE"
"""A process in whose environment this is set compiles alone."""
# Python looks for modules where its parent does, and so not in the current folder.
_COMMAND = (
    "import sys; sys.path[:] = sys.argv[3:]; from placekit_scheduling.first_run import main; main(*sys.argv[1:3])"
)


def _entries() -> list[EntryPoint]:
    return sorted(entry_points(group=GROUP), key=lambda e: e.name)


@cache
def get_help(package: str) -> None:
    """Start a process on each other core, unless no default run compiles anything of `package`.

    They end with this process. A process of a sweep gets none: the other processes of the sweep compile the same.
    """
    entries = _entries()
    packages = {e.module.partition(".")[0] for e in entries}
    if package not in packages or os.environ.get(ALONE) or current_process().name != "MainProcess":
        return
    helpers = min(usable_cores(), len(entries)) - 1
    for number in range(helpers):
        first = (number + 1) * len(entries) // (helpers + 1)
        process = subprocess.Popen(
            [sys.executable, "-c", _COMMAND, str(first), str(os.getpid()), *sys.path],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, ALONE: "1"},
        )
        atexit.register(_end, process)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()  # numba replaces files whole
    process.wait()


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
