"""Policy `local_search`: improvement only, with restarts (iterated local search; Lourenço, Martin and Stützle 2003)."""

from __future__ import annotations

from placekit_core import Task
from placekit_search.chain import Chain
from placekit_search.options import LocalSearchOptions
from placekit_search.single import SingleChain
from placekit_search.walk import KICK, PATIENCE


class LocalSearch(SingleChain):
    """Moves are kept unless they make the placement worse.

    After `patience` evaluations without a new best placement it starts again from the best one, changed by `kick` moves.
    Memory is treated as in `annealing`, and with a budget of evaluations a seed gives the same result to the last bit.
    """

    name = "local_search"
    options_class = LocalSearchOptions

    def prepare(self, chain: Chain) -> None:
        chain.at.restart[[PATIENCE, KICK]] = self.options.patience, self.options.kick

    def temperature(self, task: Task, chain: Chain) -> tuple[float, float]:
        return 0.0, 1.0
