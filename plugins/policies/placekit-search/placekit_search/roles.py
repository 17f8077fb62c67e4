"""Roles: all operations of a module in one phase, over all calls; and a search over the devices of roles.

A recurrent network calls its cells step by step. Its thousands of operations have only a few roles: each cell's forward pass,
its backward pass, the gradients of its weights, and the updates. A few dozen numbers then place all of them.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from placekit_layers.following import united
from placekit_scheduling import b_level, group_priority

from placekit_core import PHASES, Graph, Placements, Problem, Task, report_progress
from placekit_search.coarsening import allowed_for_units
from placekit_search.local_search import LocalSearch, SearchContext, excess, walk_all
from placekit_search.neighbourhood import neighbourhood
from placekit_search.walk import BEST, PRICE

CALLS = 3  # a module repeats if it is called at least this often
LEAST_ROLES = 4  # with fewer roles, the other starts cover most placements
SHARE = 0.5  # least share of the work in modules that repeat
UPDATE, BACKWARD = PHASES.index("update"), PHASES.index("backward")
GRADIENT = len(PHASES)
HOT, COLD = 0.02, 0.0005  # first and last temperature, as shares of the best value so far
PER_CHAIN = 700  # evaluations per chain, ...
CHAINS = 8  # ... most chains, ...
LONGEST = 4000  # ... and most evaluations of each
CHUNK = 50  # evaluations of a chain at one temperature


def roles(problem: Problem) -> NDArray[np.int64] | None:
    """[g] role of each group, numbered from 0. None if few modules are called repeatedly.

    A role is a module and a phase. Gradients of weights, which only updates and sums of them read, count as a phase of their
    own. Operations that may run on different devices have different roles. A group with several roles unites them.
    """
    graph = problem.graph
    if not _repeats(problem):
        return None
    phase = np.where(_weight_gradients(graph), GRADIENT, graph.phase)
    key = np.stack([graph.module.codes, phase, graph.allowed.codes], axis=1)
    of_op = np.unique(key, axis=0, return_inverse=True)[1].reshape(-1)
    role = united(problem, of_op)
    allowed = allowed_for_units(problem, role)
    some = allowed.any(axis=1)
    nowhere = np.logical_not(some)[role]  # no single device may run the whole role: place its groups one by one
    role[nowhere] = len(allowed) + np.arange(np.count_nonzero(nowhere))
    return np.unique(role, return_inverse=True)[1].reshape(-1).astype(np.int64)


def _repeats(problem: Problem) -> bool:
    """Whether modules with at least `CALLS` calls do at least `SHARE` of the work."""
    graph = problem.graph
    module = graph.module.codes.astype(np.int64)
    calls = int(graph.call.max(initial=0)) + 1
    if calls < CALLS:
        return False
    distinct = np.unique(module * calls + graph.call) // calls
    named = np.asarray([bool(name) for name in graph.module.vocabulary], np.bool_)
    repeats = (np.bincount(distinct, minlength=len(named)) >= CALLS) & named
    work = np.bincount(module, problem.op_s.min(axis=1), minlength=len(named))
    return bool(work[repeats].sum() >= SHARE * work.sum())


def _weight_gradients(graph: Graph) -> NDArray[np.bool_]:
    """[n] whether an operation computes a gradient that only updates read, maybe after it was added to others of its size."""
    update, (source, target) = graph.phase == UPDATE, graph.op_edges
    largest = np.zeros(graph.n, np.int64)
    np.maximum.at(largest, graph.tensor_producer, graph.tensor_bytes)
    sums = graph.phase == BACKWARD  # these may be sums: only updates and operations of equal size read them
    read = np.bincount(source, minlength=graph.n) > 0
    harmless = update[target] | (largest[source] == largest[target])
    sums[source[~harmless]] = False
    ptr = np.searchsorted(source, np.arange(graph.n + 1)).tolist()
    readers, for_updates, may_sum = target.tolist(), update.tolist(), (sums & read).tolist()
    for v in graph.topological_order[::-1].tolist():
        if may_sum[v]:
            for_updates[v] = all(for_updates[w] for w in readers[ptr[v] : ptr[v + 1]])
    return np.asarray(np.asarray(for_updates) & (graph.phase == BACKWARD), np.bool_)


def role_chains(
    task: Task,
    context: SearchContext,
    role: NDArray[np.int64],
    share: float,
    worth: float,
    rng: Generator,
    threads: int,
) -> list[LocalSearch]:
    """Search by chains of annealing that move whole roles; they end after `share` of the remaining budget, or `LONGEST` each.

    In a new chain each role is on a random device. Priorities stay b-levels: `context` must have no moves that change
    them. Returns no chains if `share` is less than `CHUNK` evaluations.

    Args:
        role: [g], see `roles`.
        worth: estimated number of evaluations that `share` allows.
        threads: number of threads for compiled loops.
    """
    evaluate, count = task.evaluate, int(np.clip(worth // PER_CHAIN, 1, CHAINS))
    quota = LONGEST * count
    if evaluate.ledger.limit is not None:
        quota = min(quota, int(share * evaluate.remaining))
    if quota < CHUNK:
        return []
    report_progress("starts: devices of roles")
    first, made, hood = evaluate.progress, count, neighbourhood(task.problem, role)
    chains = _begin(task, context, np.stack([_random_devices(hood.allowed, rng)[role] for _ in range(count)]), rng)
    with ThreadPoolExecutor(threads, "placekit-roles") as pool:
        while evaluate.remaining > 0:
            used = made / quota
            if evaluate.ledger.limit_s is not None:
                used = max(used, (evaluate.progress - first) / max(share * (1 - first), 1e-9))
            each = min(CHUNK, context.chunk(), (quota - made) // count)
            if used >= 1 or each == 0:
                break
            cooling = (COLD / HOT) ** used
            if context.kernel is None:
                chain = chains[made % count]
                chain.step_once(hood, float(chain.at.energy[BEST]) * HOT * cooling)
                made += 1
                continue
            walk_all([(c, hood, float(c.at.energy[BEST]) * HOT * cooling, 1.0) for c in chains], each, pool)
            made += each * count
    return chains


def _begin(task: Task, context: SearchContext, device: NDArray[np.int16], rng: Generator) -> list[LocalSearch]:
    """Evaluate the placements [b, g], and begin a chain at each."""
    priority = group_priority(task.problem, b_level(task.problem)).astype(np.float32)
    value, over = excess(task.evaluate(Placements.of(device, np.broadcast_to(priority, device.shape))), task)
    price_s, random = PRICE * float(value.min()), rng.integers(0, 2**64, len(device), np.uint64)
    return [
        LocalSearch(
            context, LocalSearch.begin(device[i], priority, float(value[i]), float(over[i]), price_s, random[i : i + 1])
        )
        for i in range(len(device))
    ]


def _random_devices(allowed: NDArray[np.bool_], rng: Generator) -> NDArray[np.int16]:
    """[u] a random device for each unit, among its allowed ones with equal chances."""
    return np.asarray(np.where(allowed, rng.random(allowed.shape), -1.0).argmax(axis=1), np.int16)
