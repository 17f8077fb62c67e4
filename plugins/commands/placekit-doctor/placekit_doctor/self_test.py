"""The self-test of `placekit doctor`: policies that need no training place a small graph on the simulator."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from placekit_core import (
    Backend,
    Best,
    BudgetExhausted,
    Cluster,
    Graph,
    GraphBuilder,
    Grouping,
    LearnablePolicy,
    Ledger,
    NotApplicable,
    PlacekitError,
    PluginError,
    Policy,
    Problem,
    Task,
)
from placekit_core.contracts.units import seconds
from placekit_core.run.config import Streams
from placekit_core.run.entries import Entry
from placekit_core.run.evaluator import BudgetedEvaluator
from placekit_doctor.findings import Finding, fail, ok, warn, working

BUDGET = 200
ROUNDING = 1e-9  # relative error of sums in another order


def self_test(loaded: Sequence[tuple[Entry, type[Any] | PluginError]]) -> Iterator[Finding]:
    """Place a graph of 24 operations on two devices, twice with the same seed; `loaded` has all components."""
    classes = [(entry, cls) for entry, cls in loaded if isinstance(cls, type)]
    backends = [(e, c) for e, c in classes if e.kind == "backend" and c.simulated and c.objective == "makespan"]
    policies = [(e, c) for e, c in classes if e.kind == "policy" and not issubclass(c, LearnablePolicy)]
    if not backends or not policies:
        lacking = "simulated backend" if not backends else "policy without training"
        yield warn(f"not possible: no {lacking} is installed", "pip install placekit-sim placekit-heuristics")
        return
    entry = next((e for e, _ in backends if e.component.name == "simulator"), backends[0][0])
    backend: Backend = entry.build(entry.component.config())
    problem = Problem.of(ladder(), pair())
    yield _single_device(problem, backend)
    for entry, _ in policies:
        working(f"placing with policy {entry.component.name} ...")
        yield _policy(entry, problem, backend)


def _single_device(problem: Problem, backend: Backend) -> Finding:
    """Check that one device takes the sum of its operations."""
    with contextlib.closing(backend.open(problem)) as session:
        value = float(session.evaluate(problem.placement(np.zeros(problem.g, np.int16)).batch()).value_s[0])
    expected = float(problem.op_s[:, 0].sum())
    text = f"one device takes {seconds(value)}, its operations {seconds(expected)}"
    if abs(value - expected) <= ROUNDING * expected:
        return ok(text)
    return fail(text, f"reinstall the plugin of backend {backend.name}")


def _policy(entry: Entry, problem: Problem, backend: Backend) -> Finding:
    name = f"policy {entry.component.name}"
    hint = f"reinstall {entry.distribution}, or report it to its authors"
    try:
        entry.build(entry.component.config())
    except PlacekitError as e:  # for example, an optional library is missing
        return warn(f"{name} cannot be used here: {e.message}", e.hint or hint)
    except Exception as e:
        return fail(f"{name}: {type(e).__name__}: {e}", hint)
    try:
        first, bound = _place(entry, problem, backend)
        again, _ = _place(entry, problem, backend)
    except NotApplicable as e:
        return ok(f"{name} does not take the self-test's program: {e.message}")
    except Exception as e:
        return fail(f"{name}: {type(e).__name__}: {e}", hint)
    text = f"{name} finds {seconds(first.value_s)}, proven bound {seconds(bound)}"
    if bound is not None and first.value_s < bound:
        return fail(f"{text}: below the bound", hint)
    if backend.deterministic and (first.value_s != again.value_s or not first.placement.same_as(again.placement)):
        return fail(f"{name}: the same seed gave {first.value_s!r} s and then {again.value_s!r} s", hint)
    return ok(text)


def _place(entry: Entry, problem: Problem, backend: Backend) -> tuple[Best, float | None]:
    """The best placement that a policy finds with seed 0, and the proven bound in seconds."""
    policy: Policy = entry.build(entry.component.config())
    if policy.level == "operation":
        problem = Problem.of(problem.graph, problem.cluster, Grouping.colocated(problem.graph))
    with contextlib.closing(backend.open(problem)) as session:
        evaluate = BudgetedEvaluator(problem, session, Ledger(BUDGET), deterministic=backend.deterministic)
        with contextlib.suppress(BudgetExhausted):
            evaluate(policy.place(Task(problem, evaluate), Streams(0)("policy")).batch())
        if evaluate.best is None:
            raise RuntimeError(f"no placement that fits in {evaluate.evaluations} evaluations")
        return evaluate.best, session.lower_bound()


def ladder() -> Graph:
    """Two chains of ten operations of unequal length, with rungs between them."""
    b = GraphBuilder("self-test")
    left = right = b.source("x", 1_000_000, op_type="input")
    for i in range(10):
        weight = b.source(f"w{i}", 1_000_000) if i % 5 == 0 else left
        [left] = b.add(f"left{i}", inputs=[left, weight], outputs=[1_000_000], flops=(1 + i % 3) * 1e9)
        [right] = b.add(f"right{i}", inputs=[right, left] if i % 4 == 3 else [right], outputs=[1_000_000], flops=2e9)
    b.add("join", inputs=[left, right], outputs=[1_000], flops=1e9)
    return b.build()


def pair() -> Cluster:
    """Two equal devices and a link."""
    kind = {"flops_per_s": {"float32": 1e12}, "memory_bytes": 2**30, "memory_bytes_per_s": 1e12}
    return Cluster.parse(
        {
            "name": "pair",
            "kinds": {"gpu": kind},
            "devices": [{"kind": "gpu", "count": 2}],
            "links": [{"a": "gpu:0", "b": "gpu:1", "bytes_per_s": 10e9}],
        }
    )
