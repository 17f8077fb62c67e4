"""The compiled loop of local searches: propose a move, evaluate it, keep it or undo it."""
# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba import types
from numpy.typing import NDArray
from placekit_scheduling import kernel_signature
from placekit_scheduling.fields import numba_type
from placekit_scheduling.jit import counted_inner, njit

from placekit_search.moves import DEVICES, PATH, PRIORITIES, TASK, TO, WHY, Log, propose, undo
from placekit_search.neighbourhood import Flow, Neighbourhood
from placekit_search.random_numbers import uniform

CURRENT, BEST, FITS, EXCESS, PRICE_S = range(5)  # entries of Position.energy
STEP = 0.01  # added to any excess: otherwise a search settles a few bytes over capacity
PRICE = 20.0  # first and highest price of a device's memory over capacity, as a multiple of the value
DEARER, CHEAPER = 1.02, 0.98  # factors of the price
LEAST = 10.0  # least cost of the smallest excess, in temperatures: otherwise a hot search drifts over capacity
LOWEST = 0.01  # lowest price, as a multiple of the best value: a lower one would take long to rise again
FAILURE = 9.0  # excess of a placement that has no value, in shares of devices
TRIES = 10  # most proposals for one evaluation, because a move may change nothing


@counted_inner
def _set_price(energy: Any, price: Any) -> None:
    """Change the price of memory over capacity, and with it the energy of the current placement."""
    energy[CURRENT] += (price - energy[PRICE_S]) * energy[EXCESS]
    energy[PRICE_S] = price


@njit(cache=True, nogil=True)
def step(state: Any, energy: Any, value: Any, over: Any, temperature: Any) -> Any:
    """Whether to keep a move to a placement of `value` seconds that is `over` capacity. Updates `energy` (see `Position`).

    The Metropolis rule on value + price * over: better placements are always kept, worse ones with probability
    exp(-difference / temperature), and none at temperature 0. The first placement that fits is always kept, and so is every
    new best one. After the first placement that fits, the price changes (strategic oscillation: Glover 1989). It falls when a
    move to a placement over capacity is refused, and rises with every step over capacity: the way from one placement that
    fits to a better one may pass through placements that do not.
    """
    known = energy[FITS] > 0
    if known:
        _set_price(energy, max(energy[PRICE_S], LEAST * temperature / STEP, LOWEST * energy[BEST]))
    new = value + energy[PRICE_S] * over
    if over == 0 and not known:
        energy[CURRENT] = energy[BEST] = energy[PRICE_S] = value
        energy[FITS], energy[EXCESS] = 1.0, 0.0
        return True
    kept = new <= energy[CURRENT] or (
        temperature > 0 and uniform(state) < math.exp((energy[CURRENT] - new) / temperature)
    )
    if over == 0 and new < energy[BEST]:
        kept = True
    if kept:
        energy[CURRENT], energy[EXCESS] = new, over
        if over == 0 or not known:
            energy[BEST] = min(energy[BEST], new)
    if known and (energy[EXCESS] > 0 or (over > 0 and not kept)):
        _set_price(energy, energy[PRICE_S] * (DEARER if energy[EXCESS] > 0 else CHEAPER))
    return kept


@njit(cache=True, nogil=True)
def lost(energy: Any, temperature: Any) -> Any:
    """Whether no price leads back to placements that fit; the search then continues from its best placement."""
    limit = max(PRICE * energy[BEST], 2 * LEAST * temperature / STEP)
    return energy[FITS] > 0 and energy[EXCESS] > 0 and energy[PRICE_S] > limit


@njit(cache=True, nogil=True)
def copy_placement(device: Any, priority: Any, to_device: Any, to_priority: Any) -> None:
    """Copy a placement. Assignments to slices would take seconds to compile."""
    for group in range(len(device)):
        to_device[group] = device[group]
    for group in range(len(priority)):
        to_priority[group] = priority[group]


@njit(cache=True, nogil=True)
def go_back(at: Any) -> None:
    """Go back to the best placement."""
    copy_placement(at.best_device, at.best_priority, at.device, at.priority)
    at.energy[CURRENT], at.energy[EXCESS], at.energy[PRICE_S] = at.energy[BEST], 0.0, at.energy[BEST]


@njit(cache=True, nogil=True)
def read_path(flow: Any, ints: Any, log: Any) -> None:
    """Store the critical path of the run with trace `ints` in the log, from its last task back to time 0."""
    n, count = len(flow.group_of), 0
    task = np.int64(ints[flow.last])
    while task >= 0 and count < log.path.shape[1] and (task >= n or flow.kernel[task]):
        if task < n:
            log.path[TASK, count], log.path[TO, count] = task, -1
        else:
            log.path[TASK, count] = ints[flow.copy_tensor + task - n]
            log.path[TO, count] = ints[flow.copy_dst + task - n]
        log.path[WHY, count] = ints[flow.cause + task]
        task = np.int64(log.path[WHY, count])
        count += 1
    log.counts[PATH] = count


class Arguments(NamedTuple):
    """The arguments of a compiled evaluation besides the placement, see `placekit_scheduling.Kernel`."""

    ints: NDArray[np.int32]
    floats: NDArray[np.float64]
    scratch_ints: int
    scratch_floats: int


class Position(NamedTuple):
    """The position of a search; all arrays change in place.

    Attributes:
        device, priority: [g] current placement; `priority` may have length 0.
        best_device, best_priority: [g] best placement.
        energy: [5] `CURRENT`, `BEST`: energies of the current and of the best placement; `FITS`: 1 if the best one fits;
            `EXCESS`: excess of the current one over capacity, in shares of devices; `PRICE_S`: its price in seconds.
        random: [1] state of the random numbers.
    """

    device: NDArray[np.int16]
    priority: NDArray[np.float32]
    best_device: NDArray[np.int16]
    best_priority: NDArray[np.float32]
    energy: NDArray[np.float64]
    random: NDArray[np.uint64]


class Rules(NamedTuple):
    """Parameters of the search.

    Attributes:
        shares: see `propose`.
        memory_bytes: [D] capacities.
        failing_s: score of a placement that does not fit.
    """

    shares: NDArray[np.float64]
    memory_bytes: NDArray[np.float64]
    failing_s: float


@counted_inner
def _excess(peak: Any, memory_bytes: Any) -> Any:
    """Excess over capacity, see `local_search.excess`."""
    over = 0.0
    for d in range(len(peak)):
        if peak[d] > memory_bytes[d]:
            over += STEP + peak[d] / memory_bytes[d] - 1.0
    return over


_walk = types.float64(
    types.FunctionType(kernel_signature()), numba_type(Arguments), numba_type(Position), numba_type(Neighbourhood),
    numba_type(Flow), numba_type(Log), numba_type(Rules), types.int64, types.float64, types.float64,
)  # fmt: skip


@njit(_walk, cache=True, nogil=True)
def walk(evaluate, arguments, at, hood, flow, log, rules, count, temperature, factor):  # type: ignore[no-untyped-def]
    """Make `count` evaluations. Returns the sum of the scores (`Evaluator.scores`) of the current placements, in seconds.

    `evaluate` is called with `arguments`. `temperature` is in seconds; each evaluation multiplies it by `factor`. `at` is a
    `Position`, `hood` a `Neighbourhood`; the other arguments have the classes of their names.
    """
    ints, floats = arguments.ints, arguments.floats
    device, priority, random, energy = at.device, at.priority, at.random, at.energy
    work_ints, work_floats = np.zeros(arguments.scratch_ints, np.int32), np.zeros(arguments.scratch_floats)
    peak = np.empty(len(rules.memory_bytes))
    traced = flow.tasks > 0
    log.counts[PATH] = 0
    if traced:  # the current placement, whose value is known: this evaluation does not count
        evaluate(device, priority, ints, floats, work_ints, work_floats, peak)
        read_path(flow, work_ints, log)
    total = 0.0
    for _ in range(count):
        for _ in range(TRIES):
            propose(random, device, priority, hood, flow, rules.shares, log)
            if log.counts[DEVICES] + log.counts[PRIORITIES] > 0:
                break
        value = evaluate(device, priority, ints, floats, work_ints, work_floats, peak)
        over = _excess(peak, rules.memory_bytes)
        if value == math.inf:  # a failure, as in `local_search.excess`
            value, over = rules.failing_s, FAILURE
        before, fitted = energy[BEST], energy[FITS]
        if step(random, energy, value, over, temperature):
            if energy[BEST] < before or energy[FITS] != fitted:
                copy_placement(device, priority, at.best_device, at.best_priority)
            if traced:
                read_path(flow, work_ints, log)
        else:
            undo(device, priority, log)
        if lost(energy, temperature):
            go_back(at)
            log.counts[PATH] = 0  # the critical path of the best placement is not known
        total += energy[CURRENT] if energy[EXCESS] == 0.0 else rules.failing_s
        temperature *= factor
    return total
