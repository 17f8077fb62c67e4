"""Options of the policies that search."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from placekit_core import Options


class AnnealingOptions(Options):
    """Options of policy `annealing`."""

    starts: int = Field(16, ge=1, description="list schedules to choose the start from; these evaluations count")
    temperature_start: float = Field(0.001, gt=0, description="first temperature, as a fraction of the start's value")


class PortfolioOptions(Options):
    """Options of policy `portfolio`."""

    starts: dict[str, dict[str, Any]] = Field(
        {
            "chain": {"max_ideals": 300, "share": 0.05},
            "critical_path": {"samples": 16},
            "etf": {"samples": 8},
            "heft": {"samples": 8},
            "enumerative": {"samples": 16},
            "cpop": {},
            "peft": {},
            "m_topo": {},
            "m_etf": {},
            "expert": {},
            "data_parallel": {},
            "metis": {"repair": False},
            "mincut": {"repair": False},
            "scotch": {"repair": False},
        },
        description="policies whose placements are starts, with their options. A default one that is not installed is skipped,"
        " and so is a policy that refuses the problem",
    )
    evaluations_per_chain: int = Field(
        2000,
        ge=1,
        description="evaluations of the budget for each local search at the start, at most 64 searches",
    )
    role_share: float = Field(
        0.35,
        ge=0,
        lt=1,
        description="share of the budget, up to 32,000 evaluations, for a search over the devices of roles, where modules are"
        " called step by step: a role is a module in one phase, in all its calls; 0: off",
    )
    contiguous_within: float = Field(
        0.02,
        ge=0,
        description="take a placement with one run of layers per device, near the best one, if its value is at most this"
        " share higher; only where layers are groups and the objective is a makespan; 0: off",
    )
    simpler_within: float = Field(
        0.05,
        ge=0,
        description="take a placement on fewer devices if its value is at most this share higher, or within the error of such"
        " predictions (`placekit accuracy`); only on simulated machines with hosts; 0: off",
    )
    threads: int = Field(0, ge=0, description="threads of the compiled loop; 0: all cores. Results do not depend on it")


class ExactOptions(Options):
    """Options of policy `exact`."""

    max_groups: int = Field(1000, ge=1, description="a problem with more groups is refused")
    deterministic_limit: float = Field(
        10.0,
        gt=0,
        description="limit of the solver's work, in CP-SAT's deterministic seconds; with `budget.seconds`, the clock ends it"
        " instead",
    )
