"""Policy `post`: cross-entropy minimization joined with proximal policy optimization (Gao et al. 2018)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from placekit_core import Options, PolicyComponent, hookimpl


class PostOptions(Options):
    """Options of policy `post`; the defaults are those of the paper's section 4."""

    update: Literal["post", "ppo", "policy_gradient", "cross_entropy"] = Field(
        "post",
        description="how the distribution is improved: `post` by both PPO and cross-entropy minimization, `ppo` or"
        " `cross_entropy` by one of them, `policy_gradient` by one REINFORCE step in place of PPO's",
    )
    batch: int = Field(12, ge=1, description="placements (K) drawn and evaluated together before each PPO update")
    window: int = Field(
        60, ge=1, description="placements (N) between updates by cross-entropy minimization; a multiple of `batch`"
    )
    promising: float = Field(
        0.1,
        gt=0,
        le=1,
        description="share (rho) of the window, the best placements, that cross-entropy minimization fits",
    )
    epsilon: float = Field(
        0.1,
        ge=0,
        le=1,
        description="share of the uniform distribution mixed in after cross-entropy minimization, falling linearly to 0",
    )
    learning_rate: float = Field(1.0, gt=0, description="step size of gradient ascent")
    steps: int = Field(10, ge=1, description="gradient ascent steps of a PPO update")
    reward_scale: float | None = Field(
        None,
        gt=0,
        description="seconds that advantages are divided by; default: the mean of the first batch's placements that fit",
    )
    failing_s: float | None = Field(
        None,
        gt=0,
        description="seconds that count in the advantages for a placement that does not fit; default: twice the mean of the"
        " first batch's placements that fit, or the slowest that fitted if that is more; at most the run's failing signal",
    )

    @model_validator(mode="after")
    def _whole_batches(self) -> PostOptions:
        if self.window % self.batch:
            raise ValueError(f"window={self.window} is not a multiple of batch={self.batch}")
        return self


@hookimpl
def placekit_policies() -> list[PolicyComponent]:
    return [
        PolicyComponent(
            name="post",
            summary="cross-entropy minimization joined with proximal policy optimization",
            config=PostOptions,
            target="placekit_post.post:Post",
            paper="Gao et al. 2018, Post, NeurIPS 31",
        )
    ]
