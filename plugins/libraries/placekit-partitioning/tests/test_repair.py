"""Memory repair: what does not fit is made to fit, where it can be, and it says what it did."""

from __future__ import annotations

import numpy as np
from placekit_partitioning.repair import repair
from placekit_testing import fakes

from placekit_core import (
    Cluster,
    GraphBuilder,
    Ledger,
    Measurements,
    Placement,
    Placements,
    Problem,
    Schedule,
    Session,
    Task,
    installed,
    place,
)
from placekit_core.run.evaluator import BudgetedEvaluator

MiB = 2**20


def simulated(problem: Problem, budget: int | None = None) -> Task:
    session = installed().get("backend", "simulator").load()().open(problem)
    return Task(problem, BudgetedEvaluator(problem, session, Ledger(budget)))


def on_first(problem: Problem) -> np.ndarray:
    return np.zeros(problem.g, np.int16)


def tight() -> Problem:
    """Six operations that exchange nothing, on three GPUs that hold two each."""
    b = GraphBuilder("tight")
    for i in range(6):
        b.add(f"op{i}", outputs=[8], flops=1e9, persistent_bytes=30 * MiB)
    return Problem.of(b.build(), fakes.gpus(3, memory_bytes=70 * MiB))


def test_what_fits_is_measured_once_and_stays() -> None:
    problem = fakes.diamond()
    task = simulated(problem)
    device = on_first(problem)
    assert repair(task, device) is device
    assert (task.evaluate.evaluations, task.evaluate.notes) == (1, [])


def test_persistent_bytes_are_moved_off_and_reported() -> None:
    problem = tight()
    task = simulated(problem)
    device = repair(task, on_first(problem))
    assert np.bincount(device).tolist() == [2, 2, 2], "only two of six fit on each"
    assert task.evaluate.best is not None
    assert task.evaluate.best.placement.device.tolist() == device.tolist()
    [note] = task.evaluate.notes
    assert note.startswith("memory repair moved 4 of 6 groups, because gpu:0 held ")
    assert "still" not in note


def wide() -> Problem:
    """16 operations that run first and write 8 MiB each, which 16 others then read: 128 MiB live at once."""
    b = GraphBuilder("wide")
    written = [b.add(f"write{i}", outputs=[8 * MiB], flops=1e9)[0] for i in range(16)]
    for i in range(16):
        b.add(f"read{i}", inputs=[written[i]], outputs=[8], flops=1e9)
    return Problem.of(b.build(), fakes.gpus(2, memory_bytes=100 * MiB))


def test_activations_are_moved_by_measured_peaks() -> None:
    problem = wide()
    task = simulated(problem)
    before = task.evaluate(Placements.of(on_first(problem)))
    assert not before.fits[0], "128 MiB in 100"
    assert problem.group_persistent_bytes.sum() == 0
    device = repair(task, on_first(problem))
    assert task.evaluate(Placements.of(device)).fits[0]
    assert task.evaluate.notes[0].startswith("memory repair moved ")


def test_what_talks_little_moves_first() -> None:
    """Of two pairs and a single that overfill a device, the single goes: it exchanges nothing."""
    b = GraphBuilder("pairs")
    for name in "ab":
        [t] = b.add(f"{name}0", outputs=[MiB], flops=1e9, persistent_bytes=30 * MiB)
        b.add(f"{name}1", inputs=[t], outputs=[8], flops=1e9, persistent_bytes=30 * MiB)
    b.add("single", outputs=[8], flops=1e9, persistent_bytes=30 * MiB)
    problem = Problem.of(b.build(), fakes.gpus(2, memory_bytes=140 * MiB))
    device = repair(simulated(problem), on_first(problem))
    assert device.tolist() == [0, 0, 0, 0, 1]


def test_latency_counts_for_every_tensor() -> None:
    """Of two groups that read from a third, the one that reads fewer bytes in more tensors stays if latency is long."""
    b = GraphBuilder("readers")
    *small, large = b.add("write", outputs=[8, 8, 8, 8, 1000], flops=1e9, persistent_bytes=30 * MiB)
    b.add("many", inputs=small, flops=1e9, persistent_bytes=30 * MiB)
    b.add("one", inputs=[large], flops=1e9, persistent_bytes=30 * MiB)
    for latency_s, device in ((0.0, [0, 1, 0]), (1e-3, [0, 0, 1])):
        links = [{"mesh": "*", "bytes_per_s": 1e9, "latency_s": latency_s}]
        cluster = Cluster.parse({**fakes.gpus(2, memory_bytes=70 * MiB).model_dump(), "links": links})
        problem = Problem.of(b.build(), cluster)
        assert repair(simulated(problem), on_first(problem)).tolist() == device


def test_a_group_goes_only_where_it_may() -> None:
    b = GraphBuilder("gpu only")
    for i in range(3):
        b.add(f"op{i}", outputs=[8], flops=1e9, persistent_bytes=30 * MiB, allowed="gpu")
    problem = Problem.of(b.build(), fakes.gpus(2, cpus=1, memory_bytes=70 * MiB))
    device = repair(simulated(problem), on_first(problem))
    assert sorted(device.tolist()) == [0, 0, 1]


def test_what_cannot_be_made_to_fit_is_said() -> None:
    b = GraphBuilder("large")
    b.add("large", outputs=[8], flops=1e9, persistent_bytes=80 * MiB)
    b.add("small", outputs=[8], flops=1e9, persistent_bytes=30 * MiB)
    problem = Problem.of(b.build(), fakes.gpus(2, memory_bytes=70 * MiB))
    task = simulated(problem)
    device = repair(task, on_first(problem))
    [note] = task.evaluate.notes
    assert note == (
        "memory repair moved 1 of 2 groups, because gpu:0 held 110.0 MiB of 70.0 MiB;"
        " it still does not fit: gpu:0 holds 80.0 MiB of 70.0 MiB"
    )
    assert device.tolist() == [0, 1], "the least excess that was measured"
    assert task.evaluate.best is None


def test_the_budget_is_kept() -> None:
    problem = tight()
    for budget in (0, 1, 2):
        task = simulated(problem, budget)
        problem.placement(repair(task, on_first(problem)))
        assert task.evaluate.evaluations <= budget
        assert (task.evaluate.best is not None) == (budget == 2)


class Always(Session):
    """Says of every placement what it was told."""

    def __init__(self, peak: float, error: str | None, devices: int) -> None:
        self.peak, self.error, self.devices, self.calls = peak, error, devices, 0

    def evaluate(self, placements: Placements) -> Measurements:
        self.calls += 1
        peak = np.full((1, self.devices), self.peak)
        return Measurements(np.array([np.nan if self.error else 1.0]), peak, np.array([False]), (self.error,))

    def schedule(self, placement: Placement) -> Schedule:
        raise AssertionError("not asked for")


def test_a_failure_that_is_not_about_memory_is_left_alone() -> None:
    problem = fakes.diamond()
    session = Always(0.0, "the device is on fire", 2)
    task = Task(problem, BudgetedEvaluator(problem, session))
    assert repair(task, on_first(problem)).tolist() == [0] * problem.g
    assert (session.calls, task.evaluate.notes) == (1, [])


def test_without_measured_peaks_persistent_bytes_are_what_is_known() -> None:
    problem = tight()
    session = Always(np.nan, "out of memory", 3)
    device = repair(Task(problem, BudgetedEvaluator(problem, session)), on_first(problem))
    assert np.bincount(device).tolist() == [2, 2, 2]


def test_a_repaired_placement_is_the_result_of_a_run() -> None:
    problem = tight()

    def all_on_one(task: Task, rng: np.random.Generator) -> Placement:
        return task.problem.placement(repair(task, on_first(task.problem)))

    result = place(problem.graph, cluster=Cluster.parse(problem.cluster.model_dump()), policy=all_on_one)
    assert result.summary.fits
    assert result.summary.evaluations == 2, "the placement that it returned was measured by it"
    assert len(result.summary.notes) == 1
