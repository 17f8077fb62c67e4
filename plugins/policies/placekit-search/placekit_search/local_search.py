"""Policy `local_search`: improvement only, with restarts (iterated local search; Lourenço, Martin and Stützle 2003)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.random import Generator
from pydantic import BaseModel

from placekit_core.interfaces import Checkpoint, Policy, State
from placekit_core.list_scheduling import warm_up
from placekit_core.placement import Placement
from placekit_core.problem import Task
from placekit_search.chain import Chain, Moves
from placekit_search.neighbourhood import neighbourhood
from placekit_search.options import LocalSearchOptions
from placekit_search.starts import best_start


class LocalSearch(Policy):
    """Moves are kept unless they make the placement worse.

    After `patience` evaluations without a new best placement it starts again from the best one, changed by `kick` moves.
    Memory is treated as in `annealing`, and a seed gives the same result to the last bit, here with a budget of seconds
    too as far as it gets.
    """

    name = "local_search"
    options_class = LocalSearchOptions

    def __init__(self, options: BaseModel | None = None, **values: Any) -> None:
        super().__init__(options, **values)
        warm_up()

    def place(
        self, task: Task, rng: Generator, state: State | None = None, checkpoint: Checkpoint | None = None
    ) -> Placement:
        """The best placement seen. Resumes exactly from `state`."""
        o = self.options
        chain = Chain(Moves(task, o.weights(), o.neighbour_bias), state or best_start(task, o.starts, rng))
        chain.restart[:2] = np.array([o.patience, o.kick])
        hood = neighbourhood(task.problem)
        while len(hood.movable) and task.evaluate.remaining > 0:
            chain.advance(hood, 0.0, 1.0)
            if checkpoint is not None:
                checkpoint(chain.state())
        return chain.placement()
