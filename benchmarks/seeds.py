"""The runs of sweeps as a CSV: a row per run, which is what the tables of docs/research are made from.

    python benchmarks/seeds.py FOLDER[=METHOD] ... --csv OUT.csv

Each folder is a sweep. Columns: the workload, the cluster, the method (METHOD, or the policy, with what it differs in from others
of the sweep on the same program and machine, but not the version of the code), the seed, seconds
of the placement found (empty: none fits), the proven bound, the evaluations, those until a value within 1% of the result (from
the run's history, if it has one), the seconds of the search, and, from the profile of the placement, the seconds that each device
computes, and those for which links copy, added up over the links. Then the mean of the values in the last twentieth of the
evaluations, the seconds that each device computes in the forward pass, and what else a result may depend on: torch's vector
instructions, and a digest of the code of all packages that took part (`code` in the results). Values are simulated or measured,
as the runs were.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import inf, isnan
from pathlib import Path

import numpy as np
from placekit_report.compare_labels import labels
from scipy import stats

from placekit_core import installed
from placekit_core.run.run_directory import find_runs, load_summary

NEAR = 1.01
LATE = 0.05
CODE = re.compile(r", with (the code that is installed|other code of .*)$")  # of a label: not part of a method


@dataclass(frozen=True)
class Seed:
    """One run.

    Attributes:
        value_s: seconds; infinite if nothing fits.
        bound_s: NaN without one.
        to_best: evaluations until the run was within 1% of its result; -1 if its history does not say.
        seconds: of the search.
        busy_s: seconds that each device computes, by name; empty if nothing fits, or without a profile.
        copies_s: seconds for which links copy, added up over the links; NaN without a profile.
        late_s: mean value of the last twentieth of the evaluations; NaN without a history.
        forward_s: seconds that each device computes in the forward pass, by name; empty as `busy_s`, and in older files.
        vectors: the vector instructions of torch, on which a learned result depends; empty without torch, and in older files.
        code: a digest of the packages' code; empty in older files.
    """

    workload: str
    cluster: str
    method: str
    seed: int
    value_s: float
    bound_s: float
    evaluations: int
    to_best: int
    seconds: float
    busy_s: Mapping[str, float] = field(default_factory=dict)
    copies_s: float = float("nan")
    late_s: float = float("nan")
    forward_s: Mapping[str, float] = field(default_factory=dict)
    vectors: str = ""
    code: str = ""


def runs(folder: Path, method: str = "") -> list[Seed]:
    """The runs of a sweep."""
    found = list(find_runs([folder]))
    summaries = [load_summary(run_dir) for run_dir in found]
    names = [method] * len(found) if method else [CODE.sub("", text) for text in labels(summaries, installed())]
    rows = []
    for run_dir, r, label in zip(found, summaries, names, strict=True):
        value_s = inf if r.value_s is None or not r.fits else r.value_s
        bound_s = float("nan") if r.bound_s is None else r.bound_s
        to_best = _to(run_dir, NEAR * value_s)
        busy_s, forward_s, copies_s = _profile(run_dir)
        run = (r.workload, r.cluster, label, r.seed, value_s, bound_s, r.evaluations, to_best, r.seconds)
        code = hashlib.sha256(repr(sorted(r.code.items())).encode()).hexdigest()[:8] if r.code else ""
        rows.append(Seed(*run, busy_s, copies_s, _late(run_dir), forward_s, str(r.facts.get("torch_cpu", "")), code))
    return rows


def _to(run_dir: Path, value_s: float) -> int:
    """Evaluations until a run had found a value as small as this; -1 if its history does not say."""
    history = run_dir / "history.csv"
    if history.exists() and value_s < inf:
        with history.open(newline="") as file:
            for row in csv.DictReader(file):
                if float(row["best_s"] or "inf") <= value_s:
                    return int(row["evaluations"])
    return -1


def _late(run_dir: Path) -> float:
    """The mean value of the last twentieth of the evaluations; one that does not fit counts as the run's failing signal."""
    history = run_dir / "history.csv"
    if not history.exists():
        return float("nan")
    with history.open(newline="") as file:
        rows = [(float(row["evaluations"]), float(row["mean_s"] or "nan")) for row in csv.DictReader(file)]
    made, mean = np.array(rows).T
    late = made > (1 - LATE) * made[-1]
    return float(np.average(mean[late], weights=np.diff(made, prepend=0.0)[late]))


def _profile(run_dir: Path) -> tuple[dict[str, float], dict[str, float], float]:
    """Seconds that each device computes, in all and in the forward pass, and those of the links."""
    path = run_dir / "profile.json"
    if not path.exists():
        return {}, {}, float("nan")
    profile = json.loads(path.read_text())
    busy_s, forward_s = ({d["device"]: d[key] for d in profile["devices"]} for key in ("busy_s", "forward_s"))
    return busy_s, forward_s, sum(link["busy_s"] for link in profile["transfers"])


def write(rows: Sequence[Seed], path: Path) -> None:
    """Write a CSV that `read` reads."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([f.name for f in fields(Seed)])
        for s in rows:
            value, bound = ("" if not x < inf else f"{x:.9g}" for x in (s.value_s, s.bound_s))
            to_best = "" if s.to_best < 0 else s.to_best
            busy, forward = (" ".join(f"{name}={x:.4g}" for name, x in of.items()) for of in (s.busy_s, s.forward_s))
            copies = "" if isnan(s.copies_s) else f"{s.copies_s:.4g}"
            cells = [s.workload, s.cluster, s.method, s.seed, value, bound, s.evaluations, to_best, f"{s.seconds:.3g}"]
            late = "" if isnan(s.late_s) else f"{s.late_s:.9g}"
            writer.writerow([*cells, busy, copies, late, forward, s.vectors, s.code])


def read(paths: Iterable[Path]) -> list[Seed]:
    """The rows of CSVs."""
    rows = []
    for path in paths:
        if not path.is_file():
            raise SystemExit(
                f"no file {path}: give CSVs that benchmarks/seeds.py wrote, such as those of docs/research/runs"
            )
        with path.open(newline="") as file:
            for r in csv.DictReader(file):
                busy, forward = (
                    {name: float(x) for name, x in (pair.rsplit("=", 1) for pair in text.split())}
                    for text in (r["busy_s"], r.get("forward_s") or "")
                )
                number = {n: float(r.get(n) or "nan") for n in ("bound_s", "seconds", "copies_s", "late_s")}
                rows.append(
                    Seed(
                        r["workload"], r["cluster"], r["method"], int(r["seed"]), float(r["value_s"] or inf), number["bound_s"],
                        int(r["evaluations"]), int(r["to_best"] or -1), number["seconds"], busy, number["copies_s"],
                        number["late_s"], forward, r.get("vectors") or "", r.get("code") or "",
                    )
                )  # fmt: skip
    return rows


def mean_and_half(values: Sequence[float]) -> tuple[float, float]:
    """The mean, and half its 95% interval (t distribution); 0 for one value or equal ones."""
    mean = float(np.mean(values))
    if len(values) < 2 or np.ptp(values) <= 1e-9 * abs(mean):
        return mean, 0.0
    return mean, float(stats.t.ppf(0.975, len(values) - 1) * stats.sem(values))


def main() -> None:
    """Write the CSV."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folders", nargs="+", metavar="FOLDER[=METHOD]")
    parser.add_argument("--csv", type=Path, required=True)
    given = parser.parse_args()
    pairs = [text.partition("=")[::2] for text in given.folders]
    rows = [s for folder, method in pairs for s in runs(Path(folder), method)]
    rows.sort(key=lambda s: (s.cluster, s.workload, s.method, s.seed))
    write(rows, given.csv)
    print(f"{len(rows)} runs in {given.csv}")


if __name__ == "__main__":
    main()
