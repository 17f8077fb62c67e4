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
    samples: int = Field(
        1, ge=1, description="placements to make; if more than one, they are evaluated and the best is taken"
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
