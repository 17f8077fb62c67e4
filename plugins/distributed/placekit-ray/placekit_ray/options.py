"""Options of trainer `asynchronous` and backend `ray`."""

from __future__ import annotations

from typing import Any

from pydantic import Field, field_validator

from placekit_core import Options


class ClusterOptions(Options):
    """How to reach a Ray cluster, and what one of its workers may take."""

    address: str | None = Field(
        None,
        description="a running Ray cluster, HOST:PORT or auto; null: that of RAY_ADDRESS, else one of this computer alone",
    )
    timeout_s: float | None = Field(
        None, gt=0, description="an evaluation without an answer for so long counts as failed, seconds; null: no limit"
    )
    least_s: float = Field(
        0.0,
        ge=0,
        description="an evaluation takes at least so long, seconds: a simulator that stands for a real machine",
    )
    worker_cpus: float = Field(
        1.0, gt=0, description="CPUs that Ray keeps free for a worker; one that measures has its machine to itself"
    )


class RayOptions(ClusterOptions):
    """Options of backend `ray`."""

    inner: dict[str, Any] = Field(
        {"name": "simulator"},
        description="the backend that evaluates, {name: ..., OPTION: ...}; `parallel=ray` sets it to the run's backend",
    )
    workers: int | None = Field(
        None,
        ge=1,
        description="processes that evaluate; null: one for each CPU of the cluster, or each machine if they measure",
    )


class AsynchronousOptions(ClusterOptions):
    """Options of trainer `asynchronous`."""

    inner: dict[str, Any] | None = Field(
        None,
        description="the trainer whose updates are made, its name or {name: ..., OPTION: ...}; null: the policy's own",
    )
    controllers: int = Field(4, ge=1, description="processes that draw placements and compute gradients")
    workers: int = Field(4, ge=1, description="processes that evaluate placements, for each controller")

    @field_validator("inner", mode="before")
    @classmethod
    def _a_name_is_enough(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value
