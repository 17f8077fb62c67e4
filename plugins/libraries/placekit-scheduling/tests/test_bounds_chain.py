"""The bound of chains whose parameters do not fit on fast devices: by hand, and never above the best of all placements."""

from __future__ import annotations

import itertools
import re
from typing import Any

import numpy as np
import pytest
import yaml
from placekit_scheduling import ROUNDING, all_bounds
from placekit_scheduling.bounds import chain
from placekit_scheduling.bounds.blocks import Blocks
from placekit_scheduling.bounds.makespan import chain_bound, work_bound
from placekit_scheduling.bounds.relaxation import Relaxation

from placekit_core import (
    Cluster,
    CostTable,
    Graph,
    GraphBuilder,
    Grouping,
    PlacekitError,
    Placements,
    Problem,
    installed,
    load_programs,
)


def proven(problem: Problem) -> float:
    return chain_bound(Relaxation.of(problem))


def machine(memory: tuple[int, ...], counts: tuple[int, ...] = (1, 1, 1), **link: Any) -> Cluster:
    """Kinds a, b, ... with `memory` bytes on each of their `counts` devices, all linked to one hub at 1 byte per second.

    The last kind is a CPU.
    """
    names = "abc"[: len(memory)]
    rates = {"flops_per_s": {"float32": 1.0}, "memory_bytes_per_s": 1.0}
    types = dict.fromkeys(names, "gpu") | {names[-1]: "cpu"}
    return Cluster.parse({
        "kinds": {k: {**rates, "type": types[k], "memory_bytes": m} for k, m in zip(names, memory, strict=True)},
        "devices": [{"kind": k, "count": count} for k, count in zip(names, counts, strict=False)],
        "links": [{"bytes_per_s": 1.0, **({} if "mesh" in link else {"a": "*", "b": "hub"}), **link}],
    })  # fmt: skip


def problem_of(graph: Graph, cluster: Cluster, seconds: Any, grouping: Grouping | None = None) -> Problem:
    """Seconds of kernels on each kind, [K] or [n, K]."""
    table = np.where(graph.kernel[:, None], np.asarray(seconds, float), 0.0)
    return Problem.of(graph, cluster, grouping, CostTable(cluster.kind_names, table, np.zeros(table.shape, np.bool_)))


def chain_of(n: int, own: int = 0, weight: int = 0, allowed: str = "") -> Graph:
    """Kernels one after another, with `own` persistent bytes and a source of `weight` bytes each."""
    b, x = GraphBuilder("chain"), list[int]()
    for i in range(n):
        reads = [*x, *([b.source(f"w{i}", weight)] if weight else [])]
        x = b.add(f"op{i}", inputs=reads, outputs=[0], persistent_bytes=own, allowed=allowed)
    return b.build()


def pairs(n: int) -> Graph:
    """Pairs of kernels with 10 bytes each, and a kernel after each pair."""
    b, x = GraphBuilder("pairs"), list[int]()
    for i in range(n):
        made = [b.add(f"{side}{i}", inputs=x, outputs=[0], persistent_bytes=10)[0] for side in ("left", "right")]
        x = b.add(f"join{i}", inputs=made, outputs=[0])
    return b.build()


def test_what_does_not_fit_runs_in_turn_on_slower_devices() -> None:
    """Four kernels with 10 bytes each, of 1 s on device a, which holds two of them, or 9 s on device b: 1 + 1 + 9 + 9."""
    graph = chain_of(4, own=10)
    problem = problem_of(graph, machine((20, 99)), [1, 9])
    assert work_bound(Relaxation.of(problem)) == pytest.approx(18)
    assert proven(problem) == pytest.approx(20)
    assert all_bounds(problem)["forced"] == pytest.approx(20)
    assert proven(problem_of(graph, machine((10, 10, 99)), [1, 3, 9])) == pytest.approx(1 + 3 + 9 + 9)
    assert proven(problem_of(graph, machine((10, 99), (2, 1)), [1, 9])) == pytest.approx(20)
    assert proven(problem_of(graph, machine((40, 99)), [1, 9])) == 0  # everything fits on device a


def test_weights_are_copied_or_read_where_they_are() -> None:
    """Of four weights two are copied, 10 s each, or read on device b in 100 s: best a share f of both, 20 - 10 f = 4 + 99 f."""
    graph = chain_of(4, weight=10)
    assert proven(problem_of(graph, machine((20, 99)), [1, 100])) == pytest.approx(20 - 160 / 109)
    assert proven(problem_of(graph, machine((20, 99), bytes_per_s=4.0), [1, 100])) == pytest.approx(5 - 2.5 / 101.5)
    assert proven(problem_of(graph, machine((20, 99), concurrent="unlimited"), [1, 100])) == pytest.approx(4)
    only_a = chain_of(4, weight=10, allowed="gpu")
    links: list[tuple[dict[str, Any], int]] = [({}, 20), ({"concurrent": 2}, 10), ({"bytes_per_s": 4.0}, 5)]
    for link, least in links:
        assert proven(problem_of(only_a, machine((20, 99), **link), [1, 100])) == pytest.approx(least)
    for link, least in (
        ({}, 20),
        ({"mesh": "*"}, 10),
    ):  # a channel for all copies from device b, or one to each device a
        assert proven(problem_of(only_a, machine((10, 99), (2, 1), **link), [1, 100])) == pytest.approx(least)
    together = Grouping(np.repeat(np.arange(4), 2).astype(np.int32))
    assert proven(problem_of(graph, machine((20, 99)), [1, 100], together)) == pytest.approx(202)


def test_pairs_run_at_the_same_time_unless_they_are_one_group() -> None:
    """Device a holds four of eight kernels: each pair takes 9 s with one on each device; as groups, two take 2 s, two 18 s."""
    graph = pairs(4)
    seconds = [[0, 0] if name.startswith("join") else [1, 9] for name in graph.op_name]
    problem = problem_of(graph, machine((40, 99)), seconds)
    blocks = Blocks.of(Relaxation.of(problem))
    assert blocks.block.tolist() == [0, 0, 1, 2, 2, 3, 4, 4, 5, 6, 6, 7]
    assert proven(problem) == pytest.approx(36)
    # two devices b: 22 / 9 of the pairs with 18 / 11 kernels on device a, which take 18 / 11 s each; the others take 9 s
    assert proven(problem_of(graph, machine((40, 99), (1, 2)), seconds)) == pytest.approx(4 + 14)
    layers = Grouping(np.repeat(np.arange(4), 3).astype(np.int32))
    assert proven(problem_of(graph, machine((40, 99)), seconds, layers)) == pytest.approx(40)


def test_operations_beside_much_of_the_path_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel beside all but the first and the last of six joins them into one block, or is left out."""
    b = GraphBuilder("beside")
    x = first = b.add("op0", outputs=[0], persistent_bytes=10)
    aside = b.add("aside", inputs=first, outputs=[0])
    for i in range(1, 5):
        x = b.add(f"op{i}", inputs=x, outputs=[0], persistent_bytes=10)
    b.add("op5", inputs=[*x, *aside], persistent_bytes=10)
    problem = problem_of(b.build(), machine((30, 99)), [[1, 9]] * 7)
    assert Blocks.of(Relaxation.of(problem)).block.tolist() == [0, 1, 1, 1, 1, 1, 2]
    monkeypatch.setattr("placekit_scheduling.bounds.blocks.WIDEST", 3)
    assert Blocks.of(Relaxation.of(problem)).block.tolist() == [0, 1, 2, 3, 4, 5]
    assert proven(problem) == pytest.approx(3 + 27)


def test_too_many_classes_prove_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = problem_of(chain_of(4, own=10), machine((20, 99)), [[1, 9], [2, 9], [3, 9], [4, 9]])
    assert proven(problem) == pytest.approx(1 + 2 + 18)
    monkeypatch.setattr(chain, "LARGEST", 7)
    assert proven(problem) == 0


def random_problem(rng: np.random.Generator) -> Problem:
    """A chain of kernels and of pairs of kernels, with weights of their own, caches or none; two or three kinds of devices.

    Half of the problems have equal kernels without transfers between them: there the bound comes close.
    """
    while True:
        kinds, equal = int(rng.integers(2, 4)), bool(rng.random() < 0.5)
        counts = tuple(int(rng.choice([1, 1, 2])) for _ in range(kinds)) if kinds == 2 else (1, 1, 1)
        b, x, layer = GraphBuilder("random"), list[int](), list[int]()
        only = "gpu" if rng.random() < 0.3 else ""
        shared = b.source("shared", int(rng.integers(1, 9))) if rng.random() < 0.3 else None
        for i in range(int(rng.integers(2, 5))):
            made: list[int] = []
            for j in range(int(rng.choice([1, 1, 2]))):
                reads = [*x, *([shared] if shared is not None and rng.random() < 0.5 else [])]
                own = int(rng.integers(0, 9)) if rng.random() < 0.3 and not equal else 0
                if rng.random() < 0.7 or equal:
                    reads.append(b.source(f"w{i}.{j}", 6 if equal else int(rng.integers(2, 14))))
                output = 0 if equal else int(rng.integers(0, 3))
                made += b.add(f"op{i}.{j}", inputs=reads, outputs=[output], persistent_bytes=own, allowed=only)
            x = made if rng.random() < 0.9 else [*x, *made]
            layer += [i] * (len(b.operations) - len(layer))
        graph = b.build()
        whole = int(graph.persistent_bytes.sum())
        memory = (*rng.integers(6 if equal else 1, max(whole, 7), kinds - 1).tolist(), whole + 9)
        link = {"bytes_per_s": float(rng.choice([0.2, 1.0, 5.0])), "concurrent": ("unlimited", 1, 1, 2)[rng.integers(4)],
                "latency_s": 0.0 if equal else float(rng.integers(0, 2))}  # fmt: skip
        if rng.random() < 0.3:
            link["mesh"] = "*"
        grouping = Grouping(np.asarray(layer, np.int32)) if rng.random() < 0.5 else None
        seconds = rng.integers(0, 9, (1 if equal else graph.n, kinds)) * np.asarray([1, 3, rng.choice([9, 99])])[:kinds]
        try:
            problem = problem_of(
                graph, machine(memory, counts, **link), np.broadcast_to(seconds, (graph.n, kinds)), grouping
            )
        except PlacekitError:  # no device for a group, or too little memory for the parameters
            continue
        if problem.cluster.size**problem.g <= 3**7:
            return problem


def fastest(problem: Problem, backends: list[Any]) -> float:
    """Seconds of the fastest placement that fits, in any of the backends; inf if none fits."""
    places = [np.flatnonzero(row) for row in problem.allowed]
    devices = np.asarray(list(itertools.product(*places)), np.int16).reshape(-1, problem.g)
    best = np.inf
    for backend in backends:
        measured = backend.open(problem).evaluate(Placements.of(devices))
        best = min(best, measured.value_s[measured.fits].min(initial=np.inf))
    return best


@pytest.mark.slow
def test_no_placement_that_fits_is_faster() -> None:
    """All placements of small problems, streamed and not."""
    pytest.importorskip("placekit_sim")
    simulator, bulk = (installed().get("backend", name) for name in ("simulator", "bulk_synchronous"))
    backends = [simulator.build(simulator.component.config(threads=1, prefetch=p)) for p in (None, 0, 1)]
    backends.append(bulk.build(bulk.component.config(threads=1)))
    reached, higher = [], 0
    for seed in range(150):
        problem = random_problem(np.random.default_rng(seed))
        bound = proven(problem)
        if not bound:
            continue
        best = fastest(problem, backends)
        assert bound * (1 - ROUNDING) <= best, seed
        reached.append(bound / best)
        higher += bound > work_bound(Relaxation.of(problem)) * 1.01
    assert len(reached) > 60
    assert max(reached) == pytest.approx(1)
    assert higher > 30


def test_layers_of_a_decoder_that_does_not_fit() -> None:
    """Llama-3.3-70B on two GPUs and a CPU: `work` proves 132.7 ms for its layers. Llama-3.1-8B fits on the first GPU."""
    pytest.importorskip("placekit_models")
    machine_file = pytest.importorskip("placekit_inspect.machine_file").machine_file
    cluster = Cluster.parse(yaml.safe_load(machine_file("rtx4090 + rtx3060 pcie3 x4 + 64GB ddr5-5600")))
    for checkpoint, layers_s, operations_s in (("hf:Llama-3.3-70B", 0.198, 0.117), ("hf:Llama-3.1-8B", 0.0, 0.0)):
        [program] = load_programs(checkpoint=checkpoint, weights="q4_k_m", context=8192)
        graph = program.graph
        layer = [re.sub(r"^(blk\.\d+)\..*", r"\1", name) for name in graph.op_name]
        grouping = Grouping(np.unique(layer, return_inverse=True)[1].astype(np.int32))
        assert proven(Problem.of(graph, cluster, grouping)) == pytest.approx(layers_s, rel=0.01)
        assert proven(Problem.of(graph, cluster)) == pytest.approx(operations_s, rel=0.01)
