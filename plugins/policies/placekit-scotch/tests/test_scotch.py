"""Scotch: loads as speeds, little over dear links, pinned vertices, and the same mapping every time."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from placekit_partitioning.exchange import Exchange
from placekit_partitioning.partitioning import Parts, integers
from placekit_scotch.library import static_mapping
from placekit_scotch.mapping import LINK, MinCut, Scotch, link_costs
from placekit_testing import fakes

from placekit_core import Cluster, Graph, GraphBuilder, NotApplicable, Problem, place

pytest.importorskip("pyscotch")

UNIFORM = np.full((4, 4), LINK)
SPEED = np.array([400, 200, 100, 100])


def random_graph(n: int, edges: int) -> tuple[Exchange, NDArray[np.int64]]:
    """A random simple graph of n vertices, neighbours close by, and loads."""
    rng = np.random.default_rng(n)
    u = rng.integers(0, n, edges)
    v = np.minimum(u + rng.integers(0, 50, edges), n - 1)
    key = np.unique(u[u != v] * n + v[u != v])
    exchange = Exchange.from_edges(n, key // n, key % n, rng.integers(1, 10**6, len(key)))
    return exchange, integers(rng.random(n) ** 4)


def free(n: int) -> NDArray[np.int64]:
    return np.full(n, -1)


def traffic(exchange: Exchange, mapping: NDArray[np.int64], link: NDArray[np.int64]) -> float:
    a, b = mapping[exchange.source], mapping[exchange.neighbour]
    return float((exchange.bytes_ * np.where(a == b, 0, link[a, b])).sum())


@pytest.mark.parametrize("imbalance", [0.01, 0.1])
def test_loads_are_as_speeds(imbalance: float) -> None:
    exchange, load = random_graph(2000, 6000)
    mapping = static_mapping(exchange, load, SPEED, UNIFORM, free(2000), imbalance, 0)
    share = np.bincount(mapping, load, 4) / load.sum() / (SPEED / SPEED.sum())
    assert share == pytest.approx(np.ones(4), abs=imbalance + 0.01)
    chance = np.random.default_rng(0).permutation(mapping)
    assert traffic(exchange, mapping, UNIFORM) < 0.2 * traffic(exchange, chance, UNIFORM)


def test_links_decide_which_parts_are_neighbours() -> None:
    """A long chain in four parts: between the two pairs of devices that slow links connect only one edge is cut."""
    n = 400
    u = np.arange(n - 1)
    chain = Exchange.from_edges(n, u, u + 1, np.ones(n - 1, np.int64))
    for near in ((0, 1), (0, 2), (0, 3)):  # that device 0 is near this one, and the two others are near each other
        link = np.full((4, 4), 50 * LINK)
        others = [d for d in range(4) if d not in near]
        for pair in (near, others):
            link[pair[0], pair[1]] = link[pair[1], pair[0]] = LINK
        mapping = static_mapping(chain, integers(np.ones(n)), np.full(4, 1000), link, free(n), 0.05, 0)
        island = np.isin(mapping, near)
        assert (island[1:] != island[:-1]).sum() == 1
        assert np.bincount(mapping).tolist() == pytest.approx([100] * 4, rel=0.1)


def test_pinned_vertices_stay() -> None:
    exchange, load = random_graph(1000, 3000)
    fixed = np.where(np.arange(1000) % 10 == 0, np.arange(1000) // 10 % 4, -1)
    before = fixed.copy()
    mapping = static_mapping(exchange, load, SPEED, UNIFORM, fixed, 0.05, 0)
    assert np.array_equal(mapping[fixed >= 0], fixed[fixed >= 0])
    assert np.array_equal(fixed, before), "the argument is not written to"


def test_a_graph_in_two_parts_and_vertices_without_load() -> None:
    exchange, load = random_graph(500, 1500)
    cut = (exchange.source < 250) == (exchange.neighbour < 250)
    once = cut & (exchange.source < exchange.neighbour)
    apart = Exchange.from_edges(500, exchange.source[once], exchange.neighbour[once], exchange.bytes_[once])
    load[::3] = 0
    mapping = static_mapping(apart, load, SPEED, UNIFORM, free(500), 0.05, 0)
    assert np.bincount(mapping, load, 4) / load.sum() == pytest.approx(SPEED / SPEED.sum(), abs=0.05)


CHILD = """
import hashlib, sys
sys.path.insert(0, {folder!r})
from test_scotch import SPEED, UNIFORM, free, random_graph, static_mapping
exchange, load = random_graph(6000, 20000)
print(hashlib.sha256(static_mapping(exchange, load, SPEED, UNIFORM, free(6000), 0.05, 7).tobytes()).hexdigest())
"""


def test_the_same_mapping_in_every_process() -> None:
    """From about 3,000 vertices on, Scotch on several threads gives another mapping each time."""
    exchange, load = random_graph(6000, 20000)
    first, second = (static_mapping(exchange, load, SPEED, UNIFORM, free(6000), 0.05, 7) for _ in range(2))
    assert np.array_equal(first, second)
    code = CHILD.format(folder=str(Path(__file__).parent))
    run = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(2)]
    assert run[0].stdout == run[1].stdout
    assert run[0].stdout.strip() == hashlib.sha256(first.tobytes()).hexdigest()
    assert run[0].stderr == "", "the library does not talk"


def test_another_seed_may_give_another_mapping() -> None:
    exchange, load = random_graph(6000, 20000)
    found = {static_mapping(exchange, load, SPEED, UNIFORM, free(6000), 0.05, seed).tobytes() for seed in range(4)}
    assert len(found) > 1


def line(n: int = 60, only: str = "") -> Graph:
    """A chain of n equal operations; every tenth may run on devices of type `only`."""
    b = GraphBuilder("line")
    made = b.add("op0", outputs=[10**6], flops=1e10)
    for i in range(1, n):
        made = b.add(f"op{i}", inputs=made, outputs=[10**6], flops=1e10, allowed=only if i % 10 == 5 else "")
    return b.build()


def placed(policy: Scotch, problem: Problem) -> tuple[NDArray[np.int16], list[str]]:
    task = fakes.fake_task(problem)
    return policy.place(task, np.random.default_rng(0)).device, task.evaluate.notes


def test_the_cpu_gets_its_share_and_mincut_leaves_it_out() -> None:
    problem = Problem.of(line(), fakes.gpus(2, cpus=1))
    device, _ = placed(Scotch(), problem)
    work = np.bincount(device, minlength=3) / problem.g
    assert work == pytest.approx([10 / 21, 10 / 21, 1 / 21], abs=0.05), "the CPU has a tenth of a GPU's speed"
    assert work[2] > 0
    device, _ = placed(MinCut(), problem)
    assert np.bincount(device, minlength=3).tolist() == pytest.approx([30, 30, 0], abs=2)


def test_what_only_the_cpu_may_run_is_there() -> None:
    problem = Problem.of(line(only="cpu"), fakes.gpus(2, cpus=1))
    pinned = ~problem.allowed[:, 0]
    for policy in (Scotch(), MinCut()):
        device, notes = placed(policy, problem)
        assert (device[pinned] == 2).all()
        assert notes == []
    assert ((device == 2) == pinned).all(), "mincut has nothing else on the CPU"


def test_groups_for_some_of_the_devices_are_moved_there_and_reported() -> None:
    problem = Problem.of(line(only="cpu"), fakes.gpus(2, cpus=2))
    device, [note] = placed(Scotch(), problem)
    problem.placement(device)
    assert note.startswith("scotch put ")


def test_links_of_the_machine() -> None:
    kinds = {"gpu": {"flops_per_s": {"float32": 1e12}, "memory_bytes": 2**30, "memory_bytes_per_s": 1e12}}
    links = [
        {"a": "gpu:0", "b": "gpu:1", "bytes_per_s": 1e9},
        {"a": "gpu:2", "b": "gpu:3", "bytes_per_s": 1e9},
        *({"a": f"gpu:{i}", "b": f"gpu:{j}", "bytes_per_s": 1e8, "latency_s": 1e-3} for i in (0, 1) for j in (2, 3)),
    ]
    cluster = Cluster.parse({"kinds": kinds, "devices": [{"kind": "gpu", "count": 4}], "links": links})
    cost = link_costs(Parts.of(Problem.of(line(), cluster), np.arange(4)))
    near, far = LINK, LINK * 11  # a megabyte takes 1 ms, or 10 ms and the latency of 1 ms
    assert cost[0].tolist()[1:] == [near, far, far]
    assert np.array_equal(cost, cost.T)
    assert (cost[2, 3], cost[1, 3]) == (near, far)


def test_more_runs_never_cost_more() -> None:
    problem = Problem.of(line(40), fakes.gpus(3, cpus=1))
    parts = Parts.of(problem, np.arange(4))
    cost = [
        traffic(parts.exchange, Scotch(runs=runs).parts(parts, np.random.default_rng(0)), link_costs(parts))
        for runs in (1, 5, 30)
    ]
    assert cost == sorted(cost, reverse=True)


def test_no_gpu() -> None:
    problem = Problem.of(line(5), fakes.gpus(0, cpus=2))
    with pytest.raises(NotApplicable, match=r"'mincut' needs GPUs, and .* has none\n  policy=scotch"):
        placed(MinCut(), problem)
    assert len(placed(Scotch(), problem)[0]) == 5


def test_a_repair_is_in_the_result() -> None:
    b = GraphBuilder("heavy")
    for i in range(6):
        b.add(f"op{i}", outputs=[8], flops=1e9 * (100 if i == 0 else 1), persistent_bytes=30 * 2**20)
    result = place(b.build(), cluster=fakes.gpus(2, memory_bytes=100 * 2**20), policy="scotch")
    assert result.summary.fits
    [note] = result.summary.notes
    assert note.startswith("memory repair moved ")
