"""Policy `my_method`: a small graph network that learns where to place each group."""

from __future__ import annotations

from placekit_learn.torch_options import TorchPolicyOptions
from pydantic import Field

from placekit_core import PolicyComponent, hookimpl


class MyMethodOptions(TorchPolicyOptions):
    """Options of policy `my_method`."""

    hidden: int = Field(32, ge=1, description="units of each layer")


@hookimpl
def placekit_policies() -> list[PolicyComponent]:
    """What this package adds."""
    return [
        PolicyComponent(
            name="my_method",
            summary="learnable: a small graph network that places each group",
            config=MyMethodOptions,
            target="placekit_my_method.my_method:MyMethod",
            trainer="ppo",
            trainer_options={"samples": 20},
        )
    ]
