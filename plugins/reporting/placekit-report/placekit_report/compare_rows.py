"""The rows of a comparison: reads runs from their directories, and groups runs that differ only in their seed."""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from placekit_core import Registry, RunError, Summary
from placekit_core.run.run_directory import find_runs, load_summary
from placekit_report.compare_identity import backend, contest_key, row_key, table_key
from placekit_report.compare_labels import labels
from placekit_report.compare_statistics import Interval, median_interval


@dataclass(frozen=True)
class Row:
    """Runs that differ only in their seed. Times are in seconds, and medians over the runs that fit.

    Attributes:
        label: name of the row.
        folders: the folders of `runs`, in the same order, or empty.
        one_device_s: the best baseline on one device, of these runs and the runs that they may be compared with, or None.
        one_device: that device; empty if it differs between programs.
    """

    label: str
    runs: list[Summary]
    folders: list[Path] = field(default_factory=list)
    one_device_s: float | None = None
    one_device: str = ""

    @property
    def first(self) -> Summary:
        return self.runs[0]

    @property
    def seeds(self) -> list[int]:
        return sorted({r.seed for r in self.runs})

    @property
    def backend(self) -> str:
        """Name of the backend, its objective unless that is the makespan, and `(measured)` if it measured."""
        return backend(self.first) + ("" if self.first.simulated else " (measured)")

    @property
    def values(self) -> list[float]:
        """For each seed, the median of its runs that fit."""
        fitting = [(r.seed, r.value_s) for r in self.runs if r.value_s is not None and r.fits]
        return [statistics.median(v for s, v in fitting if s == seed) for seed in sorted({s for s, _ in fitting})]

    @property
    def median_s(self) -> float | None:
        return statistics.median(self.values) if self.values else None

    @property
    def unfit(self) -> int:
        """Number of seeds without a placement that fits."""
        return len(self.seeds) - len(self.values)

    @property
    def no_value_text(self) -> str:
        """The text shown for a row without values."""
        return "failed" if any(r.error for r in self.runs) else "none fits"

    @property
    def rank(self) -> tuple[float, float]:
        """Sort key, better first: rows that always fit before rows that sometimes do, then by the median."""
        return self.unfit / len(self.seeds), math.inf if self.median_s is None else self.median_s

    @property
    def interval(self) -> Interval | None:
        return median_interval(self.values)

    @property
    def gap(self) -> float | None:
        gaps = [r.gap for r in self.runs if r.gap is not None]
        return statistics.median(gaps) if gaps else None

    @property
    def gain(self) -> float | None:
        """The gain over the best single device: one_device_s / median_s - 1."""
        return self.one_device_s / self.median_s - 1 if self.one_device_s is not None and self.median_s else None

    @property
    def evaluations(self) -> float:
        return statistics.median(r.evaluations for r in self.runs)

    @property
    def search_s(self) -> float:
        """Seconds of searching."""
        return statistics.median(r.seconds for r in self.runs)

    def data(self) -> dict[str, Any]:
        """The row as JSON."""
        first, interval = self.first, self.interval
        return {
            "workload": first.workload,
            "cluster": first.cluster,
            "backend": first.backend,
            "objective": first.objective,
            "unit": first.unit,
            "simulated": first.simulated,
            "policy": first.policy,
            "label": self.label,
            "status": first.status,
            "median_s": self.median_s,
            "low_s": interval and interval.low,
            "high_s": interval and interval.high,
            "coverage": interval and interval.coverage,
            "bound_s": first.bound_s,
            "gap": self.gap,
            "one_device": self.one_device,
            "one_device_s": self.one_device_s,
            "gain": self.gain,
            "evaluations": self.evaluations,
            "seconds": self.search_s,
            "seeds": self.seeds,
            "do_not_fit": self.unfit,
        }


def load(folders: Sequence[Path | str], may_be_empty: bool) -> tuple[dict[Path, Summary], int]:
    """Read the results at or below `folders`; returns them and how many cannot be read (their errors go to stderr)."""
    try:
        paths = find_runs(folders)
    except RunError:
        if not may_be_empty:
            raise
        paths = []
    results, damaged = {}, 0
    for path in paths:
        try:
            results[path] = load_summary(path)
        except RunError as e:
            print(f"placekit: {e}", file=sys.stderr)
            damaged += 1
    return results, damaged


def rows(results: Sequence[Summary], registry: Registry, folders: Sequence[Path] = ()) -> list[Row]:
    """Group results into rows, best first within each workload, machine and backend; `folders` has each result's folder."""
    groups: dict[str, dict[int, Summary]] = {}
    for i, result in enumerate(results):
        group = groups.setdefault(row_key(result), {})
        twin = (result.seed, result.value_s, result.evaluations)
        if twin not in {(r.seed, r.value_s, r.evaluations) for r in group.values()}:  # skip duplicate runs
            group[i] = result
    named = labels([next(iter(g.values())) for g in groups.values()], registry)
    single = _single_devices(results)
    found = [
        Row(
            label,
            list(g.values()),
            [folders[i] for i in g] if folders else [],
            *single.get(contest_key(results[next(iter(g))]), ()),
        )
        for label, g in zip(named, groups.values(), strict=True)
    ]
    return sorted(found, key=lambda r: (*table_key(r.first), r.rank))


def _single_devices(results: Sequence[Summary]) -> dict[str, tuple[float, str]]:
    """Seconds and name of the best single device in each contest that has a baseline on one device.

    A baseline's seconds are the mean over the programs of a run, and the median over the runs that have it for every program.
    """
    values: dict[str, dict[str, list[float]]] = {}
    devices: dict[tuple[str, str], set[str]] = {}
    for r in results:
        contest = contest_key(r)
        found: dict[str, list[float]] = {}
        for b in (b for p in r.programs for b in p.baselines):
            if b.device and b.value_s is not None:
                found.setdefault(b.policy, []).append(b.value_s)
                devices.setdefault((contest, b.policy), set()).add(b.device)
        for policy, seconds in found.items():
            if len(seconds) == len(r.programs):
                values.setdefault(contest, {}).setdefault(policy, []).append(statistics.fmean(seconds))
    best = {}
    for contest, by_policy in values.items():
        median_s, policy = min((statistics.median(seconds), policy) for policy, seconds in by_policy.items())
        names = devices[contest, policy]
        best[contest] = (median_s, names.pop() if len(names) == 1 else "")
    return best


def rows_by_table(table_rows: Sequence[Row]) -> list[list[Row]]:
    """Group rows by workload, machine and backend."""
    found: dict[tuple[str, str, str], list[Row]] = {}
    for row in table_rows:
        found.setdefault((row.first.workload, row.first.cluster, row.backend), []).append(row)
    return list(found.values())
