"""Policies that search."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from placekit_core.hookspecs import Component, hookimpl
from placekit_core.interfaces import Options

Share = Annotated[float, Field(ge=0, le=1)]


class AnnealingOptions(Options):
    """Options of policy `annealing`."""

    starts: int = Field(16, ge=1, description="list schedules to choose the start from, of the budget")
    temperature_start: float = Field(0.001, gt=0, description="first temperature, as a fraction of the start's value")
    temperature_end: float = Field(2.5e-5, gt=0, description="last temperature, as a fraction of the start's value")
    swap_moves: Share = Field(0.1, description="share of moves that exchange two groups")
    cluster_moves: Share = Field(0.2, description="share of moves that take a group's own producers along")
    region_moves: Share = Field(0.4, description="share of moves that take all groups of one call of a module along")
    neighbour_bias: Share = Field(0.5, description="share of moves that go to the device of a neighbour")


@hookimpl
def placekit_policies() -> list[Component]:
    return [
        Component(
            name="annealing",
            summary="simulated annealing from the best list schedule",
            config=AnnealingOptions,
            target="placekit_search.annealing:Annealing",
            paper="Kirkpatrick, Gelatt and Vecchi 1983, Science 220",
        )
    ]
