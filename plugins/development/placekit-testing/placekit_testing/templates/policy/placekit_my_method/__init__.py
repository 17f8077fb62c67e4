"""Policy `my_method`: the best of a number of random placements."""

from __future__ import annotations

from pydantic import Field

from placekit_core import Component, Options, hookimpl


class MyMethodOptions(Options):
    """Options of policy `my_method`."""

    samples: int = Field(1000, ge=1, description="placements to try")


@hookimpl
def placekit_policies() -> list[Component]:
    """What this package adds."""
    return [
        Component(
            name="my_method",
            summary="the best of a number of random placements",
            config=MyMethodOptions,
            target="placekit_my_method.my_method:MyMethod",
        )
    ]
