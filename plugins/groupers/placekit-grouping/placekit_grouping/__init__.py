"""Groupers: `auto`, `none`, `colocation`, `module`, `chains`, `heavy_edge` and `metis`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from placekit_core import Component, Options, hookimpl


class MergingOptions(Options):
    """How small groups are merged: each into the neighbour with which it exchanges most bytes."""

    max_groups: int | None = Field(
        None,
        ge=1,
        description="merge the cheapest groups until there are at most this many, if device types and the order allow it",
    )


class ColocationOptions(MergingOptions):
    """Options of grouper `colocation`."""

    keep_branches: bool = Field(
        False,
        description="join an operation to its only consumer only if the consumer reads from it alone: branches stay apart",
    )


Pattern = Annotated[str, StringConstraints(pattern=r"^[^.]+(\.[^.]+)*$")]


class ModuleOptions(MergingOptions):
    """Options of grouper `module`."""

    blocks: tuple[Pattern, ...] = Field(
        (),
        description="patterns of module paths: a group per call of a matching module, with everything inside it (the longest"
        " match counts); `*` is any text without dots, `**` any number of parts: `encoder.layers.*`, `**.attention`",
    )
    depth: int | None = Field(
        None,
        ge=1,
        description="cut module paths that no block matches after this many parts: with 1, `encoder.layers.3.attn` is `encoder`",
    )


class MetisOptions(MergingOptions):
    """Options of grouper `metis`."""

    max_groups: int = Field(
        128,
        ge=1,
        description="k, the number of groups: fewer if there are fewer forward operations, more if device types and the order"
        " force it",
    )


@hookimpl
def placekit_groupers() -> list[Component]:
    return [
        Component(
            name="auto",
            summary="one group per layer, for networks of repeated layers (decoders, encoders); else like `none`",
            config=Options,
            target="placekit_grouping.auto:AutoGrouper",
        ),
        Component(
            name="none",
            summary="one group per operation, or per set of operations that must share a device",
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
        Component(
            name="chains",
            summary="operations in a line, each the only consumer of the one before and without other inputs",
            config=MergingOptions,
            target="placekit_grouping.groupers:ChainsGrouper",
        ),
        Component(
            name="heavy_edge",
            summary="merges operations that exchange most bytes first, while groups are small enough",
            config=MergingOptions,
            target="placekit_grouping.groupers:HeavyEdgeGrouper",
        ),
        Component(
            name="metis",
            summary="k groups of similar cost: heavy-edge matching, level by level",
            config=MetisOptions,
            target="placekit_grouping.groupers:MetisGrouper",
            paper="Karypis & Kumar 1998, A Fast and High Quality Multilevel Scheme for Partitioning Irregular Graphs, §3.1",
        ),
    ]
