"""How well a simulator predicts measurements: the same placements, good ones and random ones, on both.

Doppler (Yao et al. 2026, appendix H.1) reports Pearson's and Spearman's correlation of simulated and real times over
placements (0.79 and 0.69).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from placekit_core.errors import RunError
from placekit_core.interfaces import Session
from placekit_core.placement import Placements
from placekit_core.problem import Problem
from placekit_core.statistics import pearson, spearman

RANDOM, SEARCH = "random", "search"
SEARCHED = 3000
"""Evaluations of the longest search."""


@dataclass(frozen=True)
class Agreement:
    """How simulated and measured seconds of some placements agree.

    Attributes:
        placements: how many.
        pearson, spearman: correlations; NaN where all values are equal.
        mean_error: mean of the absolute value of simulated / measured - 1.
        bias: mean of simulated / measured - 1: below 0 if the simulator promises too much.
    """

    placements: int
    pearson: float
    spearman: float
    mean_error: float
    bias: float


@dataclass(frozen=True, eq=False)
class Fidelity:
    """b placements, simulated and measured.

    Attributes:
        program, cluster: what was placed where.
        made: [b] `random` or `search`: how each was made.
        evaluations: [b] simulations that the search took; 0 for random ones.
        simulated_s, measured_s: [b] seconds of the objective; NaN where a placement could not be measured.
        spread_s: [b] standard deviation of the measured passes.
    """

    program: str
    cluster: str
    made: tuple[str, ...]
    evaluations: NDArray[np.int64]
    simulated_s: NDArray[np.float64]
    measured_s: NDArray[np.float64]
    spread_s: NDArray[np.float64]

    def agreement(self, made: str | None = None) -> Agreement:
        """Of all placements, or of those that were made in one way; of those with a value."""
        rows = np.isfinite(self.measured_s) & np.array([made in (None, m) for m in self.made])
        simulated, measured = self.simulated_s[rows], self.measured_s[rows]
        error = simulated / measured - 1
        mean, bias = (float(np.abs(error).mean()), float(error.mean())) if len(error) else (np.nan, np.nan)
        return Agreement(len(error), pearson(simulated, measured), spearman(simulated, measured), mean, bias)

    def rows(self) -> list[Sequence[object]]:
        """As a table, the first row its head."""
        return [
            ("placement", "made", "evaluations", "simulated_s", "measured_s", "spread_s"),
            *zip(
                range(len(self.made)), self.made, self.evaluations.tolist(), self.simulated_s.tolist(),
                self.measured_s.tolist(), self.spread_s.tolist(), strict=True,
            ),
        ]  # fmt: skip


def compare(
    problem: Problem,
    simulator: Session,
    machine: Session,
    placements: int,
    passes: int,
    rng: Generator,
) -> Fidelity:
    """Half of the placements random, half found by searches on `simulator`; all measured `passes` times on `machine`.

    A search begins with a random placement, moves one or two groups at a time and keeps what is not slower. One of 3000
    evaluations says how good placements can get; the others stop at values in equal steps from the median of the random ones
    to that, so that their placements are of every quality in between.
    All prefer what comes first in the program, so that both sides decide alike between operations that are ready.
    Each pass measures all placements once in another order, so that what disturbs the computer for a while spoils one
    sample of several placements and not all of one. A pass in which all was slower or faster is scaled to the others by its
    median, and the value of a placement is the median of the passes. Raises RunError if fewer than
    three placements could be measured.
    """
    searches = placements // 2
    rows = [random_placement(problem, rng) for _ in range(placements - searches)]
    values = np.array([_value(simulator, row) for row in rows])
    best = _value(simulator, searched(problem, simulator, SEARCHED, rng)[0])
    middle = np.median(values[np.isfinite(values)]) if np.isfinite(values).any() else best
    goals = np.linspace(middle, best, searches) if np.isfinite(best) else [best] * searches
    found_by = [searched(problem, simulator, SEARCHED, rng, goal) for goal in goals]
    rows += [row for row, _ in found_by]
    batch = Placements.of(np.array(rows, np.int16), np.tile(program_order(problem), (placements, 1)))
    samples, errors = np.full((passes, placements), np.nan), list[str]()
    for samples_of_pass in samples:
        for i in rng.permutation(placements).tolist():
            found = machine.evaluate(batch[i : i + 1])
            samples_of_pass[i] = found.value_s[0] if found.fits[0] else np.nan
            errors += [e for e in found.error if e is not None]
    ok = np.isfinite(samples).all(axis=0)
    if ok.sum() < 3:
        raise RunError(
            f"only {ok.sum()} of {placements} placements could be measured",
            f"the last one failed: {errors[-1]}" if errors else "they do not fit into the memory of the devices",
        )
    level = np.median(samples[:, ok], axis=1, keepdims=True)
    samples *= np.median(level) / level
    return Fidelity(
        problem.graph.name,
        problem.cluster.name,
        (RANDOM,) * (placements - searches) + (SEARCH,) * searches,
        np.array([0] * (placements - searches) + [used for _, used in found_by], np.int64),
        simulator.evaluate(batch).value_s,
        np.where(ok, np.median(samples, axis=0), np.nan),
        np.where(ok, samples.std(axis=0), np.nan),
    )


def program_order(problem: Problem) -> NDArray[np.float32]:
    """[g] priorities of groups in the order in which the program reaches them."""
    graph = problem.graph
    place = np.empty(graph.n, np.float32)
    place[graph.topological_order] = np.arange(graph.n)
    first = np.full(problem.g, np.inf, np.float32)
    np.minimum.at(first, problem.grouping.group_of, np.where(graph.kernel, place, graph.n).astype(np.float32))
    return -first


def random_placement(problem: Problem, rng: Generator) -> NDArray[np.int16]:
    """[g] every group on any device that may run it, with equal chances."""
    return np.array([_any(problem, g, rng) for g in range(problem.g)], np.int16)


def searched(
    problem: Problem, session: Session, evaluations: int, rng: Generator, goal_s: float = -np.inf
) -> tuple[NDArray[np.int16], int]:
    """[g] the placement of a search of so many evaluations, or until one is as good as `goal_s`; and how many it took."""
    device = random_placement(problem, rng)
    value, used = _value(session, device), 1
    while used < evaluations and value > goal_s:
        other = device.copy()
        for g in rng.integers(0, problem.g, rng.integers(1, 3)):
            other[g] = _any(problem, int(g), rng)
        used += 1
        if (found := _value(session, other)) <= value:
            device, value = other, found
    return device, used


def _any(problem: Problem, group: int, rng: Generator) -> np.int16:
    return np.int16(rng.choice(np.flatnonzero(problem.allowed[group])))


def _value(session: Session, device: NDArray[np.int16]) -> float:
    found = session.evaluate(Placements.of(device))
    return float(found.value_s[0]) if found.fits[0] else np.inf
