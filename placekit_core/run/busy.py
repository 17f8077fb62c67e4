"""Whether other programs use the computer on which a run is about to measure."""

from __future__ import annotations

import os
import time
from pathlib import Path

from placekit_core.contracts.cores import usable_cores
from placekit_core.contracts.interfaces import Backend
from placekit_core.run.lifecycle import warn

BUSY = 0.5
"""Share of the cores that others must keep busy to be worth a note."""
_SAMPLES, _GAP_S = 5, 0.01


def busy_note(backend: Backend) -> str:
    """A sentence about other programs at work on this computer or on the devices of `backend`; empty if there are none."""
    cores, others = usable_cores(), busy_cores()
    parts = [f"{others:.1f} of {cores} cores"] if others >= BUSY * cores else []
    try:
        parts += [text] if (text := backend.others()) else []
    except Exception as e:  # it must not cost the run
        warn(f"backend {backend.name!r} cannot tell whether others use its devices", e)
    return f"measured while other programs used {' and '.join(parts)}: the values may be too high" if parts else ""


def busy_cores() -> float:
    """How many cores other processes keep busy: the load average of the last minute, less what this process has used.

    Where the system tells how many threads run now, it is at most these: a minute later, the load average still remembers a
    program that has ended. 0 where the system has no load average.
    """
    try:
        load = os.getloadavg()[0]
    except (AttributeError, OSError):
        return 0.0
    used = os.times()
    own = (used.user + used.system + used.children_user + used.children_system) / 60
    return max(0.0, min(load - own, _running()))


def _running(path: Path = Path("/proc/loadavg")) -> float:
    """The mean number of running threads besides this one, in a few looks; infinite if the system does not tell."""
    looks = []
    for _ in range(_SAMPLES):
        try:
            looks.append(int(path.read_text().split()[3].partition("/")[0]) - 1)
        except (OSError, ValueError, IndexError):
            return float("inf")
        time.sleep(_GAP_S)
    return sum(looks) / len(looks)
