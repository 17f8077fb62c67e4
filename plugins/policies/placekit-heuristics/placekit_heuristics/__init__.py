"""Policies that need no training and no search: single devices, chance, and list scheduling."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from placekit_core.hookspecs import Component, hookimpl
from placekit_core.interfaces import Options


class SingleDeviceOptions(Options):
    """Options of policy `single_device`."""

    device: str | None = Field(
        None,
        description="name of the device; default: the fastest for the whole graph among those that hold its parameters",
    )


class RandomOptions(Options):
    """Options of policy `random`."""

    samples: int = Field(
        1, ge=1, description="placements to draw; with more than one they are evaluated, the best is taken"
    )


class RoundRobinOptions(Options):
    """Options of policy `round_robin`."""

    chunk: int = Field(1, ge=1, description="how many groups in a row go to one device")


class ListSchedulingOptions(Options):
    """Options of `etf` and `heft`."""

    samples: int = Field(
        1, ge=1, description="schedules to make; with more than one they are evaluated, the best is taken"
    )
    perturbation: float = Field(
        0.0, ge=0, le=1, description="sigma of the log-normal factors on the levels of all schedules but the first"
    )


class CriticalPathOptions(ListSchedulingOptions):
    """Options of policy `critical_path`."""

    samples: int = Field(
        50, ge=1, description="schedules to make; with more than one they are evaluated, the best is taken"
    )
    choose: Literal["earliest_start", "earliest_finish"] = Field(
        "earliest_start", description="device for an operation; they differ where devices are unequally fast"
    )


LIST_SCHEDULING = "placekit_heuristics.list_scheduling"


@hookimpl
def placekit_policies() -> list[Component]:
    return [
        Component(
            name="single_device",
            summary="everything on one device (what may not run there, on the device that is fastest for it)",
            config=SingleDeviceOptions,
            target="placekit_heuristics.simple:SingleDevice",
        ),
        Component(
            name="random",
            summary="every group on any of its allowed devices, with equal chances",
            config=RandomOptions,
            target="placekit_heuristics.simple:Random",
        ),
        Component(
            name="round_robin",
            summary="groups in topological order, one device after another",
            config=RoundRobinOptions,
            target="placekit_heuristics.simple:RoundRobin",
        ),
        Component(
            name="critical_path",
            summary="list scheduling by longest path to an exit, onto the device of earliest start; best of 50",
            config=CriticalPathOptions,
            target=f"{LIST_SCHEDULING}:CriticalPath",
            paper="Kwok and Ahmad 1999; baseline of Doppler (ICLR 2026)",
        ),
        Component(
            name="etf",
            summary="list scheduling of the operation and device of earliest start",
            config=ListSchedulingOptions,
            target=f"{LIST_SCHEDULING}:Etf",
            paper="Hwang, Chow, Anger and Lee 1989, Scheduling precedence graphs in systems with interprocessor communication",
        ),
        Component(
            name="heft",
            summary="list scheduling by upward rank, onto the device of earliest finish, filling gaps",
            config=ListSchedulingOptions,
            target=f"{LIST_SCHEDULING}:Heft",
            paper="Topcuoglu, Hariri and Wu 2002, Performance-effective and low-complexity task scheduling",
        ),
    ]
