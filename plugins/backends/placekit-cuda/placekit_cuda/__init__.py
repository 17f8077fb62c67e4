"""Backends that run programs for real and measure them: `cuda`, and `cpu`, whose devices are threads of this process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from placekit_core import Component, Options, hookimpl

if TYPE_CHECKING:
    from placekit_cuda.placed_step import PlacedStep

__all__ = ["CPUOptions", "CUDAOptions", "MeasuringOptions", "PlacedStep"]


class MeasuringOptions(Options):
    """How a placement is measured."""

    steps: int = Field(3, ge=1, description="number of timed steps; the value is their mean")
    warm_up: int = Field(1, ge=0, description="steps before the timed ones")
    schedule: Literal["dynamic", "static", "bulk_synchronous"] = Field(
        "dynamic",
        description="`dynamic`: decides what starts next whenever an operation ends; `static`: each device keeps to an order"
        " fixed before the step; `bulk_synchronous`: level by level, with barriers",
    )
    ahead: int | None = Field(
        None,
        ge=0,
        le=64,
        description="with `schedule=dynamic`, launches that wait at a device or link while it works on another; 0: it waits for"
        " the host after each; null: 1 on GPUs, 0 on threads",
    )
    fuse: bool = Field(True, description="operations between two synchronisation points are launched as one")
    timeout_s: float = Field(60.0, gt=0, description="seconds after which a step counts as hanging")
    isolation: Literal["none", "process"] = Field(
        "none", description="`process`: another process runs the program; if it dies, only that measurement is lost"
    )
    devices: int | None = Field(None, ge=1, le=64, description="devices of `cluster=auto`; null: as many as there are")
    memory_bytes: int | None = Field(
        None, ge=1, description="memory of each device of `cluster=auto`; null: equal parts of all memory"
    )
    links: Literal["memory", "cluster"] = Field(
        "memory",
        description="`memory`: copies run at full speed; `cluster`: they take at least as long as on the cluster's links",
    )

    @model_validator(mode="after")
    def _ahead_of_an_order(self) -> MeasuringOptions:
        if self.ahead is not None and self.schedule != "dynamic":
            raise ValueError(f"ahead={self.ahead} is for schedule=dynamic, not schedule={self.schedule}")
        return self


class CPUOptions(MeasuringOptions):
    """Options of backend `cpu`."""

    threads: int = Field(1, ge=1, description="torch threads of each device")


class CUDAOptions(MeasuringOptions):
    """Options of backend `cuda`."""

    gpus: list[int] | None = Field(
        None, min_length=1, description="GPU of each device; GPUs may repeat; null: all GPUs, in turn"
    )


@hookimpl
def placekit_backends() -> list[Component]:
    return [
        Component(
            "cuda",
            "runs programs on GPUs, and measures",
            CUDAOptions,
            "placekit_cuda.backend:CUDABackend",
            paper="Doppler (ICLR 2026), Algorithm 1",
        ),
        Component(
            "cpu",
            "runs programs on threads of this process as devices, and measures",
            CPUOptions,
            "placekit_cuda.backend:CPUBackend",
            paper="Doppler (ICLR 2026), Algorithm 1",
        ),
    ]


def __getattr__(name: str) -> Any:
    if name != "PlacedStep":
        raise AttributeError(f"module 'placekit_cuda' has no attribute {name!r}")
    from placekit_cuda.placed_step import PlacedStep

    return PlacedStep
