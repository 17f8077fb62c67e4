"""Why "critical path" is weak in Doppler's table 2: three clocks of its device choice, beside the enumerative optimiser.

    python benchmarks/critical_path_clocks.py [--seeds 6] [--csv OUT.csv | --table IN.csv]

Each takes the ready operation with the longest path to an exit, ties at random, and is the best of 50 tries, as in the paper.

    earliest start      policy `critical_path`: the device on which the operation starts soonest, as the simulator would have it
    waiting ignored     the same, but a device is free after the seconds of its operations so far, as in the authors' code, also
                        where it had to wait for inputs
    locations ignored   the device with the fewest seconds so far, wherever the inputs are, as appendix E.3 describes it

All placements are simulated on four P100, with priorities (the longest path, as policy `critical_path` gives them) and first
come, first served. Values are over the value of `enumerative` in the same order of operations.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from placekit_scheduling import ListScheduler, b_level
from placekit_sim.simulator import Simulator
from seeds import Seed, mean_and_half, read, write

from placekit_core import Placements, Problem, installed, place
from placekit_core.cli.compose import assembled

PROGRAMS = ("chainmm", "ffnn_sharded", "llama_block_sharded", "llama_layer_sharded")
CLUSTER, TRIES = "p100x4", 50
ORDERS = {"priorities": "priority", "first come": "fifo"}
Clock = Callable[[Problem, NDArray[np.float64], Generator], NDArray[np.int64]]


def earliest_start(problem: Problem, level: NDArray[np.float64], rng: Generator) -> NDArray[np.int64]:
    """[g] devices by the list scheduler of policy `critical_path`."""
    scheduler = ListScheduler(problem)
    return np.asarray(scheduler.run("critical_path", level, int(rng.integers(2**62))).placement().device, np.int64)


def by_load(locations: bool) -> Clock:
    """[g] devices by a clock that adds up the seconds of a device's operations; with `locations`, inputs have to arrive, too."""

    def devices(problem: Problem, level: NDArray[np.float64], rng: Generator) -> NDArray[np.int64]:
        graph, routes = problem.graph, problem.cluster.routes
        where, end = np.full(graph.n, -1), np.zeros(graph.n)
        load = np.zeros(len(problem.cluster.device_names))
        waiting = np.diff(graph.input_ptr).copy()
        ready = [int(v) for v in np.flatnonzero(waiting == 0)]
        while ready:
            free = [
                v for v in ready if not graph.kernel[v]
            ] or ready  # what takes no time first: it stays where it is read
            highest = [v for v in free if level[v] >= max(level[u] for u in free) * (1 - 1e-12)]
            op = int(rng.choice(highest))
            ready.remove(op)
            if graph.kernel[op]:
                start = load.copy()
                sources = [(int(t), int(graph.tensor_producer[t])) for t in graph.inputs(op)] if locations else []
                for tensor, p in sources:
                    if where[p] >= 0:
                        copy_s = routes.latency_s[where[p]] + graph.tensor_bytes[tensor] * routes.s_per_byte[where[p]]
                        start = np.maximum(start, end[p] + np.where(np.arange(len(load)) == where[p], 0.0, copy_s))
                device = int(rng.choice(np.flatnonzero(start <= start.min() * (1 + 1e-12))))
                load[device] += problem.op_s[op, device]
                where[op], end[op] = device, load[device]
                for t in graph.inputs(op):
                    p = int(graph.tensor_producer[t])
                    where[p] = device if where[p] < 0 else where[p]
            for t in graph.outputs(op):
                for reader in graph.consumers(t):
                    waiting[reader] -= 1
                    if waiting[reader] == 0:
                        ready.append(int(reader))
        return np.asarray(np.maximum(where, 0), np.int64)

    return devices


CLOCKS: dict[str, Clock] = {
    "earliest start": earliest_start,
    "waiting ignored": by_load(True),
    "locations ignored": by_load(False),
}


def rows(seeds: int) -> list[Seed]:
    """Every value."""
    warnings.simplefilter("ignore")
    found = []
    for name in PROGRAMS:
        assembly = assembled([f"workload={name}", "grouper=none", f"cluster={CLUSTER}"], installed())
        problem = assembly.problem(assembly.programs[0])
        level = b_level(problem)
        sessions = {order: Simulator(ready_order=option).open(problem) for order, option in ORDERS.items()}
        for order, option in ORDERS.items():
            backend = {"name": "simulator", "ready_order": option}
            best = place(assembly.programs[0], cluster=CLUSTER, policy="enumerative", backend=backend, grouper="none")
            assert best.value_s is not None
            found.append(_seed(name, f"enumerative, {order}", 0, best.value_s, 1))
        for clock, devices in CLOCKS.items():
            for seed in range(seeds):
                rng = np.random.default_rng(seed)
                made = np.stack([devices(problem, level, rng) for _ in range(TRIES)])
                priority = {"priorities": np.broadcast_to(level, made.shape), "first come": None}
                for order, session in sessions.items():
                    value = session.evaluate(Placements.of(made, priority[order])).value_s
                    found.append(_seed(name, f"{clock}, {order}", seed, float(value.min()), TRIES))
    return found


def _seed(name: str, method: str, seed: int, value_s: float, evaluations: int) -> Seed:
    return Seed(name, CLUSTER, method, seed, value_s, float("nan"), evaluations, -1, 0.0)


def show(found: list[Seed]) -> None:
    """Print the table."""
    print(f"{'over enumerative':32}" + "".join(f"{p:>22}" for p in PROGRAMS))
    for order in ORDERS:
        for clock in CLOCKS:
            cells = []
            for name in PROGRAMS:
                own = {s.seed: s.value_s for s in found if (s.workload, s.method) == (name, f"{clock}, {order}")}
                (best,) = [s.value_s for s in found if (s.workload, s.method) == (name, f"enumerative, {order}")]
                mean, half = mean_and_half([v / best for v in own.values()])
                cells.append(f"{mean:.3f}" + (f" ± {half:.3f}" if half else ""))
            print(f"{clock + ', ' + order:32}" + "".join(f"{c:>22}" for c in cells))


def main() -> None:
    """Print the table, of new runs or of a CSV."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--csv", type=Path, help="keep the values")
    parser.add_argument("--table", type=Path, help="read the values")
    given = parser.parse_args()
    found = read([given.table]) if given.table else rows(given.seeds)
    if given.csv:
        write(found, given.csv)
    show(found)


if __name__ == "__main__":
    main()
