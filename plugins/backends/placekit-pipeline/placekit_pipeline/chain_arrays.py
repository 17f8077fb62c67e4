"""The arrays that the compiled loops of policy `chain` work on; importing this module compiles nothing.

The loops number the *sets* of devices that a split may use: a number in mixed radix whose digits are the numbers of devices of
each class. Set 0 is empty, and the last set has all devices.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray

TOKEN, BUSIEST, FLOW, TRAIN = range(4)
"""How a bound follows from the segments of a split: their sum (`TOKEN`); the largest (`BUSIEST`); for M micro-batches that pass
through all, the sum plus M - 1 times the largest (`FLOW`); forward and back again: see `BACK`, `WAIT` (`TRAIN`)."""
# tables of `completions`: least sum, maximum, time until the last micro-batch is back, `_wait`
SUM, MAX, BACK, WAIT = range(4)
CLOSE = 1e-12  # relative improvements below this are rounding


class Table(NamedTuple):
    """The costs of segments: s segments between i prefixes of b blocks, on K classes of D devices; u sets of devices.

    Attributes:
        numbers: kind (`TOKEN`, `BUSIEST`, `FLOW` or `TRAIN`), micro-batches M, stages p of the splits to search.
        ptr, after: the segments that begin at each prefix, and the prefix where each ends.
        seconds: [s, K] seconds of a micro-batch; infinite where a device may not run the segment.
        passing: [s, K] seconds that a micro-batch spends in the segment (`TRAIN`: forward and back), without `hop_s`.
        ahead: [s, K] seconds of its forward pass (`TRAIN`); negative if stages do not wait for gradients.
        update: [s, K] seconds of the optimiser at the end of a step.
        fixed_bytes: [s] bytes that do not depend on the number of micro-batches in flight.
        saved_bytes: [s] further bytes for each micro-batch in flight.
        flight: [D + 1] micro-batches in flight in the q-th stage from the end.
        room: [K] memory of each device.
        hop_s: [i, A, A] least seconds of the messages from a segment that ends at a prefix to the next one, from class to
            class; A = 1 if all routes are equal, else K.
        queue_s: like `hop_s`, the least seconds for which the messages of each micro-batch occupy a channel.
        radix: [K] how much a device of each class adds to the number of a set.
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
    """The best split so far, updated in place.

    Attributes:
        value: [1] its seconds.
        device: [g] its placement.
        counts: [3] evaluations made, partial splits visited, whether the search ended early.
        total: [1] sum of all evaluated values, seconds; `failing`: [1] the seconds that it adds for one without a value.
    """

    value: NDArray[np.float64]
    device: NDArray[np.int16]
    counts: NDArray[np.int64]
    total: NDArray[np.float64]
    failing: NDArray[np.float64]
