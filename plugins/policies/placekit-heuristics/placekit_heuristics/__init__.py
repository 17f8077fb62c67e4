"""Policies without training or search: single devices, random placements, list scheduling, and expert placements."""

from __future__ import annotations

from pydantic import Field

from placekit_core import Options, PolicyComponent, hookimpl
from placekit_heuristics import enumerative_options, expert_options, list_options


class SingleDeviceOptions(Options):
    """Options of policy `single_device`."""

    device: str | None = Field(
        None,
        description="name of the device; default: the fastest device on which the whole graph fits",
    )


class RandomOptions(Options):
    """Options of policy `random`."""

    samples: int = Field(1, ge=1, description="placements to draw; if more than one, evaluate all and take the best")


@hookimpl
def placekit_policies() -> list[PolicyComponent]:
    return [
        PolicyComponent(
            name="single_device",
            summary="everything on one device, except operations that may not run there",
            config=SingleDeviceOptions,
            target="placekit_heuristics.simple:SingleDevice",
            baseline=True,
        ),
        PolicyComponent(
            name="random",
            summary="every group on a random device among its allowed ones",
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
