"""Backend `pipeline` on stages whose step has a formula, and on placements, options and machines that it refuses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from placekit_pipeline.blocking import BlockingLatency
from placekit_pipeline.max_load import MaxLoad
from placekit_pipeline.pipeline import Pipeline

from placekit_core import BackendError, Cluster, CostTable, GraphBuilder, Measurements, Placements, Problem

SEND_S = 0.25
WEIGHT, SAVED, GRADIENT = 1000, 10, 3
"""Bytes of a layer's parameter; of its output, which its backward pass and the next layer read; of its parameter's gradient."""


def network(
    layers: int, devices: int, forward_s: float = 1.0, backward_s: float = 2.0, weights_s: float = 0.0,
    update_s: float = 0.0, send: bool = False, trains: bool = True, inner: int = 0,
) -> Problem:  # fmt: skip
    """A chain of equal layers, a group each, on equal devices; sends take no time, or `SEND_S`.

    Each layer's first operation makes `inner` bytes that only its own backward pass reads.
    """
    b = GraphBuilder("network")
    weights, made, op_s = list[int](), list[int](), list[float]()
    for i in range(layers):
        weights.append(b.source(f"w{i}", WEIGHT, colocate=i, module=f"h.{i}", op_type="parameter"))
        reads = [weights[i], *made[-1:]]
        [output, *_] = b.add(
            f"f{i}", inputs=reads, outputs=[SAVED, *([inner] if inner else [])], colocate=i, module=f"h.{i}"
        )
        made.append(output)
        op_s += [0.0, forward_s]
    inside = {i: made[i] + 1 for i in range(layers)} if inner else {}
    gradient: list[int] = []
    for i in reversed(range(layers)) if trains else ():
        saved = made[i - 1] if i else made[i]
        reads = [weights[i], saved, *gradient, *([inside[i]] if inner else [])]
        parts = ("b", backward_s), ("g", weights_s)
        gradient = b.add(f"b{i}", inputs=reads, outputs=[SAVED], colocate=i, phase="backward", module=f"h.{i}")
        [of_weight] = b.add(
            f"g{i}", inputs=[saved, *gradient], outputs=[GRADIENT], colocate=i, phase="backward", module=f"h.{i}"
        )
        b.add(f"u{i}", inputs=[weights[i], of_weight], colocate=i, phase="update", module=f"h.{i}")
        op_s += [seconds for _, seconds in parts] + [update_s]
    graph = b.build()
    link = {"bytes_per_s": SAVED / SEND_S if send else 1e30, "latency_s": 0.0}
    kind = {"flops_per_s": {"float32": 1.0}, "memory_bytes": 10**6, "memory_bytes_per_s": 1.0}
    cluster = Cluster.parse({
        "kinds": {"k": kind}, "devices": [{"kind": "k", "count": devices}],
        "links": [{"mesh": "*", **link}] if devices > 1 else [],
    })  # fmt: skip
    costs = CostTable(("k",), np.asarray(op_s)[:, None], np.zeros((graph.n, 1), np.bool_))
    return Problem.of(graph, cluster, None, costs)


def measure(problem: Problem, device: Sequence[int], **options: Any) -> Measurements:
    session = Pipeline(threads=1, **options).open(problem)
    return session.evaluate(Placements.of(np.asarray([device], np.int16)))


def seconds(problem: Problem, device: Sequence[int], **options: Any) -> float:
    measured = measure(problem, device, **options)
    assert measured.error[0] is None, measured.error[0]
    return float(measured.value_s[0])


CASES = [(1, 5), (2, 1), (3, 8), (4, 2), (6, 8)]


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("p", "m"), CASES)
def test_equal_stages_take_m_plus_p_minus_1_turns(schedule: str, p: int, m: int) -> None:
    """Narayanan et al. 2021, section 2.2: the pipeline is idle for p - 1 of m + p - 1 turns of a forward and a backward pass."""
    problem = network(p, p)
    assert seconds(problem, range(p), schedule=schedule, microbatches=m) == (m + p - 1) * 3.0
    assert seconds(problem, [0] * p, schedule=schedule, microbatches=m) == m * p * 3.0


@pytest.mark.parametrize(("p", "m"), CASES)
def test_inference_takes_m_plus_p_minus_1_forward_passes(p: int, m: int) -> None:
    problem = network(p, p, trains=False)
    assert seconds(problem, range(p), microbatches=m) == m + p - 1
    assert seconds(problem, range(p), microbatches=m, objective="token") == p
    assert seconds(problem, range(p), microbatches=m, objective="throughput") == 1.0


@pytest.mark.parametrize(("p", "v", "m"), [(2, 2, 4), (2, 3, 8), (3, 2, 6), (4, 2, 8), (4, 3, 12), (4, 2, 4)])
def test_interleaved_stages_are_idle_for_a_vth_of_the_time(p: int, v: int, m: int) -> None:
    """Narayanan et al. 2021, section 2.2: m t + (p - 1) t / v, where t is the time of a device for a micro-batch."""
    problem = network(p * v, p)
    t = 3.0 * v
    value = seconds(problem, [i % p for i in range(p * v)], schedule="interleaved", microbatches=m)
    assert value == pytest.approx(m * t + (p - 1) * t / v, rel=1e-12)
    one_stage_each = [i // v for i in range(p * v)]
    assert seconds(problem, one_stage_each, schedule="interleaved", microbatches=m) == (m + p - 1) * t


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zero_bubble"])
@pytest.mark.parametrize(("p", "m"), CASES)
def test_micro_batches_in_flight(schedule: str, p: int, m: int) -> None:
    """GPipe keeps the activations of all m; 1F1B at stage i those of min(m, p - i); zero bubble up to min(m, p) everywhere."""
    problem = network(p, p, weights_s=1.0)
    kept = np.full(p, SAVED)  # the output of the layer before; of the first layer, its own
    # besides what is kept, the largest operation reads a gradient and makes one; the last stage reads none of its output
    work = np.asarray([SAVED + (0 if i == p - 1 else SAVED) for i in range(p)])
    peak = measure(problem, range(p), schedule=schedule, microbatches=m).peak_bytes[0]
    flight = (peak - WEIGHT - GRADIENT - work) / kept
    least = np.asarray([min(m, p - i) for i in range(p)])
    if schedule == "gpipe":
        assert flight.tolist() == [m] * p
    elif schedule == "1f1b":
        assert flight.tolist() == least.tolist()
    else:
        assert (least <= flight).all()
        assert (flight <= min(m, p)).all()


def test_tokens_and_throughput_with_sends() -> None:
    problem = network(4, 4, send=True, trains=False)
    stages = [0, 1, 2, 3]
    assert seconds(problem, stages, objective="token") == 4 * 1.0 + 3 * SEND_S
    assert seconds(problem, [0, 0, 0, 1], objective="token") == 4 * 1.0 + SEND_S
    assert seconds(problem, stages, objective="throughput") == 1.0
    assert seconds(network(4, 4), [0, 0, 1, 1], objective="throughput") == 2 * 3.0


def test_slow_links_bound_the_throughput() -> None:
    """A channel that takes longer than any stage is the slowest part."""
    problem = network(2, 2, forward_s=SEND_S / 4, send=True, trains=False)
    assert seconds(problem, [0, 1], objective="throughput") == SEND_S
    m = 64
    assert seconds(problem, [0, 1], microbatches=m) == pytest.approx(m * SEND_S + 2 * SEND_S / 4)


@pytest.mark.parametrize("m", [1, 4])
def test_checkpointing_keeps_inputs_and_repeats_the_forward_pass(m: int) -> None:
    problem, inner, p = network(4, 2, inner=500), 500, 2
    stages = [0, 0, 1, 1]
    plain = measure(problem, stages, schedule="1f1b", microbatches=m)
    again = measure(problem, stages, schedule="1f1b", microbatches=m, checkpointing="block")
    assert plain.value_s[0] == (m + p - 1) * 2 * 3.0
    assert again.value_s[0] == (m + p - 1) * 2 * 4.0, "a forward pass more"
    for i, (before, after) in enumerate(zip(plain.peak_bytes[0], again.peak_bytes[0], strict=True)):
        flight = min(m, p - i)
        # each device has 2 layers: their inner tensors in flight, or those of one layer while it repeats
        saved = 2 * inner * flight - inner
        assert before - after == pytest.approx(saved, abs=2 * SAVED * flight)


@pytest.mark.parametrize(("p", "m"), CASES)
@pytest.mark.parametrize("weights_s", [0.5, 1.0])
def test_zero_bubble_is_never_slower_than_1f1b(p: int, m: int, weights_s: float) -> None:
    """Gradients of weights fill the gaps: of p - 1 turns of 3 s, ZB-H1 (Qi et al.) leaves 1 s each; greedily, up to 2 s more."""
    problem = network(p, p, backward_s=1.0, weights_s=weights_s)
    t = 2.0 + weights_s
    filled = seconds(problem, range(p), schedule="zero_bubble", microbatches=m)
    assert filled <= seconds(problem, range(p), schedule="1f1b", microbatches=m) == (m + p - 1) * t
    assert filled >= m * t
    if weights_s == 1.0 and m >= p:
        assert filled <= m * t + (p - 1) * 1.0 + 2.0


def test_updates_come_once_per_step() -> None:
    problem = network(2, 2, update_s=5.0)
    for m in (1, 3):
        assert seconds(problem, [0, 1], microbatches=m) == (m + 1) * 3.0 + 5.0
        assert seconds(problem, [0, 0], microbatches=m) == m * 6.0 + 10.0


# ---- placements without a value


def error(problem: Problem, device: Sequence[int], **options: Any) -> str:
    measured = measure(problem, device, **options)
    assert np.isnan(measured.value_s[0])
    assert not measured.fits[0]
    found = measured.error[0]
    assert found is not None
    return found


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zero_bubble"])
def test_stages_that_wait_for_each_other_are_named(schedule: str) -> None:
    found = error(network(4, 3), [0, 1, 0, 2], schedule=schedule)
    assert found == "stages wait for each other: k:0 -> k:1 -> k:0"
    assert seconds(network(4, 3), [0, 1, 0, 2], schedule="interleaved", microbatches=3) > 0


def test_inference_of_a_training_step_says_that_it_runs_its_backward_phase() -> None:
    found = error(network(2, 2), [0, 1], schedule="inference")
    assert found.startswith("stages wait for each other: k:0 -> k:1 -> k:0 (inference runs the whole program")


def diamond(op_s: float = 1.0) -> tuple[Problem, dict[str, int]]:
    """a -> b and back again; each operation a group."""
    b = GraphBuilder("four")
    [a] = b.add("a", outputs=[1])
    [c] = b.add("b", inputs=[a], outputs=[1])
    [d] = b.add("back b", inputs=[c], outputs=[1], phase="backward")
    b.add("back a", inputs=[a, d], outputs=[1], phase="backward")
    graph = b.build()
    kind = {"flops_per_s": {"float32": 1.0}, "memory_bytes": 10**6, "memory_bytes_per_s": 1.0}
    cluster = Cluster.parse({
        "kinds": {"k": kind}, "devices": [{"kind": "k", "count": 3}], "links": [{"mesh": "*", "bytes_per_s": 1e30}]
    })  # fmt: skip
    costs = CostTable(("k",), np.full((4, 1), op_s), np.zeros((4, 1), np.bool_))
    problem = Problem.of(graph, cluster, None, costs)
    return problem, {name: int(problem.grouping.group_of[v]) for v, name in enumerate(graph.op_name)}


def test_backward_operations_on_other_devices() -> None:
    """A device that only does the backward pass of another is a stage like others: it begins when its inputs are there."""
    problem, group = diamond()
    device = [0] * 4
    device[group["b"]], device[group["back b"]], device[group["back a"]] = 1, 1, 2
    assert seconds(problem, device, schedule="gpipe", microbatches=1) == 4.0
    # the devices work at the same time: 2 s for each micro-batch on device 1, before and after it 1 s
    assert seconds(problem, device, schedule="gpipe", microbatches=5) == 1 + 5 * 2.0 + 1
    swapped = [0] * 4
    swapped[group["b"]], swapped[group["back b"]] = 1, 0
    assert seconds(problem, swapped, schedule="gpipe", microbatches=2) > 0


def test_tasks_that_wait_for_each_other_are_named() -> None:
    """The backward phase goes from device 0 to 1 and back to 0 for one micro-batch: two tasks of which each needs the other."""
    b = GraphBuilder("zigzag")
    [a] = b.add("a", outputs=[1], colocate=0)
    [c] = b.add("b", inputs=[a], outputs=[1], colocate=1)
    [x] = b.add("x", inputs=[c], outputs=[1], phase="backward", colocate=0)
    [y] = b.add("y", inputs=[x], outputs=[1], phase="backward", colocate=1)
    b.add("z", inputs=[y], outputs=[1], phase="backward", colocate=0)
    cluster = network(2, 2).cluster
    problem = Problem.of(b.build(), cluster, None, CostTable(("k",), np.ones((5, 1)), np.zeros((5, 1), np.bool_)))
    found = error(problem, [0, 1], schedule="1f1b", microbatches=2)
    assert found.startswith("tasks wait for each other: gradients do not flow back"), found
    for schedule in ("interleaved", "zero_bubble"):
        assert error(problem, [0, 1], schedule=schedule, microbatches=2).startswith("tasks wait for each other")
    assert seconds(problem, [1, 1], schedule="1f1b", microbatches=2) == 10.0


def test_updates_that_wait_for_each_other_are_named() -> None:
    b = GraphBuilder("updates")
    [a] = b.add("a", outputs=[1], colocate=0)
    [x] = b.add("x", inputs=[a], outputs=[1], phase="update", colocate=0)
    [y] = b.add("y", inputs=[x], outputs=[1], phase="update", colocate=1)
    b.add("z", inputs=[y], phase="update", colocate=0)
    problem = Problem.of(
        b.build(), network(2, 2).cluster, None, CostTable(("k",), np.ones((4, 1)), np.zeros((4, 1), np.bool_))
    )
    assert error(problem, [0, 1], schedule="gpipe") == "updates wait for each other: k:0 -> k:1 -> k:0"


def test_too_many_chunks_are_named() -> None:
    found = error(network(20, 2), [i % 2 for i in range(20)], schedule="interleaved")
    assert found.startswith("stages wait for each other, or a device has more than 8 chunks")
    assert found.endswith("k:0 -> k:1 -> k:0")


def four_operations(*edges: str, transfer_s: float | None = None) -> Problem:
    """Operations a to d of one second on two devices; an edge such as "ac" says that c reads a."""
    b, made = GraphBuilder("four"), dict[str, int]()
    for name in "abcd":
        reads = [made[edge[0]] for edge in edges if edge[1] == name]
        [made[name]] = b.add(name, inputs=reads, outputs=[1])
    graph = b.build()
    if transfer_s is not None:
        graph = graph.replace(columns={**graph.columns, "transfer_s": np.full(4, transfer_s)})
    costs = CostTable(("k",), np.ones((4, 1)), np.zeros((4, 1), np.bool_))
    return Problem.of(graph, network(2, 2).cluster, None, costs)


def blocking(problem: Problem, *device: int) -> Measurements:
    return BlockingLatency().open(problem).evaluate(Placements.of(np.asarray([device], np.int16)))


def test_a_blocking_call_is_all_operations_of_one_depth_connected_or_not() -> None:
    """d needs c's output back from device 1: device 0 calls a and b first, which exchange nothing, then d."""
    assert blocking(four_operations("ac", "cd"), 0, 0, 1, 0).value_s.tolist() == [4.0]
    assert blocking(four_operations("ac", "cd", "ad"), 0, 0, 1, 0).value_s.tolist() == [4.0]


def test_blocking_calls_of_one_accelerator_exchange_tensors_if_the_graph_states_their_seconds() -> None:
    """The first call sends a's output once; c's call receives and sends one tensor, d's call receives two."""
    sent = four_operations("ac", "cd", "ad", transfer_s=SEND_S)
    assert blocking(sent, 0, 0, 1, 0).value_s.tolist() == [4.0 + SEND_S + 2 * SEND_S + 2 * SEND_S]


def test_blocking_calls_that_wait_for_each_other_are_named() -> None:
    measured = blocking(four_operations("ab", "cd"), 0, 1, 1, 0)
    assert measured.error == ("calls wait for each other: 'a' on k:0 -> 'b' on k:1 -> 'a' on k:0",)


# ---- options and sizes


def test_too_many_stages_or_micro_batches() -> None:
    with pytest.raises(BackendError, match="40 devices with up to 8 stages each and 8 micro-batches are too many"):
        Pipeline(schedule="interleaved").open(network(2, 40))
    with pytest.raises(BackendError, match="at most 256 stages"):
        Pipeline().open(network(2, 260))
    assert seconds(network(2, 40), [0, 39], schedule="1f1b", microbatches=8) == 27.0


def test_checkpointing_needs_layers() -> None:
    b = GraphBuilder("plain")
    [a] = b.add("a", outputs=[1])
    b.add("b", inputs=[a], phase="backward")
    problem = Problem.of(b.build(), network(2, 2).cluster)
    with pytest.raises(BackendError, match="'plain' has no repeated layers"):
        Pipeline(checkpointing="block").open(problem)


@pytest.mark.slow
def test_a_schedule_of_many_micro_batches_takes_little_space() -> None:
    session = Pipeline(schedule="gpipe", microbatches=4096).open(network(4, 4))
    found = session.schedule(network(4, 4).placement(np.arange(4, dtype=np.int16)))
    assert found.value_s == (4096 + 3) * 3.0
    assert found.spans is not None
    assert len(found.spans.name) == 2 * 4 * 4096 + 4 + 2 * 3 * 4096, "tasks, updates, messages"
    assert found.spans.is_task.sum() == 2 * 4 * 4096 + 4
    assert found.spans.name[0] == "forward 0"


def test_loads_of_equal_stages() -> None:
    """A stage in the middle receives and sends: two transfers on its load."""
    problem = network(3, 3, send=True, trains=False)
    measured = MaxLoad().open(problem).evaluate(Placements.of(np.asarray([[0, 1, 2], [0, 0, 1]], np.int16)))
    assert measured.value_s.tolist() == [1.0 + 2 * SEND_S, 2.0 + SEND_S]
    assert measured.peak_bytes.tolist() == [[WEIGHT] * 3, [2 * WEIGHT, WEIGHT, 0]]


@pytest.mark.parametrize(("launching", "seconds"), [("per_device", 3.0), ("eager", 3.0), ("graph", 1.0)])
def test_an_operation_takes_at_least_its_launch(launching: str, seconds: float) -> None:
    """A stage has a process of its own, whatever the machine says; recorded graphs are not launched."""
    plain = network(4, 2, trains=False)
    data = {**plain.cluster.model_dump(), "hosts": [{"launch_s": 3.0}], "launching": launching}
    problem = Problem(plain.graph, plain.grouping, Cluster.parse(data), plain.costs)
    session = Pipeline(schedule="inference", microbatches=5, threads=1).open(problem)
    value = session.evaluate(problem.placement([0, 0, 1, 1]).batch()).value_s[0]
    assert value == pytest.approx((5 + 1) * 2 * seconds)
    assert session.lower_bound() <= value
    session.close()
