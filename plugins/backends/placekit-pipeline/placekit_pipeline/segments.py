"""Computes the costs of segments: the blocks between two prefixes of a network, on each class of devices."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from placekit_layers import Blocks
from placekit_layers.prefixes import Prefixes
from placekit_scheduling import device_classes

from placekit_core import Cluster, Grouping, NotApplicable, Problem, Session
from placekit_pipeline.blocking import BlockingSession
from placekit_pipeline.chain_arrays import BUSIEST, FLOW, TOKEN, TRAIN, Table
from placekit_pipeline.max_load import MaxLoadSession
from placekit_pipeline.nets import AHEAD, BACK, SOURCE, Floats, Ints, Nets, nets_of
from placekit_pipeline.pipeline import PipelineSession
from placekit_pipeline.stages import Stages

AT_ONCE = 50_000  # segments whose costs are computed together, to limit memory
MOST_SETS = 20_000  # sets of devices (see `chain_arrays`) for which tables are computed


@dataclass(frozen=True, eq=False)
class Segments:
    """All segments between prefixes.

    Attributes:
        table: their costs.
        exact: all prefixes of the blocks are among them.
        proves: the bound from the table holds for every placement that consists of such segments.
        exchanges: swapping equal devices may change the value, because messages that are ready at the same time, or that one
            task sends, use a shared channel in the order of their devices.
    """

    table: Table
    exact: bool
    proves: bool
    exchanges: bool


def segments_of(blocks: Blocks, session: Session, objective: str | None, max_ideals: int) -> Segments:
    """The segments of a sequence of blocks on the backend of `session`.

    For backends of other plugins, the sum of the segments serves as a bound of a split, but proves nothing. Raises
    NotApplicable if there are too many classes of devices.
    """
    problem = blocks.problem
    coarse = Problem(problem.graph, Grouping(blocks.of_op.astype(np.int32)), problem.cluster, problem.costs)
    prefixes = Prefixes.of(len(blocks), blocks.source, blocks.target, max_ideals)
    block_costs = BlockCosts.of(coarse, session)
    return _Builder(coarse, block_costs, prefixes, session, objective).segments(blocks.of_group)


def values_add_up(session: Session, objective: str | None) -> bool:
    """Whether a split's value depends on the sum of its stages, not only on the busiest stage."""
    return not (
        isinstance(session, MaxLoadSession) or (isinstance(session, PipelineSession) and objective == "throughput")
    )


def least_route(cluster: Cluster, first: list[int], received: bool) -> tuple[Floats, Floats]:
    """[K] least latency and seconds per byte of the routes from (if `received`, to) each class, given a device of each."""
    routes, size = cluster.routes, cluster.size
    if size == 1:
        return np.zeros(1), np.zeros(1)
    latency, rate = (x.T if received else x for x in (routes.latency_s, routes.s_per_byte))
    others = [[d for d in range(size) if d != x] for x in first]
    pairs = list(zip(first, others, strict=True))
    return np.asarray([latency[x, o].min() for x, o in pairs]), np.asarray([rate[x, o].min() for x, o in pairs])


@dataclass(frozen=True, eq=False)
class BlockCosts:
    """The costs of blocks, as groups of a problem: [b, D, 4] seconds (see `Stages.part`), nets, and bytes that stages keep."""

    group_s: Floats
    nets: Nets
    stages: Stages

    @classmethod
    def of(cls, coarse: Problem, session: Session) -> BlockCosts:
        """The costs of a step for a session of backend `pipeline`; those of one forward pass for other backends."""
        if isinstance(session, PipelineSession):
            stages = session.stages.grouped(coarse)
            return cls(stages.group_s(), nets_of(coarse, stages.phase), stages)
        stages = Stages.of(coarse, False, False, False)
        # calls of `blocking_latency` receive parameters and inputs, but no device pays for sending them
        phase = stages.phase if isinstance(session, BlockingSession) else None
        return cls(stages.group_s(), nets_of(coarse, phase), stages)


@dataclass(frozen=True, eq=False)
class _Builder:
    """Computes the costs of segments."""

    coarse: Problem
    block_costs: BlockCosts
    prefixes: Prefixes
    session: Session
    objective: str | None

    def segments(self, of_group: Ints) -> Segments:
        """All segments. Costs are computed in portions, because arrays of segments x blocks are large."""
        prefixes, (kind, m) = self.prefixes, self._kind()
        before = np.repeat(np.arange(len(prefixes.mask)), np.diff(prefixes.ptr))
        classes = self._classes()
        first = [devices[0] for devices in classes]
        hop_s, queue_s = self._hops(first)
        costs = [
            self._costs(prefixes.mask[prefixes.after[rows]] & ~prefixes.mask[before[rows]], first)
            for rows in (slice(i, i + AT_ONCE) for i in range(0, max(len(prefixes.after), 1), AT_ONCE))
        ]
        seconds, passing, ahead, update, fixed, saved = (np.concatenate(column) for column in zip(*costs, strict=True))
        many = np.asarray([len(devices) for devices in classes], np.int64)
        sets = math.prod(int(n) + 1 for n in many)
        if sets > MOST_SETS:
            raise NotApplicable(
                f"the machine's {many.sum()} devices are of {len(many)} classes: {sets} ways to choose some of them are too"
                f" many for policy 'chain' (at most {MOST_SETS})",
                "use a search, such as policy=portfolio",
            )
        radix = np.cumprod([1, *(many[:-1] + 1)]).astype(np.int64)
        of_set = np.arange(sets)[:, None] // radix % (many + 1)
        table = Table(
            numbers=np.asarray([kind, m, 0], np.int64),
            ptr=prefixes.ptr,
            after=prefixes.after,
            seconds=np.ascontiguousarray(seconds),
            passing=np.ascontiguousarray(passing),
            ahead=np.ascontiguousarray(ahead),
            update=np.ascontiguousarray(update),
            fixed_bytes=fixed,
            saved_bytes=saved,
            flight=self._flight(),
            room=np.asarray([self.coarse.cluster.memory_bytes[m].min() for m in self._members(first)]),
            hop_s=hop_s,
            queue_s=queue_s,
            radix=radix,
            many=many,
            of_set=np.ascontiguousarray(of_set),
            size=of_set.sum(axis=1),
            class_ptr=np.cumsum([0, *many]).astype(np.int64),
            device=np.asarray([d for devices in classes for d in devices], np.int64),
            of_group=of_group,
            mask=np.ascontiguousarray(prefixes.mask),
        )
        exchanges = any(len(c) > 1 for c in classes) and self._shares_channels()
        return Segments(table, prefixes.exact, self._proves(), exchanges)

    def _costs(self, inside: NDArray[np.bool_], first: list[int]) -> tuple[Floats, ...]:
        """`seconds`, `passing`, `ahead`, `update`, `fixed_bytes`, `saved_bytes` of segments with blocks `inside` [s, b]."""
        problem, kind = self.coarse, self._kind()[0]
        members = self._members(first)
        devices, of = [d for m in members for d in m], np.cumsum([0, *(len(m) for m in members)])[:-1]
        own = self.block_costs.group_s[:, devices]  # [b, devices, 4]
        member = inside.astype(np.float64)
        total = (member @ own.reshape(len(own), -1)).reshape(len(member), len(devices), 4)
        barred = np.maximum.reduceat(member @ (~problem.allowed[:, devices]).astype(np.float64), of, axis=1) > 0
        if len(devices) > len(first):
            return self._of_replicas(total, of, barred, inside)
        seconds = total[:, :, : 1 if kind == TOKEN else 3].sum(axis=2)
        passing, update = seconds, total[:, :, 3]
        if isinstance(self.session, MaxLoadSession | BlockingSession):
            pays = np.asarray([problem.device_type(d) == "gpu" for d in first], np.float64)
            passing = seconds = seconds + self._transfers(inside, first) * pays
        elif kind == TRAIN and not self._waits_back():
            passing, update = total[:, :, 0], np.zeros_like(update)
        pipelined = isinstance(self.session, PipelineSession)
        ahead = total[:, :, 0] if pipelined and self._returns else np.full_like(passing, -1.0)
        return np.where(barred, np.inf, seconds), passing, ahead, update, *self._memory(inside)

    def _of_replicas(
        self, total: Floats, of: Ints, barred: NDArray[np.bool_], inside: NDArray[np.bool_]
    ) -> tuple[Floats, ...]:
        """`_costs` of columns, from `total` [s, devices, 4]; the devices of column k begin at `of[k]`.

        Devices that divide the micro-batches take 1 / sum of 1 / seconds for each; one micro-batch passes the fastest.
        """
        kind = self._kind()[0]
        each = total[:, :, : 1 if kind == TOKEN else 3].sum(axis=2)
        with np.errstate(divide="ignore"):
            seconds = 1 / np.add.reduceat(1 / each, of, axis=1)
        passing, ahead, update = (np.minimum.reduceat(x, of, axis=1) for x in (each, total[:, :, 0], total[:, :, 3]))
        if kind == TRAIN and not self._waits_back():
            passing, update = ahead, np.zeros_like(update)
        ahead = ahead if self._returns else np.full_like(passing, -1.0)
        return np.where(barred, np.inf, seconds), passing, ahead, update, *self._memory(inside)

    def _classes(self) -> list[list[int]]:
        """The devices in classes of equal ones; with replicas, only the first row's devices."""
        if self._rows == 1:
            classes = device_classes(self.coarse)
            if not isinstance(self.session, PipelineSession):
                return classes
            leaders = self.session.replicas.leaders
            return [own for own in ([d for d in devices if d in leaders] for devices in classes) if own]
        assert isinstance(self.session, PipelineSession)
        return [[leader] for leader in self.session.replicas.leaders]

    def _members(self, first: list[int]) -> list[list[int]]:
        """The devices that run the segments that a split gives to each device of `first`."""
        if not isinstance(self.session, PipelineSession):
            return [[d] for d in first]
        return [self.session.replicas.members[d] for d in first]

    @property
    def _rows(self) -> int:
        return len(self.session.replicas) if isinstance(self.session, PipelineSession) else 1

    def _kind(self) -> tuple[int, int]:
        """How bounds combine segments, and the number of micro-batches."""
        if isinstance(self.session, MaxLoadSession):
            return BUSIEST, 1
        if isinstance(self.session, PipelineSession):
            if self.objective == "token":
                return TOKEN, 1
            if self.objective == "throughput":
                return BUSIEST, 1
            name = self.session.schedule_name
            flows = name == "inference" or (name == "gpipe" and self._returns)
            return FLOW if flows else TRAIN, self.session.options.microbatches
        return TOKEN, 1

    def _proves(self) -> bool:
        """Whether no placement has a value below the bound. Where seconds add up, stages must run one after another for that.

        It fails for `interleaved` and `blocking_latency`, where a segment may be several chunks or calls. With replicas, the
        tables guide the search: they do not know which micro-batches a row gets, nor stages that share a device.
        """
        if self._rows > 1:
            return False
        if not values_add_up(self.session, self.objective):
            return True
        one_task = isinstance(self.session, PipelineSession) and self.session.schedule_name != "interleaved"
        return one_task and self._is_path

    def _shares_channels(self) -> bool:
        """Whether messages between different pairs of devices may wait for each other."""
        if not isinstance(self.session, PipelineSession) or not values_add_up(self.session, self.objective):
            return False
        return int(np.bincount(np.concatenate(self._channels_held), minlength=1).max()) > 1

    @cached_property
    def _is_path(self) -> bool:
        """Whether each block but the first reads from the one before, so that segments run one after another."""
        nets = self.block_costs.nets
        next_to = np.zeros(self.coarse.g, np.bool_)
        producer = np.repeat(nets.producer, np.diff(nets.ptr))
        ahead = (np.repeat(nets.kind, np.diff(nets.ptr)) == AHEAD) & ~nets.late
        next_to[nets.reader[ahead & (producer + 1 == nets.reader)]] = True
        return bool(next_to[1:].all())

    @cached_property
    def _returns(self) -> bool:
        """Whether each block waits for gradients from the next block. Blocks before the first with a backward pass or update do
        not count. False for detached activations, or losses in the middle.
        """
        nets = self.block_costs.nets
        waits = np.zeros(self.coarse.g, np.bool_)
        producer = np.repeat(nets.producer, np.diff(nets.ptr))
        back = np.repeat(nets.kind, np.diff(nets.ptr)) == BACK
        waits[nets.reader[back & (producer == nets.reader + 1)]] = True
        works = np.logical_or.accumulate((self.block_costs.group_s[:, :, 1:] > 0).any(axis=(1, 2)))
        return bool((waits | ~works)[:-1].all())

    def _waits_back(self) -> bool:
        """Whether a step ends when its last micro-batch is back; under `zero_bubble`, gradients of weights may follow."""
        return (
            self._returns and isinstance(self.session, PipelineSession) and self.session.schedule_name != "zero_bubble"
        )

    def _flight(self) -> Ints:
        """`Table.flight`; a lower bound where the number depends on the simulated run."""
        size = self.coarse.cluster.size
        if not isinstance(self.session, PipelineSession):
            return np.zeros(size + 1, np.int64)
        m, name = self.session.options.microbatches, self.session.schedule_name
        if self.objective == "token":
            m = 0
        known = (name == "gpipe" or (name == "1f1b" and self._is_path)) and self._rows == 1
        least = np.full(size + 1, m) if name == "gpipe" else np.arange(size + 1)
        return np.asarray(np.minimum(least if known else 1, m) * np.ones(size + 1), np.int64)

    def _transfers(self, inside: NDArray[np.bool_], first: list[int]) -> Floats:
        """[s, K] least seconds of all tensors that leave or enter a segment, sent one by one."""
        nets, total = self.block_costs.nets, np.zeros((len(inside), len(first)))
        stated = nets.hop_s >= 0
        count = np.where(stated, 0, nets.count).astype(np.float64)
        bytes_, hop_s = np.where(stated, 0.0, nets.bytes_), np.where(stated, nets.hop_s, 0.0)
        for received in (False, True):
            latency, rate = least_route(self.coarse.cluster, first, received)
            of = (nets.kind == AHEAD) | (received & (nets.kind == SOURCE))
            counts, sizes, hops = np.zeros((3, len(inside), 1))
            for x, crosses in self._crossing_nets(inside, of, received):
                counts[:, 0] += crosses * count[x]
                sizes[:, 0] += crosses * bytes_[x]
                hops[:, 0] += crosses * hop_s[x]
            total += counts * latency + sizes * rate + hops
        return total

    def _crossing_nets(
        self, inside: NDArray[np.bool_], of: NDArray[np.bool_], received: bool
    ) -> Iterator[tuple[int, Floats]]:
        """For each net in `of`: its row, and for each segment 1 if the net enters (`received`) or leaves the segment, else 0."""
        nets, columns = self.block_costs.nets, np.ascontiguousarray(inside.T)
        for x in np.flatnonzero(of).tolist():
            made = columns[nets.producer[x]]
            readers = columns[nets.reader[nets.ptr[x] : nets.ptr[x + 1]]]
            crosses = readers.any(axis=0) & ~made if received else ~readers.all(axis=0) & made
            yield x, crosses.astype(np.float64)

    def _hops(self, first: list[int]) -> tuple[Floats, Floats]:
        """`hop_s` and `queue_s` of `Table`, from the messages between the last block of a prefix and the next block."""
        pairs = [[self._device_pair(a, b) for b in range(len(first))] for a in range(len(first))]
        count, kind = len(self.prefixes.mask), self._kind()[0]
        ahead, back = np.zeros(count), np.zeros(count)
        if count == self.coarse.g + 1 and isinstance(self.session, PipelineSession):
            nets = self.block_costs.nets
            for x in range(len(nets)):
                row, at = slice(nets.ptr[x], nets.ptr[x + 1]), int(nets.producer[x])
                readers = nets.reader[row][~nets.late[row]]
                if nets.kind[x] == AHEAD and at + 1 in readers:
                    ahead[at + 1] += nets.bytes_[x]
                if nets.kind[x] == BACK and at - 1 in readers:
                    back[at] += nets.bytes_[x]
        routes = [[[*self._route(x, y), *self._route(y, x)] for x, y in row] for row in pairs]
        figure = np.asarray(routes)  # [K, K, 6] of `_route`, there and back
        both = [_message(ahead, figure[..., :3])]
        if kind in (BUSIEST, FLOW) or (kind == TRAIN and self._waits_back()):
            both.append(_message(back, figure[..., 3:]))
        hop_s, queue_s = (np.sum(x, axis=0) if kind != BUSIEST else np.max(x, axis=0) for x in zip(*both, strict=True))
        if kind == BUSIEST:
            hop_s = queue_s
        real = np.asarray([[x != y for x, y in row] for row in pairs])  # one device sends nothing to itself
        cut = (slice(None), slice(None), slice(None))
        if len(np.unique(figure[real].reshape(-1, 3), axis=0)) < 2:
            a, b = np.argwhere(real)[0] if real.any() else (0, 0)
            cut = (slice(None), slice(a, a + 1), slice(b, b + 1))
        return np.ascontiguousarray(hop_s[cut], np.float64), np.ascontiguousarray(queue_s[cut], np.float64)

    def _route(self, a: int, b: int) -> tuple[float, float, float]:
        """Latency and seconds per byte of a route, and 1 if it occupies a channel that carries one transfer at a time, else 0."""
        routes, size = self.coarse.cluster.routes, self.coarse.cluster.size
        held = isinstance(self.session, PipelineSession) and len(self._channels_held[a * size + b]) > 0
        return float(routes.latency_s[a, b]), float(routes.s_per_byte[a, b]), float(held)

    @cached_property
    def _channels_held(self) -> list[Ints]:
        assert isinstance(self.session, PipelineSession)
        return self.session.held()

    def _device_pair(self, a: int, b: int) -> tuple[int, int]:
        """A device of class a and another of class b; the same one twice if a = b and the class has only one."""
        classes = self._classes()
        return classes[a][0], classes[b][-1] if a == b else classes[b][0]

    def _memory(self, inside: NDArray[np.bool_]) -> tuple[Floats, Floats]:
        """[s] bytes that do not depend on the micro-batches in flight, and bytes per micro-batch in flight."""
        stages = self.block_costs.stages
        persistent = inside.astype(np.float64) @ self.coarse.group_persistent_bytes
        if not isinstance(self.session, PipelineSession):
            return persistent, np.zeros(len(persistent))
        if self.session.shards:
            persistent -= inside.astype(np.float64) @ stages.state_bytes * (1 - 1 / self._rows)
        ptr, columns = stages.stores.ptr, np.ascontiguousarray(inside.T)
        held = np.zeros((len(inside), len(ptr) - 1))
        for y in range(len(ptr) - 1):
            held[:, y] = columns[stages.stores.holder[ptr[y] : ptr[y + 1]]].any(axis=0)
        once = held[:, stages.stores.once] @ stages.stores.bytes_[stages.stores.once]
        saved = held[:, ~stages.stores.once] @ stages.stores.bytes_[~stages.stores.once]
        work = np.where(inside, stages.work_bytes, 0.0).max(axis=1, initial=0.0)
        nets = self.block_costs.nets
        source = np.flatnonzero(nets.kind == SOURCE)
        copies = np.zeros(len(inside))
        for x in source.tolist():
            readers = nets.reader[nets.ptr[x] : nets.ptr[x + 1]]
            copies += nets.bytes_[x] * (inside[:, readers].any(axis=1) & ~inside[:, nets.producer[x]])
        if self._kind()[0] != TRAIN and not (self._kind()[0] == FLOW and self.session.schedule_name == "gpipe"):
            saved = saved * (self.session.schedule_name != "inference")
        return persistent + once + work + copies, saved


def _message(bytes_: Floats, route: Floats) -> tuple[Floats, Floats]:
    """[i, K, K] seconds of messages of `bytes_` [i], and how long they occupy a channel; `route` [K, K, 3] is from `_route`."""
    some = bytes_[:, None, None]
    seconds = (some > 0) * route[..., 0] + some * route[..., 1]
    return seconds, seconds * route[..., 2]
