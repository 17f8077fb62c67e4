"""How many cores of this computer may be used."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """Number of cores that this process may use; all cores if the system does not say."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1
