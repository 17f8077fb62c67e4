"""The compiled evaluations against plain Python, and against themselves: from the beginning and move by move."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pipeline_reference as reference
import pytest
from numpy.random import Generator
from numpy.typing import NDArray
from placekit_pipeline.blocking import BlockingLatency
from placekit_pipeline.max_load import MaxLoad
from placekit_pipeline.pipeline import Pipeline
from placekit_testing.strategies import (
    TICK_S,
    pick,
    random_cluster,
    random_costs,
    random_placements,
    random_problem,
    random_step,
)

from placekit_core import Backend, Cluster, GraphBuilder, Grouping, Problem, Session

TRAINING = ("gpipe", "1f1b", "interleaved", "zero_bubble")
SCHEDULES = (*TRAINING, "inference")
Answer = tuple[float, list[float]]
Evaluate = Callable[[Problem, NDArray[np.int16]], Answer]


# ---- problems


def machine(rng: Generator) -> Cluster:
    """A random machine; some with a link of its own rate and latency between any two devices."""
    cluster = random_cluster(rng, 4)
    if cluster.size < 2 or rng.random() < 0.7:
        return cluster
    links = [
        {"a": a, "b": b, "bytes_per_s": pick(rng, [1, 2, 4]) / TICK_S, "latency_s": pick(rng, [0, 1, 2, 9]) * TICK_S}
        for a, b in combinations(cluster.device_names, 2)
    ]
    return Cluster.parse({**cluster.model_dump(), "links": links, "relay": False, "multicast": False})


def layers(rng: Generator, count: int, branches: bool = True) -> Problem:
    """A network of layers with parameters, skips, gradients of inputs and of weights, and updates; groups are layers or finer."""
    b = GraphBuilder("layers")
    finer = rng.random() < 0.3
    mask = b.source("mask", int(rng.integers(0, 9)))
    weights, outputs = list[int](), list[int]()
    for i in range(count):
        weights.append(b.source(f"w{i}", int(rng.integers(1, 9)), colocate=i))
        reads = [weights[i], *outputs[-1:]]
        if branches and i > 1 and rng.random() < 0.3:
            reads.append(outputs[int(rng.integers(0, i - 1))])
        if rng.random() < 0.2:
            reads.append(mask)
        [inner] = b.add(
            f"a{i}", inputs=reads, outputs=[int(rng.integers(1, 9))], colocate=i, module=f"h.{i}" if i else "embed"
        )
        outputs += b.add(
            f"f{i}", inputs=[inner, weights[i]], outputs=[int(rng.integers(1, 9))], colocate=-1 if finer else i,
            module=f"h.{i}" if i else "embed",
        )  # fmt: skip
    gradient: int | None = None
    for i in reversed(range(count)):
        reads = [weights[i], outputs[i], *([outputs[i - 1]] if i else []), *([gradient] if gradient is not None else [])]
        [gradient] = b.add(
            f"b{i}", inputs=reads, outputs=[int(rng.integers(1, 9))], phase="backward", colocate=i, module=f"h.{i}"
        )
        [of_weight] = b.add(
            f"g{i}", inputs=[*reads[1:], gradient][:2], outputs=[int(rng.integers(1, 9))], phase="backward", colocate=i,
            module=f"h.{i}",
        )  # fmt: skip
        b.add(f"u{i}", inputs=[weights[i], of_weight], phase="update", colocate=i)
    graph, cluster = b.build(), machine(rng)
    grouping = Grouping.colocated(graph)
    return Problem(graph, grouping, cluster, random_costs(rng, graph, cluster))


def of_step(rng: Generator) -> Problem:
    """A random training step on a machine with a CPU and a GPU, most groups small."""
    graph, cluster = random_step(rng, int(rng.integers(2, 10))), random_cluster(rng, 4)
    while len(set(cluster.device_kind)) < 2:
        cluster = random_cluster(rng, 4)
    return Problem(graph, Grouping.colocated(graph), cluster, random_costs(rng, graph, cluster))


def placements(rng: Generator, problem: Problem, count: int) -> Iterator[NDArray[np.int16]]:
    """Contiguous splits along the forward phase, some with a group elsewhere; and random placements."""
    graph, size = problem.graph, problem.cluster.size
    position = np.full(problem.g, -1)
    for at, v in enumerate(graph.topological_order.tolist()):
        group = problem.grouping.group_of[v]
        if graph.kernel[v] and position[group] < 0:
            position[group] = at
    rank = np.argsort(np.argsort(position, kind="stable"), kind="stable")
    yield from random_placements(rng, problem, max(1, count // 4)).device
    for i in range(count - max(1, count // 4)):
        parts = int(rng.integers(1, 3 * size + 1))
        bound = np.sort(rng.integers(0, problem.g + 1, parts - 1))
        order = rng.permutation(size)
        device = order[np.searchsorted(bound, rank, side="right") % size].astype(np.int16)
        if i % 3 == 0:
            device[int(rng.integers(problem.g))] = rng.integers(size)
        yield np.ascontiguousarray(device)


def problems(rng: Generator) -> Iterator[Problem]:
    """Random graphs, random training steps, layers."""
    yield random_problem(rng, int(rng.integers(2, 20)))
    yield of_step(rng)
    yield layers(rng, int(rng.integers(1, 9)))
    yield layers(rng, int(rng.integers(2, 9)), branches=False)


# ---- values and peaks


def agree(problem: Problem, session: Session, device: NDArray[np.int16], expected: Answer, label: str) -> bool:
    """Compare one evaluation; whether the placement has a value."""
    value, peaks = expected
    kernel = session.kernel()
    assert kernel is not None
    peak = np.empty(problem.cluster.size)
    ints, floats = np.zeros(kernel.scratch_ints, np.int32), np.zeros(kernel.scratch_floats)
    found = kernel.function(device, np.zeros(0, np.float32), kernel.ints, kernel.floats, ints, floats, peak)
    if math.isinf(value):
        assert math.isinf(found), f"{label}: {found} s, and it has no value"
        return False
    assert found == pytest.approx(value, rel=1e-12, abs=1e-15), label
    assert peak.tolist() == pytest.approx(peaks, rel=1e-12), label
    return True


def compare(seed: int, count: int = 8) -> tuple[int, int]:
    """Compare everything on problems of one seed: how many have a value, of how many."""
    rng = np.random.default_rng(seed)
    answers = list[bool]()
    for number, problem in enumerate(problems(rng)):
        simple: list[tuple[type[Backend], Evaluate]] = [
            (MaxLoad, reference.max_load), (BlockingLatency, reference.blocking_latency)
        ]  # fmt: skip
        rows = list(placements(rng, problem, count))
        for kind, evaluate in simple:
            session = kind(threads=1).open(problem)
            for device in rows:
                agree(problem, session, device, evaluate(problem, device), f"{kind.name}, problem {seed}.{number}")
        for schedule in SCHEDULES:
            options: dict[str, Any] = {
                "schedule": schedule, "microbatches": int(rng.integers(1, 9)), "overlap": bool(rng.random() < 0.6),
                "objective": pick(rng, ["step", "step", "throughput", "token"]),
                "checkpointing": "block" if number == 3 and rng.random() < 0.5 else "none",
            }  # fmt: skip
            session = Pipeline(threads=1, **options).open(problem)
            for i, device in enumerate(rows):
                value, peaks, _ = reference.pipeline(
                    problem, device, options["objective"], schedule, options["microbatches"], options["overlap"],
                    options["checkpointing"] == "block",
                )  # fmt: skip
                label = f"problem {seed}.{number}, placement {i}, {options}"
                answers.append(agree(problem, session, device, (value, peaks), label))
    return sum(answers), len(answers)


@pytest.mark.parametrize("seed", range(6))
def test_values_and_peaks_equal_the_reference(seed: int) -> None:
    valued, of = compare(seed)
    assert 0.2 * of < valued < of, "placements with a value, and some without"


@pytest.mark.slow
def test_values_and_peaks_equal_the_reference_in_many_cases() -> None:
    for seed in range(100, 220):
        compare(seed, 16)
