"""Library: the bytes that groups exchange, memory repair, and a base class of policies that partition the graph."""

from __future__ import annotations

from pydantic import Field

from placekit_core import Options


class PartitionOptions(Options):
    """Options of every policy that partitions."""

    imbalance: float = Field(
        0.05, gt=0, le=1, description="how much more than its share of the work a device may get: 0.05 is 5%"
    )
    repair: bool = Field(
        True, description="move groups off devices whose memory is overfull; false: leave the parts as they are"
    )
