"""The arrays that the compiled episodes work on."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

PAPER = 5
FEATURES = 9
"""Features of a device. The first five are those of appendix D.2: load, predecessors' computation on it, earliest start and
latest end of the predecessors on it, earliest start of the operation. Beyond the paper: the operation's seconds on
the device, the seconds of the transfers that it needs there, the seconds of transfers that its readers save because their other
inputs are there, and the number of operations of its kind there."""
STATIC = ("computation", "received", "sent", "t_level", "b_level")
"""Static features of an operation (appendix D.1)."""
WEIGHTS = FEATURES + len(STATIC)
"""Linear weights that an episode may have: of the features of devices, then of those of operations."""
SLOPE = np.float32(0.1)  # of LeakyReLU
# exploring is uniform; by the networks' probabilities; or another episode is followed
GREEDY, SAMPLE, NEAR_BEST = 0, 1, 2
NEAR = 1e-9  # values that differ by less, relatively, are ties

Floats = NDArray[np.float32]


class OutputArrays(NamedTuple):
    """The networks' outputs for a problem. Shapes: n operations, h hidden units."""

    score: Floats  # [n] of SEL
    own: Floats  # [n, h]
    sent: Floats  # [n, h]
    device: Floats  # [FEATURES, h]
    out: Floats  # [h]
    bias: Floats  # [1]


class Setting(NamedTuple):
    """The inputs of episodes besides the networks."""

    cost: NDArray[np.float64]  # [n] mean seconds over devices, over `scale`
    level: NDArray[np.float64]  # [n] b-levels, by which the teacher selects
    kernel: NDArray[np.bool_]  # [n] whether the operation is a kernel, not a source
    kind: NDArray[np.int64]  # [n] equal for operations with equal static features
    static: Floats  # [n, 5] static features; 0 of sources
    seen: NDArray[np.bool_]  # [FEATURES] whether PLC sees the feature
    scale: float  # seconds that times are divided by
    per_byte: float  # seconds per byte of a transfer, mean over the links, over `scale`
    learned_sel: bool
    learned_plc: bool


class Episode(NamedTuple):
    """One episode of T steps, to be filled."""

    op: NDArray[np.int64]  # [T] kernel of each step
    device: NDArray[np.int64]  # [T]
    drawn: NDArray[np.bool_]  # [T, 2] whether SEL and PLC decided, not the episode that is followed
    weights: Floats  # [WEIGHTS] of features added to the networks' outputs, see `Doppler`
    noisy: NDArray[np.bool_]  # [] whether `weights` were drawn
    label_op: NDArray[np.int64]  # [T] target of gradients: `op`, or the operation that the teacher would select
    label_device: NDArray[np.int64]  # [T] likewise: `device`, or the device where the teacher would place `op`
    features: Floats  # [T, D, FEATURES]
    may: NDArray[np.bool_]  # [T, D] devices that the kernel may go to
    log_prob: NDArray[np.float64]  # [T]
    entropy: NDArray[np.float64]  # [T]
    group_device: NDArray[np.int64]  # [g]

    @classmethod
    def several(cls, n: int, steps: int, devices: int, groups: int) -> Episode:
        """`n` episodes, to be filled: every array has a leading dimension of episodes."""
        return cls(
            op=np.zeros((n, steps), np.int64),
            device=np.zeros((n, steps), np.int64),
            drawn=np.ones((n, steps, 2), np.bool_),
            weights=np.zeros((n, WEIGHTS), np.float32),
            noisy=np.zeros(n, np.bool_),
            label_op=np.zeros((n, steps), np.int64),
            label_device=np.zeros((n, steps), np.int64),
            features=np.zeros((n, steps, devices, FEATURES), np.float32),
            may=np.zeros((n, steps, devices), np.bool_),
            log_prob=np.zeros((n, steps)),
            entropy=np.zeros((n, steps)),
            group_device=np.zeros((n, groups), np.int64),
        )


class Follow(NamedTuple):
    """Another episode, to be followed where chance does not decide."""

    rank: NDArray[np.int64]  # [n] the candidate of lowest rank is selected
    device: NDArray[np.int64]  # [n]


class Work(NamedTuple):
    """Working memory of one thread."""

    candidates: NDArray[np.int64]  # [n]
    place: NDArray[np.int64]  # [n] index of each operation in `candidates`
    missing: NDArray[np.int64]  # [n]
    probability: NDArray[np.float64]  # [n]
    load: NDArray[np.float64]  # [D]
    score: Floats  # [n] of SEL, with the episode's weights
    same_kind: NDArray[np.int64]  # [n, D] operations of each kind on each device
    ready: NDArray[np.float64]  # [D]
    start: NDArray[np.float64]  # [D]
    logit: NDArray[np.float64]  # [D]
    soonest: NDArray[np.bool_]  # [D] devices of earliest start and, among these, earliest finish
    total: Floats  # [D, h] sums of what was sent to each device
    hidden: Floats  # [D, h]
    back: Floats  # [D, h]
    random: NDArray[np.uint64]  # [1]

    @classmethod
    def zeros(cls, n: int, devices: int, hidden: int) -> Work:
        """For n operations."""
        return cls(
            candidates=np.zeros(n, np.int64),
            place=np.zeros(n, np.int64),
            missing=np.zeros(n, np.int64),
            probability=np.zeros(n),
            load=np.zeros(devices),
            score=np.zeros(n, np.float32),
            same_kind=np.zeros((n, devices), np.int64),
            ready=np.zeros(devices),
            start=np.zeros(devices),
            logit=np.zeros(devices),
            soonest=np.zeros(devices, np.bool_),
            total=np.zeros((devices, hidden), np.float32),
            hidden=np.zeros((devices, hidden), np.float32),
            back=np.zeros((devices, hidden), np.float32),
            random=np.zeros(1, np.uint64),
        )


class Gradient(NamedTuple):
    """Sums of gradients with respect to the fields of `OutputArrays`."""

    score: NDArray[np.float64]
    own: Floats
    sent: Floats
    device: Floats
    out: Floats
    bias: Floats

    @classmethod
    def zeros(cls, n: int, hidden: int) -> Gradient:
        """For n operations."""
        return cls(
            score=np.zeros(n),
            own=np.zeros((n, hidden), np.float32),
            sent=np.zeros((n, hidden), np.float32),
            device=np.zeros((FEATURES, hidden), np.float32),
            out=np.zeros(hidden, np.float32),
            bias=np.zeros(1, np.float32),
        )
