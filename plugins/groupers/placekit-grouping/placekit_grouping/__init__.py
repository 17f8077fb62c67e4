"""Groupers: `none`, `colocation` and `module`."""

from __future__ import annotations

from pydantic import Field

from placekit_core.hookspecs import Component, hookimpl
from placekit_core.interfaces import Options


class MergingOptions(Options):
    """How small groups are merged: each into the neighbour with which it exchanges most bytes."""

    max_groups: int | None = Field(
        None,
        ge=1,
        description="merge the cheapest groups until there are at most this many, as far as device types and order allow",
    )
    min_share: float = Field(
        0.0, ge=0, le=1, description="merge groups that cost less than this share of the whole graph"
    )


class ColocationOptions(MergingOptions):
    """Options of grouper `colocation`."""

    keep_branches: bool = Field(
        False,
        description="join an operation to its only consumer only where that reads from it alone: branches stay apart",
    )


class ModuleOptions(MergingOptions):
    """Options of grouper `module`."""

    depth: int | None = Field(
        None, ge=1, description="cut module paths after so many parts: `encoder.layers.3.attn` is `encoder` at 1"
    )


@hookimpl
def placekit_groupers() -> list[Component]:
    return [
        Component(
            name="none",
            summary="every operation on its own, but for those that must share a device",
            config=Options,
            target="placekit_grouping.groupers:NoGrouper",
        ),
        Component(
            name="colocation",
            summary="operations join their only consumer, gradients their forward operation, updates their parameter",
            config=ColocationOptions,
            target="placekit_grouping.groupers:ColocationGrouper",
            paper="Mirhoseini et al. 2017, Device Placement Optimization with Reinforcement Learning, §3.3",
        ),
        Component(
            name="module",
            summary="one group per call of a module of the network",
            config=ModuleOptions,
            target="placekit_grouping.groupers:ModuleGrouper",
        ),
    ]
