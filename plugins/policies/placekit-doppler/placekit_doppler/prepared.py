"""A problem, made ready for episodes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from placekit_scheduling import ListScheduler, op_cost
from placekit_scheduling.compiled import Fixed, State, arrays, copied

from placekit_core import Problem
from placekit_doppler import DopplerOptions
from placekit_doppler.arrays import FEATURES, PAPER, STATIC, Episode, Setting, Work
from placekit_doppler.features import Features
from placekit_doppler.network import Inputs


@dataclass(frozen=True, eq=False)
class Prepared:
    """A problem, made ready for episodes: their inputs, and working memory for as many threads as there are `states`."""

    problem: Problem
    features: Features
    inputs: Inputs
    fixed: Fixed
    fresh: State
    setting: Setting
    states: list[State]
    works: list[Work]
    free: NDArray[np.int64]
    """Groups of sources only: they go where their first reader is."""

    @classmethod
    def of(cls, problem: Problem, options: DopplerOptions, threads: int) -> Prepared:
        """Prepare a problem for this many threads."""
        graph, features, cost = problem.graph, Features.of(problem), op_cost(problem)
        fixed, fresh = arrays(ListScheduler(problem))
        scale = float(cost[graph.kernel].mean()) if graph.kernel.any() else 1.0
        kind, static = np.zeros(graph.n, np.int64), np.zeros((graph.n, len(STATIC)), np.float32)
        kind[features.op], static[features.op] = features.kind, features.static
        setting = Setting(
            cost=cost / scale,
            level=features.b_level,
            kernel=graph.kernel.copy(),
            kind=kind,
            static=static,
            seen=np.arange(FEATURES) < (PAPER if options.features == "paper" else FEATURES),
            scale=scale,
            per_byte=float(problem.cluster.routes.s_per_byte.mean()) / scale,
            learned_sel=options.sel == "learned",
            learned_plc=options.plc == "learned",
        )
        used = np.zeros(problem.g, np.bool_)
        used[problem.grouping.group_of[graph.kernel]] = True
        return cls(
            problem=problem,
            features=features,
            inputs=Inputs.of(features),
            fixed=fixed,
            fresh=fresh,
            setting=setting,
            states=[copied(fresh) for _ in range(threads)],
            works=[Work.zeros(graph.n, problem.cluster.size, options.hidden) for _ in range(threads)],
            free=np.flatnonzero(~used),
        )

    @property
    def steps(self) -> int:
        """Kernels: decisions of an episode."""
        return len(self.features.op)

    def episodes(self, n: int) -> Episode:
        """`n` episodes, to be filled."""
        return Episode.several(n, self.steps, self.problem.cluster.size, self.problem.g)
