"""The arrays of a problem and of its episodes, which both networks share.

Shapes: g groups, D devices that the network has room for, T steps of an episode. Direction 0 passes messages from the first
groups to the last, direction 1 the other way.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

SLOPE = 0.1  # of LeakyReLU
STATIC = 2
"""Number of features of a group that do not change in an episode: its run time, and the bytes of its outputs."""

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]


class Groups(NamedTuple):
    """The groups of a problem: their neighbours, features and allowed devices."""

    pointer: Ints  # [2, g + 1] where the neighbours of each group begin in `neighbour`
    neighbour: Ints  # [2, e] groups that send messages to each group, in each direction
    before: NDArray[np.uint64]  # [g, words] bit u of row v: u reaches v
    after: NDArray[np.uint64]  # [g, words] bit u of row v: v reaches u
    share: Floats  # [2, g] factor on the sum of each group's messages
    pooled_share: float  # factor on the sums over sets of groups (option `sums`)
    static: Floats  # [g, STATIC]
    allowed: NDArray[np.bool_]  # [g, D]


class Rules(NamedTuple):
    """Options of the network."""

    residual: bool  # option `residual`: each round adds the first embedding
    whole: bool  # option `pooling=graph`: the head sees one sum over all groups instead of sums over sets


class Episodes(NamedTuple):
    """n episodes."""

    start: NDArray[np.int16]  # [n, g]
    order: NDArray[np.int32]  # [n, T] group of each step
    draw: NDArray[np.float64]  # [n, T] uniform random numbers in [0, 1) that decide which devices are drawn
    device: NDArray[np.int16]  # [n, T]
    log_p: Floats  # [n, T, D] -inf for devices that are not allowed
