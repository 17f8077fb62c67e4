"""Describes the objectives as the largest of several loads, for policy `exact`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from placekit_scheduling.loads import Charge, Loads, Net, Store

from placekit_core import Problem
from placekit_pipeline.nets import AHEAD, BACK, Floats, Nets
from placekit_pipeline.stages import Stages


def max_load_loads(problem: Problem, nets: Nets, pays: NDArray[np.bool_]) -> Loads:
    """The loads of backend `max_load`; `pays` [D] marks the devices that pay for transfers."""
    charges = tuple(charge for x in range(len(nets)) for charge in _charges(x, _seconds(problem, nets, x), pays))
    return Loads(
        seconds=problem.group_s,
        nets=tuple(_net(nets, x) for x in range(len(nets))),
        charges=charges,
        ahead=(),
        bytes_=problem.group_persistent_bytes.astype(np.float64),
        work_bytes=np.zeros(problem.g),
        stores=(),
    )


def _seconds(problem: Problem, nets: Nets, x: int) -> Floats:
    """[D, D] seconds of net x between devices, as `max_load` counts them."""
    routes = problem.cluster.routes
    if nets.hop_s[x] >= 0:
        return np.full(routes.latency_s.shape, nets.hop_s[x])
    return np.asarray(nets.count[x] * routes.latency_s + nets.bytes_[x] * routes.s_per_byte, np.float64)


def _charges(i: int, seconds: Floats, pays: NDArray[np.bool_]) -> Iterator[Charge]:
    """Charges of net i with `seconds` [D, D]: a device pays for each tensor that it receives, and once for sending it."""
    size = len(pays)
    for d in np.flatnonzero(pays).tolist():
        others = [o for o in range(size) if o != d]
        for cost in sorted({float(seconds[o, d]) for o in others} - {0.0}):
            yield Charge(d, cost, (i,), tuple(o for o in others if seconds[o, d] == cost), (d,))
        steps = sorted({0.0, *(float(seconds[d, o]) for o in others)})
        for below, cost in pairwise(steps):  # the slowest route decides
            yield Charge(d, cost - below, (i,), (d,), tuple(o for o in others if seconds[d, o] >= cost))


def pipeline_loads(
    stages: Stages, nets: Nets, held: list[NDArray[np.int64]], backward: bool, chunks: int, steps: int
) -> Loads:
    """The loads of backend `pipeline`: seconds per micro-batch, or per step of `steps` micro-batches if that is not 0.

    `held` lists the channels that each route occupies. The loads of a step are only a lower bound, because stages also wait
    for the first micro-batch. They leave out the latency of messages that only backward operations read, and activations of
    all micro-batches in flight but one.
    """
    problem = stages.problem
    group_s = stages.group_s()
    load = group_s[:, :, : 3 if backward else 1].sum(axis=2)
    if steps:
        load = steps * load + group_s[:, :, 3]
    builder = _Messages(problem, nets, held, max(steps, 1))
    for kind in (AHEAD, BACK) if backward else (AHEAD,):
        builder.add(kind)
    prompt = [x for x in range(len(nets)) if nets.kind[x] == AHEAD]
    pairs = {(int(nets.producer[x]), r) for x in prompt for r in _readers(nets, x, prompt_only=True)}
    saves = backward and chunks == 1  # the chunks of a device may hold activations at different times
    stored = [y for y in range(len(stages.stores.bytes_)) if saves or stages.stores.once[y]]
    return Loads(
        seconds=load,
        nets=tuple(builder.nets),
        charges=tuple(builder.charges),
        ahead=tuple(sorted(pairs)) if chunks == 1 else (),
        bytes_=problem.group_persistent_bytes.astype(np.float64),
        work_bytes=stages.work_bytes,
        stores=tuple(_store(stages, y) for y in stored),
    )


class _Messages:
    """Collects the nets and charges of the messages that stages send for every micro-batch."""

    def __init__(self, problem: Problem, nets: Nets, held: list[NDArray[np.int64]], times: int) -> None:
        self.problem, self.of, self.held, self.times = problem, nets, held, times
        self.nets: list[Net] = []
        self.charges: list[Charge] = []

    def add(self, kind: int) -> None:
        """Add the messages of one kind: each takes the latency of its route once, and the time of all its bytes."""
        whole, prompt = list[int](), list[int]()
        for x in np.flatnonzero(self.of.kind == kind).tolist():
            first = _readers(self.of, x, prompt_only=True)
            readers = _readers(self.of, x, prompt_only=False)
            whole.append(self._number(x, readers))
            if first:
                prompt.append(whole[-1] if first == readers else self._number(x, first))
        routes, size = self.problem.cluster.routes, self.problem.cluster.size
        bytes_ = self.of.bytes_[self.of.kind == kind].tolist()
        for a in range(size):
            for b in range(size):
                if a == b:
                    continue
                for resource in (size + int(c) for c in self.held[a * size + b]):
                    self._charge(resource, float(routes.latency_s[a, b]), tuple(prompt), a, b)
                    for i, net_bytes in zip(whole, bytes_, strict=True):
                        self._charge(resource, net_bytes * float(routes.s_per_byte[a, b]), (i,), a, b)

    def _number(self, x: int, readers: tuple[int, ...]) -> int:
        self.nets.append(Net(int(self.of.producer[x]), readers))
        return len(self.nets) - 1

    def _charge(self, resource: int, seconds: float, nets: tuple[int, ...], a: int, b: int) -> None:
        if seconds > 0 and nets:
            self.charges.append(Charge(resource, self.times * seconds, nets, (a,), (b,)))


def _net(nets: Nets, x: int) -> Net:
    return Net(int(nets.producer[x]), _readers(nets, x, prompt_only=False))


def _readers(nets: Nets, x: int, prompt_only: bool) -> tuple[int, ...]:
    rows = slice(int(nets.ptr[x]), int(nets.ptr[x + 1]))
    keep = ~nets.late[rows] if prompt_only else slice(None)
    return tuple(nets.reader[rows][keep].tolist())


def _store(stages: Stages, y: int) -> Store:
    holders = stages.stores.holder[stages.stores.ptr[y] : stages.stores.ptr[y + 1]]
    return Store(float(stages.stores.bytes_[y]), tuple(holders.tolist()))
