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
from torch import Tensor

from placekit_core.list_scheduling import ListScheduler, op_cost
from placekit_core.problem import Problem
from placekit_doppler.features import Features, standardised
from placekit_doppler.network import Dual, Inputs, MessagePassing, Parts


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
    parts: Parts | None = None,
) -> Replayed:
    """An episode by the networks: the (operation, device) pairs of `decisions`, or drawn by the networks' probabilities.

    `parts` is what the networks say, if that is known.
    """
    features = Features.of(problem)
    parts = module(Inputs.of(features, device)) if parts is None else parts
    number = {int(v): i for i, v in enumerate(features.op)}
    scheduler, cost = ListScheduler(problem), op_cost(problem)
    scale = float(cost[problem.graph.kernel].mean())
    load = np.zeros(problem.cluster.size)
    total = torch.zeros(problem.cluster.size, parts.sent.shape[1], device=device)
    log_prob, entropy, ops, devices = list[Tensor](), list[Tensor](), list[int](), list[int]()
    while not scheduler.done:
        ready = scheduler.ready.tolist()
        select: Any = torch.distributions.Categorical(logits=parts.score[[number[v] for v in ready]])
        if decisions is None:
            chosen = int(torch.multinomial(select.probs, 1, generator=generator))
        else:
            chosen = ready.index(decisions[len(ops)][0])
        op = ready[chosen]
        log_p, h = select.log_prob(torch.tensor(chosen, device=device)), select.entropy()
        may, seen = observed(problem, scheduler, load, scale, op)
        rows = np.flatnonzero(may).tolist()
        if len(rows) == 1:
            at = rows[0]
        else:
            values = torch.from_numpy(seen.astype(np.float32)).to(device)
            logits = module.place_logits(parts.own[number[op]], total[rows], values)
            place: Any = torch.distributions.Categorical(logits=logits)
            if decisions is None:
                i = int(torch.multinomial(place.probs, 1, generator=generator))
            else:
                i = rows.index(decisions[len(ops)][1])
            at = rows[i]
            log_p, h = log_p + place.log_prob(torch.tensor(i, device=device)), h + place.entropy()
        scheduler.place(op, at)
        load[at] += problem.op_s[op, at] / scale
        total = total.index_add(0, torch.tensor([at], device=device), parts.sent[[number[op]]])
        ops.append(op)
        devices.append(at)
        log_prob.append(log_p)
        entropy.append(h)
    return Replayed(ops, devices, torch.stack(log_prob), torch.stack(entropy))


def observed(
    problem: Problem, scheduler: ListScheduler, load: NDArray[np.float64], scale: float, op: int
) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """[D] whether `op` may go to each device, and [those, 6] what PLC sees of them (appendix D.2), standardised."""
    graph, cost = problem.graph, op_cost(problem)
    start = scheduler.earliest_start(op)
    may = np.isfinite(start)
    rows = []
    producers = [int(graph.tensor_producer[t]) for t in graph.inputs(op)]
    producers = [u for u in producers if graph.kernel[u]]
    for d in np.flatnonzero(may):
        own = [u for u in producers if scheduler.group_device[problem.grouping.group_of[u]] == d]
        rows.append(
            [
                load[d],
                sum(cost[u] for u in own) / scale,
                min((scheduler.start_s[u] for u in own), default=0.0) / scale,
                max((scheduler.finish_s[u] for u in own), default=0.0) / scale,
                start[d] / scale,
                problem.op_s[op, d] / scale,
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
