"""Options of the local searches."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, model_validator

from placekit_core import Options
from placekit_search.kinds import KINDS, ORDERING

Weight = Annotated[float, Field(ge=0)]
ORDER = "weight of changes of priorities, mostly of tasks that wait on the critical path"
LEVEL = "weight of moves that give every group the b-level that it has on the present devices as priority"


class MoveOptions(Options):
    """How often each kind of move is made: weights, which need not add up to 1."""

    single_moves: Weight = Field(0.03, description="weight of moves of one group")
    swap_moves: Weight = Field(0.02, description="weight of moves that exchange two groups")
    cluster_moves: Weight = Field(0.02, description="weight of moves that take a group's own producers along")
    region_moves: Weight = Field(0.05, description="weight of moves that take all groups of one call of a module along")
    piece_moves: Weight = Field(0.06, description="weight of moves of a connected piece of the graph, up to 16 groups")
    exchange_moves: Weight = Field(0.06, description="weight of moves that exchange two devices for many groups")
    critical_moves: Weight = Field(0.3, description="weight of moves or swaps of a group on the critical path")
    transfer_moves: Weight = Field(
        0.3, description="weight of moves that make a transfer on the critical path unnecessary"
    )
    order_moves: Weight = Field(0.4, description=ORDER)
    shift_moves: Weight = Field(
        0.4,
        description="weight of moves of a group and all that follows it on its device, which keep stages contiguous. They are"
        " made where the objective is no makespan; there, critical, transfer, order and level moves are not, because no schedule"
        " guides them",
    )
    level_moves: Weight = Field(0.0, description=LEVEL)
    neighbour_bias: float = Field(0.5, ge=0, le=1, description="share of moves that go to the device of a neighbour")

    @model_validator(mode="after")
    def _some_move(self) -> MoveOptions:
        if not any(getattr(self, f"{kind}_moves") for kind in KINDS):
            raise ValueError("all weights of moves are 0")
        return self

    def weights(self, makespan: bool = True, priorities: bool = True) -> dict[str, float]:
        """The weight of every kind of move under a makespan, where priorities matter or not, or under another objective."""
        unused = ("shift", *(() if priorities else ORDERING)) if makespan else ("critical", "transfer", *ORDERING)
        chosen = {kind: 0.0 if kind in unused else getattr(self, f"{kind}_moves") for kind in KINDS}
        return chosen if any(chosen.values()) else {**chosen, "single": 1.0}


class AnnealingOptions(MoveOptions):
    """Options of policy `annealing`."""

    starts: int = Field(16, ge=1, description="list schedules to choose the start from; their evaluations count")
    temperature_start: float = Field(0.001, gt=0, description="first temperature, as a fraction of the start's value")
    temperature_end: float = Field(2.5e-5, gt=0, description="last temperature, as a fraction of the start's value")


class LocalSearchOptions(MoveOptions):
    """Options of policy `local_search`."""

    starts: int = Field(16, ge=1, description="list schedules to choose the start from; their evaluations count")
    patience: int = Field(500, ge=1, description="evaluations without improvement before a restart")
    kick: int = Field(
        3, ge=1, description="moves that a restart makes from the best placement, even if they make it worse"
    )


class PortfolioOptions(MoveOptions):
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
        description="policies whose placements are starts, with their options. Default ones that are not installed are left"
        " out, and so is a policy that refuses the problem",
    )
    tries: int = Field(
        50,
        ge=1,
        description="times that a policy with option `samples` is asked at most, each with other random numbers; fewer with"
        " small budgets",
    )
    order_moves: Weight = Field(0.2, description=ORDER)
    level_moves: Weight = Field(0.05, description=f"{LEVEL}; 0: no starts get such priorities, either")
    chains: int = Field(64, ge=1, description="largest number of local searches at the start")
    evaluations_per_chain: int = Field(
        2000, ge=1, description="evaluations of the budget for each local search at the start"
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
        description="where layers are groups, and the objective is a makespan: the best contiguous split found near the best"
        " placement (one run of layers for each device) is the result if its value is at most this share higher; 0: off",
    )
    temperature_start: float = Field(0.001, gt=0, description="first temperature, as a fraction of the start's value")
    temperature_end: float = Field(2.5e-5, gt=0, description="last temperature, as a fraction of the start's value")
    threads: int = Field(0, ge=0, description="threads of the compiled loop; 0: all cores. Results do not depend on it")
