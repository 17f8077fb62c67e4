"""Checks how well a simulator predicts measurements, on random placements and on good ones.

Doppler (Yao et al. 2026, appendix H.1) reports Pearson's and Spearman's correlation of simulated and real times over
placements (0.79 and 0.69).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from placekit_core import Measurements, Placements, Problem, RunError, Session
from placekit_inspect.statistics import bootstrap_interval, pearson, spearman

RANDOM, SEARCH = "random", "search"
SEARCHED = 3000
"""Evaluations of the first search, which is the longest."""


@dataclass(frozen=True)
class Agreement:
    """Agreement of simulated and measured seconds.

    Attributes:
        placements: number of placements.
        pearson, spearman: correlations; NaN where all values are equal.
        pearson_interval, spearman_interval: 95 % bootstrap intervals over the placements.
        mean_error: mean of the absolute value of simulated / measured - 1.
        bias: mean of simulated / measured - 1: below 0 if the simulator is too optimistic.
    """

    placements: int
    pearson: float
    spearman: float
    pearson_interval: tuple[float, float]
    spearman_interval: tuple[float, float]
    mean_error: float
    bias: float


@dataclass(frozen=True, eq=False)
class Fidelity:
    """b placements, simulated and measured in p passes.

    Attributes:
        program, cluster: names of the program and the machine.
        made: [b] how each placement was made: `random` or `search`.
        evaluations: [b] simulations that the search made; 0 for random placements.
        simulated_s, measured_s: [b] seconds of the objective; NaN without a value.
        spread_s: [b] standard deviation over the scaled passes; NaN for a single pass.
        simulated_fits: [b] whether the placement fits according to the simulator.
        error: [b] why a placement could not be measured, else None.
        samples_s: [p, b] unscaled seconds of each pass; NaN from the pass in which the placement failed.
        scale: [p] factor of each pass, which makes the medians of all passes equal.
    """

    program: str
    cluster: str
    made: tuple[str, ...]
    evaluations: NDArray[np.int64]
    simulated_s: NDArray[np.float64]
    measured_s: NDArray[np.float64]
    spread_s: NDArray[np.float64]
    simulated_fits: NDArray[np.bool_]
    error: tuple[str | None, ...]
    samples_s: NDArray[np.float64]
    scale: NDArray[np.float64]

    @property
    def compared(self) -> NDArray[np.bool_]:
        """[b] whether a placement was simulated and measured."""
        both: NDArray[np.bool_] = np.isfinite(self.measured_s) & np.isfinite(self.simulated_s)
        return both

    def agreement(self, made: str | None = None) -> Agreement:
        """Agreement over all compared placements, or only `random` or `search`."""
        rows = self.compared & np.array([made in (None, m) for m in self.made])
        simulated, measured = self.simulated_s[rows], self.measured_s[rows]
        error = simulated / measured - 1
        mean, bias = (float(np.abs(error).mean()), float(error.mean())) if len(error) else (np.nan, np.nan)
        return Agreement(
            len(error),
            pearson(simulated, measured),
            spearman(simulated, measured),
            bootstrap_interval(pearson, simulated, measured),
            bootstrap_interval(spearman, simulated, measured),
            mean,
            bias,
        )

    def rows(self) -> list[Sequence[object]]:
        """The placements as a table with a header row."""
        return [
            ("placement", "made", "evaluations", "simulated_s", "measured_s", "spread_s", "error"),
            *zip(
                range(len(self.made)), self.made, self.evaluations.tolist(), self.simulated_s.tolist(),
                self.measured_s.tolist(), self.spread_s.tolist(), [e or "" for e in self.error], strict=True,
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
    """Compare random placements (one half) and placements found by searches on `simulator` (the other half).

    A search starts from a random placement, moves one or two groups at a time, and keeps a move that is not slower. The
    first search runs 3000 evaluations. Each of the others stops at a goal; the goals divide the range from the best random
    value to the first search's result evenly, so that the placements differ in quality.

    All placements give priority to operations that come first in the program, so that simulator and machine choose the same
    ready operation. Each of `passes` passes measures all placements once, in random order, so that a disturbance spoils
    one sample of several placements, not all samples of one. A placement that fails is not tried again. Passes are scaled
    to equal medians, and the value of a placement is its median over the passes.

    Raises RunError if fewer than three placements could be measured.
    """
    searches = placements // 2
    chosen = np.array([random_placement(problem, rng) for _ in range(placements - searches)])
    value = _seconds(simulated(problem, simulator, chosen))
    best, longest = search(problem, simulator, np.array([-np.inf]), rng)
    goal = _seconds(simulated(problem, simulator, best))[0]
    start = value.min() if np.isfinite(value).any() else goal
    goals = np.linspace(start, goal, searches + 1)[1:-1] if np.isfinite(goal) else np.full(searches - 1, goal)
    found, used = search(problem, simulator, goals, rng)
    chosen = np.concatenate([chosen, found, best])
    evaluations = np.concatenate([np.zeros(placements - searches, np.int64), used, longest])
    samples, error = _measured(problem, machine, chosen, passes, rng)
    ok = np.isfinite(samples).all(axis=0)
    if ok.sum() < 3:
        why = next((e for e in reversed(error) if e), None)
        raise RunError(
            f"only {ok.sum()} of {placements} placements could be measured",
            f"for example: {why}" if why else "they do not fit into the memory of the devices",
        )
    level = np.median(samples[:, ok], axis=1)
    scale = np.median(level) / level
    scaled = samples * scale[:, None]
    spread = scaled.std(axis=0, ddof=1) if len(samples) > 1 else np.full(placements, np.nan)
    simulation = simulated(problem, simulator, chosen)
    return Fidelity(
        program=problem.graph.name,
        cluster=problem.cluster.name,
        made=(RANDOM,) * (placements - searches) + (SEARCH,) * searches,
        evaluations=evaluations,
        simulated_s=simulation.value_s,
        measured_s=np.where(ok, np.median(scaled, axis=0), np.nan),
        spread_s=np.where(ok, spread, np.nan),
        simulated_fits=simulation.fits,
        error=error,
        samples_s=samples,
        scale=scale,
    )


def _measured(
    problem: Problem, machine: Session, chosen: NDArray[np.int16], passes: int, rng: Generator
) -> tuple[NDArray[np.float64], tuple[str | None, ...]]:
    """[passes, b] seconds, and [b] the reason of each failure."""
    batch, b = batch_of(problem, chosen), len(chosen)
    samples, error = np.full((passes, b), np.nan), list[str | None]([None] * b)
    for of_pass in samples:
        for i in rng.permutation(b).tolist():
            if error[i] is not None:
                continue
            found = machine.evaluate(batch[i : i + 1])
            if found.fits[0]:
                of_pass[i] = found.value_s[0]
            else:
                error[i] = found.error[0] or "does not fit"
    return samples, tuple(error)


def program_order(problem: Problem) -> NDArray[np.float32]:
    """[g] priorities of groups, in program order."""
    graph = problem.graph
    place = np.empty(graph.n, np.float32)
    place[graph.topological_order] = np.arange(graph.n)
    first = np.full(problem.g, np.inf, np.float32)
    np.minimum.at(first, problem.grouping.group_of, np.where(graph.kernel, place, graph.n).astype(np.float32))
    return -first


def batch_of(problem: Problem, devices: NDArray[np.int16]) -> Placements:
    """Placements [b, g] with priorities in program order."""
    return Placements.of(devices, np.tile(program_order(problem), (len(devices), 1)))


def simulated(problem: Problem, session: Session, devices: NDArray[np.int16]) -> Measurements:
    """Simulate placements [b, g] with priorities in program order."""
    return session.evaluate(batch_of(problem, devices))


def random_placement(problem: Problem, rng: Generator) -> NDArray[np.int16]:
    """[g] a device for each group, uniformly among the allowed ones."""
    return np.array([_random_device(problem, g, rng) for g in range(problem.g)], np.int16)


def search(
    problem: Problem, session: Session, goals: NDArray[np.float64], rng: Generator, evaluations: int = SEARCHED
) -> tuple[NDArray[np.int16], NDArray[np.int64]]:
    """Run k searches; returns [k, g] placements and [k] evaluations.

    A search ends when it reaches its goal (seconds), or after `evaluations`.
    """
    device = np.array([random_placement(problem, rng) for _ in goals], np.int16).reshape(-1, problem.g)
    value = _seconds(simulated(problem, session, device)) if len(goals) else np.zeros(0)
    used = np.ones(len(goals), np.int64)
    while len(going := np.flatnonzero((value > goals) & (used < evaluations))):
        other = device[going]
        for row in other:
            for g in rng.integers(0, problem.g, rng.integers(1, 3)):
                row[g] = _random_device(problem, int(g), rng)
        found = _seconds(simulated(problem, session, other))
        used[going] += 1
        better = found <= value[going]
        device[going[better]], value[going[better]] = other[better], found[better]
    return device, used


def _random_device(problem: Problem, group: int, rng: Generator) -> np.int16:
    return np.int16(rng.choice(np.flatnonzero(problem.allowed[group])))


def _seconds(found: Measurements) -> NDArray[np.float64]:
    """[b] seconds; infinity if a placement does not fit."""
    return np.where(found.fits, found.value_s, np.inf)
