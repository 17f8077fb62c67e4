"""Trainer `stepwise`: which placements it evaluates, and the advantages of each step."""

from __future__ import annotations

import numpy as np
import pytest
from placekit_placeto import StepwiseOptions
from placekit_placeto.stepwise import StepAdvantages, Stepwise, visited_placements
from placekit_testing import fakes

from placekit_core import Measurements, PlacekitError, Placements, Rollouts


def rollouts(start: list[list[int]], group: list[list[int]], device: list[list[int]]) -> Rollouts:
    """Episodes with these decisions."""
    end = np.array(start, np.int16)
    for i, (groups, devices) in enumerate(zip(group, device, strict=True)):
        for v, d in zip(groups, devices, strict=True):
            if v >= 0:
                end[i, v] = d
    shape = np.shape(group)
    return Rollouts(
        Placements.of(end), np.array(group, np.int32), np.array(device, np.int16), np.zeros(shape), np.zeros(shape),
        start=Placements.of(np.array(start, np.int16)),
    )  # fmt: skip


def measured(value_s: list[float], peak: float = 0.0) -> Measurements:
    n = len(value_s)
    values = np.array(value_s)
    return Measurements(values, np.full((n, 2), peak), np.isfinite(values) & (peak == 0), (None,) * n)


def test_placements_that_do_not_change_are_passed_once() -> None:
    r = rollouts([[0, 0], [1, 0]], [[0, 1], [1, 0]], [[1, 0], [0, 1]])
    device, row = visited_placements(r)
    assert device.tolist() == [[0, 0], [1, 0], [1, 0]]
    assert row.tolist() == [[0, 1, 1], [2, 2, 2]]
    assert np.array_equal(device[row[:, -1]], r.placements.device)


def test_shorter_episodes_end_before() -> None:
    device, row = visited_placements(rollouts([[0, 0]], [[1, -1]], [[1, 0]]))
    assert (device.tolist(), row.tolist()) == ([[0, 0], [0, 1]], [[0, 1, 1]])


def options(**values: object) -> StepwiseOptions:
    return StepwiseOptions(normalise=False, reward="linear", **values)


def test_returns_are_what_is_gained_from_a_step_on() -> None:
    """Makespans 8, 5, 6 and 8, 8, 2: the returns are 3 - 1, -1 and 0 + 6, 6; their means 4 and 2.5."""
    reward = np.array([[3.0, -1.0], [0.0, 6.0]])
    active = np.ones((2, 2), np.bool_)
    assert StepAdvantages(options(), 100.0).advantages(reward, active).tolist() == [[-1.0, -1.75], [1.0, 1.75]]
    discounted = StepAdvantages(options(discount=0.5), 100.0).advantages(reward, active)  # 3 - 0.5 and 0 + 3
    assert discounted.tolist() == [[-0.125, -1.75], [0.125, 1.75]]
    assert reward.tolist() == [[3.0, -1.0], [0.0, 6.0]]


def test_the_baseline_is_the_mean_over_the_window() -> None:
    found = StepAdvantages(options(window=2), 100.0)
    active = np.ones((1, 1), np.bool_)
    gains = [found.advantages(np.array([[x]]), active)[0, 0] for x in (2.0, 6.0, 10.0)]
    assert gains == [0.0, 2.0, 2.0]
    again = StepAdvantages(options(window=2), 100.0)
    again.restore(found.state())
    assert again.advantages(np.array([[4.0]]), active)[0, 0] == -3.0


def test_memory_costs_by_the_excess() -> None:
    problem = fakes.diamond()
    over = float(problem.cluster.memory_bytes.max()) + 3 * 2.0**30
    found = StepAdvantages(options(memory_penalty=0.5), 100.0)
    assert found.of(measured([2.0, 4.0], over), problem).tolist() == [-2.0 - 0.5 * 3 * 3, -4.0 - 0.5 * 3 * 3]
    assert found.of(measured([2.0, np.nan]), problem).tolist() == [-2.0, -8.0]  # twice the slowest


def test_rewards_are_steps_of_the_worth_or_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[list[list[float]]] = []
    monkeypatch.setattr(
        StepAdvantages, "advantages", lambda self, reward, active: found.append(reward.tolist()) or reward
    )
    monkeypatch.setattr(StepAdvantages, "of", lambda self, m, problem: -m.value_s)
    task = fakes.fake_task(fakes.chain(1), 100)
    r = rollouts([[0, 0]], [[0, 1]], [[1, 1]])
    values = [task.evaluate(Placements.of(np.array([x], np.int16))).value_s[0] for x in ([0, 0], [1, 0], [1, 1])]
    for rewards in ("intermediate", "terminal"):
        trainer = Stepwise(rewards=rewards)
        trainer.weights(task, trainer.reward_function(task), r)
    assert found == [[[values[0] - values[1], values[1] - values[2]]], [[0.0, -values[2]]]]


@pytest.mark.parametrize(("rewards", "count"), [("intermediate", 3), ("terminal", 2)])
def test_what_is_evaluated(rewards: str, count: int) -> None:
    problem = fakes.chain(1)
    task = fakes.fake_task(problem, 100)
    r = rollouts([[0, 0], [1, 0]], [[0, 1], [1, 0]], [[1, 0], [0, 1]])
    assert problem.g == 2
    trainer = Stepwise(rewards=rewards)
    weight = trainer.weights(task, trainer.reward_function(task), r)
    assert task.evaluate.evaluations == count
    assert weight.shape == (2, 2)


def test_other_policies_are_refused() -> None:
    task = fakes.fake_task(fakes.diamond(), 10)
    one = fakes.diamond().g
    r = Rollouts(
        Placements.of(np.zeros((1, one), np.int16)), np.zeros((1, 1), np.int32), np.zeros((1, 1), np.int16),
        np.zeros((1, 1)), np.zeros((1, 1)),
    )  # fmt: skip
    with pytest.raises(PlacekitError, match=r"(?s)step by step.*policy=placeto"):
        Stepwise().weights(task, Stepwise().reward_function(task), r)
