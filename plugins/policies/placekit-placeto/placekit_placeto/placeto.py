"""Policy `placeto`: places one group after the other anew, and sees the placement so far (Addanki et al. 2019)."""

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
from placekit_placeto.paper import PaperNetwork, PaperScene
from placekit_placeto.per_device import PerDevice, Scene
from placekit_placeto.prepared import groups_of, one_device

_HELD = 64  # problems that are kept ready, since the problems of a family take turns


@dataclass(frozen=True, eq=False)
class Ready:
    """A problem, made ready for episodes; `scene` is the problem as the module sees it."""

    groups: Groups
    topological: NDArray[np.int32]
    start: NDArray[np.int16]
    scene: Any


class Placeto(TorchPolicy, ReportsKL, Teaches):
    """Iterative placement improvement (section 2.1): an episode visits each group and places it anew.

    The network (section 2.2, or `per_device.py`) sees the groups with their present devices. Any `explore` above 0 draws
    devices from the softmax, and orders and starts at random if the options say so. 0 takes the likeliest devices; a random
    order or start is then always the same, that of `order_seed`.
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
        self._ready: dict[str, Ready] = {}

    def network(self, problems: Sequence[Problem]) -> nn.Module:
        o = self.options
        if o.head == "per_device":
            return PerDevice(o.size, o.rounds, self.rules, o.schedule)
        room = o.max_devices or max(p.cluster.size for p in problems)
        return PaperNetwork(o.size, o.rounds, room, self.rules)

    def build(self, problems: Sequence[Problem], rng: Generator) -> None:
        super().build(problems, rng)
        self._ready.clear()
        if self.options.head == "per_device":  # it compiles; while a policy is built, no budget's clock runs
            rng = np.random.default_rng(0)
            self.rollout(problems[0], 1, rng)
            self.imitate(problems[0], self.teach(problems[0], 1, rng), rng)

    def ready(self, problem: Problem) -> Ready:
        """The problem made ready. Raises PlacekitError if it has more devices than there is room for."""
        room = self.module.devices if isinstance(self.module, PaperNetwork) else problem.cluster.size
        if problem.cluster.size > room:
            raise PlacekitError(
                f"policy {self.name!r} was built for {room} devices, {problem.cluster.name!r} has {problem.cluster.size}",
                f"train it with policy.max_devices={problem.cluster.size}, or more",
            )
        found = self._ready.get(problem.fingerprint)
        if found is None:
            while len(self._ready) >= _HELD:
                del self._ready[next(iter(self._ready))]
            order = problem.grouped.topological_order.astype(np.int32)
            groups = groups_of(problem, room, self.options.sums)
            per_device = isinstance(self.module, PerDevice)
            scene = Scene(problem, groups, self.rules) if per_device else PaperScene(groups, self.rules)
            found = self._ready[problem.fingerprint] = Ready(groups, order, one_device(problem), scene)
        return found

    def rollout(self, problem: Problem, n: int, rng: Generator, explore: float = 0.0) -> Rollouts:
        ready = self.ready(problem)
        e = self._episodes(problem, ready, n, rng, explore > 0)
        with self.fixed_threads(), torch.no_grad():
            self.module.walk(ready.scene, e, explore > 0)
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
        """Episodes in which each group goes where the critical path has it, with random ties (Yao et al. 2026, appendix H.4).

        That paper lets Placeto imitate and does not say how. The rule is that of `doppler`'s teacher, but in states of the
        teacher, not of the policy: starts and orders are those of own episodes, and every group that was visited is where the
        teacher has it.
        """
        e = self._episodes(problem, self.ready(problem), n, rng, explore > 0)
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
        ready, e = self.ready(problem), _again(rollouts)
        log_p = self.module.judge(ready.scene, e)
        device = torch.from_numpy(rollouts.device.astype(np.int64))
        entropy = -(log_p.exp() * log_p.masked_fill(torch.isneginf(log_p), 0.0)).sum(dim=2)
        return Decisions(log_p.gather(2, device[:, :, None])[:, :, 0], entropy, log_p)

    def _episodes(self, problem: Problem, ready: Ready, n: int, rng: Generator, explore: bool) -> Episodes:
        """n episodes that have not begun."""
        o, g = self.options, problem.g
        steps = o.visits * g
        rng = rng if explore else np.random.default_rng(o.order_seed)
        order = np.tile(ready.topological, (n, o.visits))
        if o.order == "random":
            for i in range(n):
                own = np.random.default_rng([o.order_seed, int(rng.integers(o.orders))]) if o.orders else rng
                order[i] = np.concatenate([own.permutation(g) for _ in range(o.visits)])
        start = np.tile(ready.start, (n, 1))
        if o.start == "random":
            start[:] = np.where(problem.allowed, rng.random((n, *problem.allowed.shape)), -1.0).argmax(axis=2)
        draw = rng.random((n, steps)) if explore else np.zeros((n, steps))
        device, log_p = np.zeros((n, steps), np.int16), np.zeros((n, steps, ready.groups.allowed.shape[1]), np.float32)
        return Episodes(start, order, draw, device, log_p)


def _again(rollouts: Rollouts) -> Episodes:
    """The episodes of rollouts."""
    assert rollouts.start is not None
    return Episodes(
        np.ascontiguousarray(rollouts.start.device, np.int16),
        np.ascontiguousarray(rollouts.group, np.int32),
        np.zeros(rollouts.group.shape),
        np.ascontiguousarray(rollouts.device, np.int16),
        np.ascontiguousarray(rollouts.extra["log_p"], np.float32),
    )
