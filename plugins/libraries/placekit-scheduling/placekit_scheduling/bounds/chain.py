"""Parameters that do not fit on the fastest devices, in a chain of blocks: the linear program of `makespan.chain_bound`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placekit_scheduling.bounds.blocks import Blocks
from placekit_scheduling.bounds.kinds import Flags, Floats, Ints
from placekit_scheduling.bounds.relaxation import Relaxation
from placekit_scheduling.bounds.routes import concurrent_transfers, least_transfer_s

GRAIN = 1e-3  # groups and blocks whose seconds and bytes differ by this share at most get the same prices
LARGEST = 1_000  # classes of blocks, groups and sources above which the linear program would take seconds


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
        """The bound that the prices prove, seconds: the formula of `makespan.chain_bound`."""
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
    def from_solver(cls, row: Floats, copies: Floats, memory: Floats) -> ChainPrices:
        """Prices from the numbers of a solver, whose limits have a tolerance; `row` [b, R]."""
        row, copies, memory = (np.maximum(numbers, 0.0) for numbers in (row, copies, memory))
        whole = max(float(row.sum(axis=1).max() + copies.sum()), 1.0)
        return cls(row.ravel() / whole, copies / whole, memory / whole)


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


@dataclass(frozen=True)
class _Classes:
    """`of` [n]: the class of each, from 0. [c] `first` and `count`: a member of each class, and their number."""

    of: Ints
    first: Ints
    count: Ints

    @classmethod
    def alike(cls, *columns: NDArray[Any]) -> _Classes:
        """Classes of n rows of numbers >= 0; rows of one class differ by a share of `GRAIN` at most."""
        steps = np.round(np.log(np.maximum(np.column_stack(columns), np.finfo(float).tiny)) / GRAIN)
        _, first, of, count = np.unique(steps, axis=0, return_index=True, return_inverse=True, return_counts=True)
        return cls(of.ravel(), first, count)

    def __len__(self) -> int:
        return len(self.first)


def best_prices(program: ChainProgram) -> ChainPrices | None:
    """The best prices that are equal for similar blocks; None if nothing fits, or if too few groups are similar.

    `ChainProgram.bound_s` is a sum of minima of linear functions of the prices. So the best prices are the solution of a linear
    program, whose variables are the prices of rows, copies, memory and of a block, and these minima: of a group, of a source for
    its reader on each kind, and of the memory of a source. Similar blocks, groups and sources share their variables.
    """
    from scipy.optimize import linprog

    p, kinds = program, len(program.room)
    blocks, groups, sources = _alike(p)
    if len(blocks) + len(groups) + len(sources) > LARGEST:
        return None
    unit_s, unit_bytes = float(p.seconds.max()) or 1.0, float(p.persistent_bytes.sum())  # tolerances are absolute
    rows, minima = len(blocks) * (kinds + 2), len(groups) + len(sources) * (kinds + 1)
    priced = rows + 2 * kinds + 1  # variables before the minima
    gain, whole, least = np.zeros((3, priced + minima))
    gain[rows + kinds : priced - 1] = -p.room / unit_bytes
    gain[priced : priced + len(groups)] = groups.count
    whole[rows : rows + kinds] = whole[priced - 1] = 1.0
    least[priced:] = -np.inf
    table = _table(p, blocks, groups, sources, unit_s, unit_bytes)
    limits = np.column_stack([least, np.full(len(least), np.inf)])
    answer = linprog(-gain, table, np.zeros(table.shape[0]), whole[None], [1.0], limits)
    if answer.x is None:
        return None
    row, copies, memory, _ = np.split(answer.x, np.cumsum([rows, kinds, kinds]))
    of_block = row.reshape(len(blocks), -1)[blocks.of]
    return ChainPrices.from_solver(of_block, copies, memory * unit_s / unit_bytes)


def _alike(p: ChainProgram) -> tuple[_Classes, _Classes, _Classes]:
    """Classes of blocks, groups and sources."""
    (groups, kinds), rows = p.allowed.shape, len(p.room) + 2
    sums = np.zeros((p.blocks, rows * kinds))
    np.add.at(sums.reshape(-1, kinds), p.row, p.seconds)
    blocks = _Classes.alike(sums)
    # with random weights, the sums of groups with other rows differ
    weight = np.random.default_rng(0).random((len(blocks), rows))[blocks.of].ravel()
    mixed = np.zeros((groups, kinds))
    np.add.at(mixed, p.group, p.seconds * weight[p.row, None])
    read = np.bincount(p.reader, p.persistent_bytes[p.source], groups)
    is_source = np.bincount(p.source, minlength=groups)
    of_group = _Classes.alike(mixed, p.persistent_bytes, read, is_source, p.allowed)
    return blocks, of_group, _Classes.alike(of_group.of[p.reader] + 1, of_group.of[p.source] + 1, p.copy_s)


def _table(
    p: ChainProgram, blocks: _Classes, groups: _Classes, sources: _Classes, unit_s: float, unit_bytes: float
) -> Any:
    """The linear functions of the variables of `best_prices`, one column each, that are at most 0.

    In this order: the minimum of a group, minus its cost on each kind that may run it; the cost of a source for its reader on a
    kind, and the minimum of its memory, minus its memory on each kind that may hold it; that cost, minus its memory elsewhere
    and a copy; the prices of the rows of a block, minus the price of a block.
    """
    from scipy.sparse import bmat, coo_matrix, eye, kron

    kinds, rows = len(p.room), len(p.room) + 2
    group, row = groups.of[p.group, None], blocks.of[p.row // rows] * rows + p.row % rows
    work = (p.seconds / groups.count[group] / unit_s).ravel()
    place = (group * kinds + np.arange(kinds)).ravel(), np.repeat(row, kinds)
    own_bytes = np.where(np.isin(groups.first, p.source), 0.0, p.persistent_bytes[groups.first]) / unit_bytes
    reader = groups.of[p.reader[sources.first]]
    reads = coo_matrix(
        (sources.count / groups.count[reader], (reader, np.arange(len(sources)))), (len(groups), len(sources))
    )
    each_kind, any_kind = eye(kinds), np.ones((kinds, 1))
    source = p.source[sources.first]
    at_home = -kron(p.persistent_bytes[source, None] / unit_bytes, each_kind)
    copies = -(p.copy_s[sources.first, :, None] / unit_s * np.eye(kinds)).reshape(-1, kinds)
    cost, least = eye(len(sources) * kinds), kron(eye(len(sources)), any_kind)
    table = bmat([
        [-coo_matrix((work, place), (len(groups) * kinds, len(blocks) * rows)), None, -kron(own_bytes[:, None], each_kind),
         None, kron(eye(len(groups)), any_kind), -kron(reads, each_kind), None],
        [None, None, at_home, None, None, cost, None],
        [None, None, at_home, None, None, None, least],
        [None, copies, None, None, None, cost, -least],
        [kron(eye(len(blocks)), np.ones((1, rows))), None, None, -np.ones((len(blocks), 1)), None, None, None],
    ], format="csr")  # fmt: skip
    at_source = p.allowed[source].ravel()
    always = np.ones(len(at_source) + len(blocks), np.bool_)
    return table[np.concatenate([p.allowed[groups.first].ravel(), at_source, at_source, always])]
