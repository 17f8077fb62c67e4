"""The three stages: what each learns from and changes, and going on in the middle of one."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from placekit_doppler.doppler import Doppler
from placekit_doppler.three_stage import ThreeStage, list_schedules
from placekit_testing import fakes
from pydantic import ValidationError

from placekit_core import BudgetExhausted, ConfigError, Ledger, Placements, Problem, Task

SMALL = {"size": 8, "hidden": 8, "rounds": 2}
LATE: dict[str, Any] = {"list_schedules_first": False}  # whole updates fill the budget


def built(problem: Problem, **options: Any) -> Doppler:
    policy = Doppler(**SMALL, **options)
    policy.build([problem], np.random.default_rng(0))
    return policy


def stages(problem: Problem, budget: int, **options: Any) -> tuple[ThreeStage, Any]:
    policy, task = built(problem), fakes.fake_task(problem, budget)
    trainer = ThreeStage(**{**LATE, "samples": 8, "imitation_episodes": 40, **options})
    with pytest.raises(BudgetExhausted):
        trainer.fit(policy, [task], np.random.default_rng(0))
    return trainer, task


@dataclass
class Learned:
    """Parameters at each checkpoint, each after so many episodes of imitation, on the proxy, and measured."""

    parameters: list[bytes]
    episodes: list[tuple[int, int, int]]

    def changed(self, column: int) -> bool:
        """Whether parameters changed while episodes of that column were added."""
        pairs = zip(zip(self.parameters, self.parameters[1:]), zip(self.episodes, self.episodes[1:]))  # noqa: B905
        return any(a != b and i[column] != j[column] for (a, b), (i, j) in pairs)


def learned(which: list[int], proxy_evaluations: int | None = 48) -> Learned:
    """What the stages do to the parameters of a policy, on a backend that measures."""
    problem = fakes.unequal(12)
    proxy = fakes.fake_task(problem, 48).evaluate
    task = replace(
        fakes.fake_task(problem, 24), open_proxy=lambda: proxy, proxy_evaluations=proxy_evaluations, measures=True
    )
    policy = built(problem, noise=0)  # drawn weights solve it in stage II, and stage III has nothing to learn
    trainer = ThreeStage(**LATE, samples=8, imitation_episodes=16, stages=which)
    found = Learned([], [])

    def look(_: Any) -> None:
        found.parameters.append(b"".join(x.tobytes() for x in policy.state_dict().values()))
        found.episodes.append((trainer.imitated, proxy.evaluations, task.evaluate.evaluations))

    with pytest.raises(BudgetExhausted):
        trainer.fit(policy, [task], np.random.default_rng(0), checkpoint=look)
    return found


@pytest.mark.parametrize("which", [[1], [2], [1, 2], [3], [1, 3], [2, 3], [1, 2, 3]])
def test_parameters_change_in_the_stages_asked_for(which: list[int]) -> None:
    found = learned(which)
    assert [found.changed(stage) for stage in range(3)] == [stage + 1 in which for stage in range(3)]
    measured = 2 + 16 if 2 in which else 24  # at the last checkpoint: the best of stage II, the policy's, whole batches
    assert found.episodes[-1] == (16 * (1 in which), 48 * (2 in which), measured)


def test_a_simulated_run_has_two_stages() -> None:
    """All of its budget is for stage II, also where another simulator is the proxy."""
    problem = fakes.unequal(12)
    proxy = fakes.fake_task(problem, Ledger()).evaluate
    for other in (None, lambda: proxy):
        task = replace(fakes.fake_task(problem, 24), open_proxy=other)
        trainer = ThreeStage(**LATE, samples=8, imitation_episodes=16)
        with pytest.raises(BudgetExhausted):
            trainer.fit(built(problem), [task], np.random.default_rng(0))
        assert (trainer.imitated, trainer.updates, proxy.evaluations) == (16, 3, 0)
        assert not trainer.measured


def test_the_first_evaluations_are_list_schedules() -> None:
    """There is a result before anything is learned: a schedule by every rule, and every device alone."""
    problem = fakes.unequal(12)
    first = list_schedules(problem)
    value_s = fakes.fake_task(problem, 100).evaluate(first).value_s
    task = fakes.fake_task(problem, len(first) + 8)
    with pytest.raises(BudgetExhausted):
        ThreeStage(samples=8, imitation_episodes=4).fit(built(problem), [task], np.random.default_rng(0))
    evaluations, _, best_s = task.evaluate.history[0][:3]
    assert (evaluations, best_s) == (len(first), value_s.min())


def test_stage_one_takes_nothing_of_the_budget() -> None:
    """All of it may be kept for what is placed in the end; of seconds on one simulator it takes at most half."""
    problem = fakes.unequal(12)
    proxy, task = fakes.fake_task(problem, 48).evaluate, fakes.fake_task(problem, 2)
    task = replace(task, open_proxy=lambda: proxy, proxy_evaluations=48, measures=True)
    trainer = ThreeStage(**LATE, samples=8, imitation_episodes=16)
    with task.evaluate.ledger.reserved(2), pytest.raises(BudgetExhausted):
        trainer.fit(built(problem), [task], np.random.default_rng(0))
    assert (trainer.imitated, proxy.evaluations, task.evaluate.evaluations) == (16, 48, 0)


def test_stage_one_takes_at_most_half_of_the_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = fakes.unequal(12)
    task, trainer = fakes.fake_task(problem, 16), ThreeStage(**LATE, samples=8, imitation_episodes=200)
    used = property(lambda ledger: trainer.imitated / 100)
    monkeypatch.setattr(Ledger, "progress", used)
    with pytest.raises(BudgetExhausted):
        trainer.fit(built(problem), [task], np.random.default_rng(0))
    assert trainer.imitated == 52, "the first update of four beyond the half"


@pytest.mark.slow
def test_the_entropy_in_stage_one_keeps_decisions_open() -> None:
    """With almost no weight it is imitation alone; with a large one, the policy stays less sure than its teacher."""
    found = {}
    for weight in (0.0, 1e-9, 3.0):
        problem, rng = fakes.unequal(12), np.random.default_rng(1)
        policy, task = built(problem), fakes.fake_task(problem, 8)
        settings = {**LATE, "imitation_episodes": 400, "imitation_learning_rate": 0.02}
        trainer = ThreeStage(**settings, samples=8, stages=[1], imitation_entropy_weight=weight)
        with pytest.raises(BudgetExhausted):
            trainer.fit(policy, [task], np.random.default_rng(0))
        found[weight] = policy.rollout(problem, 8, rng, explore=0.0).entropy.mean()
    assert found[1e-9] == pytest.approx(found[0.0], rel=1e-3)
    assert found[3.0] > 1.2 * found[0.0], found


def test_slow_measurements_are_limited_in_stage_three_only() -> None:
    problem = fakes.unequal(12)
    for measures, limit in ((False, None), (True, 3.0)):
        proxy = fakes.fake_task(problem, 16).evaluate
        task = replace(fakes.fake_task(problem, 16), open_proxy=lambda proxy=proxy: proxy, measures=measures)  # type: ignore[misc]
        trainer = ThreeStage(**LATE, samples=8, imitation_episodes=8, simulated_episodes=16)
        with pytest.raises(BudgetExhausted):
            trainer.fit(built(problem), [task], np.random.default_rng(0))
        assert trainer.rewards[0].at_most == limit


def test_stage_three_begins_with_the_best_of_stage_two() -> None:
    problem = fakes.unequal(12)
    proxy, task = fakes.fake_task(problem, 48).evaluate, fakes.fake_task(problem, 24)
    seen: list[Placements] = []
    usual = task.evaluate.session.evaluate
    task.evaluate.session.evaluate = lambda placements: (seen.append(placements), usual(placements))[1]  # type: ignore[method-assign]
    task = replace(task, open_proxy=lambda: proxy, measures=True)
    trainer, policy, begun = (
        ThreeStage(**LATE, samples=8, imitation_episodes=16, simulated_episodes=48),
        built(problem),
        [],
    )

    def look(_: Any) -> None:
        if proxy.evaluations == 48 and not begun:
            begun.append(policy.rollout(problem, 1, np.random.default_rng(0)).placements)

    with pytest.raises(BudgetExhausted):
        trainer.fit(policy, [task], np.random.default_rng(0), checkpoint=look)
    best = proxy.best
    assert best is not None
    assert [len(x) for x in seen[:2]] == [1, 1]
    assert (seen[0].device[0] == best.placement.device).all()
    assert (seen[1].device == begun[0].device).all(), "what the policy places by then"
    nearest = min((np.concatenate([x.device for x in seen[2:]]) != x.device[0]).mean() for x in seen[:2])
    assert nearest < 0.3, "the rest is near one of them"


@pytest.mark.parametrize("at", [3, 4, 7, 10, 12])
def test_going_on_in_any_stage_is_exact(at: int) -> None:
    """Within and at the end of stage I, II and III: another trainer and policy end with the same parameters."""
    problem = fakes.unequal(12)

    def begin() -> tuple[Doppler, ThreeStage, Task]:
        proxy = fakes.fake_task(problem, 48).evaluate
        task = replace(fakes.fake_task(problem, 48), open_proxy=lambda: proxy, proxy_evaluations=48, measures=True)
        return built(problem), ThreeStage(**LATE, samples=8, imitation_episodes=16), task

    policy, trainer, task = begin()
    rng, kept = np.random.default_rng(0), dict[str, Any]()
    count = 0

    def keep(state: Any) -> None:
        nonlocal count
        count += 1
        if count == at:
            kept.update(
                state=deepcopy(state), parameters=policy.state_dict(), rng=deepcopy(rng.bit_generator.state),
                evaluate=deepcopy(task.evaluate.state()), proxy=deepcopy(task.proxy.state()),
            )  # fmt: skip

    with pytest.raises(BudgetExhausted):
        trainer.fit(policy, [task], rng, None, keep)
    assert count == 4 + 6 + 5, "updates of the stages; one evaluation of III is that of the best of II"
    again, other, begun = begin()
    again.load_state_dict(kept["parameters"])
    begun.evaluate.restore(kept["evaluate"])
    begun.proxy.restore(kept["proxy"])
    rng = np.random.default_rng(5)
    rng.bit_generator.state = kept["rng"]
    with pytest.raises(BudgetExhausted):
        other.fit(again, [begun], rng, kept["state"])
    assert all((again.state_dict()[k] == v).all() for k, v in policy.state_dict().items())
    without_seconds = [[(n, *values) for n, _, *values in x.evaluate.history] for x in (begun, task)]
    assert without_seconds[0] == without_seconds[1]


def test_the_end_of_a_stage_is_near_its_best_placement(monkeypatch: pytest.MonkeyPatch) -> None:
    near: list[float] = []
    usual = Doppler.rollout_near

    def counted(self: Doppler, problem: Problem, placement: Any, n: int, rng: Any, explore: float) -> Any:
        near.append(explore)
        return usual(self, problem, placement, n, rng, explore)

    monkeypatch.setattr(Doppler, "rollout_near", counted)
    stages(fakes.unequal(12), 80, near_best_from=0.5)
    np.testing.assert_allclose(near, np.linspace(0.05, 0.01, 6), err_msg="six of ten updates, one finds no budget left")
    near.clear()
    stages(fakes.unequal(12), 80, near_best_from=None)
    stages(fakes.unequal(12), 80, stages=[1])
    assert not near, "nor where nothing is learned"


def test_policies_without_episodes_near_a_placement_are_refused_at_once() -> None:
    task = fakes.fake_task(fakes.diamond(), 80)
    with pytest.raises(ConfigError, match="cannot explore near a placement"):
        ThreeStage(stages=[2]).fit(fakes.FakeLearnable(), [task], np.random.default_rng(0))
    task = replace(task, open_proxy=lambda: task.evaluate, measures=True)
    with pytest.raises(ConfigError, match="cannot explore near a placement"):
        ThreeStage(stages=[2, 3], near_best_from=None).fit(fakes.FakeLearnable(), [task], np.random.default_rng(0))
    assert task.evaluate.evaluations == 0


def test_policies_without_a_teacher_are_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="'fake_learnable' cannot teach itself"):
        ThreeStage().fit(fakes.FakeLearnable(), [fakes.fake_task(fakes.diamond())], np.random.default_rng(0))


def test_stage_three_needs_a_backend_that_measures() -> None:
    with pytest.raises(ConfigError, match="stage 3 learns from a backend that measures"):
        ThreeStage(stages=[1, 3]).fit(
            built(fakes.diamond()), [fakes.fake_task(fakes.diamond())], np.random.default_rng(0)
        )


def test_stage_two_has_episodes_of_its_own() -> None:
    problem = fakes.unequal(12)
    proxy = fakes.fake_task(problem, Ledger()).evaluate
    task = replace(fakes.fake_task(problem, 24), open_proxy=lambda: proxy, measures=True)
    with pytest.raises(BudgetExhausted):
        ThreeStage(**LATE, samples=8, imitation_episodes=8, simulated_episodes=40).fit(
            built(problem), [task], np.random.default_rng(0)
        )
    assert (proxy.evaluations, task.evaluate.evaluations) == (40, 24)
    assert proxy.ledger.limit is None


@pytest.mark.slow
def test_learning_finds_what_the_fake_rewards() -> None:
    """Of four independent operations on two devices two on each, by stage II alone: what is drawn gets better, too."""
    problem = fakes.unequal(8)
    _, task = stages(problem, 640, stages=[2], learning_rate=1e-2, near_best_from=None)
    best = task.evaluate.best
    assert best is not None
    means = [row[3] for row in task.evaluate.history]
    assert np.mean(means[-10:]) < 0.5 * (np.mean(means[:5]) + best.value_s), "half of the way"


@pytest.mark.parametrize("stages", [[2, 1], [1, 1], [3, 2, 1]])
def test_stages_come_in_their_order(stages: list[int]) -> None:
    with pytest.raises(ValidationError, match="stages come in their order, each once"):
        ThreeStage(stages=stages)
