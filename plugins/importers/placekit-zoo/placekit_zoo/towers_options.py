"""Data parallelism: options and component of `towers`; imports no torch."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from placekit_core import ImporterComponent, ImporterOptions


class TowersOptions(ImporterOptions):
    """Options of `towers`."""

    of: dict[str, Any] = Field(
        {"name": "inception_v3", "batch": 128},
        description="importer of the training step (`name`) and its options; `batch` is the total of all towers",
    )
    towers: int = Field(4, ge=2, description="replicas of the training step, each with an equal part of the batch")
    synchronous: bool = Field(
        True, description="average the gradients of all towers for one update; else each tower updates without waiting"
    )
    steps: int = Field(
        1, ge=1, description="training steps of every tower; divide a value by them for the value of one step"
    )


COMPONENTS = [
    ImporterComponent(
        name="towers",
        summary="data parallelism: the training step of another importer replicated, its batch divided",
        config=TowersOptions,
        target="placekit_zoo.towers:TowersImporter",
        paper="Mirhoseini et al. 2017, Device Placement Optimization with Reinforcement Learning",
    ),
]
