"""A device map as accelerate runs it: seconds and memory, or why it does not run."""

from __future__ import annotations

from dataclasses import dataclass

from placekit_core import Problem, units
from placekit_torch.hooks import Located
from placekit_torch.one_thread import OneThread, as_accelerate
from placekit_torch.simulated import full, memory_text


@dataclass(frozen=True, eq=False)
class Run:
    """A device map as accelerate runs it: simulated, or why it cannot be.

    Attributes:
        found: seconds and memory; None if accelerate fails.
        why: why it fails, or does not fit; empty if it runs.
    """

    found: OneThread | None
    why: str

    @property
    def text(self) -> str:
        """The seconds, or what happens instead."""
        if self.found is None:
            return "fails"
        return units.seconds(self.found.value_s) if not self.why else "does not fit"


def by_accelerate(problem: Problem, located: Located) -> Run:
    """A map as accelerate runs it."""
    if located.breaks:
        more = f" (and {len(located.breaks) - 1} more)" if len(located.breaks) > 1 else ""
        return Run(None, f"accelerate cannot run this map: {located.breaks[0].why}{more}")
    found = as_accelerate(problem, located)
    over = full(problem, found.peak_bytes)
    return Run(found, f"run by accelerate, this map does not fit: {over}" if over else "")


def run_lines(problem: Problem, found: OneThread) -> list[str]:
    """Seconds, copies and memory of a map in one thread."""
    copied = [f"{units.mebibytes(found.moved_bytes)} copied between devices"] if found.moved_bytes else []
    streamed = [f"{units.mebibytes(found.streamed_bytes)} of weights from the CPU"] if found.streamed_bytes else []
    what = ", ".join(["modules in order", *copied, *streamed])
    return [
        f"run by accelerate: {units.seconds(found.value_s)}: {what}",
        f"peak memory run by accelerate: {memory_text(problem, found.peak_bytes)}",
    ]
