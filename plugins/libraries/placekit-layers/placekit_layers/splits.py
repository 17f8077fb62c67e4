"""Contiguous splits: every device gets one run of a network's layers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from placekit_core import PHASES, Problem
from placekit_layers.blocks import NUMBERED, Blocks, sequence
from placekit_layers.units import Ints

STEPS = (1, 2, 4)  # layers that a border moves at once


def runs(device: NDArray[np.integer]) -> tuple[list[int], list[int]]:
    """The runs of equal devices along a sequence: the device of each run, and its length."""
    begin = np.flatnonzero(np.diff(device, prepend=-1))
    return device[begin].tolist(), np.diff([*begin, len(device)]).tolist()


@dataclass(frozen=True, eq=False)
class LayerGroups:
    """The l layers of a problem, in the order in which they run; the forward operations of each are one group.

    Attributes:
        group: [l] the group with the forward operations of each.
        layer_of: [g] layer whose block each group is in (as its gradients or parameters); for groups of no layer, the layer
            before them, or the first one.
        allowed: [l, D] whether the device may run all groups that `layer_of` assigns to the layer.
    """

    group: Ints
    layer_of: Ints
    allowed: NDArray[np.bool_]

    def is_contiguous(self, device: NDArray[np.int16]) -> bool:
        """Whether every device has one run of layers, or none; `device` is [g]."""
        of_runs = runs(device[self.group])[0]
        return len(of_runs) == len(set(of_runs))

    def allows(self, split: Ints) -> bool:
        """Whether every device may run the layers that `split` [l] gives it."""
        return bool(self.allowed[np.arange(len(split)), split].all())

    def with_split(self, device: NDArray[np.int16], split: Ints, follow: bool) -> NDArray[np.int16]:
        """[g] `device`, with the layers as in `split` [l]; with `follow`, all other groups go with their layer (`layer_of`)."""
        result = split[self.layer_of].astype(np.int16) if follow else device.copy()
        result[self.group] = split
        return result

    def contiguous_like(self, device: NDArray[np.int16]) -> list[Ints]:
        """[l] splits that give each device one run of as many layers as `device` does, in both orders; and single devices."""
        of_layer = device[self.group].astype(np.int64)
        devices = np.unique(of_layer)
        middle = [float(np.flatnonzero(of_layer == d).mean()) for d in devices]
        order = devices[np.argsort(middle, kind="stable")]
        both = [np.repeat(some, [int((of_layer == d).sum()) for d in some]) for some in (order, order[::-1])]
        return both + [np.full(len(of_layer), d) for d in range(self.allowed.shape[1])]


def layer_groups(problem: Problem) -> LayerGroups | None:
    """The layers; None if there are fewer than two, or if some of them are cut into several groups."""
    graph = problem.graph
    forward = graph.kernel & (graph.phase == PHASES.index("forward"))
    if not _numbered_modules_are_whole(problem, forward):
        return None
    blocks = sequence(problem)
    layers = np.flatnonzero(blocks.layer)
    if len(layers) < 2:
        return None
    pairs = _distinct(blocks.of_op[forward], problem.grouping.group_of[forward])
    pairs = pairs[:, blocks.layer[pairs[0]]]
    if len(pairs[0]) != len(layers):
        return None
    layer_of = np.maximum(np.cumsum(blocks.layer) - 1, 0)[blocks.of_group]
    allowed = np.ones((len(layers), problem.cluster.size), np.bool_)
    np.logical_and.at(allowed, layer_of, problem.allowed)
    return LayerGroups(pairs[1], layer_of, allowed)


def _numbered_modules_are_whole(problem: Problem, forward: NDArray[np.bool_]) -> bool:
    """Whether there are numbered modules, each in one group: a quick check before `sequence`, which is slow for large graphs."""
    module = problem.graph.module
    found = [match[0] if (match := NUMBERED.match(path)) else "" for path in module.vocabulary]
    known = {layer: i for i, layer in enumerate(dict.fromkeys(filter(None, found)))}
    layer = np.asarray([known.get(path, -1) for path in found], np.int64)
    of_op = layer[module.codes] if problem.graph.n else np.zeros(0, np.int64)
    inside = forward & (of_op >= 0)
    pairs = _distinct(of_op[inside], problem.grouping.group_of[inside])
    return len(known) > 1 and len(np.unique(pairs[0])) == pairs.shape[1] > 1


def _distinct(first: NDArray[np.integer], second: NDArray[np.integer]) -> Ints:
    """[2, k] the distinct pairs of two columns."""
    return np.unique(np.stack([first.astype(np.int64), second.astype(np.int64)]), axis=1)


def neighbours(split: Ints, devices: int) -> Iterator[Ints]:
    """[l] splits that differ in one border, by an exchange of two devices, or by one device more or less."""
    used, sizes = runs(split)
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


def one_block_moved(split: NDArray[np.integer]) -> Iterator[Ints]:
    """Splits with one block less on one device and one more on another, or with two devices exchanged.

    Yields nothing if a device has several runs.
    """
    devices, sizes = runs(split)
    if len(set(devices)) < len(devices):
        return
    for i, j in product(range(len(devices)), repeat=2):
        if i == j:
            continue
        if sizes[i] > 1:
            moved = sizes.copy()
            moved[i], moved[j] = moved[i] - 1, moved[j] + 1
            yield np.repeat(devices, moved)
        if i < j:
            exchanged = devices.copy()
            exchanged[i], exchanged[j] = devices[j], devices[i]
            yield np.repeat(exchanged, sizes)


def even_splits(blocks: Blocks, count: int) -> NDArray[np.int16]:
    """[k, g] devices of at most `count` splits into stages of about equal seconds, over the first 1, 2, ... devices."""
    rows = []
    for stages in range(1, min(count, blocks.problem.cluster.size, len(blocks)) + 1):
        seconds = blocks.seconds[:, :stages].mean(axis=1)
        middle = np.cumsum(seconds) - seconds / 2
        device = np.minimum(middle / max(float(seconds.sum()), 1e-300) * stages, stages - 1).astype(np.int16)
        if blocks.allowed[np.arange(len(blocks)), device].all():
            rows.append(device[blocks.of_group])
    return np.stack(rows) if rows else np.empty((0, blocks.problem.g), np.int16)


def as_path(blocks: Blocks) -> Blocks:
    """The blocks as a chain, where each block reads from the one before it: its stages work one after another.

    A block that does not read from the one before (a branch, the embedding of positions) is joined with it.
    """
    reads: dict[int, set[int]] = {}
    for a, b in zip(blocks.source.tolist(), blocks.target.tolist(), strict=True):
        reads.setdefault(b, set()).add(a)
    parts: list[list[int]] = []
    for block in range(len(blocks)):
        if parts and not reads.get(block, set()).intersection(parts[-1]):
            parts[-1].append(block)
        else:
            parts.append([block])
    return _joined(blocks, parts)


def shortened(blocks: Blocks, most: int) -> Blocks:
    """At most `most` blocks: repeatedly joins the two successive blocks that together have the least work."""
    if len(blocks) <= most:
        return blocks
    seconds = blocks.seconds.min(axis=1).tolist()
    parts = [[i] for i in range(len(blocks))]
    while len(parts) > most:
        i = min(range(len(parts) - 1), key=lambda i: seconds[i] + seconds[i + 1])
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
        seconds[i : i + 2] = [seconds[i] + seconds[i + 1]]
    return _joined(blocks, parts)


def _joined(blocks: Blocks, parts: list[list[int]]) -> Blocks:
    """The blocks of each part, which are successive, as one block."""
    of = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    pairs = _distinct(of[blocks.source], of[blocks.target])
    pairs = pairs[:, pairs[0] != pairs[1]]
    names = tuple(blocks.names[part[0]] + ("" if len(part) == 1 else f" +{len(part) - 1}") for part in parts)
    layer = np.asarray([blocks.layer[part].all() for part in parts], np.bool_)
    return replace(blocks, of_group=of[blocks.of_group], names=names, layer=layer, source=pairs[0], target=pairs[1])
