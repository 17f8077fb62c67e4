"""Policies that search."""

from __future__ import annotations

from placekit_core import PolicyComponent, hookimpl
from placekit_search import exact_options, genetic_options
from placekit_search.options import AnnealingOptions, LocalSearchOptions, PortfolioOptions


@hookimpl
def placekit_policies() -> list[PolicyComponent]:
    return [
        PolicyComponent(
            name="annealing",
            summary="simulated annealing from the best list schedule",
            config=AnnealingOptions,
            target="placekit_search.annealing:Annealing",
            paper="Kirkpatrick, Gelatt and Vecchi 1983, Science 220",
        ),
        PolicyComponent(
            name="local_search",
            summary="improvement only, with restarts from the best placement",
            config=LocalSearchOptions,
            target="placekit_search.local_search:LocalSearch",
            paper="Lourenço, Martin and Stützle 2003, Iterated local search",
        ),
        PolicyComponent(
            name="portfolio",
            summary="other policies' placements, then local searches from the best; the worse half ends after each round",
            config=PortfolioOptions,
            target="placekit_search.portfolio:Portfolio",
            paper="Jamieson and Talwalkar 2016, Non-stochastic best arm identification",
        ),
        *exact_options.COMPONENTS,
        *genetic_options.COMPONENTS,
    ]
