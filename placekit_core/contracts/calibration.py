"""What a backend measured of a machine: its cluster with measured rates and links, and the seconds of operations."""

from __future__ import annotations

from dataclasses import dataclass

from placekit_core.contracts.cluster import Cluster
from placekit_core.contracts.costs import CostFile


@dataclass(frozen=True, eq=False)
class Calibration:
    """A machine and what operations take on it, both measured.

    Attributes:
        cluster: the machine: the given one with measured rates, launch overheads and links.
        costs: seconds of operations, by signature where the graph has one, else by name.
        figures: how many (operation or signature, device kind) pairs were measured.
        repeats: of how many samples each figure is the median.
        spread, largest_spread: median and largest over the figures of their relative spread: half the interquartile range
            of the samples over their median; NaN where each has one sample.
        notes: what could not be measured of the machine, and what stands in its place.
        failures: operations that failed; they and what follows them in their program have no figures.
        interrupted: whether Ctrl-C ended it; figures are of fewer samples then, or missing.
        seconds: what the calibration took.
    """

    cluster: Cluster
    costs: CostFile
    figures: int
    repeats: int
    spread: float
    largest_spread: float
    notes: tuple[str, ...]
    failures: tuple[str, ...]
    interrupted: bool
    seconds: float
