"""Whether other programs use the computer on which a run is about to measure."""

from __future__ import annotations

import os
import time
from pathlib import Path

from placekit_core.contracts.interfaces import Backend
from placekit_core.run.failures import optional, warn

BUSY = 0.5
"""Other programs are worth a note if they keep this share of the cores busy."""
WINDOW_S = 0.3
"""For how long to watch them."""


def busy_note(backend: Backend) -> str:
    """A sentence about other programs that use this computer or the devices of `backend`; empty if there are none."""
    cores, others = os.cpu_count() or 1, busy_cores()
    parts = [f"{others:.1f} of {cores} cores"] if others >= BUSY * cores else []
    with optional(warn, f"backend {backend.name!r} cannot tell whether others use its devices"):
        parts += filter(None, [backend.others()])
    return f"measured while other programs used {' and '.join(parts)}: the values may be too high" if parts else ""


def busy_cores(stat: Path = Path("/proc/stat")) -> float:
    """How many cores other processes keep busy during `WINDOW_S`; 0 where the system does not tell.

    This process and its ended children do not count; a child that is still at work does.
    """

    def now() -> tuple[float, float]:
        """Time, and busy seconds of all cores but those of this process (man 5 proc: idle and iowait are not busy)."""
        times = [int(text) for text in stat.read_text().splitlines()[0].split()[1:9]]
        busy_s = (sum(times) - times[3] - times[4]) / os.sysconf("SC_CLK_TCK")
        return time.perf_counter(), busy_s - sum(os.times()[:4])

    try:
        began, before = now()
        time.sleep(WINDOW_S)
        ended, after = now()
        return max(0.0, (after - before) / (ended - began))
    except (OSError, ValueError, IndexError):
        return 0.0
