"""The policy `metis`: the METIS library divides the graph of groups into parts in proportion to the devices' speeds."""

from __future__ import annotations

from placekit_partitioning import PartitionOptions
from pydantic import Field

from placekit_core import PolicyComponent, hookimpl


class MetisOptions(PartitionOptions):
    """Options of policy `metis`."""

    cpu: bool = Field(False, description="make parts for the CPUs, too; false: they run only what no GPU may run")
    cuts: int = Field(20, ge=1, le=10_000, description="partitions to make; the one with the smallest cut is taken")


@hookimpl
def placekit_policies() -> list[PolicyComponent]:
    return [
        PolicyComponent(
            name="metis",
            summary="k-way partition over the GPUs, by their speeds (METIS)",
            config=MetisOptions,
            target="placekit_metis.partition:Metis",
            paper="Karypis and Kumar 1998, Multilevel k-way Partitioning; baseline of Post (Gao, Chen and Li, NeurIPS 2018)",
        )
    ]
