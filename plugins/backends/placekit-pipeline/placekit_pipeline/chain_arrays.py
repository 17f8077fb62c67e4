"""The arrays that the compiled loops of policy `chain` work on; importing them compiles nothing.

Which devices a split uses is a number in mixed radix, the *set*: so many of the first class, so many of the second, ... Set 0
is empty, the last one holds all devices.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray

SUM, MAX, BACK, WAIT = range(4)  # tables: least sum, least maximum, least forward and back, least `_wait`
CLOSE = 1e-12  # a split that is better by less than this is not better


class Table(NamedTuple):
    """The figures of `Segments` in compiled form; i prefixes, s segments, K classes, u sets, D devices.

    Attributes:
        numbers: kind, micro-batches, stages p of the splits that are searched.
        ptr, after: segments of each prefix.
        seconds, passing, ahead, update: [s, K].
        fixed_bytes, saved_bytes: [s].
        flight, room: [D + 1], [K].
        hop_s, queue_s: [i, A, A], A = K or 1.
        radix: [K] what one device more of each class adds to the number of a set.
        many: [K] devices of each class.
        of_set: [u, K] devices of each class in each set; `size`: [u] their sum.
        class_ptr, device: devices of each class, in compressed rows.
        of_group: [g] block of each group.
        mask: [i, b] blocks of each prefix.
    """

    numbers: NDArray[np.int64]
    ptr: NDArray[np.int64]
    after: NDArray[np.int64]
    seconds: Annotated[NDArray[np.float64], 2]
    passing: Annotated[NDArray[np.float64], 2]
    ahead: Annotated[NDArray[np.float64], 2]
    update: Annotated[NDArray[np.float64], 2]
    fixed_bytes: NDArray[np.float64]
    saved_bytes: NDArray[np.float64]
    flight: NDArray[np.int64]
    room: NDArray[np.float64]
    hop_s: Annotated[NDArray[np.float64], 3]
    queue_s: Annotated[NDArray[np.float64], 3]
    radix: NDArray[np.int64]
    many: NDArray[np.int64]
    of_set: Annotated[NDArray[np.int64], 2]
    size: NDArray[np.int64]
    class_ptr: NDArray[np.int64]
    device: NDArray[np.int64]
    of_group: NDArray[np.int64]
    mask: Annotated[NDArray[np.bool_], 2]


class Found(NamedTuple):
    """The best split so far; changes in place.

    Attributes:
        value: [1] its seconds.
        device: [g] its placement.
        counts: [3] evaluations made, partial splits visited, whether the search ended early.
        total: [1] sum of the values evaluated, seconds; `failing`: [1] what one without a value counts there.
    """

    value: NDArray[np.float64]
    device: NDArray[np.int16]
    counts: NDArray[np.int64]
    total: NDArray[np.float64]
    failing: NDArray[np.float64]
