"""The arrays that the compiled episodes work on.

Shapes: g groups, D devices that the network has room for, H numbers in an embedding, K rounds of messages, T steps of an
episode. Direction 0 passes messages from the first groups to the last, direction 1 the other way.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

SLOPE = np.float32(0.1)  # of LeakyReLU
STATIC = 2
"""Features of a group that stay: its run time and the bytes of its outputs."""
FLAGS = 2
"""Features of a group besides these and its device: whether it is the current one, whether it was visited."""
X, HIDDEN_F, F, SUM, HIDDEN_G = range(5)
"""Parts of a row of `Work.rows`: the embedding, the hidden layer and the output of f, the sum of messages, g's hidden layer."""
SETS = 3
"""Groups that reach the current one, groups that it reaches, and the others."""

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]


class Weights(NamedTuple):
    """The network's parameters; also their transposes, and gradients by them. A layer is `x @ weight + bias`."""

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

    def transposed(self) -> Weights:
        """The same with the last two axes of the matrices swapped."""
        return Weights(
            *(
                x if name.endswith("bias") else np.ascontiguousarray(x.swapaxes(-1, -2))
                for name, x in zip(self._fields, self, strict=True)
            )
        )


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
    history of an episode backwards, and each value's gradient is computed once, however many steps saw the value.
    """

    device: Ints  # [g] the placement
    visited: NDArray[np.bool_]  # [g]
    row: Ints  # [2, K + 1, g] the row of each embedding, after each round
    rows: Floats  # [r, 5, H]
    back: Floats  # [r, 2, H] gradients by a row's `X` and `F`
    replaced: Ints  # [r] the row that each row replaced; -1: none
    which: Ints  # [r] index of each row in `row`
    input: Ints  # [r, 3] device, current, visited, in rows of round 0
    pooled: Ints  # [3, g] the pooled row of each group, in each set; -1: none
    pooled_rows: Floats  # [r, 2, H] hidden layer and output of l
    pooled_back: Floats  # [r, H]
    pooled_replaced: Ints  # [r]
    pooled_which: Ints  # [r]
    pooled_from: Ints  # [r, 2] the rows that it was computed from
    used: Ints  # [2] number of rows and of pooled rows in use
    mark: Ints  # [g + 1] the last one counts
    todo: Ints  # [2, g]
    everyone: Ints  # [g] 0 to g - 1
    changed: Ints  # [2] the group that was placed last, and the current one
    rows_after: Ints  # [T] `used` after each step
    pooled_after: Ints  # [T]
    total: Floats  # [T, 3, H] sums of l
    pool_hidden: Floats  # [T, 3, H]
    seen: Floats  # [T, 5H] input of the head
    hidden: Floats  # [T, 10H]
    last: Floats  # [T, 5H]
    log_p: Floats  # [T, D]
    logit_back: Floats  # [D]
    last_back: Floats  # [5H]
    hidden_back: Floats  # [10H]
    seen_back: Floats  # [5H]
    total_back: Floats  # [3, H]
    small: Floats  # [2, H]
    wide: Floats  # [2, 2H]

    @classmethod
    def zeros(cls, g: int, devices: int, size: int, rounds: int, steps: int) -> Work:
        """With room for several times the rows of a whole graph."""
        whole = 2 * (rounds + 1) * g
        r, p, h = ROOM * whole, ROOM * SETS * g, size
        f, i = np.float32, np.int64
        return cls(
            device=np.zeros(g, i),
            visited=np.zeros(g, np.bool_),
            row=np.zeros((2, rounds + 1, g), i),
            rows=np.zeros((r, 5, h), f),
            back=np.zeros((r, 2, h), f),
            replaced=np.zeros(r, i),
            which=np.zeros(r, i),
            input=np.zeros((r, 3), i),
            pooled=np.zeros((SETS, g), i),
            pooled_rows=np.zeros((p, 2, h), f),
            pooled_back=np.zeros((p, h), f),
            pooled_replaced=np.zeros(p, i),
            pooled_which=np.zeros(p, i),
            pooled_from=np.zeros((p, 2), i),
            used=np.zeros(2, i),
            mark=np.zeros(g + 1, i),
            todo=np.zeros((2, g), i),
            everyone=np.arange(g),
            changed=np.zeros(2, i),
            rows_after=np.zeros(steps, i),
            pooled_after=np.zeros(steps, i),
            total=np.zeros((steps, SETS, h), f),
            pool_hidden=np.zeros((steps, SETS, h), f),
            seen=np.zeros((steps, 5 * h), f),
            hidden=np.zeros((steps, 10 * h), f),
            last=np.zeros((steps, 5 * h), f),
            log_p=np.zeros((steps, devices), f),
            logit_back=np.zeros(devices, f),
            last_back=np.zeros(5 * h, f),
            hidden_back=np.zeros(10 * h, f),
            seen_back=np.zeros(5 * h, f),
            total_back=np.zeros((SETS, h), f),
            small=np.zeros((2, h), f),
            wide=np.zeros((2, 2 * h), f),
        )


ROOM = 6
"""Rows of working memory, in multiples of what a graph needs at once; when they are used up, the history starts anew."""
