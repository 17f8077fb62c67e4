"""The component `enumerative`, and its options."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from placekit_core import Options, PolicyComponent


class EnumerativeOptions(Options):
    """Options of policy `enumerative`."""

    meta_operations: Literal["columns", "recovered"] = Field(
        "columns",
        description="their source: the graph's columns `meta_op` and `meta_role`, or runs of equal operations",
    )
    assignment: Literal["auto", "enumerate", "linear", "sample"] = Field(
        "auto", description="how the best assignment of shards to devices is found"
    )
    permutations: int = Field(1000, ge=1, description="how many random assignments `sample` compares")
    samples: int = Field(
        1, ge=1, description="placements to make; if more than one, they are evaluated and the best is taken"
    )
    priority: Literal["b_level", "meta_op", "none"] = Field(
        "b_level",
        description="what runs first: the longest path to an exit, the earlier meta-operation, or no preference",
    )


COMPONENTS = [
    PolicyComponent(
        name="enumerative",
        summary="meta-operations one by one, their shards on the devices to which the least has to be sent",
        config=EnumerativeOptions,
        target="placekit_heuristics.enumerative:Enumerative",
        paper="Yao et al. 2026, Doppler: Dual-Policy Learning for Device Assignment in Asynchronous Dataflow Graphs, Appendix A",
    ),
]
