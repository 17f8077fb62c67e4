"""Policy `gdp`: devices for all groups in one pass of a network that serves many graphs (Zhou et al. 2019)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from placekit_learn.torch_features import TypeEmbedding
from placekit_learn.torch_policy import Decisions, TorchOptions, TorchPolicy
from torch import Tensor, nn

from placekit_core import PlacekitError, Placements, Problem, ReportsKL, Rollouts
from placekit_gdp import GDPOptions
from placekit_gdp.embedding import GraphEmbedding
from placekit_gdp.inputs import Inputs, features
from placekit_gdp.placer import Placer

_HELD = 64  # problems that are kept ready, since the problems of a family take turns


class Network(nn.Module):
    """Embeddings of types, the graph network, and the placement network."""

    def __init__(self, options: GDPOptions, devices: int) -> None:
        super().__init__()
        o = options
        self.types = TypeEmbedding(o.type_buckets, o.type_size)
        self.graph = GraphEmbedding(o.type_size + features(devices, o.octaves), o.hidden, o.rounds)
        self.placer = Placer(o.hidden, devices, o.layers, o.heads, o.segment, o.attention, o.superposition)

    @property
    def devices(self) -> int:
        """Number of devices that there is room for."""
        return int(self.placer.output.dense.out_features)

    def forward(self, i: Inputs) -> Tensor:
        """[g, D] log-probabilities; -inf for devices that are not allowed."""
        seen = torch.cat([self.types(i.type_bucket, i.type_share), i.numbers], dim=1)
        logits: Tensor = self.placer(self.graph(seen, i.source, i.target))
        return logits.masked_fill(~i.allowed, -torch.inf).log_softmax(dim=1)


class GDP(TorchPolicy, ReportsKL):
    """A graph network, attention over segments, and a softmax over the devices of each group.

    The groups are in topological order, and are placed independently of each other, given the graph. Any `explore` above
    0 draws devices from the softmax; 0 takes the most likely ones.
    """

    name = "gdp"
    device_parameter = "placer.output.dense.bias"
    options_class: ClassVar[type[TorchOptions]] = GDPOptions
    options: GDPOptions
    module: Network

    def network(self, problems: Sequence[Problem]) -> nn.Module:
        o = self.options
        if o.hidden % o.heads:
            raise PlacekitError(
                f"policy.hidden={o.hidden} is not a multiple of policy.heads={o.heads}", "change one of the two"
            )
        return Network(o, o.max_devices or max(p.cluster.size for p in problems))

    def build(self, problems: Sequence[Problem], rng: Generator) -> None:
        super().build(problems, rng)
        self._inputs: dict[str, Inputs] = {}
        self._output: tuple[str, int, Tensor] | None = None

    def inputs(self, problem: Problem) -> Inputs:
        """The network's input for a problem. Raises PlacekitError if it has more devices than there is room for."""
        room = self.module.devices
        if problem.cluster.size > room:
            raise PlacekitError(
                f"policy {self.name!r} was built for {room} devices, {problem.cluster.name!r} has {problem.cluster.size}",
                f"train it with policy.max_devices={problem.cluster.size}, or more",
            )
        found = self._inputs.get(problem.fingerprint)
        if found is None:
            while len(self._inputs) >= _HELD:
                del self._inputs[next(iter(self._inputs))]
            o = self.options
            with self.computing():
                found = self._inputs[problem.fingerprint] = Inputs.of(problem, room, o.type_buckets, o.octaves)
        return found

    def output(self, problem: Problem) -> Tensor:
        """[g, D] the network's output, with autograd.

        It is the same for all episodes of a problem until the parameters change, so it is computed once: for drawing the
        episodes, for their probabilities and for the gradients.
        """
        version = sum(p._version for p in self.module.parameters())
        if self._output is None or self._output[:2] != (problem.fingerprint, version):
            with torch.enable_grad():
                self._output = problem.fingerprint, version, self.module(self.inputs(problem))
        return self._output[2]

    def gradients(
        self,
        problem: Problem,
        rollouts: Rollouts,
        weight: NDArray[np.float64],
        entropy_weight: float = 0.0,
        kl_weight: float = 0.0,
    ) -> dict[str, NDArray[Any]]:
        found = super().gradients(problem, rollouts, weight, entropy_weight, kl_weight)
        self._output = None  # autograd has freed what a second gradient would need
        return found

    def log_prob(self, problem: Problem, rollouts: Rollouts) -> NDArray[np.float64]:
        with self.computing():  # with autograd, for the gradients that follow
            return self.evaluate_actions(problem, rollouts).log_prob.detach().double().cpu().numpy()

    def rollout(self, problem: Problem, n: int, rng: Generator, explore: float = 0.0) -> Rollouts:
        i = self.inputs(problem)
        with self.computing(), torch.no_grad():
            log_p = self.output(problem).detach() if explore > 0 else self.module(i)
            noise = torch.zeros(n, *log_p.shape)
            if explore > 0:  # the Gumbel-max trick: the largest logit, with this noise added, is a draw
                noise.exponential_(generator=self.generator(rng)).log_().neg_()
            chosen = noise.add_(log_p).argmax(dim=2)
            log_prob, spread = _chosen(log_p, chosen), _entropy(log_p).expand(n, -1)
        device = chosen.cpu().numpy().astype(np.int16)
        placed = np.empty((n, problem.g), np.int16)
        placed[:, i.order] = device
        return Rollouts(
            Placements.of(placed),
            np.tile(i.order, (n, 1)),
            device,
            log_prob.double().cpu().numpy(),
            spread.double().cpu().numpy(),
            extra={"log_p": log_p.expand(n, -1, -1).cpu().numpy().copy()},
        )

    def evaluate_actions(self, problem: Problem, rollouts: Rollouts) -> Decisions:
        log_p, device = self.output(problem), torch.as_tensor(rollouts.device.astype(np.int64))
        n = len(device)
        return Decisions(_chosen(log_p, device), _entropy(log_p).expand(n, -1), log_p.expand(n, -1, -1))


def _chosen(log_p: Tensor, device: Tensor) -> Tensor:
    """[n, g] log-probabilities of the devices [n, g] chosen from `log_p` [g, D]."""
    return log_p.gather(1, device.T).T


def _entropy(log_p: Tensor) -> Tensor:
    """[g] entropy of each distribution, nats."""
    return -(log_p.exp() * log_p.masked_fill(torch.isneginf(log_p), 0.0)).sum(dim=1)
