"""Replicas of a network for backend `pipeline`: which device runs each stage of each replica."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from placekit_core import BackendError, Cluster
from placekit_pipeline.nets import Ints, pointer

REPLICAS = "backend.replicas"
BUCKET = 25 * 2**20
"""Bytes of gradients that are averaged together, as in torch's DistributedDataParallel (`bucket_cap_mb`)."""


@dataclass(frozen=True, eq=False)
class Replicas:
    """R rows of devices, each one replica of the network; D devices.

    Column j has the groups that the placement puts on device `rows[0][j]`, its leader; row r runs them on device `rows[r][j]`.

    Attributes:
        rows: [R][columns] devices. Without replicas, one row of all devices.
        column: [D] the column that a placement on each device means; -1 if none or several.
        named: [D] the columns of each device in a row that names it, as a set.
        shares: [R] micro-batches of each row; empty if the backend divides them.
    """

    rows: tuple[tuple[int, ...], ...]
    column: Ints
    named: tuple[frozenset[int], ...]
    shares: tuple[int, ...]

    @classmethod
    def of(
        cls, cluster: Cluster, rows: Sequence[Sequence[int | str]], shares: Sequence[int] | None, microbatches: int
    ) -> Replicas:
        """Check the rows and shares of a user. Raises BackendError."""
        if not rows:
            if shares is not None:
                raise BackendError("backend.shares divides micro-batches among replicas, and there are none", _HOW)
            everything = tuple(range(cluster.size))
            own = tuple(frozenset([d]) for d in everything)
            return cls((everything,), np.arange(cluster.size), own, ())
        found = tuple(tuple(_device(cluster, name) for name in row) for row in rows)
        named = _columns(found, cluster.device_names)
        column = [next(iter(columns)) if len(columns) == 1 else -1 for columns in named]
        _check_shares(shares, len(found), microbatches)
        return cls(found, np.asarray(column, np.int64), named, tuple(shares or ()))

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def leaders(self) -> tuple[int, ...]:
        return self.rows[0]

    @cached_property
    def members(self) -> dict[int, list[int]]:
        """The devices that run the column of each leader, in the order of rows."""
        return {leader: list(dict.fromkeys(row[j] for row in self.rows)) for j, leader in enumerate(self.leaders)}

    @property
    def shared(self) -> bool:
        """Whether a device is in several rows."""
        return len({d for row in self.rows for d in row}) < sum(len(set(row)) for row in self.rows)

    def lead(self, device: NDArray[np.integer]) -> Ints:
        """The leader of the column that each entry of `device` means; -1 if none."""
        column = self.column[device]
        return np.where(column >= 0, np.asarray(self.leaders)[column], -1)

    def why_not(self, device: int, names: Sequence[str]) -> str:
        """Why a placement on `device` does not name one column."""
        columns = sorted(self.named[device])
        leaders = ", ".join(names[self.leaders[j]] for j in columns or range(len(self.leaders)))
        if columns:
            return f"{names[device]} runs the stages of {leaders} in {REPLICAS}: place on these devices instead"
        return f"{names[device]} is in no row of {REPLICAS}; place on the devices of the first row: {leaders}"

    def tables(self, stages: int) -> dict[str, Ints]:
        """The arrays of `pipeline_sums.FIELDS`, for S stages: one per device, or more in a single row."""
        count = len(self)
        to, runs = np.tile(np.arange(stages), (count, 1)), np.ones((count, stages), np.int64)
        if count > 1:
            runs[:] = 0
            for r, row in enumerate(self.rows):
                to[r, list(self.leaders)] = row
                runs[r, list(row)] = 1
        members = [self.members.get(s, []) if count > 1 else [s] for s in range(stages)]
        return {
            "to": to, "runs": runs, "member_ptr": pointer(members),
            "member": np.asarray([d for m in members for d in m], np.int64),
            "shares": np.asarray(self.shares or [0] * count, np.int64),
        }  # fmt: skip


_HOW = "give rows of devices, such as backend.replicas=[[0,1],[2,3]]: two replicas of two stages"


def _device(cluster: Cluster, name: int | str) -> int:
    """The number of a device, given by number or name. Raises BackendError if the machine does not have it."""
    names = cluster.device_names
    if isinstance(name, str) and name in names:
        return names.index(name)
    if isinstance(name, int) and 0 <= name < cluster.size:
        return name
    raise BackendError(
        f"{REPLICAS} names device {name!r}, which {cluster.name!r} does not have",
        f"devices are 0..{cluster.size - 1}, or by name: {', '.join(names)}",
    )


def _columns(rows: Sequence[Sequence[int]], names: Sequence[str]) -> tuple[frozenset[int], ...]:
    """The columns of each device. Raises BackendError if rows differ in length, or if a device would run two different stages."""
    first = rows[0]
    if len(set(first)) < len(first) or not first:
        raise BackendError(
            f"the first row of {REPLICAS}, {[names[d] for d in first]}, is not one or more distinct devices",
            "name one device for each stage in the first row; only other rows may name a device twice",
        )
    found: dict[int, tuple[int, frozenset[int]]] = {}
    for r, row in enumerate(rows):
        if len(row) != len(first):
            raise BackendError(
                f"row {r} of {REPLICAS} has {len(row)} devices, but row 0 has {len(first)}",
                "name one device for each stage; a device that runs two stages is named twice",
            )
        own: dict[int, set[int]] = defaultdict(set)
        for j, d in enumerate(row):
            own[d].add(j)
        for d, columns in own.items():
            earlier, known = found.setdefault(d, (r, frozenset(columns)))
            if known != columns:
                raise BackendError(
                    f"{names[d]} runs the stages of {_named(known, first, names)} in row {earlier} of {REPLICAS}, and of"
                    f" {_named(columns, first, names)} in row {r}",
                    "let a device run the same stages in all rows that name it",
                )
    return tuple(found[d][1] if d in found else frozenset() for d in range(len(names)))


def _named(columns: set[int] | frozenset[int], first: Sequence[int], names: Sequence[str]) -> str:
    return " and ".join(names[first[j]] for j in sorted(columns))


def _check_shares(shares: Sequence[int] | None, rows: int, microbatches: int) -> None:
    """Raise BackendError unless the micro-batches can be divided among the rows."""
    if microbatches < rows:
        raise BackendError(
            f"{microbatches} micro-batches are too few for {rows} rows of {REPLICAS}",
            f"each row runs at least one: use backend.microbatches={rows} or more",
        )
    if shares is None:
        return
    if len(shares) != rows or min(shares) < 1 or sum(shares) != microbatches:
        raise BackendError(
            f"backend.shares is {list(shares)}: it needs a number of at least 1 for each of the {rows} rows of {REPLICAS}, and"
            f" their sum must be the number of micro-batches, {microbatches}",
            "leave it out to divide the micro-batches by the speed of the rows",
        )
