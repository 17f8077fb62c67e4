"""How many cores of this computer there are to use."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """Cores that this process may use, where the system says so; else all."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1
