"""What the tests of the searches share: machines, graphs, and searches on the simulator."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import numpy as np
import pytest

from placekit_core import (
    BudgetExhausted,
    Cluster,
    Graph,
    GraphBuilder,
    Ledger,
    Policy,
    Problem,
    Session,
    Task,
    installed,
)
from placekit_core.run.evaluator import BudgetedEvaluator


def machine(
    gpus: int = 2, cpus: int = 0, *, flops_per_s: float = 1e12, memory_bytes: int = 2**40, bytes_per_s: float = 1e9
) -> Cluster:
    """Equal GPUs and CPUs, linked to one hub; operations are bound by compute."""
    kind = {
        "flops_per_s": {"float32": flops_per_s},
        "memory_bytes": memory_bytes,
        "memory_bytes_per_s": 1e15,
        "efficiency": {"other": {"compute": 1.0, "memory": 1.0}},
    }
    return Cluster.parse(
        {
            "kinds": {"gpu": kind, "cpu": {**kind, "type": "cpu"}},
            "devices": [{"kind": "gpu", "count": gpus}, *([{"kind": "cpu", "count": cpus}] if cpus else [])],
            "links": [{"a": "*", "b": "hub", "bytes_per_s": bytes_per_s}],
        }
    )


def random_layers(seed: int = 0, width: int = 8, depth: int = 8) -> Graph:
    """Layers of operations of 1 to 8 GFLOP, each of which reads two outputs of 2 to 8 MB of the layer before."""
    rng = np.random.default_rng(seed)
    b = GraphBuilder("layers")
    before = [b.source(f"x{i}", 1_000_000, op_type="input") for i in range(width)]
    for level in range(depth):
        now = []
        for i in range(width):
            inputs = rng.choice(before, 2, replace=False).tolist()
            now += b.add(f"op{level}.{i}", inputs=inputs, outputs=[int(rng.integers(2, 9)) * 10**6],
                         flops=float(rng.integers(1, 9)) * 1e9)  # fmt: skip
        before = now
    return b.build()


def tight(gpus: int = 2) -> Problem:
    """One device is fastest, and lacks one percent of the memory unless leaves are used up before all others are made."""
    b = GraphBuilder("tight")
    x = b.source("x", 50_000_000)
    for i in range(10):
        leaf = b.add(f"leaf{i}", outputs=[10_000_000], flops=1e6)
        b.add(f"late{i}", inputs=[*leaf, x], outputs=[4], flops=1e9)
    return Problem.of(b.build(), machine(gpus, memory_bytes=149_000_000))


def open_simulator(problem: Problem) -> Session:
    """A session; skips the test where placekit-sim is not installed."""
    pytest.importorskip("placekit_sim")
    entry = installed().get("backend", "simulator")
    return entry.build(entry.component.config()).open(problem)


def task_of(problem: Problem, evaluations: int | None = None, seconds: float | None = None) -> Task:
    """On the simulator, with a budget of its own."""
    return Task(problem, BudgetedEvaluator(problem, open_simulator(problem), Ledger(evaluations, seconds)))


def search(policy: Policy, problem: Problem, budget: int = 3000, seed: int = 0) -> BudgetedEvaluator:
    """The evaluator after the search."""
    task = task_of(problem, budget)
    with contextlib.suppress(BudgetExhausted):
        policy.place(task, np.random.default_rng(seed))
    return task.evaluate


def stopped_and_resumed(policy: Policy, problem: Problem, budget: int, stop: int) -> BudgetedEvaluator:
    """The evaluator of a search that was stopped at the first checkpoint after `stop` evaluations, and continued."""

    class Stop(Exception):
        pass

    saved: dict[str, Any] = {}
    first, second = task_of(problem, budget), task_of(problem, budget)

    def checkpoint(state: Any) -> None:
        saved.update(copy.deepcopy({"policy": dict(state), "evaluator": first.evaluate.state()}))
        if first.evaluate.evaluations > stop:
            raise Stop

    with pytest.raises(Stop):
        policy.place(first, np.random.default_rng(0), None, checkpoint)
    second.evaluate.restore(saved["evaluator"])
    policy.place(second, np.random.default_rng(99), saved["policy"])
    return second.evaluate


def rows(evaluate: BudgetedEvaluator) -> list[tuple[float, ...]]:
    """The history without its seconds, which differ between runs."""
    return [(r[0], *r[2:]) for r in evaluate.history]
