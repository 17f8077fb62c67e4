"""The network in torch-geometric, one step after the other: what `kernel.py` computes, to be read and compared with."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import leaky_relu, one_hot
from torch_geometric.nn import MessagePassing

from placekit_placeto.arrays import SETS, SLOPE, Episodes, Groups, Rules
from placekit_placeto.network import Network
from placekit_placeto.prepared import as_matrix


class Messages(MessagePassing):  # type: ignore[misc]  # torch-geometric has no types
    """One round of messages: g(sum over neighbours of f(x)) (section 2.2, step 2)."""

    def __init__(self) -> None:
        super().__init__(aggr="add")

    def forward(self, x: Tensor, edges: Tensor, share: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """[g, H]; `share` [g] is a factor on the sums, `weight` [4, H, H] and `bias` [4, H] are those of f and g."""
        f = _layers(x, (weight[0], bias[0]), (weight[1], bias[1]))
        total = share[:, None] * self.propagate(edges, x=f)
        return _layers(total, (weight[2], bias[2]), (weight[3], bias[3]))

    def message(self, x_j: Tensor) -> Tensor:
        """What a neighbour sends."""
        return x_j


class Reference:
    """The network on one problem."""

    def __init__(self, module: Network, groups: Groups, rules: Rules, rounds: int) -> None:
        self.p: Any = module
        self.groups, self.rules, self.rounds = groups, rules, rounds
        g = len(groups.static)
        self.static, self.allowed = torch.from_numpy(groups.static), torch.from_numpy(groups.allowed)
        self.edges = [
            torch.stack(
                [
                    torch.from_numpy(groups.neighbour[d]),
                    torch.repeat_interleave(torch.from_numpy(np.diff(groups.pointer[d]))),
                ]
            )
            for d in range(2)
        ]
        before, after = (as_matrix(bits, g) for bits in (groups.before, groups.after))
        everyone = np.ones((g, g), np.bool_)
        none = ~everyone
        sets = (everyone, none, none) if rules.whole else (before, after, ~before & ~after & ~np.eye(g, dtype=np.bool_))
        self.sets = torch.from_numpy(np.stack(sets, axis=1).astype(np.float32))  # [g, 3, g]
        self.share, self.pooled_share = torch.from_numpy(groups.share), groups.pooled_share
        self.messages = Messages()

    def log_p(self, device: Tensor, visited: Tensor, current: int) -> Tensor:
        """[D] log-probabilities of the current group's devices, in the state of the placement [g] and the flags [g]."""
        p = self.p
        now = torch.zeros(len(device))
        now[current] = 1.0
        features = torch.cat(
            [self.static, one_hot(device, p.devices).float(), now[:, None], visited.float()[:, None]], dim=1
        )
        first = leaky_relu(features @ p.embed + p.embed_bias, SLOPE.item())
        ends = []
        for d in range(2):
            x = first
            for _ in range(self.rounds):
                x = self.messages(x, self.edges[d], self.share[d], p.message[d], p.message_bias[d])
                if self.rules.residual:
                    x = x + first
            ends.append(x)
        both = torch.cat(ends, dim=1)
        own = torch.zeros_like(both[current]) if self.rules.whole else both[current]
        sums = [own]
        for i in range(SETS):
            each = _layers(both, (p.pool_in[i], p.pool_bias[i, 0]), (p.pool[i, 0], p.pool_bias[i, 1]))
            total = self.pooled_share * (self.sets[current, i] @ each)
            sums.append(_layers(total, (p.pool[i, 1], p.pool_bias[i, 2]), (p.pool[i, 2], p.pool_bias[i, 3])))
        head = ((p.head_in, p.head_in_bias), (p.head, p.head_bias), (p.head_out, p.head_out_bias))
        logits = _layers(torch.cat(sums), *head)
        return logits.masked_fill(~self.allowed[current], -torch.inf).log_softmax(dim=0)

    def walk(self, e: Episodes, explore: bool | None) -> Tensor:
        """[n, T, D] log-probabilities of all steps, with autograd. `explore` None: `e.device` is given, else filled."""
        n, steps = e.order.shape
        g = len(self.static)
        found = []
        for i in range(n):
            device = torch.from_numpy(e.start[i].astype(np.int64))
            visited = torch.zeros(g, dtype=torch.bool)
            for t in range(steps):
                if t % g == 0:
                    visited = torch.zeros(g, dtype=torch.bool)
                v = int(e.order[i, t])
                log_p = self.log_p(device, visited, v)
                if explore is not None:
                    e.device[i, t] = _chosen(log_p.detach().numpy(), e.draw[i, t], explore)
                device, visited = device.clone(), visited.clone()
                device[v], visited[v] = int(e.device[i, t]), True
                found.append(log_p)
        return torch.stack(found).reshape(n, steps, -1)


def _layers(x: Tensor, *layers: tuple[Tensor, Tensor]) -> Tensor:
    """Dense layers, with LeakyReLU between them."""
    for i, (weight, bias) in enumerate(layers):
        x = x @ weight + bias
        if i + 1 < len(layers):
            x = leaky_relu(x, SLOPE.item())
    return x


def _chosen(log_p: NDArray[np.float32], draw: float, explore: bool) -> int:
    """As in kernel.py."""
    allowed = np.flatnonzero(np.isfinite(log_p))
    if not explore:
        return int(allowed[log_p[allowed].argmax()])
    total = np.cumsum(np.exp(log_p[allowed].astype(np.float64)))
    return int(allowed[min(int(np.searchsorted(total, draw, side="right")), len(allowed) - 1)])
