"""`placekit plan FILE.py:make MACHINE batch=...`: prints the plan of a training step."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from placekit_formats.profile_files import profiles_in

from placekit_core import Registry
from placekit_training.plan import PYTHON, plan, write_scripts
from placekit_training.text import show


def takes(model: str) -> bool:
    """Whether a plan's model is a training step: `FILE.py:make`, or a profile of layers."""
    return PYTHON in model or model.endswith((".py", ".csv", ".json")) or bool(profiles_in(Path(model)))


def main(model: str, machine: str, options: Mapping[str, str], registry: Registry, scripts: Path | None) -> int:
    """Print the plan, and write its scripts to the folder `scripts`. Raises PlacementError if nothing fits."""
    found = plan(model, machine, registry=registry, **options)
    show(found)
    if scripts is not None:
        print("\n".join(["", *write_scripts(found, scripts)]))
    _ = found.best  # raises if nothing fits
    return 0
