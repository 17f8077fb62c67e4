"""The paper's network (section 2.2 of Addanki et al. 2019): `policy.head=paper`. It sees devices as features of the groups.

Shapes: n states, g groups, D devices that the network has room for, H numbers of an embedding, T steps of an episode.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import leaky_relu, one_hot
from torch.utils.checkpoint import checkpoint
from torch_geometric.nn import MessagePassing

from placekit_placeto.arrays import SLOPE, STATIC, Episodes, Groups, Rules
from placekit_placeto.per_device import LAST_LAYER_SCALE, draw_devices
from placekit_placeto.prepared import as_matrix

FLAGS = 2
"""Number of features that depend on the step: whether the group is the current one, and whether it was visited."""
SETS = 3
"""Groups that reach the current one, groups that it reaches, and the others: the paper's pooling (figure 2)."""
_LARGEST_ARRAY = 2_000_000  # most numbers in an array; steps are split into parts to stay below


class PaperInput:
    """A problem as the tensors that the network reads."""

    def __init__(self, groups: Groups, rules: Rules) -> None:
        g = len(groups.static)
        self.static, self.allowed = torch.from_numpy(groups.static), torch.from_numpy(groups.allowed)
        self.share, self.pooled_share = torch.from_numpy(groups.share), groups.pooled_share
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
        everything = np.ones((g, g), np.bool_)
        sets = (before, after, ~before & ~after & ~np.eye(g, dtype=np.bool_))
        if rules.whole:  # one sum over all groups, the ablation of table 3
            sets = (everything, ~everything, ~everything)
        self.sets = torch.from_numpy(np.stack(sets, axis=1).astype(np.float32))  # [g, SETS, g]


class Messages(MessagePassing):  # type: ignore[misc]  # torch-geometric has no types
    """One round of messages in one direction: g(sum over neighbours of f(x)) (section 2.2, step 2)."""

    def __init__(self) -> None:
        super().__init__(aggr="add", node_dim=-2)

    def forward(self, x: Tensor, edges: Tensor, share: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """[n, g, H]; `share` [g] is a factor on the sums, `weight` [4, H, H] and `bias` [4, H] are those of f and g."""
        f = _dense(x, (weight[0], bias[0]), (weight[1], bias[1]))
        total = share[:, None] * self.propagate(edges, x=f)
        return _dense(total, (weight[2], bias[2]), (weight[3], bias[3]))

    def message(self, x_j: Tensor) -> Tensor:
        """The message of each neighbour: its f(x)."""
        return x_j


class PaperNetwork(nn.Module):
    """Embeddings by messages along the graph and against it, sums of these over three sets of groups, and a head."""

    def __init__(self, size: int, rounds: int, devices: int, rules: Rules) -> None:
        super().__init__()
        h, d = size, devices
        self.devices, self.rounds, self.rules, self.messages = devices, rounds, rules, Messages()
        shapes = {
            "embed": (STATIC + d + FLAGS, h), "embed_bias": (h,),
            "message": (2, 4, h, h), "message_bias": (2, 4, h),  # of each direction: f's two layers, g's two layers
            "pool_in": (SETS, 2 * h, h), "pool": (SETS, 3, h, h), "pool_bias": (SETS, 4, h),  # of each set: l, then h
            "head_in": (5 * h, 10 * h), "head_in_bias": (10 * h,), "head": (10 * h, 5 * h), "head_bias": (5 * h,),
            "head_out": (5 * h, d), "head_out_bias": (d,),
        }  # fmt: skip
        for name, shape in shapes.items():
            if name.endswith("bias"):
                values = torch.zeros(shape)
            else:
                values = torch.randn(shape) * (LAST_LAYER_SCALE if name == "head_out" else 1.0) / shape[-2] ** 0.5
            self.register_parameter(name, nn.Parameter(values))

    def log_p(self, q: PaperInput, device: Tensor, visited: Tensor, current: Tensor) -> Tensor:
        """[n, D] log-probabilities of the devices of the groups `current` [n], in n states.

        Args:
            q: the problem.
            device: [n, g] the placement so far.
            visited: [n, g] whether the episode has placed the group in this visit.
            current: [n] the group that is placed now.
        """
        p: Any = self
        n, g = device.shape
        rows = torch.arange(n)
        now = torch.zeros(n, g)
        now[rows, current] = 1.0
        placed = one_hot(device, self.devices).float()
        x = torch.cat([q.static.expand(n, -1, -1), placed, now[:, :, None], visited.float()[:, :, None]], dim=2)
        first = leaky_relu(x @ p.embed + p.embed_bias, SLOPE)
        ends = []
        for d in range(2):
            x = first
            for _ in range(self.rounds):
                x = self.messages(x, q.edges[d], q.share[d], p.message[d], p.message_bias[d])
                if self.rules.residual:
                    x = x + first
            ends.append(x)
        both = torch.cat(ends, dim=2)  # [n, g, 2H]
        own = both[rows, current]
        seen = [torch.zeros_like(own) if self.rules.whole else own]
        for i in range(SETS):
            each = _dense(both, (p.pool_in[i], p.pool_bias[i, 0]), (p.pool[i, 0], p.pool_bias[i, 1]))
            total = q.pooled_share * (q.sets[current, i][:, None, :] @ each)[:, 0]
            seen.append(_dense(total, (p.pool[i, 1], p.pool_bias[i, 2]), (p.pool[i, 2], p.pool_bias[i, 3])))
        head = ((p.head_in, p.head_in_bias), (p.head, p.head_bias), (p.head_out, p.head_out_bias))
        return _dense(torch.cat(seen, dim=1), *head).masked_fill(~q.allowed[current], -torch.inf).log_softmax(dim=1)

    def walk(self, q: PaperInput, e: Episodes, explore: bool) -> None:
        """Run the episodes step by step, all of them together; fills their `device` and `log_p`."""
        n, steps = e.order.shape
        device = torch.from_numpy(e.start.astype(np.int64))
        visited, rows = torch.zeros(device.shape, dtype=torch.bool), torch.arange(n)
        for t in range(steps):
            if t % device.shape[1] == 0:
                visited[:] = False
            current = torch.from_numpy(e.order[:, t].astype(np.int64))
            log_p = self.log_p(q, device, visited, current).numpy()
            chosen = draw_devices(log_p, e.draw[:, t]) if explore else log_p.argmax(axis=1)
            e.log_p[:, t], e.device[:, t] = log_p, chosen
            device[rows, current], visited[rows, current] = torch.from_numpy(chosen), True

    def step_log_p(self, q: PaperInput, e: Episodes) -> Tensor:
        """[n, T, D] log-probabilities of all steps of the episodes, with autograd."""
        states = _states(e)
        n, steps, g = states[0].shape
        flat = [torch.from_numpy(x).flatten(0, 1) for x in (*states, e.order.astype(np.int64))]
        size = max(1, _LARGEST_ARRAY // (g * self.get_parameter("embed").shape[1]))
        parts = zip(*(torch.split(x, size) for x in flat), strict=True)
        # checkpoint recomputes each part in the backward pass: an autograd graph of all states would take gigabytes
        found = [checkpoint(self.log_p, q, *part, use_reentrant=False) for part in parts]
        return torch.cat(found).reshape(n, steps, self.devices)


def _states(e: Episodes) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """[n, T, g] the placement and the visited groups before each step."""
    (n, steps), g = e.order.shape, e.start.shape[1]
    device, visited = np.empty((n, steps, g), np.int64), np.zeros((n, steps, g), np.bool_)
    rows, now, seen = np.arange(n), e.start.astype(np.int64), np.zeros((n, g), np.bool_)
    for t in range(steps):
        if t % g == 0:
            seen[:] = False
        device[:, t], visited[:, t] = now, seen
        now[rows, e.order[:, t]], seen[rows, e.order[:, t]] = e.device[:, t], True
    return device, visited


def _dense(x: Tensor, *layers: tuple[Tensor, Tensor]) -> Tensor:
    """Dense layers, with LeakyReLU between them."""
    for i, (weight, bias) in enumerate(layers):
        x = x @ weight + bias
        if i + 1 < len(layers):
            x = leaky_relu(x, SLOPE)
    return x
