"""Parameters that do not fit on the fastest devices, in a chain of blocks: the linear program of `makespan.chain_bound`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placekit_scheduling.bounds.blocks import Blocks
from placekit_scheduling.bounds.kinds import Flags, Floats, Ints
from placekit_scheduling.bounds.relaxation import Relaxation
from placekit_scheduling.bounds.routes import concurrent_transfers, least_transfer_s

GRAIN = 1e-3  # groups and blocks whose seconds and bytes differ by this share at most get the same prices
LARGEST = 2_000  # joined groups and sources above which no prices are computed


@dataclass(frozen=True, eq=False)
class ChainProgram:
    """g groups on K kinds of devices, s of them copied sources; b blocks of R = K + 2 rows each, with e entries.

    A row is a sum of seconds that its block takes at least; row r belongs to block r // R.

    Attributes:
        row, group, seconds: [e], [e], [e, K] the entries: the seconds that a group adds to a row if it is on each kind.
        blocks: b.
        allowed: [g, K] whether a group may be on a kind.
        persistent_bytes: [g] of each group.
        room: [K] bytes of memory of all devices of each kind.
        source, reader: [s] groups without kernels, and for each a group that reads from it.
        copy_s: [s, K] least seconds of copying the source from another kind to this one, over the number of such copies that
            can run at the same time.
    """

    row: Ints
    group: Ints
    seconds: Floats
    blocks: int
    allowed: Flags
    persistent_bytes: Floats
    room: Floats
    source: Ints
    reader: Ints
    copy_s: Floats

    @classmethod
    def of(cls, relaxation: Relaxation) -> ChainProgram:
        problem, blocks = relaxation.problem, Blocks.of(relaxation)
        group = problem.grouping.group_of.astype(np.int64)
        allowed = np.ones((problem.g, len(relaxation.devices)), np.bool_)
        op, kind = np.nonzero(np.isinf(relaxation.seconds))
        allowed[group[op], kind] = False
        row, op, seconds = _entries(relaxation, blocks)
        tensor, reader = _one_reader_each(relaxation, blocks)
        return cls(
            row=row,
            group=group[op],
            seconds=seconds,
            blocks=int(blocks.block.max()) + 1,
            allowed=allowed,
            persistent_bytes=problem.group_persistent_bytes,
            room=relaxation.memory * relaxation.devices,
            source=group[problem.graph.tensor_producer[tensor]],
            reader=group[reader],
            copy_s=_copy_s(relaxation, tensor),
        )

    def bound_s(self, prices: ChainPrices) -> float:
        """What the prices prove, seconds: the formula of `makespan.chain_bound`."""
        cost = self.persistent_bytes[:, None] * prices.memory
        at_home = np.where(self.allowed, cost, np.inf)[self.source]
        copied = at_home.min(axis=1, keepdims=True) + self.copy_s * prices.copies
        cost[self.source] = 0.0
        np.add.at(cost, self.reader, np.minimum(at_home, copied))
        np.add.at(cost, self.group, prices.row[self.row, None] * self.seconds)
        return float(np.where(self.allowed, cost, np.inf).min(axis=1).sum() - prices.memory @ self.room)


@dataclass(frozen=True, eq=False)
class ChainPrices:
    """Multipliers of the program, >= 0. The rows of a block cost at most x in all, and x + sum of `copies` = 1.

    Attributes:
        row: [b R] price of a second of each row.
        copies: [K] price of a second of copies to each kind.
        memory: [K] seconds per byte on each kind.
    """

    row: Floats
    copies: Floats
    memory: Floats

    @classmethod
    def from_solver(cls, row: Floats, copies: Floats, memory: Floats, blocks: int) -> ChainPrices:
        """The numbers of a solver, which keeps limits only up to a tolerance, as exact prices."""
        row, copies, memory = (np.maximum(numbers, 0.0) for numbers in (row, copies, memory))
        whole = max(row.reshape(blocks, -1).sum(axis=1).max() + copies.sum(), 1.0)
        return cls(row / whole, copies / whole, memory / whole)


def _entries(relaxation: Relaxation, blocks: Blocks) -> tuple[Ints, Ints, Floats]:
    """Rows, operations and seconds [e, K] of the entries. A block of one operation has the first row only.

    The rows of a block are its part of the path, all of one group, and for each kind the work over all streams.
    """
    seconds = relaxation.seconds[blocks.op]
    seconds, kinds = np.where(np.isfinite(seconds), seconds, 0.0), seconds.shape[1]
    first = blocks.block * (kinds + 2)
    shared = np.bincount(blocks.block)[blocks.block] > 1
    found = [(blocks.on_path, first, seconds)]
    found.append((shared & _largest_part(relaxation, blocks), first + 1, seconds / relaxation.streams))
    for kind in range(kinds):
        only = np.where(np.arange(kinds) == kind, seconds / (relaxation.streams * relaxation.devices), 0.0)
        found.append((shared, first + 2 + kind, only))
    parts = [(rows[chosen], blocks.op[chosen], added[chosen]) for chosen, rows, added in found]
    row, op, added = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    return row, op, added


def _largest_part(relaxation: Relaxation, blocks: Blocks) -> Flags:
    """[o] whether the operation's group is the one with most work in its block, by the least seconds."""
    groups = relaxation.problem.g
    key = blocks.block * groups + relaxation.problem.grouping.group_of[blocks.op]
    part, part_of = np.unique(key, return_inverse=True)
    order = np.lexsort((np.bincount(part_of, relaxation.seconds[blocks.op].min(axis=1)), part // groups))
    last = np.append(np.diff(part[order] // groups) > 0, True)
    largest = np.zeros(len(part), np.bool_)
    largest[order[last]] = True
    return largest[part_of]


def _one_reader_each(relaxation: Relaxation, blocks: Blocks) -> tuple[Ints, Ints]:
    """[s] a tensor of each group without kernels, and an operation that reads it.

    The largest tensor, and among its readers the operation of the blocks with most work.
    """
    graph, group = relaxation.problem.graph, relaxation.problem.grouping.group_of
    work = np.zeros(graph.n)
    work[blocks.op] = relaxation.seconds[blocks.op].min(axis=1)
    source = group[graph.tensor_producer[graph.input_tensor]]
    edge = np.flatnonzero(~np.isin(source, group[graph.kernel]))
    tensor, reader = graph.input_tensor[edge], graph.edge_op[edge]
    order = np.lexsort((-work[reader], -graph.tensor_bytes[tensor], source[edge]))
    chosen = order[np.unique(source[edge][order], return_index=True)[1]]
    return tensor[chosen].astype(np.int64), reader[chosen].astype(np.int64)


def _copy_s(relaxation: Relaxation, tensor: Ints) -> Floats:
    """[s, K]: see `ChainProgram`."""
    cluster, kinds = relaxation.problem.cluster, len(relaxation.devices)
    bytes_ = relaxation.problem.graph.tensor_bytes[tensor].astype(np.float64)
    copy_s = np.zeros((len(tensor), kinds))
    for kind in range(kinds if len(tensor) else 0):
        pairs = np.argwhere((cluster.kind_of[:, None] != kind) & (cluster.kind_of == kind))
        copy_s[:, kind] = least_transfer_s(cluster.routes, pairs, bytes_)
        copy_s[:, kind] /= concurrent_transfers(cluster.routes, pairs, ends=(0, -1))
    return copy_s


def best_prices(program: ChainProgram) -> ChainPrices | None:
    """The best prices that are equal for alike blocks; None if nothing fits, or if too few groups are alike.

    `ChainProgram.bound_s` is a sum of minima of linear functions of the prices, so the best prices solve a linear program. Its
    variables are the prices of rows, copies and memory, the price of a block, and these minima: of a group, of a source whose
    reader is on each kind, and of a source's memory. Groups, blocks and sources of one class share them.
    """
    from scipy.optimize import linprog
    from scipy.sparse import bmat, coo_matrix, eye, kron

    p, kinds = program, len(program.room)
    row_class, group_class, source_class = _classes(p)
    rows, blocks = int(row_class.max()) + 1, (int(row_class.max()) + 1) // (kinds + 2)
    _, group, group_count = np.unique(group_class, return_index=True, return_counts=True)  # the first of each class
    _, source, source_count = np.unique(source_class, return_index=True, return_counts=True)
    groups, sources = len(group), len(source)
    if groups + sources > LARGEST:
        return None
    unit_s, unit_bytes = float(p.seconds.max()) or 1.0, float(p.persistent_bytes.sum())
    own_bytes, source_bytes = p.persistent_bytes[group, None] / unit_bytes, p.persistent_bytes[p.source[source], None] / unit_bytes
    own_bytes[np.isin(group, p.source)] = 0.0
    of = group_class[p.group, None]
    work = coo_matrix(
        (
            (p.seconds / unit_s / group_count[of]).ravel(),
            ((of * kinds + np.arange(kinds)).ravel(), np.repeat(row_class[p.row], kinds)),
        ),
        (groups * kinds, rows),
    )
    reads = np.zeros((groups, sources))
    np.add.at(reads, (group_class[p.reader[source]], np.arange(sources)), source_count)
    reads /= group_count[:, None]
    each_kind, one_cost, each_cost = eye(kinds), eye(sources * kinds), kron(eye(sources), np.ones((kinds, 1)))
    at_home = -kron(source_bytes, each_kind)
    copies = -(p.copy_s[source, :, None] / unit_s * np.eye(kinds)).reshape(sources * kinds, kinds)
    lines = bmat([
        [-work, None, -kron(own_bytes, each_kind), None, kron(eye(groups), np.ones((kinds, 1))), -kron(reads, each_kind), None],
        [None, None, at_home, None, None, one_cost, None],
        [None, None, at_home, None, None, None, each_cost],
        [None, copies, None, None, None, one_cost, -each_cost],
        [kron(eye(blocks), np.ones((1, kinds + 2))), None, None, -np.ones((blocks, 1)), None, None, None],
    ], format="csr")  # fmt: skip
    allowed, at_source = p.allowed[group].ravel(), p.allowed[p.source[source]].ravel()
    lines = lines[np.concatenate([allowed, at_source, at_source, np.ones(sources * kinds + blocks, np.bool_)])]
    ends = np.cumsum([rows, kinds, kinds, 1, groups, sources * kinds, sources])
    gain = np.zeros(ends[-1])
    gain[ends[1] : ends[2]] = -p.room / unit_bytes
    gain[ends[3] : ends[4]] = group_count
    one = np.zeros((1, ends[-1]))
    one[0, [*range(ends[0], ends[1]), ends[2]]] = 1.0
    limits = [(0, None)] * int(ends[3]) + [(None, None)] * int(ends[-1] - ends[3])
    answer = linprog(-gain, lines, np.zeros(lines.shape[0]), one, [1.0], limits)
    if answer.x is None:
        return None
    row, copied, memory = np.split(answer.x, ends[:3])[:3]
    return ChainPrices.from_solver(row[row_class], copied, memory * unit_s / unit_bytes, p.blocks)


def _classes(p: ChainProgram) -> tuple[Ints, Ints, Ints]:
    """[b R], [g], [s] the classes of rows, groups and sources. Class c of blocks has the classes of rows from c R on."""
    groups, kinds = p.allowed.shape
    sums = np.zeros((p.blocks, (kinds + 2) * kinds))
    np.add.at(sums.reshape(-1, kinds), p.row, p.seconds)
    row_class = (_alike(sums)[:, None] * (kinds + 2) + np.arange(kinds + 2)).ravel()
    mixed = np.zeros((groups, kinds))  # with random weights, groups with other rows have other sums
    np.add.at(mixed, p.group, p.seconds * np.random.default_rng(0).random(row_class.max() + 1)[row_class[p.row], None])
    read = np.bincount(p.reader, p.persistent_bytes[p.source], groups)
    is_source = np.bincount(p.source, minlength=groups)
    group_class = _alike(np.column_stack([mixed, p.persistent_bytes, read, is_source, p.allowed]))
    source_class = _alike(np.column_stack([group_class[[p.reader, p.source]].T + 1, p.copy_s]))
    return row_class, group_class, source_class


def _alike(table: Floats) -> Ints:
    """[n] a class for each row [n, m] of numbers >= 0; rows of one class differ by a share of `GRAIN` at most."""
    steps = np.round(np.log(np.maximum(table, np.finfo(float).tiny)) / GRAIN)
    return np.unique(steps, axis=0, return_inverse=True)[1].ravel()
