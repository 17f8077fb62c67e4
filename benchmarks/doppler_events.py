"""Whether `ready_order=arrival` starts operations as the simulator of Doppler's authors does, to the last tie.

    pip install simpy
    python benchmarks/doppler_events.py FILE.txt ... [--placements 1200]

The files are graphs that the authors published (`compute_graph/gdp_*.txt`), or others in their format. The rules of their
simulator are written anew here on the library that it uses, SimPy, in whole numbers of FLOPs and bytes. Random placements on
four devices, some of them regular, so that many events coincide. A row per machine and order: how many values are equal, and
the largest difference. On `whole numbers` a second is 2^33 FLOPs or bytes, so that no time is rounded.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from placekit_formats.doppler import DopplerImporter
from placekit_sim.simulator import Simulator

from placekit_core import Cluster, Graph, Placements, Problem, load_cluster
from placekit_core.run.config import conf_dir

EXACT = 2.0**33


def published(graph: Graph, device: list[int]) -> float:
    """The makespan in FLOPs: every edge delays by itself, and each device serves who asked first."""
    import simpy

    env = simpy.Environment()
    finished = [env.event() for _ in range(graph.n)]
    devices = {d: simpy.Resource(env) for d in sorted(set(device))}
    inputs: list[list[Any]] = [[] for _ in range(graph.n)]

    def send(v: int, delay: float) -> Iterator[Any]:
        yield finished[v]
        yield env.timeout(delay)

    def compute(v: int) -> Iterator[Any]:
        yield simpy.events.AllOf(env, inputs[v])
        with devices[device[v]].request() as turn:
            yield turn
            yield env.timeout(float(graph.flops[v]))
        finished[v].succeed()

    for v in range(graph.n):
        for x in graph.outputs(v):
            for c in graph.consumers(x).tolist():
                delay = 0.0 if device[c] == device[v] else float(graph.tensor_bytes[x])
                inputs[c].append(env.process(send(v, delay)))
    for v in range(graph.n):
        env.process(compute(v))
    env.run()
    return float(env.now)


def placements(rng: np.random.Generator, n: int, count: int) -> NDArray[np.int16]:
    """[count, n] devices: random ones, one after another, in blocks, in blocks with changes, on a few devices."""
    rows = []
    for i in range(count):
        device = rng.integers(0, 4, n)
        if i % 5 == 1:
            device = np.arange(n) % rng.integers(2, 5)
        elif i % 5 in (2, 3):
            device = np.arange(n) // rng.integers(1, 30) % 4
            changed = rng.integers(0, n, 10 if i % 5 == 3 else 0)
            device[changed] = rng.integers(0, 4, len(changed))
        elif i % 5 == 4:
            device = rng.integers(0, int(rng.integers(1, 5)), n)
        rows.append(device)
    return np.stack(rows).astype(np.int16)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--placements", type=int, default=1200)
    given = parser.parse_args()
    if find_spec("simpy") is None:
        sys.exit("this benchmark compares with SimPy: pip install simpy")
    theirs = load_cluster(conf_dir() / "cluster" / "doppler_sim.yaml")
    machine = theirs.model_dump(mode="json")
    machine["kinds"]["gpu"]["flops_per_s"], machine["links"][0]["bytes_per_s"] = {"float32": EXACT}, EXACT
    exact = Cluster.parse(machine)
    print(f"{'graph':24}{'machine':15}{'order':9}{'equal':>6}{'of':>6}{'largest difference':>20}")
    for file in given.files:
        [program] = DopplerImporter(path=str(file)).load()
        device = placements(np.random.default_rng(0), program.graph.n, given.placements)
        flops = np.asarray([published(program.graph, d) for d in device.tolist()])
        for name, cluster, rate in (("whole numbers", exact, EXACT), ("doppler_sim", theirs, 1e10)):
            problem = Problem.of(program.graph, cluster)
            for order in ("fifo", "arrival"):
                value_s = Simulator(ready_order=order).open(problem).evaluate(Placements.of(device)).value_s
                difference = np.abs(value_s * rate / flops - 1)
                equal = int((difference < 1e-9).sum())
                row = f"{file.stem:24}{name:15}{order:9}{equal:6}{len(device):6}"
                print(f"{row}{100 * difference.max() if equal < len(device) else 0:18.1f} %", flush=True)


if __name__ == "__main__":
    main()
