"""The default network, which is ours: it scores each device by what is on it (`policy.head=per_device`).

As in section 2.2, networks f, g, l and h (`paper.py`) turn features into embeddings. Here no feature depends on the
placement or the step, so the embeddings of a graph are computed once. The placement enters by the sums: for each device and
set of groups, the outputs of l are summed over the groups of the set that are on the device (`state.py`). The same head
scores each device from its own sums, so it works for any number of devices, in any order.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import leaky_relu
from torch.utils.checkpoint import checkpoint

from placekit_core import Problem
from placekit_placeto.arrays import SLOPE, STATIC, Episodes, Groups, Rules
from placekit_placeto.prepared import longest_paths, mean_seconds
from placekit_placeto.state import (
    NUMBERS,
    SETS,
    TIMES,
    State,
    View,
    begin_visit,
    observe_all,
    place_all,
    replay,
    replay_gradients,
    view_of,
)

LEVELS = 2
"""Number of features of a group that option `schedule` adds: the longest paths to it and from it, over the graph's longest."""
LAST_LAYER_SCALE = 0.1
"""Factor on the initial weights of the last layer, so that at first all devices are about equally likely."""
_LARGEST_ARRAY = 4_000_000  # most numbers in an array; steps are split into parts to stay below


class NetworkInput:
    """A problem as the tensors that the network reads."""

    def __init__(self, problem: Problem, groups: Groups, rules: Rules) -> None:
        self.view = view_of(problem, groups, rules)
        self.allowed, self.share = torch.from_numpy(groups.allowed), torch.from_numpy(groups.share)
        self.edges = [
            (
                torch.from_numpy(groups.neighbour[d]),
                torch.repeat_interleave(torch.from_numpy(np.diff(groups.pointer[d]))),
            )
            for d in range(2)
        ]
        to, onward = longest_paths(problem.grouped, mean_seconds(problem))
        levels = np.stack([to, onward], axis=1) / max(float(to.max()), 1e-12)
        self.static = torch.from_numpy(np.hstack([groups.static, levels]).astype(np.float32))  # [g, STATIC + LEVELS]


class SideBySide(nn.Module):
    """`SETS` networks of two layers, one for each set of groups, computed together."""

    def __init__(self, inputs: int, size: int) -> None:
        super().__init__()
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for width in (inputs, size):  # initialized as nn.Linear is
            self.weights.append((torch.rand(SETS, width, size) * 2 - 1) / width**0.5)
            self.biases.append((torch.rand(SETS, 1, size) * 2 - 1) / width**0.5)

    def forward(self, x: Tensor) -> Tensor:
        """[SETS, rows, size] of x [SETS, rows, inputs]."""
        hidden = leaky_relu(torch.baddbmm(self.biases[0], x, self.weights[0]), SLOPE)
        return torch.baddbmm(self.biases[1], hidden, self.weights[1])


class ReplayedSums(torch.autograd.Function):
    """Computes the sums [n, T, SETS, D, H] and numbers [n, T, D, NUMBERS + TIMES] of all steps of given episodes.

    Gradients go to `pooled` [SETS, g, H], the outputs of l, through the sums."""

    @staticmethod
    def forward(ctx: Any, pooled: Tensor, view: View, e: Episodes) -> tuple[Tensor, Tensor]:
        """See `state.replay`."""
        (n, steps), devices = e.order.shape, view.time.shape[1]
        sums = np.empty((n, steps, SETS, devices, pooled.shape[2]), np.float32)
        numbers = np.empty((n, steps, devices, NUMBERS + TIMES), np.float32)
        replay(view, State.of(view, e.start), e, pooled.detach().contiguous().numpy(), sums, numbers)
        ctx.view, ctx.episodes, ctx.shape = view, e, pooled.shape
        found = torch.from_numpy(sums), torch.from_numpy(numbers)
        ctx.mark_non_differentiable(found[1])
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *back: Tensor) -> tuple[Tensor, None, None]:
        """See `state.replay_gradients`."""
        pooled_back = np.zeros(ctx.shape, np.float32)
        start = State.of(ctx.view, ctx.episodes.start)
        replay_gradients(ctx.view, start, ctx.episodes, back[0].contiguous().numpy(), pooled_back)
        return torch.from_numpy(pooled_back), None, None


class PerDevice(nn.Module):
    """The network; H = `size` is the length of an embedding."""

    def __init__(self, size: int, rounds: int, rules: Rules, schedule: bool) -> None:
        super().__init__()
        self.rounds, self.rules, self.numbers = rounds, rules, NUMBERS + TIMES * schedule
        self.embed = nn.Linear(STATIC + LEVELS * schedule, size)
        self.f = nn.ModuleList([_layers(size, size, size) for _ in range(2)])
        self.g = nn.ModuleList([_layers(size, size, size) for _ in range(2)])
        self.l, self.h = SideBySide(2 * size, size), SideBySide(size, size)
        last = nn.Linear(2 * size, 1)
        with torch.no_grad():
            last.weight.mul_(LAST_LAYER_SCALE)
        self.width = (2 + 2 * SETS) * size + self.numbers  # inputs of the head for a device
        self.head = nn.Sequential(_layers(self.width, 4 * size, 2 * size), nn.LeakyReLU(SLOPE), last)

    def embeddings(self, q: NetworkInput) -> tuple[Tensor, Tensor]:
        """[g, 2H] the embeddings of both directions, and [SETS, g, H] the outputs of l."""
        first = leaky_relu(self.embed(q.static[:, : self.embed.in_features]), SLOPE)
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
        return both, self.l(both.expand(SETS, -1, -1))

    def log_p(self, q: NetworkInput, both: Tensor, v: Tensor, sums: Tensor, numbers: Tensor) -> Tensor:
        """[n, D] log-probabilities of the devices of the current groups v [n], with `state.observe`'s sums [n, SETS, D, H] and
        numbers [n, D, ...]."""
        n, _, devices, _ = sums.shape
        own = torch.zeros_like(both[v]) if self.rules.whole else both[v]
        shared = torch.cat([own, *self.h(sums.mean(dim=2).transpose(0, 1))], dim=1)
        each = sums.transpose(1, 2).reshape(n, devices, -1)
        seen = torch.cat([shared[:, None, :].expand(-1, devices, -1), each, numbers[:, :, : self.numbers]], dim=2)
        score: Tensor = self.head(seen)[:, :, 0]
        return score.masked_fill(~q.allowed[v], -torch.inf).log_softmax(dim=1)

    def walk(self, q: NetworkInput, e: Episodes, explore: bool) -> None:
        """Run the episodes step by step, all of them together; fills their `device` and `log_p`."""
        both, pooled = self.embeddings(q)
        (n, steps), (g, devices) = e.order.shape, q.allowed.shape
        state, order, outputs = State.of(q.view, e.start), e.order.astype(np.int64), pooled.contiguous().numpy()
        sums, numbers = torch.empty(n, SETS, devices, pooled.shape[2]), torch.empty(n, devices, NUMBERS + TIMES)
        for t in range(steps):
            if t % g == 0:
                begin_visit(state)
            v = np.ascontiguousarray(order[:, t])
            observe_all(q.view, state, v, outputs, sums.numpy(), numbers.numpy())
            log_p = self.log_p(q, both, torch.from_numpy(v), sums, numbers).numpy()
            chosen = draw_devices(log_p, e.draw[:, t]) if explore else log_p.argmax(axis=1)
            e.log_p[:, t], e.device[:, t] = log_p, chosen
            place_all(q.view, state, v, chosen)

    def step_log_p(self, q: NetworkInput, e: Episodes) -> Tensor:
        """[n, T, D] log-probabilities of all steps of the episodes, with autograd."""
        both, pooled = self.embeddings(q)
        (n, steps), devices = e.order.shape, q.allowed.shape[1]
        sums, numbers = ReplayedSums.apply(pooled, q.view, e)  # type: ignore[no-untyped-call]  # torch's
        rows = torch.from_numpy(e.order.astype(np.int64)), sums, numbers
        size = max(1, _LARGEST_ARRAY // (devices * self.width))
        parts = list(zip(*(torch.split(x.flatten(0, 1), size) for x in rows), strict=True))
        if len(parts) == 1:
            found = [self.log_p(q, both, *parts[0])]
        else:  # checkpoint recomputes the head in the backward pass: only the sums of all steps stay in memory
            found = [checkpoint(self.log_p, q, both, *part, use_reentrant=False) for part in parts]
        return torch.cat(found).reshape(n, steps, devices)


def draw_devices(log_p: NDArray[np.float32], draw: NDArray[np.float64]) -> NDArray[np.int64]:
    """[n] devices drawn with the log-probabilities [n, D]; if rounding leaves a gap at the end, the last allowed device."""
    total = np.exp(log_p.astype(np.float64)).cumsum(axis=1)
    last = log_p.shape[1] - 1 - np.isfinite(log_p)[:, ::-1].argmax(axis=1)
    return np.asarray(np.minimum((total <= draw[:, None]).sum(axis=1), last))


def _layers(*sizes: int) -> nn.Sequential:
    """Dense layers, with LeakyReLU between them."""
    layers: list[nn.Module] = []
    for i, (a, b) in enumerate(pairwise(sizes)):
        layers += [nn.LeakyReLU(SLOPE)] * (i > 0) + [nn.Linear(a, b)]
    return nn.Sequential(*layers)
