"""Episodes in lock step beside the compiled ones, and messages that are passed for every decision."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from placekit_doppler import lock_step
from placekit_doppler.arrays import FEATURES, STATIC, Episode
from placekit_doppler.doppler import Doppler
from placekit_doppler.three_stage import ThreeStage
from placekit_testing import fakes

from placekit_core import BudgetExhausted, GraphBuilder, Problem, Rollouts

pytestmark = pytest.mark.slow  # the loops of this mode compile for half a minute
SMALL = {"size": 8, "hidden": 8, "rounds": 2}
EPISODES = 4
WHOLE = ("op", "device", "drawn", "may", "noisy", "label_op", "label_device", "group_device")


class InLockStep(Doppler):
    """Messages once per episode, and yet in lock step."""

    in_lock_step = True


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


def built(problem: Problem, kind: type[Doppler] = Doppler, **options: Any) -> Doppler:
    policy = kind(**{**SMALL, **options})
    policy.build([problem], np.random.default_rng(0))
    return policy


def drawn(policy: Doppler, problem: Problem, how: str, explore: float = 0.7) -> Rollouts:
    rng = np.random.default_rng(1)
    if how == "near":
        device, priority = policy.rollout(problem, 1, np.random.default_rng(7), 1.0).placements.one(0)
        return policy.rollout_near(problem, problem.placement(device, priority), EPISODES, rng, 0.3)
    return (policy.teach if how == "teach" else policy.rollout)(problem, EPISODES, rng, explore)


@pytest.mark.parametrize("problem", problems(), ids=lambda p: p.graph.name)
@pytest.mark.parametrize(
    ("how", "options"),
    [
        ("rollout", {}),
        ("rollout", {"exploration": "greedy", "noise": 0}),
        ("teach", {}),
        ("near", {}),
        ("rollout", {"sel": "critical_path"}),
        ("teach", {"plc": "earliest_start"}),
    ],
    ids=["sample", "greedy", "teach", "near", "plc alone", "sel alone"],
)
def test_compiled_episodes_in_lock_step(problem: Problem, how: str, options: dict[str, Any]) -> None:
    """Of equal generators the same episodes; log-probabilities, entropies and gradients of the same."""
    one, all_ = built(problem, **options), built(problem, InLockStep, **options)
    expected, found = drawn(one, problem, how), drawn(all_, problem, how)
    for name in WHOLE:
        assert np.array_equal(expected.extra[name], found.extra[name]), name
    assert_allclose(found.extra["features"], expected.extra["features"], atol=1e-6)
    assert_allclose(found.log_prob, expected.log_prob, atol=1e-5)
    assert_allclose(found.entropy, expected.entropy, atol=1e-5)
    assert np.array_equal(found.placements.device, expected.placements.device)
    for policy in (one, all_):  # of other parameters than those that drew
        policy.apply(
            {"plc_out.weight": np.full((1, 8), 0.1, np.float32), "sel_out.weight": np.ones((1, 8), np.float32)}
        )
    assert_allclose(all_.log_prob(problem, found), one.log_prob(problem, found), atol=1e-5)
    weight = np.random.default_rng(2).standard_normal(found.log_prob.shape)
    gradients = one.gradients(problem, found, weight, 0.3)
    for name, values in all_.gradients(problem, found, weight, 0.3).items():
        assert_allclose(values, gradients[name], atol=2e-4, rtol=2e-3, err_msg=name)
    loss = one.imitate(problem, found, np.random.default_rng(0))[0]
    assert_allclose(all_.imitate(problem, found, np.random.default_rng(0))[0], loss, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("how", ["rollout", "near"])
def test_what_is_decided_is_what_was_drawn(how: str) -> None:
    for problem in problems():
        for kind, passing in ((InLockStep, "per_episode"), (Doppler, "per_step")):
            policy = built(problem, kind, message_passing=passing)
            r = drawn(policy, problem, how)
            with torch.no_grad():
                log_prob, entropy = lock_step.decided(policy.dual, policy.prepared(problem), Episode(**r.extra))
            assert_allclose(log_prob, r.extra["log_prob"], atol=1e-5)
            assert_allclose(entropy, r.extra["entropy"], atol=1e-5)


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
    policy = built(problem, message_passing="per_step")
    ready, e = policy.prepared(problem), Episode(**drawn(policy, problem, "rollout").extra)
    e.device[:] = 0
    outputs = lock_step._StepOutputs(policy.dual, ready, e)
    steps = []
    for step in range(ready.steps):
        outputs.observe()
        steps.append(outputs.dynamic()[0])
        lock_step._replay(ready.fixed, outputs.states, e, step)
    cost = problem.op_s[ready.features.op, 0]
    finish = cost[:3].cumsum()
    assert not steps[0].any()
    assert_allclose(steps[3][:, 0], [1, 1, 1, 0])
    assert_allclose(steps[3][:, 2], [*finish / finish[-1], 0], rtol=1e-5)
    assert_allclose(steps[3][:, 1], [*(finish - cost[:3]) / finish[-1], 0], rtol=1e-5, atol=1e-7)


def test_embeddings_change_within_an_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    """And differ between episodes that placed otherwise; passed once, they are the same throughout."""
    problem = layers()
    sent: list[torch.Tensor] = []
    usual = lock_step._StepOutputs.observe

    def recorded(self: Any) -> None:
        usual(self)
        sent.append(self.tensors.sent.clone())

    per_step, per_episode = built(problem, message_passing="per_step"), built(problem, InLockStep)
    monkeypatch.setattr(lock_step._StepOutputs, "observe", recorded)
    drawn(per_step, problem, "rollout", 1.0)
    steps = torch.stack(sent)  # [T, n, k, h]
    assert steps.shape[:2] == (9, EPISODES)
    assert (steps[1:] - steps[:-1]).abs().amax(dim=(2, 3)).min() > 1e-4
    assert (steps[0] == steps[0, :1]).all()
    assert (steps[-1, 0] - steps[-1, 1]).abs().max() > 1e-4
    sent.clear()
    drawn(per_episode, problem, "rollout", 1.0)
    assert all(torch.equal(x, sent[0]) for x in sent)


def test_gradients_of_more_episodes_than_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are summed over chunks; and are those of `decided` by autograd."""
    problem = layers()
    policy = built(problem, message_passing="per_step", noise=0)
    r = drawn(policy, problem, "rollout")
    weight = np.random.default_rng(2).standard_normal(r.log_prob.shape)
    monkeypatch.setattr(lock_step, "AT_ONCE", 3)
    found = policy.gradients(problem, r, weight, 0.3)
    e, module = Episode(**r.extra), policy.dual
    log_prob, entropy = lock_step.decided(module, policy.prepared(problem), e)
    objective = (torch.from_numpy(weight[:, : e.op.shape[1]]) * log_prob).sum() + 0.3 * entropy.sum()
    names, parameters = zip(*module.named_parameters(), strict=True)
    expected = torch.autograd.grad(objective, parameters, allow_unused=True, materialize_grads=True)
    for name, values in zip(names, expected, strict=True):
        assert_allclose(found[name], values, atol=1e-4, rtol=1e-3, err_msg=name)
    for name in ("sel.entry.weight", "plc.entry.weight"):
        assert found[name][:, len(STATIC) :].any(axis=0).all(), "what is placed, where from and where to"


def test_three_stages_with_messages_for_every_decision() -> None:
    problem = fakes.unequal(6)
    policy, task = built(problem, message_passing="per_step"), fakes.fake_task(problem, 32)
    before = policy.state_dict()
    trainer = ThreeStage(samples=8, imitation_episodes=8, list_schedules_first=False)
    with pytest.raises(BudgetExhausted):
        trainer.fit(policy, [task], np.random.default_rng(0))
    assert (trainer.imitated, trainer.updates) == (8, 4)
    changed = {name for name, values in policy.state_dict().items() if (values != before[name]).any()}
    assert changed >= {"weights_mean", "plc.entry.weight", "plc_device.weight"}
    assert all(np.isfinite(values).all() for values in policy.state_dict().values())
    assert task.evaluate.best is not None


def test_sources_alone_have_no_steps() -> None:
    problem = fakes.sources_only()
    policy = built(problem, message_passing="per_step")
    r = drawn(policy, problem, "rollout")
    problem.check(r.placements)
    assert not policy.log_prob(problem, r).any()
    assert policy.dual.plc_device.weight.shape[1] == FEATURES
    assert not any(x.any() for x in policy.gradients(problem, r, np.ones(r.log_prob.shape), 1.0).values())
