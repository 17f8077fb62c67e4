"""What a strategy costs: the seconds of a step and the memory of each device, as backend `pipeline` simulates them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray
from placekit_pipeline.pipeline import Pipeline, PipelineSession

from placekit_core import Cluster, NotApplicable, Placement, Problem
from placekit_training.model import Model, Parts
from placekit_training.strategy import Replica, Strategy

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a strategy costs.

    Attributes:
        strategy: the strategy; None if operations are placed one by one.
        step_s: seconds of a step.
        peak_bytes: [D] memory that each device needs at most.
        fits: whether no device needs more than it has.
        error: why the strategy cannot run; then `step_s` is infinite.
    """

    strategy: Strategy | None
    step_s: float
    peak_bytes: Floats
    fits: bool
    error: str = ""

    @property
    def works(self) -> bool:
        """Whether the strategy can run."""
        return self.fits and math.isfinite(self.step_s)


class Steps:
    """The costs of a model's strategies on one machine.

    Attributes:
        parts: what stages consist of.
    """

    def __init__(self, model: Model, cluster: Cluster, parts: Parts | None = None) -> None:
        self.model, self.cluster = model, cluster
        self.parts = parts or Parts.of(model.any_graph, cluster)
        self.problem, self.session = cache(self._problem), cache(self._session)

    def strategy(
        self,
        placement: Placement,
        rows: int,
        microbatches: int,
        layout: Sequence[Sequence[int]],
        recompute: bool,
        shard: bool,
    ) -> Strategy:
        """The strategy of a placement of the parts."""
        device = placement.device
        first = np.flatnonzero(np.diff(device, prepend=-1))
        begins = tuple(self.parts.begins[i] for i in first[1:])
        devices = tuple(int(device[i]) for i in first)
        assert not layout
        return Strategy((Replica(devices, begins, rows, microbatches),), recompute=recompute, shard_optimizer=shard)

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
        graph = self.model.any_graph
        return float(graph.persistent_bytes[graph.op_type.is_value("state")].sum())

    def on(self, cluster: Cluster) -> Steps:
        """The same model on another machine with the same devices."""
        return Steps(self.model, cluster, self.parts)

    def _problem(self, rows: int) -> Problem:
        return Problem.of(self.model.graph(rows), self.cluster, self.parts.grouping)

    def _session(
        self, rows: int, schedule: str, microbatches: int, recompute: bool,
        replicas: tuple[tuple[int, ...], ...] = (), shares: tuple[int, ...] | None = None, shard_optimizer: bool = False,
    ) -> PipelineSession:  # fmt: skip
        backend = Pipeline(
            schedule=schedule, microbatches=microbatches, checkpointing="block" if recompute else "none", threads=1,
        )  # fmt: skip
        session = backend.open(self.problem(rows))
        assert isinstance(session, PipelineSession)
        return session

    def part_s(self, rows: int, recompute: bool = False) -> Floats:
        """[b, D, 4] seconds of each part on each device: forward, backward, gradients of weights, update."""
        return self.session(rows, "1f1b", 1, recompute).stages.group_s()

    def outcome(self, strategy: Strategy) -> Outcome:
        """What a strategy costs."""
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
        gradient_bytes = 0.0
        for replica in strategy.replicas:
            [d] = replica.devices
            session = self.session(replica.rows, "1f1b", replica.microbatches, strategy.recompute)
            peak[d] = session.evaluate(self._all_on(replica.rows, d).batch()).peak_bytes[0, d]
            stores = session.stages.stores
            gradient_bytes = float(stores.bytes_[stores.once].sum())
            part = self.part_s(replica.rows, strategy.recompute)[:, d].sum(axis=0)
            backward = float(part[1] + part[2])
            end.append(replica.microbatches * (float(part[0]) + backward))
            begin.append(end[-1] - backward)
            update.append(float(part[3]))
            if strategy.shard_optimizer:
                update[-1] /= count
                peak[d] -= self.state_bytes * (1 - 1 / count)
        averaged = max(end)
        if count > 1:
            devices = [replica.devices[0] for replica in strategy.replicas]
            averaged = averaged_at(self.cluster.routes, devices, gradient_bytes, max(begin), max(end))
        fits = bool((peak <= self.cluster.memory_bytes).all())
        return Outcome(strategy, averaged + max(update), peak, fits)

    def _pipelined(self, strategy: Strategy) -> Outcome:
        """Copies that are divided into stages; their micro-batches have equally many rows."""
        leader = max(strategy.replicas, key=lambda replica: len(replica.devices))
        rows = [self._columns(leader, replica) for replica in strategy.replicas]
        several = len(strategy.replicas) > 1
        session = self.session(
            leader.rows, strategy.schedule, sum(r.microbatches for r in strategy.replicas), strategy.recompute,
            tuple(sorted(rows, key=lambda row: row != leader.devices)) if several else (),
            tuple(r.microbatches for r in sorted(strategy.replicas, key=lambda r: r is not leader)) if several else None,
            strategy.shard_optimizer,
        )  # fmt: skip
        found = session.evaluate(self.placement(leader).batch())
        error = found.error[0] or ""
        value_s = math.inf if error else float(found.value_s[0])
        return Outcome(strategy, value_s, found.peak_bytes[0], bool(found.fits[0]), error)

    def _columns(self, leader: Replica, replica: Replica) -> tuple[int, ...]:
        """The device of a copy that runs what is in each stage of the copy with the most stages."""
        if set(replica.begins) - set(leader.begins):
            raise ValueError("a copy is cut where the copy with the most stages is not")
        own = [self.parts.begins.index(begin) for begin in replica.begins]
        starts = [0, *(self.parts.begins.index(begin) for begin in leader.begins)]
        return tuple(replica.devices[sum(cut <= start for cut in own)] for start in starts)


BUCKET = 25 * 2**20


def averaged_at(routes, devices, bytes_, begin_s, end_s):
    n = len(devices)
    lat = max(routes.latency_s[a, b] for a, b in zip(devices, devices[1:] + devices[:1]))
    rate = max(routes.s_per_byte[a, b] for a, b in zip(devices, devices[1:] + devices[:1]))
    buckets = max(1, math.ceil(bytes_ / BUCKET))
    each = 2 * (n - 1) * (lat + bytes_ / buckets / n * rate)
    now = 0.0
    for j in range(buckets):
        now = max(now, begin_s + (end_s - begin_s) * (j + 1) / buckets) + each
    return now
