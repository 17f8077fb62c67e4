"""Predicts steps of an H200 with a host, without a GPU: simulates the committed figures of benchmarks/gpu/results again.

    python benchmarks/host.py [--write]

`GPU` is the time of the calibrated operations together (h200_held_*.json), `host` the same operations with a host that takes as
long per launch as backend `cuda` took per operation of small steps, whose kernels take 2 us (h200_overheads.json, schedule
`static` with fusion, the mean of two workloads). The seconds of single operations were not kept: they are the roofline of the
calibrated machine, by class as measured on Inception-V3 (h200_calibration.json), scaled so that their sum is that of `GPU`.
`--write` writes the table to benchmarks/results/host.md.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from placekit_sim.simulator import Simulator

from placekit_core import Cluster, CostTable, Problem, installed, roofline
from placekit_core.cli.compose import assembled

ROOT = Path(__file__).resolve().parents[1]
GPU = ROOT / "benchmarks" / "gpu" / "results"
HEAD = [
    "| workload | kernels | measured | GPU alone | error | with the host | error |",
    "|---|---:|---:|---:|---:|---:|---:|",
]


def read(name: str) -> Any:
    """A committed result."""
    return json.loads((GPU / name).read_text())


def launch_s() -> float:
    """Seconds of the host per operation."""
    own = [
        r["us_per_operation"]
        for r in read("h200_overheads.json")["overhead"]
        if r["way"].startswith("1 one static fused")
    ]
    return float(np.mean(own)) * 1e-6


def machine(launch: float) -> Cluster:
    """The calibrated H200, with a host or, for `launch` = 0, without."""
    data = dict(read("h200_calibration.json")["calibration"]["cluster"])
    data["kinds"]["h200"].pop("launches_ahead", None)
    data["kinds"]["h200"]["memory_bytes"] = 150 * 2**30  # one device has all of the GPU
    return Cluster.parse({**data, "hosts": [{"launch_s": launch}] if launch else []})


def simulated(problem: Problem) -> float:
    """Seconds of a step on the only device."""
    session = Simulator(threads=1).open(problem)
    value = float(session.evaluate(problem.placement(np.zeros(problem.g, np.int16)).batch()).value_s[0])
    session.close()
    return value


def lines() -> list[str]:
    """The rows of the table."""
    ratio = {c["op_class"]: c["ratio"] for c in read("h200_calibration.json")["calibration"]["classes"]}
    found = []
    for file in ("h200_held_rnnlm.json", "h200_held_networks.json"):
        for step in read(file)["steps"]:
            parts = assembled([f"workload={step['workload']}", "importer.mode=train"], installed())
            graph = parts.build("importer").load()[0].graph
            without, hosted = machine(0.0), machine(launch_s())
            by_class = np.asarray([ratio.get(name, 1.0) for name in graph.op_class.vocabulary])[graph.op_class.codes]
            seconds = roofline(graph, without).op_s * by_class[:, None]
            seconds *= step["simulated_s"] / seconds.sum()
            costs = CostTable(without.kind_names, seconds, np.zeros(seconds.shape, np.bool_))
            values = [simulated(Problem.of(graph, cluster, costs=costs)) for cluster in (without, hosted)]
            row = [step["workload"], f"{step['kernels']:,}", f"{step['static_s'] * 1e3:.1f} ms"]
            for value in values:
                row += [f"{value * 1e3:.1f} ms", f"{100 * (value / step['static_s'] - 1):+.1f}%"]
            found.append(f"| {' | '.join(row)} |")
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="keep the table in benchmarks/results")
    arguments = parser.parse_args()
    text = "\n".join([*HEAD, *lines(), "", f"the host takes {launch_s() * 1e6:.1f} us per operation"])
    print(text)
    if arguments.write:
        command = "# Steps of an H200 with a host\n\n`python benchmarks/host.py --write`\n\n"
        (ROOT / "benchmarks" / "results" / "host.md").write_text(f"{command}{text}\n")


if __name__ == "__main__":
    main()
