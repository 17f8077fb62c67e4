"""Backend `pipeline` with replicas: cases with a formula, an independent reference, and rows that it refuses."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import pipeline_reference as reference
import pytest
from numpy.random import Generator
from placekit_pipeline.chain import ChainPolicy
from placekit_pipeline.pipeline import Pipeline, PipelineSession
from placekit_pipeline.rings import all_reduce_s, buckets_of, ready_s
from placekit_scheduling.jit import interpreted
from placekit_testing.strategies import pick, random_cluster, random_costs, random_step
from test_pipeline_kernels import agree, layers, placements, uneven, walk
from test_pipeline_textbook import GRADIENT, SAVED, SEND_S, WEIGHT, error, measure, network, seconds

from placekit_core import BackendError, Cluster, CostTable, GraphBuilder, Grouping, Problem, Task
from placekit_core.run.evaluator import BudgetedEvaluator

RATE = SAVED / SEND_S  # bytes per second of links in `network(send=True)`
MIB = 2**20

# ---- cases with a formula


def nodes(problem: Problem, per_node: int, rate: float = RATE, duplex: str = "full") -> Problem:
    """The problem on nodes of `per_node` devices each, with free links in a node and one link from node to switch."""
    count = problem.cluster.size
    links: list[dict[str, Any]] = [
        {"a": f"d{d}", "b": f"node{d // per_node}", "bytes_per_s": 1e30, "concurrent": "unlimited"}
        for d in range(count)
    ]
    for node in range(count // per_node):
        links.append({"a": f"node{node}", "b": "switch", "bytes_per_s": rate, "duplex": duplex})
    cluster = Cluster.parse({
        "kinds": problem.cluster.model_dump()["kinds"], "links": links,
        "devices": [{"kind": "k", "name": f"d{d}"} for d in range(count)],
    })  # fmt: skip
    return Problem(problem.graph, problem.grouping, cluster, problem.costs)


def grid(r: int, p: int) -> list[list[int]]:
    """r rows of p devices, a node each."""
    return [[i * p + j for j in range(p)] for i in range(r)]


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("r", "p", "m"), [(2, 1, 6), (2, 2, 8), (3, 2, 9), (2, 4, 2)])
def test_equal_rows_divide_the_micro_batches(schedule: str, r: int, p: int, m: int) -> None:
    """(M / r + p - 1) t, and where all stages end at once (p = 1), a ring: 2 (r - 1) / r of the bytes over the bandwidth."""
    options: dict[str, Any] = {"schedule": schedule, "microbatches": m, "replicas": grid(r, p)}
    assert seconds(network(p, r * p), range(p), **options) == (m / r + p - 1) * 3.0
    ring = 2 * (r - 1) / r * GRADIENT / RATE
    found = seconds(nodes(network(p, r * p), p), range(p), **options, overlap=False)
    assert found == pytest.approx((m / r + p - 1) * 3.0 + ring), "stage 0 ends last, and its ring finds free links"


def test_rows_do_not_wait_for_each_other() -> None:
    """Each row takes as long as a single pipeline with its micro-batches."""
    problem = network(2, 4, send=True, trains=False)
    alone = [seconds(problem, [0, 1], microbatches=m) for m in (1, 5)]
    together = {"replicas": [[0, 1], [2, 3]], "microbatches": 6}
    assert seconds(problem, [0, 1], shares=[1, 5], **together) == max(alone)
    assert seconds(problem, [0, 1], shares=[5, 1], **together) == max(alone)
    assert seconds(problem, [0, 1], **together) == seconds(problem, [0, 1], microbatches=3)
    assert seconds(problem, [0, 1], objective="token", **together) == 2.0 + SEND_S
    assert seconds(problem, [0, 1], objective="throughput", **together) == 0.5


def test_a_device_may_run_two_stages_of_its_row() -> None:
    """Device 2 takes 6 s for a micro-batch, without messages between its stages, so it gets a third of them."""
    problem, rows = network(2, 3), [[0, 1], [2, 2]]
    assert seconds(problem, [0, 1], replicas=rows, microbatches=9) == (6 + 1) * 3.0
    assert seconds(problem, [0, 1], replicas=rows, microbatches=9, shares=[1, 8]) == 8 * 6.0
    peak = measure(problem, [0, 1], replicas=rows, microbatches=9).peak_bytes[0]
    assert peak[2] > 2 * (WEIGHT + GRADIENT)


def test_a_stage_may_work_for_several_rows() -> None:
    """PipeDream's replicated first stage: device 1 runs the second stage for the micro-batches of both rows."""
    problem = network(2, 3, trains=False)
    slow = CostTable(("k",), problem.costs.op_s * np.where(problem.grouping.group_of == 0, 2.0, 1.0)[:, None],
                     problem.costs.measured)  # fmt: skip
    problem = Problem(problem.graph, problem.grouping, problem.cluster, slow)
    assert seconds(problem, [0, 1], microbatches=8) == 8 * 2.0 + 1
    assert seconds(problem, [0, 1], microbatches=8, replicas=[[0, 1], [2, 1]]) == 4 * 2.0 + 2
    assert seconds(problem, [0, 1], objective="throughput", replicas=[[0, 1], [2, 1]]) == 1.0
    # its gradients need no ring
    trains = nodes(network(2, 4), 1)
    found = Pipeline(replicas=[[0, 1], [2, 1]], microbatches=4).open(trains).schedule(trains.placement([0, 1]))
    assert found.spans is not None
    rings = [i for i, name in enumerate(found.spans.name) if name.startswith("gradients of replicas")]
    assert {(int(found.spans.device[i]), int(found.spans.to[i])) for i in rings} == {(0, 2), (2, 0)}
    assert found.spans.bytes_[rings].tolist() == [GRADIENT] * 2, "2 (n - 1) / n of the bytes over each edge"


@pytest.mark.parametrize(("duplex", "times"), [("full", 1), ("half", 2)])
def test_rings_and_their_edges_share_channels(duplex: str, times: int) -> None:
    """Both rings cross the link between the nodes, one after the other; half duplex, the two edges of each do, too."""
    problem = nodes(network(2, 4), 2, rate=GRADIENT / 2.5, duplex=duplex)
    ring = 2 * 1 / 2 * 2.5 * times
    assert all_reduce_s(problem.cluster, [1, 3], float(GRADIENT)) == pytest.approx(ring)
    found = seconds(problem, [0, 1], replicas=[[0, 1], [2, 3]], microbatches=4, schedule="1f1b")
    assert found == pytest.approx((2 + 1) * 3.0 - 2.0 + 2 * ring), "stage 1 ends 2 s before stage 0"


def one_layer(bytes_: int, rate: float, state: int = 0) -> Problem:
    """A forward pass of 1 s, a backward pass of 4 s that makes a gradient, and an update of 1 s, on two devices."""
    b = GraphBuilder("layer")
    weight = b.source("w", 8, colocate=0)
    extra = [b.source("s", state, op_type="state", colocate=0)] if state else []
    [made] = b.add("f", inputs=[weight], outputs=[1], colocate=0)
    [gradient] = b.add("b", inputs=[made], outputs=[bytes_], phase="backward", colocate=0)
    b.add("u", inputs=[weight, gradient, *extra], phase="update", colocate=0)
    graph = b.build()
    kind = {"flops_per_s": {"float32": 1.0}, "memory_bytes": 2**40, "memory_bytes_per_s": 1.0}
    cluster = Cluster.parse({
        "kinds": {"k": kind}, "devices": [{"kind": "k", "count": 2}], "links": [{"mesh": "*", "bytes_per_s": rate}]
    })  # fmt: skip
    op_s = {"f": 1.0, "b": 4.0, "u": 1.0}
    costs = np.asarray([[op_s.get(name, 0.0)] for name in graph.op_name])
    return Problem.of(graph, cluster, None, CostTable(("k",), costs, np.zeros(costs.shape, np.bool_)))


@pytest.mark.parametrize(("bucket_s", "end"), [(0.5, 5.5), (1.0, 6.0), (2.0, 10.0)])
def test_buckets_overlap_with_the_last_backward_task(bucket_s: float, end: float) -> None:
    """Four buckets of 25 MiB are ready at 2, 3, 4 and 5 s; a ring of two takes bytes / bandwidth."""
    problem = one_layer(100 * MIB, 25 * MIB / bucket_s)
    options: dict[str, Any] = {"replicas": [[0], [1]], "microbatches": 2}
    assert seconds(problem, [0], **options) == end + 1.0
    assert seconds(problem, [0], overlap=False, **options) == 5 + 4 * bucket_s + 1.0
    # with a second micro-batch on each device, only the last backward task counts
    assert seconds(problem, [0], **{**options, "microbatches": 4}) == end + 6.0


def test_buckets_in_python() -> None:
    count, ready = interpreted(buckets_of), interpreted(ready_s)
    assert [count(x * MIB, True) for x in (1.0, 25.0, 26.0, 100.0)] == [1, 1, 2, 4]
    assert count(100.0 * MIB, False) == 1
    assert [ready(1.0, 5.0, j, 4) for j in range(4)] == [2.0, 3.0, 4.0, 5.0]


def test_a_sharded_optimiser_keeps_and_updates_a_part() -> None:
    problem = one_layer(8, 1e30, state=1000)
    options: dict[str, Any] = {"replicas": [[0], [1]], "microbatches": 2}
    whole, part = (measure(problem, [0], shard_optimizer=shard, **options) for shard in (False, True))
    assert (whole.value_s[0], part.value_s[0]) == (6.0, 5.5)
    assert (whole.peak_bytes[0] - part.peak_bytes[0]).tolist() == [500.0, 500.0]


# ---- an independent reference


def random_rows(rng: Generator, size: int) -> list[list[int]]:
    """Rows of devices: some in several rows, some for several columns."""
    columns = int(rng.integers(1, min(size, 3) + 1))
    rows: list[list[int]] = [rng.permutation(size)[:columns].tolist()]
    for _ in range(30):
        fresh = [d for d in range(size) if d not in {x for row in rows for x in row}]
        source = fresh if fresh and rng.random() < 0.6 else list(range(size))
        row = rng.choice(source, columns).tolist()
        stages: dict[int, set[frozenset[int]]] = {}
        for r in [*rows, row]:
            for d in r:
                stages.setdefault(d, set()).add(frozenset(j for j, x in enumerate(r) if x == d))
        if all(len(s) == 1 for s in stages.values()):
            rows.append(row)
        if len(rows) == 4:
            break
    return rows


def check(seed: int) -> list[bool]:
    """Compare values and peaks of random rows on random problems; whether each placement has a value."""
    rng = np.random.default_rng([9, seed])
    cluster = random_cluster(rng, 6)
    graph = random_step(rng, int(rng.integers(2, 8)))
    found: list[bool] = []
    problems = [
        layers(rng, int(rng.integers(2, 7)), cluster=cluster, unit=pick(rng, [1, 2**23])),
        layers(rng, int(rng.integers(4, 8)), branches=False, cluster=cluster),
    ]
    if len(set(cluster.device_kind)) > 1:
        problems.append(Problem(graph, Grouping.colocated(graph), cluster, random_costs(rng, graph, cluster)))
    for problem in problems:
        for schedule in ("gpipe", "1f1b", "zero_bubble", "inference"):
            rows = random_rows(rng, cluster.size)
            m = int(rng.integers(len(rows), len(rows) + 7))
            shares = None
            if rng.random() < 0.4:
                shares = (1 + rng.multinomial(m - len(rows), np.full(len(rows), 1 / len(rows)))).tolist()
            own: dict[str, Any] = {"shares": shares, "overlap": bool(rng.random() < 0.7)}
            objective = pick(rng, ["step", "step", "step", "throughput", "token"])
            repeats = problem is problems[1] and bool(rng.random() < 0.3) and schedule != "inference"
            shard = bool(rng.random() < 0.4)
            session = Pipeline(
                threads=1, replicas=rows, shard_optimizer=shard, microbatches=m, schedule=schedule,
                objective=objective, checkpointing="block" if repeats else "none", **own,
            ).open(problem)  # fmt: skip
            bound = session.lower_bound() or 0.0
            for device in placements(rng, problem, 4):
                if rng.random() < 0.9:
                    device = np.asarray(rows[0], np.int16)[device % len(rows[0])]
                if not problem.allowed[np.arange(problem.g), device].all():
                    continue
                shards = shard and len(rows) > 1 and schedule != "inference"
                expected = reference.Rows(
                    problem, device, rows, schedule, m, **own, shard=shards, checkpointing=repeats
                )
                label = f"seed {seed}, rows {rows}, {schedule}, {objective}, m {m}, {own}, shard {shard}, {repeats}"
                value, peaks = expected.run(objective)
                found.append(agree(problem, session, device, (value, peaks), label))
                assert bound <= value, f"the bound {bound} is not one: {label}"
    return found


@pytest.mark.parametrize("seed", range(6))
def test_values_and_peaks_equal_the_reference(seed: int) -> None:
    found = [value for i in range(4) for value in check(4 * seed + i)]
    assert 0.3 * len(found) < sum(found) < len(found), "placements with a value, and some without"


@pytest.mark.parametrize("seed", range(3))
def test_a_walk_equals_evaluations_from_the_beginning(seed: int) -> None:
    """Sums that are updated after a move are those from scratch, to the last bit; twice the same, too."""
    rng = np.random.default_rng([10, seed])
    for problem in (layers(rng, 6, cluster=random_cluster(rng, 6)), layers(rng, 7, cluster=random_cluster(rng, 6))):
        problem = uneven(problem, rng)
        for schedule in ("gpipe", "1f1b", "zero_bubble"):
            rows = random_rows(rng, problem.cluster.size)
            options: dict[str, Any] = {
                "schedule": schedule, "microbatches": len(rows) + 3, "replicas": rows,
                "shard_optimizer": pick(rng, [False, True]), "objective": pick(rng, ["step", "step", "throughput"]),
            }  # fmt: skip
            session = Pipeline(threads=1, **options).open(problem)
            walk(problem, session, rng, f"{options}")


def test_schedules_have_the_tasks_of_all_rows_and_the_rings() -> None:
    rng = np.random.default_rng(4)
    seen = rings = 0
    for _ in range(12):
        problem = layers(rng, 6, cluster=random_cluster(rng, 6), unit=8 * MIB)
        rows = random_rows(rng, problem.cluster.size)
        for schedule in ("1f1b", "zero_bubble"):
            session = Pipeline(schedule=schedule, microbatches=6, replicas=rows, threads=1).open(problem)
            device = np.asarray(rows[0], np.int16)[np.arange(problem.g) * len(rows[0]) // problem.g]
            step = reference.Rows(problem, device, rows, schedule, 6)
            value, _ = step.run("step")
            if math.isinf(value):
                continue
            found = session.schedule(problem.placement(device))
            spans = found.spans
            assert spans is not None
            assert found.value_s == pytest.approx(value, rel=1e-12)
            ran = [((k, d), a, b) for (k, d, _), a, b in step.tasks if k != "U" or updates(step, d)]
            task = spans.is_task
            own = sorted(zip(*(x[task].tolist() for x in (spans.device, spans.start_s, spans.end_s)), strict=True))
            assert np.ravel(own) == pytest.approx(np.ravel(sorted((d, a, b) for (_, d), a, b in ran)), rel=1e-12)
            ends = (x[~task].tolist() for x in (spans.device, spans.to, spans.start_s, spans.end_s))
            sent = sorted((a, b, x, y) for _, a, b, _, x, y in step.steps[0].sends if a != b)
            assert np.ravel(sorted(zip(*ends, strict=True))) == pytest.approx(np.ravel(sent), rel=1e-12)
            total = math.fsum(b - a for _, a, b in own)
            unlike = len({problem.cluster.device_kind[d] for row in rows for d in row}) > 1
            assert unlike or found.op_total_s.sum() == pytest.approx(total), "operations count as often as they ran"
            seen += 1
            rings += sum(kind == "ring" for kind, *_ in step.steps[0].sends)
    assert seen > 8
    assert rings > 20


def updates(step: reference.Rows, d: int) -> bool:
    """Whether a device has operations that update."""
    own = step.of[d]
    return any(own.home[v] == d and p == 2 and step.problem.graph.kernel[v] for v, p in enumerate(own.phase))


# ---- policies and bounds


@pytest.mark.parametrize("objective", ["step", "throughput"])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zero_bubble", "inference"])
def test_chain_splits_over_the_leaders_and_claims_no_proof(
    schedule: str, objective: Literal["step", "throughput"]
) -> None:
    problem = network(6, 5, trains=schedule != "inference")
    session = Pipeline(
        replicas=[[3, 1], [0, 4]],
        microbatches=8,
        threads=1,
        schedule=schedule,
        objective=objective,
        shard_optimizer=True,
    ).open(problem)
    evaluate = BudgetedEvaluator(problem, session, objective=objective)
    found = ChainPolicy().place(Task(problem, evaluate), np.random.default_rng(0))
    assert sorted(found.device.tolist()) == [1, 1, 1, 3, 3, 3]
    assert not any("no contiguous split" in note for note in evaluate.notes)


def test_bounds_know_which_devices_the_rows_name() -> None:
    problem = network(4, 8)
    session = Pipeline(replicas=[[0, 1], [2, 3]], microbatches=8).open(problem)
    assert session.lower_bound() == pytest.approx(8 * 12.0 / 4)
    assert isinstance(session, PipelineSession)
    assert session.loads() is None
    one = Pipeline(replicas=[[0, 1]], microbatches=8).open(problem)
    assert one.lower_bound() == pytest.approx(8 * 12.0 / 2)


# ---- errors


@pytest.mark.parametrize(("options", "message"), [
    ({"replicas": [[0, 9]]}, r"backend.replicas names device 9, which .* does not have"),
    ({"replicas": [["k:0", "gpu"]]}, r"backend.replicas names device 'gpu'"),
    ({"replicas": [[0, 0], [1, 2]]}, r"the first row of backend.replicas, \['k:0', 'k:0'\], is not one or more distinct devices"),
    ({"replicas": [[]]}, r"the first row of backend.replicas, \[\], is not one or more distinct devices"),
    ({"replicas": [[0, 1], [2]]}, r"row 1 of backend.replicas has 1 devices, but row 0 has 2"),
    ({"replicas": [[0, 1], [1, 2]]},
     r"k:1 runs the stages of k:1 in row 0 of backend.replicas, and of k:0 in row 1"),
    ({"replicas": [[0, 1], [2, 2], [2, 3]]},
     r"k:2 runs the stages of k:0 and k:1 in row 1 of backend.replicas, and of k:0 in row 2"),
    ({"replicas": [[0], [1]], "microbatches": 1}, r"1 micro-batches are too few for 2 rows of backend.replicas"),
    ({"replicas": [[0], [1]], "shares": [8]}, r"backend.shares is \[8\]: it needs a number of at least 1 for each of the 2 rows"),
    ({"replicas": [[0], [1]], "shares": [8, 0]}, r"backend.shares is \[8, 0\]: it needs a number of at least 1"),
    ({"replicas": [[0], [1]], "shares": [4, 5]}, r"their sum must be the number of micro-batches, 8"),
    ({"shares": [4, 4]}, r"backend.shares divides micro-batches among replicas, and there are none"),
    ({"replicas": [[0], [1]], "schedule": "interleaved"}, r"schedule 'interleaved' runs one row of backend.replicas, not 2"),
])  # fmt: skip
def test_rows_that_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(BackendError, match=message) as caught:
        Pipeline(**options).open(network(2, 4))
    assert caught.value.hint


def test_a_device_that_means_no_column_is_named() -> None:
    problem, rows = network(2, 4), [[0, 1], [2, 2]]
    assert error(problem, [0, 2], replicas=rows) == (
        "k:2 runs the stages of k:0, k:1 in backend.replicas: place on these devices instead"
    )
    assert error(problem, [0, 3], replicas=rows) == (
        "k:3 is in no row of backend.replicas; place on the devices of the first row: k:0, k:1"
    )
    named = [["k:0", "k:1"], ["k:2", "k:3"]]
    assert seconds(problem, [2, 1], replicas=named) == seconds(problem, [0, 3], replicas=named) == (4 + 1) * 3.0


def test_operations_that_a_replica_may_not_run_are_named() -> None:
    b = GraphBuilder("limited")
    b.add("a", outputs=[1], allowed="gpu")
    rate: dict[str, Any] = {"flops_per_s": {"float32": 1.0}, "memory_bytes": 100, "memory_bytes_per_s": 1.0}
    cluster = Cluster.parse({
        "kinds": {"g": rate, "c": {**rate, "type": "cpu"}}, "devices": [{"kind": "g"}, {"kind": "c"}],
        "links": [{"mesh": "*", "bytes_per_s": 1.0}],
    })  # fmt: skip
    problem = Problem.of(b.build(), cluster)
    found = error(problem, [0], replicas=[[0], [1]])
    assert found == "group 'a' may not run on all of g:0, c:0, the replicas of a stage"


def test_baselines_of_four_layers_on_two_devices() -> None:
    """Four micro-batches of 12 seconds: 30 s in equal stages, 24 s as replicas, 48 s on one device."""

    def found(**options: Any) -> dict[str, float | None]:
        session = Pipeline(microbatches=4, **options).open(network(4, 2))
        return {b.policy: b.value_s and round(b.value_s, 6) for b in session.baselines()}

    assert found() == {"equal_stages": 30.0, "replicas": 24.0}
    assert found(replicas=[[0], [1]]) == {"one_device": 48.0}
    assert found(objective="token") == {}


def test_baselines_use_devices_that_may_run_everything() -> None:
    b = GraphBuilder("limited")
    b.add("a", outputs=[1], allowed="cpu")
    rate: dict[str, Any] = {"flops_per_s": {"float32": 1.0}, "memory_bytes": 100, "memory_bytes_per_s": 1.0}
    cluster = Cluster.parse({
        "kinds": {"g": rate, "c": {**rate, "type": "cpu"}},
        "devices": [{"kind": "g", "count": 2}, {"kind": "c", "count": 2}], "links": [{"mesh": "*", "bytes_per_s": 1.0}],
    })  # fmt: skip
    session = Pipeline(microbatches=2).open(Problem.of(b.build(), cluster))
    assert [baseline.policy for baseline in session.baselines()] == ["replicas"]
