"""The policy `gdp`: that it learns, and that a trained one places other graphs and uses what is allowed."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
import torch
from placekit_gdp.gdp import GDP
from placekit_learn.ppo import PPO
from placekit_testing import fakes

from placekit_core import BudgetExhausted, Ledger, PlacekitError, Problem

SMALL = {"hidden": 16, "heads": 2, "rounds": 2, "layers": 1, "type_size": 4, "type_buckets": 64, "segment": 5}
OWN = {"baseline": "batch", "normalise": True, "learning_rate": 2e-3}  # as the policy sets them, with larger steps


def built(problem: Problem, **options: object) -> GDP:
    policy = GDP(**{**SMALL, **options})
    policy.build([problem], np.random.default_rng(0))
    return policy


def trained(policy: GDP, *problems: Problem, budget: int) -> float:
    """The best value that training finds for the first problem, seconds."""
    ledger = Ledger(budget)
    tasks = [fakes.fake_task(problem, ledger) for problem in problems]
    with contextlib.suppress(BudgetExhausted):
        PPO(**OWN, epochs=1, samples=20).fit(policy, tasks, np.random.default_rng(0))
    assert tasks[0].evaluate.best is not None
    return tasks[0].evaluate.best.value_s


def right(policy: GDP, problem: Problem) -> float:
    """The share of the groups that the policy, without exploration, places on their fastest device."""
    task = fakes.fake_task(problem)
    found = policy.place(task, np.random.default_rng(0)).device
    return float((found == fakes.session_of(task).optimum()).mean())


def test_finds_the_optimum() -> None:
    """Each operation has one fast device, which its features name."""
    problem = fakes.unequal(8)
    policy = built(problem, octaves=0)
    assert trained(policy, problem, budget=1000) == fakes.session_of(fakes.fake_task(problem)).lower_bound()
    assert right(policy, problem) == 1.0


def test_trained_on_some_graphs_it_places_another() -> None:
    """The fast device of operations that training never saw is found from their run times, without an evaluation."""
    seen, unseen = [fakes.unequal(n) for n in (6, 9, 12, 15)], fakes.unequal(30)
    policy = GDP(**SMALL, octaves=0)
    policy.build(seen, np.random.default_rng(0))
    trained(policy, *seen, budget=4000)
    other = built(unseen, octaves=0)
    assert right(other, unseen) < 0.6
    other.load_state_dict(policy.state_dict())
    assert right(other, unseen) == 1.0


def test_devices_that_are_not_allowed_have_no_probability() -> None:
    problem = fakes.mixed()
    drawn = built(problem, max_devices=6).rollout(problem, 20, np.random.default_rng(0), 1.0)
    p = np.exp(drawn.extra["log_p"])
    np.testing.assert_allclose(p.sum(axis=2), 1.0, rtol=1e-5)
    allowed = np.zeros((problem.g, 6), np.bool_)
    allowed[:, :3] = problem.allowed[drawn.group[0]]
    assert np.array_equal(p > 0, np.broadcast_to(allowed, p.shape))


def test_draws_follow_the_probabilities() -> None:
    problem = fakes.chain(3)
    drawn = built(problem).rollout(problem, 4000, np.random.default_rng(0), 1.0)
    share = (drawn.device == 0).mean(axis=0)
    np.testing.assert_allclose(share, np.exp(drawn.extra["log_p"][0, :, 0]), atol=0.03)


def test_what_is_computed_once_is_computed_anew_when_parameters_change() -> None:
    problem, other = fakes.chain(), fakes.diamond()
    policy = built(problem)
    drawn = policy.rollout(problem, 3, np.random.default_rng(0), 1.0)
    weight = np.ones(drawn.log_prob.shape)
    np.testing.assert_array_equal(policy.log_prob(problem, drawn), drawn.log_prob)
    policy.kl(problem, drawn)  # without autograd, and the gradients that follow are still there
    first = policy.gradients(problem, drawn, weight)
    policy.rollout(other, 1, np.random.default_rng(0), 1.0)
    again = policy.gradients(problem, drawn, weight)
    assert all(np.array_equal(first[name], again[name]) for name in first)
    policy.apply({name: 0.01 * values for name, values in first.items()})
    after = policy.log_prob(problem, drawn)
    assert not np.array_equal(after, drawn.log_prob)
    fresh = built(problem)
    fresh.load_state_dict(policy.state_dict())
    np.testing.assert_array_equal(fresh.log_prob(problem, drawn), after)


def test_a_long_graph_takes_memory_for_segments_only() -> None:
    """Of 5,000 groups, all pairs would be 25 million for each head."""
    problem = fakes.chain(5000)
    policy = built(problem, segment=32)
    largest = 0

    def note(_: object, __: object, found: torch.Tensor) -> None:
        nonlocal largest
        largest = max(largest, found.numel())

    for module in policy.module.modules():
        module.register_forward_hook(note)
    policy.place(fakes.fake_task(problem), np.random.default_rng(0))
    assert largest <= 5024 * 32


def test_without_room_for_its_devices() -> None:
    policy = built(fakes.chain())
    with pytest.raises(PlacekitError, match="built for 2 devices, 'fake3\\+0' has 3") as error:
        policy.place(fakes.fake_task(fakes.chain(devices=3)), np.random.default_rng(0))
    assert "policy.max_devices=3" in str(error.value.hint)


def test_parameters_for_other_sizes_name_the_option() -> None:
    few, many = built(fakes.chain()), built(fakes.chain(devices=3))
    for policy, other, hint in (
        (few, many, "train it with policy.max_devices=3, or more"),
        (many, few, "give policy.max_devices=3, as it was trained with"),
    ):
        with pytest.raises(PlacekitError, match=r"'placer.output.dense.weight' of shape") as error:
            other.load_state_dict(policy.state_dict())
        assert error.value.hint == hint
    with pytest.raises(PlacekitError, match="belong to other options"):
        built(fakes.chain(), layers=2).load_state_dict(few.state_dict())


def test_heads_divide_the_units() -> None:
    with pytest.raises(PlacekitError, match=r"policy.hidden=16 is not a multiple of policy.heads=3"):
        built(fakes.chain(), heads=3)
