"""Policy `doppler`: which operation comes next, and where it goes (Yao et al. 2026, sections 5.1 to 5.3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from placekit_learn.spread import CHUNKS, Threads
from placekit_learn.torch_policy import TorchOptions, TorchParameters
from placekit_scheduling import b_level, group_priority
from torch import Tensor, nn

from placekit_core import (
    ExploresNear,
    PlacekitError,
    Placement,
    Placements,
    Problem,
    RecomputesLogProb,
    Rollouts,
    Teaches,
)
from placekit_doppler import DopplerOptions, plain
from placekit_doppler.arrays import GREEDY, NEAR_BEST, SAMPLE, WEIGHTS, Episode, Follow, Gradient, OutputArrays
from placekit_doppler.episodes import climb_all, decided_all, run_all
from placekit_doppler.network import Dual
from placekit_doppler.prepared import Prepared

PACE = 100.0  # the mean and log standard deviation of the drawn weights are saved as this part of themselves
LOG_STD = 5.0  # largest absolute logarithm of the factor on their standard deviation
_HELD = 64  # prepared problems that a policy keeps, since the problems of a family take turns


class Doppler(TorchParameters, RecomputesLogProb, Teaches, ExploresNear):
    """The dual policy: SEL selects one of the operations whose inputs are placed, PLC places it, until all are placed.

    The features of devices when an operation is placed (appendix D.2) come from the list scheduler of `placekit_scheduling`,
    which knows the links and the memory: a device without room is not offered. An operation goes to its group's device if the
    group has one already. The order of selection becomes the priorities. With probability `explore`, a decision is drawn,
    uniformly (`exploration=greedy`, as in the paper) or by the network's probabilities (`sample`); otherwise it is the
    likeliest.

    With `noise`, an exploring episode draws linear weights and adds the features so weighted to the networks' outputs for all
    its operations and devices. The episode then deviates in one direction, while decisions drawn one by one cancel out. The
    mean and the standard deviation of these weights are learned by `learn_weights`; they have no gradient.
    """

    name = "doppler"
    options_class: ClassVar[type[TorchOptions]] = DopplerOptions
    options: DopplerOptions
    free_options = (*TorchParameters.free_options, "engine", "episode_threads", "exploration")

    def __init__(self, options: Any = None, **values: Any) -> None:
        super().__init__(options, **values)
        self._ready: dict[str, Prepared] = {}
        self._threads = Threads(self.options.episode_threads, "placekit-doppler")
        self._last_outputs: tuple[Prepared, tuple[Tensor, ...]] | None = None

    def network(self, problems: Sequence[Problem]) -> nn.Module:
        o = self.options
        return Dual(o.size, o.hidden, o.rounds, o.noise > 0, o.message_passing == "per_step")

    @property
    def plain(self) -> bool:
        """Whether `plain.py` runs the episodes: it alone can pass messages for every decision."""
        return self.options.engine == "plain" or self.options.message_passing == "per_step"

    @property
    def dual(self) -> Dual:
        """The networks."""
        assert isinstance(self.module, Dual)
        return self.module

    def build(self, problems: Sequence[Problem], rng: Generator) -> None:
        super().build(problems, rng)
        self._compile(problems[0])
        self._last_outputs = None

    def _compile(self, problem: Problem) -> None:
        """Compile all loops by running an episode that is thrown away: no budget's clock runs while a policy is built."""
        r = self.rollout(problem, 1, np.random.default_rng(0))
        self.gradients(problem, r, np.ones(r.log_prob.shape))
        self.log_prob(problem, r)

    def apply(self, steps: Mapping[str, NDArray[Any]]) -> None:
        super().apply(steps)
        self._last_outputs = None

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        super().load_state_dict(state)
        self._last_outputs = None

    def prepared(self, problem: Problem) -> Prepared:
        """The inputs of the problem's episodes, prepared once and kept."""
        found = self._ready.get(problem.fingerprint)
        if found is None:
            while len(self._ready) >= _HELD:
                del self._ready[next(iter(self._ready))]
            found = self._ready[problem.fingerprint] = Prepared.of(problem, self.options, self._threads.count)
        return found

    def rollout(self, problem: Problem, n: int, rng: Generator, explore: float = 0.0) -> Rollouts:
        how = SAMPLE if self.options.exploration == "sample" else GREEDY
        return self._run(problem, n, rng, explore, how)

    def rollout_near(self, problem: Problem, placement: Placement, n: int, rng: Generator, explore: float) -> Rollouts:
        """SEL and PLC each decide with probability `explore`, by their probabilities; otherwise the placement decides.

        Its order is that of its priorities or, if it has none, of the b-levels. Where the critical path decides in place of
        SEL or PLC, the placement breaks ties.
        """
        group_of = problem.grouping.group_of
        value = b_level(problem) if placement.priority is None else placement.priority[group_of]
        rank = np.empty(problem.graph.n, np.int64)
        rank[np.argsort(-value, kind="stable")] = np.arange(problem.graph.n)
        return self._run(problem, n, rng, explore, NEAR_BEST, Follow(rank, placement.device[group_of].astype(np.int64)))

    def teach(self, problem: Problem, n: int, rng: Generator, explore: float = 0.0) -> Rollouts:
        """Own episodes, labeled with the decisions of the critical path in their states.

        The critical path selects an operation of the highest b-level, and places the operation that the policy selected
        where it starts soonest; it breaks ties at random.
        """
        how = SAMPLE if self.options.exploration == "sample" else GREEDY
        return self._run(problem, n, rng, explore, how, teach=True)

    def _run(
        self,
        problem: Problem,
        n: int,
        rng: Generator,
        explore: float,
        how: int,
        follow: Follow | None = None,
        teach: bool = False,
    ) -> Rollouts:
        ready = self.prepared(problem)
        e = ready.episodes(n)
        seed = rng.integers(2**64 - 1, size=n, dtype=np.uint64)
        e.noisy[:] = self.options.noise > 0 and explore > 0 and not teach
        e.weights[:] = self._weights(n, rng, bool(e.noisy.any()))
        nobody = np.zeros(problem.graph.n, np.int64)
        other = follow or Follow(nobody, nobody)
        if self.plain:
            with self.fixed_threads(), torch.no_grad():
                plain.run(self.dual, ready, e, seed, explore, how, other, teach)
            return self._rollouts(ready, e)
        outputs = self.output_arrays(ready, self._network_outputs(ready))

        def part(thread: int, first: int, last: int) -> None:
            state, work = ready.states[thread], ready.works[thread]
            run_all(
                ready.fixed, state, ready.fresh, ready.setting, outputs, work, e, seed, explore, how, other, teach, first,
                last,
            )  # fmt: skip

        self._threads.spread(n, part)
        return self._rollouts(ready, e)

    def _weights(self, n: int, rng: Generator, drawn: bool) -> NDArray[np.float64]:
        """[n, WEIGHTS] linear weights of episodes: drawn, or their mean."""
        if not self.options.noise:
            return np.zeros((n, WEIGHTS))
        mean, std = self._normal()
        return mean + std * rng.standard_normal((n, WEIGHTS)) if drawn else np.tile(mean, (n, 1))

    def _normal(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """[WEIGHTS] mean and standard deviation of the weights."""
        module: Any = self.module
        mean, log_std = (
            PACE * x.detach().numpy().astype(np.float64) for x in (module.weights_mean, module.weights_log_std)
        )
        return mean, self.options.noise * np.exp(np.clip(log_std, -LOG_STD, LOG_STD))

    def learn_weights(self, rollouts: Rollouts, advantage: NDArray[np.float64], counted: NDArray[np.bool_]) -> None:
        """Move the distribution of the drawn weights towards the weights of the better half of the episodes.

        Only episodes that are `counted` [n] take part. This is a step of the separable natural evolution strategy (Schaul et
        al. 2011; rates and utilities as in Wierstra et al. 2014). Only the order of the [n] advantages matters, not their
        sizes. The standard deviations set the length of the step, so there is no learning rate.
        """
        e = Episode(**rollouts.extra)
        if not (e.noisy.all() and counted.any()):
            return
        mean, std = self._normal()
        z, worth = (e.weights[counted] - mean) / std, utilities(advantage[counted])
        rate = (3 + np.log(WEIGHTS)) / (5 * WEIGHTS**0.5)
        steps = {"weights_mean": std * (worth @ z), "weights_log_std": rate / 2 * (worth @ (z**2 - 1))}
        super().apply({name: (step / PACE).astype(np.float32) for name, step in steps.items()})

    def _rollouts(self, ready: Prepared, e: Episode) -> Rollouts:
        problem, free = ready.problem, ready.free
        n, steps = e.op.shape
        group_of = problem.grouping.group_of
        device = e.group_device.astype(np.int16)
        order = np.zeros((n, problem.graph.n))
        np.put_along_axis(order, e.op, np.broadcast_to(np.arange(steps, 0, -1.0), e.op.shape), axis=1)
        priority = np.array([group_priority(problem, row) for row in order], np.float32)
        wide = (n, len(free))
        return Rollouts(
            placements=Placements.of(device, priority),
            group=np.hstack([group_of[e.op], np.broadcast_to(free, wide)]).astype(np.int32),
            device=np.hstack([e.device, device[:, free]]).astype(np.int16),
            log_prob=np.hstack([e.log_prob, np.zeros(wide)]),
            entropy=np.hstack([e.entropy, np.zeros(wide)]),
            extra=e._asdict(),
        )

    def gradients(
        self,
        problem: Problem,
        rollouts: Rollouts,
        weight: NDArray[np.float64],
        entropy_weight: float = 0.0,
        kl_weight: float = 0.0,
    ) -> dict[str, NDArray[Any]]:
        if kl_weight:
            raise PlacekitError(f"policy {self.name!r} reports no KL divergence", "leave out trainer.kl_target")
        return self._climb(problem, rollouts, weight, entropy_weight)[1]

    def imitate(self, problem: Problem, teacher: Rollouts, rng: Generator) -> tuple[float, dict[str, NDArray[Any]]]:
        b, steps = teacher.extra["op"].shape
        weight = np.full((b, steps), 1.0 / max(b * steps, 1))
        worth, gradient = self._climb(problem, teacher, weight, 0.0)
        return -worth, gradient

    def _climb(
        self, problem: Problem, rollouts: Rollouts, weight: NDArray[np.float64], entropy_weight: float
    ) -> tuple[float, dict[str, NDArray[Any]]]:
        ready, e = self.prepared(problem), Episode(**rollouts.extra)
        steps = e.op.shape[1]
        weight = np.ascontiguousarray(weight[:, :steps], np.float64)
        with self.fixed_threads():
            climbed = plain.gradients if self.plain else self._climbed
            worth, gradient = climbed(self.dual, ready, e, weight, entropy_weight)
        return worth, gradient

    def _climbed(
        self, _: Dual, ready: Prepared, e: Episode, weight: NDArray[np.float64], entropy_weight: float
    ) -> tuple[float, dict[str, NDArray[Any]]]:
        """sum(weight * log_prob), and the gradient by the compiled loops."""
        n = len(e.op)
        tensors = self._network_outputs(ready)
        outputs = self.output_arrays(ready, tensors)
        bounds = np.linspace(0, n, CHUNKS + 1).astype(int)
        found = [Gradient.zeros(ready.problem.graph.n, self.options.hidden) for _ in range(CHUNKS)]
        worth = np.zeros(CHUNKS)

        def part(thread: int, first: int, last: int) -> None:
            for c in range(first, last):
                worth[c] = climb_all(
                    ready.fixed, ready.fresh, ready.setting, outputs, ready.works[thread], e, found[c], weight,
                    entropy_weight, bounds[c], bounds[c + 1],
                )  # fmt: skip

        self._threads.spread(CHUNKS, part)
        total = Gradient(*(np.sum(np.stack(x), axis=0) for x in zip(*found, strict=True)))
        self._last_outputs = None  # autograd has freed its graph
        return float(worth.sum()), self._through(ready, tensors, total)

    def _through(self, ready: Prepared, tensors: tuple[Tensor, ...], g: Gradient) -> dict[str, NDArray[Any]]:
        """The gradient with respect to the parameters, from that with respect to the networks' outputs."""
        module: Any = self.module
        names, parameters = zip(*module.named_parameters(), strict=True)
        rows = ready.features.op
        given = [torch.from_numpy(np.ascontiguousarray(x[rows], np.float32)) for x in (g.score, g.own, g.sent)]
        found = torch.autograd.grad(tensors, parameters, given, allow_unused=True, materialize_grads=True)
        gradient = {name: x.numpy() for name, x in zip(names, found, strict=True)}
        gradient["plc_device.weight"] = g.device.T.astype(np.float32)
        gradient["plc_out.weight"] = g.out[None, :].astype(np.float32)
        gradient["plc_out.bias"] = g.bias.astype(np.float32)
        return gradient

    def _network_outputs(self, ready: Prepared) -> tuple[Tensor, ...]:
        """`score`, `own` and `sent` of `OutputArrays`, [k, ...], with autograd; computed once for the same parameters."""
        if self._last_outputs is None or self._last_outputs[0] is not ready:
            with self.fixed_threads(), torch.enable_grad():
                score, own, h = self.dual(ready.inputs)
                self._last_outputs = ready, (score, self.dual.plc_own(own), self.dual.plc_sent(h))
        return self._last_outputs[1]

    def output_arrays(self, ready: Prepared, tensors: tuple[Tensor, ...]) -> OutputArrays:
        """The networks' outputs, for the compiled loops."""
        n, rows, module = ready.problem.graph.n, ready.features.op, self.module

        def spread_out(x: Tensor) -> NDArray[np.float32]:
            whole = np.zeros((n, *x.shape[1:]), np.float32)
            whole[rows] = x.detach().numpy()
            return whole

        def weights(x: Any) -> NDArray[np.float32]:
            return np.array(x.detach().numpy(), np.float32, order="C")

        out: Any = module.plc_out
        device: Any = module.plc_device
        score, own, sent = (spread_out(x) for x in tensors)
        return OutputArrays(score, own, sent, weights(device.weight.T), weights(out.weight[0]), weights(out.bias))

    def log_prob(self, problem: Problem, rollouts: Rollouts) -> NDArray[np.float64]:
        ready, e = self.prepared(problem), Episode(**rollouts.extra)
        n, steps = e.op.shape
        found = np.zeros(rollouts.log_prob.shape)
        if self.plain:
            with self.fixed_threads(), torch.no_grad():
                found[:, :steps] = plain.log_probs(self.dual, ready, e)
            return found
        outputs = self.output_arrays(ready, self._network_outputs(ready))
        steps_only = np.zeros((n, steps))

        def part(thread: int, first: int, last: int) -> None:
            decided_all(
                ready.fixed, ready.fresh, ready.setting, outputs, ready.works[thread], e, steps_only, first, last
            )

        self._threads.spread(n, part)
        found[:, :steps] = steps_only
        return found


def utilities(advantage: NDArray[np.float64]) -> NDArray[np.float64]:
    """[n] utilities of episodes by the ranks of their advantages, with sum 0; episodes with equal advantages share theirs."""
    n = len(advantage)
    of_rank = np.maximum(np.log(n / 2 + 1) - np.log(np.arange(1, n + 1)), 0)
    _, value, count = np.unique(-advantage, return_inverse=True, return_counts=True)
    mean = np.bincount(value[np.argsort(-advantage)], of_rank) / count
    return np.asarray(mean[value] / of_rank.sum() - 1 / n)
