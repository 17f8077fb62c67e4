"""The arrays that the compiled episodes work on.

Shapes: g groups, D devices that the network has room for, H numbers in an embedding, K rounds of messages, T steps of an
episode. Direction 0 passes messages from the first groups to the last, direction 1 the other way.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

SLOPE = np.float32(0.1)  # of LeakyReLU
STATIC = 2
"""Features of a group that stay: its run time and the bytes of its outputs."""
FLAGS = 2
"""Features of a group besides these and its device: whether it is the current one, whether it was visited."""
SETS = 3
"""Groups that reach the current one, groups that it reaches, and the others."""

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]


class Weights(NamedTuple):
    """The network's parameters, or gradients by them. A layer is `x @ weight + bias`."""

    embed: Floats  # [STATIC + D + FLAGS, H]
    embed_bias: Floats  # [H]
    message: Floats  # [2, 4, H, H] of each direction: f's two layers, g's two layers
    message_bias: Floats  # [2, 4, H]
    pool_in: Floats  # [3, 2H, H] of each set: l's first layer
    pool: Floats  # [3, 3, H, H] of each set: l's second layer, h's two layers
    pool_bias: Floats  # [3, 4, H] of all four
    head_in: Floats  # [5H, 10H]
    head_in_bias: Floats  # [10H]
    head: Floats  # [10H, 5H]
    head_bias: Floats  # [5H]
    head_out: Floats  # [5H, D]
    head_out_bias: Floats  # [D]

    @classmethod
    def shapes(cls, size: int, devices: int) -> dict[str, tuple[int, ...]]:
        """The shape of each parameter."""
        h, d = size, devices
        return {
            "embed": (STATIC + d + FLAGS, h), "embed_bias": (h,), "message": (2, 4, h, h), "message_bias": (2, 4, h),
            "pool_in": (SETS, 2 * h, h), "pool": (SETS, 3, h, h), "pool_bias": (SETS, 4, h),
            "head_in": (5 * h, 10 * h), "head_in_bias": (10 * h,), "head": (10 * h, 5 * h), "head_bias": (5 * h,),
            "head_out": (5 * h, d), "head_out_bias": (d,),
        }  # fmt: skip

    @classmethod
    def zeros(cls, size: int, devices: int) -> Weights:
        """All zero, for gradients."""
        return cls(**{name: np.zeros(shape, np.float32) for name, shape in cls.shapes(size, devices).items()})


class Groups(NamedTuple):
    """What the network sees of a problem."""

    pointer: Ints  # [2, g + 1] where the neighbours of each group begin in `neighbour`
    neighbour: Ints  # [2, e] groups that send messages to each group, in each direction
    before: NDArray[np.uint64]  # [g, words] bit u of row v: u reaches v
    after: NDArray[np.uint64]  # [g, words] bit u of row v: v reaches u
    share: Floats  # [2, g] factor on the sum of each group's messages
    pooled_share: float  # factor on the sums over sets of groups
    static: Floats  # [g, STATIC]
    allowed: NDArray[np.bool_]  # [g, D]


class Rules(NamedTuple):
    """Options of the network, for compiled code."""

    residual: bool  # each round adds the first embedding
    whole: bool  # one sum over all groups is all that the head sees: the simple aggregator


class Episodes(NamedTuple):
    """n episodes, or one of them without the first dimension."""

    start: NDArray[np.int16]  # [n, g]
    order: NDArray[np.int32]  # [n, T] group of each step
    draw: NDArray[np.float64]  # [n, T] uniform in [0, 1), decides what is drawn
    device: NDArray[np.int16]  # [n, T]
    log_p: Floats  # [n, T, D] -inf for devices that are not allowed


class Work(NamedTuple):
    """Working memory of one thread.

    An embedding that changes gets a new row; the old row stays, and the way back to it. So gradients go through the
    history of an episode backwards, and each value's gradient is computed once, however many steps saw the value. The rows
    that a step computes for one round in one direction are a block: they do not depend on each other.
    """

    device: Ints  # [g] the placement
    visited: NDArray[np.bool_]  # [g]
    row: Ints  # [2, K + 1, g] the row of each embedding, after each round
    x: Floats  # [r, H] embeddings
    hidden_f: Floats  # [r, H]
    message: Floats  # [r, H] f's output
    total: Floats  # [r, H] sums of the messages received
    hidden_g: Floats  # [r, H]
    x_back: Floats  # [r, H] gradients
    message_back: Floats  # [r, H]
    owner: Ints  # [r] the row's group
    replaced: Ints  # [r] the row that each row replaced; -1: none
    input: Ints  # [r, 3] device, current, visited, in rows of round 0
    block: Ints  # [b, 4] first row, row after the last, direction, round
    pooled: Ints  # [3, g] the pooled row of each group, in each set; -1: none
    pooled_in: Floats  # [p, 2H] embeddings of both directions
    pooled_hidden: Floats  # [p, H]
    pooled_out: Floats  # [p, H] l's output
    pooled_back: Floats  # [p, H]
    pooled_owner: Ints  # [p]
    pooled_replaced: Ints  # [p]
    pooled_from: Ints  # [p, 2] the rows that it was computed from
    pooled_block: Ints  # [c, 3] first row, row after the last, set
    used: Ints  # [4] how many rows, blocks, pooled rows and pooled blocks are in use
    blocks_after: Ints  # [T, 2] how many blocks and pooled blocks there are after each step
    mark: Ints  # [g + 1] the pass in which each group was put on the list; the last entry is the present pass
    todo: Ints  # [2, g]
    everyone: Ints  # [g] 0 to g - 1
    changed: Ints  # [2] the group that was placed last, and the current one
    sums: Floats  # [3, T, H] of l's outputs
    pool_hidden: Floats  # [3, T, H]
    pool_out: Floats  # [3, T, H]
    seen: Floats  # [T, 5H] input of the head
    hidden: Floats  # [T, 10H]
    last: Floats  # [T, 5H]
    log_p: Floats  # [T, D]
    sums_back: Floats  # [3, T, H]
    seen_back: Floats  # [T, 5H]
    hidden_back: Floats  # [T, 10H]
    last_back: Floats  # [T, 5H]
    logit_back: Floats  # [T, D]
    small: Floats  # [2, max(g, T), H]
    wide: Floats  # [g, 2H]
    flat: Floats  # [50HH + 5HD] a product before it is added

    @classmethod
    def zeros(cls, g: int, devices: int, size: int, rounds: int, steps: int) -> Work:
        """With room for several times the rows of a whole graph."""
        r, p, h, d = ROOM * 2 * (rounds + 1) * g, ROOM * SETS * g, size, devices
        floats: dict[str, tuple[int, ...]] = {
            "x": (r, h), "hidden_f": (r, h), "message": (r, h), "total": (r, h), "hidden_g": (r, h), "x_back": (r, h),
            "message_back": (r, h), "pooled_in": (p, 2 * h), "pooled_hidden": (p, h), "pooled_out": (p, h),
            "pooled_back": (p, h), "sums": (SETS, steps, h), "pool_hidden": (SETS, steps, h), "pool_out": (SETS, steps, h),
            "seen": (steps, 5 * h), "hidden": (steps, 10 * h), "last": (steps, 5 * h), "log_p": (steps, d),
            "sums_back": (SETS, steps, h), "seen_back": (steps, 5 * h), "hidden_back": (steps, 10 * h),
            "last_back": (steps, 5 * h), "logit_back": (steps, d), "small": (2, max(g, steps), h), "wide": (g, 2 * h),
            "flat": (50 * h * h + 5 * h * d,),
        }  # fmt: skip
        integers: dict[str, tuple[int, ...]] = {
            "device": (g,), "row": (2, rounds + 1, g), "owner": (r,), "replaced": (r,), "input": (r, 3),
            "block": (2 * (rounds + 1) * steps, 4), "pooled": (SETS, g), "pooled_owner": (p,), "pooled_replaced": (p,),
            "pooled_from": (p, 2), "pooled_block": (SETS * steps, 3), "used": (4,), "blocks_after": (steps, 2),
            "mark": (g + 1,), "todo": (2, g), "changed": (2,),
        }  # fmt: skip
        arrays: dict[str, Any] = {name: np.zeros(shape, np.float32) for name, shape in floats.items()}
        arrays.update({name: np.zeros(shape, np.int64) for name, shape in integers.items()})
        return cls(visited=np.zeros(g, np.bool_), everyone=np.arange(g), **arrays)


ROOM = 6
"""Rows of working memory, in multiples of what a graph needs at once; when they are used up, the history starts anew."""
