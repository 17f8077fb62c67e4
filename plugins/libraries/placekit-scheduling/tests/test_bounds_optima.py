"""bounds.py: never above the best schedule found by trying every placement, nor a planted optimum; and close to it."""

from __future__ import annotations

import numpy as np
import pytest
from placekit_scheduling import ROUNDING, all_bounds, makespan_bound, offload_bound
from schedule_problems import small_problem

from placekit_core import Placements, Problem, installed


@pytest.mark.slow
def test_no_placement_that_fits_is_faster() -> None:
    """All placements of small problems, under several priorities, on both simulators and streaming; the bounds come close."""
    pytest.importorskip("placekit_sim")
    simulator, bulk = (installed().get("backend", name) for name in ("simulator", "bulk_synchronous"))
    streaming = [simulator.build(simulator.component.config(threads=1, prefetch=p)) for p in (0, 1)]
    backends = [entry.build(entry.component.config(threads=1)) for entry in (simulator, bulk)]
    reached = []
    for seed in range(150):
        rng = np.random.default_rng(seed)
        problem, devices = small_problem(rng)
        found = all_bounds(problem)
        offload, best = offload_bound(problem), np.inf
        for backend in backends if problem.cluster.multicast else [*backends, *streaming]:
            session = backend.open(problem)
            for priority in [None, *rng.standard_normal((4, *devices.shape))]:
                measured = session.evaluate(Placements.of(devices, priority))
                best = min(best, measured.value_s[measured.fits].min(initial=np.inf))
            session.close()
        for name, bound in found.items():
            assert bound * (1 - ROUNDING) <= best, (seed, name)
        assert offload * (1 - ROUNDING) <= best, seed
        assert np.isfinite(found["forced"]), seed
        if 0 < best < np.inf:
            reached.append(found["forced"] / best)
    assert len(reached) > 75
    assert np.mean(reached) > 0.95


def test_planted_optima() -> None:
    """Never above the optimum, and with one strand of work per device, which must not be sent, at it."""
    planted = pytest.importorskip("placekit_zoo.planted")
    rng = np.random.default_rng(0)
    for seed in range(12):
        devices = int(rng.choice([2, 3, 4]))
        options = {
            "layers": int(rng.choice([2, 3, 6])), "strands": int(rng.choice([1, 2])), "devices": devices,
            "width": int(rng.choice([5, 6] if devices == 2 else [3, 4, 5])), "reads": int(rng.choice([0, 1, 3])),
            "communication": float(rng.choice([1.5, 2, 4])), "speeds": [[1], [1, 2], [4, 2, 1]][rng.integers(3)],
        }  # fmt: skip
        [program] = planted.PlantedImporter(**options, seed=seed).load()
        problem = Problem.of(program.graph, program.cluster)
        optimum = program.graph.attributes["optimal_makespan_s"]
        assert optimum * (1 - 1e-3) <= makespan_bound(problem) <= optimum, options
        assert max(all_bounds(problem).values()) <= optimum * (1 + ROUNDING), options
