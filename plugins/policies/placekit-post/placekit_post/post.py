"""Policy `post`: Algorithm 1 of Gao et al. 2018."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from placekit_core import (
    Checkpoint,
    Evaluator,
    Measurements,
    Placement,
    Placements,
    Problem,
    ResumablePolicy,
    State,
    Task,
)
from placekit_post import PostOptions, distribution as dist

FAILING = 2.0
"""A placement that does not fit counts as this many times `Learner.scale`, or as the slowest that fits; see `_failing_s`."""
FIRST_BETA, TARGET_KL = 1.0, 0.03
"""First coefficient of PPO's KL penalty, and the KL divergence per group, in nats, that the coefficient adapts to."""
LEAST_BETA = 1e-3
STABLE_BETA = 2.0
"""Largest beta times learning rate; above it, ascent on the KL term (curvature up to beta / 2) overshoots its optimum."""


class Post(ResumablePolicy):
    """Post (Gao et al. 2018): an independent softmax distribution per group, and no network.

    Until the budget ends, it draws `batch` placements, evaluates them together, and improves the distribution: by some
    gradient ascent steps on the objective of PPO (Eq. 11) or, after every `window` placements, by cross-entropy minimization
    (Eq. 10) on the best of them. With `budget.proxy_evaluations`, where the run's backend is not the proxy, it first learns
    on the proxy, then goes on with the distribution mixed with `epsilon` of the uniform one.

    With a limit on evaluations, the same seed gives the same result to the last bit. A budget of seconds decides how far the
    policy gets and how fast its exploration ends. Placements have no priorities.
    """

    name = "post"
    options_class = PostOptions

    def place(
        self, task: Task, rng: Generator, state: State | None = None, checkpoint: Checkpoint | None = None
    ) -> Placement:
        """The best placement evaluated; if none fits, the most probable one. Resumes exactly from `state`."""
        learner, done = Learner(task.problem, task.evaluate, self.options), False
        if state is not None:
            learner.restore(state)
            done = bool(state["pretrained"])

        def learn() -> None:
            while (left := learner.evaluate.remaining) > 0:
                learner.step(int(min(self.options.batch, left)), rng)
                if checkpoint is not None:
                    checkpoint({**learner.state(), "pretrained": done})

        if task.pretraining is not None and not done:
            learner.evaluate = task.pretraining
            with task.evaluate.ledger.paused():  # the budget's seconds are for the run's backend
                learn()
            done = True
            learner.change_evaluator(task.evaluate)
            if (best := task.pretraining.best) is not None and task.evaluate.remaining > 0:
                task.evaluate(best.placement.batch())
        learn()
        best = task.evaluate.best
        return task.problem.placement(learner.u.argmax(axis=1)) if best is None else best.placement


class Learner:
    """The distribution over the placements of one problem, with the state that its updates need.

    Attributes:
        u: [g, D] parameters.
        beta: coefficient of the KL penalty in the next PPO update.
        scale: mean of the first batch's placements that fit, seconds; 0 until there are any.
        count, fits, total_s, slowest_s: placements evaluated, how many of them fit, and the sum and the maximum of the
            seconds of those that fit.
        device: [w, g] the last w <= `window` placements, with `value_s` [w] and `excess` [w] (bytes over memory).
    """

    def __init__(self, problem: Problem, evaluate: Evaluator, options: PostOptions) -> None:
        self.problem, self.options = problem, options
        self.u = dist.uniform(self.problem.allowed)
        self._begin(evaluate)

    def change_evaluator(self, evaluate: Evaluator) -> None:
        """Continue with another evaluator. Its seconds are not comparable, so only the distribution is kept."""
        self.u = dist.mixed(dist.probabilities(self.u), self.problem.allowed, self.options.epsilon)
        self._begin(evaluate)

    def _begin(self, evaluate: Evaluator) -> None:
        self.evaluate = evaluate
        self.beta, self.scale = FIRST_BETA, 0.0
        self.count, self.fits, self.total_s, self.slowest_s = 0, 0, 0.0, 0.0
        self.device = np.empty((0, self.problem.g), np.int16)
        self.value_s, self.excess = np.empty(0), np.empty(0)

    def state(self) -> dict[str, Any]:
        """The state that `restore` takes."""
        names = ("u", "beta", "scale", "count", "fits", "total_s", "slowest_s", "device", "value_s", "excess")
        return {name: getattr(self, name) for name in names}

    def restore(self, state: State) -> None:
        """Continue from a `state`."""
        self.u, self.beta, self.scale = np.array(state["u"]), float(state["beta"]), float(state["scale"])
        self.count, self.fits, self.total_s = int(state["count"]), int(state["fits"]), float(state["total_s"])
        self.slowest_s = float(state["slowest_s"])
        self.device = np.array(state["device"], np.int16)
        self.value_s, self.excess = np.array(state["value_s"]), np.array(state["excess"])

    def step(self, batch: int, rng: Generator) -> None:
        """Draw and evaluate `batch` placements, and improve the distribution (Algorithm 1, lines 3 to 13)."""
        o = self.options
        device = dist.sample(dist.probabilities(self.u), batch, rng)
        measured = self.evaluate(Placements.of(device))
        self._remember(device, measured)
        if o.update in ("post", "cross_entropy") and self.count % o.window == 0:
            self.minimise_cross_entropy()
        elif o.update != "cross_entropy" and self.scale > 0:  # until a placement fits, there is nothing to learn
            self.ascend(device, self.advantages(measured))

    def minimise_cross_entropy(self) -> None:
        """Set the distribution to that of the best placements of the window (Eq. 10), mixed with the uniform one.

        Placements that do not fit rank behind all that do, ordered by their excess.
        """
        o = self.options
        best = np.lexsort((self.value_s, self.excess))[: max(1, round(o.promising * o.window))]
        p = dist.cross_entropy(self.device[best], self.u.shape[1])
        self.u = dist.mixed(p, self.problem.allowed, o.epsilon * (1.0 - self.evaluate.progress))

    def ascend(self, device: NDArray[np.int16], advantage: NDArray[np.float64]) -> None:
        """A PPO update with the placements [K, g] just drawn, or one REINFORCE step."""
        o, old = self.options, dist.probabilities(self.u)
        weight = dist.importance(device, advantage, old)
        if o.update == "policy_gradient":
            self.u = dist.ascend(self.u, weight, 0.0, o.learning_rate, 1)
            return
        self.u = dist.ascend(self.u, weight, self.beta, o.learning_rate, o.steps)
        kl = float(dist.divergence(old, self.u).mean())
        self.evaluate.log(
            kl=kl, entropy=float(dist.entropy(old).mean()), loss=-dist.surrogate(self.u, old, weight, self.beta)
        )
        beta = dist.adapted(self.beta, kl, TARGET_KL)
        self.beta = min(max(beta, LEAST_BETA), STABLE_BETA / o.learning_rate)

    def advantages(self, measured: Measurements) -> NDArray[np.float64]:
        """[K] (b - T) / reward scale, with b the mean of all placements so far, these included."""
        failing_s = self._failing_s()
        baseline_s = (self.total_s + (self.count - self.fits) * failing_s) / self.count
        seconds = np.where(measured.fits, measured.value_s, failing_s)
        return np.asarray((baseline_s - seconds) / (self.options.reward_scale or self.scale))

    def _failing_s(self) -> float:
        """Seconds that a placement that does not fit counts as.

        The run's failing signal is much larger than other values, and would dominate the baseline and the advantages: the
        first placements that fit would be reinforced as strongly as the best ones.
        """
        limit = max(FAILING * self.scale, self.slowest_s)  # never better than a placement that fits
        return self.options.failing_s or min(self.evaluate.failing_signal_s, limit)

    def _remember(self, device: NDArray[np.int16], measured: Measurements) -> None:
        window, fits = self.options.window, measured.fits
        self.device = np.concatenate([self.device, device])[-window:]
        self.value_s = np.concatenate([self.value_s, np.where(fits, measured.value_s, np.inf)])[-window:]
        self.excess = np.concatenate([self.excess, self._excess(measured)])[-window:]
        self.count += len(device)
        self.fits += int(fits.sum())
        self.total_s += float(measured.value_s[fits].sum())
        self.slowest_s = max(self.slowest_s, float(measured.value_s[fits].max(initial=0.0)))
        if self.scale == 0.0 and fits.any():
            self.scale = float(measured.value_s[fits].mean())

    def _excess(self, measured: Measurements) -> NDArray[np.float64]:
        """[K] bytes over the devices' memories; 0 for a placement that fits, infinite for one that failed otherwise."""
        over = np.maximum(measured.peak_bytes - self.problem.cluster.memory_bytes, 0.0).sum(axis=1)
        return np.where(measured.fits, 0.0, np.where(over > 0, over, np.inf))
