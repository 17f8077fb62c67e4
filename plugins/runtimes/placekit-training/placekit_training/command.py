"""`placekit plan FILE.py:make MACHINE batch=...`: prints the plan of a training step."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from placekit_formats.profile_files import profiles_in
from placekit_inspect.what_if import show_changes

from placekit_core import Cluster, Registry
from placekit_training.plan import PYTHON, plan, write_scripts
from placekit_training.text import recommended, show


def takes(model: str) -> bool:
    """Whether a plan's model is a training step: `FILE.py:make`, or a profile of layers."""
    return PYTHON in model or model.endswith((".py", ".csv", ".json")) or bool(profiles_in(Path(model)))


def main(
    model: str, machine: str, options: Mapping[str, str], registry: Registry, scripts: Path | None,
    changes: Mapping[str, Cluster],
) -> int:  # fmt: skip
    """Print the plan, write scripts to a folder, and print what `changes` bring. Raises PlacementError if nothing fits."""
    found = plan(model, machine, registry=registry, **options)
    show(found)
    if scripts is not None:
        print("\n".join(["", *write_scripts(found, scripts)]))
    if changes:
        others = {words: plan(model, other, registry=registry, **options) for words, other in changes.items()}
        changed = {words: recommended(other) for words, other in others.items()}
        show_changes(["step", "rows/s"], recommended(found), changed)
    _ = found.best  # raises if nothing fits
    return 0
