"""The modules of a network: seconds and bytes of each, colours for the timeline, and the edges that cross devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placekit_core import Labels, Problem, Schedule

NODES = 4_000
"""Modules that a report has at most: those with the most seconds. The figures of a module include all modules below it."""
DEEPEST = 100
"""Levels of the tree. Deeper paths end in one node, so that neither Python nor a browser runs out of stack."""
COLOURS = 10
CUTS = 200
"""Rows in the table of edges between devices."""
OTHER = "other"
LAYERS, RUNS = 4, 8
"""Layers of a list that are joined to runs, and runs of all lists together."""


@dataclass(frozen=True, eq=False)
class Tree:
    """Paths as a tree of k nodes; node 0 is the root, whose name is empty, and parents come before their children.

    Attributes:
        names: [k] whole paths.
        parent, depth: [k]; the root has parent -1 and depth 0.
        node: [v] node of each path that was given.
    """

    names: tuple[str, ...]
    parent: NDArray[np.int32]
    depth: NDArray[np.int32]
    node: NDArray[np.int32]

    @classmethod
    def of(cls, paths: Sequence[str]) -> Tree:
        """The tree of dotted paths."""
        index, parent, depth = {"": 0}, [-1], [0]

        def add(path: str) -> int:
            node, parts = index.get(path), path.split(".", DEEPEST - 1)
            if node is not None:
                return node
            node = 0
            for i in range(1, len(parts) + 1):
                name, above = ".".join(parts[:i]), node
                node = index.setdefault(name, len(parent))
                if node == len(parent):
                    parent.append(above)
                    depth.append(depth[above] + 1)
            return node

        node = [add(path) for path in paths]
        return cls(tuple(index), *(np.asarray(x, np.int32) for x in (parent, depth, node)))

    def below(self, own: NDArray[Any]) -> NDArray[Any]:
        """[k, ...] sums over each node and all nodes below it, from each node's own values."""
        total = own.copy()
        for i in range(len(self.names) - 1, 0, -1):
            total[self.parent[i]] += total[i]
        return total


def module_table(problem: Problem, device: NDArray[np.int16], op_s: NDArray[np.float64]) -> dict[str, Any]:
    """`modules` of a report: the tree of modules with the seconds, persistent bytes and kernels of each.

    Takes the device of each operation and its seconds there, both [n].
    """
    graph, size = problem.graph, problem.cluster.size
    tree = Tree.of(graph.module.vocabulary)
    node, k = tree.node[graph.module.codes], len(tree.names)
    cell = node.astype(np.int64) * size + device
    by_device = tree.below(np.bincount(cell, op_s, minlength=k * size).reshape(k, size))
    bytes_ = tree.below(np.bincount(node, graph.persistent_bytes, minlength=k))
    count = tree.below(np.bincount(node, graph.kernel, minlength=k))
    seconds = by_device.sum(axis=1)
    used = tree.below(np.bincount(node, minlength=k)) > 0
    order = [i for i in np.lexsort((tree.depth, -seconds)).tolist() if used[i]]  # a parent has no fewer seconds
    kept = np.sort(np.asarray(order[:NODES], np.int64))
    row = np.full(k, -1)
    row[kept] = np.arange(len(kept))
    parent = tree.parent[kept]
    return {
        "name": [tree.names[i] for i in kept],
        "parent": np.where(parent < 0, -1, row[parent]),
        "depth": tree.depth[kept],
        "seconds": seconds[kept],
        "bytes": bytes_[kept].astype(np.int64),
        "operations": count[kept].astype(np.int64),
        "device_seconds": by_device[kept],
    }


def colours(problem: Problem, op_s: NDArray[np.float64]) -> tuple[list[str], NDArray[np.int64]]:
    """Names of the colours, most seconds first, and [n] the colour of each operation.

    A colour is a module with all below it, or a run of the layers of a list (`layers.0-3`). A network without modules is
    coloured by the types of its operations.
    """
    graph = problem.graph
    modules = any(graph.module.vocabulary)
    return coloured(graph.module if modules else graph.op_type, op_s, graph.kernel, modules)


def coloured(
    labels: Labels, op_s: NDArray[np.float64], ran: NDArray[np.bool_], modules: bool
) -> tuple[list[str], NDArray[np.int64]]:
    """As `colours`, for [n] labels: paths of `modules`, or types. `ran` marks operations that take time."""
    if modules:
        key, names = _parts(Labels(labels.codes, _joined(labels.vocabulary)), op_s, ran)
    else:
        key, names = labels.codes.astype(np.int64), list(labels.vocabulary)
    seconds = np.bincount(key[ran], op_s[ran], minlength=len(names))
    present = np.flatnonzero(np.bincount(key[ran], minlength=len(names)))
    # two digits, so that modules of nearly equal seconds keep their order
    order = sorted(present.tolist(), key=lambda i: (-float(f"{seconds[i]:.2g}"), i))
    shown = order if len(order) <= COLOURS else order[: COLOURS - 1]
    colour = np.full(len(names), len(shown))
    colour[shown] = np.arange(len(shown))
    return [names[i] for i in shown] + [OTHER] * (len(order) > len(shown)), colour[key]


def _joined(paths: Sequence[str]) -> tuple[str, ...]:
    """Paths, with the layers of a list replaced by runs of about equal length: `layers.0-3`.

    A list has at least `LAYERS` numbered modules with modules of their own.
    """
    tree = Tree.of(paths)
    inner = {tree.names[i] for i in tree.parent[1:]}
    numbers: dict[str, list[int]] = {}
    for name in tree.names:
        above, _, last = name.rpartition(".")
        if last.isdigit() and name in inner and not any(word.isdigit() for word in above.split(".")):
            numbers.setdefault(above, []).append(int(last))
    lists = {above: sorted(found) for above, found in numbers.items() if len(found) >= LAYERS}
    run: dict[str, str] = {}
    for above, found in lists.items():
        for part in np.array_split(found, min(len(found), max(2, RUNS // len(lists)))):
            name = f"{part[0]}" if len(part) == 1 else f"{part[0]}-{part[-1]}"
            run |= {".".join(filter(None, (above, str(i)))): ".".join(filter(None, (above, name))) for i in part}
    joined = []
    for path in paths:
        words = path.split(".")
        heads = (".".join(words[: i + 1]) for i in range(len(words)))
        head = next((h for h in heads if h in run), "")
        joined.append(run[head] if head else path)
    return tuple(joined)


def _parts(labels: Labels, op_s: NDArray[np.float64], kernel: NDArray[np.bool_]) -> tuple[NDArray[np.int64], list[str]]:
    """The modules that get a colour, before the smallest are joined: [n] part of each operation, and the parts' names.

    The largest part is split into its children as long as colours suffice. The whole network is always split, and so is a
    part with more than half of the seconds; the smallest parts then share one colour.
    """
    tree = Tree.of(labels.vocabulary)
    k = len(tree.names)
    node = tree.node[labels.codes]
    total = tree.below(np.bincount(node, op_s, minlength=k))
    own = np.bincount(node[kernel], minlength=k) > 0  # then it stays a part for these operations
    children: dict[int, list[int]] = {}
    for i in range(1, k):
        children.setdefault(int(tree.parent[i]), []).append(i)
    parts, split, used = {0}, set[int](), 1
    while used <= COLOURS:
        added = {i: len(children[i]) - (not own[i]) for i in parts - split if i in children}
        most = {i for i in added if total[i] > total[0] / 2 and added[i] < COLOURS}
        can = [i for i, more in sorted(added.items()) if used + more <= COLOURS or used == 1 or i in most]
        if not can:
            break
        largest = max(can, key=lambda i: float(total[i]))
        if total[largest] * COLOURS < total[0]:
            break
        split.add(largest)
        parts |= set(children[largest])
        used += added[largest]
    part = np.zeros(k, np.int64)
    for i in range(1, k):
        part[i] = i if i in parts else part[tree.parent[i]]
    return part[node], [name or "the network itself" for name in tree.names]


def cut_table(problem: Problem, schedule: Schedule) -> dict[str, Any]:
    """`cut` of a report: bytes and transfers between modules on different devices, most bytes first.

    A tensor that several modules read on one device is counted for the first of them. If there are more than `CUTS` rows,
    paths are shortened until there are not.
    """
    graph = problem.graph
    tensor, src, dst = schedule.transfer_tensor, schedule.transfer_src, schedule.transfer_dst
    producer = graph.tensor_producer[tensor]
    reader = _first_readers(problem, schedule)
    codes, names = graph.module.codes, graph.module.vocabulary
    depth = max((name.count(".") + 1 for name in names if name), default=0)
    while True:
        short = Tree.of([".".join(name.split(".")[:depth]) if depth else "" for name in names])
        path, k = short.node[codes], len(short.names)
        pair = np.ravel_multi_index((src, dst), (problem.cluster.size,) * 2) if len(tensor) else tensor.astype(np.int64)
        key = (path[producer].astype(np.int64) * k + path[reader]) * problem.cluster.size**2 + pair
        keys, row = np.unique(key, return_inverse=True)
        if len(keys) <= CUTS or depth == 0:
            break
        depth -= 1
    bytes_ = np.bincount(row, graph.tensor_bytes[tensor], minlength=len(keys)).astype(np.int64)
    count = np.bincount(row, minlength=len(keys))
    order = np.argsort(-bytes_, kind="stable")
    shown = order[:CUTS]
    modules, pairs = np.divmod(keys[shown], problem.cluster.size**2)
    devices = problem.cluster.device_names
    return {
        "source": [short.names[i] for i in modules // k],
        "destination": [short.names[i] for i in modules % k],
        "from": [devices[d] for d in pairs // problem.cluster.size],
        "to": [devices[d] for d in pairs % problem.cluster.size],
        "bytes": bytes_[shown],
        "transfers": count[shown],
        "left_out_bytes": int(bytes_[order[CUTS:]].sum()),
        "micro_batch": schedule.op_runs is not None,
    }


def _first_readers(problem: Problem, schedule: Schedule) -> NDArray[np.int64]:
    """[x] the first operation on the destination that reads each transfer's tensor, else the tensor's producer."""
    graph, size = problem.graph, problem.cluster.size
    edge = graph.input_tensor.astype(np.int64) * size + schedule.op_device[graph.edge_op]
    keys, first = np.unique(edge, return_index=True)  # edges are in the order of their readers
    if not len(keys):
        return graph.tensor_producer[schedule.transfer_tensor].astype(np.int64)
    wanted = schedule.transfer_tensor.astype(np.int64) * size + schedule.transfer_dst
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    reader = graph.edge_op[first[at]].astype(np.int64)
    return np.where(keys[at] == wanted, reader, graph.tensor_producer[schedule.transfer_tensor])
