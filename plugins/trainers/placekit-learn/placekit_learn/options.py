"""Options of the trainers."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from placekit_core import Options


class LearningOptions(Options):
    """Options of all policy gradients. A schedule goes linearly from its value to `..._end` over the budget."""

    samples: int = Field(10, ge=1, description="placements drawn for each update (K)")
    reward: Literal["sqrt", "linear", "scaled"] = Field(
        "sqrt",
        description="reward of a placement of `value` seconds: -sqrt(value); -value; or -value over the first batch's mean",
    )
    failing: Literal["worst", "signal"] = Field(
        "worst",
        description="seconds of a placement that fails or does not fit: twice the slowest that fitted so far,"
        " or the run's failing signal",
    )
    normalise: bool = Field(False, description="divide advantages by the standard deviation of the batch's rewards")
    optimiser: Literal["adam", "sgd"] = Field("adam", description="how gradients become steps")
    learning_rate: float = Field(3e-3, gt=0, description="step size of the optimizer")
    learning_rate_end: float | None = Field(
        None, ge=0, description="step size at the end of the budget; null: the same"
    )
    max_gradient_norm: float | None = Field(
        None, gt=0, description="longer gradients are shortened to this Euclidean norm; null: no limit"
    )
    entropy_weight: float = Field(0.0, ge=0, description="reward per nat of each decision's entropy")
    entropy_weight_end: float | None = Field(
        None, ge=0, description="that reward at the end of the budget; null: the same"
    )
    explore: float = Field(
        1.0, ge=0, le=1, description="exploration that the policy is asked for; its meaning depends on the policy"
    )
    explore_end: float | None = Field(
        None, ge=0, le=1, description="exploration at the end of the budget; null: the same"
    )


class PolicyGradientOptions(LearningOptions):
    """Options that `reinforce` and `ppo` share: those of their baseline."""

    baseline: Literal["average", "mean", "batch"] = Field(
        "average",
        description="rewards are compared with a moving average over the program's batches; mean: with the mean of all its"
        " earlier placements; batch: with the batch's mean",
    )
    baseline_decay: float = Field(
        0.9, ge=0, lt=1, description="of `baseline=average`: share of the old average in the new one"
    )
    baseline_start: Literal["first", "failing"] = Field(
        "first",
        description="of a baseline of earlier rewards: it starts at the first batch's mean, or at a failure's reward, to"
        " explore more",
    )
    only_fitting_after: int | None = Field(
        None, ge=0, description="updates after which only placements that fit count; null: all count, always"
    )

    @model_validator(mode="after")
    def _a_batch_to_compare_within(self) -> PolicyGradientOptions:
        if self.baseline == "batch" and self.samples == 1:
            raise ValueError(
                "baseline=batch compares the placements of a batch: samples must be 2 or more, or baseline=average"
            )
        return self


class ReinforceOptions(PolicyGradientOptions):
    """Options of trainer `reinforce`."""


class PPOOptions(PolicyGradientOptions):
    """Options of trainer `ppo`."""

    epochs: int = Field(4, ge=1, description="steps of the optimizer on each batch")
    clip: float | None = Field(
        0.2, gt=0, description="a probability ratio counts only up to this distance from 1 (epsilon); null: no limit"
    )
    kl_target: float | None = Field(
        None,
        gt=0,
        description="KL divergence per decision, nats, to which the penalty's weight adapts; null: no penalty",
    )
    kl_weight: float = Field(1.0, gt=0, description="initial weight of the KL penalty (beta)")
    gae_lambda: float | None = Field(
        1.0,  # the only reward comes at the end; Schulman et al. 2017 (Table 3) have 0.95, for rewards at every step
        ge=0,
        le=1,
        description="of policies with a value function: 1 compares a placement's reward with the value before each decision,"
        " 0 the value after a decision with that before it (lambda); null: values are not used",
    )
    discount: float = Field(
        1.0, ge=0, le=1, description="of policies with a value function: factor on what follows, per decision (gamma)"
    )
    value_weight: float = Field(
        0.5, gt=0, description="of policies with a value function: weight of the values' squared errors (c1)"
    )
