"""What partitioning policies share: the undirected graph, loads and speeds, and what becomes of the parts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.random import Generator
from numpy.typing import NDArray
from placekit_partitioning import PartitionOptions
from placekit_partitioning.exchange import Exchange, Transfers, mean_s_per_byte
from placekit_partitioning.partitioning import (
    TOTAL,
    Partitioning,
    Parts,
    gpus,
    integers,
    speeds,
    to_allowed,
)
from placekit_scheduling import b_level, group_priority
from placekit_testing import fakes

from placekit_core import Cluster, CostTable, GraphBuilder, Grouping, NotApplicable, Problem


def at(problem: Problem, name: str) -> int:
    return problem.graph.op_name.index(name)


def with_latency(cluster: Cluster, latency_s: float) -> Cluster:
    """The machine with links of 1 GB/s and this latency between all devices."""
    return Cluster.parse({**cluster.model_dump(), "links": [{"mesh": "*", "bytes_per_s": 1e9, "latency_s": latency_s}]})


def with_costs(problem: Problem, seconds: dict[str, list[float]]) -> Problem:
    """The problem with these seconds of operations, on each kind of device; others take none."""
    table = np.zeros((problem.graph.n, len(problem.cluster.kind_names)))
    for name, row in seconds.items():
        table[at(problem, name)] = row
    return Problem.of(problem.graph, problem.cluster, None, CostTable(problem.cluster.kind_names, table, table > 0))


def test_the_exchange_has_every_edge_in_both_directions() -> None:
    problem = fakes.diamond()
    exchange = Exchange.of(problem)
    edges = set(zip(exchange.source.tolist(), exchange.neighbour.tolist(), exchange.bytes_.tolist(), strict=True))
    names = [("x", "a", 1e6), ("a", "b", 1e6), ("a", "c", 1e6), ("w", "b", 4e6), ("b", "d", 1e6), ("c", "d", 1e6)]
    forward = {(at(problem, a), at(problem, b), bytes_) for a, b, bytes_ in names}
    assert edges == forward | {(b, a, bytes_) for a, b, bytes_ in forward}
    assert len(exchange.bytes_) == 12, "each once"
    for i in range(problem.g):
        row = exchange.neighbour[exchange.ptr[i] : exchange.ptr[i + 1]]
        assert (np.diff(row) > 0).all()


def test_bytes_to_devices_and_seconds() -> None:
    problem = fakes.diamond()
    device = np.zeros(problem.g, np.int16)
    device[at(problem, "w")] = device[at(problem, "d")] = 1
    exchange, b = Exchange.of(problem), at(problem, "b")
    assert exchange.to_devices(problem, device)[b].tolist() == [1e6, 5e6]
    assert exchange.to_devices_of(problem, device, b).tolist() == [1e6, 5e6]
    device[at(problem, "w")] = -1
    assert exchange.to_devices_of(problem, device, b).tolist() == [1e6, 1e6]
    assert mean_s_per_byte(problem) == pytest.approx(np.array([[0, 1e-9], [1e-9, 0]]))


def test_a_tensor_is_a_transfer_to_each_group_that_reads_it() -> None:
    b = GraphBuilder("readers")
    [t, u] = b.add("write", outputs=[1, 1])
    for name, reads in (("one", [t]), ("two", [t, u]), ("alone", [t])):
        b.add(name, inputs=reads)
    problem = Problem.of(b.build(), fakes.gpus(2), Grouping.of(np.array([0, 1, 1, 2])))
    tensors = Transfers.of(problem).tensors
    edges = zip(tensors.source.tolist(), tensors.neighbour.tolist(), tensors.bytes_.tolist(), strict=True)
    assert set(edges) == {(0, 1, 2), (1, 0, 2), (0, 2, 1), (2, 0, 1)}, "t goes to group 1 once"


def test_integers() -> None:
    assert integers(np.array([1e-9, 3e-9])).tolist() == [TOTAL // 4, 3 * TOTAL // 4]
    assert integers(np.zeros(3)).tolist() == [1, 1, 1], "no time at all: any balance is as good, but there must be one"
    assert integers(np.zeros(0)).tolist() == []


def test_speeds_and_loads_of_unequal_devices() -> None:
    problem = with_costs(fakes.mixed(), {f"op{i}": [1.0, 4.0] for i in range(12)})
    parts = Parts.of(problem, np.arange(3))
    assert parts.speed == pytest.approx([1.0, 1.0, 0.25])
    seconds = dict(zip(parts.groups.tolist(), parts.load / parts.load.sum() * 12, strict=True))
    assert [round(seconds[at(problem, f"op{i}")], 3) for i in range(3)] == [1.0, 1.0, 1.0]
    cpu, gpu = (at(problem, name) for name in ("op0", "op1"))
    fixed = dict(zip(parts.groups.tolist(), parts.fixed.tolist(), strict=True))
    assert (fixed[cpu], fixed[gpu]) == (2, -1), "one of two GPUs is a choice"


def test_speeds_are_those_of_groups_that_both_may_run() -> None:
    for rows, expected in [
        # few groups for all do not hide what the first two have in common
        ([[1, 1, 4], [9, 19, None]], [1, 0.5, 0.25]),
        # a group that takes no time on the first; the others have both in common
        ([[0, 4, 4], [1, 2, 4]], [1, 0.5, 0.375]),
        # two targets have nothing in common with the first
        ([[1, None, None], [None, 3, 6]], [1, 1, 0.5]),
        # the last has something in common with the second only
        ([[2, 1, None], [None, 1, 4]], [0.5, 1, 0.25]),
    ]:
        seconds = np.array([[7.0 if s is None else s for s in row] for row in rows])
        allowed = np.array([[s is not None for s in row] for row in rows])
        assert speeds(seconds, allowed, np.ones(3, np.int32)) == pytest.approx(expected)


def test_a_group_for_slow_devices_only_weighs_what_it_takes_there() -> None:
    seconds = {f"op{i}": [1.0, 4.0] for i in range(12)} | {"op0": [1.0, 40.0]}
    problem = with_costs(fakes.mixed(), seconds)
    parts = Parts.of(problem, np.arange(3))
    load = dict(zip(parts.groups.tolist(), parts.load.tolist(), strict=True))
    assert load[at(problem, "op0")] / load[at(problem, "op2")] == pytest.approx(10, rel=1e-6)


def test_streams_count_as_speed() -> None:
    kinds = {
        name: {"flops_per_s": {"float32": 1e12}, "memory_bytes": 2**30, "memory_bytes_per_s": 1e12} for name in "ab"
    }
    kinds["b"]["streams"] = 3
    devices, links = [{"kind": "a"}, {"kind": "b"}], [{"mesh": "*", "bytes_per_s": 1e9}]
    cluster = Cluster.parse({"name": "streams", "kinds": kinds, "devices": devices, "links": links})
    parts = Parts.of(Problem.of(fakes.independent_graph(9), cluster), np.arange(2))
    assert parts.speed == pytest.approx([1 / 3, 1.0])


def test_groups_go_where_they_may() -> None:
    problem = fakes.mixed()
    device = to_allowed(problem, np.zeros(problem.g, np.int16))
    problem.placement(device)
    stay = problem.allowed[:, 0]
    assert (device[stay] == 0).all(), "only what may not be there moves"
    assert (device[~stay] == 2).all()
    problem.placement(to_allowed(problem, np.full(problem.g, -1, np.int16)))


def test_of_several_allowed_devices_the_one_that_ends_first_is_taken() -> None:
    """Two CPUs, of which one is busy with what is there already."""
    b = GraphBuilder("two")
    b.add("busy", outputs=[1], flops=1e12, allowed="cpu")
    b.add("free", outputs=[1], flops=1e9, allowed="cpu")
    problem = Problem.of(b.build(), fakes.gpus(1, cpus=2))
    assert to_allowed(problem, np.array([1, 0], np.int16)).tolist() == [1, 2]


class Halves(Partitioning):
    """A partitioner that sends every other vertex to the last target."""

    name = "halves"
    options_class = PartitionOptions

    def parts(self, parts: Parts, rng: Generator) -> NDArray[np.int64]:
        return np.where(np.arange(len(parts.groups)) % 2 == 0, 0, len(parts.targets) - 1)


class HalvesOfGpus(Halves):
    def targets(self, problem: Problem) -> NDArray[np.int64]:
        return gpus(problem, "halves", "take another one")


def placed(policy: Partitioning, problem: Problem) -> tuple[Any, Any]:
    task = fakes.fake_task(problem)
    return policy.place(task, np.random.default_rng(0)), task


def test_what_lands_on_a_device_that_may_not_run_it_is_moved_and_reported() -> None:
    problem = fakes.mixed()
    placement, task = placed(Halves(), problem)
    problem.check(placement.batch())
    [note] = task.evaluate.notes
    assert note == "halves put 4 of 13 groups on devices that may not run them; they were moved"
    assert np.array_equal(placement.priority, group_priority(problem, b_level(problem)))


def test_groups_that_no_target_may_run_are_no_mistake_of_the_partitioner() -> None:
    problem = fakes.mixed()
    placement, task = placed(HalvesOfGpus(), problem)
    cpu_only = ~problem.allowed[:, :2].any(axis=1)
    assert cpu_only.sum() == 4
    assert (placement.device[cpu_only] == 2).all()
    assert (placement.device[~cpu_only] < 2).all()
    assert task.evaluate.notes == []


def test_no_gpu_is_an_error() -> None:
    problem = Problem.of(fakes.independent_graph(3), fakes.gpus(0, cpus=2))
    with pytest.raises(NotApplicable, match=r"'halves' needs GPUs, and 'fake0\+2' has none\n  take another one"):
        placed(HalvesOfGpus(), problem)


def test_only_a_repair_evaluates() -> None:
    for repair, evaluations in ((False, 0), (True, 1)):
        _, task = placed(Halves(repair=repair), fakes.chain())
        assert task.evaluate.evaluations == evaluations


def test_one_target_and_no_vertex_are_not_asked_for() -> None:
    class Never(Halves):
        def parts(self, parts: Parts, rng: Generator) -> NDArray[np.int64]:
            raise AssertionError

    class NeverOfGpus(HalvesOfGpus, Never):
        pass

    placed(Never(), fakes.chain(5, devices=1))
    b = GraphBuilder("cpu only")
    b.add("op", outputs=[1], allowed="cpu")
    placement, _ = placed(NeverOfGpus(), Problem.of(b.build(), fakes.gpus(2, cpus=1)))
    assert placement.device.tolist() == [2]
