"""The best strategy of each family for one model, machine and batch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from placekit_pipeline.chain import ChainPolicy
from placekit_pipeline.pipeline import equal_stages

from placekit_core import (
    Cluster,
    ClusterError,
    Ledger,
    NotApplicable,
    NothingFits,
    PlacekitError,
    Placement,
    PlacementError,
    Task,
    place,
)
from placekit_core.run.evaluator import BudgetedEvaluator
from placekit_training.layouts import FEW, Layout, layouts
from placekit_training.scripts import check
from placekit_training.steps import Outcome, Shape, Steps
from placekit_training.strategy import Replica, Strategy

Ints = NDArray[np.int64]
SCHEDULES = ("1f1b", "zero_bubble", "gpipe")
CHUNKS = 2
"""Chunks of each device in an interleaved schedule."""
OPERATIONS = 1000
"""Evaluations of the search that places single operations."""
EVALUATIONS = 200
"""Evaluations of one search for the best split; most searches end with a proof after ten."""
MOST = 4096
"""Micro-batches of a step, at most: the limit of backend `pipeline`."""
GAIN = 0.01
"""A strategy that needs more (devices, recomputation, an unusual schedule) must be faster by this share."""
TRIES = 3
"""Searches for a split that leaves room for torch's buffers."""
MOVES = 60
"""Changes of the shares of unlike devices that are tried."""


@dataclass(frozen=True, eq=False)
class Row:
    """One line of the table: a family, and its best strategy; None, and the reason, if it has none."""

    family: str
    name: str
    outcome: Outcome | None
    reason: str = "does not fit"


def divisors(number: int) -> list[int]:
    """The divisors of a number, the largest first."""
    return [d for d in range(number, 0, -1) if number % d == 0]


def faster(outcomes: Iterable[Outcome | None], than: Outcome | None = None) -> Outcome | None:
    """The fastest that fits; each later one must be faster by `GAIN` than the one before it."""
    for outcome in outcomes:
        if outcome is not None and outcome.works and (than is None or outcome.step_s < than.step_s * (1 - GAIN)):
            than = outcome
    return than


def workers(cluster: Cluster) -> list[int]:
    """The devices that train: the GPUs, or without any, the CPUs."""
    types = [cluster.kinds[kind].type for kind in cluster.device_kind]
    return [d for d, type_ in enumerate(types) if type_ == ("gpu" if "gpu" in types else "cpu")]


class Planner:
    """Searches the strategies of a model for one batch on one machine.

    Attributes:
        steps: the costs of strategies.
        batch: rows of the global batch.
        devices: the GPUs, or without any, the CPUs; the fastest first.
        unit: shares of the batch are multiples of this many rows.
    """

    def __init__(self, steps: Steps, batch: int) -> None:
        self.steps, self.batch = steps, batch
        if not self.sizes(batch):
            known = ", ".join(map(str, steps.model.sizes or ()))
            raise PlacementError(
                f"{batch} rows are not a multiple of any measured micro-batch of {steps.model.name}: {known}",
                "use another batch, or measure a micro-batch of one row",
            )
        speed = steps.part_s(self.sizes(batch)[-1]).sum(axis=(0, 2))
        self.devices = sorted(workers(steps.cluster), key=lambda d: (speed[d], d))
        self.unit = math.gcd(*steps.model.sizes) if steps.model.sizes else 1
        self.recompute = (False, True) if steps.parts.layer.any() else (False,)  # there are layers to recompute
        self._alone = cache(self._fastest_alone)

    def sizes(self, rows: int) -> list[int]:
        """Rows of a micro-batch that divide `rows`, the largest first, if the inputs alone fit and stages have the same parts."""
        known, room = self.steps.model.sizes, float(self.steps.cluster.memory_bytes.sum())
        made = [d for d in divisors(rows) if (known is None or d in known) and rows // d <= MOST]
        made = [d for d in made if self.steps.model.program(d).graph.persistent_bytes.sum() <= room]
        return [d for d in made if self.steps.parts_for(d) is not None]

    def subsets(self) -> list[list[int]]:
        """Sets of devices to use, the fastest first: of few devices, any number; of many, all of the fastest kinds."""
        kind, count = self.steps.cluster.device_kind, len(self.devices)
        ends = [
            i
            for i in range(1, count + 1)
            if i == count or count <= FEW or kind[self.devices[i - 1]] != kind[self.devices[i]]
        ]
        return [self.devices[:end] for end in ends]

    def rows(self) -> list[Row]:
        """The best strategy of each family that the machine has devices for."""
        one = self.single()
        name = self.steps.cluster.device_names[one.strategy.devices[0]] if one else "one device"
        found = [Row("one", f"{name} alone", one)]
        if len(self.devices) == 1:
            return found
        small, layers = self.batch < 2 * self.unit, int(self.steps.parts.layer.sum())
        no_copies = f"needs {2 * self.unit} rows" if small else "does not fit"
        no_equal = "fewer layers than devices" if layers < len(self.devices) else "does not fit"
        no_split = "does not fit" if one is None else "no split is faster"  # the best one has all parts on one device
        found.append(Row("copies", "replicas, equal shares", self.copies(by_speed=False), no_copies))
        if len({self.steps.cluster.device_kind[d] for d in self.devices}) > 1:
            found.append(Row("copies by speed", "replicas, shares by speed", self.copies(by_speed=True), no_copies))
        equal = self.equal_stages()
        found.append(Row("equal stages", "equal stages", equal, no_equal))
        found.append(Row("stages", "stages", faster([equal, self.stages()]), no_split))
        if len(self.devices) > 2:
            copies = no_copies if small else no_split
            found.append(Row("copies of stages", "replicas of stages", self.copies_of_stages(), copies))
        if self.steps.model.sizes is None:  # a profile has layers only
            found.append(Row("operations", "single operations", self.operations()))
        return found

    def operations(self) -> Outcome | None:
        """Operations placed by the default policy, with the whole batch at once; None if that does not fit."""
        if self.sizes(self.batch)[0] != self.batch:
            return None
        cluster = self.steps.cluster
        try:
            result = place(self.steps.model.program(self.batch), cluster=cluster, budget=OPERATIONS, baselines=[])
        except NothingFits:
            return None
        assert result.value_s is not None
        assert result.measurements is not None
        return Outcome(Strategy(()), result.value_s, result.measurements.peak_bytes[0], True)

    # ---- one device, and copies on one device each

    def single(self) -> Outcome | None:
        """The whole batch on the device that is fastest with it."""
        return faster(self._alone(d, self.batch, r) for r in self.recompute for d in self.devices)

    def _fastest_alone(self, device: int, rows: int, recompute: bool, sharing: int = 1) -> Outcome | None:
        """One device with these rows: the largest micro-batches that fit, or smaller ones if they are faster.

        With `sharing` devices dividing the optimiser's state, each needs less memory.
        """
        room = self.steps.cluster.memory_bytes[device] + self.steps.state_bytes * (1 - 1 / sharing)
        made = (Replica((device,), (), each, rows // each) for each in self.sizes(rows))
        found = (self.steps.outcome(Strategy((replica,), recompute=recompute)) for replica in made)
        return faster(replace(o, fits=bool(o.peak_bytes[device] <= room)) for o in found)

    def copies(self, by_speed: bool) -> Outcome | None:
        """The whole model on each device, with equal shares of the batch, or with shares by speed."""
        variants = [(recompute, shard) for recompute in self.recompute for shard in (False, True)]
        sets = [devices for devices in self.subsets() if len(devices) > 1]
        return faster(self._copies(devices, by_speed, *v) for v in variants for devices in sets)

    def _copies(self, devices: Sequence[int], by_speed: bool, recompute: bool, shard: bool) -> Outcome | None:
        rows = self._shares(devices, recompute, shard) if by_speed else self._equal_shares(len(devices))
        return self._of_shares(devices, rows, recompute, shard)

    def _of_shares(self, devices: Sequence[int], rows: Iterable[int], recompute: bool, shard: bool) -> Outcome | None:
        """Copies with these rows, in the micro-batches that are fastest on each device; None for one, or if they do not fit."""
        given = [(d, int(r)) for d, r in zip(devices, rows, strict=True) if r]
        alone = [self._alone(d, r, recompute, len(given) if shard else 1) for d, r in given]
        replicas = tuple(o.strategy.replicas[0] for o in alone if o is not None)
        if len(replicas) < max(2, len(given)):
            return None
        return self.steps.outcome(Strategy(replicas, recompute=recompute, shard_optimizer=shard))

    def _equal_shares(self, count: int) -> list[int]:
        """The same number of rows on each device; the remainder, one row each, on the first devices."""
        units = self.batch // self.unit
        return [self.unit * (units // count + (d < units % count)) for d in range(count)]

    def _shares(self, devices: Sequence[int], recompute: bool, shard: bool) -> list[int]:
        """Rows of each device: by speed first, then moved between devices as long as the step becomes shorter."""
        units = self.batch // self.unit
        sharing = len(devices) if shard else 1
        whole = [self._alone(d, self.batch, recompute, sharing) for d in devices]
        speed = np.asarray([1e-9 if o is None else 1 / o.step_s for o in whole])
        exact = units * speed / speed.sum()
        rows = np.floor(exact).astype(np.int64)
        rows[np.argsort(rows - exact, kind="stable")[: units - rows.sum()]] += 1
        best = self._step_s(devices, rows, recompute, shard)
        for _ in range(MOVES):
            tries = [rows + move for move in _moves(len(rows)) if (rows + move >= 0).all()]
            values = [self._step_s(devices, t, recompute, shard) for t in tries]
            if not tries or min(values) >= best:
                break
            best, rows = min(values), tries[int(np.argmin(values))]
        return [self.unit * int(r) for r in rows]

    def _step_s(self, devices: Sequence[int], units: Ints, recompute: bool, shard: bool) -> float:
        """Seconds of a step with these shares; infinite if they do not fit."""
        found = self._of_shares(devices, units * self.unit, recompute, shard)
        return found.step_s if found is not None and found.fits else math.inf

    # ---- stages

    def equal_stages(self) -> Outcome | None:
        """The same number of layers on each device, in the order of the machine."""
        return faster(self._equal(rows, recompute) for recompute in self.recompute for rows in self.sizes(self.batch))

    def _equal(self, rows: int, recompute: bool) -> Outcome | None:
        placement = equal_stages(self.steps.problem(rows), sorted(self.devices))
        if placement is None:
            return None
        return self.steps.outcome(self.steps.strategy(placement, Shape(rows, self.batch // rows, recompute)))

    def stages(self) -> Outcome | None:
        """The best split of one copy into stages, under the best schedule."""
        return faster([self._best_split([()]), self.interleaved()])

    def copies_of_stages(self) -> Outcome | None:
        """The best split of several copies, at least one with several stages."""
        kind = self.steps.cluster.device_kind
        return self._best_split([layout for devices in self.subsets() for layout in layouts(devices, kind)])

    def _best_split(self, made: Sequence[Layout]) -> Outcome | None:
        best: Outcome | None = None
        for recompute in self.recompute:
            for rows in self.sizes(self.batch):
                if best is None or self._least_s(rows, recompute) < best.step_s * (1 - GAIN):
                    for layout in made:
                        best = faster(self._splits(Shape(rows, self.batch // rows, recompute, layout)), best)
        return best

    def interleaved(self) -> Outcome | None:
        """Two chunks on each device, in turns; the layers in proportion to the speed of the devices."""
        return faster(
            self._chunks(devices, rows, recompute)
            for recompute in self.recompute
            for devices in self.subsets()
            for rows in self.sizes(self.batch)
            if len(devices) > 1
        )

    def _chunks(self, devices: Sequence[int], rows: int, recompute: bool) -> Outcome | None:
        part_s = self.steps.part_s(rows, recompute)[:, devices, :3].sum(axis=2)
        total = part_s.sum(axis=0)
        share = np.tile(1 / total, CHUNKS)
        until = np.cumsum(share) / share.sum()  # of the work before the end of each chunk
        begun = np.cumsum((part_s / total).mean(axis=1))  # of the work with each part
        first = np.searchsorted(begun, until[:-1] * begun[-1] * (1 - 1e-12)) + 1
        if len(np.unique(first)) < len(first) or first[-1] >= len(part_s):
            return None  # fewer parts than chunks
        begins = tuple(self.steps.parts.begins[i] for i in first)
        replica = Replica(tuple(devices) * CHUNKS, begins, rows, self.batch // rows)
        strategy = Strategy((replica,), "interleaved", recompute)
        return self.steps.outcome(strategy) if _runs(strategy) else None

    def _least_s(self, rows: int, recompute: bool) -> float:
        """Seconds that all devices together take for the forward and backward passes, without any waiting."""
        own = self.steps.part_s(rows, recompute)[:, :, :3].sum(axis=(0, 2))[self.devices]
        return float(self.batch / rows / (1 / own).sum())

    def _splits(self, shape: Shape) -> Iterator[Outcome]:
        """The best split under 1F1B, with all schedules; with sharded optimiser state where none fits without."""
        for shard in (False, True) if len(shape.layout) > 1 else (False,):
            found = list(self._schedules(replace(shape, shard_optimizer=shard)))
            yield from found
            if any(outcome.works for outcome in found):
                return

    def _schedules(self, shape: Shape) -> Iterator[Outcome]:
        """The best split with all schedules. If torch's buffers do not fit beside it, the best one with so much less memory."""
        cluster, steps, less = self.steps.cluster, self.steps, 0.0
        for _ in range(TRIES):
            placement = self._chain(steps, shape)
            if placement is None:
                return
            strategy = self.steps.strategy(placement, shape)
            # torch's split backward pass keeps what it recomputed, so that recomputation saves no memory under zero_bubble
            schedules = (s for s in SCHEDULES if not (s == "zero_bubble" and shape.recompute))
            made = (replace(strategy, schedule=schedule) for schedule in schedules if strategy.pipelined)
            found = [self.steps.outcome(s) for s in made if _runs(s)]
            yield from found
            missing = min((float((o.peak_bytes - cluster.memory_bytes).max()) for o in found), default=0.0)
            if missing <= 0:
                return
            less += missing
            kinds = {
                name: kind.model_copy(update={"memory_bytes": max(int(kind.memory_bytes - less), 1)})
                for name, kind in cluster.kinds.items()
            }
            steps = self.steps.on(changed(cluster, kinds=kinds))

    def _chain(self, steps: Steps, shape: Shape) -> Placement | None:
        """The best contiguous split under 1F1B; None if no split fits the memory."""
        if shape.microbatches < len(shape.layout):
            return None
        try:
            problem, session = steps.problem(shape.rows), steps.session(shape)
            task = Task(problem, BudgetedEvaluator(problem, session, Ledger(EVALUATIONS, None), objective="step"))
            placement = ChainPolicy().place(task, np.random.default_rng(0))
        except (NotApplicable, ClusterError):
            return None
        return placement if session.evaluate(placement.batch()).fits[0] else None


def changed(cluster: Cluster, **changes: Any) -> Cluster:
    """A copy with some fields changed; values that a cluster has computed from its fields are not copied."""
    return Cluster(**{**{name: getattr(cluster, name) for name in Cluster.model_fields}, **changes})


def _runs(strategy: Strategy) -> bool:
    """Whether torch has the schedule for these stages and micro-batches."""
    try:
        check(strategy)
    except PlacekitError:
        return False
    return True


def _moves(count: int) -> Iterator[Ints]:
    """One or two rows from a device to another."""
    for a in range(count):
        for b in range(count):
            for many in (1, 2, 4) if a != b else ():
                move = np.zeros(count, np.int64)
                move[a], move[b] = -many, many
                yield move
