"""The compiled evaluations against plain Python, and against themselves: from the beginning and move by move."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
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

from placekit_core import (
    Backend,
    BackendError,
    Cluster,
    CostTable,
    Graph,
    GraphBuilder,
    Grouping,
    Problem,
    Schedule,
    Session,
)

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


def layers(
    rng: Generator, count: int, branches: bool = True, cluster: Cluster | None = None, unit: int = 1
) -> Problem:  # fmt: skip
    """A network of layers with parameters, skips, gradients of inputs and of weights, and updates; groups are layers or finer.

    Args:
        cluster: the machine; random by default. On one that is given, layers also have optimiser state.
        unit: of the bytes of gradients of weights.
    """
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
        reads = [
            weights[i],
            outputs[i],
            *([outputs[i - 1]] if i else []),
            *([gradient] if gradient is not None else []),
        ]
        [gradient] = b.add(
            f"b{i}", inputs=reads, outputs=[int(rng.integers(1, 9))], phase="backward", colocate=i, module=f"h.{i}"
        )
        [of_weight] = b.add(
            f"g{i}", inputs=[*reads[1:], gradient][:2], outputs=[unit * int(rng.integers(1, 9))], phase="backward",
            colocate=i, module=f"h.{i}",
        )  # fmt: skip
        state = [b.source(f"s{i}", 12, op_type="state", colocate=i)] if cluster else []
        b.add(f"u{i}", inputs=[weights[i], of_weight, *state], phase="update", colocate=i)
    graph, cluster = b.build(), cluster or machine(rng)
    grouping = Grouping.colocated(graph)
    return Problem(graph, grouping, cluster, random_costs(rng, graph, cluster))


def random_layers(rng: Generator, width: int, depth: int) -> Graph:
    """Layers of operations. Each operation reads one or two outputs of earlier layers, mostly of the last one."""
    b = GraphBuilder("layers")
    made = [b.source(f"x{i}", int(rng.integers(1, 9))) for i in range(width)]
    for i in range(width * depth):
        first = max(0, len(made) - width * (3 if rng.random() < 0.1 else 1) - i % width)
        reads = rng.integers(first, len(made) - i % width, int(rng.integers(1, 3))).tolist()
        made += b.add(f"v{i}", inputs=[made[r] for r in reads], outputs=[int(rng.integers(1, 9))],
                      flops=rng.uniform(1e9, 1e10), colocate=i // 2 if rng.random() < 0.2 else -1)  # fmt: skip
    return b.build()


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
    yield layers(rng, int(rng.integers(4, 9)), branches=False)


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


@pytest.mark.parametrize("seed", range(4))
def test_values_and_peaks_equal_the_reference(seed: int) -> None:
    rng = np.random.default_rng(seed)
    answers = list[bool]()
    for number, problem in enumerate(problems(rng)):
        simple: list[tuple[type[Backend], Evaluate]] = [
            (MaxLoad, reference.max_load), (BlockingLatency, reference.blocking_latency)
        ]  # fmt: skip
        rows = list(placements(rng, problem, 8))
        for kind, evaluate in simple:
            session = kind(threads=1).open(problem)
            for device in rows:
                agree(problem, session, device, evaluate(problem, device), f"{kind.name}, problem {seed}.{number}")
        for schedule in SCHEDULES:
            options: dict[str, Any] = {
                "schedule": schedule, "microbatches": int(rng.integers(1, 9)),
                "objective": pick(rng, ["step", "step", "throughput", "token"]),
                "checkpointing": "block" if number == 3 and rng.random() < 0.5 else "none",
            }  # fmt: skip
            session = Pipeline(threads=1, **options).open(problem)
            for i, device in enumerate(rows):
                value, peaks, _ = reference.pipeline(
                    problem, device, options["objective"], schedule, options["microbatches"],
                    options["checkpointing"] == "block",
                )  # fmt: skip
                label = f"problem {seed}.{number}, placement {i}, {options}"
                answers.append(agree(problem, session, device, (value, peaks), label))
    assert 0.2 * len(answers) < sum(answers) < len(answers), "placements with a value, and some without"


def test_each_tensor_takes_its_own_slowest_route() -> None:
    """Device 0 sends two tensors to devices 1 and 2: the small one is late at 1 (latency), the large one at 2 (rate)."""
    b = GraphBuilder("two tensors")
    small, large = b.add("a", outputs=[0, 100])
    for name in ("b", "c"):
        b.add(name, inputs=[small, large])
    kind = {"flops_per_s": {"float32": 1.0}, "memory_bytes": 1000, "memory_bytes_per_s": 1.0}
    link = {"bytes_per_s": 100.0, "latency_s": 3.0}, {"bytes_per_s": 10.0, "latency_s": 0.0}
    cluster = Cluster.parse({
        "kinds": {"k": kind}, "devices": [{"kind": "k", "name": f"d{d}"} for d in range(3)], "relay": True,
        "links": [{"a": "d0", "b": "d1", **link[0]}, {"a": "d0", "b": "d2", **link[1]}],
    })  # fmt: skip
    graph = b.build()
    problem = Problem.of(graph, cluster, None, CostTable(("k",), np.zeros((3, 1)), np.zeros((3, 1), np.bool_)))
    device = np.arange(3, dtype=np.int16)
    assert reference.max_load(problem, device)[0] == 3.0 + 10.0
    agree(problem, MaxLoad().open(problem), device, reference.max_load(problem, device), "two tensors")


# ---- move by move


def walk(problem: Problem, session: Session, rng: Generator, label: str, moves: int = 40) -> list[float]:
    """A walk in one working space: every value and peak is that of a fresh one, to the bit. Returns the values."""
    kernel = session.kernel()
    assert kernel is not None
    no_priority = np.zeros(0, np.float32)
    kept = np.zeros(kernel.scratch_ints, np.int32), np.zeros(kernel.scratch_floats)
    others = list(placements(rng, problem, 8))
    device = others[-1].copy()
    allowed, values = [np.flatnonzero(row).tolist() for row in problem.allowed], list[float]()
    for step in range(moves):
        size = pick(rng, [0, 1, 1, 1, 2, 3, problem.g // 2, problem.g])
        for group in rng.choice(problem.g, min(size, problem.g), replace=False).tolist():
            device[group] = pick(rng, allowed[group])
        if step % 20 == 19:
            device = pick(rng, others).copy()
        answers = []
        for ints, floats in (kept, (np.zeros(kernel.scratch_ints, np.int32), np.zeros(kernel.scratch_floats))):
            peak = np.empty(problem.cluster.size)
            value = kernel.function(device, no_priority, kernel.ints, kernel.floats, ints, floats, peak)
            answers.append((value, peak.tolist()))
        assert answers[0] == answers[1], f"{label}, move {step}"
        values.append(answers[0][0])
    return values


def uneven(problem: Problem, rng: Generator) -> Problem:
    """The problem with costs that are not multiples of anything, of very different sizes."""
    op_s = np.where(problem.graph.kernel[:, None], rng.random(problem.costs.op_s.shape) ** 8, 0.0)
    costs = CostTable(problem.costs.kinds, op_s, problem.costs.measured)
    return Problem(problem.graph, problem.grouping, problem.cluster, costs)


@pytest.mark.parametrize("seed", range(3))
def test_a_walk_equals_evaluations_from_the_beginning(seed: int) -> None:
    rng = np.random.default_rng([77, seed])
    for number, problem in enumerate(problems(rng)):
        problem = uneven(problem, rng)
        for kind in (MaxLoad, BlockingLatency):
            walk(problem, kind(threads=1).open(problem), rng, f"{kind.name}, problem {seed}.{number}")
        for schedule in SCHEDULES:
            options: dict[str, Any] = {
                "schedule": schedule, "microbatches": int(rng.integers(1, 6)),
                "objective": pick(rng, ["step", "throughput", "token"]),
                "checkpointing": "block" if number == 3 else "none",
            }  # fmt: skip
            walk(problem, Pipeline(threads=1, **options).open(problem), rng, f"problem {seed}.{number}, {options}")


@pytest.mark.parametrize("slow_links", [False, True])
def test_walks_of_blocking_calls_on_several_threads(slow_links: bool) -> None:
    """In larger graphs moves spread far, or stop soon; some placements have no value, and CPUs take part."""
    rng = np.random.default_rng([7, slow_links])
    graph = random_layers(rng, 12, 20)
    cluster = Cluster.parse({
        "kinds": {
            "gpu": {"flops_per_s": {"float32": 1e12}, "memory_bytes": 2**40, "memory_bytes_per_s": 1e12},
            "cpu": {"type": "cpu", "flops_per_s": {"float32": 1e11}, "memory_bytes": 2**40, "memory_bytes_per_s": 1e11},
        },
        "devices": [{"kind": "gpu", "count": 3}, {"kind": "cpu", "count": 2}],
        "links": [{"mesh": "*", "bytes_per_s": 1e6 if slow_links else 1e12, "latency_s": 1e-6}],
    })  # fmt: skip
    problem = Problem.of(graph, cluster)
    session, seeds = BlockingLatency(threads=1).open(problem), rng.spawn(3)
    with ThreadPoolExecutor(3) as pool:
        walks = [pool.submit(walk, problem, session, seed, f"thread {i}", 150) for i, seed in enumerate(seeds)]
        values = [value for made in walks for value in made.result()]
    assert 0 < sum(map(math.isinf, values)) < len(values)


def test_schedules_agree_with_values() -> None:
    """The schedule's spans do not overlap on a device, are all tasks of all micro-batches, and end with the value."""
    rng = np.random.default_rng(5)
    seen = 0
    for problem in (layers(rng, 6), layers(rng, 8, branches=False), of_step(rng), layers(rng, 7)):
        for schedule in SCHEDULES:
            session = Pipeline(schedule=schedule, microbatches=4, threads=1).open(problem)
            for device in placements(rng, problem, 6):
                value, _, step = reference.pipeline(problem, device, "step", schedule, 4, False)
                placement = problem.placement(device)
                if math.isinf(value):
                    with pytest.raises(BackendError, match="has no schedule"):
                        session.schedule(placement)
                    continue
                found = session.schedule(placement)
                seen += 1
                check_schedule(problem, step, found)
                assert found.value_s == pytest.approx(value, rel=1e-12)
    assert seen > 40


def check_schedule(problem: Problem, step: reference.Step, found: Schedule) -> None:
    """All spans of a schedule are the reference's tasks; its transfers are sends of the first micro-batch."""
    spans, size = found.spans, problem.cluster.size
    assert spans is not None
    updates = {int(found.op_device[v]) for v, phase in enumerate(step.phase) if phase == 2 and problem.graph.kernel[v]}
    ran = [((kind, s), a, b) for (kind, s, _), a, b in step.tasks if kind != "U" or s in updates]
    expected = sorted((s % size, a, b) for (_, s), a, b in ran)
    task = spans.is_task
    columns = (spans.device[task], spans.start_s[task], spans.end_s[task])
    own = sorted(zip(*(column.tolist() for column in columns), strict=True))
    assert np.ravel(own).tolist() == pytest.approx(np.ravel(expected).tolist(), rel=1e-12)
    for d in range(size):
        mine = [(a, b) for at, a, b in own if at == d]
        assert all(one[1] <= other[0] + 1e-12 for one, other in pairwise(mine)), "spans of one device overlap"
    assert spans.end_s[task].max(initial=0.0) == pytest.approx(found.value_s)
    messages = sorted(
        zip(
            *(c[~task].tolist() for c in (spans.device, spans.to, spans.start_s, spans.end_s, spans.bytes_)),
            strict=True,
        )
    )
    sent = sorted(
        (a % size, b % size, x, y, step.bytes_[kind, a, b])
        for kind, a, b, _, x, y in step.sends
        if a % size != b % size
    )
    assert np.ravel(messages).tolist() == pytest.approx(np.ravel(sent).tolist(), rel=1e-12)
    total = [math.fsum(b - a for at, a, b in own if at == d) for d in range(size)]
    by_device = np.bincount(found.op_device, found.op_total_s, minlength=size)
    assert by_device.tolist() == pytest.approx(total), "operations count as often as they ran"
    kernel = problem.graph.kernel
    inside = [(a, b, at) for at, a, b in own]
    for v in np.flatnonzero(kernel).tolist():
        start, end, at = found.op_start_s[v], found.op_end_s[v], int(found.op_device[v])
        assert end - start == pytest.approx(problem.op_s[v, at])
        assert any(d == at and a <= start + 1e-12 and end <= b + 1e-12 for a, b, d in inside), "an operation in no span"
    sends = {(round(a, 12), round(b, 12)) for _, _, _, batch, a, b in step.sends if batch == 0}
    times = zip(found.transfer_start_s.tolist(), found.transfer_end_s.tolist(), strict=True)
    assert {(round(a, 12), round(b, 12)) for a, b in times} <= sends
