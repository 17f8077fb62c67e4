"""The processor of this computer."""

from __future__ import annotations

import platform
from pathlib import Path


def processor() -> str:
    """Model of this computer's processor."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())
