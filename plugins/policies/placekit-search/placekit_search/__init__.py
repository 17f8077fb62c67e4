"""Policies that search."""

from __future__ import annotations

from placekit_core import PolicyComponent, hookimpl
from placekit_search.options import AnnealingOptions, ExactOptions, PortfolioOptions


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
            name="portfolio",
            summary="other policies' placements, then local searches from the best; the worse half ends after each round",
            config=PortfolioOptions,
            target="placekit_search.portfolio:Portfolio",
            paper="Jamieson and Talwalkar 2016, Non-stochastic best arm identification",
        ),
        PolicyComponent(
            name="exact",
            summary="the least largest load of a pipeline, by constraint programming (CP-SAT), with a proven bound",
            config=ExactOptions,
            target="placekit_search.exact:Exact",
            paper="Perron and Furnon, OR-Tools CP-SAT; Tarnawski et al. 2020 for the objective",
        ),
    ]
