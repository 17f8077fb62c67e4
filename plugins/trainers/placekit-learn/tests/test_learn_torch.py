"""`TorchPolicy`, by a tiny policy on it; the optimisers and PPO's gradient against torch; gradients of another process."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from placekit_learn import VECTORS, placekit_facts
from placekit_learn.optimisers import Adam, Sgd
from placekit_learn.policy_gradient import Batch, Reinforce
from placekit_learn.ppo import PPO, ratios, surrogate_weights
from placekit_testing import fakes
from placekit_testing.children import address_of
from placekit_testing.learnable import LearnablePolicyContract
from placekit_testing.registries import listed
from placekit_testing.speed import mostly_slow

from placekit_core import (
    BudgetExhausted,
    EstimatesReturns,
    LearnablePolicy,
    PlacekitError,
    Placements,
    Problem,
    ReportsKL,
    Rollouts,
    Trainer,
)

torch = pytest.importorskip("torch")

from placekit_learn.torch_policy import Decisions, TorchPolicy  # noqa: E402


class TinyPolicy(TorchPolicy, ReportsKL):
    """A vector per group, of which a small network makes a distribution over the devices."""

    name = "tiny_torch"

    def network(self, problems: Sequence[Problem]) -> torch.nn.Module:
        groups, devices = max(p.g for p in problems), max(p.cluster.size for p in problems)
        return torch.nn.Sequential(torch.nn.Embedding(groups, 8), torch.nn.Tanh(), torch.nn.Linear(8, devices))

    def distribution(self, problem: Problem) -> torch.Tensor:
        """[g, D] log-probabilities."""
        logits = self.module(torch.arange(problem.g))[:, : problem.cluster.size]
        return logits.masked_fill(~torch.from_numpy(problem.allowed), -torch.inf).log_softmax(dim=1)

    def rollout(self, problem: Problem, n: int, rng: np.random.Generator, explore: float = 0.0) -> Rollouts:
        with self.fixed_threads(), torch.no_grad():
            log_p = self.distribution(problem)
            drawn = log_p.exp().multinomial(n, replacement=True, generator=self.generator(rng)).T
            device = (drawn if explore else log_p.argmax(dim=1).expand(n, -1)).numpy().astype(np.int16)
            group = np.tile(np.arange(problem.g, dtype=np.int32), (n, 1))
            d = self.decisions(log_p, device)
            extra = {"log_p": np.tile(log_p.numpy(), (n, 1, 1))}
            return Rollouts(
                Placements.of(device),
                group,
                device,
                d.log_prob.double().numpy(),
                d.entropy.double().numpy(),
                extra=extra,
            )

    def evaluate_actions(self, problem: Problem, rollouts: Rollouts) -> Decisions:
        return self.decisions(self.distribution(problem), rollouts.device)

    @staticmethod
    def decisions(log_p: torch.Tensor, device: np.ndarray) -> Decisions:
        each = log_p.expand(len(device), -1, -1)
        entropy = -(each.exp() * each.masked_fill(each.isneginf(), 0.0)).sum(dim=2)
        return Decisions(each.gather(2, torch.from_numpy(device.astype(np.int64))[:, :, None])[:, :, 0], entropy, each)


class TinyValues(TinyPolicy, EstimatesReturns):
    """The same policy, with a value per group and device of the groups before it."""

    name = "tiny_values"

    def network(self, problems: Sequence[Problem]) -> torch.nn.Module:
        module = super().network(problems)
        groups, devices = module[0].num_embeddings, module[2].out_features
        module.register_parameter("value", torch.nn.Parameter(torch.zeros(groups, devices)))
        return module

    def evaluate_actions(self, problem: Problem, rollouts: Rollouts) -> Decisions:
        device = torch.from_numpy(rollouts.device.astype(np.int64))
        placed = self.module.value[torch.arange(problem.g), device]  # [b, g]
        return replace(super().evaluate_actions(problem, rollouts), value=placed.cumsum(dim=1) - placed)


class TestTorchPolicy(LearnablePolicyContract):
    @pytest.fixture
    def make(self):
        return partial(TinyPolicy, threads=1)

    @pytest.fixture(autouse=True)
    def installed(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """The policy is installed for the time of a test."""
        listed(monkeypatch, tmp_path, "policy", TinyPolicy)


class TestTorchPolicyWithValues(LearnablePolicyContract):
    short = True

    @pytest.fixture
    def make(self):
        return partial(TinyValues, threads=1)


def built(problem: Problem, **options: Any) -> TinyPolicy:
    policy = TinyPolicy(**options)
    policy.build([problem], np.random.default_rng(0))
    return policy


def test_build_leaves_the_default_generator_alone() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    first = built(fakes.chain()).state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(4)
    second = built(fakes.chain()).state_dict()
    assert all(np.array_equal(first[name], second[name]) for name in first)


def test_threads_are_given_back() -> None:
    before = torch.get_num_threads()
    policy = built(fakes.chain(), threads=1)
    with policy.fixed_threads():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("trainer", [Reinforce(learning_rate=0.02), PPO(learning_rate=0.01, kl_target=0.03)])
def test_trainers_train_it(trainer: Trainer) -> None:
    task = fakes.fake_task(fakes.unequal(6), 1000)
    with pytest.raises(BudgetExhausted):
        trainer.fit(built(task.problem, threads=1), [task], np.random.default_rng(0))
    assert task.evaluate.best is not None
    assert task.evaluate.best.value_s == fakes.session_of(task).lower_bound()


def test_values_learn_the_returns() -> None:
    """Each group adds to the reward, 0 on average: a value is what earlier decisions add, an advantage what one decision adds."""
    problem, rng = fakes.unequal(6), np.random.default_rng(0)
    policy, trainer = TinyValues(), PPO(gae_lambda=0.0)
    policy.build([problem], rng)
    p = policy.distribution(problem).exp().detach().numpy()
    worth = rng.standard_normal(p.shape)
    worth -= (p * worth).sum(axis=1, keepdims=True)
    trainer.start([])
    for learning_rate in np.repeat([0.05, 0.01, 0.001], 150):
        r = policy.rollout(problem, 50, rng, 1.0)
        each = worth[r.group, r.device]  # [b, g]
        weight = np.tile(each.sum(axis=1, keepdims=True) / len(each), problem.g)
        batch = trainer.credited(policy, Batch(problem, r, weight, 0.0, learning_rate, weight[:, 0] != 0))
        trainer.ascend(policy, batch, np.zeros_like(weight), 0.0)
    error = len(each) * weight - policy.values(problem, r)
    assert trainer.learned["value_loss"] == pytest.approx((error**2).mean(), rel=0.05)
    assert np.allclose(policy.values(problem, r), each.cumsum(axis=1) - each, atol=0.15)
    assert np.allclose(batch.weight[:, :-1] * len(each), each[:, :-1], atol=0.15)


def test_without_lambda_values_are_not_used() -> None:
    outcomes = []
    for policy in (TinyPolicy(), TinyValues()):
        task = fakes.fake_task(fakes.unequal(6), 100)
        policy.build([task.problem], np.random.default_rng(0))
        with suppress(BudgetExhausted):
            PPO(gae_lambda=None).fit(policy, [task], np.random.default_rng(0))
        outcomes.append(policy.state_dict())
    assert not outcomes[1].pop("value").any()
    assert all(np.array_equal(values, outcomes[1][name]) for name, values in outcomes[0].items())


def test_state_dict_is_a_copy() -> None:
    policy = built(fakes.chain())
    saved = policy.state_dict()
    policy.apply({name: np.ones_like(values) for name, values in saved.items()})
    assert not any(np.array_equal(saved[name], values) for name, values in policy.state_dict().items())


def test_other_parameters_are_refused_by_name() -> None:
    policy = built(fakes.chain())
    with pytest.raises(PlacekitError, match=r"'0\.weight' of shape \[20, 8\], not \[13, 8\]"):
        policy.load_state_dict(built(fakes.chain(19)).state_dict())
    with pytest.raises(PlacekitError, match="'bias', which the policy lacks"):
        policy.load_state_dict({**policy.state_dict(), "bias": np.zeros(2)})
    with pytest.raises(PlacekitError, match=r"no parameter 'bias'\n.*2\.weight"):
        policy.apply({"bias": np.zeros(2)})


def test_kl_needs_the_old_distribution() -> None:
    problem = fakes.chain()
    policy = built(problem)
    r = policy.rollout(problem, 2, np.random.default_rng(0), 1.0)
    bare = Rollouts(r.placements, r.group, r.device, r.log_prob, r.entropy)
    with pytest.raises(PlacekitError, match="log_p"):
        policy.kl(problem, bare)


def test_decisions_after_the_end_do_not_count() -> None:
    problem = fakes.chain()
    policy = built(problem)
    r = policy.rollout(problem, 3, np.random.default_rng(0), 1.0)
    weight = np.random.default_rng(1).standard_normal(r.group.shape)
    group = r.group.copy()
    group[1, 5:] = -1
    short = Rollouts(r.placements, group, r.device, r.log_prob, r.entropy, extra=r.extra)
    got = policy.gradients(problem, short, weight)
    expected = policy.gradients(problem, r, np.where(group >= 0, weight, 0.0))
    assert all(np.allclose(got[name], expected[name], atol=1e-6) for name in got)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (Adam(), lambda p: torch.optim.Adam(p, lr=0.1, foreach=False)),
        (Sgd(), lambda p: torch.optim.SGD(p, lr=0.1, foreach=False)),
    ],
    ids=["adam", "sgd"],
)
def test_optimisers_agree_with_torch(ours: Any, theirs: Any) -> None:
    rng = np.random.default_rng(0)
    values = {"a": rng.standard_normal((3, 4)), "b": rng.standard_normal(5).astype(np.float32)}
    tensors = {name: torch.from_numpy(v.copy()).requires_grad_() for name, v in values.items()}
    optimiser = theirs(tensors.values())
    for _ in range(20):
        gradients = {name: rng.standard_normal(v.shape).astype(v.dtype) for name, v in values.items()}
        for name, t in tensors.items():
            t.grad = torch.from_numpy(-gradients[name])  # torch descends
        optimiser.step()
        steps = ours.steps(gradients, 0.1)
        values = {name: v + steps[name] for name, v in values.items()}
        assert all(steps[name].dtype == v.dtype for name, v in values.items())
    assert np.allclose(values["a"], tensors["a"].detach().numpy(), rtol=1e-12)
    assert np.allclose(values["b"], tensors["b"].detach().numpy(), rtol=1e-5)


@pytest.mark.parametrize("clip", [0.2, None])
def test_clipped_gradient_is_that_of_the_clipped_objective(clip: float | None) -> None:
    problem = fakes.chain()
    policy = built(problem)
    r = policy.rollout(problem, 8, np.random.default_rng(0), 1.0)
    rng = np.random.default_rng(1)
    policy.apply({name: 0.3 * rng.standard_normal(v.shape) for name, v in policy.state_dict().items()})
    advantage = np.tile(rng.standard_normal((8, 1)), (1, problem.g))
    ratio = ratios(policy.log_prob(problem, r), r.log_prob)
    outside = np.abs(ratio - 1) > 0.2
    assert outside.any()
    assert not outside.all()
    got = policy.gradients(problem, r, surrogate_weights(ratio, advantage, clip))

    new = policy.evaluate_actions(problem, r).log_prob
    tensor_ratio = (new - torch.from_numpy(r.log_prob)).exp()
    a = torch.from_numpy(advantage)
    objective = tensor_ratio * a
    if clip is not None:  # Schulman et al. 2017, Eq. 7
        objective = torch.minimum(objective, tensor_ratio.clamp(1 - clip, 1 + clip) * a)
    objective.sum().backward()
    for name, p in policy.module.named_parameters():
        assert np.allclose(got[name], p.grad.numpy(), rtol=1e-4, atol=1e-5), name


def gradients_of(policy: LearnablePolicy, job: dict[str, Any]) -> bytes:
    """What a remote worker does: the policy of these parameters, and its gradients."""
    policy.build(job["problems"], np.random.default_rng(99))
    policy.load_state_dict(job["parameters"])
    return pickle.dumps(policy.gradients(*job["arguments"]))


CHILD = """
import pickle, sys
job = pickle.loads(sys.stdin.buffer.read())
sys.path[:] = job["path"]
from placekit_testing.children import load
from placekit_testing.speed import mostly_slow
cls = load(*job["policy"])
policy = cls(cls.options_class.model_validate_json(job["options"]))
sys.stdout.buffer.write(load(*job["work"])(policy, pickle.loads(job["job"])))
"""


@pytest.mark.parametrize("cls", mostly_slow([fakes.FakeLearnable, TinyPolicy], [TinyPolicy]))
def test_gradients_of_another_process_are_the_same_to_the_last_bit(cls: type[LearnablePolicy]) -> None:
    problem = fakes.mixed()
    policy = cls()
    policy.build([problem], np.random.default_rng(0))
    r = policy.rollout(problem, 10, np.random.default_rng(1), 1.0)
    weight = np.random.default_rng(2).standard_normal(r.group.shape)
    start = policy.state_dict()
    policy.apply({name: np.full_like(values, 0.1) for name, values in start.items()})
    arguments = (problem, r, weight, 0.01, 0.5)
    here = policy.gradients(*arguments)
    there = in_a_child(policy, {"problems": [problem], "parameters": policy.state_dict(), "arguments": arguments})
    results = []
    for gradients in (here, there):
        policy.load_state_dict(start)
        policy.apply(Adam().steps(gradients, 0.1))
        results.append({name: values.tobytes() for name, values in policy.state_dict().items()})
    assert results[0] == results[1]


def in_a_child(policy: LearnablePolicy, job: dict[str, Any]) -> dict[str, np.ndarray]:
    sent = {
        "path": sys.path, "policy": address_of(type(policy)), "options": policy.options.model_dump_json(),
        "work": address_of(gradients_of), "job": pickle.dumps(job),
    }  # fmt: skip
    done = subprocess.run([sys.executable, "-c", CHILD], input=pickle.dumps(sent), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return pickle.loads(done.stdout)


def test_a_result_says_which_vectors_its_networks_were_computed_with(monkeypatch: pytest.MonkeyPatch) -> None:
    import numba
    from llvmlite.binding import get_host_cpu_name

    monkeypatch.setattr(numba.config, "CPU_NAME", None)
    assert placekit_facts()["torch_cpu"] == torch.backends.cpu.get_cpu_capability()
    name, _, widest = placekit_facts()["numba_cpu"].partition(", ")
    assert name == get_host_cpu_name()
    assert widest in (*VECTORS, "no vectors")
    monkeypatch.setattr(numba.config, "CPU_NAME", "generic")
    assert placekit_facts()["numba_cpu"] == "generic"
    monkeypatch.delitem(sys.modules, "numba")
    monkeypatch.delitem(sys.modules, "torch")
    assert placekit_facts() == {}
