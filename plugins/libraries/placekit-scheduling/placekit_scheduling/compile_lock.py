"""Lets only one process per user and installation compile at a time: the others wait, then load the compiled code.

Without it, several first runs at once would each compile everything, and take many times as long together. The lock is a file
lock, so it ends with its process, however that ends.
"""

from __future__ import annotations

import os
import tempfile
import zlib
from typing import Any

from numba.core import config

from placekit_core import announce

WAITING = "another placekit process is compiling; this one waits, then loads the result"
"""The line of a run that waits."""

_held: tuple[int, Any] | None = None  # the open lock file, and who took the lock


def take(owner: Any) -> bool:
    """Take the lock for `owner`, after other processes. Returns False if this process has it already, or has no locks."""
    global _held
    if _held is not None or os.name == "nt":
        return False
    import fcntl

    folder = str(getattr(config, "CACHE_DIR", ""))  # NUMBA_CACHE_DIR
    # another installation, or another folder of compiled code, shares no compiled code with this one
    key = zlib.crc32(os.fsencode(f"{__file__}\0{folder}"))
    name = f"placekit-compiling-{os.getuid()}-{key:08x}"
    flags = os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        file = os.open(os.path.join(tempfile.gettempdir(), name), flags, 0o600)
    except OSError:  # nowhere to put the file: the process compiles by itself
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        announce(WAITING)
        fcntl.flock(file, fcntl.LOCK_EX)
    except OSError:  # a file system without locks
        os.close(file)
        return False
    _held = file, owner
    return True


def release(owner: Any) -> None:
    """Release the lock if `owner` has it."""
    global _held
    if _held is not None and _held[1] is owner:
        os.close(_held[0])
        _held = None
