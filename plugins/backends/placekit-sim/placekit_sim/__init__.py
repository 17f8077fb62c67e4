"""Simulated machines: backends `simulator` (work conserving) and `bulk_synchronous`. See docs/machine-model.md."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from placekit_core import Component, Options, hookimpl


class MachineOptions(Options):
    """Options of both backends; docs/machine-model.md defines each exactly."""

    ready_order: Literal["priority", "fifo", "depth_first", "breadth_first", "random", "arrival"] = Field(
        default="priority",
        description="which ready task starts first; `priority`: the highest priority in the placement, or as `fifo` without any",
    )
    seed: int = Field(default=0, ge=0, description="seed of the `random` order and of the noise")
    noise: float = Field(
        default=0.0, ge=0, le=2, description="sigma of the log-normal factor (mean 1) on every duration"
    )
    noise_repeats: int = Field(default=1, ge=1, description="simulations with different noise; the value is their mean")
    threads: int | None = Field(default=None, ge=1, description="threads that share a batch; default: all cores")


class SimulatorOptions(MachineOptions):
    """Options of backend `simulator`."""

    prefetch: int | None = Field(
        default=None,
        ge=0,
        description="streaming: parameters and inputs on another device are copied ahead for this many operations that read"
        " them, and freed after use; null: all copies begin at the start and stay until their last use",
    )


@hookimpl
def placekit_backends() -> list[Component]:
    """The two simulated machines."""
    return [
        Component(
            "simulator",
            "work-conserving simulated machine: transfers overlap with computation, and tasks start as soon as they can",
            SimulatorOptions,
            "placekit_sim.simulator:Simulator",
            paper="Doppler (ICLR 2026), Algorithm 1",
        ),
        Component(
            "bulk_synchronous",
            "simulated machine that computes level by level, with barriers around the transfers",
            MachineOptions,
            "placekit_sim.simulator:BulkSynchronous",
            paper="Valiant, A bridging model for parallel computation (1990)",
        ),
    ]
