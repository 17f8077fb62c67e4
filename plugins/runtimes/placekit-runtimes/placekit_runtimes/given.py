"""Policy `given`: your own placement, from a device map or a placement file."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from numpy.random import Generator

from placekit_core import NotApplicable, Placement, PlacementError, Policy, Problem, Task, load_placement
from placekit_runtimes.accelerate.device_map import DeviceMap
from placekit_runtimes.accelerate.reading import HINT, check_map, parse_map
from placekit_runtimes.options import GivenOptions

MAX_BYTES = 2**26
"""Largest size of a device map's file; placement files have their own limit."""


class Given(Policy):
    """The user's placement, from a file or from option `map`."""

    name = "given"
    options_class: ClassVar[type[GivenOptions]] = GivenOptions
    level = "operation"

    def place(self, task: Task, rng: Generator) -> Placement:
        """Place as the map or file says.

        Raises NotApplicable if the options have neither, and PlacementError for modules or devices that are missing or unknown.
        """
        o: GivenOptions = self.options
        if o.path is None and o.map is None:
            raise NotApplicable("policy given has no placement", "give it policy.path=FILE, or policy.map={...}")
        found = (
            check_map(task.problem, o.map or {}, "policy.map")
            if o.path is None
            else from_file(task.problem, Path(o.path))
        )
        for note in found.notes if isinstance(found, DeviceMap) else ():
            task.evaluate.note(note)
        return found.placement if isinstance(found, DeviceMap) else found


def from_file(problem: Problem, path: Path) -> DeviceMap | Placement:
    """Read a device map, or the placement.json of a run. Raises PlacementError."""
    try:
        with path.expanduser().open("rb") as file:
            text = file.read(MAX_BYTES + 1)
    except OSError as e:
        raise PlacementError(f"cannot read {path}: {e.strerror or e}", HINT) from None
    if b'"placekit-placement"' in text[:4096]:
        return load_placement(path.expanduser(), problem)
    if len(text) > MAX_BYTES:
        raise PlacementError(f"{path} is too large for a device map: above {MAX_BYTES:,} bytes", HINT)
    try:
        return parse_map(problem, text.decode(), str(path))
    except UnicodeDecodeError as e:
        raise PlacementError(f"{path} is not JSON: {e}", HINT) from None
