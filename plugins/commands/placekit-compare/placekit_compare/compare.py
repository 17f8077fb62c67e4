"""The table of `placekit compare`: runs read from their directories, medians and their intervals over seeds."""

from __future__ import annotations

import itertools
import json
import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from placekit_compare.statistics import Interval, median_interval
from placekit_core import Registry, RunError, Summary
from placekit_core.cli.console import table, wrapped
from placekit_core.contracts.units import percent, seconds
from placekit_core.run.assembly import SECTIONS, kind_of
from placekit_core.run.config import CHANGES_NO_RESULT
from placekit_core.run.run_directory import find_runs, load_summary

_ONCE = {
    "workload": "{}",
    "cluster": "on {}",
    "backend": "backend {}",
    "policy": "policy {}",
    "bound": "bound {}",
    "seeds": "number of seeds {}",
}
"""Columns that become words above the table if all rows agree."""


@dataclass(frozen=True)
class Row:
    """Runs that differ only in their seed. Times in seconds, medians over the runs that fit."""

    label: str
    runs: list[Summary]

    @property
    def first(self) -> Summary:
        return self.runs[0]

    @property
    def seeds(self) -> list[int]:
        return sorted({r.seed for r in self.runs})

    @property
    def backend(self) -> str:
        """Name of the backend, with its objective if that is no makespan, and marked if it measured."""
        return _backend(self.first) + ("" if self.first.simulated else " (measured)")

    @property
    def values(self) -> list[float]:
        """One per seed: the median of its runs that fit."""
        fitting = [(r.seed, r.value_s) for r in self.runs if r.value_s is not None and r.fits]
        return [statistics.median(v for s, v in fitting if s == seed) for seed in sorted({s for s, _ in fitting})]

    @property
    def median_s(self) -> float | None:
        return statistics.median(self.values) if self.values else None

    @property
    def lost(self) -> int:
        """Number of seeds without a placement that fits."""
        return len(self.seeds) - len(self.values)

    @property
    def nothing(self) -> str:
        """The text of a row in which no run has a value."""
        return "failed" if any(r.error for r in self.runs) else "none fits"

    @property
    def rank(self) -> tuple[float, float]:
        """Sort key, better first: rows that always fit before rows that sometimes do, then by the median."""
        return self.lost / len(self.seeds), math.inf if self.median_s is None else self.median_s

    @property
    def interval(self) -> Interval | None:
        return median_interval(self.values)

    @property
    def gap(self) -> float | None:
        gaps = [r.gap for r in self.runs if r.gap is not None]
        return statistics.median(gaps) if gaps else None

    def data(self) -> dict[str, Any]:
        """The row as JSON."""
        first, interval = self.first, self.interval
        return {
            "workload": first.workload,
            "cluster": first.cluster,
            "backend": first.backend,
            "objective": first.objective,
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
            "evaluations": statistics.median(r.evaluations for r in self.runs),
            "seconds": statistics.median(r.seconds for r in self.runs),
            "seeds": self.seeds,
            "do_not_fit": self.lost,
        }


def show_folder(folder: Path, registry: Registry) -> None:
    """Print the table of the runs at or below a folder, and name the results that cannot be read."""
    results, _ = load([folder], may_be_empty=True)
    print()
    show(rows(results, registry))


def load(folders: Sequence[Path | str], may_be_empty: bool) -> tuple[list[Summary], int]:
    """The results at or below `folders`, and how many could not be read; these are named on stderr."""
    try:
        paths = find_runs(folders)
    except RunError:
        if not may_be_empty:
            raise
        paths = []
    results, damaged = [], 0
    for path in paths:
        try:
            results.append(load_summary(path))
        except RunError as e:
            print(f"placekit: {e}", file=sys.stderr)
            damaged += 1
    return results, damaged


def rows(results: list[Summary], registry: Registry) -> list[Row]:
    """Results grouped into rows, best median first within each workload, machine and backend."""
    groups: dict[str, list[Summary]] = {}
    for result in results:
        group = groups.setdefault(_key(result), [])
        twin = (result.seed, result.value_s, result.evaluations)
        if twin not in {(r.seed, r.value_s, r.evaluations) for r in group}:  # a copy of a run is no further evidence
            group.append(result)
    named = labels([g[0] for g in groups.values()], registry)
    found = [Row(label, g) for label, g in zip(named, groups.values(), strict=True)]
    return sorted(found, key=lambda r: (r.first.workload, r.first.cluster, _backend(r.first), r.rank))


def _backend(result: Summary) -> str:
    """The backend of a run, with its objective: values of different ones are not comparable."""
    told = "" if result.objective in ("makespan", result.backend) else f" ({result.objective})"
    return result.backend + told


def _key(result: Summary) -> str:
    """The key that the runs of a row share: all but the seed, options that change no result, and how things were named."""
    named = CHANGES_NO_RESULT | {"seed", "importer", "workload", "cluster"}
    config = {k: v for k, v in result.config.items() if k not in named}
    return json.dumps([result.workload, result.status, *_problems(result).values(), config], sort_keys=True)


def _problems(result: Summary) -> dict[str, str]:
    """Hashes of what was placed where, and by which code."""
    return {
        "cluster": result.cluster_fingerprint,
        "graph": " ".join(p.graph_fingerprint for p in result.programs),
        "costs": " ".join(p.costs_fingerprint for p in result.programs),
        "code": " ".join(f"{k}:{v}" for k, v in sorted(result.code.items())),
    }


def show(table_rows: list[Row]) -> None:
    """Print a table per workload, machine, backend and objective, and its best; one table if none of them has several rows."""
    places: dict[tuple[str, str, str], list[Row]] = {}
    for row in table_rows:
        places.setdefault((row.first.workload, row.first.cluster, row.backend), []).append(row)
    single = all(len(found) == 1 for found in places.values())
    for number, found in enumerate([table_rows] if single and table_rows else places.values()):
        print("\n" if number else "", end="")
        _show_table(found)
        for contest in _contests(found):
            print(wrapped(_best(contest)))
    coverage = {len(row.values): row.interval.coverage for row in table_rows if row.interval}
    if coverage:
        of = [f"{100 * c:.4g}% with {n} seeds" for n, c in sorted(coverage.items())]
        print(wrapped(f"an interval holds the median with a probability of {', '.join(of)}"))


def _show_table(found: Sequence[Row]) -> None:
    intervals = any(row.interval for row in found)
    cells = [
        [
            row.first.workload,
            row.first.cluster,
            row.backend,
            _label(row),
            row.nothing if row.median_s is None else seconds(row.median_s),
            *([_range(row.interval)] if intervals else []),
            seconds(row.first.bound_s),
            percent(row.gap),
            f"{statistics.median(r.evaluations for r in row.runs):.0f}",
            f"{statistics.median(r.seconds for r in row.runs):.1f}",
            f"{len(row.seeds)}",
        ]
        for row in found
    ]
    columns = ["workload", "cluster", "backend", "policy", "median", *(["interval"] if intervals else []), "bound", "gap",
               "evals", "seconds", "seeds"]  # fmt: skip
    table(columns, cells, left=4, once=_ONCE if len(found) > 1 else {k: v for k, v in _ONCE.items() if k != "policy"})


def _label(row: Row) -> str:
    """The row's label, with what is special about its runs."""
    special = [row.first.status] if row.first.status != "finished" else []
    if row.lost and row.values:
        special.append(f"{row.lost} of {len(row.seeds)} do not fit")
    return row.label + (f" ({', '.join(special)})" if special else "")


def _range(interval: Interval | None) -> str:
    if interval is None:
        return "-"
    low, high = seconds(interval.low), seconds(interval.high)
    same = low.partition(" ")[2] == high.partition(" ")[2]
    return f"{low.partition(' ')[0] if same else low} … {high}"


def _contests(table_rows: list[Row]) -> list[list[Row]]:
    """The finished rows whose values may be compared: one program, machine, costs and backend; where there are several."""

    def key(row: Row) -> str:
        r, problem = row.first, _problems(row.first)
        same = [r.workload, r.cluster, _backend(r), problem["cluster"], problem["graph"], problem["costs"]]
        return json.dumps([*same, r.config.get("backend")], sort_keys=True)

    finished = [r for r in table_rows if r.median_s is not None and r.first.status == "finished"]
    groups = [sorted(g, key=lambda r: r.rank) for _, g in itertools.groupby(sorted(finished, key=key), key)]
    return [g for g in groups if len(g) > 1]


def _best(contest: list[Row]) -> str:
    best, second = contest[0], contest[1]
    if best.median_s is None or second.median_s is None:
        raise ValueError("a contest is between rows with values")
    less = 1 - best.median_s / second.median_s if second.median_s else 0.0
    difference = f"{percent(abs(less))} {'below' if less > 0 else 'above'} {second.label}"
    difference = difference if less else f"as good as {second.label}"
    if best.interval is None or second.interval is None:
        note = " (one seed)"
    else:
        note = " (intervals overlap)" if best.interval.high >= second.interval.low else ""
    if best.lost or second.lost:
        row = best if best.lost else second
        note = f" ({row.lost} of {len(row.seeds)} runs of {row.label} do not fit)"
    return f"best: {best.label} {seconds(best.median_s)}, {difference}{note}"


def labels(results: list[Summary], registry: Registry) -> list[str]:
    """Policies, with the choices and options in which runs on one program, machine and backend differ.

    If one run differs in a section, every run of the same place names its choice in it.
    """
    found = []
    for r in results:
        place = (r.workload, r.cluster, _backend(r))
        rivals = [x for x in results if (x.workload, x.cluster, _backend(x)) == place]
        found.append(" ".join([r.policy, *_differences(r, rivals, registry)]))
    for words in (_other_files, partial(_other_code, registry=registry), _numbered):  # until no two rows look alike
        alike: dict[tuple[str, ...], list[int]] = {}
        for i, (r, label) in enumerate(zip(results, found, strict=True)):
            alike.setdefault((r.workload, r.cluster, _backend(r), r.status, label), []).append(i)
        for same in (same for same in alike.values() if len(same) > 1):
            for i, text in zip(same, words([results[i] for i in same]), strict=True):
                found[i] += text
    return found


def _other_files(alike: list[Summary]) -> list[str]:
    """Which of machine, program and costs differ between runs of one configuration: a file they read has changed."""
    found = [""] * len(alike)
    for name, what in (("cluster", "machine"), ("graph", "program"), ("costs", "costs")):
        values = [_problems(r)[name] for r in alike]
        versions = list(dict.fromkeys(values))
        if len(versions) > 1:
            found = [
                f"{f}, {what} {versions.index(v) + 1} of {len(versions)}" for f, v in zip(found, values, strict=True)
            ]
    return found


def _other_code(alike: list[Summary], registry: Registry) -> list[str]:
    """The versions that made runs of one configuration: their numbers, or whether it was the code that is installed."""
    names = sorted({name for r in alike for name in r.code})
    edited = [name for name in names if len({r.code.get(name) for r in alike}) > 1]
    if not edited:
        return [""] * len(alike)
    numbers = [", ".join(f"{name} {r.versions.get(name, 'of no version')}" for name in edited) for r in alike]
    if len(set(numbers)) == len(alike):
        return [f", with {text}" for text in numbers]
    now = registry.code(edited)
    other = [", ".join(name for name in edited if r.code.get(name) != now.get(name)) for r in alike]
    return [f", with other code of {text}" if text else ", with the code that is installed" for text in other]


def _numbered(alike: list[Summary]) -> list[str]:
    """Numbers for the rest: options whose texts are too long to tell them apart, or several other versions of code."""
    keys = [_key(r) for r in alike]
    kinds = list(dict.fromkeys(keys))
    return [f" ({kinds.index(key) + 1} of {len(kinds)})" if len(kinds) > 1 else "" for key in keys]


def _differences(result: Summary, rivals: list[Summary], registry: Registry) -> list[str]:
    """The choices and options of a run in which its rivals differ from it.

    For its policy: the options in which other runs of the same policy differ. For a section where rivals have another
    component: the component's name, and its options that are not the defaults or that differ between its runs.
    """
    hidden = CHANGES_NO_RESULT | {"seed", "workload"}
    sections = [("cluster", "cluster"), ("graph", "importer")]
    hidden |= {s for kind, s in sections if all(_problems(x)[kind] == _problems(result)[kind] for x in rivals)}
    found = []
    for section, own in sorted(result.config.items()):
        if section in hidden:
            continue
        others = [_flat(x.config.get(section), section) for x in rivals]
        values, name = _flat(own, section), f"{section}.name"
        if any(o.get(name) != values.get(name) for o in others):
            others = [o for o in others if o.get(name) == values[name]]
            if section != "policy":  # the label begins with the policy's name, and no other policy has its options
                found.append(f"{section}={values[name]}")
                others += [_flat(d, section) for d in _defaults(section, str(values[name]), registry)]
        differ = [k for k in sorted(values) if k != name and any(o.get(k) != values[k] for o in others)]
        found += [f"{k}={_short(values[k])}" for k in differ]
    return found


def _flat(data: object, prefix: str) -> dict[str, object]:
    if not isinstance(data, dict):
        return {prefix: data}
    return {k: v for key, value in data.items() for k, v in _flat(value, f"{prefix}.{key}").items()}


def _defaults(section: str, name: str, registry: Registry) -> list[dict[str, Any]]:
    """The defaults of a component; none if its plugin is not installed here."""
    entries = registry.entries.get((kind_of(section), name), []) if section in SECTIONS else []
    return [e.component.config().model_dump(mode="json") for e in entries]


def _short(value: object) -> str:
    """The text of an option's value: a long list as its first value and their number, other long texts without the middle."""
    text = "default" if value is None else str(value)
    if len(text) <= 40:
        return text
    if isinstance(value, list) and len(f"{value[0]}") <= 30:
        return f"[{value[0]}, ... {len(value)} values]"
    return f"{text[:18]}...{text[-19:]}"
