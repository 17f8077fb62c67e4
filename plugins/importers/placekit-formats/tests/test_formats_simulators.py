"""The cluster presets `doppler_sim` and `placeto_sim`: their authors' simulators, by hand and against a second implementation."""

from __future__ import annotations

import heapq
import os
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from placekit_formats.doppler import DopplerImporter
from placekit_testing.strategies import random_graph

from placekit_core import Cluster, Graph, GraphBuilder, Labels, Placements, Problem, load_cluster
from placekit_core.run.config import conf_dir

Simulator = pytest.importorskip("placekit_sim.simulator").Simulator  # of another plugin
SAMPLE = Path(__file__).with_name("samples") / "triangle.txt"


def preset(name: str) -> Cluster:
    return load_cluster(conf_dir() / "cluster" / f"{name}.yaml")


def makespan(problem: Problem, device: list[int], priority: list[float] | None = None, order: str = "fifo") -> float:
    session = Simulator(ready_order=order).open(problem)
    return float(session.evaluate(problem.placement(device, priority).batch()).value_s[0])


class TestDoppler:
    @pytest.mark.parametrize(
        ("device", "expected"),
        [
            ([0, 0, 0], 6),  # v0 3 s, v1 1 s, v2 2 s
            ([3, 3, 3], 6),
            ([0, 1, 1], 18),  # v0 0..3, its output to 1 in 12 s, 3..15, v1 15..16, v2 16..18
            ([0, 0, 1], 17),  # the outputs of v0, 3..15, and v1, 4..8, do not wait for each other; v2 15..17
            ([0, 1, 2], 22),  # v0's to both at once, 3..15, v1 15..16, its output 16..20, v2 20..22
        ],
    )
    def test_by_hand(self, device: list[int], expected: float) -> None:
        [program] = DopplerImporter(path=str(SAMPLE)).load()
        assert makespan(Problem.of(program.graph, preset("doppler_sim")), device) == pytest.approx(expected, rel=1e-12)

    def test_first_ready_runs_first(self) -> None:
        b = GraphBuilder("fifo")
        (early,) = b.add("early", outputs=[1e10], flops=1e10)
        (late,) = b.add("late", outputs=[1e10], flops=2e10)
        b.add("after_late", inputs=[late], flops=1e10)  # ready at 3, with the lower index
        (out,) = b.add("after_early", inputs=[early], outputs=[1e10], flops=2e10)  # ready at 2
        b.add("blocker", flops=4e10)  # 0..4 on the device of both
        b.add("end", inputs=[out], flops=3e10)
        p = Problem.of(b.build(), preset("doppler_sim"))
        device = [0, 1, 2, 2, 2, 3]
        assert makespan(p, device) == pytest.approx(4 + 2 + 1 + 3)  # after_early 4..6, its output ..7, end ..10
        assert makespan(p, device, [0, 0, 1, 0, 9, 0], "priority") == pytest.approx(5 + 2 + 1 + 3)

    def test_transfers_of_one_tensor_end_in_the_order_of_its_readers(self) -> None:
        b = GraphBuilder("edges")
        (x,) = b.add("x", outputs=[1e10], flops=1e10)  # 0..1 on 0, at 1 and 2 from 2 on
        (late,) = b.add("late", outputs=[1e10], flops=3e10)
        b.add("waits", inputs=[x, late], flops=1e10)  # so the transfer to 1 begins before that to 2
        (y,) = b.add("y", inputs=[x], outputs=[1e10], flops=1e10)  # 2..3 on 2, the first reader that is ready
        (z,) = b.add("z", inputs=[x], outputs=[1e10], flops=1e10)  # 2..3 on 1
        b.add("after_z", inputs=[z], flops=1e10)
        (w,) = b.add("after_y", inputs=[y], outputs=[1e10], flops=1e10)  # 4..5 on 0, before after_z
        b.add("end", inputs=[w], flops=5e10)  # 6..11
        graph, device = b.build(), [0, 3, 1, 2, 1, 0, 0, 3]
        assert in_order_of_arrival(graph, np.asarray([device])) == [Published(graph, device).run() / 1e10] == [11]

    @pytest.mark.parametrize("seed", range(4))
    @pytest.mark.parametrize("costs", [(1,), (1, 2), (32768, 1048576, 2**31, 2**36), range(1, 2**20)])
    def test_equals_the_published_simulator(self, seed: int, costs: Sequence[int]) -> None:
        rng = np.random.default_rng(seed)
        graph = random_graph(rng, 40)
        graph = graph.replace(
            flops=rng.choice(costs, graph.n).astype(np.float64),
            tensor_bytes=rng.choice(costs, graph.t) * rng.choice([1, 4]),
            tensor_storage=np.arange(graph.t, dtype=np.int32),
            persistent_bytes=np.zeros(graph.n, np.int64),
            colocate=np.full(graph.n, -1, np.int32),
            allowed=Labels.of([""] * graph.n),
        )
        devices = rng.integers(0, 4, (30, graph.n))
        assert in_order_of_arrival(graph, devices) == [
            Published(graph, device).run() / 1e10 for device in devices.tolist()
        ]

    @pytest.mark.skipif("PLACEKIT_SAMPLES" not in os.environ, reason="PLACEKIT_SAMPLES is not set")
    @pytest.mark.parametrize("count", [8, pytest.param(250, marks=pytest.mark.slow)])
    @pytest.mark.parametrize(
        "name", ["chain_mm_112nodes", "gdp_chain_mm_112nodes", "ffnn_192nodes", "gdp_ffnn_192nodes"]
    )
    def test_equals_the_published_simulator_on_the_published_graphs(self, name: str, count: int) -> None:
        [program] = DopplerImporter(path=str(Path(os.environ["PLACEKIT_SAMPLES"], "doppler", f"{name}.txt"))).load()
        graph = program.graph
        devices = placements(np.random.default_rng(0), graph, count)
        assert in_order_of_arrival(graph, devices) == [
            Published(graph, device).run() / 1e10 for device in devices.tolist()
        ]


def in_order_of_arrival(graph: Graph, devices: NDArray[np.int64]) -> list[float]:
    """Makespans of placements [b, n] on `doppler_sim`, in its authors' order."""
    session = Simulator(ready_order="arrival").open(Problem.of(graph, preset("doppler_sim")))
    values: list[float] = session.evaluate(Placements.of(devices.astype(np.int16))).value_s.tolist()
    return values


def placements(rng: np.random.Generator, graph: Graph, count: int) -> NDArray[np.int64]:
    """[4 * count, n]: random, neighbours together, lists where they can start first, and changes of these."""
    rows: list[list[int]] = []
    for _ in range(count):
        size = int(rng.integers(2, 5))
        rows.append(rng.integers(0, size, graph.n).tolist())
        rows.append((np.arange(graph.n) // rng.integers(1, 9) % size).tolist())
        rows.append(earliest_start(rng, graph, size))
        changed = [*rows[-1]]
        for v in rng.integers(0, graph.n, int(rng.integers(1, 9))).tolist():
            changed[v] = int(rng.integers(0, 4))
        rows.append(changed)
    return np.asarray(rows)


def earliest_start(rng: np.random.Generator, graph: Graph, size: int) -> list[int]:
    """Each operation on the device where it can start first, in a random topological order."""
    reads = [graph.tensor_producer[graph.inputs(v)].tolist() for v in range(graph.n)]  # tensor i is the output of i
    sent, runs = graph.tensor_bytes.tolist(), graph.flops.tolist()
    device, end, free = [-1] * graph.n, [0] * graph.n, [0] * size
    todo = list(range(graph.n))
    while todo:
        ready = [v for v in todo if all(device[u] >= 0 for u in reads[v])]
        v = ready[int(rng.integers(0, min(len(ready), 8)))]
        arrive = [max([free[d], *(end[u] + (device[u] != d) * sent[u] for u in reads[v])]) for d in range(size)]
        device[v] = int(np.argmin(arrive))
        end[v] = free[device[v]] = min(arrive) + runs[v]
        todo.remove(v)
    return device


class Published:
    """Doppler's rules in whole numbers of the authors' unit, event by event, as processes of SimPy make them: every edge
    delays by itself, each device serves who asked first, and of events at one instant, the one that was caused first comes
    first."""

    def __init__(self, graph: Graph, device: list[int]) -> None:
        self.graph, self.device = graph, device
        self.missing = np.diff(graph.input_ptr).tolist()
        self.busy, self.waiting = [False] * 4, [deque[int]() for _ in range(4)]
        self.events: list[tuple[int, int, Callable[[int], None], int]] = []
        self.now = self.count = 0

    def run(self) -> int:
        """The time of the last event."""
        graph = self.graph
        for v in range(graph.n):
            if graph.kernel[v] and not self.missing[v]:
                self.after(0, self.ask, v)
        for v in range(graph.n):
            if not graph.kernel[v]:
                self.after(0, self.finished, v)
        while self.events:
            self.now, _, action, v = heapq.heappop(self.events)
            action(v)
        return self.now

    def after(self, delay: int, action: Callable[[int], None], v: int) -> None:
        self.count += 1
        heapq.heappush(self.events, (self.now + delay, self.count, action, v))

    def ask(self, v: int) -> None:
        self.waiting[self.device[v]].append(v)
        self.serve(self.device[v])

    def serve(self, d: int) -> None:
        if not self.busy[d] and self.waiting[d]:
            self.busy[d] = True
            self.after(0, self.begin, self.waiting[d].popleft())

    def begin(self, v: int) -> None:
        self.after(int(self.graph.flops[v]), self.end, v)

    def end(self, v: int) -> None:
        self.busy[self.device[v]] = False
        self.after(0, self.serve, self.device[v])
        self.after(0, self.finished, v)

    def finished(self, v: int) -> None:
        for x in self.graph.outputs(v):
            for c in self.graph.consumers(x).tolist():
                away = self.device[c] != self.device[v]
                self.after(int(self.graph.tensor_bytes[x]) if away else 0, self.sent, c)

    def sent(self, c: int) -> None:
        self.after(0, self.arrived, c)

    def arrived(self, c: int) -> None:
        self.missing[c] -= 1
        if not self.missing[c]:
            self.after(0, self.ask, c)


US = 0.5 * 4.37e6
"""FLOPs of a microsecond, for operations of class `other`."""


class TestPlaceto:
    """Microseconds. Every operation computes for 10 and then takes 5.7; 7600 bytes are sent in 25 + 1."""

    def measure(self, builder: GraphBuilder, device: list[int]) -> float:
        return 1e6 * makespan(Problem.of(builder.build(), preset("placeto_sim")), device)

    def chain(self) -> GraphBuilder:
        b = GraphBuilder("chain")
        (x,) = b.add("a", outputs=[7600], flops=10 * US)
        b.add("b", inputs=[x], flops=10 * US)
        return b

    def test_a_send_begins_later_by_the_time_after_the_operation(self) -> None:
        # There the output is sent while the device spends its 5.7: a 0..10, send 10..36, b 36..46, and 5.7 after it.
        published = 10 + 26 + 10 + 5.7
        assert self.measure(self.chain(), [0, 1]) == pytest.approx(15.7 + 26 + 15.7)
        assert self.measure(self.chain(), [0, 1]) - published == pytest.approx(5.7)

    def test_one_send_serves_all_destinations(self) -> None:
        b = GraphBuilder("multicast")
        (x,) = b.add("a", outputs=[7600], flops=10 * US)
        for name in "bcd":
            b.add(name, inputs=[x], flops=10 * US)
        assert self.measure(b, [0, 1, 2, 3]) == pytest.approx(15.7 + 26 + 15.7)

    def test_sends_leave_one_after_the_other(self) -> None:
        b = GraphBuilder("egress")
        x, y = b.add("a", outputs=[7600, 15200], flops=10 * US)
        b.add("b", inputs=[x], flops=10 * US)
        b.add("c", inputs=[y], flops=10 * US)
        assert self.measure(b, [0, 1, 2]) == pytest.approx(15.7 + 26 + 27 + 15.7)

    def test_sends_from_several_devices_arrive_together(self) -> None:
        b = GraphBuilder("ingress")
        tensors = [b.add(name, outputs=[7600], flops=10 * US)[0] for name in ("a", "b")]
        for name, x in zip(("c", "d"), tensors, strict=True):
            b.add(name, inputs=[x], flops=10 * US)
        assert self.measure(b, [0, 1, 2, 3]) == pytest.approx(15.7 + 26 + 15.7)
        assert self.measure(b, [0, 1, 2, 2]) == pytest.approx(15.7 + 26 + 2 * 15.7)
