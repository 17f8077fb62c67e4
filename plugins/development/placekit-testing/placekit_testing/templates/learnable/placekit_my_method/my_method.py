"""Policy `my_method`: a small graph network that learns where to place each group."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.random import Generator
from placekit_learn.torch_features import positional_encoding
from placekit_learn.torch_policy import Decisions, TorchPolicy
from torch import Tensor, nn

from placekit_core import Placements, Problem, ReportsKL, Rollouts
from placekit_my_method import MyMethodOptions

OCTAVES = 4  # the network sees a group's place in topological order as sines and cosines of 1, 2, 4, 8 periods


class Network(nn.Module):
    """A layer on each group's own features, a layer on the mean of its neighbours, and a layer to the logits."""

    def __init__(self, hidden: int, devices: int) -> None:
        super().__init__()
        self.own = nn.Linear(devices + 2 * OCTAVES, hidden)
        self.neighbours = nn.Linear(hidden, hidden)
        self.logits = nn.Linear(hidden, devices)

    def forward(self, features: Tensor, source: Tensor, target: Tensor) -> Tensor:
        """[g, D] logits, from the features [g, F] and the edges: group `source[e]` is a neighbour of `target[e]`."""
        own = self.own(features).tanh()
        total = torch.zeros_like(own).index_add(0, target, own[source])
        mean = total / target.bincount(minlength=len(own)).clamp(min=1)[:, None]
        logits: Tensor = self.logits((own + self.neighbours(mean)).tanh())
        return logits


class MyMethod(TorchPolicy, ReportsKL):
    """Draws a device for each group from a softmax, independently of the other groups; `explore` 0 takes the likeliest."""

    name = "my_method"
    options_class = MyMethodOptions
    options: MyMethodOptions
    module: Network

    def network(self, problems: Sequence[Problem]) -> nn.Module:
        return Network(self.options.hidden, max(p.cluster.size for p in problems))

    def log_p(self, problem: Problem) -> Tensor:
        """[g, D] log-probability of each device for each group, -inf if it is not allowed; with autograd."""
        graph, devices = problem.grouped, problem.cluster.size
        seconds = np.where(problem.allowed, problem.group_s, 0.0)  # [g, D]
        time = torch.as_tensor(np.log1p(seconds / (seconds.mean() or 1.0))).float()
        time = nn.functional.pad(time, (0, self.module.logits.out_features - devices))
        place = positional_encoding(problem.g, OCTAVES)[np.argsort(graph.topological_order)]
        producer, reader = graph.tensor_producer[graph.input_tensor], graph.edge_op  # the two ends of each edge
        source, target = (torch.as_tensor(np.concatenate(x)) for x in ([producer, reader], [reader, producer]))
        logits = self.module(torch.cat([time, place], dim=1), source, target)[:, :devices]
        log_p: Tensor = logits.masked_fill(~torch.tensor(problem.allowed), -torch.inf).log_softmax(dim=1)
        return log_p

    def rollout(self, problem: Problem, n: int, rng: Generator, explore: float = 0.0) -> Rollouts:
        with self.computing(), torch.no_grad():
            log_p = self.log_p(problem)
            chosen = log_p.argmax(dim=1).expand(n, -1)  # [n, g]
            if explore > 0:
                chosen = torch.multinomial(log_p.exp(), n, replacement=True, generator=self.generator(rng)).T
            d, device = decisions(log_p, chosen), chosen.cpu().numpy().astype(np.int16)
        log_prob, entropy = d.log_prob.double().cpu().numpy(), d.entropy.double().cpu().numpy()
        group = np.tile(np.arange(problem.g, dtype=np.int32), (n, 1))
        return Rollouts(Placements.of(device), group, device, log_prob, entropy, extra={"log_p": d.log_p.cpu().numpy()})

    def evaluate_actions(self, problem: Problem, rollouts: Rollouts) -> Decisions:
        return decisions(self.log_p(problem), torch.as_tensor(rollouts.device.astype(np.int64)))


def decisions(log_p: Tensor, device: Tensor) -> Decisions:
    """The devices [n, g] as decisions that were drawn from `log_p` [g, D]."""
    n = len(device)
    entropy = -(log_p.exp() * log_p.nan_to_num(neginf=0.0)).sum(dim=1)  # [g] nats
    return Decisions(log_p.gather(1, device.T).T, entropy.expand(n, -1), log_p.expand(n, -1, -1))
