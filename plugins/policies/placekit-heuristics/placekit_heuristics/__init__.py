"""Policies that need no training and no search: single devices, chance, and list scheduling."""

from __future__ import annotations

from pydantic import Field

from placekit_core import Options, PolicyComponent, hookimpl
from placekit_heuristics import enumerative_options, expert_options, list_options


class SingleDeviceOptions(Options):
    """Options of policy `single_device`."""

    device: str | None = Field(
        None,
        description="name of the device; default: the fastest for the whole graph on which it fits",
    )


class RandomOptions(Options):
    """Options of policy `random`."""

    samples: int = Field(
        1, ge=1, description="placements to draw; if more than one, they are evaluated and the best is taken"
    )


@hookimpl
def placekit_policies() -> list[PolicyComponent]:
    return [
        PolicyComponent(
            name="single_device",
            summary="everything on one device (operations that may not run there, on the device that is fastest for them)",
            config=SingleDeviceOptions,
            target="placekit_heuristics.simple:SingleDevice",
            baseline=True,
        ),
        PolicyComponent(
            name="random",
            summary="every group on any of its allowed devices, with equal chances",
            config=RandomOptions,
            target="placekit_heuristics.simple:Random",
        ),
        PolicyComponent(
            name="round_robin",
            summary="groups in topological order, one device after another",
            config=Options,
            target="placekit_heuristics.simple:RoundRobin",
        ),
        *list_options.COMPONENTS,
        *enumerative_options.COMPONENTS,
        *expert_options.COMPONENTS,
    ]
