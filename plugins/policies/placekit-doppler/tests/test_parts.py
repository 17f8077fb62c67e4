"""Episodes in parts: what is seen, what is changed, gradients, what is learned, and going on in the middle."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from placekit_doppler import part_policy
from placekit_doppler.doppler import Doppler
from placekit_doppler.part_moves import EXCHANGE, KINDS, LEVEL, ORDER, TRANSFER
from placekit_doppler.part_policy import PartPolicy, Seen
from placekit_doppler.part_training import PartChain, is_traced, list_schedules
from placekit_doppler.three_stage import ThreeStage
from placekit_scheduling.list_scheduling.placement_levels import LEAST_FACTOR, MOST_FACTOR, set_levels
from placekit_scheduling.tracing import run_traced
from placekit_testing import fakes
from placekit_testing.strategies import random_problem

from placekit_core import BudgetExhausted, GraphBuilder, Ledger, PlacekitError, Problem, RunError, Task, installed
from placekit_core.run.evaluator import BudgetedEvaluator

PARTS: dict[str, Any] = {"stages": [2], "whole_up_to": 0, "part_samples": 32}


def branches(width: int = 6, devices: int = 2, flops: float = 1e9) -> Problem:
    """Chains of three operations between one operation and another, with a parameter for each chain."""
    b = GraphBuilder("branches")
    begin = b.add("begin", outputs=[1_000], flops=flops)
    ends = []
    for i in range(width):
        weight = b.add(f"w{i}", op_type="parameter", kernel=False, outputs=[1_000])
        last = [*begin, *weight]
        for j in range(3):
            last = b.add(f"a{i}.{j}", op_type=f"t{j}", inputs=last, outputs=[100_000], flops=flops * (1 + i))
        ends += last
    b.add("end", inputs=ends, outputs=[1], flops=flops)
    return Problem.of(b.build(), fakes.gpus(devices))


def opened(problem: Problem, budget: int = 300) -> Task:
    pytest.importorskip("placekit_sim")
    entry = installed().get("backend", "simulator")
    return Task(
        problem, BudgetedEvaluator(problem, entry.build(entry.component.config()).open(problem), Ledger(budget))
    )


def built(problem: Problem) -> Doppler:
    policy = Doppler(size=8, hidden=8, rounds=1)
    policy.build([problem], np.random.default_rng(0))
    return policy


def seen(policy: Doppler, task: Task, row: int = 2) -> Seen:
    """One of the list schedules."""
    device, priority = list_schedules(task.problem).one(row)
    assert priority is not None
    kernel = task.evaluate.kernel()
    assert kernel is not None
    placement = task.problem.placement(device, priority)
    return policy.see(task.problem, placement, run_traced(kernel, task.problem, device.copy(), priority.copy()))


def test_what_is_seen_is_relative_to_the_makespan_and_to_means() -> None:
    problem = branches()
    assert is_traced(opened(problem))
    at = seen(built(problem), opened(problem))
    path = at.view.group[:, 0] > 0
    assert 0 < path.sum() < len(path), "some groups compute on the critical path"
    assert np.abs(at.view.group).max() < 10
    loads = [at.view.load[d] for d in range(2)]
    assert_allclose(sum(loads), sum(at.view.busy[d, -1] for d in range(2)))


def test_changes_are_placements_that_differ_as_drawn() -> None:
    problem = branches(devices=3)
    policy, task = built(problem), opened(problem)
    at = seen(policy, task)
    changes = policy.change(at, 400, np.random.default_rng(0))
    problem.check(changes.placements)
    assert set(changes.kind) == set(range(len(KINDS)))
    moved = (changes.placements.device != at.device).any(axis=1)
    assert changes.placements.priority is not None
    ordered = (changes.placements.priority != at.priority).any(axis=1)
    assert not moved[np.isin(changes.kind, (ORDER, LEVEL))].any()
    assert not ordered[~np.isin(changes.kind, (ORDER, LEVEL))].any()
    seed = at.flow.movable[changes.seed]
    plain = ~np.isin(changes.kind, (ORDER, LEVEL, TRANSFER)) & changes.may.any(axis=1)
    assert (changes.placements.device[plain, seed[plain]] == changes.device[plain]).all(), (
        "the seed goes where PLC says"
    )
    assert moved[changes.kind == EXCHANGE].all()
    least, most = np.empty((2, problem.g), np.float32)
    for factor, found in ((LEAST_FACTOR, least), (MOST_FACTOR, most)):
        set_levels(at.flow.levels, at.device, factor, np.empty(problem.graph.n), found)
    levels = changes.placements.priority[changes.kind == LEVEL]
    assert ((least <= levels) & (levels <= most)).all()
    assert (least < most).any(), "some transfers cross devices"
    assert len(np.unique(levels, axis=0)) > 1, "transfers count for more or less"


def test_the_same_seed_draws_the_same_changes() -> None:
    problem = branches()
    policy = built(problem)
    at = seen(policy, opened(problem))
    a, b = (policy.change(at, 16, np.random.default_rng(3)).placements for _ in range(2))
    assert (a.device == b.device).all()
    assert a.priority is not None
    assert b.priority is not None
    assert (a.priority == b.priority).all()


def test_gradients_are_those_of_weighted_log_probabilities() -> None:
    """By finite differences, with parameters that are drawn, because the last layers begin at zero."""
    problem = branches()
    policy = PartPolicy(4)
    for p in policy.parameters():
        torch.nn.init.normal_(p, generator=torch.Generator().manual_seed(1))
    at = seen(built(problem), opened(problem))
    changes = part_policy.draw(policy, at, 12, np.random.default_rng(0))
    weight = np.random.default_rng(1).standard_normal(12)
    found = part_policy.gradients(policy, [changes], [weight])

    def worth() -> float:
        with torch.no_grad():
            return float((torch.from_numpy(weight)[:, None] * part_policy.log_prob(policy, changes).double()).sum())

    for name, parameter in policy.named_parameters():
        flat, step = parameter.detach().view(-1), 1e-2
        flat[0] += step
        up = worth()
        flat[0] -= 2 * step
        slope = (up - worth()) / (2 * step)
        flat[0] += step
        assert_allclose(found[name].reshape(-1)[0], slope, atol=2e-2, rtol=2e-2, err_msg=name)


def fitted(problem: Problem, budget: int = 300, **options: Any) -> tuple[Doppler, ThreeStage, Task]:
    policy, trainer, task = built(problem), ThreeStage(**{**PARTS, **options}), opened(problem, budget)
    with pytest.raises(BudgetExhausted):
        trainer.fit(policy, [task], np.random.default_rng(0))
    return policy, trainer, task


def test_the_first_evaluations_are_list_schedules_and_the_rest_improves_them() -> None:
    problem = random_problem(np.random.default_rng(5), 60, 4)
    first = list_schedules(problem)
    value_s = opened(problem).evaluate(first).value_s
    _, _, task = fitted(problem)
    assert isinstance(task.evaluate, BudgetedEvaluator)
    assert task.evaluate.best is not None
    assert task.evaluate.best.value_s < value_s.min()
    evaluations, best_s = task.evaluate.history[0][0], task.evaluate.history[0][2]
    assert (evaluations, best_s) == (len(first), value_s.min())
    assert task.evaluate.evaluations == 300


def test_after_a_proxy_parts_begin_anew() -> None:
    """Values of another simulator, here of devices twice as fast, say nothing about what the run's backend finds."""
    problem = branches()
    policy, trainer = built(problem), ThreeStage(**{**PARTS, "stages": [2, 3]})
    task, proxy = opened(problem), opened(branches(flops=5e8), 200).evaluate
    task = replace(task, open_proxy=lambda: proxy, proxy_evaluations=200)
    with pytest.raises(BudgetExhausted):
        trainer.fit(policy, [task], np.random.default_rng(0))
    assert proxy.best is not None
    assert task.evaluate.best is not None
    assert proxy.best.value_s < 0.8 * task.evaluate.best.value_s
    [chain] = trainer.chains
    assert chain.value_s >= task.evaluate.best.value_s


def test_a_checkpoint_without_parts_is_refused() -> None:
    problem = branches()
    _, trainer, _ = fitted(problem, 60)
    old = {name: value for name, value in trainer.state().items() if name not in ("parts", "chains")}
    with pytest.raises(RunError, match="another version of placekit-doppler"):
        ThreeStage(**PARTS).fit(built(problem), [opened(problem)], np.random.default_rng(0), old)


def test_only_the_part_policy_learns_from_parts() -> None:
    problem = branches()
    before = built(problem).state_dict()
    policy, _, _ = fitted(problem)
    changed = {name for name, values in policy.state_dict().items() if (values != before[name]).any()}
    assert changed
    assert all(name.startswith("parts.") for name in changed)
    policy, _, _ = fitted(problem, part_learning_rate=0)
    assert all((values == before[name]).all() for name, values in policy.state_dict().items()), "nothing is learned"


def test_the_part_policy_has_as_many_units_as_asked_for() -> None:
    problem, shapes = branches(), []
    for hidden in (4, 16):
        policy = Doppler(size=8, hidden=8, rounds=1, part_hidden=hidden)
        policy.build([problem], np.random.default_rng(0))
        shapes.append({name: v.shape for name, v in policy.state_dict().items()})
    differ = {name for name, shape in shapes[0].items() if shape != shapes[1][name]}
    assert differ
    assert all(name.startswith("parts.") for name in differ)
    assert all(4 in shapes[0][name] and 16 in shapes[1][name] for name in differ)


@pytest.mark.parametrize("round_", [1, 4])
def test_so_many_changes_of_one_placement_are_evaluated_together(monkeypatch: pytest.MonkeyPatch, round_: int) -> None:
    drawn = []
    usual = Doppler.change

    def counted(self: Doppler, at: Seen, n: int, rng: Any) -> Any:
        drawn.append(n)
        return usual(self, at, n, rng)

    monkeypatch.setattr(Doppler, "change", counted)
    fitted(branches(), part_round=round_)
    assert max(drawn) == round_
    assert drawn.count(round_) > len(drawn) / 2, "the last ones take what is left of the budget"


def test_a_change_may_be_worse_by_what_the_temperature_allows() -> None:
    """At the temperature of the beginning, and at the end of the budget."""
    problem = branches()
    placements = list_schedules(problem)
    rng = np.random.default_rng(0)
    for progress, worse, goes in ((0.0, 1.05, True), (1.0, 1.05, False), (0.0, 2.0, False), (1.0, 0.9, True)):
        went = []
        for _ in range(200):
            chain = PartChain(ThreeStage(**PARTS, part_temperature=0.1, part_temperature_end=1e-6).options)
            chain.value_s = 1.0
            went.append(chain._step(placements, np.full(len(placements), worse), progress, rng))
        assert (np.mean(went) > 0.5) == goes, (progress, worse)


def test_the_entropy_has_the_weight_that_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = []
    usual = Doppler.change_gradients

    def seen_by(self: Doppler, changes: Any, weight: Any, entropy_weight: float) -> Any:
        weights.append(entropy_weight)
        return usual(self, changes, weight, entropy_weight)

    monkeypatch.setattr(Doppler, "change_gradients", seen_by)
    fitted(branches(), part_entropy_weight=0.25)
    assert set(weights) == {0.25}


@pytest.mark.parametrize(("most", "in_parts"), [(0, True), (19, True), (20, False), (None, False)])
def test_only_large_programs_are_learned_in_parts(
    monkeypatch: pytest.MonkeyPatch, most: int | None, in_parts: bool
) -> None:
    problem, asked = branches(), []
    assert problem.graph.kernel.sum() == 20
    usual = PartChain.update

    def counted(self: PartChain, policy: Any, task: Task, rng: Any, optimiser: Any, progress: float) -> None:
        asked.append(progress)
        usual(self, policy, task, rng, optimiser, progress)

    monkeypatch.setattr(PartChain, "update", counted)
    _, trainer, _ = fitted(problem, whole_up_to=most, stages=[1, 2], imitation_episodes=8)
    assert bool(asked) == in_parts
    assert trainer.imitated == (0 if in_parts else 8), "whole episodes are imitated first"


def test_going_on_is_exact() -> None:
    problem = branches()
    policy, trainer, task = built(problem), ThreeStage(**PARTS), opened(problem)
    rng, kept, count = np.random.default_rng(0), dict[str, Any](), 0
    evaluator = task.evaluate
    assert isinstance(evaluator, BudgetedEvaluator)

    def keep(state: Any) -> None:
        nonlocal count
        count += 1
        if count == 3:
            kept.update(
                state=deepcopy(state), parameters=policy.state_dict(), rng=deepcopy(rng.bit_generator.state),
                evaluate=deepcopy(evaluator.state()),
            )  # fmt: skip

    with pytest.raises(BudgetExhausted):
        trainer.fit(policy, [task], rng, None, keep)
    again, other, begun = built(problem), ThreeStage(**PARTS), opened(problem)
    again.load_state_dict(kept["parameters"])
    assert isinstance(begun.evaluate, BudgetedEvaluator)
    begun.evaluate.restore(kept["evaluate"])
    rng = np.random.default_rng(5)
    rng.bit_generator.state = kept["rng"]
    with pytest.raises(BudgetExhausted):
        other.fit(again, [begun], rng, kept["state"])
    assert all((again.state_dict()[k] == v).all() for k, v in policy.state_dict().items())
    assert begun.evaluate.best is not None
    assert task.evaluate.best is not None
    assert begun.evaluate.best.value_s == task.evaluate.best.value_s


def test_parameters_from_before_the_part_policy_fit() -> None:
    policy = built(branches())
    old = {name: x + 1 for name, x in policy.state_dict().items() if not name.startswith("parts.")}
    kept = policy.state_dict()["parts.kind"]
    policy.load_state_dict(old)
    assert (policy.state_dict()["plc_out.bias"] == old["plc_out.bias"]).all()
    assert (policy.state_dict()["parts.kind"] == kept).all()


def test_parameters_of_other_kinds_of_change_are_told_apart() -> None:
    policy = built(branches())
    with pytest.raises(
        PlacekitError, match=f"a version with 8 kinds of change .* this one has {len(KINDS)}: train again"
    ):
        policy.load_state_dict({**policy.state_dict(), "parts.kind": np.zeros(8, np.float32)})


def test_one_device_leaves_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """There only orders are left to change, and the chain goes to more than one other."""
    orders = set()
    usual = PartChain._step

    def noted(self: PartChain, *args: Any) -> bool:
        went = usual(self, *args)
        assert self.priority is not None
        orders.add(self.priority.tobytes())
        return went

    monkeypatch.setattr(PartChain, "_step", noted)
    fitted(branches(devices=1))
    assert len(orders) > 2
