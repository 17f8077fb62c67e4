"""The compiled loop of local searches: propose a move, evaluate, keep it or take it back."""
# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit, types

from placekit_core.measurement import kernel_signature
from placekit_search.moves import Log, propose, undo
from placekit_search.neighbourhood import Flow, Neighbourhood
from placekit_search.randomness import uniform

# Part of the penalty that any excess costs, however small: else a search settles a few bytes over capacity.
STEP = 0.01
PRICE = 20.0  # of a device's memory over capacity until something fits, and the highest; as a multiple of the value
DEARER, CHEAPER = 1.02, 0.98  # factors of the price of memory over capacity
LEAST = 10.0  # temperatures that the least excess costs at least: else a hot search drifts over capacity
LOWEST = 0.01  # price, as a multiple of the best value: lower ones would take long to rise again
TRIES = 10  # proposals for one evaluation: a move may turn out to change nothing


@njit(cache=True, nogil=True)
def _set_price(energy: Any, price: Any) -> None:
    """Another price of memory over capacity, at which the current placement has another energy."""
    energy[0] += (price - energy[4]) * energy[3]
    energy[4] = price


@njit(cache=True, nogil=True)
def step(state: Any, energy: Any, value: Any, over: Any, temperature: Any) -> Any:
    """Whether to keep a move to a placement of `value` seconds that is `over` capacity; updates `energy` ([5], see `walk`).

    The rule of Metropolis for the value plus price times `over`: better always, worse with probability
    exp(-difference / temperature); at temperature 0, nothing worse. The first placement that fits and a new best one are
    always kept. From the first that fits on, the price changes (strategic oscillation: Glover 1989): it falls with every
    refused move to a placement that does not fit, and rises with every step at one, because the way from one placement
    that fits to a better one may lead through some that do not.
    """
    known = energy[2] > 0
    if known:
        _set_price(energy, max(energy[4], LEAST * temperature / STEP, LOWEST * energy[1]))
    new = value + energy[4] * over
    if over == 0 and not known:
        energy[0] = energy[1] = energy[4] = value
        energy[2], energy[3] = 1.0, 0.0
        return True
    kept = new <= energy[0] or (temperature > 0 and uniform(state) < math.exp((energy[0] - new) / temperature))
    if over == 0 and new < energy[1]:
        kept = True
    if kept:
        energy[0], energy[3] = new, over
        if over == 0 or not known:
            energy[1] = min(energy[1], new)
    if known and (energy[3] > 0 or (over > 0 and not kept)):
        _set_price(energy, energy[4] * (DEARER if energy[3] > 0 else CHEAPER))
    return kept


@njit(cache=True, nogil=True)
def lost(energy: Any, temperature: Any) -> Any:
    """Whether no way leads back to what fits, however dear the memory: then a search goes on from its best placement."""
    limit = max(PRICE * energy[1], 2 * LEAST * temperature / STEP)
    return energy[2] > 0 and energy[3] > 0 and energy[4] > limit


@njit(cache=True, nogil=True)
def go_back(device: Any, priority: Any, best_device: Any, best_priority: Any, energy: Any) -> None:
    """From the best placement, then."""
    device[:], priority[:] = best_device, best_priority
    energy[0], energy[3], energy[4] = energy[1], 0.0, energy[1]


@njit(cache=True, nogil=True)
def _read_path(flow: Any, ints: Any, log: Any) -> None:
    """Note the critical path of the run that `ints` is the trace of: from its last task back to what started at 0."""
    n, trace, count = len(flow.group_of), flow.trace, 0
    task = np.int64(ints[trace[3]])
    while task >= 0 and count < log.path.shape[1] and (task >= n or flow.kernel[task]):
        if task < n:
            log.path[0, count], log.path[1, count] = task, -1
        else:
            log.path[0, count] = ints[trace[4] + task - n]
            log.path[1, count] = ints[trace[5] + task - n]
        log.path[2, count] = ints[trace[2] + task]
        task = np.int64(log.path[2, count])
        count += 1
    log.counts[2] = count


_hood = types.NamedTuple(  # type: ignore[no-untyped-call]
    (
        *[types.int32[::1]] * 4, types.boolean[:, ::1], *[types.int32[::1]] * 11, types.boolean[::1], types.int32[::1],
    ), Neighbourhood,
)  # fmt: skip
_flow = types.NamedTuple(  # type: ignore[no-untyped-call]
    (types.int32[::1], types.boolean[::1], *[types.int32[::1]] * 3, types.int64[::1]), Flow
)
_log = types.NamedTuple(  # type: ignore[no-untyped-call]
    (
        types.int64[::1], types.int32[::1], types.int16[::1], types.int64[::1], types.float32[::1], types.int64[::1],
        types.int32[::1], types.int32[:, ::1],
    ), Log,
)  # fmt: skip
_walk = types.float64(
    types.FunctionType(kernel_signature()), types.int32[::1], types.float64[::1], types.int64, types.int64,
    types.int16[::1], types.float32[::1], types.int16[::1], types.float32[::1], types.float64[::1], types.uint64[::1],
    _hood, _flow, _log, types.float64[::1], types.float64, types.float64[::1], types.float64, types.int64,
    types.float64[::1], types.int64[::1],
)  # fmt: skip


@njit(_walk, cache=True, nogil=True)
def walk(  # type: ignore[no-untyped-def]
    evaluate, ints, floats, scratch_ints, scratch_floats, device, priority, best_device, best_priority, energy, state,
    hood, flow, log, shares, bias, memory_bytes, failing_s, count, temperature, restart,
):  # fmt: skip
    """`count` evaluations. Returns the sum of their scores (`Evaluator.scores`), seconds.

    Args:
        evaluate, ints, floats, scratch_ints, scratch_floats: see `placekit_core.measurement.Kernel`.
        device, priority: [g] current placement, changed in place; `priority` may have length 0.
        best_device, best_priority: [g] the best placement so far.
        energy: [5] of the current and of the best placement; 1 if the best one fits; how far the current one is over
            capacity, in shares of devices; the price of that, seconds.
        state: [1] of the random numbers.
        hood, flow, log: see `Neighbourhood`, `Flow`, `Log`.
        shares, bias: see `propose`.
        memory_bytes: [D] capacities; `failing_s`: score of a placement that does not fit.
        temperature: [2] seconds before the first of these evaluations, and the factor of each.
        restart: [3] after how many evaluations without improvement to go back to the best placement and make moves that
            are kept whatever they cost if they fit (0: never), how many, and evaluations since the last improvement.
    """
    work_ints, work_floats = np.empty(scratch_ints, np.int32), np.empty(scratch_floats)
    peak = np.empty(len(memory_bytes))
    traced = flow.trace[0] > 0
    log.counts[2] = 0
    if traced:  # of the placement that stood here before: known, and not counted
        evaluate(device, priority, ints, floats, work_ints, work_floats, peak)
        _read_path(flow, work_ints, log)
    total, t = 0.0, temperature[0]
    for _ in range(count):
        kicked = restart[0] > 0 and restart[2] >= restart[0]
        if kicked:
            device[:], priority[:] = best_device, best_priority
            for _ in range(restart[1]):
                propose(state, device, priority, hood, flow, shares, bias, log)
            restart[2] = 0
        else:
            for _ in range(TRIES):
                propose(state, device, priority, hood, flow, shares, bias, log)
                if log.counts[0] + log.counts[1] > 0:
                    break
        value = evaluate(device, priority, ints, floats, work_ints, work_floats, peak)
        over = 0.0
        for d in range(len(peak)):
            if peak[d] > memory_bytes[d]:
                over += STEP + peak[d] / memory_bytes[d] - 1.0
        total += value if over == 0.0 else failing_s
        before, fitted = energy[1], energy[2]
        if kicked and (over == 0.0 or energy[2] == 0.0):
            energy[0] = math.inf
        kept = step(state, energy, value, over, t)
        if kept:
            if energy[1] < before or energy[2] != fitted:
                best_device[:], best_priority[:] = device, priority
                restart[2] = -1
            if traced:
                _read_path(flow, work_ints, log)
        elif not kicked:
            undo(device, priority, log)
        if (kicked and not kept) or lost(energy, t):
            go_back(device, priority, best_device, best_priority, energy)
            log.counts[2] = 0  # its critical path is not known
        restart[2] += 1
        t *= temperature[1]
    temperature[0] = t
    return total
