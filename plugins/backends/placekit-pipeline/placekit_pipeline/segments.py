"""What contiguous parts of a network cost: the sets of blocks between two prefixes, on each class of devices."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from placekit_layers import Blocks
from placekit_layers.prefixes import Prefixes
from placekit_scheduling import device_classes

from placekit_core import Grouping, Problem, Session, strongly_connected
from placekit_pipeline.blocking import BlockingSession
from placekit_pipeline.counting import crossing, held_in
from placekit_pipeline.max_load import MaxLoadSession
from placekit_pipeline.nets import AHEAD, BACK, FORWARD, SOURCE, Floats, Ints, Nets, nets_of
from placekit_pipeline.pipeline import PipelineSession
from placekit_pipeline.stages import Stages

AT_ONCE = 50_000  # segments whose costs are worked out together
TOKEN, BUSIEST, FLOW, TRAIN = range(4)
"""How the value of a split follows from its segments, as far as a bound knows: their sum; the largest; for M micro-batches
one after another through all of them, the sum and M - 1 times the largest; forward and back again."""


@dataclass(frozen=True, eq=False)
class Segments:
    """Costs of all s segments between prefixes, on K classes of devices that are alike.

    Attributes:
        kind: `TOKEN`, `BUSIEST`, `FLOW` or `TRAIN`.
        microbatches: M of `FLOW` and `TRAIN`; else 1.
        classes: devices of each class.
        prefixes: the i prefixes.
        seconds: [s, K] seconds of a micro-batch; infinite where a device may not run the segment.
        passing: [s, K] seconds by which it delays others (`TRAIN`: on the way forward and back), without what `hop_s` has.
        ahead: [s, K] seconds of its forward pass (`TRAIN`); negative if it also sends in its own time, or waits for no
            gradients.
        update: [s, K] seconds of the optimiser at the end of a step.
        fixed_bytes: [s] bytes on its device however many micro-batches are in flight.
        saved_bytes: [s] further bytes for each micro-batch in flight.
        flight: [D + 1] micro-batches in flight in the q-th stage from the end.
        room: [K] memory of each device.
        hop_s: [i, K, K] at least the seconds of the messages from a segment that ends at a prefix to the next one, from
            class to class; with one column each if all routes are alike.
        queue_s: like `hop_s`, at least the seconds that each micro-batch's messages keep a channel from others.
        proves: the bound from these figures holds for every placement with such segments.
        exchanges: a value may depend on which of several alike devices runs a stage: messages that are ready at the same
            time, or that one task sends, take a channel that they share in the order of the devices.
    """

    kind: int
    microbatches: int
    classes: list[list[int]]
    prefixes: Prefixes
    seconds: Floats
    passing: Floats
    ahead: Floats
    update: Floats
    fixed_bytes: Floats
    saved_bytes: Floats
    flight: Ints
    room: Floats
    hop_s: Floats
    queue_s: Floats
    proves: bool
    exchanges: bool


def segments_of(blocks: Blocks, session: Session, objective: str | None, max_ideals: int) -> Segments:
    """The segments of a sequence of blocks as the backend of `session` sees them.

    For a backend that is not one of this plugin, a split's value is taken for the sum of its segments, without a proof.
    """
    problem = blocks.problem
    coarse = Problem(problem.graph, Grouping(blocks.of_op.astype(np.int32)), problem.cluster, problem.costs)
    prefixes = Prefixes.of(len(blocks), blocks.source, blocks.target, max_ideals)
    parts = Parts.of(coarse, session)
    return _Builder(coarse, parts, prefixes, session, objective).segments()


def values_add_up(session: Session, objective: str | None) -> bool:
    """Whether a split's value depends on the sum of its stages, and not only on the busiest of them."""
    return not (
        isinstance(session, MaxLoadSession) or (isinstance(session, PipelineSession) and objective == "throughput")
    )


@dataclass(frozen=True, eq=False)
class Parts:
    """The blocks as groups of a problem: [b, D, 4] seconds by part, nets, and what stages keep."""

    group_s: Floats
    nets: Nets
    stages: Stages

    @classmethod
    def of(cls, coarse: Problem, session: Session) -> Parts:
        """As `session` divides the work; as one forward pass for backends that do not divide it."""
        if isinstance(session, PipelineSession):
            stages = session.stages.grouped(coarse)
            return cls(stages.group_s(), nets_of(coarse, stages.phase), stages)
        stages = Stages.of(coarse, False, False, False)
        # calls receive parameters and inputs, but nothing sends them
        phase = stages.phase if isinstance(session, BlockingSession) else None
        return cls(stages.group_s(), nets_of(coarse, phase), stages)


@dataclass(frozen=True, eq=False)
class _Builder:
    """Works out the costs of segments."""

    coarse: Problem
    parts: Parts
    prefixes: Prefixes
    session: Session
    objective: str | None

    def segments(self) -> Segments:
        """All segments, some at a time, because s x b figures are many."""
        mask, after = self.prefixes.mask, self.prefixes.after
        before = np.repeat(np.arange(len(mask)), np.diff(self.prefixes.ptr))
        classes = device_classes(self.coarse)
        first = [devices[0] for devices in classes]
        kind, m = self._kind()
        hop_s, queue_s = self._hops(first)
        parts = [
            self._costs(mask[after[i : i + AT_ONCE]] & ~mask[before[i : i + AT_ONCE]], first)
            for i in range(0, max(len(after), 1), AT_ONCE)
        ]
        seconds, passing, ahead, update, fixed, saved = (np.concatenate(column) for column in zip(*parts, strict=True))
        return Segments(
            kind=kind,
            microbatches=m,
            classes=classes,
            prefixes=self.prefixes,
            seconds=seconds,
            passing=passing,
            ahead=ahead,
            update=update,
            fixed_bytes=fixed,
            saved_bytes=saved,
            flight=self._flight(kind, m, self.coarse.cluster.size),
            room=self.coarse.cluster.memory_bytes[first],
            hop_s=hop_s,
            queue_s=queue_s,
            proves=self._proves(),
            exchanges=any(len(c) > 1 for c in classes) and self._shares_channels(),
        )

    def _costs(self, inside: NDArray[np.bool_], first: list[int]) -> tuple[Floats, ...]:
        """`seconds`, `passing`, `ahead`, `update`, `fixed_bytes`, `saved_bytes` of segments with blocks `inside` [s, b]."""
        problem, kind = self.coarse, self._kind()[0]
        own = self.parts.group_s[:, first]  # [b, K, 4]
        member = inside.astype(np.float64)
        total = (member @ own.reshape(len(own), -1)).reshape(len(member), len(first), 4)
        barred = member @ (~problem.allowed[:, first]).astype(np.float64) > 0
        seconds = total[:, :, : 1 if kind == TOKEN else 3].sum(axis=2)
        passing, update = seconds, total[:, :, 3]
        if isinstance(self.session, MaxLoadSession | BlockingSession):
            pays = np.asarray([problem.device_type(d) == "gpu" for d in first], np.float64)
            passing = seconds = seconds + self._transfers(inside, first) * pays
        elif isinstance(self.session, PipelineSession):
            if not self.session.options.overlap:
                ahead, back = self._sends(inside, first)
                seconds = seconds + ahead + back
                passing = passing + back * (kind == TRAIN)  # the way forward is in `hop_s`
            if kind == TRAIN and not self._waits_back():
                passing, update = total[:, :, 0], np.zeros_like(update)
        ahead = total[:, :, 0] if self._overlaps() and self._returns else np.full_like(passing, -1.0)
        return np.where(barred, np.inf, seconds), passing, ahead, update, *self._memory(inside)

    def _kind(self) -> tuple[int, int]:
        """How values follow from segments, and the micro-batches."""
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
        """Whether a value is never below the bound: if it adds up, stages must work one after another."""
        if not values_add_up(self.session, self.objective):
            return True
        if isinstance(self.session, BlockingSession):
            return self._is_path and self._one_call_each()
        if not isinstance(self.session, PipelineSession):
            return False
        return self._is_path and (self.session.schedule_name != "interleaved" or self._one_chunk_each())

    def _shares_channels(self) -> bool:
        """Whether messages between different pairs of devices may wait for each other."""
        if not isinstance(self.session, PipelineSession) or not values_add_up(self.session, self.objective):
            return False
        return int(np.bincount(np.concatenate(self._held), minlength=1).max()) > 1

    @cached_property
    def _is_path(self) -> bool:
        """Whether each block but the first reads from the one before, so that segments run one after another."""
        nets = self.parts.nets
        next_to = np.zeros(self.coarse.g, np.bool_)
        producer = np.repeat(nets.producer, np.diff(nets.ptr))
        ahead = (np.repeat(nets.kind, np.diff(nets.ptr)) == AHEAD) & ~nets.late
        next_to[nets.reader[ahead & (producer + 1 == nets.reader)]] = True
        return bool(next_to[1:].all())

    @cached_property
    def _returns(self) -> bool:
        """Whether each block whose backward pass or update is not empty, or that comes after such a block, waits for
        gradients from the next one. With detached activations, or losses in the middle, it does not.
        """
        nets = self.parts.nets
        waits = np.zeros(self.coarse.g, np.bool_)
        producer = np.repeat(nets.producer, np.diff(nets.ptr))
        back = np.repeat(nets.kind, np.diff(nets.ptr)) == BACK
        waits[nets.reader[back & (producer == nets.reader + 1)]] = True
        works = np.logical_or.accumulate((self.parts.group_s[:, :, 1:] > 0).any(axis=(1, 2)))
        return bool((waits | ~works)[:-1].all())

    def _waits_back(self) -> bool:
        """Whether the last micro-batch ends on its way back; the last gradients of weights need not end before others go on."""
        return (
            self._returns and isinstance(self.session, PipelineSession) and self.session.schedule_name != "zero_bubble"
        )

    def _one_chunk_each(self) -> bool:
        """Whether all of a block follows something in the one before, so that `interleaved` makes one chunk of a stage."""
        assert isinstance(self.session, PipelineSession)
        problem = self.session.problem
        group, kernel = problem.grouping.group_of, problem.graph.kernel & (self.parts.stages.phase == FORWARD)
        block = np.zeros(problem.g, np.int64)
        block[group] = self.coarse.grouping.group_of
        u, v = problem.graph.op_edges
        between = kernel[u] & kernel[v]
        a, b = group[u[between]], group[v[between]]
        reached = np.zeros(problem.g, np.bool_)
        reached[block == 0] = True
        reached[b[block[a] + 1 == block[b]]] = True
        a, b = a[block[a] == block[b]], b[block[a] == block[b]]
        while (reached[a] & ~reached[b]).any():
            reached[b[reached[a]]] = True
        return bool(reached[group[kernel]].all())

    def _one_call_each(self) -> bool:
        """Whether every segment is one call on an accelerator, and on a CPU a sequence of operations."""
        graph, of = self.coarse.graph, self.coarse.grouping.group_of
        u, v = graph.op_edges
        linked = graph.kernel[u] & graph.kernel[v]
        if any(self.coarse.device_type(d) == "cpu" for d in range(self.coarse.cluster.size)):
            order = graph.topological_order[graph.kernel[graph.topological_order]]
            pairs = set(zip(u[linked].tolist(), v[linked].tolist(), strict=True))
            return all(pair in pairs for pair in pairwise(order.tolist()))
        inner = linked & (of[u] == of[v])
        ends = np.concatenate([np.stack([u[inner], v[inner]]), np.stack([v[inner], u[inner]])], axis=1)
        ends = ends[:, np.argsort(ends[0], kind="stable")]
        piece = strongly_connected(graph.n, ends[0].astype(np.int64), ends[1].astype(np.int64))
        return len(np.unique(piece[graph.kernel])) == len(np.unique(of[graph.kernel]))

    def _flight(self, kind: int, m: int, size: int) -> Ints:
        """See `Segments.flight`; where it depends on the events, at least."""
        if not isinstance(self.session, PipelineSession):
            return np.zeros(size + 1, np.int64)
        m, name = self.session.options.microbatches, self.session.schedule_name
        if self.objective == "token":
            m = 0
        known = name == "gpipe" or (name == "1f1b" and self._is_path)
        least = np.full(size + 1, m) if name == "gpipe" else np.arange(size + 1)
        return np.asarray(np.minimum(least if known else 1, m) * np.ones(size + 1), np.int64)

    def _transfers(self, inside: NDArray[np.bool_], first: list[int]) -> Floats:
        """[s, K] at least the seconds of all that goes out and comes in, where each tensor takes its own."""
        nets, total = self.parts.nets, np.zeros((len(inside), len(first)))
        stated = nets.hop_s >= 0
        count = np.where(stated, 0, nets.count).astype(np.float64)
        bytes_, hop_s = np.where(stated, 0.0, nets.bytes_), np.where(stated, nets.hop_s, 0.0)
        for received in (False, True):
            latency, rate = self._least(first, received)
            of = (nets.kind == AHEAD) | (received & (nets.kind == SOURCE))
            figures = [self._crossing(inside, of, received, x)[:, None] for x in (count, bytes_, hop_s)]
            total += figures[0] * latency + figures[1] * rate + figures[2]
        return total

    def _sends(self, inside: NDArray[np.bool_], first: list[int]) -> tuple[Floats, Floats]:
        """[s, K] at least the seconds that a stage that does not overlap spends sending ahead and back.

        In the steady state that is the sum of its messages. In a step, messages on different routes may travel at the same
        time, so just those to the stages before and after count.
        """
        nets, sums = self.parts.nets, self._kind()[0] == BUSIEST
        latency, rate = self._least(first, False)
        found = []
        for kind, step in ((AHEAD, 1), (BACK, -1)):
            of = nets.kind == kind
            out = self._crossing(inside, of, False, nets.bytes_) if sums else self._to_next(inside, kind, step)
            found.append((out > 0)[:, None] * latency + out[:, None] * rate)
        return found[0], found[1]

    def _to_next(self, inside: NDArray[np.bool_], kind: int, step: int) -> Floats:
        """[s] bytes that segments of one order of the blocks send to the block after (`step` 1) or before (-1) them."""
        nets = self.parts.nets
        if step > 0:
            near = inside.shape[1] - np.argmax(inside[:, ::-1], axis=1)
        else:
            near = np.argmax(inside, axis=1) - 1
        total = np.zeros(len(inside))
        for x in np.flatnonzero(nets.kind == kind).tolist():
            row = slice(nets.ptr[x], nets.ptr[x + 1])
            readers = nets.reader[row][~nets.late[row]]
            total += nets.bytes_[x] * (inside[:, nets.producer[x]] & np.isin(near, readers))
        return total

    def _crossing(self, inside: NDArray[np.bool_], of: NDArray[np.bool_], received: bool, figure: Floats) -> Floats:
        """[s] sum of `figure` [N] over the nets `of` that come into a segment, or go out of it."""
        nets = self.parts.nets
        return crossing(inside, of, received, nets.producer, nets.ptr, nets.reader, figure)  # type: ignore[no-any-return]

    def _least(self, first: list[int], received: bool) -> tuple[Floats, Floats]:
        """[K] the least latency and seconds per byte of a route from a class's devices to any other device, or to them."""
        routes, size = self.coarse.cluster.routes, self.coarse.cluster.size
        if size == 1:
            return np.zeros(1), np.zeros(1)
        latency, rate = (x.T if received else x for x in (routes.latency_s, routes.s_per_byte))
        others = [[d for d in range(size) if d != x] for x in first]
        pairs = list(zip(first, others, strict=True))
        return np.asarray([latency[x, o].min() for x, o in pairs]), np.asarray([rate[x, o].min() for x, o in pairs])

    def _hops(self, first: list[int]) -> tuple[Floats, Floats]:
        """`hop_s` and `queue_s`: what surely passes from the last block of a prefix to the next one, along one order."""
        pairs = [[self._pair(a, b) for b in range(len(first))] for a in range(len(first))]
        count, kind = len(self.prefixes.mask), self._kind()[0]
        ahead, back = np.zeros(count), np.zeros(count)
        if count == self.coarse.g + 1 and isinstance(self.session, PipelineSession):
            nets = self.parts.nets
            for x in range(len(nets)):
                row, at = slice(nets.ptr[x], nets.ptr[x + 1]), int(nets.producer[x])
                readers = nets.reader[row][~nets.late[row]]
                if nets.kind[x] == AHEAD and at + 1 in readers:
                    ahead[at + 1] += nets.bytes_[x]
                if nets.kind[x] == BACK and at - 1 in readers:
                    back[at] += nets.bytes_[x]
        routes = [[[*self._route(x, y), *self._route(y, x)] for x, y in row] for row in pairs]
        figure = np.asarray(routes)  # [K, K, 6] latency, seconds per byte and whether others wait, there and back
        both = [_message(ahead, figure[..., :3])]
        # a stage that does not overlap sends gradients as part of its own seconds
        if kind in (BUSIEST, FLOW) or (kind == TRAIN and self._overlaps() and self._waits_back()):
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
        """Latency and seconds per byte of a route, and 1 if it has a channel that carries one transfer at a time."""
        routes, size = self.coarse.cluster.routes, self.coarse.cluster.size
        held = isinstance(self.session, PipelineSession) and len(self._held[a * size + b]) > 0
        return float(routes.latency_s[a, b]), float(routes.s_per_byte[a, b]), float(held)

    @cached_property
    def _held(self) -> list[Ints]:
        assert isinstance(self.session, PipelineSession)
        return self.session.held()

    def _overlaps(self) -> bool:
        return isinstance(self.session, PipelineSession) and self.session.options.overlap

    def _pair(self, a: int, b: int) -> tuple[int, int]:
        """Two different devices of two classes; of the first class twice if it has one device only, and nothing to send."""
        classes = device_classes(self.coarse)
        return classes[a][0], classes[b][-1] if a == b else classes[b][0]

    def _memory(self, inside: NDArray[np.bool_]) -> tuple[Floats, Floats]:
        """[s] bytes that do not depend on the micro-batches in flight, and those of each of them."""
        stages = self.parts.stages
        persistent = inside.astype(np.float64) @ self.coarse.group_persistent_bytes
        if not isinstance(self.session, PipelineSession):
            return persistent, np.zeros(len(persistent))
        held = held_in(inside, stages.stores.ptr, stages.stores.holder)
        once = held[:, stages.stores.once] @ stages.stores.bytes_[stages.stores.once]
        saved = held[:, ~stages.stores.once] @ stages.stores.bytes_[~stages.stores.once]
        work = np.where(inside, stages.work_bytes, 0.0).max(axis=1, initial=0.0)
        again = np.zeros(self.coarse.g)
        again[stages.block_group] = stages.block_bytes
        again = np.where(inside, again, 0.0).max(axis=1, initial=0.0)
        nets = self.parts.nets
        source = np.flatnonzero(nets.kind == SOURCE)
        copies = np.zeros(len(inside))
        for x in source.tolist():
            readers = nets.reader[nets.ptr[x] : nets.ptr[x + 1]]
            copies += nets.bytes_[x] * (inside[:, readers].any(axis=1) & ~inside[:, nets.producer[x]])
        if self._kind()[0] != TRAIN and not (self._kind()[0] == FLOW and self.session.schedule_name == "gpipe"):
            saved = saved * (self.session.schedule_name != "inference")
        return persistent + once + work + again + copies, saved


def _message(bytes_: Floats, route: Floats) -> tuple[Floats, Floats]:
    """[i, K, K] seconds of messages of these bytes [i], and those that others wait for; `route` [K, K, 3] as of `_route`."""
    some = bytes_[:, None, None]
    seconds = (some > 0) * route[..., 0] + some * route[..., 1]
    return seconds, seconds * route[..., 2]
