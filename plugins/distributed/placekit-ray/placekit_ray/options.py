"""Options of trainer `asynchronous` and backend `ray`."""

from __future__ import annotations

from typing import Any

from pydantic import Field, field_validator

from placekit_core import Options


class ClusterOptions(Options):
    """How to reach a Ray cluster, and how its workers evaluate."""

    address: str | None = Field(
        None,
        description="a running Ray cluster, HOST:PORT or auto; null: RAY_ADDRESS, else a new one on this computer",
    )
    timeout_s: float | None = Field(
        None, gt=0, description="seconds after which an evaluation without an answer counts as failed; null: no limit"
    )
    least_s: float = Field(
        0.0,
        ge=0,
        description="least seconds of an evaluation: lets a simulator behave like a real machine",
    )
    worker_cpus: float = Field(1.0, gt=0, description="CPUs that Ray reserves for each worker that simulates")


class RayOptions(ClusterOptions):
    """Options of backend `ray`."""

    inner: dict[str, Any] = Field(
        {"name": "simulator"},
        description="the backend that evaluates, {name: ..., OPTION: ...}; `parallel=ray` sets it to the run's backend",
    )
    workers: int | None = Field(
        None,
        ge=1,
        description="number of worker processes; null: one per CPU of the cluster, or one per machine if they measure",
    )


class AsynchronousOptions(ClusterOptions):
    """Options of trainer `asynchronous`."""

    inner: dict[str, Any] | None = Field(
        None,
        description="the trainer that computes the updates: its name, or {name: ..., OPTION: ...}; null: the policy's own",
    )
    controllers: int = Field(4, ge=1, description="number of processes that draw placements and compute gradients")
    workers: int = Field(4, ge=1, description="number of worker processes of each controller")

    @field_validator("inner", mode="before")
    @classmethod
    def _a_name_is_enough(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value
