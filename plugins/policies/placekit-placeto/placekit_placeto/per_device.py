"""The network that scores each device by what is on it: `policy.head=per_device`.

The embeddings are those of section 2.2 without device and flags, so they are computed once for all steps of all episodes. The
placement enters in the sums: l's outputs are summed over the groups of a set that are on one device, for each device. The same
head scores every device from its own sums, so nothing depends on how devices are numbered or how many there are.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import leaky_relu, one_hot
from torch.utils.checkpoint import checkpoint

from placekit_core import Problem
from placekit_placeto.arrays import SLOPE, STATIC, Episodes, Groups, Rules
from placekit_placeto.prepared import as_matrix, longest_ways
from placekit_placeto.state import TIMES, State

SETS = 4
"""Groups that reach the current one, that it reaches, and the others: those visited, and those not."""
NUMBERS = 7
"""What a device is scored by besides sums, see `Scene.numbers`; the option `schedule` adds `TIMES`."""
LEVELS = 2
"""Features of a group that the option `schedule` adds: the longest ways to it and from it, over the longest way of the graph."""
FIRST = 0.1
"""Factor on the weights of the last layer: at first, the devices of a decision are about equally likely."""
_AT_ONCE = 4_000_000  # elements of the largest array of a part


class Neighbours(NamedTuple):
    """Who sends to each group, or receives from it: at most P neighbours."""

    group: Tensor  # [g, P] 0 where there is none
    bytes: Tensor  # [g, P] 0 where there is none
    any: Tensor  # [g, P] 1 where there is one


class Scene:
    """A problem as tensors."""

    def __init__(self, problem: Problem, groups: Groups, rules: Rules) -> None:
        g, graph, routes = problem.g, problem.grouped, problem.cluster.routes
        self.allowed = torch.from_numpy(groups.allowed)
        self.share, self.pooled_share = torch.from_numpy(groups.share), groups.pooled_share
        self.edges = [
            (
                torch.from_numpy(groups.neighbour[d]),
                torch.repeat_interleave(torch.from_numpy(np.diff(groups.pointer[d]))),
            )
            for d in range(2)
        ]
        before, after = (as_matrix(bits, g) for bits in (groups.before, groups.after))
        everyone = np.ones((g, g), np.bool_)
        sets = (
            (everyone, ~everyone, ~everyone)
            if rules.whole
            else (before, after, ~before & ~after & ~np.eye(g, dtype=np.bool_))
        )
        self.sets, self.whole = torch.from_numpy(np.stack(sets)), rules.whole  # [3, g, g] of v and u
        time_s = np.where(problem.allowed, problem.group_s, 0.0)
        own_s = time_s.sum(axis=1) / np.maximum(problem.allowed.sum(axis=1), 1)
        mean_s = max(float(own_s.mean()), 1e-12)
        self.load = _tensor(time_s / max(float(own_s.sum()), 1e-12) * problem.cluster.size).T.contiguous()  # [D, g]
        self.slower = _tensor(np.log1p(time_s / mean_s))  # [g, D]
        self.time = _tensor(time_s / mean_s)  # [g, D]
        to, onward = longest_ways(graph, own_s)
        self.earliest_end = _tensor(to / mean_s)  # [g]
        levels = _tensor(np.stack([to, onward], axis=1) / max(float(to.max()), 1e-12))
        self.static = torch.cat([torch.from_numpy(groups.static), levels], dim=1)  # [g, STATIC + LEVELS]
        self.memory = _tensor(problem.group_persistent_bytes[None, :] / problem.cluster.memory_bytes[:, None])  # [D, g]
        self.s_per_byte, self.latency = _tensor(routes.s_per_byte / mean_s), _tensor(routes.latency_s / mean_s)
        sender, receiver = graph.tensor_producer[graph.input_tensor].astype(np.int64), graph.edge_op.astype(np.int64)
        sent = graph.tensor_bytes[graph.input_tensor].astype(np.float64)
        self.near = (_neighbours(g, sender, receiver, sent), _neighbours(g, receiver, sender, sent))

    def numbers(self, v: Tensor, device: Tensor, visited: Tensor, on: Tensor) -> Tensor:
        """[n, D, NUMBERS] of each device, without the current group v [n]: whether v is on it now; time to send v's inputs
        there, and its outputs from there; v's run time; run time of all groups on it, and of those visited; its memory in
        use, with v.

        `device` and `visited` are [n, g], `on` [n, D, g] says which groups are on a device. Times are over the mean group's.
        """
        devices = on.shape[1]
        here = on.gather(2, v[:, None, None].expand(-1, devices, 1))[:, :, 0]
        others = on.scatter(2, v[:, None, None].expand(-1, devices, 1), 0.0)
        sent = []
        for i, near in enumerate(self.near):
            there = one_hot(device.gather(1, near.group[v]), devices).to(on.dtype)  # [n, P, D]
            volume, count = (torch.einsum("npd,np->nd", there, x[v]) for x in (near.bytes, near.any))
            per_byte, latency = (x if i == 0 else x.T for x in (self.s_per_byte, self.latency))
            sent.append(torch.log1p(volume @ per_byte + count @ latency))
        loads = others * self.load
        seen = [
            here, *sent, self.slower[v], loads.sum(2), (loads * visited[:, None, :]).sum(2),
            (others * self.memory).sum(2) + self.memory.T[v],
        ]  # fmt: skip
        return torch.stack(seen, dim=2)


class PerDevice(nn.Module):
    """The network; H = `size` is the length of an embedding."""

    def __init__(self, size: int, rounds: int, rules: Rules, schedule: bool) -> None:
        super().__init__()
        self.rounds, self.rules, self.times = rounds, rules, TIMES * schedule
        self.embed = nn.Linear(STATIC + LEVELS * schedule, size)
        self.f = nn.ModuleList([_layers(size, size, size) for _ in range(2)])
        self.g = nn.ModuleList([_layers(size, size, size) for _ in range(2)])
        self.l = nn.ModuleList([_layers(2 * size, size, size) for _ in range(SETS)])
        self.h = nn.ModuleList([_layers(size, size, size) for _ in range(SETS)])
        last = nn.Linear(2 * size, 1)
        with torch.no_grad():
            last.weight.mul_(FIRST)
        self.head = nn.Sequential(
            _layers((2 + 2 * SETS) * size + NUMBERS + self.times, 4 * size, 2 * size), nn.LeakyReLU(SLOPE.item()), last
        )

    def embeddings(self, q: Scene) -> tuple[Tensor, Tensor]:
        """[g, 2H] the embeddings of both directions, and [SETS, g, H] the outputs of l."""
        first = leaky_relu(self.embed(q.static[:, : self.embed.in_features]), SLOPE.item())
        ends = []
        for d in range(2):
            x, (sender, receiver) = first, q.edges[d]
            for _ in range(self.rounds):
                total = torch.zeros_like(x).index_add(0, receiver, self.f[d](x)[sender])
                x = self.g[d](q.share[d][:, None] * total)
                if self.rules.residual:
                    x = x + first
            ends.append(x)
        both = torch.cat(ends, dim=1)
        return both, torch.stack([layers(both) for layers in self.l])

    def log_p(
        self, q: Scene, both: Tensor, pooled: Tensor, v: Tensor, device: Tensor, visited: Tensor, times: Tensor
    ) -> Tensor:
        """[n, D] log-probabilities of the devices of the current groups v [n], with the placements [n, g] and
        `State.times` [n, D, TIMES]."""
        n, devices = len(v), q.allowed.shape[1]
        on = one_hot(device, devices).to(both.dtype).transpose(1, 2)
        before, after, beside = (x[v].to(both.dtype) for x in q.sets)
        sets = (before, after, beside * visited, beside * (1.0 - visited))
        share = q.pooled_share * devices
        sums = [share * ((on * members[:, None, :]) @ pooled[i]) for i, members in enumerate(sets)]  # [n, D, H]
        own = torch.zeros_like(both[v]) if self.rules.whole else both[v]
        shared = torch.cat([own, *(h(x.mean(dim=1)) for h, x in zip(self.h, sums, strict=True))], dim=1)
        numbers = torch.cat([q.numbers(v, device, visited, on), times[:, :, : self.times]], dim=2)
        seen = torch.cat([shared[:, None, :].expand(n, devices, -1), *sums, numbers], dim=2)
        score: Tensor = self.head(seen)[:, :, 0]
        return score.masked_fill(~q.allowed[v], -torch.inf).log_softmax(dim=1)

    def walk(self, q: Scene, e: Episodes, explore: bool) -> None:
        """Fill `device` and `log_p` of the episodes, all of them in lock step."""
        both, pooled = self.embeddings(q)
        g, state, order = e.start.shape[1], State(q, e.start), torch.from_numpy(e.order.astype(np.int64))
        for t in range(e.order.shape[1]):
            if t % g == 0:
                state.begin_visit()
            v = order[:, t]
            log_p = self.log_p(q, both, pooled, v, state.device, state.visited, state.times(v)).numpy()
            chosen = _drawn(log_p, e.draw[:, t]) if explore else log_p.argmax(axis=1)
            e.log_p[:, t], e.device[:, t] = log_p, chosen
            state.place(v, torch.from_numpy(chosen))

    def judge(self, q: Scene, e: Episodes) -> Tensor:
        """[n, T, D] log-probabilities of all steps of the episodes, with autograd."""
        both, pooled = self.embeddings(q)
        (n, steps), g, devices = e.order.shape, e.start.shape[1], q.allowed.shape[1]
        device, visited, times = _passed(q, e)
        v = torch.from_numpy(e.order.astype(np.int64).ravel())
        size = max(1, _AT_ONCE // (g * devices))
        parts = [torch.split(x, size) for x in (v, *(x.flatten(0, 1) for x in (device, visited, times)))]
        if len(parts[0]) == 1:
            found = [self.log_p(q, both, pooled, *(p[0] for p in parts))]
        else:  # what a part needs to go back is computed again then, so that memory holds one part
            found = [
                checkpoint(self.log_p, q, both, pooled, *part, use_reentrant=False) for part in zip(*parts, strict=True)
            ]
        return torch.cat(found).reshape(n, steps, devices)


def _passed(q: Scene, e: Episodes) -> tuple[Tensor, Tensor, Tensor]:
    """[n, T, g] the placement, and who was visited, before each step, and [n, T, D, TIMES] the times."""
    (n, steps), g = e.order.shape, e.start.shape[1]
    state = State(q, e.start)
    order, chosen = (torch.from_numpy(x.astype(np.int64)) for x in (e.order, e.device))
    device, visited = torch.empty(n, steps, g, dtype=torch.int64), torch.empty(n, steps, g)
    times = torch.empty(n, steps, q.time.shape[1], TIMES)
    for t in range(steps):
        if t % g == 0:
            state.begin_visit()
        v = order[:, t]
        device[:, t], visited[:, t], times[:, t] = state.device, state.visited, state.times(v)
        state.place(v, chosen[:, t])
    return device, visited, times


def _drawn(log_p: NDArray[np.float32], draw: NDArray[np.float64]) -> NDArray[np.int64]:
    """[n] devices drawn from [n, D]; the last one that is allowed, should rounding leave a gap."""
    total = np.exp(log_p.astype(np.float64)).cumsum(axis=1)
    last = log_p.shape[1] - 1 - np.isfinite(log_p)[:, ::-1].argmax(axis=1)
    return np.asarray(np.minimum((total <= draw[:, None]).sum(axis=1), last))


def _neighbours(g: int, source: NDArray[np.int64], target: NDArray[np.int64], sent: NDArray[np.float64]) -> Neighbours:
    """The sources of each target."""
    order = np.argsort(target, kind="stable")
    count = np.bincount(target, minlength=g)
    row, column = target[order], np.arange(len(target)) - np.repeat(np.cumsum(count) - count, count)
    shape = (g, max(int(count.max(initial=0)), 1))
    group, volume, present = np.zeros(shape, np.int64), np.zeros(shape), np.zeros(shape)
    group[row, column], volume[row, column], present[row, column] = source[order], sent[order], 1.0
    return Neighbours(torch.from_numpy(group), _tensor(volume), _tensor(present))


def _layers(*sizes: int) -> nn.Sequential:
    """Dense layers, with LeakyReLU between them."""
    layers: list[nn.Module] = []
    for i, (a, b) in enumerate(pairwise(sizes)):
        layers += [nn.LeakyReLU(SLOPE.item())] * (i > 0) + [nn.Linear(a, b)]
    return nn.Sequential(*layers)


def _tensor(values: NDArray[np.float64]) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, np.float32))
