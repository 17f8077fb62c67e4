"""Options of policy `exact`; its body is imported only when it is used."""

from __future__ import annotations

from pydantic import Field

from placekit_core import Options, PolicyComponent


class ExactOptions(Options):
    """Options of policy `exact`."""

    max_operations: int = Field(
        150, ge=1, description="a graph with more kernels is refused where the objective is a makespan"
    )
    max_groups: int = Field(
        1000, ge=1, description="a problem with more groups is refused where the objective is a largest load"
    )
    starts: int = Field(16, ge=1, description="list schedules to choose the start from; their evaluations count")
    deterministic_limit: float = Field(
        10.0,
        gt=0,
        description="solver's work after which it ends, in CP-SAT's deterministic seconds; with `budget.seconds`, the clock"
        " ends it instead",
    )
    resolution: int = Field(
        10_000_000, ge=1000, le=10**9, description="ticks that the start's makespan is divided into"
    )
    workers: int = Field(
        1, ge=1, description="threads of the solver; with more than 1 the result depends on the machine"
    )


COMPONENTS = [
    PolicyComponent(
        name="exact",
        summary="constraint programming (CP-SAT) with a proven bound, for small graphs",
        config=ExactOptions,
        target="placekit_search.exact:Exact",
        paper="Perron and Furnon, OR-Tools CP-SAT; Venkatesan et al. 2019 for the model of intervals",
    )
]
