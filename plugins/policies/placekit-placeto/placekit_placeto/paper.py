"""The network of Addanki et al. 2019, section 2.2, in plain torch (`policy.head=paper`, preset `placeto_paper`).

Each step of an episode computes, for the current group v:

1. the features x of each group: its run time, the bytes of its outputs, its present device, whether it is v, and
   whether it was visited (figure 3a);
2. k rounds of messages, top-down and bottom-up with parameters of their own (figure 3b):
   x_v(i+1) = g(sum over v's neighbours u of f(x_u(i)));
3. summaries of the groups that reach v, of those that v reaches, and of the others (figure 3c):
   h_i(sum over u in S_i(v) of l_i(x_u));
4. from x_v and the three summaries, the probabilities of the devices (figure 3d).

`per_device.py` has the default network, which is ours. Shapes: n states, g groups, D devices that the network has room
for, H numbers of an embedding, T steps of an episode.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import leaky_relu, one_hot
from torch.utils.checkpoint import checkpoint

from placekit_placeto.arrays import SLOPE, STATIC, Episodes, Groups, Rules
from placekit_placeto.per_device import LAST_LAYER_SCALE, draw_devices
from placekit_placeto.prepared import as_matrix

FLAGS = 2
"""Number of features that depend on the step: whether the group is the current one, and whether it was visited."""
SETS = 3
"""Groups that reach the current one, groups that it reaches, and the others: S_parents, S_children and S_parallel."""
_LARGEST_ARRAY = 2_000_000  # about the most numbers in an array; steps are split into parts to stay below


class PaperNetwork(nn.Module):
    """Section 2.2: messages with f and g, summaries with l and h, and a policy network for the devices."""

    def __init__(self, size: int, rounds: int, devices: int, rules: Rules) -> None:
        super().__init__()
        h, d = size, devices
        self.devices, self.k, self.rules = devices, rounds, rules
        self.embed, self.embed_bias = _normal(STATIC + d + FLAGS, h), _zeros(h)
        # of each direction: f's two layers, then g's
        self.message, self.message_bias = _normal(2, 4, h, h), _zeros(2, 4, h)
        # of each set: l's two layers, then h's; `pool_in` is l's first one
        self.pool_in, self.pool, self.pool_bias = _normal(SETS, 2 * h, h), _normal(SETS, 3, h, h), _zeros(SETS, 4, h)
        self.head_in, self.head_in_bias = _normal(5 * h, 10 * h), _zeros(10 * h)
        self.head, self.head_bias = _normal(10 * h, 5 * h), _zeros(5 * h)
        self.head_out, self.head_out_bias = _normal(5 * h, d, scale=LAST_LAYER_SCALE), _zeros(d)

    def log_p(self, q: PaperInput, device: Tensor, visited: Tensor, current: Tensor) -> Tensor:
        """[n, D] log-probabilities of the devices of the groups `current` [n], in n states.

        Args:
            q: the problem.
            device: [n, g] the placement so far.
            visited: [n, g] whether the episode has placed the group in this visit.
            current: [n] the group that is placed now.
        """
        features = self.features(q, device, visited, current)
        x = torch.cat([self.messages(features, q, direction) for direction in range(2)], dim=2)  # [n, g, 2H]
        x_v = x[torch.arange(len(x)), current]
        seen = [torch.zeros_like(x_v) if self.rules.whole else x_v]
        seen += [self.summary(x, q, current, i) for i in range(SETS)]
        head = perceptron(
            (self.head_in, self.head_in_bias), (self.head, self.head_bias), (self.head_out, self.head_out_bias)
        )
        return head(torch.cat(seen, dim=1)).masked_fill(~q.allowed[current], -torch.inf).log_softmax(dim=1)

    def features(self, q: PaperInput, device: Tensor, visited: Tensor, current: Tensor) -> Tensor:
        """[n, g, H] step 1: the groups' features, and a layer of ours that makes them as long as an embedding."""
        n, g = device.shape
        now = torch.zeros(n, g, device=device.device)  # in the backward pass no default device is known
        now[torch.arange(n), current] = 1.0
        placed = one_hot(device, self.devices).float()
        raw = torch.cat([q.static.expand(n, -1, -1), placed, now[:, :, None], visited.float()[:, :, None]], dim=2)
        return leaky_relu(raw @ self.embed + self.embed_bias, SLOPE)

    def messages(self, features: Tensor, q: PaperInput, direction: int) -> Tensor:
        """[n, g, H] step 2: embeddings after k rounds of messages, top-down (0) or bottom-up (1)."""
        f, g = self.message_networks(direction)
        (sender, receiver), share = q.edges[direction], q.share[direction]
        x = features
        for _ in range(self.k):
            received = torch.zeros_like(x).index_add(-2, receiver, f(x).index_select(-2, sender))
            x = g(share[:, None] * received)
            if self.rules.residual:
                x = x + features
        return x

    def summary(self, x: Tensor, q: PaperInput, current: Tensor, i: int) -> Tensor:
        """[n, H] step 3: the summary of the set S_i of each current group."""
        l_i, h_i = self.summary_networks(i)
        total = (q.sets[current, i][:, None, :] @ l_i(x))[:, 0]
        return h_i(q.pooled_share * total)

    def message_networks(self, direction: int) -> tuple[Perceptron, Perceptron]:
        """f and g of a direction."""
        layers = list(zip(self.message[direction], self.message_bias[direction], strict=True))
        return perceptron(*layers[:2]), perceptron(*layers[2:])

    def summary_networks(self, i: int) -> tuple[Perceptron, Perceptron]:
        """l and h of a set of groups."""
        layers = list(zip([self.pool_in[i], *self.pool[i]], self.pool_bias[i], strict=True))
        return perceptron(*layers[:2]), perceptron(*layers[2:])

    def walk(self, q: PaperInput, e: Episodes, explore: bool) -> None:
        """Run the episodes step by step, all of them together; fills their `device` and `log_p`."""
        n, steps = e.order.shape
        device = torch.as_tensor(e.start.astype(np.int64))
        visited, rows = torch.zeros(device.shape, dtype=torch.bool), torch.arange(n)
        for t in range(steps):
            if t % device.shape[1] == 0:
                visited[:] = False
            current = torch.as_tensor(e.order[:, t].astype(np.int64))
            log_p = self.log_p(q, device, visited, current).cpu().numpy()
            chosen = draw_devices(log_p, e.draw[:, t]) if explore else log_p.argmax(axis=1)
            e.log_p[:, t], e.device[:, t] = log_p, chosen
            device[rows, current], visited[rows, current] = torch.as_tensor(chosen), True

    def step_log_p(self, q: PaperInput, e: Episodes) -> Tensor:
        """[n, T, D] log-probabilities of all steps of the episodes, with autograd."""
        states = _states(e)
        n, steps, g = states[0].shape
        flat = [torch.as_tensor(x).flatten(0, 1) for x in (*states, e.order.astype(np.int64))]
        size = max(1, _LARGEST_ARRAY // (g * self.embed.shape[1]))
        parts = zip(*(torch.split(x, size) for x in flat), strict=True)
        # checkpoint recomputes each part in the backward pass: an autograd graph of all states would take gigabytes
        found = [checkpoint(self.log_p, q, *part, use_reentrant=False) for part in parts]
        return torch.cat(found).reshape(n, steps, self.devices)


class PaperInput:
    """A problem as the tensors that the network reads."""

    def __init__(self, groups: Groups, rules: Rules) -> None:
        g = len(groups.static)
        self.static, self.allowed = torch.as_tensor(groups.static), torch.as_tensor(groups.allowed)
        self.share, self.pooled_share = torch.as_tensor(groups.share), groups.pooled_share
        self.edges = [
            (
                torch.as_tensor(groups.neighbour[d]),
                torch.as_tensor(np.repeat(np.arange(g), np.diff(groups.pointer[d]))),
            )
            for d in range(2)
        ]
        before, after = (as_matrix(bits, g) for bits in (groups.before, groups.after))
        everything = np.ones((g, g), np.bool_)
        sets = (before, after, ~before & ~after & ~np.eye(g, dtype=np.bool_))
        if rules.whole:  # one sum over all groups, the simple aggregator of section 4.3
            sets = (everything, ~everything, ~everything)
        self.sets = torch.as_tensor(np.stack(sets, axis=1).astype(np.float32))  # [g, SETS, g]


Perceptron = Callable[[Tensor], Tensor]


def _normal(*shape: int, scale: float = 1.0) -> nn.Parameter:
    """Initial weights of layers: `shape` ends with the numbers of inputs and outputs."""
    return nn.Parameter(torch.randn(shape) * scale / shape[-2] ** 0.5)


def _zeros(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.zeros(shape))


def perceptron(*layers: tuple[Tensor, Tensor]) -> Perceptron:
    """A multilayer perceptron of dense layers (weight, bias), with LeakyReLU between them."""

    def output(x: Tensor) -> Tensor:
        for i, (weight, bias) in enumerate(layers):
            x = x @ weight + bias
            if i + 1 < len(layers):
                x = leaky_relu(x, SLOPE)
        return x

    return output


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
