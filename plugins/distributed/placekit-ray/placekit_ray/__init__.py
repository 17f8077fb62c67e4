"""Runs placekit on Ray clusters: backend `ray` and trainer `asynchronous`."""

from __future__ import annotations

import sys

from placekit_core import Component, hookimpl
from placekit_ray.options import AsynchronousOptions, RayOptions


@hookimpl
def placekit_trainers() -> list[Component]:
    return [
        Component(
            name="asynchronous",
            summary="controllers on many machines that share a policy through a parameter server",
            config=AsynchronousOptions,
            target="placekit_ray.asynchronous:Asynchronous",
            paper="Mirhoseini et al. 2017, Device Placement Optimization with Reinforcement Learning, section 3.4",
        )
    ]


@hookimpl
def placekit_backends() -> list[Component]:
    return [
        Component(
            name="ray",
            summary="evaluates on another backend, in processes of a Ray cluster",
            config=RayOptions,
            target="placekit_ray.backend:RayBackend",
        )
    ]


@hookimpl
def placekit_facts() -> dict[str, str | int | float | bool | None]:
    """The size of the Ray cluster that this process uses or RAY_ADDRESS names."""
    if "ray" not in sys.modules:
        return {}
    from placekit_ray.cluster import description

    return {"ray_cluster": text} if (text := description()) else {}
