"""Heads and tails by what one device has to do for them: the work behind `makespan.tree_bound` and `makespan.detour_bound`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from placekit_core import Problem

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

# Shares of a device's seconds, of its transfers in and of its transfers out in the priced time; a row sums to 1 at most.
TREE_SHARES = ((1.0, 0.0, 0.0), (0.9, 0.1, 0.0))
DETOUR_SHARES = ((0.0, 0.0, 0.0), (1.0, 0.0, 0.0), (0.7, 0.15, 0.15))  # the first row is to compare with
EPOCHS = 4  # times from which on work and transfers are counted; fewer for large graphs
MEMORY = 250_000  # lists of labels: operations times places, kinds, epochs and rows of shares
VISITED = 48  # operations after a fork; fewer for large graphs
EFFORT = 800_000  # forks times operations visited, places and kinds
PAIRS = 40  # pairs that are kept, per operation
LARGEST = 2**22  # entries of the tables of transfers above which heads and tails are not raised
MANY = 64  # devices above which channels are not looked at


class Order(Protocol):
    """What is used of a `relaxation.Order`."""

    @property
    def ptr(self) -> Ints: ...
    @property
    def other(self) -> Ints: ...
    @property
    def edge(self) -> Ints: ...
    @property
    def order(self) -> Ints: ...
    @property
    def position(self) -> Ints: ...


class Relaxation(Protocol):
    """What is used of a `relaxation.Relaxation`."""

    @property
    def problem(self) -> Problem: ...
    @property
    def n(self) -> int: ...
    @property
    def seconds(self) -> Floats: ...
    @property
    def devices(self) -> Ints: ...
    @property
    def streams(self) -> Floats: ...
    @property
    def cluster(self) -> Ints: ...
    @property
    def transfer_s(self) -> Floats: ...
    @property
    def levels(self) -> tuple[Floats, Floats]: ...
    @property
    def orders(self) -> tuple[Order, Order]: ...


@dataclass(frozen=True, eq=False)
class Surroundings:
    """A relaxation seen from one device: place 0 is a device of kind a, place 1 + b any other device of kind b; P = 1 + K.

    Attributes:
        cost: [K, e, P, P] least seconds of a transfer from a place to another device of a place, by the kind a.
        seconds, may: [K, n, P] of each operation there, and whether it may be there.
        streams: [K] of place 0.
        into, out: [K] how many transfers can be on their way to a device, and from it, at most.
    """

    cost: Floats
    seconds: Floats
    may: Flags
    streams: Floats
    into: Floats
    out: Floats

    @classmethod
    def of(cls, relaxation: Relaxation) -> Surroundings:
        kinds, everywhere = len(relaxation.devices), np.arange(len(relaxation.devices))
        costs, seconds, may = [], [], []
        for kind in everywhere.tolist():
            place = np.concatenate([[kind], everywhere])
            left = np.concatenate([[1], relaxation.devices - (everywhere == kind)])
            table = relaxation.transfer_s[:, place[:, None], place]
            alone = np.flatnonzero(left == 1)
            table[:, alone, alone] = np.inf
            costs.append(table)
            # contiguous: the loops would be compiled anew for other strides
            seconds.append(np.ascontiguousarray(relaxation.seconds[:, place]))
            may.append(np.isfinite(seconds[-1]) & (left > 0))
        into, out = _lanes(relaxation, kinds)
        return cls(np.stack(costs), np.stack(seconds), np.stack(may), relaxation.streams, into, out)

    def prices(self, shares: tuple[tuple[float, float, float], ...], backwards: bool) -> Floats:
        """[K, r, 3] prices of a second of work, of a transfer in and of one out; backwards in time, in and out change places."""
        into, out = (self.out, self.into) if backwards else (self.into, self.out)
        return np.stack([np.asarray(shares) / [s, i, o] for s, i, o in zip(self.streams, into, out, strict=True)])


def _lanes(relaxation: Relaxation, kinds: int) -> tuple[Floats, Floats]:
    """[K] transfers that can be under way at a time to, and from, a device of each kind: a limit for all devices of the kind."""
    cluster = relaxation.problem.cluster
    routes, size = cluster.routes, cluster.size
    if size > MANY:
        return np.full(kinds, np.inf), np.full(kinds, np.inf)
    kind_of = cluster.kind_of if kinds == len(np.unique(cluster.kind_of)) else np.zeros(size, np.int64)
    lanes = np.zeros((2, kinds))
    for d in range(size):
        others = [x for x in range(size) if x != d]
        for side, pairs in enumerate(([x * size + d for x in others], [d * size + x for x in others])):
            held = [routes.channel[routes.ptr[p] : routes.ptr[p + 1]].tolist() for p in pairs]
            most = np.inf
            if held and all(held):
                sets = [{c} for c in set.intersection(*map(set, held))] + [{row[side - 1] for row in held}]
                most = min(float(sum(int(routes.capacity[c]) for c in chosen)) for chosen in sets)
            lanes[side, kind_of[d]] = max(lanes[side, kind_of[d]], most)
    return lanes[0], lanes[1]


@dataclass(frozen=True, eq=False)
class Pairs:
    """Operations, and others after them: from the end of `first` to the start of `second` it takes `after` [m, K, K] seconds.

    The kinds are those of the devices of `first` and of `second`.
    """

    first: Ints
    second: Ints
    after: Floats

    @classmethod
    def none(cls, kinds: int) -> Pairs:
        return cls(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros((0, kinds, kinds)))

    def backwards(self) -> Pairs:
        return Pairs(self.second, self.first, np.ascontiguousarray(self.after.transpose(0, 2, 1)))

    @classmethod
    def of(cls, relaxation: Relaxation, around: Surroundings) -> Pairs:
        """Those of `makespan.detour_bound`."""
        n, kinds = relaxation.n, len(relaxation.devices)
        first, second, forwards = _detours(relaxation, around, backwards=False)
        last, start, in_return = _detours(relaxation, around, backwards=True)
        keys = [first * n + second, start * n + last]
        key = np.union1d(*keys)
        from_first, from_second = np.zeros((len(key), kinds, 1 + kinds)), np.zeros((len(key), kinds, 1 + kinds))
        from_first[np.searchsorted(key, keys[0])] = forwards
        from_second[np.searchsorted(key, keys[1])] = in_return
        after = np.maximum(from_first[:, :, 1:], from_second[:, :, 1:].transpose(0, 2, 1))
        for kind in range(kinds):
            together = np.maximum(from_first[:, kind, 0], from_second[:, kind, 0])
            after[:, kind, kind] = np.minimum(after[:, kind, kind], together)
        return cls(key // n, key % n, after)


def _detours(relaxation: Relaxation, around: Surroundings, backwards: bool) -> tuple[Ints, Ints, Floats]:
    from placekit_scheduling.bounds import label_kernel

    order, n, kinds = relaxation.orders[backwards], relaxation.n, len(relaxation.devices)
    kernel = np.asarray(relaxation.problem.graph.kernel, np.bool_)
    readers = np.bincount(order.other, kernel[_rows(order)], minlength=n)
    fork = kernel & (readers > 1)
    most = min(VISITED, EFFORT // max(int(fork.sum()) * kinds * (1 + kinds), 1))
    if most < 4:
        return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros((0, kinds, 1 + kinds))
    room = PAIRS * n
    first, second, after = np.empty(room, np.int64), np.empty(room, np.int64), np.empty((room, kinds, 1 + kinds))
    some = label_kernel.detours(
        order.order, order.position, order.ptr, order.other, kernel, fork, _table(around, order, backwards), around.seconds,
        around.may, around.prices(DETOUR_SHARES, backwards), relaxation.cluster, most, first, second, after,
    )  # fmt: skip
    return first[:some], second[:some], after[:some]


def raised(relaxation: Relaxation, around: Surroundings, pairs: Pairs, trees: bool) -> tuple[Floats, Floats]:
    """The heads and tails of `relaxation.levels`, [n, K], raised by `pairs`, and by trees if so."""
    from placekit_scheduling.bounds import label_kernel

    results = []
    work = np.where(relaxation.problem.graph.kernel, relaxation.seconds.min(axis=1), 0.0)
    for backwards, level in enumerate(relaxation.levels):
        order, head = relaxation.orders[backwards], level.copy()
        epochs, prices = np.zeros(1), np.zeros((len(relaxation.devices), 1, 3))
        if trees:
            prices = around.prices(TREE_SHARES, bool(backwards))
            epochs = _epochs(head.min(axis=1), work, max(1, min(EPOCHS, MEMORY // (around.may.size * prices.shape[1]))))
            epochs, prices = np.repeat(epochs, prices.shape[1]), np.tile(prices, (1, len(epochs), 1))
        known = pairs.backwards() if backwards else pairs
        by_second = np.argsort(known.second, kind="stable")
        ptr = np.searchsorted(known.second[by_second], np.arange(relaxation.n + 1)).astype(np.int64)
        label_kernel.raise_by_trees(
            order.order, order.ptr, order.other, _owners(order, relaxation.n), _table(around, order, bool(backwards)),
            around.seconds, around.may, prices, relaxation.cluster, epochs, ptr, known.first[by_second],
            known.after[by_second], head,
        )  # fmt: skip
        results.append(head)
    return results[0], results[1]


def _epochs(head: Floats, work: Floats, some: int) -> Floats:
    """Up to `some` times, 0 among them, between which equal work begins."""
    by_head = np.argsort(head, kind="stable")
    done = work[by_head].cumsum()
    return np.unique(np.append(head[by_head[np.searchsorted(done, np.arange(1, some) / some * done[-1])]], 0.0))


def _owners(order: Order, n: int) -> Ints:
    """[n] of those that wait for an operation the one that comes first, -1 if there is none."""
    rows = _rows(order)
    by_position = np.argsort(-order.position[rows], kind="stable")
    result = np.full(n, -1, np.int64)
    result[order.other[by_position]] = rows[by_position]  # the last assignment counts
    return result


def _rows(order: Order) -> Ints:
    return np.repeat(np.arange(len(order.ptr) - 1), np.diff(order.ptr))


def _table(around: Surroundings, order: Order, backwards: bool) -> Floats:
    table = around.cost[:, order.edge]
    return np.ascontiguousarray(table.transpose(0, 1, 3, 2) if backwards else table)
