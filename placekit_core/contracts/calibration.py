"""What a backend measured on a machine: its cluster with measured rates and links, and the seconds of operations."""

from __future__ import annotations

from dataclasses import dataclass

from placekit_core.contracts.cluster import Cluster
from placekit_core.contracts.costs import CostFile


@dataclass(frozen=True, eq=False)
class Calibration:
    """A machine and the seconds that operations take on it, both measured.

    Attributes:
        cluster: the machine: the given one with measured rates, launch overheads and links.
        costs: seconds of operations, by signature where the graph has one, else by name.
        figures: how many (operation or signature, device kind) pairs were measured.
        repeats: number of samples; each figure is their median.
        spread, largest_spread: median and largest relative spread of the figures. The relative spread of a figure is half
            the interquartile range of its samples, divided by their median; NaN if each figure has one sample.
        notes: what could not be measured on the machine, and which values are used instead.
        failures: operations that failed. They have no figures, nor do the operations after them in their program.
        interrupted: whether Ctrl-C ended the calibration; some figures then have fewer samples, or are missing.
        seconds: how long the calibration took.
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
