"""METIS: parts as speeds, little cut, the same partition every time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from placekit_metis.partition import Metis
from placekit_partitioning.partitioning import Parts
from placekit_testing import fakes

from placekit_core import Cluster, Graph, GraphBuilder, NotApplicable, Problem

pytest.importorskip("pymetis")


def line(n: int = 60, only: str = "", clusters: int = 1) -> Graph:
    """Chains of n equal operations in all; every tenth operation may run on devices of type `only`."""
    b = GraphBuilder("line")
    made: list[int] = []
    for i in range(n):
        made = [] if i % (n // clusters) == 0 else made
        made = b.add(f"op{i}", inputs=made, outputs=[10**6], flops=1e10, allowed=only if i % 10 == 5 else "")
    return b.build()


def layered(n: int) -> Graph:
    """n operations, each of which reads two of the last fifty."""
    rng, b, made = np.random.default_rng(n), GraphBuilder("layered"), []
    for i in range(n):
        reads = {made[-1 - k] for k in rng.integers(0, min(i, 50), 2)} if i else ()
        made += b.add(
            f"op{i}", inputs=reads, outputs=[int(rng.integers(1, 10**6))], flops=float(rng.integers(1, 10**9))
        )
    return b.build()


def unequal() -> Cluster:
    """A GPU, one of twice and one of five times its speed."""
    kinds = {
        f"gpu{s}": {"flops_per_s": {"float32": s * 1e12}, "memory_bytes": 2**34, "memory_bytes_per_s": 1e15}
        for s in (1, 2, 5)
    }
    links = [{"a": "*", "b": "hub", "bytes_per_s": 1e9}]
    return Cluster.parse({"name": "unequal", "kinds": kinds, "devices": [{"kind": k} for k in kinds], "links": links})


def placed(policy: Metis, problem: Problem) -> tuple[NDArray[np.int16], list[str]]:
    task = fakes.fake_task(problem)
    return policy.place(task, np.random.default_rng(0)).device, task.evaluate.notes


def crossing(problem: Problem, device: NDArray[np.int16]) -> int:
    u, v = problem.grouped.op_edges
    return int((device[u] != device[v]).sum())


def test_parts_are_as_speeds_and_cut_little() -> None:
    problem = Problem.of(layered(2000), unequal())
    device, _ = placed(Metis(repair=False), problem)
    work = np.bincount(device, problem.group_s[:, 0], 3)
    assert work / work.sum() == pytest.approx(np.array([1, 2, 5]) / 8, rel=0.06)
    assert crossing(problem, device) < 0.2 * crossing(problem, np.random.default_rng(0).permutation(device))


def test_imbalance() -> None:
    problem = Problem.of(layered(2000), fakes.gpus(4))
    for imbalance in (0.01, 0.3):
        device, _ = placed(Metis(imbalance=imbalance, repair=False), problem)
        work = np.bincount(device, problem.group_s[:, 0], 4)
        assert work.max() / work.mean() <= 1 + imbalance + 0.005


def test_a_line_is_cut_once_between_parts() -> None:
    problem = Problem.of(line(), fakes.gpus(4))
    device, _ = placed(Metis(), problem)
    assert crossing(problem, device) == 3
    assert np.bincount(device).tolist() == pytest.approx([15] * 4, abs=1)


def test_chains_that_are_not_connected_are_not_cut() -> None:
    problem = Problem.of(line(64, clusters=4), fakes.gpus(4))
    device, _ = placed(Metis(), problem)
    assert crossing(problem, device) == 0
    assert np.bincount(device).tolist() == [16] * 4


def test_cpus_only_where_asked_for_or_needed() -> None:
    problem = Problem.of(line(), fakes.gpus(2, cpus=1))
    assert np.bincount(placed(Metis(), problem)[0]).tolist() == [30, 30]
    counts = np.bincount(placed(Metis(cpu=True), problem)[0])
    assert counts / 60 == pytest.approx([10 / 21, 10 / 21, 1 / 21], abs=0.03)
    assert counts[2] > 0
    problem = Problem.of(line(only="cpu"), fakes.gpus(2, cpus=1))
    device, notes = placed(Metis(), problem)
    assert np.array_equal(device == 2, ~problem.allowed[:, 0])
    assert notes == []


def test_no_gpu() -> None:
    problem = Problem.of(line(10), fakes.gpus(0, cpus=2))
    with pytest.raises(NotApplicable, match=r"'metis' needs GPUs, and .* has none\n  .*policy.cpu=true"):
        placed(Metis(), problem)
    assert np.bincount(placed(Metis(cpu=True), problem)[0]).tolist() == [5, 5]


def test_what_metis_complains_of_is_not_printed(capfd: pytest.CaptureFixture[str]) -> None:
    """Where the work is in fewer groups than there are devices, it complains on standard output, where the result belongs."""
    b = GraphBuilder("star")
    [x] = b.add("first", outputs=[8], flops=1e9)
    for i in range(9):
        b.add(f"op{i}", inputs=[x], outputs=[8], flops=1e12 if i == 0 else 1.0)
    print("before")
    placed(Metis(), Problem.of(b.build(), fakes.gpus(8)))
    print("after")
    assert capfd.readouterr().out == "before\nafter\n"


def test_fewer_groups_than_devices_are_one_per_device(capfd: pytest.CaptureFixture[str]) -> None:
    b = GraphBuilder("three")
    for i in range(3):
        b.add(f"op{i}", outputs=[8], flops=1e9 * (1 + i))
    assert placed(Metis(), Problem.of(b.build(), unequal()))[0].tolist() == [0, 1, 2], "the longest on the fastest"
    assert len(set(placed(Metis(), Problem.of(b.build(), fakes.gpus(8)))[0].tolist())) == 3
    assert capfd.readouterr().out == "", "METIS would say that these are too many parts"


def test_more_cuts_never_cut_more() -> None:
    problem = Problem.of(layered(800), fakes.gpus(4))
    parts = Parts.of(problem, np.arange(4))

    def cut(cuts: int) -> int:
        part = Metis(cuts=cuts).parts(parts, np.random.default_rng(0))
        return int(parts.exchange.bytes_[part[parts.exchange.source] != part[parts.exchange.neighbour]].sum())

    assert cut(50) <= cut(1)


CHILD = """
import hashlib, sys
sys.path.insert(0, {folder!r})
from test_metis import Metis, Problem, fakes, layered, placed
print(hashlib.sha256(placed(Metis(), Problem.of(layered(4000), fakes.gpus(4)))[0].tobytes()).hexdigest())
"""


@pytest.mark.slow
def test_the_same_partition_in_every_process() -> None:
    code = CHILD.format(folder=str(Path(__file__).parent))
    run = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(2)]
    assert run[0].stdout == run[1].stdout != ""
