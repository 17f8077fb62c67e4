"""Recorded runs: CSV files with a row per run, from which tables and verdicts are computed."""

from __future__ import annotations

import csv
import functools
import hashlib
import io
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import exp, inf, isnan, log, nan
from pathlib import Path
from typing import Any

import numpy as np

from placekit_core import RunError, write_atomically
from placekit_core.run.run_directory import find_runs, load_summary
from placekit_papers.statistics import Seconds

DATA = Path(__file__).parent / "data"
_NEAR_BEST = 1.01  # a value up to this many times the result counts as reaching it, for `Run.to_best`
_LINK = " -> "  # in the names of a trace's tracks
_TRACK = re.compile(r"( stream \d+| \(\d+\))$")
_LATE = 0.05  # last share of the evaluations, for `Run.late_s`
_ONE_SEED = {"single_cpu", "single_gpu", "single_device", "expert", "data_parallel", "enumerative"}  # without chance


@dataclass(frozen=True)
class Run:
    """One run. Columns of a CSV have the names of the fields.

    Attributes:
        value_s: seconds of a step; infinite if nothing fits.
        bound_s: proven minimum; NaN without one.
        to_best: evaluations until the run was within 1% of its result; -1 if unknown.
        seconds: how long the run took.
        busy_s: seconds that each device computes; empty without a trace of the schedule.
        copies_s: seconds in which links are busy, summed over links; NaN without a trace.
        late_s: mean value over the last twentieth of the evaluations; NaN without a history.
        forward_s: seconds that each device computes in the forward pass.
        vectors: torch's vector instructions, on which a learned result depends.
        code: a digest of the code of all packages that took part.
    """

    workload: str
    cluster: str
    method: str
    seed: int
    value_s: float
    bound_s: float = nan
    evaluations: int = 0
    to_best: int = -1
    seconds: float = nan
    busy_s: Mapping[str, float] = field(default_factory=dict)
    copies_s: float = nan
    late_s: float = nan
    forward_s: Mapping[str, float] = field(default_factory=dict)
    vectors: str = ""
    code: str = ""


def read_runs(path: Path) -> list[Run]:
    """The rows of a CSV. Raises RunError if there is no such file."""
    if not path.is_file():
        raise RunError(
            f"no file {path}", f"the recorded runs are {', '.join(sorted(p.stem for p in DATA.glob('*.csv')))}"
        )
    with path.open(newline="") as file:
        return [_run(row) for row in csv.DictReader(file)]


def _run(row: Mapping[str, str]) -> Run:
    busy_s, forward_s = (
        {device: float(x) for device, x in (pair.rsplit("=", 1) for pair in (row.get(column) or "").split())}
        for column in ("busy_s", "forward_s")
    )
    number = {name: float(row.get(name) or nan) for name in ("bound_s", "seconds", "copies_s", "late_s")}
    return Run(
        workload=row["workload"], cluster=row["cluster"], method=row["method"], seed=int(row["seed"]),
        value_s=float(row["value_s"] or inf), evaluations=int(row["evaluations"]), to_best=int(row["to_best"] or -1),
        busy_s=busy_s, forward_s=forward_s, vectors=row.get("vectors") or "", code=row.get("code") or "", **number,
    )  # fmt: skip


def write_runs(runs: Iterable[Run], path: Path) -> None:
    """Write a CSV that `read_runs` reads, sorted by machine, program, method and seed."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([f.name for f in fields(Run)])
    for run in sorted(runs, key=lambda r: (r.cluster, r.workload, r.method, r.seed)):
        writer.writerow([_cell(f.name, getattr(run, f.name)) for f in fields(Run)])
    write_atomically(path, file.getvalue().encode())


def _cell(name: str, value: object) -> str:
    if isinstance(value, Mapping):
        return " ".join(f"{device}={x:.4g}" for device, x in value.items())
    if isinstance(value, float):
        digits = 9 if name in ("value_s", "bound_s", "late_s") else 4 if name == "copies_s" else 3
        return "" if isnan(value) or value == inf else f"{value:.{digits}g}"
    return "" if name == "to_best" and value == -1 else str(value)


def runs_in(folder: Path, method: str = "") -> list[Run]:
    """The runs of a sweep below a folder; their method is `method`, or else the name of the policy's preset."""
    found = []
    for run_dir in find_runs([folder]):
        summary = load_summary(run_dir)
        value_s = inf if summary.value_s is None or not summary.fits else summary.value_s
        busy_s, forward_s, copies_s = _from_trace(run_dir)
        to_best, late_s = _history(run_dir, value_s)
        code = hashlib.sha256(repr(sorted(summary.code.items())).encode()).hexdigest()[:8] if summary.code else ""
        found.append(
            Run(
                workload=summary.workload, cluster=summary.cluster, method=method or summary.policy, seed=summary.seed,
                value_s=value_s, bound_s=nan if summary.bound_s is None else summary.bound_s,
                evaluations=summary.evaluations, to_best=to_best, seconds=summary.seconds, busy_s=busy_s, copies_s=copies_s,
                late_s=late_s, forward_s=forward_s, vectors=str(summary.facts.get("torch_cpu", "")), code=code,
            )
        )  # fmt: skip
    return found


def _history(run_dir: Path, value_s: float) -> tuple[int, float]:
    """Evaluations until a value within 1% of the result, and the mean value over the last twentieth of the evaluations."""
    path = run_dir / "history.csv"
    if not path.exists():
        return -1, nan
    with path.open(newline="") as file:
        rows = [
            (float(r["evaluations"]), float(r["best_s"] or inf), float(r["mean_s"] or nan))
            for r in csv.DictReader(file)
        ]
    made, best, mean = np.array(rows).T
    near = np.flatnonzero(best <= _NEAR_BEST * value_s) if value_s < inf else np.array([], int)
    late = made > (1 - _LATE) * made[-1]
    late_s = float(np.average(mean[late], weights=np.diff(made, prepend=0.0)[late]))
    return (int(made[near[0]]) if near.size else -1), late_s


def track_names(events: Sequence[Mapping[str, Any]]) -> dict[int, str]:
    """The device or link of each track of a trace: streams, and messages side by side, have tracks of their own."""
    return {e["tid"]: _TRACK.sub("", e["args"]["name"]) for e in events if e["name"] == "thread_name"}


def _from_trace(run_dir: Path) -> tuple[dict[str, float], dict[str, float], float]:
    """Seconds that each device computes in a step and in its forward pass, and seconds in which links are busy."""
    path = run_dir / "schedule.trace.json"
    if not path.exists():
        return {}, {}, nan
    events = json.loads(path.read_text())["traceEvents"]
    tracks = track_names(events)
    intervals: dict[str, list[tuple[float, float]]] = {name: [] for name in tracks.values()}
    forward_s = {name: 0.0 for name in intervals if _LINK not in name}
    for e in events:
        if e["ph"] == "X":
            name = tracks[e["tid"]]
            intervals[name].append((e["ts"] / 1e6, (e["ts"] + e["dur"]) / 1e6))
            if e["args"].get("phase") == "forward":
                forward_s[name] += e["dur"] / 1e6
    covered = {name: _covered(of) for name, of in intervals.items()}
    return {name: covered[name] for name in forward_s}, forward_s, sum(covered[n] for n in covered if _LINK in n)


def _covered(intervals: list[tuple[float, float]]) -> float:
    """Seconds in which at least one of the intervals goes on."""
    total, until = 0.0, -inf
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total


class Runs:
    """Runs by (workload, cluster, method)."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.rows: dict[tuple[str, str, str], list[Run]] = defaultdict(list)
        for run in runs:
            self.rows[run.workload, run.cluster, run.method].append(run)
        for key, rows in self.rows.items():
            if len(rows) == 1 and key[2].partition(" ")[0] not in _ONE_SEED:
                raise RunError(
                    f"{' '.join(key)} draws random numbers, but has only one seed", "run it with at least two seeds"
                )

    def of(self, workload: str, cluster: str, method: str) -> list[Run]:
        """The runs of one method. Raises RunError if there are none."""
        if (found := self.rows.get((workload, cluster, method))) is None:
            there = sorted({m for w, c, m in self.rows if (w, c) == (workload, cluster)})
            raise RunError(
                f"no runs of {method!r} with {workload} on {cluster}",
                f"the methods there are {', '.join(there) or 'none'}",
            )
        return found


@functools.cache
def recorded(*names: str) -> Runs:
    """The committed runs of one or several CSVs of the package's `data` folder."""
    return Runs([run for name in names for run in read_runs(DATA / f"{name}.csv")])


def _rows(name: str) -> list[dict[str, str]]:
    with (DATA / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@functools.cache
def family_values(name: str) -> Mapping[str, Mapping[int, Mapping[str, float]]]:
    """Seconds on a family's unseen graphs by method, seed and graph, of `data/NAME.csv`."""
    found: dict[str, dict[int, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    for row in _rows(name):
        found[row["method"]][int(row["seed"])][row["graph"]] = float(row["value_s"])
    return found


def family_pair(name: str, first: str, second: str) -> tuple[Seconds, Seconds]:
    """By seed, the geometric means of the seconds of two methods over the graphs that both placed."""
    one, two = family_values(name)[first], family_values(name)[second]
    only = next(iter(two.values()))
    pairs = {seed: (of, two.get(seed, only)) for seed, of in one.items()}
    means = {
        seed: [exp(float(np.mean([log(x[g]) for g in sorted(a.keys() & b.keys())]))) for x in (a, b)]
        for seed, (a, b) in pairs.items()
    }
    return {seed: a for seed, (a, _) in means.items()}, {seed: b for seed, (_, b) in means.items()}


def family_seconds(name: str, method: str) -> list[float]:
    """How long a method took for each graph and seed."""
    return [float(row["seconds"]) for row in _rows(name) if row["method"] == method]


@functools.cache
def over_best_in_training(policy: str) -> Seconds:
    """By seed, the mean time of placements in unseen orders of the groups, over the best time found in training."""
    found = defaultdict(list)
    for row in _rows("placeto_orders"):
        if row["policy"] == policy and row["trained_in"] == row["order"] == "random":
            found[int(row["seed"])].append(float(row["value_s"]) / float(row["best_s"]))
    return {seed: float(np.mean(x)) for seed, x in found.items()}


@functools.cache
def own_placement(rewards_and_budget: str) -> Seconds:
    """By seed, seconds of the trained policy's own placement, with rewards such as `terminal 4000`."""
    kind, budget = rewards_and_budget.split()
    rows = _rows("placeto_rewards")
    return {int(r["seed"]): float(r["own_s"]) for r in rows if (r["rewards"], r["budget"]) == (kind, budget)}
