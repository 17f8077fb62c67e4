"""`placekit compare DIR ...`: a table over runs, read from their directories; medians and their intervals over seeds."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from placekit_core.cli import sweep
from placekit_core.cli.console import table
from placekit_core.config import CHANGES_NO_RESULT
from placekit_core.errors import ConfigError, RunError
from placekit_core.registry import installed
from placekit_core.results import Summary, find_runs, load_summary
from placekit_core.statistics import Interval, median_interval
from placekit_core.units import percent, seconds

PROFILES = "placekit compare --profile DIR ... [--json | --png FILE]"
_COLUMNS = [
    "workload", "cluster", "backend", "policy", "median", "interval", "coverage", "bound", "gap", "evaluations", "seconds",
    "seeds",
]  # fmt: skip


@dataclass(frozen=True)
class Row:
    """Runs that differ in nothing but their seed. Times in seconds, medians over the runs that fit."""

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
        """Its name, and if so that it measured."""
        return self.first.backend + ("" if self.first.simulated else " (measured)")

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
        """For how many seeds no placement was found that fits."""
        return len(self.seeds) - len(self.values)

    @property
    def nothing(self) -> str:
        """What to say where no run has a value."""
        return "failed" if any(r.error for r in self.runs) else "none fits"

    @property
    def rank(self) -> tuple[float, float]:
        """Better first: what always fits before what sometimes does, then by the median."""
        return self.lost / len(self.seeds), math.inf if self.median_s is None else self.median_s

    @property
    def interval(self) -> Interval | None:
        return median_interval(self.values)

    @property
    def gap(self) -> float | None:
        gaps = [r.gap for r in self.runs if r.gap is not None]
        return statistics.median(gaps) if gaps else None

    def data(self) -> dict[str, Any]:
        """As JSON."""
        first, interval = self.first, self.interval
        return {
            "workload": first.workload,
            "cluster": first.cluster,
            "backend": first.backend,
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


def main(argv: list[str]) -> int:
    """One row per workload, machine, backend and policy; 1 if a result could not be read."""
    if "--profile" in argv:
        from placekit_core.cli import profiles

        return profiles.main(argv)
    folders = [a for a in argv if a != "--json"]
    if not folders or any(a.startswith("-") for a in folders):
        raise ConfigError("usage: placekit compare DIR ... [--json], or " + PROFILES)
    failed, missing = _troubles(folders)
    results, damaged = _load(folders, bool(failed or missing))
    if "--json" in argv:
        print(json.dumps([r.data() for r in rows(results)], indent=1))
        sys.stdout.flush()
    else:
        show(rows(results))
    stream = sys.stderr if "--json" in argv else sys.stdout
    _list("failed", failed, stream)
    _list("missing", missing, stream)
    return int(damaged > 0)


def end_of_sweep(directory: Path, stopped: Exception | None) -> None:
    """What `placekit compare` shows of a sweep. Raises RunError if jobs failed, are missing or unreadable."""
    failed, missing = _troubles([directory])
    results, damaged = _load([directory], True)
    print()
    show(rows(results))
    _list("failed", failed)
    _list("missing", missing)
    sys.stdout.flush()  # before the error, which goes to standard error
    counts = [
        f"{n} {'job' if n == 1 else 'jobs'} of the sweep {what}"
        for n, what in (
            (len(failed), "failed"), (len(missing), "did not finish"), (damaged, "left a result that cannot be read")
        ) if n
    ]  # fmt: skip
    hint = f"the others are written; `placekit run resume={directory}` tries again what is not finished"
    if stopped is not None:
        reason = f"{type(stopped).__name__}: {stopped}".strip().splitlines()[0]
        raise RunError("; ".join([f"the sweep stopped: {reason}", *counts]), hint)
    if counts:
        raise RunError("; ".join(counts), hint)


def _troubles(folders: list[Any]) -> tuple[list[tuple[Path, str]], list[tuple[Path, str]]]:
    found = [sweep.troubles(Path(folder)) for folder in folders]
    return [x for failed, _ in found for x in failed], [x for _, missing in found for x in missing]


def _load(folders: list[Any], may_be_empty: bool) -> tuple[list[Summary], int]:
    """The results at or below `folders`, and how many could not be read, which are named."""
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


def _list(what: str, jobs: list[tuple[Path, str]], stream: TextIO | None = None) -> None:
    for path, reason in jobs:
        print(f"{what}: {path}: {reason}", file=stream)


def rows(results: list[Summary]) -> list[Row]:
    """Results by what they share, best median first within each workload, machine and backend."""
    groups: dict[str, list[Summary]] = {}
    for result in results:
        group = groups.setdefault(_key(result), [])
        twin = (result.seed, result.value_s, result.evaluations)
        if twin not in {(r.seed, r.value_s, r.evaluations) for r in group}:  # a copy of a run is no further evidence
            group.append(result)
    found = [Row(label, g) for label, g in zip(labels([g[0] for g in groups.values()]), groups.values(), strict=True)]
    return sorted(found, key=lambda r: (r.first.workload, r.first.cluster, r.first.backend, r.rank))


def _key(result: Summary) -> str:
    """What the runs of a row share: everything but the seed, what changes no result, and how things were named."""
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
    """Print the table, and the best of each workload, machine and backend."""
    cells = []
    for row in table_rows:
        first, median, lost = row.first, row.median_s, row.lost
        data = row.data()
        cells.append(
            [
                first.workload,
                first.cluster,
                row.backend,
                row.label + (f" ({first.status})" if first.status != "finished" else ""),
                (row.nothing if median is None else seconds(median))
                + (f" ({lost} do not fit)" if lost and row.values else ""),
                _range(row.interval),
                f"{100 * row.interval.coverage:.4g}%" if row.interval else "-",
                seconds(first.bound_s),
                percent(row.gap),
                f"{data['evaluations']:.0f}",
                f"{data['seconds']:.1f}",
                f"{len(row.seeds)}",
            ]
        )
    if cells:
        table(_COLUMNS, cells, left=4)
    for contest in _contests(table_rows):
        print(_best(contest))


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
        same = [r.workload, r.cluster, r.backend, problem["cluster"], problem["graph"], problem["costs"]]
        return json.dumps([*same, r.config.get("backend")], sort_keys=True)

    finished = [r for r in table_rows if r.median_s is not None and r.first.status == "finished"]
    groups = [sorted(g, key=lambda r: r.rank) for _, g in itertools.groupby(sorted(finished, key=key), key)]
    return [g for g in groups if len(g) > 1]


def _best(contest: list[Row]) -> str:
    best, second = contest[0], contest[1]
    if best.median_s is None or second.median_s is None:
        raise ValueError("a contest is between rows with values")
    r = best.first
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
    return (
        f"best on {r.workload}, {r.cluster} ({best.backend}): {best.label} {seconds(best.median_s)}, {difference}{note}"
    )


def labels(results: list[Summary]) -> list[str]:
    """Policy names; where rows would look alike, with the components and options in which they differ."""
    found = []
    for r in results:
        place = (r.workload, r.cluster, r.backend, r.policy)
        twins = [x for x in results if (x.workload, x.cluster, x.backend, x.policy) == place]
        found.append(" ".join([r.policy, *_differences(r, twins)]))
    kinds = {k: [_problems(r)[k] for r in results] for k in _problems(results[0])} if results else {}
    kinds["config"] = [_key(r) for r in results]
    for kind, values in kinds.items():  # until no two rows look alike
        alike: dict[tuple[str, ...], list[int]] = {}
        for i, (r, label) in enumerate(zip(results, found, strict=True)):
            alike.setdefault((r.workload, r.cluster, r.backend, r.status, label), []).append(i)
        for rows_alike in alike.values():
            if len({values[i] for i in rows_alike}) > 1:
                for i in rows_alike:
                    found[i] += f" {kind}:{_digits(values[i])}"
    return found


def _differences(result: Summary, twins: list[Summary]) -> list[str]:
    """The components and options of a run in which its twins differ from it.

    Where twins have another component in a section: its name, and the options that are not its defaults or in which runs
    of it differ.
    """
    hidden = CHANGES_NO_RESULT | {"seed", "workload"}
    sections = [("cluster", "cluster"), ("graph", "importer")]
    hidden |= {s for kind, s in sections if all(_problems(x)[kind] == _problems(result)[kind] for x in twins)}
    found = []
    for section, own in sorted(result.config.items()):
        if section in hidden:
            continue
        others = [_flat(x.config.get(section), section) for x in twins]
        values, name = _flat(own, section), f"{section}.name"
        if any(o.get(name) != values.get(name) for o in others):
            found.append(f"{section}={values[name]}")
            others = [o for o in others if o.get(name) == values[name]]
            others += [_flat(d, section) for d in _defaults(section, str(values[name]))]
        differ = [k for k in sorted(values) if k != name and any(o.get(k) != values[k] for o in others)]
        found += [f"{k}={_short(values[k])}" for k in differ]
    return found


def _flat(data: object, prefix: str) -> dict[str, object]:
    if not isinstance(data, dict):
        return {prefix: data}
    return {k: v for key, value in data.items() for k, v in _flat(value, f"{prefix}.{key}").items()}


def _defaults(section: str, name: str) -> list[dict[str, Any]]:
    """The defaults of a component; none if its plugin is not installed here."""
    entries = installed().entries.get(("backend" if section == "proxy" else section, name), [])
    return [e.component.config().model_dump(mode="json") for e in entries]


def _short(value: object) -> str:
    """The text of an option's value; a long one as the number of its values, or without its middle."""
    text = "default" if value is None else str(value)
    if len(text) <= 40:
        return text
    return f"[{len(value)} values]" if isinstance(value, list) else f"{text[:18]}...{text[-19:]}"


def _digits(text: str) -> str:
    """The end of a fingerprint; of several, or of any other text, of one that stands for it."""
    return (text if re.fullmatch(r"[0-9a-f]+", text) else hashlib.sha256(text.encode()).hexdigest())[-8:]
