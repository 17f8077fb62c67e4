"""Makes certificates of lower bounds; `checker.py`, which knows nothing of this module, checks them."""

from __future__ import annotations

import numpy as np

from placekit_core import Problem
from placekit_scheduling.bounds.checker import (
    MARGIN,
    Certificate,
    CertificateError,
    Facts,
    Floats,
    Groups,
    Join,
    Path,
    Window,
    Work,
    follows_s,
)
from placekit_scheduling.bounds.relaxation import Relaxation, best_window

BRANCHES, LENGTH = 16, 12  # of an operation, and operations of a branch: more would prove little more
LOWERED = 1 - 4 * MARGIN  # claims are this much below what follows: the checker rounds down as well
LARGEST = 20_000
"""Operations: to make a certificate and to check it takes longer than everything else, half a minute each for 13,000."""


def certify(problem: Problem) -> Certificate:
    """The certificate of the highest bound that `communication`, `window`, `work` or `group` proves.

    `communication` covers `critical_path`; `window` has the heads and tails of `communication`, which are lower than those of
    `all_bounds`: so that may be higher. Raises CertificateError if the graph has more than `LARGEST` operations, or no kernel.
    """
    graph = problem.graph
    if graph.n > LARGEST or not graph.kernel.any():
        what = f"{graph.n:,} operations" if graph.n > LARGEST else "no kernel"
        raise CertificateError(f"{graph.name!r} has {what}", f"certificates are made for up to {LARGEST:,} operations")
    (head, joins), (tail, joins_back) = (_levels(problem, backwards) for backwards in (False, True))
    kind_of, first = problem.cluster.kind_of, np.unique(problem.cluster.kind_of, return_index=True)[1]
    seconds, relaxation = Facts(problem).seconds, Relaxation.of(problem, refined=False)
    plain, with_memory = relaxation.prices, relaxation.prices_with_memory
    arguments: list[Path | Window | Work | Groups] = [
        Path(by="communication", operation=int((head + seconds + tail).min(axis=1).argmax())),
        _window(problem, seconds, head, tail, plain.time[kind_of]),
        Work(by="work", prices=with_memory.time[kind_of].tolist(), memory_prices=with_memory.memory[kind_of].tolist()),
        _groups(problem),
    ]
    best = None
    for argument in arguments:
        offer = Certificate(program=graph.name, machine=problem.cluster.name, bound_s=0.0, argument=argument)
        if isinstance(argument, Path | Window):
            claims = {
                "heads": head[:, first].tolist(),
                "tails": tail[:, first].tolist(),
                "joins": [*joins, *joins_back],
            }
            offer = offer.model_copy(update=claims)
        offer = offer.model_copy(update={"bound_s": max(0.0, follows_s(problem, offer))})
        if best is None or offer.bound_s > best.bound_s:
            best = offer
    assert best is not None
    return best


def _levels(problem: Problem, backwards: bool) -> tuple[Floats, list[Join]]:
    """Heads, or tails, [n, D] by both rules of the checker, a little lowered, and the branches that they need."""
    facts, order = Facts(problem, backwards), problem.graph.topological_order.tolist()
    kinds = [np.flatnonzero(problem.cluster.kind_of == k) for k in range(int(problem.cluster.kind_of.max()) + 1)]
    level, joins = np.zeros_like(facts.seconds), list[Join]()
    for v in reversed(order) if backwards else order:
        least = facts.by_edges(level, v)
        branches = _branches(facts, level, v)
        if len(branches) > 1:
            more = facts.by_joins(level, v, branches, least)
            if (more > least).any():
                least = more
                joins.append(Join(operation=v, backwards=backwards, branches=branches))
        for like in kinds:
            here = float(least[like].min())
            level[v, like] = here * LOWERED if np.isfinite(here) else 0.0
    return level, joins


def _branches(facts: Facts, level: Floats, v: int) -> list[list[int]]:
    """Branches that v waits for: from each operation on to the one that it would wait for longest, if all were on one device.

    A branch ends before what takes no time, which can be on any device; and with what may not be on that device.
    """
    d = int(facts.seconds[v].argmin())
    seen, found = {v}, list[list[int]]()
    for first in facts.waits_for[v]:
        if len(found) == BRANCHES:
            break
        branch, x = list[int](), first
        while len(branch) < LENGTH and x not in seen and facts.seconds[x, d] > 0:
            seen.add(x)
            branch.append(x)
            if not facts.waits_for[x] or not np.isfinite(facts.seconds[x, d]):
                break
            x = max(facts.waits_for[x], key=lambda u: (facts.seconds[u, d] > 0, level[u, d] + facts.seconds[u, d]))
        if branch:
            found.append(branch)
    return found


def _window(problem: Problem, seconds: Floats, head: Floats, tail: Floats, prices: Floats) -> Window:
    """The window that proves most."""
    may, rows = np.isfinite(seconds), np.flatnonzero(problem.graph.kernel)
    work = np.where(may, np.where(may, seconds, 0.0) * prices, np.inf).min(axis=1)
    after, before = (np.where(may, level, np.inf).min(axis=1) for level in (head, tail))
    _, h, q = best_window(after[rows], before[rows], work[rows])
    return Window(by="window", after_s=h, before_s=q, prices=prices.tolist())


def _groups(problem: Problem) -> Groups:
    """The groups that prove most: see `work.packing`."""
    per_device = np.where(problem.allowed, problem.group_s / problem.cluster.streams, np.inf)
    falling, devices = np.argsort(-per_device.min(axis=1), kind="stable"), problem.cluster.size
    total = np.concatenate([[0.0], per_device.min(axis=1)[falling].cumsum()])
    k = np.arange((problem.g + devices - 1) // devices)
    best = int((total[k * devices + 1] - total[k * devices - k]).argmax())
    return Groups(by="group", groups=falling[: best * devices + 1].tolist())
