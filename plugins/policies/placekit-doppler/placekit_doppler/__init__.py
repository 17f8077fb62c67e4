"""The policy `doppler` and its trainer `three_stage` (Yao et al. 2026)."""

from __future__ import annotations

from typing import Literal

from placekit_learn.options import PolicyGradientOptions
from placekit_learn.torch_options import TorchOptions
from pydantic import Field, field_validator

from placekit_core import Component, PolicyComponent, hookimpl


class DopplerOptions(TorchOptions):
    """Options of policy `doppler`."""

    episode_threads: int = Field(
        0,
        ge=0,
        le=8,
        description="threads of the compiled episodes, at most 8; 0: as many as there are cores. Results do not depend on it",
    )
    engine: Literal["fast", "plain"] = Field(
        "fast",
        description="`fast`: compiled episodes (episodes.py); `plain`: in torch (plain.py). They differ in rounding and speed",
    )
    size: int = Field(64, ge=1, description="length of the embeddings of operations")
    hidden: int = Field(64, ge=1, description="units of the layer before the logits, of SEL and of PLC")
    rounds: int = Field(3, ge=0, description="rounds of message passing")
    message_passing: Literal["per_episode", "per_step"] = Field(
        "per_episode",
        description="messages are passed once per episode, or anew for every decision, with the placement so far (slow;"
        " appendix H.3)",
    )
    sel: Literal["learned", "critical_path"] = Field(
        "learned",
        description="selection by the network, or by the longest path to an exit (the ablation `doppler_plc`)",
    )
    plc: Literal["learned", "earliest_start"] = Field(
        "learned", description="placing by the network, or by the earliest start (the ablation `doppler_sel`)"
    )
    features: Literal["more", "paper"] = Field(
        "more", description="features of devices that PLC sees: the paper's five, or four more"
    )
    noise: float = Field(
        1.0, ge=0, description="initial standard deviation of the weights that each exploring episode draws; 0: none"
    )
    exploration: Literal["sample", "greedy"] = Field(
        "sample",
        description="exploring decisions are drawn by the network's probabilities, or uniformly as in the paper",
    )


class ThreeStageOptions(PolicyGradientOptions):
    """Options of trainer `three_stage`."""

    stages: list[Literal[1, 2, 3]] = Field(
        [1, 2, 3],
        min_length=1,
        description="1: imitation, 2: learning on the simulator, 3: on the run's backend, where that is another one",
    )

    @field_validator("stages")
    @classmethod
    def _in_order(cls, stages: list[int]) -> list[int]:
        if stages != sorted(set(stages)):
            raise ValueError(f"stages come in their order, each once: {sorted(set(stages))}")
        return stages

    imitation_episodes: int = Field(2000, ge=0, description="episodes of stage 1")
    imitation_samples: int = Field(4, ge=1, description="episodes of each update of stage 1")
    imitation_learning_rate: float = Field(1e-3, gt=0, description="step size of stage 1")
    imitation_entropy_weight: float = Field(
        0.0, ge=0, description="weight of each decision's entropy in stage 1, beside its log-probability"
    )
    simulated_episodes: int = Field(
        4000,
        ge=1,
        description="episodes of stage 2 where stage 3 follows on a backend that measures, unless"
        " `budget.proxy_evaluations` says how many",
    )
    near_best_from: float | None = Field(
        0.8, ge=0, le=1, description="share of a stage's budget after which episodes follow the best one; null: never"
    )
    measured_near_best_from: float | None = Field(
        0.0, ge=0, le=1, description="`near_best_from` of stage 3, which begins with the best placement of stage 2"
    )
    measured_at_most: float | None = Field(
        3.0,
        gt=1,
        description="in stage 3, values are capped at this many times the median of their batch; null: no cap",
    )
    list_schedules_first: bool = Field(
        True,
        description="begin with list schedules by every rule and single devices; with only one if the backend measures",
    )
    epochs: int = Field(3, ge=1, description="steps of the optimizer on each batch; 1: REINFORCE")
    clip: float | None = Field(
        0.2,
        gt=0,
        description="from the second step on, a probability ratio counts only up to this distance from 1; null: no limit",
    )
    samples: int = Field(32, ge=1, description="episodes of each update")
    reward: Literal["sqrt", "linear", "scaled"] = Field(
        "scaled",
        description="reward of a placement of `value` seconds: -sqrt(value); -value; or -value over the first batch's mean",
    )
    learning_rate: float = Field(3e-4, gt=0, description="step size of the optimizer")
    learning_rate_end: float | None = Field(
        1e-7, ge=0, description="step size at the end of the budget; null: the same"
    )
    normalise: bool = Field(True, description="divide advantages by the standard deviation of the batch's rewards")


@hookimpl
def placekit_trainers() -> list[Component]:
    return [
        Component(
            name="three_stage",
            summary="imitation of a teacher, then REINFORCE on the simulator, then on measurements",
            config=ThreeStageOptions,
            target="placekit_doppler.three_stage:ThreeStage",
            paper="Yao et al. 2026, Doppler: Dual-Policy Learning for Device Assignment, ICLR 2026",
        )
    ]


@hookimpl
def placekit_policies() -> list[PolicyComponent]:
    return [
        PolicyComponent(
            name="doppler",
            summary="dual policy: selects the next operation and places it",
            config=DopplerOptions,
            target="placekit_doppler.doppler:Doppler",
            paper="Yao et al. 2026, Doppler: Dual-Policy Learning for Device Assignment, ICLR 2026",
            trainer="three_stage",
        )
    ]
