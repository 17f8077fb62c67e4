"""The dual policy as it reads: a loop over decisions, with autograd, and PyG's edge-conditioned convolution.

`episodes.py` does the same compiled; the tests compare the two. Both messages and decisions may be on a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from placekit_doppler.arrays import FEATURES
from placekit_doppler.features import Features, standardised
from placekit_doppler.network import Dual, Inputs, MessagePassing, NetworkOutputs
from placekit_scheduling import ListScheduler, op_cost
from torch import Tensor

from placekit_core import Problem


@dataclass(frozen=True, eq=False)
class Replayed:
    """One episode of T decisions, with autograd."""

    op: list[int]
    device: list[int]
    log_prob: Tensor  # [T]
    entropy: Tensor  # [T]


def episode(
    module: Dual,
    problem: Problem,
    decisions: Sequence[tuple[int, int]] | None = None,
    generator: torch.Generator | None = None,
    device: str = "cpu",
    parts: NetworkOutputs | None = None,
    weights: NDArray[np.float32] | None = None,
    shown: int = FEATURES,
) -> Replayed:
    """An episode by the networks: the (operation, device) pairs of `decisions`, or drawn by the networks' probabilities.

    `parts` are the outputs of the networks, if they are known; `weights` are the linear weights of the episode; the first
    `shown` features of devices are not 0.
    """
    features = Features.of(problem)
    parts = module(Inputs.of(features, device)) if parts is None else parts
    number = {int(v): i for i, v in enumerate(features.op)}
    scheduler = ListScheduler(problem)
    score = parts.score
    if weights is not None:
        score = score + torch.from_numpy(features.static @ weights[FEATURES:]).to(device)
    seen_so_far = Seen.nothing(problem, features)
    total = torch.zeros(problem.cluster.size, parts.sent.shape[1], device=device)
    log_prob, entropy, ops, devices = list[Tensor](), list[Tensor](), list[int](), list[int]()
    while not scheduler.done:
        ready = scheduler.ready.tolist()
        select: Any = torch.distributions.Categorical(logits=score[[number[v] for v in ready]])
        if decisions is None:
            chosen = int(torch.multinomial(select.probs, 1, generator=generator))
        else:
            chosen = ready.index(decisions[len(ops)][0])
        op = ready[chosen]
        log_p, h = select.log_prob(torch.tensor(chosen, device=device)), select.entropy()
        may, seen = observed(problem, scheduler, seen_so_far, op)
        seen[:, shown:] = 0
        rows = np.flatnonzero(may).tolist()
        if len(rows) == 1:
            at = rows[0]
        else:
            values = torch.from_numpy(seen.astype(np.float32)).to(device)
            logits = module.place_logits(parts.own[number[op]], total[rows], values)
            if weights is not None:
                logits = logits + values @ torch.from_numpy(weights[:FEATURES]).to(device)
            place: Any = torch.distributions.Categorical(logits=logits)
            if decisions is None:
                i = int(torch.multinomial(place.probs, 1, generator=generator))
            else:
                i = rows.index(decisions[len(ops)][1])
            at = rows[i]
            log_p, h = log_p + place.log_prob(torch.tensor(i, device=device)), h + place.entropy()
        scheduler.place(op, at)
        seen_so_far.placed(op, at)
        total = total.index_add(0, torch.tensor([at], device=device), parts.sent[[number[op]]])
        ops.append(op)
        devices.append(at)
        log_prob.append(log_p)
        entropy.append(h)
    return Replayed(ops, devices, torch.stack(log_prob), torch.stack(entropy))


@dataclass(frozen=True, eq=False)
class Seen:
    """What PLC is shown besides the schedule: the seconds of work and the kinds of operations on each device, and their units."""

    problem: Problem
    scale: float
    load: NDArray[np.float64]  # [D]
    kind: dict[int, int]
    alike: dict[tuple[int, int], int]

    @classmethod
    def nothing(cls, problem: Problem, features: Features) -> Seen:
        """Before the first operation."""
        scale = float(op_cost(problem)[problem.graph.kernel].mean())
        kind = dict(zip(features.op.tolist(), features.kind.tolist(), strict=True))
        return cls(problem, scale, np.zeros(problem.cluster.size), kind, {})

    def placed(self, op: int, device: int) -> None:
        """`op` is on `device` now."""
        self.load[device] += self.problem.op_s[op, device] / self.scale
        where = self.kind[op], device
        self.alike[where] = self.alike.get(where, 0) + 1


def observed(
    problem: Problem, scheduler: ListScheduler, seen: Seen, op: int
) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """[D] whether `op` may go to each device, and [those, FEATURES] what PLC sees of them (appendix D.2), standardised."""
    graph, cost, routes, scale = problem.graph, op_cost(problem), problem.cluster.routes, seen.scale
    start = scheduler.earliest_start(op)
    may = np.isfinite(start)
    rows = []
    producers = [int(graph.tensor_producer[t]) for t in graph.inputs(op)]
    producers = [u for u in producers if graph.kernel[u]]
    outputs = np.flatnonzero(graph.tensor_producer == op)
    beside = [
        int(t)
        for reader in graph.edge_op[np.isin(graph.input_tensor, outputs)]
        for t in graph.inputs(reader)
        if graph.tensor_producer[t] != op
    ]

    def device_of(t: int) -> int:
        return int(scheduler.group_device[problem.grouping.group_of[graph.tensor_producer[t]]])

    def there(t: int, d: int) -> bool:
        return bool(device_of(t) == d or scheduler.arrival_s[t, d] >= 0)

    for d in np.flatnonzero(may):
        own = [u for u in producers if scheduler.group_device[problem.grouping.group_of[u]] == d]
        needed = [t for t in graph.inputs(op).tolist() if device_of(t) >= 0 and not there(t, int(d))]
        spared = [t for t in beside if device_of(t) >= 0 and there(t, int(d))]
        rows.append(
            [
                seen.load[d],
                sum(cost[u] for u in own) / scale,
                min((scheduler.start_s[u] for u in own), default=0.0) / scale,
                max((scheduler.finish_s[u] for u in own), default=0.0) / scale,
                start[d] / scale,
                problem.op_s[op, d] / scale,
                sum(
                    routes.latency_s[at, d] + graph.tensor_bytes[t] * routes.s_per_byte[at, d]
                    for t in needed
                    for at in [device_of(t)]
                )
                / scale,
                sum(graph.tensor_bytes[t] for t in spared) * routes.s_per_byte.mean() / scale,
                seen.alike.get((seen.kind[op], int(d)), 0),
            ]
        )
    return may, standardised(np.array(rows))


def pyg_messages(layer: MessagePassing, h: Tensor, edge: Tensor, edge_s: Tensor) -> Tensor:
    """`MessagePassing.forward` with PyG's `NNConv` (Gilmer et al. 2017) on the same weights."""
    from torch_geometric.nn import NNConv

    size = h.shape[1]
    conv = NNConv(size, size, nn=torch.nn.Linear(1, size * size), aggr="add", root_weight=True, bias=False)
    conv.nn, conv.lin = layer.edge, layer.root  # afterwards: the constructor gives new values to what it is given
    for _ in range(layer.rounds):
        h = layer.update(torch.nn.functional.leaky_relu(conv(h, edge, edge_s[:, None]), 0.1), h)
    return h
