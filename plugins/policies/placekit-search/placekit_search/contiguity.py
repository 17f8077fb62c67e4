"""Placements that give every device one run of a network's layers, near the best placement that a search has found."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray
from placekit_blocks import sequence

from placekit_core import PHASES, Placement, Placements, Problem, Task
from placekit_search.chain import excess

Ints = NDArray[np.int64]
STEPS = (1, 2, 4)  # layers that a border moves at once
_NUMBERED = re.compile(r"(?:[^.]+\.)+?\d+(?=\.|$)")  # a path up to its outermost number
LEAST = 8  # evaluations below which nothing is tried


@dataclass(frozen=True, eq=False)
class LayerGroups:
    """The layers of a problem whose groups hold them whole: l of them, in the order in which they run.

    Attributes:
        group: [l] the group with the forward operations of each.
        with_it: [g] layer whose block each group is in (its gradients, its parameters); for groups of no layer, the layer before
            them, or the first one.
        allowed: [l, D] whether the device may run all groups that are with the layer.
    """

    group: Ints
    with_it: Ints
    allowed: NDArray[np.bool_]

    def is_contiguous(self, device: NDArray[np.int16]) -> bool:
        """Whether every device has one run of layers, or none; `device` is [g]."""
        of_layer = device[self.group]
        return int((np.diff(of_layer) != 0).sum()) + 1 == len(np.unique(of_layer))


def layer_groups(problem: Problem) -> LayerGroups | None:
    """The layers; None if there are fewer than two, or if some of them are cut into several groups."""
    graph = problem.graph
    forward = graph.kernel & (graph.phase == PHASES.index("forward"))
    if not _whole(problem, forward):
        return None
    blocks = sequence(problem)
    of_op = blocks.of_op
    layers = np.flatnonzero(blocks.layer)
    if len(layers) < 2:
        return None
    pairs = np.unique(np.stack([of_op[forward], problem.grouping.group_of[forward].astype(np.int64)]), axis=1)
    pairs = pairs[:, blocks.layer[pairs[0]]]
    if len(pairs[0]) != len(layers):
        return None
    with_it = np.maximum(np.cumsum(blocks.layer) - 1, 0)[blocks.of_group]
    allowed = np.ones((len(layers), problem.cluster.size), np.bool_)
    np.logical_and.at(allowed, with_it, problem.allowed)
    return LayerGroups(pairs[1], with_it, allowed)


def _whole(problem: Problem, forward: NDArray[np.bool_]) -> bool:
    """Whether there are numbered modules, and each is in one group: much faster to see than the blocks of a large graph."""
    numbers = {path: found[0] for path in problem.graph.module.vocabulary if (found := _NUMBERED.match(path))}
    known = {layer: i for i, layer in enumerate(dict.fromkeys(numbers.values()))}
    layer = np.asarray(
        [known[numbers[path]] if path in numbers else -1 for path in problem.graph.module.vocabulary], np.int64
    )
    of_op = layer[problem.graph.module.codes] if problem.graph.n else np.zeros(0, np.int64)
    inside = forward & (of_op >= 0)
    pairs = np.unique(np.stack([of_op[inside], problem.grouping.group_of[inside].astype(np.int64)]), axis=1)
    return len(known) > 1 and len(np.unique(pairs[0])) == pairs.shape[1] > 1


def contiguous_near(
    task: Task, layers: LayerGroups, placement: Placement, evaluations: int
) -> tuple[Placement, float] | None:
    """The best contiguous placement found near `placement`, and its value; None if none fits. At most so many evaluations.

    It begins with the devices of `placement`, in the order of their layers and with as many of them, and every
    device alone. Then it moves borders, exchanges devices and gives one's layers to its neighbours, as long as that pays. Other
    groups stay where `placement` has them, or follow the layers.
    """
    seen: set[bytes] = set()
    best: tuple[bool, float, Ints, bool] | None = None  # whether it is over capacity, its value or excess, the split
    waiting = _starts(layers, placement.device)
    while waiting and len(seen) < evaluations:
        rows: dict[bytes, tuple[Ints, bool, NDArray[np.int16]]] = {}
        for split, follow in product(waiting, (False, True)):
            if layers.allowed[np.arange(len(split)), split].all():
                device = _device(layers, placement.device, split, follow)
                if device.tobytes() not in seen:
                    rows.setdefault(device.tobytes(), (split, follow, device))
        some = list(rows.values())[: evaluations - len(seen)]
        if not some:
            break
        value, over = excess(task.evaluate(_batch([row[2] for row in some], placement)), task)
        seen |= {row[2].tobytes() for row in some}
        i = int(np.lexsort((np.where(over > 0, over, value), over > 0))[0])
        rank = bool(over[i] > 0), float(over[i] if over[i] > 0 else value[i])
        if best is not None and rank >= best[:2]:
            break
        best = *rank, some[i][0], some[i][1]
        waiting = list(_neighbours(some[i][0], task.problem.cluster.size))
    if best is None or best[0]:
        return None
    device = _device(layers, placement.device, best[2], best[3])
    return task.problem.placement(device, placement.priority), best[1]


def _batch(rows: list[NDArray[np.int16]], placement: Placement) -> Placements:
    """Placements with the priorities of `placement`."""
    device = np.stack(rows)
    priority = placement.priority
    return Placements.of(device, None if priority is None else np.broadcast_to(priority, device.shape))


def _device(layers: LayerGroups, device: NDArray[np.int16], split: Ints, follow: bool) -> NDArray[np.int16]:
    """[g] devices of a placement with this split; `follow`: all groups go with their layer (`with_it`)."""
    result = split[layers.with_it].astype(np.int16) if follow else device.copy()
    result[layers.group] = split
    return result


def _starts(layers: LayerGroups, device: NDArray[np.int16]) -> list[Ints]:
    """[l] splits: the present shares of the devices as one run each, in both orders, and every device alone."""
    of_layer = device[layers.group].astype(np.int64)
    count = len(of_layer)
    devices = np.unique(of_layer)
    middle = [float(np.flatnonzero(of_layer == d).mean()) for d in devices]
    order = devices[np.argsort(middle, kind="stable")]
    found = []
    for some in (order, order[::-1]):
        sizes = [int((of_layer == d).sum()) for d in some]
        found.append(np.repeat(some, sizes))
    return found + [np.full(count, d) for d in range(layers.allowed.shape[1])]


def _neighbours(split: Ints, devices: int) -> Iterator[Ints]:
    """[l] splits that differ in a border, in two devices, or in one device more or less."""
    begin = np.flatnonzero(np.diff(split, prepend=-1))
    used, sizes = split[begin].tolist(), np.diff([*begin, len(split)]).tolist()
    for i, step, to in product(range(len(used)), STEPS, (-1, 1)):
        if 0 <= i + to < len(used) and sizes[i] >= step:
            moved = sizes.copy()
            moved[i], moved[i + to] = moved[i] - step, moved[i + to] + step
            yield np.repeat(used, moved)
    for i, d in product(range(len(used)), range(devices)):
        if d not in used:
            yield np.repeat([*used[:i], d, *used[i + 1 :]], sizes)
            if sizes[i] > 1:
                for new in ([d, used[i]], [used[i], d]):
                    half = [sizes[i] // 2, sizes[i] - sizes[i] // 2]
                    yield np.repeat([*used[:i], *new, *used[i + 1 :]], [*sizes[:i], *half, *sizes[i + 1 :]])
        elif used.index(d) > i:
            exchanged = used.copy()
            exchanged[i], exchanged[used.index(d)] = d, used[i]
            yield np.repeat(exchanged, sizes)
