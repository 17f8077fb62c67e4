"""Policy `chain` finds what trying every contiguous split finds, and bounds are never above a value."""

from __future__ import annotations

from contextlib import suppress
from itertools import combinations, permutations
from typing import Any

import numpy as np
import pytest
from numpy.random import Generator
from placekit_pipeline.blocking import BlockingLatency
from placekit_pipeline.chain import ChainPolicy
from placekit_pipeline.max_load import MaxLoad
from placekit_pipeline.pipeline import Pipeline

from placekit_core import Backend, Cluster, CostTable, GraphBuilder, NotApplicable, Placements, Problem, Task
from placekit_core.run.evaluator import BudgetedEvaluator

BACKENDS: dict[str, tuple[type[Backend], dict[str, Any]]] = {
    "max_load": (MaxLoad, {}),
    "blocking_latency": (BlockingLatency, {}),
    "token": (Pipeline, {"objective": "token"}),
    "throughput": (Pipeline, {"objective": "throughput"}),
    "throughput, no overlap": (Pipeline, {"objective": "throughput", "overlap": False}),
    "inference": (Pipeline, {"schedule": "inference", "microbatches": 5}),
    "gpipe": (Pipeline, {"schedule": "gpipe", "microbatches": 4}),
    "1f1b": (Pipeline, {"schedule": "1f1b", "microbatches": 6}),
    "1f1b, no overlap": (Pipeline, {"schedule": "1f1b", "microbatches": 3, "overlap": False}),
}
TRAINS = ("gpipe", "1f1b", "1f1b, no overlap")


def random_chain(rng: Generator, trains: bool, most: int = 10, devices: int = 4) -> Problem:
    """A chain of up to `most` blocks on up to `devices` unlike devices, some with little memory; some links unlike, too."""
    length, size = int(rng.integers(1, most + 1)), int(rng.integers(1, devices + 1))
    b = GraphBuilder("chain")
    previous: int | None = None
    made, weights = [], []
    for i in range(length):
        weight = b.source(f"w{i}", int(rng.integers(1, 50)), colocate=i)
        reads = [weight] if previous is None else [weight, previous]
        [previous] = b.add(f"f{i}", inputs=reads, outputs=[int(rng.integers(1, 30))], colocate=i)
        made.append(previous)
        weights.append(weight)
    gradient: int | None = None
    for i in reversed(range(length)) if trains else ():
        reads = [made[i], weights[i]] if gradient is None else [made[i], weights[i], gradient]
        [gradient] = b.add(f"b{i}", inputs=reads, outputs=[int(rng.integers(1, 30))], phase="backward", colocate=i)
        [of_weight] = b.add(f"g{i}", inputs=reads, outputs=[3], phase="backward", colocate=i)
        b.add(f"u{i}", inputs=[weights[i], of_weight], phase="update", colocate=i)
    graph = b.build()
    kinds = int(rng.integers(1, min(size, 3) + 1))
    tight = rng.random() < 0.5
    persistent = float(graph.persistent_bytes.sum())
    parts = {
        f"k{k}": {
            "flops_per_s": {"float32": 1.0},
            "memory_bytes": int(persistent * rng.uniform(1.2 / size, 1.5)) + 1 if tight else 10**9,
            "memory_bytes_per_s": 1.0,
        }
        for k in range(kinds)
    }
    links: list[dict[str, Any]] = []
    unlike = size > 2 and rng.random() < 0.4
    if unlike:
        names = [f"d{d}" for d in range(size)]
        links = [
            {"a": x, "b": y, "bytes_per_s": float(rng.integers(5, 50)), "latency_s": float(rng.integers(0, 3)) / 8}
            for x, y in combinations(names, 2)
        ]
    elif size > 1:
        links = [{"a": "d*", "b": "hub", "bytes_per_s": float(rng.integers(5, 50)), "latency_s": 0.125}]
    cluster = Cluster.parse(
        {
            "kinds": parts,
            "devices": [{"kind": f"k{d % kinds}", "name": f"d{d}"} for d in range(size)],
            "links": links,
        }
    )
    op_s = np.where(graph.kernel[:, None], rng.integers(1, 9, (graph.n, len(cluster.kind_names))) / 4, 0.0)
    costs = CostTable(cluster.kind_names, op_s, np.zeros(op_s.shape, np.bool_))
    return Problem.of(graph, cluster, None, costs)


def every_split(problem: Problem) -> Placements:
    """All ways to cut the chain's groups into contiguous stages, each on another device."""
    length, size = problem.g, problem.cluster.size
    rows = []
    for stages in range(1, min(length, size) + 1):
        for cuts in combinations(range(1, length), stages - 1):
            of = np.searchsorted(cuts, np.arange(length), side="right")
            rows += [np.asarray(devices)[of] for devices in permutations(range(size), stages)]
    return Placements.of(np.stack(rows).astype(np.int16))


def check(name: str, seed: int) -> bool:
    """Compare `chain` with every split on one random chain; whether any split fits."""
    kind, options = BACKENDS[name]
    rng = np.random.default_rng([sorted(BACKENDS).index(name), seed])
    problem = random_chain(rng, name in TRAINS)
    backend = kind(**options)
    session = backend.open(problem)
    measured = session.evaluate(every_split(problem))
    values = np.where(measured.fits, measured.value_s, np.inf)
    evaluator = BudgetedEvaluator(problem, session, objective=backend.objective)
    bound = session.lower_bound()
    assert bound is not None
    assert values.min() >= bound, f"seed {seed}: {values.min()} s is below the bound of {bound} s"
    if np.isinf(values.min()):
        with suppress(NotApplicable):  # or it has tried some that the tables could not rule out
            ChainPolicy().place(Task(problem, evaluator), rng)
        assert evaluator.best is None
        return False
    ChainPolicy().place(Task(problem, evaluator), rng)
    assert evaluator.best is not None
    assert evaluator.best.value_s == pytest.approx(values.min(), rel=1e-9), f"seed {seed}"
    assert any("no contiguous split" in note for note in evaluator.notes), f"seed {seed}: no proof, {evaluator.notes}"
    return True


@pytest.mark.parametrize("name", BACKENDS)
def test_chain_is_the_best_of_all_splits(name: str) -> None:
    fits = [check(name, seed) for seed in range(6)]
    assert any(fits)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("name", BACKENDS)
def test_chain_is_the_best_of_all_splits_in_many_cases(name: str) -> None:
    fits = [check(name, seed) for seed in range(12, 62, 2)]
    assert 0.05 < np.mean(fits) < 1, "some fit and some do not"
