"""Turns a program and a placement into a plan: runs (sequences of operations on one device) and transfers between devices."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from placekit_core import Executable, Graph


@dataclass(eq=False)
class Node:
    """One piece of work for one stream: a run of operations, or a transfer.

    Attributes:
        device: where the run computes, or the destination of the transfer.
        ops: operations of the run in their order; empty for a transfer.
        tensor: the tensor that is sent; -1 for a run.
        src: device that it is sent from; -1 for a run.
        reads: tensors on `device` (`src` for a transfer) that must stay in memory until the node is done: base tensors, or
            views that were sent.
        makes: tensors that it leaves on `device`.
        before, after: numbers of the nodes that it waits for, and of the nodes that wait for it.
        peak_bytes: highest memory on `device` of the tensors that it makes, while it runs; without the tensors that it reads.
        phase: for bulk-synchronous runs, 2 L + 1 for the operations of level L, 2 L + 2 for the transfers of their outputs, 0
            for the transfers of sources; otherwise 0.
    """

    device: int
    ops: list[int] = field(default_factory=list)
    tensor: int = -1
    src: int = -1
    reads: set[int] = field(default_factory=set)
    makes: set[int] = field(default_factory=set)
    before: set[int] = field(default_factory=set)
    after: list[int] = field(default_factory=list)
    peak_bytes: float = 0.0
    phase: int = 0

    @property
    def transfers(self) -> bool:
        """Whether it is a transfer."""
        return self.tensor >= 0


@dataclass(frozen=True, eq=False)
class Plan:
    """All nodes of one step, in an order in which each comes after the nodes that it waits for.

    Attributes:
        nodes: runs and transfers.
        uses: for each device, how many nodes read each tensor on it, plus 1 if the tensor is kept to the end.
        sources: for each device, the sources' tensors that live on it.
        home: device of each tensor that is kept to the end.
        graph: the graph with the operations and tensors.
    """

    nodes: list[Node]
    uses: list[dict[int, int]]
    sources: list[list[int]]
    home: dict[int, int]
    graph: Graph

    def about(self, node: Node) -> str:
        """The work of a node, as text."""
        names = self.graph.op_name
        if node.transfers:
            return f"sending the result of {names[self.graph.tensor_producer[node.tensor]]!r}"
        first, last = names[node.ops[0]], names[node.ops[-1]]
        return f"in {first!r}" if len(node.ops) == 1 else f"in one of {len(node.ops)} operations, {first!r} to {last!r}"


def priorities(made: Plan, graph: Graph, priority: NDArray[np.float32]) -> list[float]:
    """[nodes] priorities: a run has that of its first operation, a transfer that of the operation that writes its tensor."""
    return [float(priority[node.ops[0] if node.ops else graph.tensor_producer[node.tensor]]) for node in made.nodes]


class Values:
    """Finds the value that a reader uses on its device: the tensor itself or, if it is a view, its base.

    A tensor is sent once to each device that reads it. A device that has the base makes the view from it again; other
    devices get the view itself.
    """

    def __init__(self, graph: Graph, executable: Executable, device: NDArray[np.int16]) -> None:
        self.graph, self.device = graph, device
        self.views = executable.views
        consumer, tensor = graph.edge_op, graph.input_tensor
        remote = device[graph.tensor_producer[tensor]] != device[consumer]
        self._whole = {(int(t), int(device[c])) for c, t in zip(consumer[remote], tensor[remote], strict=True)}

    def base(self, tensor: int) -> int:
        """The tensor that owns the memory."""
        return self.views.get(tensor, tensor)

    def owner(self, tensor: int) -> int:
        """Device on which the tensor is made."""
        return int(self.device[self.graph.tensor_producer[tensor]])

    def found(self, tensor: int, device: int) -> int:
        """The tensor that a reader of `tensor` uses on `device`: the tensor itself or its base."""
        base = self.base(tensor)
        return base if self.owner(base) == device or (base, device) in self._whole else tensor


def plan(
    graph: Graph,
    executable: Executable,
    device: NDArray[np.int16],
    size: int,
    order: Sequence[int],
    fuse: bool = True,
    fixed: bool = True,
    keep: Collection[int] = (),
    level: NDArray[np.int32] | None = None,
) -> Plan:
    """The nodes of a step.

    Args:
        device: [n] device of each operation, of `size` devices.
        order: kernels in topological order; nodes are created in this order.
        fuse: join successive operations of a device into one run if no transfer lies between them.
        fixed: the devices keep to `order`. Otherwise operations are joined only if that delays and reorders nothing.
        keep: tensors to keep to the end, besides the new values of sources.
        level: [n] for bulk-synchronous runs, the level of each kernel; `order` goes level by level.
    """
    values = Values(graph, executable, device)
    made = _Nodes(graph, values, level)
    nodes, made_by = made.nodes, made.made_by
    last: dict[int, int] = {}  # device -> its run that may still grow
    sends = _sent(graph, values)
    for op in order:
        at = int(device[op])
        reads = {values.found(int(t), at) for t in graph.inputs(op)}
        before = {i for t in reads if (i := made.arrival(t, at)) is not None}
        run, phase = last.get(at), 0 if level is None else 2 * int(level[op]) + 1
        if run is None or (nodes[run].phase != phase if phase else not _joins(nodes[run], run, before, fixed)):
            nodes.append(Node(at, phase=phase))
            run = last[at] = len(nodes) - 1
        node = nodes[run]
        node.ops.append(op)
        node.before |= before - {run}
        node.reads |= {t for t in reads if made_by.get((t, at)) != run}
        for t in graph.outputs(op):
            if values.base(t) == t:
                made_by[t, at] = run
                node.makes.add(t)
        if not fuse or (not phase and any((t, at) in sends for t in graph.outputs(op))):
            del last[at]
    for i, node in enumerate(nodes):
        for j in node.before:
            nodes[j].after.append(i)
    return _with_uses(graph, executable, values, nodes, size, keep)


class _Nodes:
    """The nodes of a plan under construction.

    Attributes:
        nodes: runs and transfers.
        made_by: (tensor, device) to the number of the node that leaves it there; sources have none.
    """

    def __init__(self, graph: Graph, values: Values, level: NDArray[np.int32] | None) -> None:
        self.graph, self.values, self.level = graph, values, level
        self.nodes: list[Node] = []
        self.made_by: dict[tuple[int, int], int] = {}

    def arrival(self, tensor: int, to: int) -> int | None:
        """The node that brings or makes `tensor` on device `to`; None for a source that lives there."""
        if (tensor, to) in self.made_by:
            return self.made_by[tensor, to]
        owner = self.values.owner(tensor)
        if owner == to:
            return None
        node = Node(to, tensor=tensor, src=owner, makes={tensor})
        producer = self.graph.tensor_producer[tensor]
        if self.level is not None and self.graph.kernel[producer]:
            node.phase = 2 * int(self.level[producer]) + 2
        own = self.values.found(tensor, owner)
        node.reads.add(own)
        if (maker := self.made_by.get((own, owner))) is not None:
            node.before.add(maker)
        self.nodes.append(node)
        self.made_by[tensor, to] = len(self.nodes) - 1
        return len(self.nodes) - 1


def _sent(graph: Graph, values: Values) -> set[tuple[int, int]]:
    """(tensor, device that makes it) for all tensors that another device reads."""
    found = set()
    for op in range(graph.n):
        to = int(values.device[op])
        for t in graph.inputs(op):
            owner = values.owner(int(t))
            if owner != to:
                found.add((int(t), owner))
    return found


def _joins(node: Node, number: int, before: set[int], fixed: bool) -> bool:
    """Whether an operation that waits for `before` may join the run `node` without delaying or reordering anything."""
    others = before - {number}
    return others <= node.before and (fixed or number in before)


def _peak(graph: Graph, values: Values, run: Node) -> float:
    """Peak bytes of the tensors that a run makes; tensors that no other node reads are dropped after their last reader."""
    last: dict[int, int] = {}
    for i, op in enumerate(run.ops):
        made = [int(t) for t in graph.outputs(op) if values.base(int(t)) == t]
        last.update(dict.fromkeys(made, i))
        last.update({base: i for t in graph.inputs(op) if (base := values.base(int(t))) in last})
    dropped: dict[int, list[int]] = defaultdict(list)
    for t, i in last.items():
        if t not in run.makes:
            dropped[i].append(t)
    live = most = 0.0
    for i, op in enumerate(run.ops):
        live += sum(float(graph.tensor_bytes[t]) for t in graph.outputs(op) if values.base(int(t)) == t)
        most = max(most, live)
        live -= sum(float(graph.tensor_bytes[t]) for t in dropped[i])
    return most


def _with_uses(
    graph: Graph, executable: Executable, values: Values, nodes: list[Node], size: int, keep: Collection[int]
) -> Plan:
    """Remove tensors that no other node reads from `makes` of the nodes, and count the readers of the rest."""
    uses: list[dict[int, int]] = [defaultdict(int) for _ in range(size)]
    home = {t: values.owner(t) for t in {*executable.updates.values(), *map(values.base, keep)}}
    for node in nodes:
        for t in node.reads:
            uses[node.src if node.transfers else node.device][t] += 1
    for t, at in home.items():
        uses[at][t] += 1
    for node in nodes:
        node.makes = {t for t in node.makes if uses[node.device].get(t)}
        node.peak_bytes = float(graph.tensor_bytes[node.tensor]) if node.transfers else _peak(graph, values, node)
    sources: list[list[int]] = [[] for _ in range(size)]
    for op in np.flatnonzero(~graph.kernel):
        for t in graph.outputs(int(op)):
            if values.base(t) == t:
                sources[int(values.device[op])].append(t)
    return Plan(nodes, [dict(u) for u in uses], sources, home, graph)
