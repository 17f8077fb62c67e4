"""`placekit doctor --thorough`: the installed simulator against a second opinion on the machine model, on random programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from placekit_core import Backend, PluginError
from placekit_core.run.entries import Entry
from placekit_doctor.findings import Finding, fail, ok, warn, working

NAMES = ("simulator", "bulk_synchronous")
TRIALS, TINY = 2000, 200
"""Random executions, and tiny programs of which every placement is executed."""


def thorough(
    loaded: Sequence[tuple[Entry, type[Any] | PluginError]], trials: int = TRIALS, tiny_ones: int = TINY
) -> Iterator[Finding]:
    """Compare values, memory and events with `placekit_testing.machine_model`, and values with proven bounds."""
    entries = {e.component.name: e for e, c in loaded if e.kind == "backend" and isinstance(c, type)}
    try:
        from placekit_testing.second_opinion import differences, draw, tiny
    except ImportError as e:
        yield warn(f"not possible: {e}", "pip install placekit-testing")
        return
    if not all(name in entries for name in NAMES):
        yield warn(f"not possible: {' or '.join(NAMES)} is not installed", "pip install placekit-sim")
        return

    def build(name: str, options: dict[str, Any]) -> Backend:
        made: Backend = entries[name].build(entries[name].component.config.model_validate(options))
        return made

    hint = f"reinstall {entries[NAMES[0]].distribution}; if that does not help, report it with this line"
    parts: tuple[tuple[str, int, Callable[..., Any]], ...] = (
        ("random executions agree with the second opinion in value, memory and every start and end", trials, draw),
        ("tiny programs have no placement below their proven bound, and agree in value and memory", tiny_ones, tiny),
    )
    for what, count, make in parts:
        for seed in range(count):
            working(f"{what.split(' ', 2)[0]} programs: {seed} of {count} ...")
            trial = make(np.random.default_rng(seed))
            found = differences(trial, build)
            if found:
                yield fail(f"{trial} (seed {seed}): {found[0]}", hint)
                break
        else:
            yield ok(f"{count:,} {what}")
