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
TRIES = 10  # proposals for one evaluation: a move may turn out to change nothing


@njit(cache=True, nogil=True)
def step(state: Any, energy: Any, new: Any, fits: Any, temperature: Any) -> Any:
    """Whether to keep a move to energy `new`; updates `energy` ([3], see `walk`).

    The rule of Metropolis (better always, worse with probability exp(-difference / temperature)) until something fits;
    from then on only among placements that fit. The first that fits is always kept, and so is a new best one. At
    temperature 0, nothing worse is kept.
    """
    known = energy[2] > 0
    if fits and not known:
        energy[:] = new
        energy[2] = 1.0
        return True
    if known and not fits:
        return False
    if new > energy[0] and (temperature <= 0 or not uniform(state) < math.exp((energy[0] - new) / temperature)):
        return False
    energy[0] = new
    energy[1] = min(energy[1], new)
    return True


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
    hood, flow, log, shares, bias, memory_bytes, penalty_s, count, temperature, restart,
):  # fmt: skip
    """`count` evaluations. Returns the sum of their energies, seconds.

    Args:
        evaluate, ints, floats, scratch_ints, scratch_floats: see `placekit_core.measurement.Kernel`.
        device, priority: [g] current placement, changed in place; `priority` may have length 0.
        best_device, best_priority: [g] the best placement so far.
        energy: [3] of the current and of the best placement, and 1 if the best one fits.
        state: [1] of the random numbers.
        hood, flow, log: see `Neighbourhood`, `Flow`, `Log`.
        shares, bias: see `propose`.
        memory_bytes: [D] capacities; `penalty_s`: what the whole of a device over capacity costs.
        temperature: [2] seconds before the first of these evaluations, and the factor of each.
        restart: [3] after how many evaluations without improvement to go back to the best placement and make moves that
            are kept whatever they cost (0: never), how many, and evaluations since the last improvement.
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
        value += penalty_s * over
        total += value
        before, fitted = energy[1], energy[2]
        if kicked and (over == 0.0 or energy[2] == 0.0):
            energy[0] = value
        kept = step(state, energy, value, over == 0.0, t)
        if kept:
            if energy[1] < before or energy[2] != fitted:
                best_device[:], best_priority[:] = device, priority
                restart[2] = -1
            if traced:
                _read_path(flow, work_ints, log)
        elif kicked:  # it does not fit: from the best one, then
            device[:], priority[:] = best_device, best_priority
            energy[0] = energy[1]
            log.counts[2] = 0  # its critical path is not known
        else:
            undo(device, priority, log)
        restart[2] += 1
        t *= temperature[1]
    temperature[0] = t
    return total
