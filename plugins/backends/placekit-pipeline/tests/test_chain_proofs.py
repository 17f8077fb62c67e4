"""Policy `chain` finds the best split whenever it claims a proof, also for graphs with branches and for unequal links."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, permutations
from typing import Any

import numpy as np
import pytest
from numpy.random import Generator
from numpy.typing import NDArray
from placekit_layers import Blocks, sequence
from placekit_layers.prefixes import Prefixes
from placekit_layers.splits import as_path
from placekit_pipeline.blocking import BlockingLatency
from placekit_pipeline.chain import ChainPolicy
from placekit_pipeline.max_load import MaxLoad
from placekit_pipeline.pipeline import Pipeline
from placekit_pipeline.segments import values_add_up
from placekit_testing import fakes

from placekit_core import (
    Backend,
    Cluster,
    ClusterError,
    CostTable,
    GraphBuilder,
    NotApplicable,
    Placements,
    Problem,
    Session,
    Task,
)
from placekit_core.run.evaluator import BudgetedEvaluator

BACKENDS: dict[str, tuple[type[Backend], dict[str, Any]]] = {
    "max_load": (MaxLoad, {}),
    "blocking_latency": (BlockingLatency, {}),
    "token": (Pipeline, {"objective": "token"}),
    "throughput": (Pipeline, {"objective": "throughput", "microbatches": 4}),
    "gpipe": (Pipeline, {"schedule": "gpipe", "microbatches": 4}),
    "1f1b": (Pipeline, {"schedule": "1f1b", "microbatches": 6}),
    "1f1b, recomputed": (Pipeline, {"schedule": "1f1b", "microbatches": 3, "checkpointing": "block"}),
    "interleaved": (Pipeline, {"schedule": "interleaved", "microbatches": 4}),
}


def random_problem(rng: Generator, trains: bool, branches: bool) -> Problem:
    """Up to 6 layers on up to 3 devices; with `branches`, also skips, side operations, tied weights, detached gradients."""
    length, size = int(rng.integers(2, 7)), int(rng.integers(1, 4))

    def sometimes(chance: float) -> bool:
        return branches and float(rng.random()) < chance

    b = GraphBuilder("random")
    made, weights, reads = list[int](), list[int](), list[list[int]]()
    for i in range(length):
        shared = i > 0 and sometimes(0.2)
        weight = (
            weights[int(rng.integers(i))]
            if shared
            else b.source(f"w{i}", int(rng.integers(1, 50)), colocate=i, module=f"h.{i}")
        )
        weights.append(weight)
        before = [j for j in range(i) if (j == i - 1 and not sometimes(0.1)) or sometimes(0.25)]
        inputs = [weight, *(made[j] for j in before)]
        if sometimes(0.25):
            [side] = b.add(f"s{i}", inputs=[weight], outputs=[5], colocate=i, module=f"h.{i}")
            inputs.append(side)
        [out] = b.add(f"f{i}", inputs=inputs, outputs=[int(rng.integers(1, 30))], colocate=i, module=f"h.{i}")
        made.append(out)
        reads.append(before)
    gradients: dict[int, int] = {}
    for i in reversed(range(length)) if trains else ():
        inputs = [made[i], weights[i], *(gradients[j] for j in gradients if i in reads[j] and not sometimes(0.15))]
        if i and sometimes(0.15):
            inputs.append(made[int(rng.integers(i))])  # only the backward pass needs it
        [gradients[i]] = b.add(
            f"b{i}", inputs=inputs, outputs=[int(rng.integers(1, 30))], phase="backward", colocate=i, module=f"h.{i}"
        )
        [own] = b.add(f"g{i}", inputs=inputs, outputs=[3], phase="backward", colocate=i, module=f"h.{i}")
        b.add(f"u{i}", inputs=[weights[i], own], phase="update", colocate=i, module=f"h.{i}")
    graph = b.build()
    wide = {"concurrent": 2} if rng.random() < 0.4 else {}

    def speed() -> dict[str, Any]:
        return {"bytes_per_s": float(rng.integers(5, 50)), "latency_s": float(rng.integers(3)) / 8, **wide}

    names = [f"d{d}" for d in range(size)]
    links = [{"a": x, "b": y, **speed(), "reverse": speed()} for x, y in combinations(names, 2)]
    if rng.random() < 0.4:
        links = [{"a": "d*", "b": "hub", **speed()}] if size > 1 else []
    kinds = int(rng.integers(1, size + 1))
    bytes_ = float(graph.persistent_bytes.sum()) + float(graph.tensor_bytes.sum()) * rng.uniform(0, 1.5)
    tight = rng.random() < 0.5
    parts = {
        f"k{k}": {
            "flops_per_s": {"float32": 1.0},
            "memory_bytes": int(bytes_ * rng.uniform(0.8 / size, 1.2)) + 1 if tight else 10**9,
            "memory_bytes_per_s": 1.0,
        }
        for k in range(kinds)
    }
    devices = [{"kind": f"k{d % kinds}", "name": f"d{d}"} for d in range(size)]
    cluster = Cluster.parse({"kinds": parts, "devices": devices, "links": links})
    op_s = np.where(graph.kernel[:, None], rng.integers(1, 9, (graph.n, kinds)) / 4, 0.0)
    return Problem.of(graph, cluster, None, CostTable(cluster.kind_names, op_s, np.zeros(op_s.shape, np.bool_)))


def every_split(blocks: Blocks) -> Placements:
    """All ways to cut the blocks between prefixes, each part on another device."""
    prefixes = Prefixes.of(len(blocks), blocks.source, blocks.target, 2000)
    size, last = blocks.problem.cluster.size, len(prefixes.mask) - 1

    def parts(i: int, found: tuple[NDArray[np.bool_], ...]) -> Iterator[tuple[NDArray[np.bool_], ...]]:
        if i == last:
            yield found
        elif len(found) < size:
            for j in prefixes.after[prefixes.ptr[i] : prefixes.ptr[i + 1]].tolist():
                yield from parts(j, (*found, prefixes.mask[j] & ~prefixes.mask[i]))

    rows = []
    for found in parts(0, ()):
        for devices in permutations(range(size), len(found)):
            rows.append(np.select(found, devices)[blocks.of_group])
    return Placements.of(np.stack(rows).astype(np.int16))


def blocks_of(problem: Problem, session: Session, objective: str) -> Blocks:
    """The blocks that `chain` cuts."""
    blocks = sequence(problem)
    return as_path(blocks) if values_add_up(session, objective) else blocks


def check(name: str, seed: int, branches: bool) -> bool | None:
    """Compare `chain` with every split. Returns whether it claims a proof, None if nothing fits."""
    kind, options = BACKENDS[name]
    rng = np.random.default_rng([sorted(BACKENDS).index(name), seed])
    trains = bool(rng.random() < 0.3) if name == "token" else options.get("schedule", "inference") != "inference"
    try:
        problem = random_problem(rng, trains, branches)
    except ClusterError:  # too little memory in all
        return None
    backend = kind(**options, threads=1)
    session = backend.open(problem)
    measured = session.evaluate(every_split(blocks_of(problem, session, backend.objective)))
    least = float(np.where(measured.fits, measured.value_s, np.inf).min())
    bound = session.lower_bound()
    assert bound is not None
    assert bound <= least, f"seed {seed}: {least} s is below the bound of {bound} s"
    evaluator = BudgetedEvaluator(problem, session, objective=backend.objective)
    try:
        ChainPolicy().place(Task(problem, evaluator), rng)
    except NotApplicable:
        assert least == np.inf, f"seed {seed}: a split takes {least} s"
        return None
    if evaluator.best is None:
        assert least == np.inf, f"seed {seed}: a split takes {least} s"
        return None
    claims = any("blocks is better" in note or "nodes is better" in note for note in evaluator.notes)
    if claims:
        assert evaluator.best.value_s == pytest.approx(least, rel=1e-9), f"seed {seed}"
    return claims


@pytest.mark.parametrize("branches", [False, True])
@pytest.mark.parametrize("name", BACKENDS)
def test_proofs_hold(name: str, branches: bool) -> None:
    found = [check(name, seed, branches) for seed in range(5)]
    assert any(found) == (name not in ("interleaved", "blocking_latency"))


def test_a_module_that_no_device_may_run_whole_is_refused_by_name() -> None:
    b = GraphBuilder("pinned")
    [out] = b.add("begin", outputs=[8], flops=1e9)
    for call in range(3):
        [out] = b.add(f"fast@{call}", inputs=[out], outputs=[8], flops=1e9, module="cell", call=call, allowed="gpu")
        [out] = b.add(f"slow@{call}", inputs=[out], outputs=[8], flops=1e9, module="cell", call=call, allowed="cpu")
    problem = Problem.of(b.build(), fakes.gpus(1, 1))
    session = MaxLoad(threads=1).open(problem)
    with pytest.raises(NotApplicable, match="no device may run all of block"):
        ChainPolicy().place(Task(problem, BudgetedEvaluator(problem, session)), np.random.default_rng(0))
