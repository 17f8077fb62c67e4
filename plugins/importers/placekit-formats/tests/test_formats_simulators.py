"""The cluster presets `doppler_sim` and `placeto_sim`: their authors' simulators, by hand and against a second implementation."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from placekit_formats.doppler import DopplerImporter
from placekit_testing.strategies import random_graph

from placekit_core import Cluster, Graph, GraphBuilder, Labels, Problem, load_cluster
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

    @pytest.mark.parametrize("seed", range(4))
    @pytest.mark.parametrize("ties", [False, True])
    def test_equals_a_simulator_driven_by_events(self, seed: int, ties: bool) -> None:
        rng = np.random.default_rng(seed)
        graph = random_graph(rng, 40)
        graph = graph.replace(
            flops=TWO_33 * rng.integers(1, 3 if ties else 2**20, graph.n),
            tensor_bytes=TWO_33 * rng.integers(1, 3 if ties else 2**20, graph.t),
            tensor_storage=np.arange(graph.t, dtype=np.int32),
            persistent_bytes=np.zeros(graph.n, np.int64),
            colocate=np.full(graph.n, -1, np.int32),
            allowed=Labels.of([""] * graph.n),
        )
        machine = preset("doppler_sim").model_dump(mode="json")
        machine["kinds"]["gpu"]["flops_per_s"] = {"float32": TWO_33}  # whole seconds: nothing is rounded
        machine["links"][0]["bytes_per_s"] = TWO_33
        p = Problem.of(graph, Cluster.parse(machine))
        for _ in range(20):
            device = rng.integers(0, 4, graph.n).tolist()
            assert makespan(p, device, order="arrival") == Published(graph, device).run()


TWO_33 = 2.0**33


class Published:
    """Doppler's rules, event by event: every edge delays by itself, each device serves who asked first, and of events at
    one instant, the one that was caused first comes first."""

    def __init__(self, graph: Graph, device: list[int]) -> None:
        self.graph, self.device = graph, device
        self.missing = np.diff(graph.input_ptr).tolist()
        self.busy, self.waiting = [False] * 4, [deque[int]() for _ in range(4)]
        self.events: list[tuple[float, int, Callable[[int], None], int]] = []
        self.now, self.count = 0.0, 0

    def run(self) -> float:
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

    def after(self, delay: float, action: Callable[[int], None], v: int) -> None:
        self.count += 1
        heapq.heappush(self.events, (self.now + delay, self.count, action, v))

    def ask(self, v: int) -> None:
        d = self.device[v]
        if self.busy[d]:
            self.waiting[d].append(v)
        else:
            self.busy[d] = True
            self.after(0, self.begin, v)

    def begin(self, v: int) -> None:
        self.after(self.graph.flops[v] / TWO_33, self.end, v)

    def end(self, v: int) -> None:
        d = self.device[v]
        self.busy[d] = bool(self.waiting[d])
        if self.busy[d]:
            self.after(0, self.begin, self.waiting[d].popleft())
        self.after(0, self.finished, v)

    def finished(self, v: int) -> None:
        for x in self.graph.outputs(v):
            for c in self.graph.consumers(x).tolist():
                away = self.device[c] != self.device[v]
                self.after(self.graph.tensor_bytes[x] / TWO_33 if away else 0.0, self.sent, c)

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
