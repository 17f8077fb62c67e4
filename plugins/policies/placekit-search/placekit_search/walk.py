"""The compiled loop of local searches: propose a move, evaluate, keep it or take it back."""
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
from placekit_search.randomness import uniform
from placekit_search.reuse import Reuse, mark_before

CURRENT, BEST, FITS, EXCESS, PRICE_S = range(5)  # entries of Position.energy
PATIENCE, KICK, IDLE = range(3)  # entries of Position.restart
# Part of the penalty that any excess costs, however small: otherwise a search settles a few bytes over capacity.
STEP = 0.01
PRICE = (
    20.0  # price of a device's memory over capacity until a placement fits, and the highest; a multiple of the value
)
DEARER, CHEAPER = 1.02, 0.98  # factors of the price of memory over capacity
LEAST = 10.0  # least cost of the smallest excess, in temperatures: otherwise a hot search drifts over capacity
LOWEST = 0.01  # lowest price, as a multiple of the best value: a lower one would take long to rise again
FAILURE = 9.0  # excess over capacity, in shares of devices, that a placement without a value counts as
PROBE, REST = 64, 2000  # evaluations for which trials are made before they are judged, and for which they rest
ASIDE = 0.15  # of a whole evaluation: the cost of a trial besides the operations that it begins
WORTH = 0.95  # of a whole evaluation: trials go on if they cost less
TRIES = 10  # proposals for one evaluation: a move may turn out to change nothing


@counted_inner
def _set_price(energy: Any, price: Any) -> None:
    """Change the price of memory over capacity, and the energy of the current placement with it."""
    energy[CURRENT] += (price - energy[PRICE_S]) * energy[EXCESS]
    energy[PRICE_S] = price


@njit(cache=True, nogil=True)
def step(state: Any, energy: Any, value: Any, over: Any, temperature: Any) -> Any:
    """Whether to keep a move to a placement of `value` seconds that is `over` capacity; updates `energy` (see `Position`).

    The rule of Metropolis for the value plus price times `over`: better placements are always kept, worse ones with
    probability exp(-difference / temperature); at temperature 0, no worse one. The first placement that fits and a new best
    one are always kept. From the first that fits on, the price changes (strategic oscillation: Glover 1989): it falls with
    every refused move to a placement that does not fit, and rises with every step at such a placement, because the way from
    one placement that fits to a better one may lead through some that do not.
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
    """Whether no price of memory leads back to placements that fit: then a search goes on from its best placement."""
    limit = max(PRICE * energy[BEST], 2 * LEAST * temperature / STEP)
    return energy[FITS] > 0 and energy[EXCESS] > 0 and energy[PRICE_S] > limit


@njit(cache=True, nogil=True)
def go_back(at: Any) -> None:
    """Go back to the best placement."""
    at.device[:], at.priority[:] = at.best_device, at.best_priority
    at.energy[CURRENT], at.energy[EXCESS], at.energy[PRICE_S] = at.energy[BEST], 0.0, at.energy[BEST]


@njit(cache=True, nogil=True)
def read_path(flow: Any, ints: Any, log: Any) -> None:
    """Note the critical path of the run with trace `ints`: from its last task back to the one that started at 0."""
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
    """The position of a search; all of it changes in place.

    Attributes:
        device, priority: [g] current placement; `priority` may have length 0.
        best_device, best_priority: [g] the best placement so far.
        energy: [5] `CURRENT` and `BEST`: of the current and of the best placement; `FITS`: 1 if the best one fits;
            `EXCESS`: how far the current one is over capacity, in shares of devices; `PRICE_S`: price of that, seconds.
        random: [1] state of the random numbers.
        restart: [3] `PATIENCE`: evaluations without improvement before the search goes back to the best placement and makes
            moves that are kept at any cost if they fit (0: never); `KICK`: number of these moves; `IDLE`: evaluations since
            the last improvement.
    """

    device: NDArray[np.int16]
    priority: NDArray[np.float32]
    best_device: NDArray[np.int16]
    best_priority: NDArray[np.float32]
    energy: NDArray[np.float64]
    random: NDArray[np.uint64]
    restart: NDArray[np.int64]


class Rules(NamedTuple):
    """Rules of the search: shares of moves, capacities, and the score of a failure.

    Attributes:
        shares, bias: see `propose`.
        memory_bytes: [D] capacities.
        failing_s: score of a placement that does not fit.
    """

    shares: NDArray[np.float64]
    bias: float
    memory_bytes: NDArray[np.float64]
    failing_s: float


@counted_inner
def _limit(random: Any, energy: Any, temperature: Any) -> Any:
    """The highest value with which the next move is kept: that of the rule of `step` for the number that it will draw.

    Infinite where the memory over capacity has a part in it.
    """
    if energy[FITS] == 0 or energy[EXCESS] > 0:
        return math.inf
    limit = max(energy[CURRENT], energy[BEST])
    if temperature > 0:
        state = random[0]
        drawn = uniform(random)
        random[0] = state
        limit = limit - temperature * math.log(drawn) if drawn > 0 else math.inf
    return limit


@counted_inner
def _move(at: Any, hood: Any, flow: Any, rules: Any, log: Any) -> Any:
    """Make the next move; or, after a long time without an improvement, several from the best placement: then True."""
    kicked = at.restart[PATIENCE] > 0 and at.restart[IDLE] >= at.restart[PATIENCE]
    if kicked:
        at.device[:], at.priority[:] = at.best_device, at.best_priority
        at.restart[IDLE] = 0
    for _ in range(at.restart[KICK] if kicked else TRIES):
        propose(at.random, at.device, at.priority, hood, flow, rules.shares, rules.bias, log)
        if not kicked and log.counts[DEVICES] + log.counts[PRIORITIES] > 0:
            break
    return kicked


@counted_inner
def _excess(peak: Any, memory_bytes: Any) -> Any:
    """Excess over capacity, see `chain.excess`."""
    over = 0.0
    for d in range(len(peak)):
        if peak[d] > memory_bytes[d]:
            over += STEP + peak[d] / memory_bytes[d] - 1.0
    return over


@counted_inner
def _note(device: Any, kicked: Any, log: Any) -> None:
    """Note the devices of a placement that is kept, from which the next move is made."""
    if kicked:
        log.before[:] = device
    for i in range(log.counts[DEVICES]):
        log.before[log.group[i]] = device[log.group[i]]


_evaluation = types.FunctionType(kernel_signature())
_walk = types.float64(
    _evaluation, numba_type(Arguments), _evaluation, numba_type(Arguments), numba_type(Position), numba_type(Neighbourhood),
    numba_type(Flow), numba_type(Reuse), numba_type(Log), numba_type(Rules), types.int64, types.float64, types.float64,
)  # fmt: skip


@njit(_walk, cache=True, nogil=True)
def walk(  # type: ignore[no-untyped-def]
    evaluate, arguments, trial, given, at, hood, flow, graph, log, rules, count, temperature, factor
):
    """`count` evaluations. Returns the sum of the scores (`Evaluator.scores`), seconds, of the placements it was at.

    They are made by `evaluate` with `arguments`; if `graph.possible`, by `trial` with `given`, and those that are kept by
    `evaluate` once more, for their critical path and marks. Where this costs more than it saves, trials rest for a while;
    the results are the same to the last bit. `temperature` is in seconds, before the first of these
    evaluations; each multiplies it by `factor`. The other arguments are of the classes of the same names; `at` is a
    `Position`, `hood` a `Neighbourhood`, `graph` a `Reuse`.
    """
    ints, floats = arguments.ints, arguments.floats
    device, priority, random, energy, restart = at.device, at.priority, at.random, at.energy, at.restart
    work_ints, work_floats = np.zeros(arguments.scratch_ints, np.int32), np.zeros(arguments.scratch_floats)
    peak = np.empty(len(rules.memory_bytes))
    traced = flow.tasks > 0
    log.counts[PATH] = 0
    trying, until, spent = graph.possible, PROBE, 0.0  # whether to try, for how many evaluations, their cost so far
    if traced:  # the placement before these evaluations: its value is known, so it is not counted
        if trying:
            work_ints[graph.kernel_go_on] = -1
        evaluate(device, priority, ints, floats, work_ints, work_floats, peak)
        read_path(flow, work_ints, log)
    log.before[:] = device
    followed = traced  # whether the last run of `evaluate` is that of the current placement
    kernels = max(1, np.sum(flow.kernel))
    total = 0.0
    for _ in range(count):
        if graph.possible and until == 0:
            worth = not trying or spent < WORTH * PROBE
            if worth and not trying:  # marks of the current placement
                work_ints[graph.kernel_go_on] = -1
                evaluate(device, priority, ints, floats, work_ints, work_floats, peak)
                followed = True
            trying, until, spent = worth, PROBE if worth else REST, 0.0
            if not trying:
                work_ints[graph.kernel_go_on] = 0
        until -= 1
        kicked = _move(at, hood, flow, rules, log)
        mark = 0
        if trying:
            if followed and not kicked:
                mark = mark_before(flow, graph, device, log, work_ints, work_floats)
            work_ints[graph.go_on] = mark
            work_floats[graph.limit_s] = math.inf if kicked else _limit(random, energy, temperature)
            value = trial(device, priority, given.ints, given.floats, work_ints, work_floats, peak)
            spent += ASIDE + work_ints[graph.worked] / kernels
        else:
            value = evaluate(device, priority, ints, floats, work_ints, work_floats, peak)
        over = _excess(peak, rules.memory_bytes)
        if value == math.inf:  # as `chain.excess` takes a failure
            value, over = rules.failing_s, FAILURE
        before, fitted = energy[BEST], energy[FITS]
        if kicked and (over == 0.0 or energy[FITS] == 0.0):
            energy[CURRENT] = math.inf
        kept = step(random, energy, value, over, temperature)
        if kept:
            if energy[BEST] < before or energy[FITS] != fitted:
                at.best_device[:], at.best_priority[:] = device, priority
                restart[IDLE] = -1
            if trying:
                work_ints[graph.kernel_go_on] = mark if mark > 0 else -1
                evaluate(device, priority, ints, floats, work_ints, work_floats, peak)
                spent += ASIDE + work_ints[graph.worked] / kernels
            followed = traced
            if traced:
                read_path(flow, work_ints, log)
            _note(device, kicked, log)
        else:
            followed = followed and trying
            if not kicked:
                undo(device, priority, log)
        if (kicked and not kept) or lost(energy, temperature):
            go_back(at)
            log.before[:] = device
            log.counts[PATH] = 0  # its critical path is not known
            followed = False
        total += energy[CURRENT] if energy[EXCESS] == 0.0 else rules.failing_s
        restart[IDLE] += 1
        temperature *= factor
    return total
