"""Searches find placements that stream: operations on a GPU, parameters on a host."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from placekit_search.annealing import Annealing
from placekit_search.move_kinds import KINDS
from placekit_search.moves import new_log, propose, undo
from placekit_search.neighbourhood import flow, neighbourhood
from placekit_search.portfolio import Portfolio
from search_helpers import machine

from placekit_core import (
    BudgetExhausted,
    Cluster,
    Graph,
    GraphBuilder,
    Ledger,
    Policy,
    Problem,
    Task,
    installed,
    place,
)
from placekit_core.run.evaluator import BudgetedEvaluator

pytest.importorskip("placekit_sim")

LAYER_BYTES = 10**8
GPU, HOST = 0, 1


def decoder(layers: int = 24, flops: float = 2e10) -> Graph:
    """Layers of two products, which read 40 MB and 60 MB of parameters each."""
    b = GraphBuilder("decoder")
    x = b.source("tokens", 4_000, op_type="input")
    for i in range(layers):
        for name, share in (("attention", 0.4), ("mlp", 0.6)):
            path = f"h.{i}.{name}"
            w = b.source(f"{path}.weight", int(share * LAYER_BYTES), op_type="parameter", module=path)
            [x] = b.add(path, op_class="matmul", inputs=[x, w], outputs=[10_000], flops=share * flops, module=path)
    return b.build()


def computer(memory_bytes: int, gpus: int = 1) -> Cluster:
    """GPUs, and a host of 64 GB; 10 GB/s between them, so that a layer is copied in 10 ms. The host computes one in 1 s."""
    gpu = {"flops_per_s": {"float32": 1e13}, "memory_bytes": memory_bytes, "memory_bytes_per_s": 1e12}
    host = {
        "type": "cpu",
        "flops_per_s": {"float32": 2e10 / 0.75},
        "memory_bytes": 64 * 10**9,
        "memory_bytes_per_s": 5e10,
    }
    return Cluster.parse(
        {
            "kinds": {"gpu": gpu, "host": host},
            "devices": [{"kind": "gpu", "count": gpus}, {"kind": "host", "count": 1}],
            "links": [{"a": "*", "b": "pcie", "bytes_per_s": 1e10}],
        }
    )


def found(policy: Policy, problem: Problem, prefetch: int | None, budget: int = 2000) -> BudgetedEvaluator:
    entry = installed().get("backend", "simulator")
    session = entry.build(entry.component.config(prefetch=prefetch)).open(problem)
    evaluate = BudgetedEvaluator(problem, session, Ledger(budget))
    with contextlib.suppress(BudgetExhausted):
        policy.place(Task(problem, evaluate), np.random.default_rng(0))
    return evaluate


@pytest.mark.parametrize("policy", [Portfolio, Annealing])
def test_what_exceeds_the_memory_is_streamed(policy: type[Policy]) -> None:
    """2.4 GB of parameters on a GPU of 1 GB: at least 1.4 GB are copied, in 0.14 s; the host alone would take 14 s."""
    problem = Problem.of(decoder(), computer(10**9))
    computed, best = found(policy(), problem, None).best, found(policy(), problem, 1).best
    assert computed is not None
    assert best is not None
    assert 0.14 <= best.value_s < 1.15 * 0.14
    assert computed.value_s >= 0.14
    if policy is not Portfolio:  # it finds that the GPU can read parameters on the host without it
        assert computed.value_s > 20 * best.value_s
    kernel = problem.graph.kernel
    home = problem.expand(best.placement.device)
    assert (home[kernel] == GPU).all()
    assert problem.graph.persistent_bytes[home == HOST].sum() >= 1.4e9
    assert best.peak_bytes[GPU] <= 1e9


def test_place_makes_groups_of_parameters_where_the_backend_streams() -> None:
    pytest.importorskip("placekit_grouping")
    given = {"cluster": computer(10**9), "policy": "annealing", "budget": 500}
    module = {"name": "module", "depth": 2}
    result = place(decoder(), grouper=module, backend={"name": "simulator", "prefetch": 1}, **given)
    assert result.value_s < 1.4 * 0.14
    assert "weights of h.3" in result.problem.grouping.names
    apart = place(decoder(), grouper=module, backend="simulator", **given)
    assert "weights of h.3" not in apart.problem.grouping.names


def test_offloaded_parameters_stay_where_their_readers_move() -> None:
    """A moved operation takes its own parameters along, but not those that it was streaming."""
    b = GraphBuilder("weights")
    own, far = b.source("own", 100), b.source("far", 100)
    b.add("a", inputs=[own, far], flops=1e9)
    problem = Problem.of(b.build(), machine(3, flops_per_s=1e9))
    hood, log, shares = neighbourhood(problem), new_log(3, 3, 1, 3), np.zeros(len(KINDS))
    shares[:] = 1.0
    device, priority = np.array([0, 2, 0], np.int16), np.zeros(0, np.float32)
    for streams in (False, True):
        graph, state, moves = flow(problem, None, streams), np.array([1], np.uint64), set()
        for _ in range(100):
            propose(state, device, priority, hood, graph, shares, log)
            if device[2] == 1:
                moves.add(tuple(device.tolist()))
            undo(device, priority, log)
        assert moves == ({(1, 2, 1)} if streams else {(1, 1, 1)})
