"""Evaluations per second of backend `ray`, and updates per second of the parameter server of trainer `asynchronous`.

    python benchmarks/ray_workers.py [--seconds 2] [--repeats 3] [--write]

An evaluation takes 50 ms (option `least_s`), so ideal are workers / 0.05 per second. `one batch` hands a session everything at
once; `a run` is the evaluator of a run, which hands it parts, between which it looks at the budget. The hosts are those of
`ray.cluster_utils.Cluster`, on this computer. Gradients come from a host other than the server's; `without Ray` are the same
calls of the server in one process. Bytes are those of the messages as Ray packs them, and what the network interface `lo`
counted, for all programs of this computer. Medians over the repeats. `--write` keeps the report in
benchmarks/results/ray_workers.md.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray
from placekit_ray.backend import RayBackend, RaySession
from placekit_ray.controller import Link
from placekit_ray.server import ParameterServer
from placekit_ray.wire import placements_as
from ray.cluster_utils import Cluster
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from simulator import processor

from placekit_core import Measurements, Placements, Problem, installed
from placekit_core.cli.compose import assembled
from placekit_core.run.evaluator import BudgetedEvaluator

RESULT = Path(__file__).parent / "results" / "ray_workers.md"
WORKERS = (1, 2, 4, 8)
EVALUATION_S = 0.05
SIZES = {"10 kB": 10**4, "1 MB": 10**6, "10 MB": 10**7}
PUSHERS = (1, 2, 4)
PROC = Path("/proc")
LOOPBACK = Path("/sys/class/net/lo/statistics/tx_bytes")


@contextlib.contextmanager
def hosts(count: int, cpus: int) -> Iterator[Cluster]:
    """A Ray cluster of hosts on this computer with `cpus` each, and a head without any, to which this process is attached."""
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": 10**9}
    # without hooks at the exit, which only the main thread may set, a thread may add hosts
    cluster = Cluster(initialize_head=True, head_node_args=head, shutdown_at_exit=False)
    try:
        for _ in range(count):
            cluster.add_node(num_cpus=cpus, object_store_memory=10**9)
        ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # or the hosts outlive this process
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()  # type: ignore[no-untyped-call]


def machine() -> str:
    """The last line of a report."""
    load = os.getloadavg()[0]
    return f"machine: {processor()}, {os.cpu_count()} cores, load {load:.1f} at the end; Ray {ray.__version__}"


def processes(title: str) -> list[int]:
    """The processes below this one whose title begins so; other programs may use Ray at the same time."""
    parents, titles = {}, {}
    for folder in PROC.glob("[0-9]*"):
        try:
            pid, line = int(folder.name), (folder / "cmdline").read_bytes()
            parents[pid], titles[pid] = parent(pid), line.decode(errors="replace")
        except OSError:  # it has ended
            continue

    def ours(pid: int) -> bool:
        while pid and pid != os.getpid():
            pid = parents.get(pid, 0)
        return bool(pid)

    return sorted(pid for pid, text in titles.items() if text.startswith(title) and ours(pid))


def parent(pid: int) -> int:
    """The process that started this one."""
    return int(_stat(pid)[1])


def spent(pid: int) -> float:
    """Processor seconds of a process so far, of all its threads."""
    user, system = _stat(pid)[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def _stat(pid: int) -> list[str]:
    """What Linux says of a process, after its name."""
    return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()


def small_problem() -> Problem:
    """A problem whose simulation takes no time beside 50 ms."""
    parts = assembled(["workload=ffnn", "cluster=p100x4"], installed())
    return parts.problem(parts.programs[0])


def rates(problem: Problem, workers: int, seconds: float, repeats: int) -> tuple[float, float]:
    """Evaluations per second of a session, and of an evaluator of a run."""
    rng = np.random.default_rng(workers)
    size = max(1, round(seconds * workers / EVALUATION_S))

    def some(count: int) -> Placements:
        return Placements(rng.integers(problem.cluster.size, size=(count, problem.g)).astype(np.int32))

    backend = RayBackend(workers=workers, least_s=EVALUATION_S)
    session, local = backend.open(problem), backend.inner.open(problem)
    assert isinstance(session, RaySession)
    try:
        one = placements_as(some(1))
        actors = session.workers.fleet.workers
        ray.get([worker.evaluate.remote(0, one) for worker in actors])  # each is ready when it has answered
        evaluate = BudgetedEvaluator(problem, session)
        session.evaluate(some(workers))
        evaluate(some(10 * workers))
        found: tuple[list[float], list[float]] = [], []
        actions: list[Callable[[Placements], Measurements]] = [session.evaluate, evaluate]
        for _ in range(repeats):
            for values, action in zip(found, actions, strict=True):
                batch = some(size)
                start = time.perf_counter()
                m = action(batch)
                values.append(size / (time.perf_counter() - start))
                assert np.array_equal(m.value_s, local.evaluate(batch).value_s, equal_nan=True)
    finally:
        session.close()
    return statistics.median(found[0]), statistics.median(found[1])


def parameters(size: int) -> dict[str, NDArray[np.float32]]:
    """Ten arrays that have `size` bytes together."""
    return {f"layer{i}": np.zeros(size // 40, np.float32) for i in range(10)}


def about(size: int, pushers: int) -> dict[str, Any]:
    """What a server begins with."""
    return {
        "parameters": parameters(size), "optimiser": "adam", "controllers": pushers, "synchronous": False, "limit": None,
        "progress": 0.0,
    }  # fmt: skip


class Pusher:
    """A controller that does nothing but send gradients."""

    def __init__(self, server: Any, number: int) -> None:
        self.link = Link(server, number)
        self.gradients = {name: values + np.float32(1e-3) for name, values in self.link.parameters.items()}

    def push(self, until: float) -> float:
        """Send gradients one after the other; returns when the last answer came."""
        while time.time() < until:
            self.link.push("policy", self.gradients, 1e-3)
        return time.time()


def pushed(size: int, pushers: int, seconds: float, repeats: int) -> tuple[float, ...]:
    """Updates per second of a server; for each, bytes on the network and processor seconds of server and of its host's Ray."""
    here = ray.get_runtime_context().get_node_id()
    away = next(node["NodeID"] for node in ray.nodes() if node["Alive"] and node["NodeID"] != here)  # type: ignore[no-untyped-call]
    at = [NodeAffinitySchedulingStrategy(node, soft=False) for node in (here, away)]
    with tempfile.TemporaryDirectory() as folder:
        make: Any = ray.remote(ParameterServer)
        server = make.options(num_cpus=0, max_concurrency=1000, scheduling_strategy=at[0]).remote(folder)
        ray.get(server.begin.remote(about(size, pushers)))
        pusher: Any = ray.remote(Pusher)
        actors = [pusher.options(num_cpus=0, scheduling_strategy=at[1]).remote(server, i) for i in range(pushers)]
        ray.get([actor.push.remote(time.time() + 0.5) for actor in actors])  # to warm up
        (pid,) = processes("ray::ParameterServer")
        counters: list[Callable[[], float]] = [_sent, lambda: spent(pid), lambda: spent(parent(pid))]
        found = []
        for _ in range(repeats):
            first, before, start = _version(server), [count() for count in counters], time.time()
            end = max(ray.get([actor.push.remote(start + seconds) for actor in actors]))
            made = _version(server) - first
            each = [(count() - b) / made for count, b in zip(counters, before, strict=True)]
            found.append((made / (end - start), *each))
        for actor in (*actors, server):
            ray.kill(actor)
    return tuple(float(x) for x in np.median(np.array(found), axis=0))


def _sent() -> int:
    return int(LOOPBACK.read_text())


def _version(server: Any) -> int:
    return int(ray.get(server.collect.remote(0))[1])


def alone(size: int, seconds: float) -> float:
    """Updates per second of a server in this process: the log, the optimiser's step, and now and then a snapshot."""

    async def loop() -> float:
        with tempfile.TemporaryDirectory() as folder:
            server = ParameterServer(folder)
            await server.begin(about(size, 1))
            gradients = {name: values + np.float32(1e-3) for name, values in parameters(size).items()}
            life = (await server.fetch(0))["life"]
            step, start = 0, time.perf_counter()
            while time.perf_counter() - start < seconds:
                await server.push(0, life, step, "policy", gradients, 1e-3, step)
                step += 1
            return step / (time.perf_counter() - start)

    return asyncio.run(loop())


def packed_bytes(size: int) -> int:
    """Bytes of an update as Ray packs it: gradients to the server, parameters back."""
    worker: Any = ray._private.worker.global_worker
    context = worker.get_serialization_context()
    there, back = (0, 1, 0, "policy", parameters(size), 1e-3, 0), (0, parameters(size))
    return int(context.serialize(there).total_bytes + context.serialize(back).total_bytes)


def evaluations_table(seconds: float, repeats: int) -> list[str]:
    """Evaluations per second against the number of workers."""
    lines = [
        "| hosts | workers | ideal /s | one batch /s | of ideal | a run /s | of ideal |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    problem = small_problem()
    for count, cpus in ((1, 8), (4, 2)):
        with hosts(count, cpus):
            for workers in WORKERS:
                ideal = workers / EVALUATION_S
                cells = [f"{r:.1f} | {r / ideal:.0%}" for r in rates(problem, workers, seconds, repeats)]
                lines.append(f"| {count} x {cpus} CPUs | {workers} | {ideal:.0f} | {' | '.join(cells)} |")
                print(lines[-1], flush=True)
    return lines


def updates_table(seconds: float, repeats: int) -> list[str]:
    """Updates per second of the parameter server, against the size of the parameters and the number of controllers."""
    lines = [
        "| parameters | controllers | updates /s | to one controller | to without Ray | bytes packed | bytes on the network"
        " | server ms | its host's Ray ms |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    with hosts(1, 1):
        for name, size in SIZES.items():
            without, one = alone(size, seconds), 0.0
            lines.append(f"| {name} | without Ray | {without:,.1f} | | 1.00 | | | | |")
            print(lines[-1], flush=True)
            for pushers in PUSHERS:
                rate, sent, server_s, ray_s = pushed(size, pushers, seconds, repeats)
                one = one or rate
                lines.append(
                    f"| {name} | {pushers} | {rate:,.1f} | {rate / one:.2f} | {rate / without:.2f}"
                    f" | {packed_bytes(size):,} | {sent:,.0f} | {server_s * 1e3:.2f} | {ray_s * 1e3:.2f} |"
                )
                print(lines[-1], flush=True)
    return lines


def main() -> None:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--write", action="store_true", help=f"into {RESULT.name}")
    given = parser.parse_args()
    lines = [
        f"# Ray: evaluations and updates per second\n\n`python benchmarks/ray_workers.py --seconds {given.seconds:g} --repeats"
        f" {given.repeats} --write`: medians of {given.repeats} times {given.seconds:g} seconds. An evaluation takes"
        f" {EVALUATION_S * 1e3:.0f} ms.\n",
        *evaluations_table(given.seconds, given.repeats),
        "\nThe parameter server, with Adam. An update is gradients to the server and parameters back, of 32-bit floats. The"
        " last columns are processor time of an update, in the server's process and in the process of Ray that its host has.\n",
        *updates_table(given.seconds, given.repeats),
        f"\n{machine()}",
    ]
    if given.write:
        RESULT.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
