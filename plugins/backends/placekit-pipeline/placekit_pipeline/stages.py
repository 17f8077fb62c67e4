"""The costs of a problem for backend `pipeline`: seconds by phase, bytes that stages keep, and recomputation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from placekit_layers import Blocks, sequence

from placekit_core import BackendError, Problem, strongly_connected
from placekit_pipeline.nets import BACKWARD, FORWARD, UPDATE, Floats, Ints, pointer


@dataclass(frozen=True, eq=False)
class Stores:
    """S sets of tensors; a stage keeps a set in memory if it contains one of the set's holders.

    Attributes:
        once: [S] whether a stage keeps the set once (gradients), or for each micro-batch in flight (activations).
        bytes_: [S] bytes of each set.
        ptr, holder: groups that need each set in memory, in compressed rows.
    """

    once: NDArray[np.bool_]
    bytes_: Floats
    ptr: Ints
    holder: Ints

    def of_groups(self, g: int) -> tuple[Ints, Ints]:
        """The stores that each of g groups holds, in compressed rows."""
        store = np.repeat(np.arange(len(self.bytes_)), np.diff(self.ptr))
        order = np.argsort(self.holder, kind="stable")
        return np.searchsorted(self.holder[order], np.arange(g + 1)).astype(np.int64), store[order]


@dataclass(frozen=True, eq=False)
class Stages:
    """The costs of a problem by phase; n operations, g groups, D devices.

    Attributes:
        phase: [n] forward 0, backward 1, update 2; never earlier than the phase of an input. Under `inference`, all
            operations are forward.
        blocks: the problem's blocks if layers recompute their forward pass (`checkpointing`), else None.
        part: [n] forward 0, backward 1, gradients of weights 2 (with `zero_bubble`), update 3; -1 for sources.
        repeats: [n] forward operations that the backward phase recomputes.
        stores: the tensors that stages keep.
        recomputed_bytes: [n] bytes of the activations that the layer of each backward operation has recomputed, and keeps
            while its backward pass runs.
        counted: [t] whether the memory of each tensor is in `stores` or `recomputed_bytes`.
    """

    problem: Problem
    phase: Ints
    blocks: Blocks | None
    part: Ints
    repeats: NDArray[np.bool_]
    stores: Stores
    recomputed_bytes: Floats
    counted: NDArray[np.bool_]

    @classmethod
    def of(cls, problem: Problem, trains: bool, checkpointing: bool, split_backward: bool) -> Stages:
        """The stages of a problem. Raises BackendError with `checkpointing` if the program has no layers."""
        graph = problem.graph
        phase = _phase(problem) if trains else np.zeros(graph.n, np.int64)
        part = np.where(graph.kernel, np.asarray([0, 1, 3])[phase], -1)
        if split_backward:
            part[weight_gradients(problem, phase)] = 2
        blocks = sequence(problem) if checkpointing else None
        repeats = np.zeros(graph.n, np.bool_)
        if blocks is not None:
            if not blocks.layer.any():
                raise BackendError(
                    f"checkpointing=block keeps the inputs of layers, and {graph.name!r} has no repeated layers",
                    "put the layers into a list of modules (h.0, h.1, ...), or use checkpointing=none",
                )
            repeats = (part == 0) & blocks.layer[blocks.of_op] & bool((part == 1).any())
        return cls(problem, phase, blocks, part, repeats, *_stores(problem, phase, blocks))

    def grouped(self, problem: Problem) -> Stages:
        """The same costs for the larger groups of `problem`; layers stay the same."""
        kept = _stores(problem, self.phase, self.blocks)
        return Stages(problem, self.phase, self.blocks, self.part, self.repeats, *kept)

    def group_s(self) -> Floats:
        """[g, D, 4] seconds of each group on each device by part; recomputed forward passes count as backward."""
        problem, group = self.problem, self.problem.grouping.group_of
        total = np.zeros((problem.g, problem.cluster.size, 4))
        for part in range(4):
            of = (self.part == part) | (self.repeats if part == 1 else False)
            np.add.at(total[:, :, part], group[of], problem.op_s[of])
        return total

    @property
    def works(self) -> NDArray[np.bool_]:
        """[g] whether a group has operations of the forward or backward pass, not only updates."""
        works = (self.part >= 0) & (self.part < 3)
        return np.bincount(self.problem.grouping.group_of[works], minlength=self.problem.g) > 0

    @property
    def gradient_bytes(self) -> Floats:
        """[g] bytes of the gradients that each group computes and an update reads."""
        graph = self.problem.graph
        storage = graph.tensor_storage[graph.input_tensor]
        maker = graph.tensor_producer[storage]
        read = graph.kernel[maker] & (self.phase[maker] == BACKWARD) & (self.phase[graph.edge_op] == UPDATE)
        each = np.unique(storage[read])
        group = self.problem.grouping.group_of[graph.tensor_producer[each]]
        return np.bincount(group, graph.owned_bytes[each], minlength=self.problem.g).astype(np.float64)

    @property
    def state_bytes(self) -> Floats:
        """[g] bytes of the optimiser's state in each group."""
        graph = self.problem.graph
        own = np.where(graph.op_type.is_value("state"), graph.persistent_bytes, 0)
        return np.bincount(self.problem.grouping.group_of, own, minlength=self.problem.g).astype(np.float64)

    @property
    def work_bytes(self) -> Floats:
        """[g] bytes that the largest operation of each group reads and writes, without parameters and tensors that stages keep
        anyway, and with the activations that its layer has recomputed.
        """
        graph = self.problem.graph
        bytes_ = np.where(graph.kernel[graph.tensor_producer] & ~self.counted, graph.tensor_bytes, 0)
        each = np.bincount(graph.edge_op, bytes_[graph.input_tensor], minlength=graph.n).astype(np.float64)
        each += np.bincount(graph.tensor_producer, np.minimum(bytes_, graph.owned_bytes), minlength=graph.n)
        each += self.recomputed_bytes
        largest = np.zeros(self.problem.g)
        np.maximum.at(largest, self.problem.grouping.group_of, np.where(self.part >= 0, each, 0.0))
        return largest


def _phase(problem: Problem) -> Ints:
    """[n] the latest phase among each operation and all its predecessors."""
    graph = problem.graph
    phase = graph.phase.astype(np.int64)
    if not np.any(phase[graph.tensor_producer[graph.input_tensor]] > phase[graph.edge_op]):
        return phase
    for v in graph.topological_order.tolist():
        before = graph.tensor_producer[graph.inputs(v)]
        phase[v] = max(phase[v], int(phase[before].max(initial=0)))
    return phase


def _stores(problem: Problem, phase: Ints, blocks: Blocks | None) -> tuple[Stores, Floats, NDArray[np.bool_]]:
    """`Stages.stores`, `recomputed_bytes` and `counted`."""
    graph, group = problem.graph, problem.grouping.group_of.astype(np.int64)
    storage = graph.tensor_storage[graph.input_tensor].astype(np.int64)
    maker, reader = graph.tensor_producer[storage], graph.edge_op
    made = graph.kernel[maker] & (graph.owned_bytes[storage] > 0)
    saved = made & (phase[maker] == FORWARD) & (phase[reader] == BACKWARD)
    gradient = made & (phase[maker] == BACKWARD) & (phase[reader] == UPDATE)
    recomputed, inner = np.zeros(graph.n), np.zeros(graph.e, np.bool_)
    if blocks is not None:
        home, there = blocks.of_op[maker], blocks.of_op[reader]
        inner = saved & blocks.layer[home] & (home == there)
        entering = made & (phase[maker] == FORWARD) & (phase[reader] == FORWARD) & (home != there)
        saved = (saved & ~inner) | (entering & blocks.layer[there])
        each = np.unique(storage[inner])
        whole = np.bincount(blocks.of_op[graph.tensor_producer[each]], graph.owned_bytes[each], minlength=len(blocks))
        again = graph.kernel & (phase == BACKWARD) & blocks.layer[blocks.of_op]
        recomputed = np.where(again, whole[blocks.of_op], 0.0)
    own = np.zeros(graph.t, np.bool_)
    own[storage[saved | gradient | inner]] = True
    kept = [
        *_sets_of_holders(graph.owned_bytes, storage[saved], group[reader[saved]], once=False),
        *_sets_of_holders(
            graph.owned_bytes,
            np.concatenate([storage[gradient], storage[gradient]]),
            np.concatenate([group[maker[gradient]], group[reader[gradient]]]),
            once=True,
        ),
    ]
    rows = [np.frombuffer(holders, np.int64) for (_, holders), _ in kept]
    stores = Stores(
        once=np.asarray([once for (once, _), _ in kept], np.bool_),
        bytes_=np.asarray([bytes_ for _, bytes_ in kept], np.float64),
        ptr=pointer(rows),
        holder=np.concatenate(rows) if rows else np.zeros(0, np.int64),
    )
    return stores, recomputed, own[graph.tensor_storage]


def _sets_of_holders(
    bytes_: NDArray[np.int64], storage: Ints, holder: Ints, once: bool
) -> Iterable[tuple[tuple[bool, bytes], float]]:
    """Bytes by (`once`, the holders as a string of int64); storages with the same holders are merged."""
    if not len(storage):
        return []
    pairs = np.unique(np.stack([storage, holder]), axis=1)
    begin = np.flatnonzero(np.diff(pairs[0], prepend=-1))
    ends = np.append(begin[1:], pairs.shape[1])
    total: dict[tuple[bool, bytes], float] = {}
    for a, b in zip(begin.tolist(), ends.tolist(), strict=True):
        key = (once, np.ascontiguousarray(pairs[1, a:b]).tobytes())
        total[key] = total.get(key, 0.0) + float(bytes_[pairs[0, a]])
    return total.items()


def weight_gradients(problem: Problem, phase: Ints) -> NDArray[np.bool_]:
    """[n] whether a backward operation leads only to the update of one parameter, so that no other stage waits for it.

    These can run late (Qi et al. 2023, Zero Bubble Pipeline Parallelism).
    """
    graph = problem.graph
    nothing, several = -1, -2
    reaches = np.full(graph.n, nothing, np.int64)
    update = phase == UPDATE
    reaches[update] = np.where(graph.colocate[update] >= 0, graph.colocate[update], graph.n + np.flatnonzero(update))
    producer = graph.tensor_producer
    backward = phase == BACKWARD
    for v in graph.topological_order[::-1].tolist():
        if not (backward[v] or update[v]):
            continue
        for u in producer[graph.inputs(v)].tolist():
            if backward[u]:  # if `v` leads to no update, its result may be needed at once
                known = reaches[v] != nothing and reaches[u] in (nothing, reaches[v])
                reaches[u] = reaches[v] if known else several
    return np.asarray(backward & (reaches >= 0))


def forward_order(problem: Problem, phase: Ints) -> tuple[Ints, Ints, Ints]:
    """Find the sets of groups that wait for each other in the forward phase (strongly connected components).

    Returns the set of each group [g], numbered in topological order, and the predecessors of each set, in compressed rows.
    """
    graph, group = problem.graph, problem.grouping.group_of.astype(np.int64)
    u, v = graph.op_edges
    keep = graph.kernel[u] & graph.kernel[v] & (phase[u] == FORWARD) & (phase[v] == FORWARD)
    a, b = group[u[keep]], group[v[keep]]
    pairs = np.unique(np.stack([a[a != b], b[a != b]]), axis=1)
    of = strongly_connected(problem.g, pairs[0], pairs[1])
    a, b = of[pairs[0]], of[pairs[1]]
    before = np.unique(np.stack([b[a != b], a[a != b]]), axis=1)
    ptr = np.searchsorted(before[0], np.arange(int(of.max(initial=-1)) + 2))
    return of, ptr.astype(np.int64), before[1].astype(np.int64)
