"""What the compiled episodes work on: arrays, and no code."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FEATURES = 6
"""Of a device (appendix D.2): load, predecessors' computation on it, earliest start and latest end of the predecessors on it,
earliest start of the operation, and beyond the paper the operation's seconds there, which tell unequal devices apart."""
SLOPE = np.float32(0.1)  # of LeakyReLU
GREEDY, SAMPLE = 0, 1
NEAR = 1e-9  # values that differ by less, relatively, are ties

Floats = NDArray[np.float32]


class Says(NamedTuple):
    """What the networks say of a problem. Shapes: n operations, h hidden units."""

    score: Floats  # [n] of SEL
    own: Floats  # [n, h]
    sent: Floats  # [n, h]
    device: Floats  # [FEATURES, h]
    out: Floats  # [h]
    bias: Floats  # [1]


class Setting(NamedTuple):
    """What episodes go by besides the networks."""

    cost: NDArray[np.float64]  # [n] mean seconds over devices, over `scale`
    level: NDArray[np.float64]  # [n] b-levels: what the teacher selects by
    kernel: NDArray[np.bool_]  # [n] whether it is no source
    scale: float  # seconds that times are divided by
    learned_sel: bool
    learned_plc: bool


class Episode(NamedTuple):
    """One episode of T steps, to be filled."""

    op: NDArray[np.int64]  # [T] kernel of each step
    device: NDArray[np.int64]  # [T]
    label_op: NDArray[np.int64]  # [T] what gradients lead to: the same, or what the teacher would select
    label_device: NDArray[np.int64]  # [T] and where it would place `op`
    features: Floats  # [T, D, FEATURES]
    may: NDArray[np.bool_]  # [T, D] devices that the kernel may go to
    log_prob: NDArray[np.float64]  # [T]
    entropy: NDArray[np.float64]  # [T]
    group_device: NDArray[np.int64]  # [g]


class Work(NamedTuple):
    """Space of one thread."""

    candidates: NDArray[np.int64]  # [n]
    place: NDArray[np.int64]  # [n] where each is in `candidates`
    missing: NDArray[np.int64]  # [n]
    probability: NDArray[np.float64]  # [n]
    load: NDArray[np.float64]  # [D]
    ready: NDArray[np.float64]  # [D]
    start: NDArray[np.float64]  # [D]
    logit: NDArray[np.float64]  # [D]
    soonest: NDArray[np.bool_]  # [D] devices of earliest start, of these of earliest finish
    total: Floats  # [D, h] sums of what was sent to each device
    hidden: Floats  # [D, h]
    back: Floats  # [D, h]
    random: NDArray[np.uint64]  # [1]


class Gradient(NamedTuple):
    """Of what `Says` holds, to be added to."""

    score: NDArray[np.float64]
    own: Floats
    sent: Floats
    device: Floats
    out: Floats
    bias: Floats
