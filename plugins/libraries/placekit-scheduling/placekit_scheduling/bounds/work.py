"""Work over the capacity of the devices: the linear program of `makespan.work_bound`, solved by cutting planes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

STEPS = 100  # most cutting planes
TOLERANCE = 1e-6  # share of the bound at which the search ends
STEEPEST = 1e3  # highest price of memory: seconds of all work per share of all persistent bytes


@dataclass(frozen=True)
class Prices:
    """Multipliers of the program, and the bound that they prove.

    Attributes:
        time: [K] price of a second on each kind of device, >= 0; multiplied by the streams, they sum to 1.
        memory: [K] seconds per byte on each kind of device, >= 0.
        bound_s: the bound.
    """

    time: NDArray[np.float64]
    memory: NDArray[np.float64]
    bound_s: float


def best_prices(
    seconds: NDArray[np.float64], streams: NDArray[np.float64], bytes_: NDArray[np.float64], room: NDArray[np.float64]
) -> Prices:
    """Prices of a high bound, by Kelley's cutting planes (1960). The bound is evaluated at the prices, not at the solver's.

    For two kinds of devices that each have memory for everything, a sort finds the best prices.

    Args:
        seconds: [g, K] of each group on each kind of device; inf where it may not run.
        streams: [K] of all devices of each kind.
        bytes_: [g] persistent bytes of each group.
        room: [K] bytes of memory of all devices of each kind.
    """
    kinds = len(streams)
    whole = max(float(bytes_.sum()), 1.0)
    size, room = bytes_ / whole, np.minimum(room / whole, 1.0)
    time, memory = np.full(kinds, 1 / streams.sum()), np.zeros(kinds)
    best = Prices(time, memory, 0.0)
    cuts: list[NDArray[np.float64]] = []
    rows = np.arange(len(seconds))
    quick = kinds == 2 and len(seconds) > 0 and bool((room >= 1).all())  # no price of memory can raise the bound
    for _ in range(2 if quick else STEPS if kinds > 1 else 1):
        # a price of 0 times inf, where a group may not run, would not be a number
        priced = np.where(np.isfinite(seconds), seconds, 0.0) * time + size[:, None] * memory
        priced[~np.isfinite(seconds)] = np.inf
        choice = priced.argmin(axis=1)
        value = float(priced[rows, choice].sum() - memory @ room)
        if value > best.bound_s * (1 + TOLERANCE if quick else 1):
            best = Prices(time, memory / whole, value)
        load = np.bincount(choice, seconds[rows, choice], kinds)
        cuts.append(np.concatenate([load, np.bincount(choice, size, kinds) - room]))
        if kinds == 1 or load.sum() == 0:
            break
        if quick:
            time = _balanced(seconds, streams)
            continue
        top, time, memory = _highest(np.asarray(cuts), streams)
        if top <= best.bound_s * (1 + TOLERANCE):
            break
    return best


def _balanced(seconds: NDArray[np.float64], streams: NDArray[np.float64]) -> NDArray[np.float64]:
    """The best prices [2] of time on two kinds of devices without limits of memory.

    A price x for all streams of the first kind leaves 1 - x for the second. Each group takes the cheaper kind: the first one
    while x is below a point of its own. The sum is concave and piecewise linear in x, so it is highest at one of these points
    or between two of them. In the second case take the prices closest to equal ones, because other bounds use them as well.
    """
    first, second = np.where(np.isfinite(seconds), seconds, 0.0).T / streams[:, None]
    point = np.where(np.isfinite(seconds[:, 1]), second / np.maximum(first + second, np.finfo(float).tiny), 1.0)
    point[np.isinf(seconds[:, 0])] = 0.0
    order = point.argsort(kind="stable")
    slope = first.sum() - (first + second)[order].cumsum()  # right of each point
    flat = 1e-12 * (first + second).sum()
    low, high = (point[order[min(int((slope > s).sum()), len(order) - 1)]] for s in (flat, -flat))
    x = float(np.clip(streams[0] / streams.sum(), low, high))
    return np.array([x, 1 - x]) / streams


def _highest(
    cuts: NDArray[np.float64], streams: NDArray[np.float64]
) -> tuple[float, NDArray[np.float64], NDArray[np.float64]]:
    """Maximize the lowest of the cuts [c, 2 K]. Returns its value and the prices: (value, time [K], memory [K])."""
    from scipy.optimize import linprog

    kinds = len(streams)
    unit = float(cuts[:, :kinds].sum(axis=1).max())  # seconds: the solver's tolerances are absolute
    scaled = cuts / np.concatenate([np.full(kinds, unit), np.ones(kinds)])
    rows = np.column_stack([np.ones(len(cuts)), -scaled])  # variables: top / unit, time, memory / unit
    whole = np.concatenate([[0.0], streams / streams.sum(), np.zeros(kinds)])
    limits = [(None, None), *[(0, None)] * kinds, *[(0, STEEPEST)] * kinds]
    answer = linprog(
        np.concatenate([[-1.0], np.zeros(2 * kinds)]), rows, np.zeros(len(cuts)), whole[None], [1.0], limits
    )
    if answer.x is None:  # no better prices
        return -np.inf, np.zeros(kinds), np.zeros(kinds)
    time, memory = np.maximum(answer.x[1 : kinds + 1], 0.0), np.maximum(answer.x[kinds + 1 :], 0.0)
    total = float(time @ streams)
    return unit * answer.x[0] / streams.sum(), time / total, memory * unit / streams.sum()


def packing(values: NDArray[np.float64], bins: int) -> float:
    """A lower bound on the fullest bin: for the best k, the sum of the k + 1 least of the k * bins + 1 largest values."""
    falling = np.sort(values)[::-1]
    total = np.concatenate([[0.0], falling.cumsum()])
    k = np.arange((len(falling) + bins - 1) // bins)
    return float((total[k * bins + 1] - total[k * bins - k]).max(initial=0.0))
