"""Options of policy `genetic`; its body is imported only when it is used."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from placekit_core import Options, PolicyComponent

Share = Annotated[float, Field(ge=0, le=1)]


class GeneticOptions(Options):
    """Options of policy `genetic`."""

    population: int | None = Field(
        None,
        ge=4,
        description="placements in a generation; default: the square root of the evaluations left, within 20..1000, or 200"
        " if only seconds are limited",
    )
    elite: float = Field(0.2, gt=0, lt=1, description="share of a generation, the best, that passes to the next one")
    mutants: float = Field(0.05, ge=0, lt=1, description="share of a generation that is drawn at random")
    elite_bias: float = Field(0.9, ge=0.5, lt=1, description="share of a child's genes that come from its elite parent")
    crossover: Literal["segment", "uniform"] = Field(
        "segment",
        description="how genes of the other parent are chosen: as a segment of the topological order, or one by one",
    )
    mutation: float = Field(
        1.5, ge=0, description="average number of a child's devices that are drawn anew; likewise of priorities"
    )
    scheduled: Share = Field(
        0.9, description="share of the first generation that are list schedules; the rest is random"
    )
    perturbation: float = Field(
        0.1, ge=0, description="sigma of the log-normal factors on the levels of the second half of the list schedules"
    )


COMPONENTS = [
    PolicyComponent(
        name="genetic",
        summary="biased random-key genetic algorithm over devices and priorities",
        config=GeneticOptions,
        target="placekit_search.genetic:Genetic",
        paper="Goncalves and Resende 2011; Paliwal et al. 2020, REGAL",
    )
]
