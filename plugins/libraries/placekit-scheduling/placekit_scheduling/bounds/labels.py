"""Raises heads and tails by the work that one device must do: the computation of `makespan.tree_bound` and `detour_bound`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placekit_scheduling.bounds.kinds import Flags, Floats, Ints, KindProblem, Order, Places
from placekit_scheduling.bounds.routes import concurrent_transfers

# How priced time (`makespan.detour_bound`) is divided between work, transfers in and transfers out; a row sums to 1 at most.
TREE_SHARES = ((1.0, 0.0, 0.0), (0.9, 0.1, 0.0))
DETOUR_SHARES = ((0.0, 0.0, 0.0), (1.0, 0.0, 0.0), (0.7, 0.15, 0.15))  # the first: no prices, for comparison
EPOCHS = 4  # times r of `makespan.tree_bound`, from which work and transfers are counted; fewer for large graphs
MEMORY = 250_000  # limit on lists of labels: operations times places, kinds, epochs and rows of shares
VISITED = 48  # operations to visit after each fork; fewer for large graphs
EFFORT = 800_000  # limit on forks times operations visited, places and kinds
PAIRS = 40  # pairs to keep per operation
LARGEST_TABLES = 2**22  # entries of the tables of transfers above which heads and tails are not raised
MANY_DEVICES = 64  # above this number, the limits of channels are not computed


@dataclass(frozen=True, eq=False)
class Surroundings:
    """The machine around one device D, for each kind a of D. Place 0 is D, place 1 + b any other device of kind b; P = 1 + K.

    Attributes:
        cost: [K, e, P, P] for each kind of D, least seconds of a transfer from one place to another device of a place.
        seconds, may: [K, n, P] seconds of each operation at a place, and whether it may run there.
        streams: [K] streams of D.
        into, out: [K] upper limits on the number of concurrent transfers to D and from D.
    """

    cost: Floats
    seconds: Floats
    may: Flags
    streams: Floats
    into: Floats
    out: Floats

    @classmethod
    def of(cls, problem: KindProblem) -> Surroundings:
        kinds = np.arange(len(problem.devices))
        costs, seconds, may = [], [], []
        for kind in kinds.tolist():
            devices = np.concatenate([[1], problem.devices - (kinds == kind)])
            places = Places(np.concatenate([[kind], kinds]), devices, 0)
            costs.append(places.transfer_s(problem.transfer_s))
            # contiguous: the loops would be compiled anew for other strides
            seconds.append(np.ascontiguousarray(problem.seconds[:, places.kind]))
            may.append(np.isfinite(seconds[-1]) & (devices > 0))
        into, out = _transfer_limits(problem)
        return cls(np.stack(costs), np.stack(seconds), np.stack(may), problem.streams, into, out)

    def prices(self, shares: tuple[tuple[float, float, float], ...], backwards: bool) -> Floats:
        """[K, r, 3] prices of a second of work, of a transfer in and of one out. Backwards in time, in and out are swapped."""
        into, out = (self.out, self.into) if backwards else (self.into, self.out)
        return np.stack([np.asarray(shares) / [s, i, o] for s, i, o in zip(self.streams, into, out, strict=True)])

    def transfers(self, order: Order, backwards: bool) -> Floats:
        """`cost`, with its edges in the sequence of `order`; backwards, from readers to producers."""
        table = self.cost[:, order.edge]
        return np.ascontiguousarray(table.transpose(0, 1, 3, 2) if backwards else table)


def _transfer_limits(problem: KindProblem) -> tuple[Floats, Floats]:
    """[K] transfers that can run at the same time to, and from, any one device of each kind."""
    cluster, kinds = problem.problem.cluster, len(problem.devices)
    size, kind_of = cluster.size, cluster.kind_of
    if size > MANY_DEVICES:
        return np.full(kinds, np.inf), np.full(kinds, np.inf)
    if kinds != len(np.unique(kind_of)):  # all kinds are treated as one
        kind_of = np.zeros_like(kind_of)
    into, out = np.zeros(kinds), np.zeros(kinds)
    for d, kind in enumerate(kind_of.tolist()):
        others = [x for x in range(size) if x != d]
        into[kind] = max(into[kind], concurrent_transfers(cluster.routes, [(x, d) for x in others], ends=(-1,)))
        out[kind] = max(out[kind], concurrent_transfers(cluster.routes, [(d, x) for x in others], ends=(0,)))
    return into, out


@dataclass(frozen=True, eq=False)
class Detours:
    """m pairs of operations: `second` starts at least `after` seconds after `first` has ended.

    `after` is [m, K, K], by the kinds of the devices of `first` and of `second`.
    """

    first: Ints
    second: Ints
    after: Floats

    @classmethod
    def none(cls, kinds: int) -> Detours:
        return cls(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros((0, kinds, kinds)))

    def backwards(self) -> Detours:
        return Detours(self.second, self.first, np.ascontiguousarray(self.after.transpose(0, 2, 1)))

    @classmethod
    def of(cls, problem: KindProblem, around: Surroundings) -> Detours:
        """The pairs of `makespan.detour_bound`."""
        n, kinds = problem.n, len(problem.devices)
        first, second, forwards = _search_detours(problem, around, backwards=False)
        last, start, in_return = _search_detours(problem, around, backwards=True)
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


def _search_detours(problem: KindProblem, around: Surroundings, backwards: bool) -> tuple[Ints, Ints, Floats]:
    """m pairs of a fork and an operation after it, and the least seconds between them [m, K, P]."""
    from placekit_scheduling.bounds import label_kernel
    from placekit_scheduling.jit import by_size

    order, n, kinds = problem.orders[backwards], problem.n, len(problem.devices)
    kernel = np.asarray(problem.problem.graph.kernel, np.bool_)
    fork = kernel & (np.bincount(order.other, kernel[order.rows], minlength=n) > 1)
    most = min(VISITED, EFFORT // max(int(fork.sum()) * kinds * (1 + kinds), 1))
    room = PAIRS * n if most >= 4 else 0
    first, second, after = np.empty(room, np.int64), np.empty(room, np.int64), np.empty((room, kinds, 1 + kinds))
    if not room:
        return first, second, after
    count = by_size(label_kernel.detours, n * kinds)(
        order.order, order.position, order.ptr, order.other, kernel, fork, around.transfers(order, backwards),
        around.seconds, around.may, around.prices(DETOUR_SHARES, backwards), problem.cluster, most, first, second, after,
    )  # fmt: skip
    return first[:count], second[:count], after[:count]


def raise_levels(
    problem: KindProblem, levels: tuple[Floats, Floats], around: Surroundings, detours: Detours, trees: bool
) -> tuple[Floats, Floats]:
    """Raise the heads and tails `levels` [n, K] by `detours`, and with `trees` also by the work of trees. Returns copies."""
    from placekit_scheduling.bounds import label_kernel
    from placekit_scheduling.jit import by_size

    raise_by_trees = by_size(label_kernel.raise_by_trees, levels[0].size)
    results = []
    work = np.where(problem.problem.graph.kernel, problem.seconds.min(axis=1), 0.0)
    for backwards, level in enumerate(levels):
        order, head = problem.orders[backwards], level.copy()
        epochs, prices = np.zeros(1), np.zeros((len(problem.devices), 1, 3))
        if trees:
            prices = around.prices(TREE_SHARES, bool(backwards))
            epochs = _epochs(head.min(axis=1), work, max(1, min(EPOCHS, MEMORY // (around.may.size * prices.shape[1]))))
            epochs, prices = np.repeat(epochs, prices.shape[1]), np.tile(prices, (1, len(epochs), 1))
        known = detours.backwards() if backwards else detours
        by_second = np.argsort(known.second, kind="stable")
        ptr = np.searchsorted(known.second[by_second], np.arange(problem.n + 1)).astype(np.int64)
        raise_by_trees(
            order.order, order.ptr, order.other, _owners(order), around.transfers(order, bool(backwards)),
            around.seconds, around.may, prices, problem.cluster, epochs, ptr, known.first[by_second],
            known.after[by_second], head,
        )  # fmt: skip
        results.append(head)
    return results[0], results[1]


def _epochs(head: Floats, work: Floats, count: int) -> Floats:
    """Up to `count` times, including 0, with equal work between them."""
    by_head = np.argsort(head, kind="stable")
    done = work[by_head].cumsum()
    return np.unique(np.append(head[by_head[np.searchsorted(done, np.arange(1, count) / count * done[-1])]], 0.0))


def _owners(order: Order) -> Ints:
    """[n] for each operation, the first one in `order` that reads from it, whose tree counts it; -1 if there is none."""
    rows = order.rows
    by_position = np.argsort(-order.position[rows], kind="stable")
    result = np.full(len(order.order), -1, np.int64)
    result[order.other[by_position]] = rows[by_position]  # the last assignment counts
    return result
