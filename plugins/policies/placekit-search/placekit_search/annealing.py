"""Policy `annealing`: simulated annealing from the best list schedule (Kirkpatrick, Gelatt and Vecchi 1983)."""

from __future__ import annotations

from numpy.random import Generator
from placekit_layers.following import followers
from placekit_scheduling import warm_up

from placekit_core import Checkpoint, Placement, ResumablePolicy, State, Task
from placekit_search.local_search import TEMPERATURE_END, LocalSearch, SearchContext
from placekit_search.move_kinds import ANNEALING, applicable
from placekit_search.neighbourhood import neighbourhood
from placekit_search.options import AnnealingOptions
from placekit_search.starts import best_start, is_makespan


class Annealing(ResumablePolicy):
    """Starts from the best of several list schedules and single devices; moves groups and changes priorities.

    The temperature falls geometrically over the budget, from `temperature_start` to `TEMPERATURE_END` times the value of
    the start. Placements that exceed a device's memory pay a price in proportion to the excess (see `walk.step`). The best
    placement is kept separately. With a budget of evaluations, the same seed gives the same result to the last bit; with a
    budget of seconds, the temperature follows the clock.
    """

    name = "annealing"
    options_class = AnnealingOptions

    def place(
        self, task: Task, rng: Generator, state: State | None = None, checkpoint: Checkpoint | None = None
    ) -> Placement:
        """The best placement visited. Resumes exactly from `state`."""
        evaluate, makespan = task.evaluate, is_makespan(task)
        warm_up(task)
        context = SearchContext(task, applicable(ANNEALING, makespan, evaluate.session.priorities))
        chain = LocalSearch(context, state or best_start(task, self.options.starts, rng))
        hood = neighbourhood(task.problem, None if makespan else followers(task.problem))
        first, limit = self.options.temperature_start, evaluate.ledger.limit
        ratio = TEMPERATURE_END / first
        while chain.can_move(hood) and evaluate.remaining > 0:
            now = chain.start_s * first * ratio**evaluate.progress
            chain.advance(hood, now, ratio ** (1 / limit) if limit else 1.0)
            if checkpoint is not None:
                checkpoint(chain.state())
        return chain.placement()
