"""A problem as a sequence of blocks: the layers of a network, each with its parameters, gradients and updates.

Stages of a pipeline consist of whole blocks. Each element of a list of modules (`h.0`, `model.layers.3`) is a block; in nested
lists, each element of the outermost one. Other operations of the forward phase form blocks by the first part of their module's
path, and each operation without a module is a block. The other phases follow the forward phase (`following.follow`). A group of
the problem is in one block, and the forward data flow between blocks has no cycle: blocks on a cycle become one.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from heapq import heapify, heappop, heappush

import numpy as np
from numpy.typing import ArrayLike, NDArray

from placekit_core import Placement, Problem, strongly_connected
from placekit_layers.following import follow, united
from placekit_layers.units import FREE, Ints, Units, distinct_pairs, position

NUMBERED = re.compile(r"^((?:[^.]+\.)*?[^.]+)\.(\d+)(?=\.|$)")  # the outermost numbered part of a path


@dataclass(frozen=True, eq=False)
class Blocks:
    """The b blocks of a problem, in the order in which they run.

    Attributes:
        problem: their problem, with g groups.
        of_group: [g] block of each group.
        names: [b] path of the module, or name of the operation that takes longest.
        layer: [b] whether the block is one of the network's repeated layers.
        source, target: forward data flow between blocks: distinct pairs, source < target, sorted.
    """

    problem: Problem
    of_group: Ints
    names: tuple[str, ...]
    layer: NDArray[np.bool_]
    source: Ints
    target: Ints

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def of_op(self) -> Ints:
        """[n] block of each operation."""
        return self.of_group[self.problem.grouping.group_of]

    @cached_property
    def seconds(self) -> NDArray[np.float64]:
        """[b, D] seconds of all operations of each block on each device."""
        return self._sum(self.problem.group_s)

    @cached_property
    def persistent_bytes(self) -> NDArray[np.float64]:
        """[b] parameters, optimizer state and inputs of each block."""
        return self._sum(self.problem.group_persistent_bytes[:, None])[:, 0]

    @cached_property
    def parameter_bytes(self) -> NDArray[np.float64]:
        """[b] parameters of each block, without optimizer state: the outputs of sources that a forward operation reads."""
        graph = self.problem.graph
        weight = np.asarray([t in ("parameter", "buffer") for t in graph.op_type.vocabulary], np.bool_)
        own = np.where(weight[graph.op_type.codes] & ~graph.kernel, graph.persistent_bytes, 0)
        return np.bincount(self.of_op, own, minlength=len(self)).astype(np.float64)

    @cached_property
    def allowed(self) -> NDArray[np.bool_]:
        """[b, D] whether the device may run the whole block."""
        ok = np.ones((len(self), self.problem.cluster.size), np.bool_)
        np.logical_and.at(ok, self.of_group, self.problem.allowed)
        return ok

    def placement(self, device: ArrayLike) -> Placement:
        """The placement that puts each block on a device: `device` is [b]."""
        return self.problem.placement(np.asarray(device, np.int16)[self.of_group])

    def _sum(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        total = np.zeros((len(self), values.shape[1]))
        np.add.at(total, self.of_group, values)
        return total


def sequence(problem: Problem) -> Blocks:
    """The blocks of a problem in the order in which they run; in the order of the graph if data flow does not decide."""
    graph = problem.graph
    units = Units.build(graph)
    leads = _leading_units(problem, units)
    tags, numbered = _block_of_units(units)
    label = np.full(units.count, FREE, np.int64)
    label[leads] = np.unique(tags[leads], return_inverse=True)[1]
    split = _acyclic(units, label, leads)
    joined = united(problem, follow(units, split)[units.of])[problem.grouping.group_of]
    lead = leads[units.of] & units.leading
    u, v = graph.op_edges
    keep = lead[u] & lead[v]
    count = int(joined.max(initial=-1)) + 1
    source, target = distinct_pairs(joined[u[keep]], joined[v[keep]])
    source, target = source[source != target], target[source != target]
    first = np.full(count, graph.n)
    np.minimum.at(first, joined[lead], position(graph)[lead])
    ordered = np.all(first[source] < first[target])  # then there is no cycle
    component = np.arange(count) if ordered else strongly_connected(count, source, target)
    block, order = _number_in_order(problem, component[joined], lead)
    a, b = block[u[keep]], block[v[keep]]
    source, target = distinct_pairs(a[a != b], b[a != b])
    of_group = np.empty(problem.g, np.int64)
    of_group[problem.grouping.group_of] = block
    names, layer = _names_and_layers(problem, block, order, numbered[units.of] & lead)
    return Blocks(problem, of_group, names, layer, source, target)


def _leading_units(problem: Problem, units: Units) -> NDArray[np.bool_]:
    """[u] units that blocks are made of: forward kernels, but not constants (which read nothing and take no time)."""
    graph = problem.graph
    idle = (problem.op_s.max(axis=1) == 0) & (np.diff(graph.input_ptr) == 0)
    works = units.leading & ~idle
    found = np.bincount(units.of[works], minlength=units.count) > 0
    return found if found.any() else units.forward


def _block_of_units(units: Units) -> tuple[Ints, NDArray[np.bool_]]:
    """[u] number of the block by the unit's module path (without a path, one of its own), and whether the block is a layer."""
    graph = units.graph
    paths = graph.module.vocabulary
    lists = Counter(m[1] for m in map(NUMBERED.match, sorted(set(_numbered_parts(paths)))) if m)
    cut = [_cut_path(path, lists) for path in paths]
    known = {tag: i for i, tag in enumerate(dict.fromkeys(tag for tag, _ in cut))}
    first = np.where(units.first_leading >= 0, units.first_leading, 0)
    codes = graph.module.codes[first]
    named = np.asarray([bool(path) for path in paths], np.bool_)[codes] & (units.first_leading >= 0)
    number = np.asarray([known[tag] for tag, _ in cut], np.int64)[codes]
    return (
        np.where(named, number, len(known) + np.arange(units.count)),
        named & np.asarray([layer for _, layer in cut], np.bool_)[codes],
    )


def _numbered_parts(paths: tuple[str, ...]) -> list[str]:
    """The paths up to their outermost number, for paths that have one."""
    return [m[0] for m in map(NUMBERED.match, paths) if m]


def _cut_path(path: str, lists: Counter[str]) -> tuple[str, bool]:
    """The path of the block that a module belongs to, and whether this is an element of a list of several modules."""
    found = NUMBERED.match(path)
    if found and lists[found[1]] > 1:
        return found[0], True
    return path.split(".")[0], False


def _acyclic(units: Units, label: Ints, leads: NDArray[np.bool_]) -> Ints:
    """Labels split so that no cycle is left; units that do not lead stay free."""
    filled = np.where(leads | ~units.forward, label, int(label.max(initial=-1)) + 1 + np.arange(units.count))
    return np.where(leads, units.acyclic(np.where(units.forward, filled, FREE)), FREE)


def _number_in_order(problem: Problem, of_op: Ints, lead: NDArray[np.bool_]) -> tuple[Ints, Ints]:
    """[n] blocks numbered in a topological order of their forward data flow, and [b] first operation of each.

    Of several blocks that may come next, the one whose first operation comes first in the graph's order.
    """
    graph, place = problem.graph, position(problem.graph)
    count = int(of_op.max(initial=-1)) + 1
    first = np.full(count, np.iinfo(np.int64).max)
    np.minimum.at(first, of_op, np.where(lead, place, graph.n + place))
    u, v = graph.op_edges
    keep = lead[u] & lead[v] & (of_op[u] != of_op[v])
    source, target = distinct_pairs(of_op[u[keep]], of_op[v[keep]])
    ptr = np.searchsorted(source, np.arange(count + 1))
    missing = np.bincount(target, minlength=count)
    ready = [(int(first[x]), x) for x in np.flatnonzero(missing == 0).tolist()]
    heapify(ready)
    rank = np.empty(count, np.int64)
    done = 0
    while ready:
        x = heappop(ready)[1]
        rank[x] = done
        done += 1
        for y in target[ptr[x] : ptr[x + 1]].tolist():
            missing[y] -= 1
            if missing[y] == 0:
                heappush(ready, (int(first[y]), y))
    begin = np.empty(count, np.int64)
    begin[rank] = first
    return rank[of_op], begin


def _names_and_layers(
    problem: Problem, block: Ints, order: Ints, numbered: NDArray[np.bool_]
) -> tuple[tuple[str, ...], NDArray[np.bool_]]:
    """The names of the blocks, and [b] which are layers: over half of their forward seconds are in an element of a list."""
    graph, count = problem.graph, len(order)
    seconds = np.where(graph.kernel & (graph.phase == 0), problem.op_s.min(axis=1), 0.0) + 1e-30
    of_layer = np.bincount(block, np.where(numbered, seconds, 0.0), minlength=count)
    forward = np.bincount(block, seconds, minlength=count)
    lists = Counter(m[1] for m in map(NUMBERED.match, sorted(set(_numbered_parts(graph.module.vocabulary)))) if m)
    names = []
    rows = np.split(np.argsort(block, kind="stable"), np.cumsum(np.bincount(block, minlength=count))[:-1])
    for members in rows:
        heavy = int(members[np.argmax(seconds[members])])
        names.append(_cut_path(graph.module[heavy], lists)[0] or graph.op_name[heavy])
    seen: Counter[str] = Counter()
    distinct = []
    for name in names:
        seen[name] += 1
        distinct.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return tuple(distinct), of_layer > 0.5 * forward
