"""Whether other programs use the computer on which a run is about to measure."""

from __future__ import annotations

import os
import time
from pathlib import Path

from placekit_core.contracts.interfaces import Backend
from placekit_core.run.lifecycle import warn

BUSY = 0.5
"""Share of the cores that others must keep busy to be worth a note."""
WINDOW_S = 0.3
"""How long it watches them."""


def busy_note(backend: Backend) -> str:
    """A sentence about other programs at work on this computer or on the devices of `backend`; empty if there are none."""
    cores, others = os.cpu_count() or 1, busy_cores()
    parts = [f"{others:.1f} of {cores} cores"] if others >= BUSY * cores else []
    try:
        parts += [text] if (text := backend.others()) else []
    except Exception as e:  # it must not cost the run
        warn(f"backend {backend.name!r} cannot tell whether others use its devices", e)
    return f"measured while other programs used {' and '.join(parts)}: the values may be too high" if parts else ""


def busy_cores(stat: Path = Path("/proc/stat")) -> float:
    """How many cores of the computer other processes keep busy during `WINDOW_S`; 0 where the system does not tell.

    What this process and its ended children use is not counted; a child that is still at work is.
    """
    try:
        began, busy_s, own_s = time.perf_counter(), _busy_s(stat), _own_s()
        time.sleep(WINDOW_S)
        others_s = (_busy_s(stat) - busy_s) - (_own_s() - own_s)
        return max(0.0, others_s / (time.perf_counter() - began))
    except (OSError, ValueError, IndexError):
        return 0.0


def _busy_s(stat: Path) -> float:
    """Seconds that all cores together have been busy since the computer started (man 5 proc: idle and iowait are not)."""
    times = [int(text) for text in stat.read_text().splitlines()[0].split()[1:9]]
    return (sum(times) - times[3] - times[4]) / os.sysconf("SC_CLK_TCK")


def _own_s() -> float:
    """Seconds of processor time of this process and its ended children."""
    return sum(os.times()[:4])
