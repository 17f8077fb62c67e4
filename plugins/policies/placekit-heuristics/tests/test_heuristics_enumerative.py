"""Policy `enumerative`: every choice against brute force in plain Python, and what it promises about balance."""

from __future__ import annotations

import math
from functools import partial
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from numpy.random import Generator
from placekit_heuristics.enumerative import Enumerative
from placekit_heuristics.meta_operations import from_columns, recovered
from placekit_testing import PolicyContract, fakes
from placekit_testing.contract import Make

from placekit_core import (
    Cluster,
    Graph,
    GraphBuilder,
    Labels,
    NotApplicable,
    PlacekitError,
    Placement,
    Problem,
    load_programs,
)

PROGRAMS = [("chainmm", 4), ("ffnn", 8), ("llama_block", 8)]


class TestEnumerative(PolicyContract):
    """The kit's graphs have no columns."""

    @pytest.fixture
    def make(self) -> Make:
        return partial(Enumerative, meta_operations="recovered")


def machine(devices: int, rng: Generator | None = None, cpus: int = 0) -> Cluster:
    """Devices that are linked in pairs, alike without `rng`."""
    names = [f"d{i}" for i in range(devices + cpus)]
    rates = {"flops_per_s": {"float32": 1e6}, "memory_bytes": 10**9, "memory_bytes_per_s": 1.0}
    return Cluster.parse({
        "kinds": {"gpu": rates, "cpu": {**rates, "type": "cpu"}},
        "devices": [{"kind": "gpu" if i < devices else "cpu", "name": n} for i, n in enumerate(names)],
        "links": [
            {"a": a, "b": b, "bytes_per_s": 1.0 if rng is None else float(rng.choice([0.25, 0.5, 1.0, 2.0])),
             "latency_s": 0.5 if rng is None else float(rng.choice([0.5, 4.0]))}
            for i, a in enumerate(names) for b in names[:i]
        ],
    })  # fmt: skip


class Sharded:
    """A graph under construction, with its meta-operations."""

    def __init__(self) -> None:
        self.builder = GraphBuilder("sharded")
        self.columns: dict[str, list[str]] = {"meta_op": [], "meta_role": []}

    def source(self, bytes_: int, **properties: Any) -> int:
        self._describe("", "input")
        return self.builder.source(f"s{len(self.builder.operations)}", bytes_, **properties)

    def add(self, meta: str, role: str, inputs: list[int], bytes_: int = 1, **properties: Any) -> int:
        self._describe(meta, role)
        name = f"{meta}.{role}{len(self.builder.operations)}"
        return self.builder.add(name, op_type=role, inputs=inputs, outputs=[bytes_], flops=1.0, **properties)[0]

    def build(self) -> Graph:
        self.builder.columns = {key: Labels.of(values) for key, values in self.columns.items()}
        return self.builder.build()

    def _describe(self, meta: str, role: str) -> None:
        self.columns["meta_op"].append(meta)
        self.columns["meta_role"].append(role)


def random_sharded(rng: Generator, metas: int = 5, most: int = 4) -> Graph:
    """Meta-operations with up to `most` shards and reduces (or neither of one), which read each other's and sources."""
    graph = Sharded()
    tensors = [graph.source(int(rng.integers(1, 9))) for _ in range(4)]
    for m in range(metas):
        shards, reduces = rng.integers(0, most + 1, 2)
        written = [
            graph.add(f"m{m}", "shard", rng.choice(tensors, 2).tolist(), int(rng.integers(1, 9))) for _ in range(shards)
        ]
        tensors = tensors[-8:] + [
            graph.add(f"m{m}", "reduce", rng.choice(written or tensors, 2).tolist(), int(rng.integers(1, 9)))
            for _ in range(reduces)
        ]
        tensors += written
    return graph.build()


def place(problem: Problem, seed: int = 0, **options: Any) -> Placement:
    return Enumerative(**options).place(fakes.fake_task(problem), np.random.default_rng(seed))


class Replay:
    """What was sent so far, in plain Python: the machine model's transfers, each at its seconds on an idle machine."""

    def __init__(self, problem: Problem) -> None:
        self.problem, self.graph, self.routes = problem, problem.graph, problem.cluster.routes
        self.device: dict[int, int] = {}
        self.sent: set[tuple[int, int]] = set()

    def run(self, ops: list[int], devices: tuple[int, ...]) -> float:
        """Run `ops` there. Seconds of the transfers that are new; a source is where it is read first."""
        self.device.update(zip(ops, devices, strict=True))
        total = 0.0
        for v, d in zip(ops, devices, strict=True):
            for t in self.graph.inputs(v).tolist():
                u = int(self.graph.tensor_producer[t])
                home = self.device.setdefault(u, d)
                if home != d and (t, d) not in self.sent:
                    self.sent.add((t, d))
                    seconds = (
                        self.routes.latency_s[home, d] + self.graph.tensor_bytes[t] * self.routes.s_per_byte[home, d]
                    )
                    total += float(seconds)
        return total

    def cost(self, ops: list[int], devices: tuple[int, ...]) -> float:
        """What `run` would return, without running."""
        kept = dict(self.device), set(self.sent)
        total = self.run(ops, devices)
        self.device, self.sent = kept
        return total


@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_every_step_costs_the_least(seed: int, alike: bool) -> None:
    """By brute force over all assignments of its operations to different devices."""
    rng = np.random.default_rng(seed)
    problem = Problem.of(random_sharded(rng), machine(4, None if alike else rng))
    device = problem.expand(place(problem).device)
    replay = Replay(problem)
    for ops in from_columns(problem.graph):
        chosen = tuple(device[ops].tolist())
        least = min(replay.cost(ops.tolist(), p) for p in permutations(range(4), len(ops)))
        assert len(set(chosen)) == len(ops)
        assert replay.run(ops.tolist(), chosen) == pytest.approx(least)
    sources = np.flatnonzero(~problem.graph.kernel)
    assert all(device[v] == replay.device.get(v, device[v]) for v in sources.tolist())


@pytest.mark.parametrize("seed", range(2))
def test_more_shards_than_devices_are_assigned_in_rows(seed: int) -> None:
    """Of which each costs the least; what was sent for one is there for the next."""
    rng = np.random.default_rng(seed)
    problem = Problem.of(random_sharded(rng, metas=4, most=11), machine(3, rng))
    device = problem.expand(place(problem).device)
    replay, rows = Replay(problem), 0
    for ops in from_columns(problem.graph):
        for row in np.split(ops, range(3, len(ops), 3)):
            chosen = tuple(device[row].tolist())
            least = min(replay.cost(row.tolist(), p) for p in permutations(range(3), len(row)))
            assert len(set(chosen)) == len(row)
            assert replay.run(row.tolist(), chosen) == pytest.approx(least)
        rows = max(rows, -(-len(ops) // 3))
    assert rows > 1


@pytest.mark.parametrize(("name", "devices"), PROGRAMS)
def test_steps_are_balanced(name: str, devices: int) -> None:
    """Never two of at most D operations on one device, and ceil or floor of n / D of more."""
    pytest.importorskip("placekit_einsum")
    graph = load_programs({"name": "einsum", "program": name, "devices": devices})[0].graph
    problem = Problem.of(graph, machine(devices, np.random.default_rng(0)))
    device = problem.expand(place(problem).device)
    for ops in from_columns(graph):
        count = np.bincount(device[ops], minlength=devices)
        assert count.max() == math.ceil(len(ops) / devices)
        assert count.min() == len(ops) // devices


def test_operations_for_cpus_go_there() -> None:
    """Shards are balanced over the GPUs, those that only CPUs may run over the CPUs."""
    graph = Sharded()
    source = graph.source(4)
    for i in range(6):
        graph.add("a", "shard", [source], allowed="cpu" if i < 2 else "")
    problem = Problem.of(graph.build(), machine(2, cpus=2))
    device = problem.expand(place(problem).device).tolist()[1:]
    assert sorted(device[:2]) == [2, 3]
    assert sorted(device[2:]) == [0, 0, 1, 1]
    only_cpus = Problem.of(problem.graph, machine(0, cpus=3))
    assert np.bincount(only_cpus.expand(place(only_cpus).device)[1:]).tolist() == [2, 2, 2]


def test_samples_take_the_best() -> None:
    """The first is the placement without samples; the others differ where assignments cost the same."""
    problem = Problem.of(random_sharded(np.random.default_rng(0), metas=8), machine(4))
    task = fakes.fake_task(problem)
    best = Enumerative(samples=30).place(task, np.random.default_rng(0))
    seen = fakes.session_of(task).seen
    assert task.evaluate.evaluations == 30
    assert place(problem).device.tobytes() in seen
    assert len(seen) > 10
    assert task.evaluate.best is not None
    assert best.same_as(task.evaluate.best.placement)


def test_graphs_without_meta_operations_are_refused() -> None:
    with pytest.raises(
        PlacekitError,
        match=r"needs meta-operations[\s\S]*importer=einsum writes them[\s\S]*policy.meta_operations=recovered",
    ):
        place(fakes.diamond())


def test_operations_of_no_meta_operation_are_refused() -> None:
    for meta, role in [("", "shard"), ("a", "input"), ("a", "")]:
        graph = Sharded()
        graph.add(meta, role, [])
        with pytest.raises(PlacekitError, match=rf"meta_op '{meta}' and meta_role '{role}'"):
            place(Problem.of(graph.build(), machine(2)))


def test_meta_operations_that_depend_on_each_other_are_refused() -> None:
    graph = Sharded()
    first = graph.add("a", "shard", [])
    second = graph.add("b", "shard", [first])
    graph.add("a", "reduce", [second])
    with pytest.raises(NotApplicable, match="meta-operation a -> meta-operation b -> meta-operation a"):
        place(Problem.of(graph.build(), machine(2)))


def test_recovered_runs() -> None:
    """A run ends where operator, FLOPs or depth change; sources do not interrupt it."""
    graph = Sharded()
    a = [graph.add("a", "shard", []), graph.add("a", "shard", [])]
    graph.source(1)
    a.append(graph.add("a", "shard", []))
    b = [graph.add("a", "reduce", a[:2]), graph.add("a", "reduce", a[1:])]
    graph.add("b", "reduce", b)
    assert [s.tolist() for s in recovered(graph.build())] == [[0, 1, 3], [4, 5], [6]]
