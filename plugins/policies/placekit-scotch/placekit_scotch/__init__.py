"""Policies of Mirhoseini et al. 2017, section 4.2, that map the graph of groups onto the devices by the Scotch library."""

from __future__ import annotations

from placekit_partitioning import PartitionOptions
from pydantic import Field

from placekit_core import PolicyComponent, hookimpl


class ScotchOptions(PartitionOptions):
    """Options of policies `scotch` and `mincut`."""

    runs: int = Field(20, ge=1, le=10_000, description="mappings to make; the one with the cheapest transfers is taken")


MIRHOSEINI = "Mirhoseini et al. 2017, Device Placement Optimization with Reinforcement Learning, section 4.2"


@hookimpl
def placekit_policies() -> list[PolicyComponent]:
    return [
        PolicyComponent(
            name="scotch",
            summary="static mapping onto all devices, by their speeds and links (Scotch)",
            config=ScotchOptions,
            target="placekit_scotch.mapping:Scotch",
            paper=f"Pellegrini and Roman 1996, Scotch; baseline of {MIRHOSEINI}",
        ),
        PolicyComponent(
            name="mincut",
            summary="static mapping onto the GPUs, by their speeds and links (Scotch)",
            config=ScotchOptions,
            target="placekit_scotch.mapping:MinCut",
            paper=f"Pellegrini and Roman 1996, Scotch; baseline of {MIRHOSEINI}",
        ),
    ]
