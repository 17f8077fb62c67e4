"""Shared by the parts of quality.py: instances, runs, the file in which runs are recorded, and tables."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import math
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from simulator import processor

import placekit_core
from placekit_core import Cluster, LearnablePolicy, PlacekitError, Program, installed, write_atomically
from placekit_core.cli.compose import assembled

RESULTS = Path(__file__).parent / "results"
DEFAULT = "portfolio"
SEARCHES = (DEFAULT, "annealing")
OWN = "own"  # the budget of a policy that decides itself how many evaluations it makes
OWN_EVALUATIONS = 10_000  # more than any of these policies makes
INFEASIBLE = "no placement"  # beginning of the error if nothing that fits was found


@dataclass(frozen=True)
class Instance:
    """A program and its machine.

    Attributes:
        arguments: arguments of `placekit run` that choose both.
        best_known_s: seconds that others published, or that are optimal by construction; None if unknown.
    """

    name: str
    arguments: tuple[str, ...]
    best_known_s: float | None = None

    def load(self) -> tuple[Program, Cluster]:
        """The program and the machine. Raises PlacekitError."""
        parts = assembled(list(self.arguments), installed())
        [program] = parts.programs
        return program, parts.cluster(program)


@dataclass(frozen=True)
class Run:
    """One run of a policy. If it refused the graph or found nothing that fits, `value_s` is None, and `why` is the reason.

    Attributes:
        policy: name, and the options that differ from the defaults: `expert inception=branches`.
        budget: evaluations or seconds (`2000`, `60 s`), or `OWN`.
        curve: for runs with a budget of seconds, (seconds of the run, best value until then).
        process_s, peak_mib: for runs in their own process, its seconds and peak memory.
    """

    instance: str
    policy: str
    budget: str
    seed: int
    evaluations: int
    seconds: float
    value_s: float | None = None
    why: str = ""
    curve: list[list[float]] = field(default_factory=list)
    process_s: float | None = None
    peak_mib: float | None = None
    machine: str = ""

    @property
    def key(self) -> tuple[str, str, str, int]:
        """Instance, policy, budget and seed: identifies the run."""
        return self.instance, self.policy, self.budget, self.seed

    def row(self) -> dict[str, Any]:
        """Its attributes, without empty ones."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value not in ("", None, [])}


class Store:
    """The recorded runs of one part, in a JSON file with a line for each run; several processes may add to it.

    Attributes:
        runs: by `Run.key`.
        instances: for each instance its `operations`, the highest proven `bound_s` and, in parts with budgets of evaluations,
            `best`: the best placement ever found, how it was found, and `device` and `priority` (as a rank) of each group.
    """

    def __init__(self, part: str, write: bool) -> None:
        self.path, self.write = RESULTS / f"quality_{part}.json", write
        self.runs: dict[tuple[str, str, str, int], Run] = {}
        self.instances: dict[str, dict[str, Any]] = {}
        self._read()

    def _read(self) -> None:
        if self.path.is_file():
            data = json.loads(self.path.read_text())
            self.runs = {run.key: run for run in (Run(**row) for row in data["runs"])}
            self.instances = {row.pop("name"): row for row in data["instances"]}

    def add(self, run: Run, found: dict[str, Any]) -> None:
        """Record a run. `found` is from function `run`; its placement is recorded if it is the best so far."""
        if not self.write:
            self._record(run, found)
            return
        self.path.parent.mkdir(exist_ok=True)
        with (Path(tempfile.gettempdir()) / f"placekit-{self.path.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._read()
            self._record(run, found)
            data = {
                "instances": [{"name": name, **self.instances[name]} for name in sorted(self.instances)],
                "runs": [self.runs[key].row() for key in sorted(self.runs)],
            }
            parts = (f'"{name}": [\n' + ",\n".join(map(json.dumps, rows)) + "\n]" for name, rows in data.items())
            write_atomically(self.path, ("{\n" + ",\n".join(parts) + "\n}\n").encode())

    def _record(self, run: Run, found: dict[str, Any]) -> None:
        self.runs[run.key] = run
        if run.value_s is None:
            return
        about = self.instances.setdefault(run.instance, {"operations": found["operations"], "bound_s": 0.0})
        about["bound_s"] = max(about["bound_s"], found["bound_s"])
        if "placement" in found and run.value_s < about.get("best", {}).get("value_s", math.inf):
            how = {"value_s": run.value_s, "policy": run.policy, "budget": run.budget, "seed": run.seed}
            about["best"] = {**how, **found["placement"]}

    def check(self, instance: Instance, program: Program, cluster: Cluster) -> None:
        """Exit with an error if the recorded best placement has another value now."""
        best = self.instances.get(instance.name, {}).get("best")
        if best is None:
            return
        with placekit_core.search(program, cluster=cluster, budget=1) as search:
            value_s = float(search.evaluate(best["device"], best["priority"]).value_s[0])
        if value_s != best["value_s"]:
            sys.exit(
                f"{self.path}: the best placement of {instance.name} took {best['value_s']} s, and takes {value_s} s now"
            )

    def of(self, instance: str, policy: str, budget: str) -> list[Run]:
        """The runs with different seeds."""
        return [run for key, run in sorted(self.runs.items()) if key[:3] == (instance, policy, budget)]

    def median(self, instance: str, policy: str, budget: str) -> float | None:
        """Median value, seconds; infinite if the median run found nothing that fits; None without runs, or if one was refused."""
        runs = self.of(instance, policy, budget)
        if not runs or any(r.value_s is None and not r.why.startswith(INFEASIBLE) for r in runs):
            return None
        return statistics.median(math.inf if r.value_s is None else r.value_s for r in runs)

    def ratio(self, instance: str, policy: str, budget: str) -> float | None:
        """`median` over the bound."""
        value_s = self.median(instance, policy, budget)
        return None if value_s is None else value_s / float(self.instances[instance]["bound_s"])

    def policies(self, budget: str) -> list[str]:
        """Policies that have runs with this budget, `SEARCHES` first."""
        found = {run.policy for run in self.runs.values() if run.budget == budget}
        return [p for p in SEARCHES if p in found] + sorted(found - set(SEARCHES))

    def refusals(self, instances: Collection[str]) -> list[str]:
        """A line for each policy that refused graphs or found nothing that fits: the graphs, and the reason for the first."""
        lines = []
        for policy in sorted({run.policy for run in self.runs.values()}):
            runs = [
                run for name in instances for run in self.runs.values() if run.instance == name and run.policy == policy
            ]
            refused = [run for run in runs if run.value_s is None]
            if refused:
                names = list(dict.fromkeys(run.instance for run in refused))
                of = "every graph" if len(names) == len({run.instance for run in runs}) else ", ".join(names)
                lines.append(f"- `{policy}`, {of}: {refused[0].why}")
        return lines

    def machines(self) -> list[str]:
        """The machines on which the runs were made."""
        return sorted({run.machine for run in self.runs.values() if run.machine})


def heuristics() -> list[str]:
    """The installed policies that neither search nor learn: each has one value."""
    names = [n for n in installed().names("policy") if n not in (*SEARCHES, "exact")]
    return [n for n in names if not issubclass(installed().get("policy", n).load(), LearnablePolicy)]


def machine() -> str:
    """The machine, in words."""
    return f"{processor()}, {os.cpu_count()} cores, Python {platform.python_version()}"


def run(
    instance: Instance, program: Program, cluster: Cluster, policy: str, budget: str, seed: int
) -> tuple[Run, dict[str, Any]]:
    """Run a policy through `placekit_core.place`, as `placekit run` would.

    Returns the run, and a dict with `operations`, `bound_s` and `placement` (`device` and `priority` of each group).
    """
    name, *options = policy.split()
    limit: Any = {"evaluations": OWN_EVALUATIONS if budget == OWN else budget}
    if budget.endswith(" s"):
        limit = {"seconds": float(budget.removesuffix(" s"))}
    about: dict[str, Any] = {
        "instance": instance.name,
        "policy": policy,
        "budget": budget,
        "seed": seed,
        "machine": machine(),
    }
    start = time.perf_counter()
    try:
        given = {"name": name, **dict(option.split("=") for option in options)}
        result = placekit_core.place(program, cluster=cluster, policy=given, budget=limit, seed=seed)
    except PlacekitError as e:
        took = round(time.perf_counter() - start, 3)
        return Run(**about, evaluations=0, seconds=took, why=e.message), {}
    summary, placement = result.summary, result.placement
    assert placement is not None
    ranks = None if placement.priority is None else np.unique(placement.priority, return_inverse=True)[1].tolist()
    found = {
        "operations": result.problem.graph.n,
        "bound_s": summary.bound_s or 0.0,
        "placement": {"device": placement.device.tolist(), "priority": ranks},
    }
    curve: list[list[float]] = []
    if "seconds" in limit:
        for _, seconds, _, _, best_s in result.programs[0].history:
            if math.isfinite(best_s) and (not curve or best_s < curve[-1][1]):
                curve.append([round(seconds, 3), best_s])
    seconds = round(summary.seconds, 3)
    return Run(**about, value_s=summary.value_s, evaluations=summary.evaluations, seconds=seconds, curve=curve), found


def table(head: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> list[str]:
    """Lines of a Markdown table; the first `left` columns are text."""
    rule = ["---"] * left + ["---:"] * (len(head) - left)
    return ["| " + " | ".join(cells) + " |" for cells in [head, rule, *rows]]


def number(value: float | None, digits: int = 4) -> str:
    """A number as a cell; `-` for None, `does not fit` for infinity."""
    return "-" if value is None else "does not fit" if math.isinf(value) else f"{value:,.{digits}f}"


def percent(part: float) -> str:
    """A share as a cell."""
    return f"{part * 100:.2f} %"
