"""Episodes of `plain.py` beside the compiled ones, and messages that are passed for every decision."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from placekit_doppler import plain
from placekit_doppler.arrays import STATIC
from placekit_doppler.doppler import Doppler
from placekit_doppler.network import Dual
from placekit_doppler.three_stage import ThreeStage
from placekit_testing import fakes

from placekit_core import BudgetExhausted, GraphBuilder, Problem, Rollouts

SMALL = {"size": 8, "hidden": 8, "rounds": 2}
EPISODES = 4
WHOLE = ("op", "device", "drawn", "may", "noisy", "label_op", "label_device", "group_device")


def layers() -> Problem:
    """Three layers of three operations; each reads two of the layer before."""
    b = GraphBuilder("layers")
    before: list[int] = []
    for layer in range(3):
        now: list[int] = []
        for i in range(3):
            reads = [before[i], before[i - 1]] if before else []
            now += b.add(f"{layer}{i}", inputs=reads, outputs=[1000 * (1 + i)], flops=1e9 * (1 + i + layer))
        before = now
    return Problem.of(b.build(), fakes.gpus(3))


def problems() -> list[Problem]:
    return [fakes.diamond(), fakes.mixed(), fakes.chain(12), fakes.grouped(), fakes.unequal(8), layers()]


def built(problem: Problem, **options: Any) -> Doppler:
    policy = Doppler(**{**SMALL, **options})
    policy.build([problem], np.random.default_rng(0))
    return policy


def drawn(policy: Doppler, problem: Problem, how: str, explore: float = 0.7) -> Rollouts:
    rng = np.random.default_rng(1)
    if how == "near":
        device, priority = policy.rollout(problem, 1, np.random.default_rng(7), 1.0).placements.one(0)
        return policy.rollout_near(problem, problem.placement(device, priority), EPISODES, rng, 0.3)
    return (policy.teach if how == "teach" else policy.rollout)(problem, EPISODES, rng, explore)


def same_judgement(fast: Doppler, plain: Doppler, problem: Problem, rollouts: Rollouts) -> None:
    """Both engines have the same log-probabilities, gradients and loss for the same episodes, up to rounding."""
    assert_allclose(plain.log_prob(problem, rollouts), fast.log_prob(problem, rollouts), atol=2e-6)
    weight = np.random.default_rng(2).standard_normal(rollouts.log_prob.shape)
    expected = fast.gradients(problem, rollouts, weight, 0.3)
    for name, values in plain.gradients(problem, rollouts, weight, 0.3).items():
        assert_allclose(values, expected[name], atol=1e-5, rtol=1e-4, err_msg=name)
    losses = [policy.imitate(problem, rollouts, np.random.default_rng(0))[0] for policy in (fast, plain)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)


@pytest.mark.parametrize("problem", problems(), ids=lambda p: p.graph.name)
@pytest.mark.parametrize(
    ("how", "options"),
    [
        ("rollout", {}),
        ("rollout", {"exploration": "greedy", "noise": 0, "features": "paper"}),
        ("teach", {}),
        ("near", {}),
        ("rollout", {"sel": "critical_path"}),
        ("teach", {"plc": "earliest_start"}),
        ("near", {"sel": "critical_path"}),
    ],
    ids=["sample", "greedy", "teach", "near", "plc alone", "sel alone", "near, plc alone"],
)
def test_both_engines_do_the_same(problem: Problem, how: str, options: dict[str, Any]) -> None:
    """Equal generators give the same episodes, and both engines judge these the same, also after a step of the optimiser."""
    fast, plain = built(problem, **options), built(problem, engine="plain", **options)
    expected, found = drawn(fast, problem, how), drawn(plain, problem, how)
    for name in WHOLE:
        assert np.array_equal(expected.extra[name], found.extra[name]), name
    assert np.array_equal(found.placements.device, expected.placements.device)
    assert_allclose(
        found.extra["features"], expected.extra["features"], atol=1e-3
    )  # where they hardly differ by device
    assert_allclose(found.log_prob, expected.log_prob, atol=1e-4)
    assert_allclose(found.entropy, expected.entropy, atol=1e-4)
    for policy in (fast, plain):
        policy.apply(
            {"plc_out.weight": np.full((1, 8), 0.1, np.float32), "sel_out.weight": np.ones((1, 8), np.float32)}
        )
    same_judgement(fast, plain, problem, expected)


def test_both_engines_judge_equal_operations_the_same() -> None:
    """Rounding decides which of equal operations is the likeliest, so that only judgements of one episode are the same."""
    problem = fakes.independent(5, devices=3)
    fast = built(problem)
    same_judgement(fast, built(problem, engine="plain"), problem, drawn(fast, problem, "rollout"))


@pytest.mark.parametrize("how", ["rollout", "near"])
@pytest.mark.parametrize("passing", ["per_episode", "per_step"])
def test_what_is_repeated_is_what_was_drawn(how: str, passing: str) -> None:
    for problem in problems():
        policy = built(problem, engine="plain", message_passing=passing)
        r = drawn(policy, problem, how)
        assert_allclose(policy.log_prob(problem, r), r.log_prob, atol=1e-6)


@pytest.mark.parametrize("problem", problems(), ids=lambda p: p.graph.name)
def test_without_weights_of_the_state_both_say_the_same(problem: Problem) -> None:
    """The columns of the state have weights 0: messages passed for every decision are those passed once."""
    one, each = built(problem), built(problem, message_passing="per_step")
    state = dict(one.state_dict())
    for name, values in each.state_dict().items():
        if values.shape != state[name].shape:
            assert values.shape[1] == len(STATIC) + 3
            state[name] = np.concatenate([state[name], np.zeros((len(values), 3), np.float32)], axis=1)
    each.load_state_dict(state)
    expected, found = drawn(one, problem, "rollout"), drawn(each, problem, "rollout")
    assert np.array_equal(found.extra["op"], expected.extra["op"])
    assert np.array_equal(found.extra["device"], expected.extra["device"])
    assert_allclose(found.log_prob, expected.log_prob, atol=1e-5)
    weight = np.random.default_rng(2).standard_normal(found.log_prob.shape)
    gradients = each.gradients(problem, found, weight, 0.3)
    for name, values in one.gradients(problem, found, weight, 0.3).items():
        assert_allclose(gradients[name][..., : values.shape[-1]], values, atol=2e-4, rtol=2e-3, err_msg=name)


def test_the_state_by_hand() -> None:
    """A chain on one device: what is placed, from its start to its finish, over the makespan so far."""
    problem = fakes.chain(4)
    ready = built(problem).prepared(problem)
    state, steps = plain.State(ready), []
    for op in ready.features.op:
        steps.append(state.dynamic())
        state.place(op, 0)
    cost = problem.op_s[ready.features.op, 0]
    finish = cost[:3].cumsum()
    assert not steps[0].any()
    assert_allclose(steps[3][:, 0], [1, 1, 1, 0])
    assert_allclose(steps[3][:, 2], [*finish / finish[-1], 0], rtol=1e-5)
    assert_allclose(steps[3][:, 1], [*(finish - cost[:3]) / finish[-1], 0], rtol=1e-5, atol=1e-7)


def test_embeddings_change_within_an_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    """And differ between episodes that placed otherwise; passed once, they are the same throughout."""
    problem, usual = layers(), Dual.forward
    sent: list[torch.Tensor] = []

    def recorded(self: Any, x: Any, state: Any) -> Any:
        sent.append(usual(self, x, state)[2])
        return usual(self, x, state)

    per_step, per_episode = (built(problem, engine="plain", message_passing=x) for x in ("per_step", "per_episode"))
    monkeypatch.setattr(Dual, "forward", recorded)
    drawn(per_step, problem, "rollout", 1.0)
    steps = torch.stack(sent).unflatten(0, (EPISODES, 9))  # [n, T, k, size]
    assert (steps[:, 1:] - steps[:, :-1]).abs().amax(dim=(2, 3)).min() > 1e-4
    assert (steps[:, 0] == steps[0, 0]).all()
    assert (steps[0, -1] - steps[1, -1]).abs().max() > 1e-4
    sent.clear()
    drawn(per_episode, problem, "rollout", 1.0)
    assert len(sent) == EPISODES


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"engine": "plain"}, id="plain"),
        pytest.param({"message_passing": "per_step"}, id="per step", marks=pytest.mark.slow),
    ],
)
def test_three_stages(options: dict[str, Any]) -> None:
    problem = fakes.unequal(6)
    policy, task = built(problem, **options), fakes.fake_task(problem, 16)
    before = policy.state_dict()
    trainer = ThreeStage(samples=4, imitation_episodes=4, list_schedules_first=False)
    with pytest.raises(BudgetExhausted):
        trainer.fit(policy, [task], np.random.default_rng(0))
    assert (trainer.imitated, trainer.updates) == (4, 4)
    changed = {name for name, values in policy.state_dict().items() if (values != before[name]).any()}
    assert changed >= {"weights_mean", "plc.entry.bias", "plc_device.weight"}
    assert all(np.isfinite(values).all() for values in policy.state_dict().values())
    assert task.evaluate.best is not None


def test_sources_alone_have_no_steps() -> None:
    problem = fakes.sources_only()
    policy = built(problem, engine="plain")
    r = drawn(policy, problem, "rollout")
    problem.check(r.placements)
    assert not policy.log_prob(problem, r).any()
    assert not any(x.any() for x in policy.gradients(problem, r, np.ones(r.log_prob.shape), 1.0).values())
