"""The policy `placeto` and its trainer `stepwise` (Addanki et al. 2019).

Beside the paper, read `paper.py` (the network, section 2.2), `placeto.py` (the decision process, 2.1) and `stepwise.py`
(rewards and baseline, 2.1 and 2.3). `per_device.py` and `state.py` are the default network, which is ours.
"""

from __future__ import annotations

from typing import Literal

from placekit_learn.options import LearningOptions
from placekit_learn.torch_options import TorchPolicyOptions
from pydantic import Field, model_validator

from placekit_core import Component, PolicyComponent, hookimpl

PAPER = (
    "Addanki et al. 2019, Placeto: Learning Generalizable Device Placement Algorithms for Distributed Machine Learning"
)


class PlacetoOptions(TorchPolicyOptions):
    """Options of policy `placeto`."""

    size: int = Field(16, ge=1, description="length of an embedding, and units of the hidden layers of f, g, l and h")
    rounds: int = Field(8, ge=0, description="rounds of messages (k); 0: none, as in `placeto_simple_partitioner`")
    head: Literal["per_device", "paper"] = Field(
        "per_device",
        description="scores each device by the groups that are on it, for any number of devices; or the paper's, which sees"
        " devices as features of the groups",
    )
    schedule: bool = Field(
        True,
        description="`head=per_device` also sees when the group could start and end on each device, by list scheduling of the"
        " groups visited so far",
    )
    pooling: Literal["sets", "graph"] = Field(
        "sets",
        description="what the head sees: the current group, and sums over the groups before it, after it and beside it; or"
        " one sum over all groups, as in `placeto_simple_aggregator`",
    )
    sums: Literal["scaled", "plain"] = Field(
        "scaled",
        description="messages are averaged over neighbours, and sums over groups divided by the number of all groups; or"
        " both are plain sums, as in the paper",
    )
    residual: bool = Field(True, description="each round of messages adds the embedding of the group's own features")
    visits: int = Field(1, ge=1, description="how often an episode places each group (n)")
    order: Literal["topological", "random"] = Field("topological", description="order in which groups are visited")
    orders: int | None = Field(
        None, ge=1, description="number of random orders, from which each episode takes one; null: always a new one"
    )
    order_seed: int = Field(0, ge=0, description="seed of the random orders, and of the order without exploration")
    start: Literal["random", "one_device"] = Field(
        "random",
        description="placement that an episode starts from: random, or all on the device where the groups take least time"
        " in all",
    )
    max_devices: int | None = Field(
        None, ge=1, description="devices that `head=paper` has room for; null: as many as the problems have"
    )

    @model_validator(mode="after")
    def _paper_on_a_gpu(self) -> PlacetoOptions:
        if self.device == "cuda" and self.head == "per_device":
            raise ValueError("head=per_device is compiled for CPUs: device=cuda needs head=paper")
        return self


class StepwiseOptions(LearningOptions):
    """Options of trainer `stepwise`."""

    rewards: Literal["intermediate", "terminal"] = Field(
        "terminal",
        description="the last step is rewarded by the makespan; or each step by how much it shortens it, for which the"
        " placements of all steps are evaluated",
    )
    discount: float = Field(
        1.0, ge=0, le=1, description="factor on the reward of each later step, for an earlier one's return (gamma)"
    )
    window: int = Field(
        1, ge=1, description="updates over which the baseline of a step is averaged; 1: the batch itself"
    )
    memory_penalty: float = Field(
        2.0,
        ge=0,
        description="penalty of a placement that exceeds the memory of a device, per GiB of the highest excess, in units of"
        " the mean makespan of the first batch",
    )
    samples: int = Field(16, ge=1, description="episodes of each update")
    reward: Literal["sqrt", "linear", "scaled"] = Field(
        "scaled",
        description="worth of a placement of `value` seconds: -sqrt(value); -value; or -value over the first batch's mean",
    )
    normalise: bool = Field(True, description="divide advantages by the standard deviation of the batch's advantages")
    learning_rate: float = Field(6e-3, gt=0, description="step size of the optimizer")
    learning_rate_end: float | None = Field(
        6e-4, ge=0, description="step size at the end of the budget; null: the same"
    )
    entropy_weight: float = Field(0.01, ge=0, description="reward per nat of each decision's entropy")
    entropy_weight_end: float | None = Field(
        0.0, ge=0, description="that reward at the end of the budget; null: the same"
    )


@hookimpl
def placekit_policies() -> list[PolicyComponent]:
    return [
        PolicyComponent(
            name="placeto",
            summary="graph network that improves a placement group by group; learns for unseen graphs",
            config=PlacetoOptions,
            target="placekit_placeto.placeto:Placeto",
            paper=PAPER,
            trainer="stepwise",
        )
    ]


@hookimpl
def placekit_trainers() -> list[Component]:
    return [
        Component(
            name="stepwise",
            summary="REINFORCE with a reward and a baseline for each step of an episode",
            config=StepwiseOptions,
            target="placekit_placeto.stepwise:Stepwise",
            paper=PAPER,
        )
    ]
