"""Under `max_load`, policy `chain` cuts between single nodes: as good as the published dynamic program, or better."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dp_reference import contiguous_optimum
from numpy.random import Generator
from placekit_pipeline.chain import ChainPolicy
from placekit_pipeline.max_load import MaxLoad
from placekit_pipeline.node_splits import nodes_of

from placekit_core import NotApplicable, Problem, Task
from placekit_core.run.evaluator import BudgetedEvaluator

MsrImporter = pytest.importorskip("placekit_formats.msr").MsrImporter


class Graph:
    """A graph in the format of `msr`, node by node."""

    def __init__(self, rng: Generator) -> None:
        self.rng, self.nodes, self.edges = rng, list[dict[str, Any]](), list[dict[str, Any]]()
        self.cost = list[float]()

    def add(self, reads: list[int], ms: float, size: float = 0.0, **fields: Any) -> int:
        i = len(self.nodes)
        node = {
            "id": i,
            "supportedOnFpga": True,
            "cpuLatency": 8 * ms,
            "fpgaLatency": ms,
            "size": size,
            "colorClass": i,
        }
        self.nodes.append({**node, "isBackwardNode": False, **fields})
        self.cost.append(float(self.rng.random()))
        self.edges += [{"sourceId": u, "destId": i, "cost": self.cost[u]} for u in dict.fromkeys(reads)]
        return i

    def train(self, alone: float) -> None:
        """Add a backward node for each node; for a share `alone`, also one outside their colour class."""
        readers: dict[int, list[int]] = {}
        for edge in self.edges:
            readers.setdefault(edge["sourceId"], []).append(edge["destId"])
        gradient: dict[int, int] = {}
        for i in reversed(range(len(self.nodes))):
            reads, ms = [gradient[v] for v in readers.get(i, [])], 2 * self.nodes[i]["fpgaLatency"]
            if reads and self.rng.random() < alone:
                reads = [self.add(reads, 0.2, isBackwardNode=True, colorClass=10_000 + i)]
            color = self.nodes[i]["colorClass"]
            gradient[i] = self.add([*reads, i], ms, isBackwardNode=True, colorClass=color)

    def text(self, accelerators: int, cpus: int, size: float) -> dict[str, Any]:
        machine = {"maxFPGAs": accelerators, "maxCPUs": cpus, "maxSizePerFPGA": size}
        return {**machine, "nodes": self.nodes, "edges": self.edges}


def random_graph(rng: Generator) -> dict[str, Any]:
    """Up to 12 nodes with colour classes, some CPU only, some of no time; with gradients, or not; memory often short."""
    graph = Graph(rng)
    for i in range(int(rng.integers(4, 13))):
        reads = [j for j in range(max(0, i - 4), i) if rng.random() < 0.45]
        ms = 0.0 if rng.random() < 0.3 else float(rng.random())
        color = int(rng.integers(0, i + 1)) if rng.random() < 0.15 else i
        size = float(rng.integers(1, 4)) if ms else 0.0
        graph.add(reads, ms, size, colorClass=color, supportedOnFpga=bool(rng.random() < 0.95))
    if rng.random() < 0.5:
        graph.train(float(rng.choice([0.0, 0.3])))
    size = sum(node["size"] for node in graph.nodes) * float(rng.choice([rng.uniform(0.5, 1), 1]))
    accelerators = int(rng.integers(2, 4))
    return graph.text(accelerators, int(rng.integers(0, 3)), size + 1)


def modules(count: int, branches: tuple[int, ...]) -> dict[str, Any]:
    """Modules one after another, each with branches of so many nodes."""
    graph = Graph(np.random.default_rng(0))
    last = graph.add([], 1.0)
    for _ in range(count):
        ends = []
        for length in branches:
            end = last
            for _ in range(length):
                end = graph.add([end], float(graph.rng.random()))
            ends.append(end)
        last = graph.add(ends, 0.1)
    return graph.text(4, 1, 1e9)


def chain(graph: dict[str, Any], folder: Path, **options: Any) -> tuple[float, list[str], Problem]:
    """The value of `chain` in ms (infinite if nothing fits), and its notes."""
    path = folder / "graph.json"
    path.write_text(json.dumps(graph))
    [program] = MsrImporter(path=str(path)).load()
    assert program.cluster is not None
    problem = Problem.of(program.graph, program.cluster, None, program.costs)
    evaluator = BudgetedEvaluator(problem, MaxLoad(threads=1).open(problem), objective="max_load")
    try:
        found = ChainPolicy(**options).place(Task(problem, evaluator), np.random.default_rng(0))
    except NotApplicable:
        return np.inf, evaluator.notes, problem
    measured = evaluator.session.evaluate(found.batch())
    return 1e3 * float(measured.value_s[0]) if measured.fits[0] else np.inf, evaluator.notes, problem


@pytest.mark.parametrize("seed", range(12))
def test_no_worse_than_the_published_program(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(5):
        graph = random_graph(rng)
        if graph["maxCPUs"] == 0 and not all(node["supportedOnFpga"] for node in graph["nodes"]):
            continue
        value, notes, _ = chain(graph, tmp_path)
        optimum = contiguous_optimum(graph)
        assert value <= optimum * (1 + 1e-9)
        assert value == np.inf or any("nodes is better" in note for note in notes)


def test_a_chain_of_more_nodes_than_blocks(tmp_path: Path) -> None:
    graph = modules(200, (1,))
    value, notes, _ = chain(graph, tmp_path)
    assert notes == ["no contiguous split of the 401 nodes is better: all others are searched or bounded"]
    assert value < chain(graph, tmp_path, max_ideals=1)[0]


def test_too_many_prefixes(tmp_path: Path) -> None:
    graph = modules(12, (3, 4, 5))
    best, notes, problem = chain(graph, tmp_path)
    assert notes == [
        f"no contiguous split of the {len(nodes_of(problem))} nodes is better: all others are searched or bounded"
    ]
    value, notes, _ = chain(graph, tmp_path, max_ideals=20)
    assert best <= value < 1.02 * best
    assert "along their order" in notes[0]


def test_what_takes_no_time_goes_with_a_reader(tmp_path: Path) -> None:
    graph = Graph(np.random.default_rng(0))
    mask, weight = graph.add([], 0.0), graph.add([], 0.0, 4.0)
    first = graph.add([mask, weight], 1.0)
    graph.add([first, mask], 1.0)
    problem = chain(graph.text(2, 0, 100), tmp_path)[2]
    assert nodes_of(problem).of_group[[mask, weight]].tolist() == [0, 0]
