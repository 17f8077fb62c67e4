"""Measures each stage of a run with a thousand to a million operations: seconds, peak memory, slopes.

    python benchmarks/scale.py [--cases A,B] [--stages A,B] [--most N] [--seconds N] [--label NAME] [--write]

Two cases: planted layered graphs on `p100x4`, every operation its own group; and the training step of GPT-2 small with 3,
30 and 80 layers, also on `p100x4`, in the groups of grouper `auto`. The step with 80 layers has 26,000 operations; the two
largest sizes are 20 and 248 synchronous towers (replicas) of it, with narrow layers, so that all gradients fit.
Each stage runs in a process of its own, which first reads the graph from a file and runs the stage on a tiny graph, so that
nothing is compiled within the measurement. A slope is the exponent of the growth from one size to the next: 1 is linear.

`--label` names the columns of this measurement, such as a commit; `--write` adds the figures to benchmarks/results/scale.json,
and writes those of all labels as tables to benchmarks/results/scale.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from placekit_core import (
    Graph,
    Placements,
    Problem,
    installed,
    load_cluster,
    load_graph,
    load_programs,
    place,
    save_graph,
)

RESULTS = Path(__file__).parent / "results"
CLUSTER = "p100x4"
MACHINE = Path(__file__).parents[1] / "conf" / "cluster" / f"{CLUSTER}.yaml"
NARROW = {"name": "gpt", "layers": 80, "embedding": 96, "vocabulary": 1024, "sequence": 64}
CASES: dict[str, list[dict[str, Any]]] = {
    "planted": [
        {"name": "planted", "layers": 42},
        {"name": "planted", "layers": 417},
        {"name": "planted", "layers": 4167},
        {"name": "planted", "layers": 41667},
    ],
    "decoder": [
        {"name": "gpt", "layers": 3, "batch": 1},
        {"name": "gpt", "layers": 30, "batch": 1},
        {"name": "towers", "towers": 20, "of": {**NARROW, "batch": 20}},
        {"name": "towers", "towers": 248, "of": {**NARROW, "batch": 248}},
    ],
}
"""Importers and their options, smallest first. A stage also runs once on the smallest before it is measured."""
GROUPER = {"planted": "none", "decoder": "auto"}


def fresh(graph: Graph) -> Graph:
    """A copy of a graph without the values that it has cached."""
    return dataclasses.replace(graph)


def problem_of(graph: Graph, case: str) -> Problem:
    """The problem with the case's grouper."""
    grouping = installed().build("grouper", GROUPER[case], {}).group(graph, np.random.default_rng(0))
    return Problem.of(graph, load_cluster(MACHINE), grouping)


class Stages:
    """The stages: each method prepares what its stage needs, and returns the stage itself as a function."""

    def __init__(self, case: str, folder: Path, seconds: float) -> None:
        self.case, self.folder, self.seconds = case, folder, seconds

    def write(self, graph: Graph) -> Callable[[], Any]:
        _ = graph.fingerprint
        return lambda: save_graph(graph, self.folder / "again.graph.npz")

    def read(self, graph: Graph) -> Callable[[], Any]:
        path = save_graph(graph, self.folder / "read.graph.npz")
        return lambda: load_graph(path)

    def validate(self, graph: Graph) -> Callable[[], Any]:
        from placekit_core import validate_graph

        other = fresh(graph)
        return lambda: validate_graph(other)

    def fingerprint(self, graph: Graph) -> Callable[[], Any]:
        other = fresh(graph)
        return lambda: other.fingerprint

    def group(self, graph: Graph) -> Callable[[], Any]:
        other = fresh(graph)
        return lambda: problem_of(other, self.case)

    def merge(self, graph: Graph) -> Callable[[], Any]:
        """Grouper `heavy_edge`, to 100 groups."""
        grouper, other = installed().build("grouper", "heavy_edge", {"max_groups": 100}), fresh(graph)
        return lambda: grouper.group(other, np.random.default_rng(0))

    def quotient(self, graph: Graph) -> Callable[[], Any]:
        problem = problem_of(graph, self.case)
        return lambda: problem.grouped

    def pack(self, graph: Graph) -> Callable[[], Any]:
        problem = problem_of(graph, self.case)
        session = installed().build("backend", "simulator", {}).open(problem)
        return lambda: session.packed

    def evaluate(self, graph: Graph) -> Callable[[], Any]:
        """One placement, each group on a random device."""
        problem = problem_of(graph, self.case)
        session = installed().build("backend", "simulator", {}).open(problem)
        first, second = np.random.default_rng(0).integers(0, 4, (2, problem.g)).astype(np.int16)
        session.evaluate(Placements.of(first))
        return lambda: session.evaluate(Placements.of(second))

    def bound(self, graph: Graph) -> Callable[[], Any]:
        session = installed().build("backend", "simulator", {}).open(problem_of(graph, self.case))
        bound: Callable[[], Any] = session.lower_bound
        return bound

    def _place(self, graph: Graph, policy: str, **more: Any) -> Callable[[], Any]:
        grouper = GROUPER[self.case]
        return lambda: place(graph, cluster=CLUSTER, grouper=grouper, policy=policy, baselines=[], **more)

    def etf(self, graph: Graph) -> Callable[[], Any]:
        """A run with one evaluation, grouping and the bound included."""
        return self._place(graph, "etf", budget=1)

    def critical_path(self, graph: Graph) -> Callable[[], Any]:
        return self._place(graph, "critical_path", budget=1)

    def search(self, graph: Graph) -> Callable[[], Any]:
        """A run of the default policy with a budget of seconds, grouping and the bound included."""
        return self._place(graph, "portfolio", budget={"evaluations": None, "seconds": self.seconds})

    def report(self, graph: Graph) -> Callable[[], Any]:
        """The files of a finished run: trace and page."""
        from placekit_report.logger import write_files

        run_dir = Path(tempfile.mkdtemp(dir=self.folder))
        grouper = GROUPER[self.case]
        result = place(
            graph,
            cluster=CLUSTER,
            grouper=grouper,
            policy="etf",
            budget=1,
            baselines=[],
            log=[],
            run_dir=run_dir,
        )
        return lambda: write_files(run_dir, result, installed())


STAGES = [name for name in vars(Stages) if not name.startswith("_")]


def stage(name: str, case: str, index: int, folder: Path, seconds: float) -> dict[str, Any]:
    """Measure one stage in this process."""
    path, found = folder / f"{case}{index}.graph.npz", dict[str, Any]()
    if name == "import":
        load_programs(**_options(case, 0))
        began = time.perf_counter()
        graph = load_programs(**_options(case, index))[0].graph
        found["seconds"] = time.perf_counter() - began
        save_graph(graph, path)
        found["operations"] = graph.n
    else:
        Stages(case, folder, min(seconds, 1.0)).__getattribute__(name)(load_graph(folder / f"{case}0.graph.npz"))()
        action = getattr(Stages(case, folder, seconds), name)(load_graph(path))
        began = time.perf_counter()
        result = action()
        found["seconds"] = time.perf_counter() - began
        if name in ("etf", "critical_path", "search"):
            summary = result.summary
            found |= {"value_s": summary.value_s, "bound_s": summary.bound_s, "evaluations": summary.evaluations}
            found |= {"searching_s": summary.seconds, "notes": summary.notes}
    found["peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10  # kB on Linux
    return found


def _options(case: str, index: int) -> dict[str, Any]:
    options = dict(CASES[case][index])
    return {"source": options.pop("name"), **options}


def measured(name: str, case: str, index: int, folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Run `stage` in a new process; a failure or timeout is a result, too."""
    command = [
        sys.executable,
        __file__,
        "--stage",
        name,
        "--case",
        case,
        "--index",
        str(index),
        "--folder",
        str(folder),
    ]
    try:
        run = subprocess.run(
            [*command, "--seconds", str(arguments.seconds)], capture_output=True, text=True, timeout=arguments.timeout
        )
    except subprocess.TimeoutExpired:
        return {"failure": f"over {arguments.timeout:.0f} s"}
    if run.returncode:
        return {"failure": (run.stderr.strip().splitlines() or ["no message"])[-1][:120]}
    found: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return found


def tables(data: dict[str, Any]) -> str:
    """All figures as Markdown: a table per case, a row per stage and size, columns per label."""
    labels = list(data)
    lines = []
    for case in CASES:
        sizes = {i: figures["import"][i]["operations"] for figures in _of(data, case) for i in figures.get("import", {})
                 if "operations" in figures["import"][i]}  # fmt: skip
        head = ["stage", "operations", *(f"{label}: {what}" for label in labels for what in ("s", "slope", "MiB"))]
        lines += [f"## {case}", "", "| " + " | ".join(head) + " |", "|---" + "|---:" * (len(head) - 1) + "|"]
        for name in ["import", *STAGES]:
            for i in sorted(sizes, key=int):
                cells = [_cells(data[label].get(case, {}).get(name, {}), i, sizes) for label in labels]
                if any(any(c) for c in cells):
                    lines.append(f"| {name} | {sizes[i]:,} | " + " | ".join(x for c in cells for x in c) + " |")
        lines.append("")
        for label in labels:
            for i, row in sorted(data[label].get(case, {}).get("search", {}).items()):
                if row.get("value_s"):
                    lines.append(
                        f"- {label}, search, {sizes[i]:,} operations: {row['value_s']:.4g} s after {row['evaluations']}"
                        f" evaluations in {row['searching_s']:.0f} s; bound {row['bound_s'] or math.nan:.4g} s"
                    )
        lines.append("")
    return "\n".join(lines)


def _of(data: dict[str, Any], case: str) -> list[dict[str, Any]]:
    return [figures[case] for figures in data.values() if case in figures]


def _cells(rows: dict[str, Any], i: str, sizes: dict[str, int]) -> tuple[str, str, str]:
    """Seconds, slope since the size before, and memory."""
    row = rows.get(i)
    if row is None:
        return "", "", ""
    if "failure" in row:
        return row["failure"], "", ""
    before, slope = rows.get(str(int(i) - 1), {}), ""
    if before.get("seconds") and min(before["seconds"], row["seconds"]) > 1e-3:
        growth = math.log(sizes[i] / sizes[str(int(i) - 1)])
        slope = f"{math.log(row['seconds'] / before['seconds']) / growth:.2f}"
    return f"{row['seconds']:.3g}", slope, f"{row['peak_mib']:,.0f}"


def write_results(data: dict[str, Any]) -> None:
    """Write the figures and the tables."""
    (RESULTS / "scale.json").write_text(json.dumps(data, indent=1) + "\n")
    text = (
        f"# A run's stages, from a thousand operations to a million\n\n"
        f"`python benchmarks/scale.py --write`, machine `{CLUSTER}`.\n"
        "Seconds are wall-clock seconds of one stage in a process of its own, on two cores that others used as well; MiB is\n"
        "the highest memory of the process, which also read the graph. A slope of 1 is linear growth. `etf`, `critical_path`\n"
        f"and `search` are whole runs without files. {platform.machine()}, {os.cpu_count()} cores, Python"
        f" {platform.python_version()}. An\n"
        "empty cell was not measured. The budgets of the searches are in the lines below each table, and differ: compare values\n"
        "and evaluations only where they are equal. Planted graphs are made for the links of their own machine: here their\n"
        "transfers take long, and little or nothing is faster than one device.\n\n"
    )
    (RESULTS / "scale.md").write_text(text + tables(data))


def main() -> None:
    """Measure stage by stage, and print each figure."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--stages", default=",".join(["import", *STAGES]))
    parser.add_argument("--most", type=int, default=4, help="how many sizes, smallest first")
    parser.add_argument("--least", type=int, default=0, help="index of the first size")
    parser.add_argument("--seconds", type=float, default=30.0, help="of searching")
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds that one stage may take")
    parser.add_argument("--label", default="now")
    parser.add_argument("--folder", type=Path, help="where graphs are kept between calls")
    parser.add_argument("--write", action="store_true", help="keep the figures in benchmarks/results")
    parser.add_argument("--stage", help=argparse.SUPPRESS)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--index", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.stage:
        found = stage(arguments.stage, arguments.case, arguments.index, arguments.folder, arguments.seconds)
        print(json.dumps(found))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        path = RESULTS / "scale.json"
        for case in arguments.cases.split(","):
            for index in range(arguments.least, arguments.most):
                for name in arguments.stages.split(","):
                    row = measured(name, case, index, folder, arguments)
                    print(f"{case}{index} {name}: {json.dumps(row)}", flush=True)
                    if arguments.write:
                        data: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
                        figures = data.setdefault(arguments.label, {}).setdefault(case, {})
                        figures.setdefault(name, {})[str(index)] = row
                        write_results(data)


if __name__ == "__main__":
    main()
