"""Policy `annealing`: simulated annealing from the best list schedule (Kirkpatrick, Gelatt and Vecchi 1983)."""

from __future__ import annotations

from placekit_core import Task
from placekit_search.chain import Chain
from placekit_search.options import AnnealingOptions
from placekit_search.single import SingleChain


class Annealing(SingleChain):
    """Starts from the best of several list schedules and of the single devices; moves groups, and changes priorities.

    The temperature falls geometrically over the budget, from `temperature_start` to `temperature_end` times the value of
    the start. Placements over a device's memory are visited at a price in proportion to the excess (see `walk.step`); the
    best placement is kept separately. With a budget of evaluations, the same seed gives the same result to the last bit;
    with a budget of seconds, the temperature follows the clock.
    """

    name = "annealing"
    options_class = AnnealingOptions

    def temperature(self, task: Task, chain: Chain) -> tuple[float, float]:
        o, limit = self.options, task.evaluate.ledger.limit
        ratio = o.temperature_end / o.temperature_start
        now = chain.start_s * o.temperature_start * ratio**task.evaluate.progress
        return now, ratio ** (1 / limit) if limit else 1.0
