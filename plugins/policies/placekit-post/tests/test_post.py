"""Policy `post`: Algorithm 1, known optima, schedules, memory, resuming, presets."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from placekit_post import distribution as dist
from placekit_post.post import STABLE_BETA, Learner, Post
from placekit_testing import fakes
from placekit_testing.observed import rows
from pydantic import ValidationError

from placekit_core import Ledger, Placement, Placements, Problem, Task

UPDATES = ["post", "ppo", "policy_gradient", "cross_entropy"]


def place(problem: Problem, budget: int, seed: int = 0, **options: Any) -> tuple[Placement, Task]:
    task = fakes.fake_task(problem, budget)
    return Post(**options).place(task, np.random.default_rng(seed)), task


def learner_of(problem: Problem, budget: int | Ledger = 2400, **options: Any) -> Learner:
    return Learner(problem, fakes.fake_task(problem, budget).evaluate, Post(**options).options)


@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("seed", range(3))
def test_finds_the_optimum(update: str, seed: int) -> None:
    problem = fakes.unequal(8, devices=3)  # 6,561 placements
    placement, task = place(problem, 2400, seed, update=update)
    assert placement.device.tolist() == fakes.session_of(task).optimum().tolist()


@pytest.mark.parametrize(("update", "budget", "off"), [("post", 2400, 0.01), ("cross_entropy", 2400, 0.01),
                                                       ("ppo", 2400, 0.1), ("policy_gradient", 12_000, 0.25)])  # fmt: skip
def test_distribution_moves_to_the_optimum(update: str, budget: int, off: float) -> None:
    """Of 3 ** 20 placements: samples at the end are near the optimum, which at first they are 67% above."""
    _, task = place(fakes.unequal(20, devices=3), budget, update=update)
    mean = np.mean([row[3] for row in task.evaluate.history[-8:]])
    assert mean <= (1 + off) * fakes.session_of(task).lower_bound()


def test_updates_alternate_as_in_algorithm_1(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[tuple[int, str]] = []
    for name in ("ascend", "minimise_cross_entropy"):
        method = getattr(Learner, name)

        def spy(self: Learner, *a: Any, name: str = name, method: Any = method) -> None:
            called.append((self.count, name))
            method(self, *a)

        monkeypatch.setattr(Learner, name, spy)
    place(fakes.unequal(12), 120)
    assert [n for n, _ in called] == [12 * i for i in range(1, 11)]
    assert [n for n, name in called if name == "minimise_cross_entropy"] == [60, 120]


def test_cross_entropy_fits_the_best_of_the_window() -> None:
    learner, rng = learner_of(fakes.unequal(12), epsilon=0.0, update="cross_entropy"), np.random.default_rng(0)
    for _ in range(9):
        learner.step(12, rng)
    before = learner.u
    learner.step(12, rng)
    assert len(learner.device) == 60, "the window moves"
    best = learner.device[np.argsort(learner.value_s, kind="stable")[:6]]
    assert learner.u is not before
    np.testing.assert_allclose(dist.probabilities(learner.u), dist.frequencies(best, 3))


def test_exploration_falls_linearly_over_the_budget() -> None:
    learner, rng = learner_of(fakes.independent(4), budget=240, update="cross_entropy"), np.random.default_rng(0)
    least = []
    for batch in range(1, 21):
        learner.step(12, rng)
        if batch % 5 == 0:
            learner.device[:], learner.count = 0, 12 * batch
            learner.minimise_cross_entropy()
            least.append(dist.probabilities(learner.u)[:, 1])
    np.testing.assert_allclose(np.array(least).T, np.tile([0.0375, 0.025, 0.0125, 0.0], (4, 1)), atol=1e-15)


def test_beta_adapts_and_stays_stable() -> None:
    problem, rng = fakes.unequal(12), np.random.default_rng(0)
    gentle, violent = (learner_of(problem, update="ppo", reward_scale=scale) for scale in (1e6, 1e-3))
    for learner in (gentle, violent):
        learner.step(12, rng)
    assert gentle.beta == 0.5
    assert violent.beta == 2.0
    for _ in range(20):
        gentle.step(12, rng)
        violent.ascend(dist.sample(dist.probabilities(violent.u), 12, rng), 1e3 * rng.standard_normal(12))
        assert violent.beta <= STABLE_BETA
        assert np.isfinite(violent.u).all()
    assert gentle.beta == 1e-3


def test_advantages_are_to_the_mean_of_all_in_units_of_the_first() -> None:
    learner, rng = learner_of(fakes.unequal(12), update="cross_entropy"), np.random.default_rng(0)
    for _ in range(3):
        learner.step(12, rng)
    value, device = learner.value_s, learner.device[-12:]
    measured = fakes.session_of(Task(learner.problem, learner.evaluate)).evaluate(Placements.of(device))
    expected = (value.mean() - value[-12:]) / value[:12].mean()
    np.testing.assert_allclose(learner.advantages(measured), expected)
    assert learner_of(fakes.unequal(12), reward_scale=5.0).options.reward_scale == 5.0


def test_what_does_not_fit_counts_as_twice_the_first_mean() -> None:
    learner, rng = learner_of(fakes.tight(), update="ppo"), np.random.default_rng(0)
    while not 0 < learner.fits < learner.count:
        learner.step(12, rng)
    device = np.array([[0, 0, 1, 1, 2, 2], [0, 0, 0, 0, 0, 0]], np.int16)
    measured = learner.evaluate(Placements.of(device))
    fits, fails = learner.advantages(measured)
    assert measured.fits.tolist() == [True, False]
    assert fits - fails == pytest.approx(1.0), "all that fits takes the same time here"
    other = learner_of(fakes.tight(), failing_s=100.0)
    other.restore(learner.state())
    fits, fails = other.advantages(measured)
    assert fits - fails == pytest.approx((100.0 - learner.scale) / learner.scale)


@pytest.mark.parametrize("update", UPDATES)
def test_learns_what_fits(update: str) -> None:
    """12% of all placements fit; at the end almost all that are drawn do."""
    _, task = place(fakes.tight(), 2400, update=update)
    assert task.evaluate.best is not None
    failing = task.evaluate.failing_signal_s
    mean = np.mean([row[3] for row in task.evaluate.history[-8:]])
    share = (mean - task.evaluate.best.value_s) / (failing - task.evaluate.best.value_s)
    assert share < 0.25


def test_finds_what_fits_where_nothing_drawn_at_first_does() -> None:
    """Eighty operations of 30 bytes, and room for just twenty on each of four GPUs."""
    problem = Problem.of(fakes.independent_graph(80, persistent_bytes=30), fakes.gpus(4, memory_bytes=20 * 30))
    _, task = place(problem, 2400, update="cross_entropy")
    assert np.isnan(task.evaluate.history[0][4])
    assert task.evaluate.best is not None


@pytest.mark.parametrize("update", UPDATES)
def test_nothing_happens_where_nothing_fits(update: str) -> None:
    learner, rng = learner_of(fakes.tight(), update=update), np.random.default_rng(0)
    learner.evaluate.session.failing = 1.0  # type: ignore[attr-defined]
    for _ in range(4):
        learner.step(12, rng)
    assert (learner.u == 0).all()


@pytest.mark.parametrize("update", UPDATES)
def test_masked_devices_are_never_used(update: str) -> None:
    problem = fakes.mixed()
    learner, rng = learner_of(problem, update=update), np.random.default_rng(0)
    for _ in range(30):
        learner.step(12, rng)
        p = dist.probabilities(learner.u)
        assert (p[~problem.allowed] == 0).all()
        np.testing.assert_allclose(p.sum(axis=1), 1.0)


@pytest.mark.parametrize("update", UPDATES)
def test_resumes_exactly(update: str) -> None:
    problem, saved = fakes.unequal(12), []
    task, rng = fakes.fake_task(problem, 200), np.random.default_rng(3)

    def checkpoint(state: Any) -> None:
        saved.append(copy.deepcopy((dict(state), rng.bit_generator.state, task.evaluate.state())))

    whole = Post(update=update).place(task, rng, None, checkpoint)
    assert len(saved) == 17, "one after each batch"
    for state, generator, evaluator in saved[::4]:
        again, other = fakes.fake_task(problem, 200), np.random.default_rng(0)
        other.bit_generator.state = generator
        again.evaluate.restore(evaluator)
        resumed = Post(update=update).place(again, other, state)
        assert resumed.same_as(whole)
        assert rows(again) == rows(task)


def with_proxy(problem: Problem, budget: int, proxy_evaluations: int) -> Task:
    """A task whose proxy is another evaluator of the same backend, with a budget of its own."""
    task = fakes.fake_task(problem, budget)
    proxy = fakes.fake_task(problem, proxy_evaluations).evaluate
    return replace(task, open_proxy=lambda: proxy, proxy_evaluations=proxy_evaluations)


def test_learns_on_the_proxy_first() -> None:
    """What it learned there is there from the first batch on; the proxy's best is measured first of all."""
    problem = fakes.unequal(20, devices=3)
    task = with_proxy(problem, 60, 2400)
    Post().place(task, np.random.default_rng(0))
    assert task.proxy.evaluations == 2400
    assert task.evaluate.evaluations == 60
    assert task.proxy.best is not None
    assert task.evaluate.history[0][2] == task.proxy.best.value_s
    alone = fakes.fake_task(problem, 60)
    Post().place(alone, np.random.default_rng(0))
    assert task.evaluate.history[1][3] < 0.9 * alone.evaluate.history[0][3], "the mean of the first batch"
    idle = replace(task, evaluate=fakes.fake_task(problem, 60).evaluate, proxy_evaluations=None)
    Post().place(idle, np.random.default_rng(0))
    assert rows(idle) == rows(alone), "without a budget the proxy is not used"


@pytest.mark.parametrize("after", [3, 11])
def test_resumes_before_and_after_the_proxy(after: int) -> None:
    problem, saved = fakes.unequal(12), []
    task, rng = with_proxy(problem, 60, 96), np.random.default_rng(3)

    def checkpoint(state: Any) -> None:
        evaluators = task.evaluate.state(), task.proxy.state()
        saved.append(copy.deepcopy((dict(state), rng.bit_generator.state, *evaluators)))

    whole = Post().place(task, rng, None, checkpoint)
    assert len(saved) == 8 + 5
    again, other = with_proxy(problem, 60, 96), np.random.default_rng(0)
    state, other.bit_generator.state, evaluator, proxy = saved[after]
    again.evaluate.restore(evaluator)
    again.proxy.restore(proxy)
    assert Post().place(again, other, state).same_as(whole)
    assert rows(again) == rows(task)


def test_seeds_differ() -> None:
    first, second = (place(fakes.unequal(12), 60, seed)[1] for seed in (0, 1))
    assert rows(first) != rows(second)


def test_window_is_whole_batches() -> None:
    with pytest.raises(ValidationError, match="window=50 is not a multiple of batch=12"):
        Post(window=50)


@pytest.mark.parametrize(("preset", "update"), [("post_policy_gradient", "policy_gradient"), ("post_ppo_only", "ppo"),
                                                ("post_cross_entropy", "cross_entropy")])  # fmt: skip
def test_presets_are_ablations(preset: str, update: str) -> None:
    from placekit_core import installed
    from placekit_core.cli.compose import compose

    node = compose([f"+policy={preset}"], installed())["policy"]
    assert node == {"name": "post", "update": update}
