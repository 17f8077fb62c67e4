"""Memory repair: moves groups off devices that a placement overfills, for methods that ignore memory."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from placekit_core import Placements, Problem, Task, units
from placekit_partitioning.exchange import Transfers

ROUNDS = 12
"""Largest number of placements that are measured."""
SLACK = 0.02
"""Share of the memory that each further round keeps free in addition, because the bytes of groups at the peak are estimates."""
BATCH = 8
"""Groups are ranked again whenever 1 / BATCH of the excess has been moved."""


def repair(task: Task, device: NDArray[np.int16], priority: NDArray[np.float32] | None = None) -> NDArray[np.int16]:
    """A placement that fits: `device`, with groups moved off the devices that the measured peak memory overfills.

    Each round measures the placement (one evaluation; none if the budget is used up). A group is estimated to take its
    persistent bytes and a share of the bytes that its kernels write; all groups of a device have the share that explains its
    measured peak. Groups move to the device where they cost the fewest additional seconds (transfers and computation) per byte
    that they free, among devices that may run them and have room. First move groups that free memory even if copies of tensors
    stay behind (`careful`); if that does not suffice, move groups that free memory only if others follow. The result is
    deterministic. A note on `task.evaluate` says what was moved, and whether the placement still does not fit.

    Args:
        task: a problem and its evaluator.
        device: [g] device of each group, allowed.
        priority: [g] priorities that the placement will have.

    Returns:
        [g] devices: the placement that was measured to fit; if none was, the one of least excess.
    """
    problem, evaluate = task.problem, task.evaluate
    memory = problem.cluster.memory_bytes
    current, best, least = device, device, np.inf
    first: NDArray[np.float64] | None = None
    transfers: Transfers | None = None
    careful, room = True, memory
    for _ in range(ROUNDS):
        if evaluate.remaining <= 0:
            break
        m = evaluate(Placements.of(current, priority))
        use = np.fmax(m.peak_bytes[0], _persistent(problem, current))
        first = use if first is None else first
        over = 0.0 if m.fits[0] else float(np.maximum(use - memory, 0).sum())
        improved = over < least
        if improved:
            best, least, best_use = current, over, use
        if over == 0:  # it fits, or fails for a reason other than memory
            break
        transfers = transfers or Transfers.of(problem)
        if careful:
            current = _move_groups(transfers, best, best_use, room, careful)
            careful = improved and not np.array_equal(current, best)
            if not careful:
                current, use = best, best_use
        if not careful:
            before, current = current, _move_groups(transfers, current, use, room, careful)
            room = room - SLACK * memory
            if np.array_equal(before, current):
                break
    if first is not None and (first > memory).any():
        moved = int((best != device).sum())
        text = f"memory repair moved {moved} of {problem.g} groups, because {_overfull(problem, first, 'held')}"
        still = f"; it still does not fit: {_overfull(problem, best_use, 'holds')}" if (best_use > memory).any() else ""
        evaluate.note(text + still)
    return best


def _overfull(problem: Problem, use: NDArray[np.float64], verb: str) -> str:
    names, memory = problem.cluster.device_names, problem.cluster.memory_bytes
    full = np.flatnonzero(use > memory)
    return ", ".join(f"{names[d]} {verb} {units.mebibytes(use[d])} of {units.mebibytes(memory[d])}" for d in full)


def _persistent(problem: Problem, device: NDArray[np.int16]) -> NDArray[np.float64]:
    """[D] persistent bytes on each device."""
    return np.asarray(np.bincount(device, problem.group_persistent_bytes, problem.cluster.size), np.float64)


def _written(problem: Problem) -> NDArray[np.float64]:
    """[g] bytes that the kernels of each group allocate: their outputs, without views and updates of sources."""
    graph = problem.graph
    group = problem.grouping.group_of[graph.tensor_producer]
    return np.asarray(np.bincount(group, graph.owned_bytes, problem.g), np.float64)


def _move_groups(
    transfers: Transfers, device: NDArray[np.int16], use: NDArray[np.float64], room: NDArray[np.float64], careful: bool
) -> NDArray[np.int16]:
    """[g] `device`, with groups moved until, as far as possible, no overfull device is estimated to hold more than `room`.

    `use`: [D] bytes that each device was measured to hold. `careful`: tensors that a group exchanges with groups that stay do
    not count as freed, because copies of them stay; a group that then frees nothing is not moved.
    """
    device, use, problem = device.copy(), use.copy(), transfers.problem
    written = _written(problem)
    on = np.bincount(device, written, problem.cluster.size)
    share = np.divide(use - _persistent(problem, device), on, out=np.zeros_like(on), where=on > 0)
    takes = problem.group_persistent_bytes + share[device] * written
    full = np.flatnonzero(use > problem.cluster.memory_bytes)
    for d in full[np.argsort((room - use)[full], kind="stable")].tolist():
        while use[d] > room[d]:
            mine = np.flatnonzero(device == d)
            sent = transfers.bytes_.to_devices(problem, device)
            costs = transfers.seconds(device, sent)[mine] + problem.group_s[mine]
            copies = share[d] * sent[mine] if careful else np.zeros((len(mine), len(use)))
            frees = takes[mine] - copies[:, d]
            fills = takes[mine, None] + copies.sum(axis=1)[:, None] - copies
            possible = problem.allowed[mine] & (fills <= room - use) & (frees > 0)[:, None]
            possible[:, d] = False
            if not possible.any():
                break
            rank = np.where(possible, (costs - costs[:, [d]]) / np.where(frees > 0, frees, 1.0)[:, None], np.inf)
            goal = use[d] - max((use[d] - room[d]) / BATCH, 1.0)
            to = rank.argmin(axis=1)
            for i in np.argsort(rank.min(axis=1), kind="stable").tolist():
                target = int(to[i])
                if use[d] <= goal or not np.isfinite(rank[i, target]):
                    break
                if fills[i, target] <= room[target] - use[target]:
                    device[mine[i]] = target
                    use[d] -= frees[i]
                    use[target] += fills[i, target]
    return device
