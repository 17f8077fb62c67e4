"""Heads and tails of operations at places, which the bounds of makespan.py share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from placekit_scheduling.bounds.kinds import Flags, Floats, Ints, KindProblem, Places
from placekit_scheduling.bounds.labels import LARGEST_TABLES, Detours, Surroundings, raise_levels
from placekit_scheduling.bounds.launches import earliest_launch_s

THRESHOLDS = 256  # values of heads and of tails at which windows begin and end


class Relaxation(KindProblem):
    """The problem on kinds of devices, with the results that several bounds need; each is computed once."""

    @cached_property
    def everywhere(self) -> Places:
        """One place per kind."""
        return Places(np.arange(len(self.devices)), self.devices, -1)

    @cached_property
    def levels(self) -> tuple[Floats, Floats]:
        """Heads and tails, [n, K]: see `makespan.communication_bound`."""
        return Levels.start(self, self.everywhere, self.cluster, None).raise_all()

    @cached_property
    def surroundings(self) -> Surroundings | None:
        """The places around one device of each kind; None without edges, or if the tables would be too large.

        :meta private:
        """
        kinds, edges = len(self.devices), len(self.producer)
        if not edges or kinds * edges * (1 + kinds) ** 2 > LARGEST_TABLES:
            return None
        return Surroundings.of(self)

    @cached_property
    def detours(self) -> Detours:
        """The pairs of operations of `makespan.detour_bound`.

        :meta private:
        """
        return Detours.none(len(self.devices)) if self.surroundings is None else Detours.of(self, self.surroundings)

    @cached_property
    def raised(self) -> tuple[Floats, Floats]:
        """`levels`, raised as in `makespan.detour_bound` and `makespan.tree_bound`."""
        if self.surroundings is None:
            return self.levels
        return raise_levels(self, self.levels, self.surroundings, self.detours, trees=True)


@dataclass(eq=False)
class Levels:
    """Heads and tails [n, P] at some places, and where operations can be. All of these are improved in place.

    Attributes:
        seconds: [n, P] of each operation at each place.
        possible: [n, P] whether it can be there.
        cluster: [n] one operation of each operation's cluster, the same for all members; a cluster is on one device.
        center: an operation of the main cluster.
    """

    relaxation: Relaxation
    places: Places
    seconds: Floats
    transfer_s: Floats
    possible: Flags
    cluster: Ints
    head: Floats
    tail: Floats
    center: int = 0

    @classmethod
    def start(
        cls,
        relaxation: Relaxation,
        places: Places,
        cluster: Ints,
        levels: tuple[Floats, Floats] | None,
        center: int = 0,
    ) -> Levels:
        """Begin with the heads and tails `levels` [n, K]; if None, with the earliest launches and with zeros."""
        seconds = np.ascontiguousarray(relaxation.seconds[:, places.kind])
        if levels is None:
            launched_s = earliest_launch_s(relaxation.problem)
            head, tail = np.repeat(launched_s[:, None], seconds.shape[1], axis=1), np.zeros_like(seconds)
        else:
            head, tail = (np.ascontiguousarray(level[:, places.kind]) for level in levels)
        return cls(
            relaxation=relaxation,
            places=places,
            seconds=seconds,
            transfer_s=places.transfer_s(relaxation.transfer_s),
            possible=np.isfinite(seconds + head + tail),
            cluster=cluster.copy(),
            head=np.where(np.isfinite(head), head, 0.0),
            tail=np.where(np.isfinite(tail), tail, 0.0),
            center=center,
        )

    def raise_all(self) -> tuple[Floats, Floats]:
        """Raise all heads once, then all tails. Returns both, with inf where an operation cannot be."""
        from placekit_scheduling.bounds import kernel
        from placekit_scheduling.jit import by_size

        raise_heads = by_size(kernel.raise_heads, self.head.size)
        streams = np.ascontiguousarray(self.relaxation.streams[self.places.kind])
        main = np.zeros(len(self.head), np.bool_)
        if self.places.main == 0:
            main = self.cluster == self.cluster[self.center]
        for order, level, backwards in zip(self.relaxation.orders, (self.head, self.tail), (False, True), strict=True):
            table = self.transfer_s[order.edge]
            if backwards:
                table = np.ascontiguousarray(table.transpose(0, 2, 1))
            raise_heads(
                order.order, order.position, order.ptr, order.other, table, self.seconds, streams, self.cluster,
                self.places.main, order.previous_in_cluster(self.cluster), order.previous_of(main), order.reach,
                self.possible, level,
            )  # fmt: skip
        return np.where(self.possible, self.head, np.inf), np.where(self.possible, self.tail, np.inf)


def longest_window(head: Floats, tail: Floats, work: Floats, capacity: float = 1.0) -> float:
    """The highest h + work / capacity + q, where the work is of all rows with head >= h and tail >= q; 0 without rows.

    See `makespan.window_bound`. If there are many values of h or q, THRESHOLDS of them are tried.
    """
    if not len(head):
        return 0.0
    h, q = _thresholds(head), _thresholds(tail)
    # cell (i, j) has the rows whose head is between h[i] and h[i + 1], and whose tail is between q[j] and q[j + 1]
    cell = (np.searchsorted(h, head, "right") - 1) * len(q) + np.searchsorted(q, tail, "right") - 1
    shape = len(h), len(q)
    inside = _from_end(np.bincount(cell, work, minlength=len(h) * len(q)).reshape(shape))
    some = _from_end(np.bincount(cell, minlength=len(h) * len(q)).reshape(shape)) > 0
    return float(np.where(some, h[:, None] + inside / capacity + q, 0.0).max())  # an empty set proves nothing


def _from_end(table: NDArray[np.generic]) -> Floats:
    """Sums over all cells of at least this row and column."""
    return np.asarray(table[::-1, ::-1].cumsum(axis=0).cumsum(axis=1)[::-1, ::-1], np.float64)


def _thresholds(values: Floats) -> Floats:
    """Up to THRESHOLDS of the distinct values, including the least."""
    distinct = np.unique(values)
    if len(distinct) <= THRESHOLDS:
        return distinct
    return distinct[np.unique(np.linspace(0, len(distinct) - 1, THRESHOLDS).astype(np.int64))]
