"""Finds the commands of another checkout, for benchmarks that compare two checkouts."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def python_of(checkout: Path) -> tuple[str, dict[str, str]]:
    """The Python of a checkout and its environment variables: that of its `.venv`, or this one with the checkout's packages."""
    own = checkout / ".venv/bin/python"
    if own.exists():
        return str(own), {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    paths = [checkout, *sorted(f.parent for f in checkout.glob("plugins/*/*/pyproject.toml"))]
    return sys.executable, os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))}


def placekit_of(checkout: Path) -> tuple[list[str], dict[str, str]]:
    """The command `placekit` of a checkout, and its environment variables."""
    python, environment = python_of(checkout)
    own = checkout / ".venv/bin/placekit"
    return [str(own)] if own.exists() else [python, "-m", "placekit_core"], environment
