"""Policy `my_method_softmax`: a softmax over the devices for each group, independent of each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from placekit_core import LearnablePolicy, PlacekitError, Placements, Problem, RecomputesLogProb, Rollouts
from placekit_my_method import MyMethodSoftmaxOptions

Floats = NDArray[np.float64]


class MyMethodSoftmax(LearnablePolicy, RecomputesLogProb):
    """Learns one table of logits [g, D] per problem; nothing carries over to other problems.

    `explore` is the probability that a device is drawn; otherwise the most probable device is taken.
    """

    name = "my_method_softmax"
    options_class = MyMethodSoftmaxOptions

    def build(self, problems: Sequence[Problem], rng: Generator) -> None:
        """Equal probabilities; `rng` is not used."""
        self.logits: dict[str, Floats] = {p.fingerprint: np.zeros((p.g, p.cluster.size)) for p in problems}

    def rollout(self, problem: Problem, n: int, rng: Generator, explore: float = 0.0) -> Rollouts:
        """n episodes of g decisions, group 0 first."""
        p = self._probabilities(problem)
        number = rng.random((n, problem.g, 1)) * p.sum(axis=1, keepdims=True)
        drawn = (number >= p.cumsum(axis=1)).sum(axis=2)  # [n, g]
        device = np.where(rng.random((n, problem.g)) < explore, drawn, p.argmax(axis=1)).astype(np.int16)
        group = np.tile(np.arange(problem.g, dtype=np.int32), (n, 1))
        return Rollouts(Placements.of(device), group, device, _log(p)[group, device], np.tile(_entropy(p), (n, 1)))

    def gradients(
        self,
        problem: Problem,
        rollouts: Rollouts,
        weight: Floats,
        entropy_weight: float = 0.0,
        kl_weight: float = 0.0,
    ) -> dict[str, NDArray[Any]]:
        """Gradient with respect to the logits of this problem. Raises PlacekitError unless `kl_weight` is 0."""
        if kl_weight:
            raise PlacekitError(f"policy {self.name!r} reports no KL divergence", "use a trainer that needs none")
        p = self._probabilities(problem)
        chosen = np.eye(problem.cluster.size)[rollouts.device]  # [b, g, D]
        of_entropy = -p * (_log(p) + _entropy(p)[:, None])
        total = (weight[:, :, None] * (chosen - p)).sum(axis=0) + entropy_weight * len(chosen) * of_entropy
        return {problem.fingerprint: total}

    def log_prob(self, problem: Problem, rollouts: Rollouts) -> Floats:
        """[b, g] log-probabilities under the current parameters."""
        return np.asarray(_log(self._probabilities(problem))[rollouts.group, rollouts.device])

    def apply(self, steps: Mapping[str, NDArray[Any]]) -> None:
        """Add `steps` to the logits."""
        for name, step in steps.items():
            self.logits[name] = self.logits[name] + step

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """The logits, by fingerprint of the problem."""
        return {name: logits.copy() for name, logits in self.logits.items()}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Replace the logits. Raises PlacekitError that names logits that are missing or have another shape."""
        for name, logits in self.logits.items():
            found = np.shape(state[name]) if name in state else None
            if found != logits.shape:
                raise PlacekitError(f"the logits of problem {name} have shape {logits.shape}, the state has {found}")
        self.logits = {name: np.array(state[name], np.float64) for name in self.logits}

    def _probabilities(self, problem: Problem) -> Floats:
        """[g, D] probability of each device, 0 if it is not allowed."""
        logits = np.where(problem.allowed, self.logits[problem.fingerprint], -np.inf)
        odds = np.exp(logits - logits.max(axis=1, keepdims=True))
        return np.asarray(odds / odds.sum(axis=1, keepdims=True))


def _log(p: Floats) -> Floats:
    """Natural logarithm, 0 where p is 0."""
    return np.asarray(np.log(np.where(p > 0, p, 1.0)))


def _entropy(p: Floats) -> Floats:
    """[g] nats."""
    return np.asarray(-(p * _log(p)).sum(axis=1))
