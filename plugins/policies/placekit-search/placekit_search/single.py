"""The common part of `annealing` and `local_search`: one chain, from the best list schedule."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from numpy.random import Generator
from placekit_scheduling import warm_up
from pydantic import BaseModel

from placekit_core import Checkpoint, Placement, ResumablePolicy, State, Task
from placekit_search.chain import Chain, Moves
from placekit_search.neighbourhood import neighbourhood
from placekit_search.starts import best_start, followers, is_makespan


class SingleChain(ResumablePolicy):
    """Starts from the best of several list schedules and of the single devices, and goes on from there."""

    def __init__(self, options: BaseModel | None = None, **values: Any) -> None:
        super().__init__(options, **values)
        warm_up()

    @abstractmethod
    def temperature(self, task: Task, chain: Chain) -> tuple[float, float]:
        """The present temperature in seconds, and its factor for each evaluation."""

    def place(
        self, task: Task, rng: Generator, state: State | None = None, checkpoint: Checkpoint | None = None
    ) -> Placement:
        """The best placement seen. Resumes exactly from `state`."""
        o = self.options
        makespan = is_makespan(task)
        moves = Moves(task, o.weights(makespan, task.evaluate.session.priorities), o.neighbour_bias)
        chain = Chain(moves, state or best_start(task, o.starts, rng))
        self.prepare(chain)
        hood = neighbourhood(task.problem, None if makespan else followers(task.problem))
        while chain.can_move(hood) and task.evaluate.remaining > 0:
            chain.advance(hood, *self.temperature(task, chain))
            if checkpoint is not None:
                checkpoint(chain.state())
        return chain.placement()

    def prepare(self, chain: Chain) -> None:
        """Set up a chain as the options say."""
