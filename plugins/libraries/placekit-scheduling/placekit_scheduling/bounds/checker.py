"""Checks a certificate of a lower bound, step by step: arithmetic on the problem, without the code that finds bounds.

The proofs use the facts (a) to (d) of `placekit_scheduling.bounds.makespan`, device by device. A certificate claims *heads*: the
head of an operation on a device is a number of seconds before which it does not start there, in any schedule of a placement
that fits. *Tails* are the same on the reversed graph: seconds from its end to the end of the schedule. Each claim has to follow
from the claims for what the operation waits for, by one of two rules, and the bound from the claims or from the work alone.

Sums here are of positive numbers, and far fewer than 2**20 of them: their rounding errors are less than `MARGIN`, by which
everything that follows is lowered before it is compared. Numbers of a certificate are at most `MOST`, and seconds of operations
and what a price of all streams comes to at least 1 / `MOST`, so that nothing overflows, and what is rounded to a multiple of the
smallest number does not count. So what is proven holds for real numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from placekit_core import PlacekitError, Problem

MARGIN = 2.0**-32
MOST = 1e100
LONGEST = 192
"""Operations in the branches of one: the seconds of a check grow with their square."""
Floats = NDArray[np.float64]
Number = Annotated[float, Field(ge=0, le=MOST, allow_inf_nan=False)]
Index = Annotated[int, Field(ge=0)]


class CertificateError(PlacekitError):
    """A certificate does not prove its bound."""


class _Part(BaseModel):
    """Of a file: types are checked strictly, and unknown fields are refused."""

    model_config = ConfigDict(strict=True, extra="forbid")


class Join(_Part):
    """Branches that lead to an operation: it waits for the first of each, and each of a branch for the next one."""

    operation: Index
    backwards: bool
    branches: list[list[Index]]


class Path(_Part):
    """The bound is head + seconds + tail of an operation, on the device where this is least."""

    by: Literal["communication"]
    operation: Index


class Window(_Part):
    """Operations with heads of `after_s` or more and tails of `before_s` or more run in what is left of the makespan.

    A second on device d counts `prices[d]`; all streams give at most the sum of streams times prices in a second.
    """

    by: Literal["window"]
    after_s: Number
    before_s: Number
    prices: list[Number]


class Work(_Part):
    """All groups share the streams of all devices, and their memory: a byte on device d counts `memory_prices[d]` seconds."""

    by: Literal["work"]
    prices: list[Number]
    memory_prices: list[Number]


class Groups(_Part):
    """These k D + 1 groups: k + 1 of them are on one of the D devices."""

    by: Literal["group"]
    groups: list[Index]


class Certificate(_Part):
    """What is needed to check a bound of a problem of n operations, D devices, and K kinds of devices.

    Attributes:
        program, machine: their names, for the reader.
        bound_s: no placement that fits has a makespan below this.
        argument: how the bound follows.
        heads, tails: [n][K] seconds; empty if the argument needs none.
        joins: branches for the second rule, for the operations whose claims need it.
    """

    format: Literal["placekit-bound"] = "placekit-bound"
    version: Literal[1] = 1
    program: str
    machine: str
    bound_s: Number
    argument: Annotated[Path | Window | Work | Groups, Field(discriminator="by")]
    heads: list[list[Number]] = Field(default_factory=list)
    tails: list[list[Number]] = Field(default_factory=list)
    joins: list[Join] = Field(default_factory=list)


class Facts:
    """A problem as the proofs see it; with `backwards`, time runs from the end of the schedule to its start.

    Attributes:
        seconds: [n, D] of each operation on each device; inf where it may not run.
        waits_for: for each operation, those that it waits for, with the bytes of the largest tensor between the two.
    """

    def __init__(self, problem: Problem, backwards: bool = False) -> None:
        graph, routes = problem.graph, problem.cluster.routes
        self.group = problem.grouping.group_of.tolist()
        self.seconds: Floats = np.where(problem.allowed[problem.grouping.group_of], problem.op_s, np.inf)
        self.streams = problem.cluster.streams.astype(np.float64)
        self.waits_for: list[dict[int, int]] = [{} for _ in range(graph.n)]
        producer = graph.tensor_producer[graph.input_tensor].tolist()
        size = graph.tensor_bytes[graph.input_tensor].tolist()
        for reader, writer, bytes_ in zip(graph.edge_op.tolist(), producer, size, strict=True):
            later, earlier = (writer, reader) if backwards else (reader, writer)
            self.waits_for[later][earlier] = max(bytes_, self.waits_for[later].get(earlier, 0))
        elsewhere = ~np.eye(problem.cluster.size, dtype=np.bool_)
        latency_s, s_per_byte = (np.where(elsewhere, x, np.inf) for x in (routes.latency_s, routes.s_per_byte))
        self._latency_s, self._s_per_byte = (x.T if backwards else x for x in (latency_s, s_per_byte))

        if ((self.seconds > 0) & (self.seconds < 1 / MOST)).any():
            raise CertificateError(f"an operation takes less than {1 / MOST} s, and rounding would count")

    def transfer_end(self, level: Floats, u: int, bytes_: int) -> Floats:
        """[D] the earliest end of a transfer of u's results to each device, if u is on another one."""
        sent = self._latency_s + (self._s_per_byte * bytes_ if bytes_ else 0.0)
        least: Floats = ((level[u] + self.seconds[u])[:, None] + sent).min(axis=0)
        return least

    def by_edges(self, level: Floats, v: int) -> Floats:
        """[D] first rule: what v reads was made on its device, or sent there."""
        least = np.zeros(len(self.streams))
        for u, bytes_ in self.waits_for[v].items():
            here = level[u] + self.seconds[u]
            if self.group[u] != self.group[v]:
                here = np.minimum(here, self.transfer_end(level, u, bytes_))
            least = np.maximum(least, here)
        return least

    def by_joins(self, level: Floats, v: int, branches: Sequence[Sequence[int]], least: Floats) -> Floats:
        """[D] second rule, at least `least`: see the joins of `makespan.communication_bound`. Raises CertificateError."""
        every = [x for branch in branches for x in branch]
        if len(set(every)) != len(every) or not all(branches):
            raise CertificateError(f"operation {v}: a branch is empty, or an operation is in two of them")
        if len(every) > LONGEST:
            raise CertificateError(f"operation {v}: its branches have {len(every):,} operations, more than {LONGEST}")
        found = []
        for branch in branches:
            rows = []
            for before, x in zip([v, *branch], branch, strict=False):
                if x not in self.waits_for[before]:
                    raise CertificateError(f"operation {before} does not wait for operation {x}")
                rows.append(self.transfer_end(level, x, self.waits_for[before][x]).tolist())
            found.append(rows)
        return np.asarray([self._join(level, v, d, branches, found, float(s)) for d, s in enumerate(least)])

    def _join(
        self,
        level: Floats,
        v: int,
        d: int,
        branches: Sequence[Sequence[int]],
        sent: list[list[list[float]]],
        least: float,
    ) -> float:
        """The second rule on device d: the least of max(R, W(R)) over R, the latest A_bj of a schedule."""
        latest: list[list[float]] = []  # [b][j] A_bj: branch b begins with j operations on d, and the next is not there
        for branch, rows in zip(branches, sent, strict=True):
            end = float(level[branch[0], d] + self.seconds[branch[0], d])
            path, held, row = 0.0, {self.group[v]}, list[float]()
            for x, arrivals in zip(branch, rows, strict=True):
                apart = math.inf if self.group[x] in held else arrivals[d] + path
                row.append(max(apart, end) if row else apart)
                path += float(self.seconds[x, d])
                held.add(self.group[x])
            latest.append([*row, end])

        def start(limit: float) -> float:
            """max(R, W(R)) for this R."""
            on: list[int] = []
            for branch, row in zip(branches, latest, strict=True):
                first = next((j for j, a in enumerate(row) if a <= limit), None)
                if first is None:  # however much of it is on d, v starts later
                    return math.inf
                on += branch[:first]
            work, wait = 0.0, limit
            for x in sorted(on, key=lambda x: -level[x, d]):
                work += float(self.seconds[x, d])
                wait = max(wait, float(level[x, d]) + work / float(self.streams[d]))
            return wait

        found = start(least)
        if found <= least:
            return least
        return min([found, *(start(a) for a in {a for row in latest for a in row} if least < a < math.inf)])


def proven_s(problem: Problem, certificate: Certificate) -> float:
    """Seconds that the certificate proves no makespan of the problem to be below: its `bound_s`.

    Raises CertificateError for the first step that does not hold.
    """
    levels = [_levels(problem, claims) for claims in (certificate.heads, certificate.tails)]
    for backwards, level in zip((False, True), levels, strict=True):
        here = [j for j in certificate.joins if j.backwards is backwards]
        joins = {j.operation: j.branches for j in here}
        if len(joins) < len(here) or max(joins, default=0) >= problem.graph.n:
            raise CertificateError("an operation has several lists of branches, or there is no such operation")
        _check_levels(problem, Facts(problem, backwards), level, joins, "tail" if backwards else "head")
    found = follows_s(problem, certificate)
    if not certificate.bound_s <= found:
        raise CertificateError(f"it claims {certificate.bound_s!r} s, and no more than {found!r} s can be proven")
    return certificate.bound_s


def _levels(problem: Problem, rows: list[list[float]]) -> Floats:
    """[n, D] from [n][K]; zeros if there are none."""
    n, kind_of = problem.graph.n, problem.cluster.kind_of
    if not rows:
        return np.zeros((n, problem.cluster.size))
    kinds = int(kind_of.max()) + 1
    if len(rows) != n or any(len(row) != kinds for row in rows):
        there = max(map(len, rows))
        raise CertificateError(
            f"it has {_counted(len(rows), there)}, this problem {_counted(n, kinds)}: it is of another one, or damaged"
        )
    return np.asarray(rows)[:, kind_of]


def _counted(operations: int, kinds: int) -> str:
    return f"{operations:,} operations and {kinds} kind{'' if kinds == 1 else 's'} of devices"


def _check_levels(problem: Problem, facts: Facts, level: Floats, joins: dict[int, list[list[int]]], what: str) -> None:
    """Each claim follows by one of the rules. Claims for devices that may not run the operation count nowhere: its seconds there
    are infinite. What is infinite by a rule cannot happen, so that any claim holds.
    """
    for v in np.flatnonzero(level.any(axis=1)).tolist():
        follows = facts.by_edges(level, v)
        if v in joins:
            follows = facts.by_joins(level, v, joins[v], follows)
        wrong = np.flatnonzero(np.isfinite(facts.seconds[v]) & (level[v] > follows * (1 - MARGIN)))
        if len(wrong):
            d = int(wrong[0])
            raise CertificateError(
                f"the {what} of {problem.graph.op_name[v]!r} on {problem.cluster.device_names[d]} is said to be"
                f" {float(level[v, d])!r} s, and no more than {float(follows[d])!r} s can be proven"
            )


def follows_s(problem: Problem, certificate: Certificate) -> float:
    """The bound that follows by its argument, if its heads and tails are right."""
    argument, seconds = certificate.argument, Facts(problem).seconds
    head, tail = _levels(problem, certificate.heads), _levels(problem, certificate.tails)
    devices, streams = problem.cluster.size, problem.cluster.streams.astype(np.float64)
    may = np.isfinite(seconds)
    if isinstance(argument, Path):
        if argument.operation >= problem.graph.n:
            raise CertificateError(f"there is no operation {argument.operation}")
        v = argument.operation
        return float((head[v] + seconds[v] + tail[v]).min()) * (1 - MARGIN)
    group_s = np.where(problem.allowed, problem.group_s, np.inf)
    if isinstance(argument, Groups):
        chosen = sorted(set(argument.groups))
        if not chosen or chosen[-1] >= problem.g or (len(chosen) - 1) % devices:
            raise CertificateError(f"{len(chosen)} groups are not k times {devices} devices and one")
        least = np.sort((group_s[chosen] / streams).min(axis=1))
        return math.fsum(least[: (len(chosen) - 1) // devices + 1]) * (1 - MARGIN)
    if len(argument.prices) != devices:
        raise CertificateError(f"it has prices of {len(argument.prices)} devices, the machine has {devices}")
    prices = np.asarray(argument.prices)
    capacity = math.fsum(prices * streams)
    if not capacity >= 1 / MOST:
        raise CertificateError(f"its prices of all streams come to {capacity} s, less than {1 / MOST}")
    if isinstance(argument, Window):
        inside = np.where(may, head, np.inf).min(axis=1) >= argument.after_s
        inside &= np.where(may, tail, np.inf).min(axis=1) >= argument.before_s
        work = np.where(may, np.where(may, seconds, 0.0) * prices, np.inf).min(axis=1)[inside]
        return (argument.after_s + math.fsum(work) / capacity + argument.before_s) * (1 - MARGIN) if len(work) else 0.0
    if len(argument.memory_prices) != devices:
        raise CertificateError(f"it has prices of {len(argument.memory_prices)} memories, the machine has {devices}")
    bytes_, room = np.asarray(argument.memory_prices), problem.cluster.memory_bytes.astype(np.float64)
    allowed = problem.allowed
    paid = np.where(allowed, np.where(allowed, group_s, 0.0) * prices, np.inf)
    paid = (paid + problem.group_persistent_bytes[:, None] * bytes_).min(axis=1)
    return (math.fsum(paid) * (1 - MARGIN) - math.fsum(bytes_ * room) * (1 + MARGIN)) / capacity * (1 - MARGIN)
