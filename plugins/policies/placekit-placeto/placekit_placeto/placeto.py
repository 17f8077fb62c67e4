"""Policy `placeto`: moves one group after another, given the placement so far (Addanki et al. 2019)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from placekit_learn.torch_policy import Decisions, TorchOptions, TorchPolicy
from placekit_scheduling import ListScheduler
from torch import nn

from placekit_core import PlacekitError, Placements, Problem, ReportsKL, Rollouts, Teaches
from placekit_placeto import PlacetoOptions
from placekit_placeto.arrays import Episodes, Groups, Rules
from placekit_placeto.paper import PaperInput, PaperNetwork
from placekit_placeto.per_device import NetworkInput, PerDevice
from placekit_placeto.prepared import groups_of, one_device

_CACHED = 64  # most problems to keep prepared: training alternates between those of a family


@dataclass(frozen=True, eq=False)
class Prepared:
    """A problem, prepared for episodes; `inputs` is the input of the network: a `NetworkInput` or `PaperInput`."""

    groups: Groups
    topological: NDArray[np.int32]
    start: NDArray[np.int16]
    inputs: Any


class Placeto(TorchPolicy, ReportsKL, Teaches):
    """Iterative placement improvement (section 2.1): an episode visits each group, and chooses a new device for it.

    The network (`paper.py`, section 2.2, or `per_device.py`) sees the groups with their present devices. Any `explore`
    above 0 draws devices from the softmax, and draws orders and starts if the options say so. 0 takes the likeliest devices, and
    always the same order and start, from `order_seed`.
    """

    name = "placeto"
    device_parameter = "head_out_bias"  # of `head=paper`
    options_class: ClassVar[type[TorchOptions]] = PlacetoOptions
    options: PlacetoOptions
    module: PaperNetwork | PerDevice
    free_options = (*TorchPolicy.free_options, "visits", "order", "orders", "order_seed", "start")

    def __init__(self, options: Any = None, **values: Any) -> None:
        super().__init__(options, **values)
        o = self.options
        self.rules = Rules(residual=o.residual, whole=o.pooling == "graph")
        self._prepared: dict[str, Prepared] = {}

    def network(self, problems: Sequence[Problem]) -> nn.Module:
        o = self.options
        if o.head == "per_device":
            return PerDevice(o.size, o.rounds, self.rules, o.schedule)
        room = o.max_devices or max(p.cluster.size for p in problems)
        return PaperNetwork(o.size, o.rounds, room, self.rules)

    def build(self, problems: Sequence[Problem], rng: Generator) -> None:
        super().build(problems, rng)
        self._prepared.clear()
        if self.options.head == "per_device":  # compile its loops now, because the budget's clock does not run yet
            rng = np.random.default_rng(0)
            self.rollout(problems[0], 1, rng)
            self.imitate(problems[0], self.teach(problems[0], 1, rng), rng)

    def prepared(self, problem: Problem) -> Prepared:
        """The problem, prepared. Raises PlacekitError if it has more devices than the network has room for."""
        room = self.module.devices if isinstance(self.module, PaperNetwork) else problem.cluster.size
        if problem.cluster.size > room:
            raise PlacekitError(
                f"policy {self.name!r} was built for {room} devices, {problem.cluster.name!r} has {problem.cluster.size}",
                f"train it with policy.max_devices={problem.cluster.size}, or more",
            )
        found = self._prepared.get(problem.fingerprint)
        if found is None:
            while len(self._prepared) >= _CACHED:
                del self._prepared[next(iter(self._prepared))]
            order = problem.grouped.topological_order.astype(np.int32)
            groups = groups_of(problem, room, self.options.sums)
            per_device = isinstance(self.module, PerDevice)
            with self.computing():
                inputs = NetworkInput(problem, groups, self.rules) if per_device else PaperInput(groups, self.rules)
            found = self._prepared[problem.fingerprint] = Prepared(groups, order, one_device(problem), inputs)
        return found

    def rollout(self, problem: Problem, n: int, rng: Generator, explore: float = 0.0) -> Rollouts:
        prepared = self.prepared(problem)
        e = self._episodes(problem, prepared, n, rng, explore > 0)
        with self.computing(), torch.no_grad():
            self.module.walk(prepared.inputs, e, explore > 0)
        placed = e.start.copy()
        for t in range(e.order.shape[1]):
            placed[np.arange(n), e.order[:, t]] = e.device[:, t]
        log_p = e.log_p.astype(np.float64)
        return Rollouts(
            Placements.of(placed),
            e.order,
            e.device,
            np.take_along_axis(log_p, e.device[:, :, None].astype(np.int64), axis=2)[:, :, 0],
            -(np.exp(log_p) * np.where(np.isneginf(log_p), 0.0, log_p)).sum(axis=2),
            start=Placements.of(e.start),
            extra={"log_p": e.log_p},
        )

    def teach(self, problem: Problem, n: int, rng: Generator, explore: float = 0.0) -> Rollouts:
        """Episodes that move each group to its device in a `critical_path` schedule with random ties, for `imitate`.

        Yao et al. 2026 (appendix H.4) let Placeto imitate, but do not say how. We use the rule of `doppler`'s teacher, in states
        of the teacher instead of the policy: starts and orders are as in other episodes, and each visited group is on the
        teacher's device.
        """
        e = self._episodes(problem, self.prepared(problem), n, rng, explore > 0)
        scheduler, placed = ListScheduler(problem), e.start.copy()
        for i in range(n):
            scheduler.reset()
            placed[i] = scheduler.run("critical_path", seed=int(rng.integers(2**62))).devices()
        e.device[:] = np.take_along_axis(placed, e.order.astype(np.int64), axis=1)
        nothing = np.zeros(e.order.shape)
        return Rollouts(
            Placements.of(placed),
            e.order,
            e.device,
            nothing,
            nothing,
            start=Placements.of(e.start),
            extra={"log_p": e.log_p},
        )

    def imitate(self, problem: Problem, teacher: Rollouts, rng: Generator) -> tuple[float, dict[str, NDArray[Any]]]:
        weight = np.full(teacher.group.shape, 1.0 / max(teacher.group.size, 1))
        return -float((weight * self.log_prob(problem, teacher)).sum()), self.gradients(problem, teacher, weight)

    def evaluate_actions(self, problem: Problem, rollouts: Rollouts) -> Decisions:
        prepared, e = self.prepared(problem), _episodes_of(rollouts)
        log_p = self.module.step_log_p(prepared.inputs, e)
        device = torch.as_tensor(rollouts.device.astype(np.int64))
        entropy = -(log_p.exp() * log_p.masked_fill(torch.isneginf(log_p), 0.0)).sum(dim=2)
        return Decisions(log_p.gather(2, device[:, :, None])[:, :, 0], entropy, log_p)

    def _episodes(self, problem: Problem, prepared: Prepared, n: int, rng: Generator, explore: bool) -> Episodes:
        """n episodes before their first step."""
        o, g = self.options, problem.g
        steps = o.visits * g
        rng = rng if explore else np.random.default_rng(o.order_seed)
        order = np.tile(prepared.topological, (n, o.visits))
        if o.order == "random":
            for i in range(n):
                own = np.random.default_rng([o.order_seed, int(rng.integers(o.orders))]) if o.orders else rng
                order[i] = np.concatenate([own.permutation(g) for _ in range(o.visits)])
        start = np.tile(prepared.start, (n, 1))
        if o.start == "random":
            start[:] = np.where(problem.allowed, rng.random((n, *problem.allowed.shape)), -1.0).argmax(axis=2)
        draw = rng.random((n, steps)) if explore else np.zeros((n, steps))
        device, log_p = (
            np.zeros((n, steps), np.int16),
            np.zeros((n, steps, prepared.groups.allowed.shape[1]), np.float32),
        )
        return Episodes(start, order, draw, device, log_p)


def _episodes_of(rollouts: Rollouts) -> Episodes:
    """The episodes that `rollouts` record."""
    assert rollouts.start is not None
    return Episodes(
        np.ascontiguousarray(rollouts.start.device, np.int16),
        np.ascontiguousarray(rollouts.group, np.int32),
        np.zeros(rollouts.group.shape),
        np.ascontiguousarray(rollouts.device, np.int16),
        np.ascontiguousarray(rollouts.extra["log_p"], np.float32),
    )
