"""Policy `annealing`: simulated annealing from the best list schedule (Kirkpatrick, Gelatt and Vecchi 1983)."""

from __future__ import annotations

from typing import Any

from numpy.random import Generator
from pydantic import BaseModel

from placekit_core.interfaces import Checkpoint, Policy, State
from placekit_core.list_scheduling import warm_up
from placekit_core.placement import Placement
from placekit_core.problem import Task
from placekit_search.chain import Chain, Moves
from placekit_search.neighbourhood import neighbourhood
from placekit_search.options import AnnealingOptions
from placekit_search.starts import best_start


class Annealing(Policy):
    """Starts from the best of several list schedules and of the single devices; moves groups, and changes priorities.

    The temperature falls geometrically over the budget, from `temperature_start` to `temperature_end` times the value of
    the start. Until a placement that fits is found, one over a device's memory is visited at a penalty in proportion to
    the excess; afterwards only placements that fit. With a budget of evaluations the result is the same to the last bit
    for the same seed; with a budget of seconds the temperature follows the clock.
    """

    name = "annealing"
    options_class = AnnealingOptions

    def __init__(self, options: BaseModel | None = None, **values: Any) -> None:
        super().__init__(options, **values)
        warm_up()

    def place(
        self, task: Task, rng: Generator, state: State | None = None, checkpoint: Checkpoint | None = None
    ) -> Placement:
        """The best placement seen. Resumes exactly from `state`."""
        o, evaluate = self.options, task.evaluate
        chain = Chain(Moves(task, o.weights(), o.neighbour_bias), state or best_start(task, o.starts, rng))
        hood = neighbourhood(task.problem)
        ratio = o.temperature_end / o.temperature_start
        while len(hood.movable) and evaluate.remaining > 0:
            temperature = chain.start_s * o.temperature_start * ratio**evaluate.progress
            limit = evaluate.ledger.limit
            chain.advance(hood, temperature, ratio ** (1 / limit) if limit else 1.0)
            if checkpoint is not None:
                checkpoint(chain.state())
        return chain.placement()
