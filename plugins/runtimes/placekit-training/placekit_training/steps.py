"""The costs of a strategy: the seconds of a step and the memory of each device, as backend `pipeline` simulates them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from placekit_layers import sequence
from placekit_pipeline.bounds import with_launches
from placekit_pipeline.nets import AHEAD, nets_of
from placekit_pipeline.pipeline import Pipeline, PipelineSession
from placekit_pipeline.rings import all_reduce_s, buckets_of, ready_s
from placekit_scheduling.jit import interpreted

from placekit_core import Cluster, Placement, Problem, Schedule
from placekit_training.layouts import Layout
from placekit_training.model import TRACED, Model, Parts
from placekit_training.strategy import Replica, Strategy

Floats = NDArray[np.float64]


DEFERRED = 2.25
"""A gradient of weights that is computed late keeps this many times the bytes that the stage saves for a backward pass.

torch 2.13 kept 2.2 times as many, in the pipelines of two and three stages whose memory tests/test_scripts.py measures.
"""


@dataclass(frozen=True, eq=False)
class Outcome:
    """The costs of a strategy.

    Attributes:
        strategy: the strategy; without replicas if operations are placed one by one.
        step_s: seconds of a step.
        peak_bytes: [D] memory that each device needs at most.
        fits: whether no device needs more than it has.
        error: why the strategy cannot run; then `step_s` is infinite.
    """

    strategy: Strategy
    step_s: float
    peak_bytes: Floats
    fits: bool
    error: str = ""

    @property
    def works(self) -> bool:
        """Whether the strategy can run."""
        return self.fits and math.isfinite(self.step_s)


@dataclass(frozen=True)
class Shape:
    """The decisions about a pipeline before it is cut: micro-batches, and the devices of each copy.

    Attributes:
        rows, microbatches: rows of each micro-batch, and the number of micro-batches in all copies.
        recompute, shard_optimizer: as in `Strategy`.
        layout: rows for `backend.replicas`; empty for one copy.
    """

    rows: int
    microbatches: int
    recompute: bool = False
    layout: Layout = ()
    shard_optimizer: bool = False


class Steps:
    """The costs of a model's strategies on one machine.

    Attributes:
        parts: the parts that stages consist of.
    """

    def __init__(self, model: Model, cluster: Cluster, parts: Parts | None = None) -> None:
        self.model, self.cluster = model, cluster
        self.parts = parts or Parts.of(model.problem(self.some_rows, cluster))
        self.problem, self.session, self.has_layers = (
            cache(self._problem),
            cache(self._session),
            cache(self._has_layers),
        )

    def strategy(self, placement: Placement, shape: Shape) -> Strategy:
        """The strategy of a placement that puts consecutive parts on each device.

        Micro-batches are divided as backend `pipeline` does it: one for each copy, each next one to the copy that would end it
        first.
        """
        device = placement.device
        first = np.flatnonzero(np.diff(device, prepend=-1))
        leaders, begins = device[first].tolist(), [self.parts.begins[i] for i in first[1:]]
        rows = shape.layout or (tuple(dict.fromkeys(leaders)),)
        column = {leader: j for j, leader in enumerate(rows[0])}
        copies = [[row[column[leader]] for leader in leaders] for row in rows]
        part_s = self.part_s(shape.rows, shape.recompute)[:, :, :3].sum(axis=2)
        slowest = []
        for row in rows:
            own = np.asarray([row[column[leader]] for leader in device.tolist()])
            slowest.append(np.bincount(own, part_s[np.arange(len(own)), own]).max())
        count = [1] * len(rows)
        for _ in range(shape.microbatches - len(rows)):
            count[int(np.argmin((np.asarray(count) + 1) * np.asarray(slowest)))] += 1
        replicas = []
        for devices, microbatches in zip(copies, count, strict=True):
            keep = [s for s in range(len(devices)) if s == 0 or devices[s] != devices[s - 1]]
            cuts = tuple(begins[s - 1] for s in keep[1:])
            replicas.append(Replica(tuple(devices[s] for s in keep), cuts, shape.rows, microbatches))
        return Strategy(tuple(replicas), "1f1b", shape.recompute, shape.shard_optimizer)

    def placement(self, replica: Replica) -> Placement:
        """The placement of the parts in a copy."""
        stage = np.zeros(len(self.parts), np.int64)
        stage[[self.parts.begins.index(begin) for begin in replica.begins]] = 1
        return self.problem(replica.rows).placement(np.asarray(replica.devices)[np.cumsum(stage)])

    def _all_on(self, rows: int, device: int) -> Placement:
        return self.problem(rows).placement(np.full(len(self.parts), device))

    @cached_property
    def state_bytes(self) -> float:
        """Bytes of the optimiser's state."""
        graph = self.model.program(self.some_rows).graph
        return float(graph.persistent_bytes[graph.op_type.is_value("state")].sum())

    @property
    def some_rows(self) -> int:
        """A number of rows with a known step, for values that do not depend on the number."""
        return self.model.sizes[0] if self.model.sizes else TRACED[0]

    @cached_property
    def gradient_bytes(self) -> float:
        """Bytes of the gradients of all parameters."""
        stores = self.session(Shape(self.some_rows, 1)).stages.stores
        return float(stores.bytes_[stores.once].sum())

    def on(self, cluster: Cluster) -> Steps:
        """The same model on another machine with the same devices."""
        return Steps(self.model, cluster, self.parts)

    def _problem(self, rows: int) -> Problem:
        parts = self.parts_for(rows)
        assert parts is not None, "the planner leaves such rows out"
        return self.model.problem(rows, self.cluster, parts)

    def parts_for(self, rows: int) -> Parts | None:
        """The parts in the graph of these rows; None if this graph has other parts.

        Graphs may have other operations: with one row, torch copies fewer tensors.
        """
        if self.model.program(rows).graph.op_name == self.model.program(self.some_rows).graph.op_name:
            return self.parts
        parts = Parts.of(self.model.problem(rows, self.cluster))
        return parts if parts.begins == self.parts.begins else None

    def _has_layers(self, rows: int) -> bool:
        """Whether there are layers to recompute: they do most of the work of their parts."""
        return bool(sequence(with_launches(self.problem(rows))).layer.any())

    def _session(self, shape: Shape, schedule: str = "1f1b", shares: tuple[int, ...] | None = None) -> PipelineSession:
        options: dict[str, Any] = {
            "schedule": schedule, "microbatches": shape.microbatches, "replicas": [list(row) for row in shape.layout],
            "shares": shares and list(shares), "shard_optimizer": shape.shard_optimizer, "threads": 1,
        }  # fmt: skip
        again = shape.recompute and self.has_layers(shape.rows)
        session = Pipeline(**options, checkpointing="block" if again else "none").open(self.problem(shape.rows))
        assert isinstance(session, PipelineSession)
        return session

    def part_s(self, rows: int, recompute: bool = False) -> Floats:
        """[b, D, 4] seconds of each part on each device: forward, backward, gradients of weights, update."""
        return self.session(Shape(rows, 1, recompute)).stages.group_s()

    def outcome(self, strategy: Strategy) -> Outcome:
        """The costs of a strategy."""
        return self._pipelined(strategy) if strategy.pipelined else self._data_parallel(strategy)

    def busy_s(self, strategy: Strategy) -> Floats:
        """[D] seconds of a step in which each device computes."""
        busy = np.zeros(self.cluster.size)
        for replica in strategy.replicas:
            device = self.placement(replica).device
            own = self.part_s(replica.rows, strategy.recompute)[np.arange(len(device)), device]
            updated = len(strategy.replicas) if strategy.shard_optimizer else 1
            each = replica.microbatches * own[:, :3].sum(axis=1) + own[:, 3] / updated
            busy += np.bincount(device, each, minlength=self.cluster.size)
        return busy

    def _data_parallel(self, strategy: Strategy) -> Outcome:
        """Copies that each run their rows on one device, alone or averaging gradients in buckets as DDP does."""
        size, count = self.cluster.size, len(strategy.replicas)
        peak, begin, end, update = np.zeros(size), list[float](), list[float](), list[float]()
        for replica in strategy.replicas:
            [d] = replica.devices
            session = self.session(Shape(replica.rows, replica.microbatches, strategy.recompute))
            peak[d] = session.evaluate(self._all_on(replica.rows, d).batch()).peak_bytes[0, d]
            part = self.part_s(replica.rows, strategy.recompute)[:, d].sum(axis=0)
            backward = float(part[1] + part[2])
            end.append(replica.microbatches * (float(part[0]) + backward))
            begin.append(end[-1] - backward)
            update.append(float(part[3]))
            if strategy.shard_optimizer:
                update[-1] /= count
                peak[d] -= self.state_bytes * (1 - 1 / count)
        devices = [replica.devices[0] for replica in strategy.replicas]
        averaged = self._averaged_at(devices, self.gradient_bytes, begin, end)
        gathered = 0.0
        if strategy.shard_optimizer:  # each device sends the parameters that it has updated: half a ring
            gathered = all_reduce_s(self.cluster, devices, self.gradient_bytes) / 2
        fits = bool((peak <= self.cluster.memory_bytes).all())
        return Outcome(strategy, float(averaged + max(update) + gathered), peak, fits)

    def _averaged_at(
        self, devices: Sequence[int], bytes_: float, begin: Sequence[float], end: Sequence[float]
    ) -> float:
        """When the gradients of backward passes from `begin` to `end` are averaged: in buckets, as in DDP."""
        if len(devices) == 1:
            return end[0]
        buckets = interpreted(buckets_of)(bytes_, True)
        each = all_reduce_s(self.cluster, devices, bytes_ / buckets)
        now = 0.0
        for bucket in range(buckets):
            ready = max(interpreted(ready_s)(a, b, bucket, buckets) for a, b in zip(begin, end, strict=True))
            now = max(now, ready) + each
        return now

    def _pipelined(self, strategy: Strategy) -> Outcome:
        """Copies that are divided into stages; their micro-batches have equally many rows."""
        session, placement = self._opened(strategy)
        found = session.evaluate(placement.batch())
        error, peak = found.error[0] or "", found.peak_bytes[0]
        if strategy.schedule == "zero_bubble" and not error:
            other, _ = self._opened(replace(strategy, schedule="1f1b"))
            kept = other.evaluate(placement.batch()).peak_bytes[0] + self._deferred_bytes(strategy)
            peak = np.maximum(peak, kept)
        peak = peak + self._buffer_bytes(strategy)
        fits = not error and bool((peak <= self.cluster.memory_bytes).all())
        return Outcome(strategy, math.inf if error else float(found.value_s[0]), peak, fits, error)

    def schedule(self, strategy: Strategy) -> tuple[Problem, Schedule]:
        """The timed events of a step with stages, and the problem that they belong to."""
        session, placement = self._opened(strategy)
        return session.problem, session.schedule(placement)

    def _opened(self, strategy: Strategy) -> tuple[PipelineSession, Placement]:
        """The session of backend `pipeline` for copies with stages, and the placement of the longest copy."""
        replicas = sorted(strategy.replicas, key=lambda replica: -len(replica.devices))
        leader, several = replicas[0], len(replicas) > 1
        layout = tuple(self._columns(leader, replica) for replica in replicas) if several else ()
        count = sum(replica.microbatches for replica in replicas)
        shape = Shape(leader.rows, count, strategy.recompute, layout, strategy.shard_optimizer)
        shares = tuple(replica.microbatches for replica in replicas) if several else None
        return self.session(shape, strategy.schedule, shares), self.placement(leader)

    def _deferred_bytes(self, strategy: Strategy) -> Floats:
        """[D] bytes that torch keeps for late gradients of weights: stage i computes them i micro-batches later."""
        extra = np.zeros(self.cluster.size)
        for replica in strategy.replicas:
            stores = self.session(Shape(replica.rows, 1, strategy.recompute)).stages.stores
            device = self.placement(replica).device
            for stage, d in enumerate(replica.devices):
                held = np.logical_or.reduceat(device[stores.holder] == d, stores.ptr[:-1]) & ~stores.once
                extra[d] += min(stage, replica.microbatches) * DEFERRED * float(stores.bytes_[held].sum())
        return extra

    def _buffer_bytes(self, strategy: Strategy) -> Floats:
        """[D] bytes of the buffers in which torch receives activations and gradients: one for each micro-batch of a step."""
        extra = np.zeros(self.cluster.size)
        for replica in strategy.replicas:
            problem = self.problem(replica.rows)
            nets = nets_of(problem, self.session(Shape(replica.rows, 1)).stages.phase)
            ahead = np.flatnonzero(nets.kind == AHEAD)
            reach = [
                nets.reader[nets.ptr[x] : nets.ptr[x + 1]][~nets.late[nets.ptr[x] : nets.ptr[x + 1]]] for x in ahead
            ]
            last = np.asarray([r.max(initial=-1) for r in reach])
            for stage, begin in enumerate(replica.begins, 1):
                cut = self.parts.begins.index(begin)
                crosses = (nets.producer[ahead] < cut) & (last >= cut)
                received = replica.microbatches * float(nets.bytes_[ahead][crosses].sum())
                for side in (stage - 1, stage):  # gradients come back to the one, activations reach the other
                    extra[replica.devices[side]] += received
        return extra

    def _columns(self, leader: Replica, replica: Replica) -> tuple[int, ...]:
        """The device of a copy that runs each stage of the copy with the most stages."""
        if set(replica.begins) - set(leader.begins):
            raise ValueError("a copy is cut where the copy with the most stages is not")
        own = [self.parts.begins.index(begin) for begin in replica.begins]
        starts = [0, *(self.parts.begins.index(begin) for begin in leader.begins)]
        return tuple(replica.devices[sum(cut <= start for cut in own)] for start in starts)
