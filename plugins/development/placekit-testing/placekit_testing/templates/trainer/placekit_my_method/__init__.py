"""Trainer `my_method`: REINFORCE; and policy `my_method_softmax`, the smallest that it can train."""

from __future__ import annotations

from pydantic import Field

from placekit_core import Component, LearnableOptions, Options, PolicyComponent, hookimpl


class MyMethodOptions(Options):
    """Options of trainer `my_method`."""

    batch: int = Field(32, ge=2, description="episodes per update")
    learning_rate: float = Field(1.0, gt=0, description="step along the gradient")


class MyMethodSoftmaxOptions(LearnableOptions):
    """Options of policy `my_method_softmax`: none of its own yet."""


@hookimpl
def placekit_trainers() -> list[Component]:
    """The trainer that this package adds."""
    return [
        Component(
            name="my_method",
            summary="REINFORCE with the mean of the batch as the baseline",
            config=MyMethodOptions,
            target="placekit_my_method.my_method:MyMethod",
            paper="Williams 1992, Simple statistical gradient-following algorithms for connectionist reinforcement learning",
        )
    ]


@hookimpl
def placekit_policies() -> list[PolicyComponent]:
    """The policy that this package adds."""
    return [
        PolicyComponent(
            name="my_method_softmax",
            summary="learnable: the probabilities of the devices for each group, independent of each other",
            config=MyMethodSoftmaxOptions,
            target="placekit_my_method.softmax:MyMethodSoftmax",
            trainer="my_method",
        )
    ]
