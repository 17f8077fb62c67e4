"""Placements per second of the simulator on one core: beside C++, an older checkout, and the second opinion.

    python benchmarks/simulator.py [--quick] [--beside CHECKOUT] [--write]

Layered random graphs and random placements on four devices. Two machines: `links`, a full-duplex link of 12 GB/s between
every two devices, and `switch`, conf/cluster/p100x4.yaml, in which a transfer occupies the links of its source and its
destination at once. For `links`, benchmarks/simulator.cpp does the same in C++, if there is a compiler (g++): its values
and peaks must be equal to the bit, and it is timed in the same process, in turns. An older checkout of placekit (a git
worktree of some commit) and this one run in their own processes, in turns, through the public interface, which always
tracks memory. Up to 215 operations, the second opinion (`machine_model.py`, in tests) executes the first placement, too:
value and peaks must be equal to the bit. Seconds are CPU time of one thread, which other programs on the machine disturb
less than wall time; each figure is the least of several. Columns `host` and `bound by host`: the same placements on a machine
whose host launches faster than the devices compute, and on one whose launches take as long as all computations. `--write`
writes the report to benchmarks/results/simulator.md.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray
from placekit_scheduling.evaluation import evaluate_batch
from placekit_sim import SimulatorOptions
from placekit_sim.packing import pack
from placekit_sim.rules import Rules
from placekit_sim.simulator import Simulator
from simulator_worker import ROOT, Case, seconds_per_run

from placekit_core import Cluster, Measurements, Placements, Problem

sys.path.append(str(ROOT / "plugins" / "backends" / "placekit-sim" / "tests"))
from machine_model import Execution, execute

SIZES = (112, 215, 1_000, 10_000, 50_000)
TURNS = 5
SECOND_OPINION = 215
"""Largest number of operations for the second opinion, whose time grows with the square of the number."""


def events(problem: Problem, placements: Placements) -> float:
    """Mean number of operations and transfers that a placement runs."""
    graph, size = problem.graph, problem.cluster.size
    counts = []
    for device in placements.device[:16]:
        home = problem.expand(device).astype(np.int64)
        remote = home[graph.tensor_producer[graph.input_tensor]] != home[graph.edge_op]
        sent = np.unique(graph.input_tensor[remote].astype(np.int64) * size + home[graph.edge_op[remote]])
        counts.append(graph.n + len(sent))
    return float(np.mean(counts))


def kernel(case: Case, problem: Problem, placements: Placements) -> Callable[[], Any]:
    """Evaluates the placements with the compiled kernel."""
    packed = pack(problem, Rules.of(problem, SimulatorOptions()), track_memory=case.memory)
    compiled, size = packed.kernel(), problem.cluster.size
    return lambda: evaluate_batch(compiled, placements, size, packed.tasks)


def hosted(problem: Problem, share: float) -> Problem:
    """The problem with a host whose launches take this share of a makespan in which all devices compute all the time."""
    launch_s = share * float(problem.op_s.min(axis=1).sum()) / problem.cluster.size / problem.graph.n
    data = {**problem.cluster.model_dump(), "hosts": [{"launch_s": launch_s}]}
    return Problem(problem.graph, problem.grouping, Cluster.parse(data), problem.costs)


class Worker:
    """The simulator of a checkout, in its own process, which measures on request."""

    def __init__(self, checkout: Path) -> None:
        folders = [checkout, *sorted(f.parent for f in checkout.glob("plugins/*/*/pyproject.toml"))]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))}
        command = [sys.executable, str(ROOT / "benchmarks" / "simulator_worker.py")]
        self.process = subprocess.Popen(
            command, env=environment, cwd=checkout, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def seconds(self, case: Case, at_least_s: float) -> float:
        """Seconds for one placement."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps([*case, at_least_s]), file=self.process.stdin, flush=True)
        return float(self.process.stdout.readline())


class Cpp:
    """benchmarks/simulator.cpp, compiled into a temporary folder."""

    def __init__(self, folder: str) -> None:
        library = Path(folder) / "simulator.so"
        source = Path(__file__).with_suffix(".cpp")
        options = ["-O3", "-shared", "-fPIC", "-o", str(library), str(source)]
        subprocess.run(["g++", *options], check=True)
        self.library = ctypes.CDLL(str(library))

    def run(
        self, case: Case, problem: Problem, placements: Placements
    ) -> Callable[[], tuple[NDArray[np.float64], ...]]:
        """Evaluates the placements; returns their values and peaks."""
        graph, size, count = problem.graph, problem.cluster.size, len(placements)
        source, reader = graph.tensor_producer[graph.input_tensor], graph.edge_op
        bytes_ = np.zeros(graph.n)
        bytes_[graph.tensor_producer] = graph.tensor_bytes
        by_source, by_reader = np.lexsort((reader, source)), np.lexsort((source, reader))
        integers = [
            np.searchsorted(source[by_source], np.arange(graph.n + 1)), reader[by_source],
            np.searchsorted(reader[by_reader], np.arange(graph.n + 1)), source[by_reader],
            np.diff(graph.input_ptr),
        ]  # fmt: skip
        routes = problem.cluster.routes
        floats = [problem.op_s, bytes_, routes.latency_s, routes.s_per_byte]
        group, rank = problem.grouping.group_of, None
        if placements.priority is not None:
            rank = np.ascontiguousarray(-placements.priority[:, group].astype(np.float64))
        arrays: list[NDArray[Any]] = [
            *(np.ascontiguousarray(x, np.int32) for x in integers), *(np.ascontiguousarray(x, np.float64) for x in floats)
        ]  # fmt: skip
        home = np.ascontiguousarray(placements.device[:, group], np.int32)
        value_s, peak_bytes = np.empty(count), np.empty((count, size))

        def pointer(array: NDArray[Any] | None) -> ctypes.c_void_p:
            return ctypes.c_void_p(None if array is None else array.ctypes.data)

        def simulate() -> tuple[NDArray[np.float64], ...]:
            self.library.simulate_batch(
                graph.n, graph.e, size, *map(pointer, arrays), count, pointer(home), pointer(rank), int(case.memory),
                pointer(value_s), pointer(peak_bytes),
            )  # fmt: skip
            return value_s, peak_bytes

        return simulate


def second_opinion(problem: Problem, placements: Placements) -> Execution:
    """Execute the first of `placements` with the second opinion, which follows docs/machine-model.md literally."""
    device, priority = placements.one(0)
    return execute(problem, device.tolist(), None if priority is None else priority.tolist())


def row(case: Case, cpp: Cpp | None, checkouts: dict[str, Worker], seconds: float) -> tuple[str, float]:
    """One line of the table, and nanoseconds per operation. Raises AssertionError if two implementations disagree."""
    problem = case.problem()
    placements = case.placements(problem)
    first = placements[:1]
    runs: dict[str, Callable[[], Any]] = {
        "kernel": kernel(case, problem, placements),
        "host": kernel(case, hosted(problem, 0.1), placements),
        "bound by host": kernel(case, hosted(problem, 1.0), placements),
    }
    value_s, peak_bytes = runs["kernel"]()
    if case.n <= SECOND_OPINION:
        expected = second_opinion(problem, first)
        assert expected.value_s == value_s[0]
        assert not case.memory or expected.peak_bytes == peak_bytes[0].tolist()
    if cpp is not None and case.machine == "links":
        runs["cpp"] = cpp.run(case, problem, placements)
        cpp_value_s, cpp_peak_bytes = runs["cpp"]()
        assert np.array_equal(cpp_value_s, value_s)
        assert not case.memory or np.array_equal(cpp_peak_bytes, peak_bytes)
    asked = checkouts if case.memory else {}
    least = dict.fromkeys([*runs, *asked], float("inf"))
    for _ in range(TURNS):
        for name, action in runs.items():
            least[name] = min(least[name], seconds_per_run(action, len(placements), seconds / TURNS))
        for name, checkout in asked.items():
            least[name] = min(least[name], checkout.seconds(case, seconds / TURNS))
    fast = least["kernel"]
    slow = (
        seconds_per_run(lambda: second_opinion(problem, first), 1, seconds / 20) if case.n <= SECOND_OPINION else None
    )
    plain = f"{slow / fast:,.0f}" if slow else ""
    per_event = fast / events(problem, placements) * 1e9
    beside = [
        f"{fast / least['cpp']:.2f}" if "cpp" in least else "",
        f"{least['older'] / least['this']:.2f}" if asked else "",
    ]
    others = " | ".join(f"{least[name] / fast:.2f}" for name in ("host", "bound by host"))
    line = (
        f"| {case.machine} | {case.n:,} | {'priority' if case.priority else 'fifo'} | {'yes' if case.memory else 'no'} |"
        f" {1 / fast:,.0f} | {per_event:.0f} | {' | '.join(beside)} | {others} | {plain} |"
    )
    return line, fast / case.n * 1e9


def same_on_two_threads(problem: Problem) -> str:
    """Whether 1 and 2 threads give equal bits."""
    rng = np.random.default_rng(2)
    batch = Placements.of(rng.integers(0, problem.cluster.size, (400, problem.g)), rng.random((400, problem.g)))
    results: list[Measurements] = []
    for threads in (1, 2):
        session = Simulator(threads=threads).open(problem)
        results.append(session.evaluate(batch))
        session.close()
    one, two = results
    equal = one.value_s.tobytes() == two.value_s.tobytes() and one.peak_bytes.tobytes() == two.peak_bytes.tobytes()
    return "yes" if equal else "NO"


def processor() -> str:
    """Model of the processor."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    return next((x.split(":")[1].strip() for x in lines if x.startswith("model name")), platform.processor())


LEGEND = [
    "`older time over this`: an older checkout's time over this one's, both with memory tracked, as its interface always does.",
    "",
    "`host`, `bound by host`: the time with a host that launches ahead of the devices, and with one that they wait for, over that"
    " without.",
    "",
]
HEAD = [
    "| machine | operations | order | memory | placements/s | ns/event | time over C++'s | older time over this |"
    " host | bound by host | second opinion's over this |",
    "|---|---:|---|---|---:|---:|---:|---:|---:|---:|---:|",
]


def main() -> None:
    """Print the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="shorter measurements")
    parser.add_argument("--beside", type=Path, metavar="CHECKOUT", help="an older checkout to compare with")
    parser.add_argument("--write", action="store_true", help="keep the report in benchmarks/results/simulator.md")
    arguments = parser.parse_args()
    load, lines, per_op = os.getloadavg()[0], list(HEAD), dict[Case, float]()
    older = arguments.beside
    checkouts = {"this": Worker(ROOT), "older": Worker(older)} if older else {}
    commit = ["git", "-C", str(older or "."), "log", "-1", "--format=%h"]
    with tempfile.TemporaryDirectory() as folder:
        cpp = Cpp(folder) if shutil.which("g++") else None
        print("\n".join(lines), flush=True)
        for machine, n, priority, memory in product(("links", "switch"), SIZES, (False, True), (False, True)):
            case = Case(machine, n, priority, memory)
            line, per_op[case] = row(case, cpp, checkouts, 0.4 if arguments.quick else 2.0)
            lines.append(line)
            print(line, flush=True)
    growth = [
        per_op[case._replace(n=50_000)] / per_op[case]
        for case in per_op
        if case.n == 1_000 and case.machine == "switch"
    ]
    notes = [
        "",
        f"time per operation at 50,000 operations over that at 1,000 (switch): {min(growth):.2f} to {max(growth):.2f}",
        "",
        f"1 and 2 threads give the same bits: {same_on_two_threads(Case('switch', 1_000, True, True).problem())}",
        "",
        "seconds are processor time of one thread"
        + (f"; the older checkout is {subprocess.check_output(commit, text=True).strip()}" if older else ""),
        "",
        f"machine: {processor()}, {os.cpu_count()} cores, Python {platform.python_version()},"
        f" numba {numba.__version__}, numpy {np.__version__}, load {load:.1f} before the run",
    ]
    print("\n".join(notes))
    if arguments.write:
        options = (" --quick" if arguments.quick else "") + (" --beside CHECKOUT" if older else "")
        command = f"`python benchmarks/simulator.py{options} --write`"
        target = Path(__file__).parent / "results" / "simulator.md"
        target.write_text("\n".join(["# Simulator", "", command, "", *LEGEND, *lines, *notes, ""]))


if __name__ == "__main__":
    main()
