"""The search for makespans that no placement reaches; `makespan.forced_bound` has the proofs."""

from __future__ import annotations

import numpy as np

from placekit_scheduling.bounds.channels import busiest_channel
from placekit_scheduling.bounds.kinds import Places
from placekit_scheduling.bounds.relaxation import Levels, Relaxation, longest_window
from placekit_scheduling.bounds.work import packing

PASSES = 4  # rounds of conclusions from one makespan
STEP = 1e-3  # first step, and final precision, as a share of the first bound
MARGIN = 1e-9  # a path must be longer than a makespan by this share, because sums are rounded
CEILING = 64.0  # the search ends at this multiple of the first bound
EFFORT = 100_000  # limit on makespans tried times operations of the graph; at least one makespan is tried


def highest_refuted(relaxation: Relaxation, start_s: float) -> float:
    """The highest makespan found that is refuted, or `start_s`. Steps double until one is not refuted; then bisection."""
    if start_s <= 0:
        return start_s
    low, high, step = start_s, np.inf, STEP * start_s
    for _ in range(max(1, EFFORT // relaxation.n)):
        if high - low <= STEP * start_s or low >= CEILING * start_s:
            break
        middle = low + step if np.isinf(high) else (low + high) / 2
        if is_refuted(relaxation, middle):
            low, step = middle, 2 * step
        else:
            high = middle
    return low


def is_refuted(relaxation: Relaxation, most_s: float) -> bool:
    """Whether a makespan of `most_s` or less leads to a contradiction for every placement that fits."""
    general = Levels.start(relaxation, relaxation.everywhere, relaxation.cluster, relaxation.raised)
    if _contradicts(general, most_s):
        return True
    work = np.bincount(general.cluster, relaxation.seconds.min(axis=1), minlength=relaxation.n)
    center = int(work.argmax())  # the cluster with most work
    for kind in np.flatnonzero(general.possible[center]):
        places = Places.around(int(kind), relaxation.devices)
        around = Levels.start(relaxation, places, general.cluster, relaxation.raised, center)
        around.possible &= general.possible[:, places.kind]
        around.possible[general.cluster == center, 1:] = False
        if not _contradicts(around, most_s):
            return False
    return True


def _contradicts(levels: Levels, most_s: float) -> bool:
    """Draw conclusions from a makespan of at most `most_s`. Returns whether one of them is impossible."""
    from placekit_scheduling.bounds import kernel
    from placekit_scheduling.jit import by_size

    relaxation, most = levels.relaxation, most_s * (1 + MARGIN)
    restrict, merge = by_size(kernel.restrict, levels.head.size), by_size(kernel.merge, levels.head.size)
    for _ in range(PASSES):
        if not _restrict_to_memory(levels):
            return True
        levels.raise_all()
        changed = restrict(levels.head, levels.tail, levels.seconds, levels.possible, levels.cluster, most)
        if changed < 0:
            return True
        changed += merge(
            relaxation.producer, relaxation.consumer, levels.transfer_s, levels.head, levels.tail, levels.seconds,
            levels.possible, levels.cluster, most,
        )  # fmt: skip
        changed += _unite_single_places(levels)
        if restrict(levels.head, levels.tail, levels.seconds, levels.possible, levels.cluster, most) < 0:
            return True
        if _too_much_work(levels) > most:
            return True
        if not changed:
            break
    return False


def _restrict_to_memory(levels: Levels) -> bool:
    """Exclude clusters from places that have too little memory for them. Returns False if one has no place left."""
    relaxation = levels.relaxation
    need = np.bincount(levels.cluster, relaxation.persistent_bytes, minlength=relaxation.n)[levels.cluster]
    levels.possible &= need[:, None] <= relaxation.memory[levels.places.kind]
    return bool(levels.possible.any(axis=1).all())


def _unite_single_places(levels: Levels) -> int:
    """Unite clusters that can only be on the same single device. Returns how many fewer there are."""
    united = 0
    only = levels.possible.sum(axis=1) == 1
    for place in np.flatnonzero(levels.places.devices == 1):
        there = np.unique(levels.cluster[only & levels.possible[:, place]])
        if len(there) > 1:
            levels.cluster[np.isin(levels.cluster, there)] = there[0]
            united += len(there) - 1
    return united


def _too_much_work(levels: Levels) -> float:
    """The highest bound from the work of all operations, of those on the main device, of all others, and of clusters."""
    relaxation, places = levels.relaxation, levels.places
    rows = relaxation.kernels
    possible, seconds = levels.possible[rows], levels.seconds[rows]
    head = np.where(possible, levels.head[rows], np.inf).min(axis=1)
    tail = np.where(possible, levels.tail[rows], np.inf).min(axis=1)
    price = relaxation.prices.time[places.kind]
    work = np.where(possible, np.where(possible, seconds, 0.0) * price, np.inf).min(axis=1)
    bounds = [longest_window(head, tail, work), _packed_clusters(levels)]
    if places.main < 0:
        bounds.append(busiest_channel(relaxation, levels.possible, levels.head, levels.tail))
    else:
        on = possible[:, 0] & ~possible[:, 1:].any(axis=1)
        bounds.append(longest_window(head[on], tail[on], seconds[on, 0], float(relaxation.streams[places.kind[0]])))
        if len(places.kind) > 1:
            left = float((price[1:] * places.devices[1:] * relaxation.streams[places.kind[1:]]).sum())
            off = ~possible[:, 0]
            if left > 0:
                bounds.append(longest_window(head[off], tail[off], work[off], left))
    return max(bounds)


def _packed_clusters(levels: Levels) -> float:
    """`makespan.group_bound` of the clusters."""
    relaxation, places = levels.relaxation, levels.places
    roots = np.flatnonzero(levels.cluster == np.arange(relaxation.n))
    least = np.full(len(roots), np.inf)
    for place in range(len(places.kind)):
        own = np.where(levels.possible[:, place], levels.seconds[:, place], 0.0)
        s = np.bincount(levels.cluster, own, minlength=relaxation.n)[roots] / relaxation.streams[places.kind[place]]
        least = np.where(levels.possible[roots, place], np.minimum(least, s), least)
    return packing(least, int(relaxation.devices.sum()))
