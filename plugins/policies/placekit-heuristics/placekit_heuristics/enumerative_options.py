"""The component `enumerative`, and its options."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from placekit_core import Options, PolicyComponent


class EnumerativeOptions(Options):
    """Options of policy `enumerative`."""

    meta_operations: Literal["columns", "recovered"] = Field(
        "columns",
        description="take them from the graph's columns `meta_op` and `meta_role`, or from runs of equal operations",
    )
    samples: int = Field(1, ge=1, description="placements to make; if more than one, evaluate all and take the best")


COMPONENTS = [
    PolicyComponent(
        name="enumerative",
        summary="places meta-operations one by one, their shards on the devices with the least transfers",
        config=EnumerativeOptions,
        target="placekit_heuristics.enumerative:Enumerative",
        paper="Yao et al. 2026, Doppler: Dual-Policy Learning for Device Assignment in Asynchronous Dataflow Graphs, Appendix A",
    ),
]
