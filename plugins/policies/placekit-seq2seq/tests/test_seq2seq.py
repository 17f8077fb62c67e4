"""The policy `seq2seq`: what it sees, that it learns, and that a trained one places another graph."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from placekit_learn.op_types import bucket
from placekit_learn.policy_gradient import Reinforce
from placekit_seq2seq.features import Features
from placekit_seq2seq.seq2seq import Seq2Seq
from placekit_testing import fakes

from placekit_core import BudgetExhausted, CostTable, GraphBuilder, Grouping, LearnablePolicy, PlacekitError, Problem

SMALL = {"hidden": 16, "attention": 8, "type_size": 8, "type_buckets": 64}


def built(problem: Problem, **options) -> Seq2Seq:
    policy = Seq2Seq(**SMALL, **options)
    policy.build([problem], np.random.default_rng(0))
    return policy


def typed() -> Problem:
    """x -> a, b -> c, with sizes; a and x form a group, numbered after the others."""
    b = GraphBuilder("typed")
    x = b.source("x", 1000, op_type="input")
    first, second = b.add("a", op_type="conv", inputs=[x], outputs=[500, 2000], flops=1e9)
    [third] = b.add("b", op_type="relu", inputs=[first], outputs=[300], flops=1e9)
    b.add("c", op_type="add", inputs=[second, third], outputs=[100], flops=1e9)
    return Problem.of(b.build(), fakes.gpus(2), Grouping(np.array([2, 2, 0, 1], np.int32)))


def unequal_chain(n: int = 8) -> Problem:
    """A chain, each operation of which has one of three devices that runs it in a third of the time."""
    graph, unequal = fakes.chain(n).graph, fakes.unequal(n + 1)
    op_s = np.where(graph.kernel[:, None], unequal.op_s, 0.0)
    costs = CostTable(unequal.cluster.kind_names, op_s, np.zeros(op_s.shape, np.bool_))
    return Problem.of(graph, unequal.cluster, None, costs)


def trained(policy: LearnablePolicy, problem: Problem, budget: int = 3000) -> float:
    """The best value that training finds, seconds."""
    task = fakes.fake_task(problem, budget)
    with contextlib.suppress(BudgetExhausted):
        Reinforce(learning_rate=5e-3).fit(policy, [task], np.random.default_rng(0))
    assert task.evaluate.best is not None
    return task.evaluate.best.value_s


def mean_s(policy: LearnablePolicy, problem: Problem, explore: float = 1.0) -> float:
    drawn = policy.rollout(problem, 64, np.random.default_rng(0), explore).placements
    return float(fakes.session_of(fakes.fake_task(problem)).evaluate(drawn).value_s.mean())


class TestFeatures:
    def test_sequence_is_topological(self) -> None:
        assert Features.of(typed(), 3, 16).order.tolist() == [2, 0, 1]

    def test_types_of_a_group_are_weighted_by_their_number(self) -> None:
        problem = typed()
        features = Features.of(problem, 3, 16)
        names = problem.graph.op_type.vocabulary
        assert features.type_bucket.tolist() == [bucket(name, 16) for name in names]
        assert dict(zip(names, features.type_share[0], strict=True)) == {"input": 0.5, "conv": 0.5, "relu": 0, "add": 0}

    def test_sizes_are_of_what_leaves_the_group(self) -> None:
        sizes = Features.of(typed(), 3, 16).output_bytes
        assert sizes.tolist() == [[2000, 500, 0], [300, 0, 0], [0, 0, 0]]
        assert Features.of(typed(), 1, 16).output_bytes.tolist() == [[2000], [300], [0]]

    def test_adjacency(self) -> None:
        near = Features.of(typed(), 3, 16).adjacency(4)
        inputs, outputs = near[:, :4], near[:, 4:]
        assert inputs.tolist() == [[0, 0, 0, 0], [1, 0, 0, 0], [1, 1, 0, 0]]
        assert outputs.tolist() == [[0, 1, 1, 0], [0, 0, 1, 0], [0, 0, 0, 0]]

    def test_another_order_moves_rows_and_edges(self) -> None:
        features = Features.of(typed(), 3, 16)
        turned = features.in_order(np.array([1, 2, 0], np.int32))  # the last group, the first, the second
        old = [2, 0, 1]  # their places before
        assert turned.order.tolist() == [1, 2, 0]
        np.testing.assert_array_equal(turned.type_share, features.type_share[old])
        np.testing.assert_array_equal(turned.output_bytes, features.output_bytes[old])
        np.testing.assert_array_equal(turned.allowed, features.allowed[old])
        near, before = turned.adjacency(4), features.adjacency(4)
        np.testing.assert_array_equal(near[:, :3], before[old][:, old])
        np.testing.assert_array_equal(near[:, 4:7], before[old][:, [4 + i for i in old]])

    def test_buckets_are_stable_across_processes(self) -> None:
        code = (
            "from placekit_learn.op_types import bucket; print([bucket(n, 1024) for n in ('conv', 'relu', 'añadir')])"
        )
        said = {
            subprocess.run(
                [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
            ).stdout.strip()
            for seed in ("1", "2")
        }
        assert said == {str([bucket(name, 1024) for name in ("conv", "relu", "añadir")])}


class TestLearning:
    @pytest.mark.slow
    @pytest.mark.parametrize("aligned", [True, False])
    def test_finds_the_optimum(self, aligned: bool) -> None:
        problem = unequal_chain()
        policy = built(problem, aligned=aligned)
        before = mean_s(policy, problem)
        optimum_s = fakes.session_of(fakes.fake_task(problem)).lower_bound()
        assert trained(policy, problem) == optimum_s
        assert mean_s(policy, problem) < before
        if aligned:  # otherwise attention has to learn first which group each step is about
            assert mean_s(policy, problem, explore=0.0) == optimum_s

    def test_priorities_are_left_to_the_backend(self) -> None:
        problem = typed()
        assert built(problem).rollout(problem, 2, np.random.default_rng(0), 1.0).placements.priority is None

    def test_another_number_of_threads_gives_nearly_the_same(self) -> None:
        problem = fakes.chain(20)
        a, b = (built(problem, threads=n).rollout(problem, 4, np.random.default_rng(0), 1.0).log_prob for n in (1, 2))
        np.testing.assert_allclose(a, b, rtol=1e-4)


class TestOrders:
    def test_batches_have_orders_of_their_own_and_are_judged_in_them(self) -> None:
        problem = fakes.mixed()
        policy, rng = built(problem, order="random", orders=3), np.random.default_rng(0)
        seen = set()
        for _ in range(20):
            r = policy.rollout(problem, 2, rng, 1.0)
            assert sorted(r.group[0]) == list(range(problem.g))
            np.testing.assert_array_equal(r.group[0], r.group[1])
            np.testing.assert_array_equal(np.take_along_axis(r.placements.device, r.group, axis=1), r.device)
            np.testing.assert_allclose(policy.log_prob(problem, r), r.log_prob, atol=1e-5)
            problem.check(r.placements)
            seen.add(tuple(r.group[0]))
        assert len(seen) == 3

    def test_rollouts_of_two_orders_are_not_judged_at_once(self) -> None:
        problem = fakes.mixed()
        r = built(problem).rollout(problem, 2, np.random.default_rng(0), 1.0)
        group = np.stack([r.group[0], r.group[0][::-1]])
        with pytest.raises(ValueError, match="have one order"):
            built(problem).log_prob(problem, replace(r, group=group))

    def test_without_exploration_the_seed_is_the_order(self) -> None:
        problem = fakes.mixed()
        orders = [
            built(problem, order="random", order_seed=seed)
            .rollout(problem, 1, np.random.default_rng(i))
            .group[0]
            .tolist()
            for seed in (0, 1)
            for i in (0, 1)
        ]
        assert orders[0] == orders[1] != orders[2] == orders[3]


class TestAnotherGraph:
    def test_trained_on_one_it_places_another(self) -> None:
        policy = built(fakes.unequal(8), max_groups=16, max_devices=4)
        trained(policy, fakes.unequal(8), 100)
        other = built(fakes.diamond(), max_groups=16, max_devices=4)
        other.load_state_dict(policy.state_dict())
        for problem in (fakes.diamond(), fakes.mixed(), fakes.unequal(12)):
            placed = other.place(fakes.fake_task(problem), np.random.default_rng(0))
            assert placed.same_as(policy.place(fakes.fake_task(problem), np.random.default_rng(0)))

    def test_types_that_training_never_saw_share_one_embedding(self) -> None:
        policy = built(typed())
        trained(policy, typed(), 100)
        types = policy.state_dict()["types.types"]
        seen = {bucket(name, 64) for name in typed().graph.op_type.vocabulary}
        assert {int(row) for row in np.flatnonzero(np.abs(types).sum(axis=1))} == seen

    def test_without_room_for_its_groups(self) -> None:
        policy = built(fakes.chain(5))
        with pytest.raises(PlacekitError, match="room for 6 groups, 'chain12' has 13") as error:
            policy.place(fakes.fake_task(fakes.chain()), np.random.default_rng(0))
        assert "policy.max_groups=13" in str(error.value.hint)

    def test_max_groups_below_the_problem(self) -> None:
        problem = fakes.chain()
        with pytest.raises(PlacekitError, match="room for 5 groups"):
            built(problem, max_groups=5)

    def test_without_room_for_its_devices(self) -> None:
        policy = built(fakes.chain())
        with pytest.raises(PlacekitError, match="built for 2 devices, 'fake3\\+0' has 3") as error:
            policy.place(fakes.fake_task(fakes.chain(devices=3)), np.random.default_rng(0))
        assert "policy.max_devices=3" in str(error.value.hint)

    def test_parameters_for_other_sizes_name_the_option(self) -> None:
        few, many = built(fakes.chain(5)), built(fakes.chain(12, devices=3))
        for policy, other, hint in (
            (few, many, "train it with policy.max_devices=3, or more; train it with policy.max_groups=13, or more"),
            (
                many,
                few,
                "give policy.max_devices=3, as it was trained with; give policy.max_groups=13, as it was trained with",
            ),
        ):
            with pytest.raises(PlacekitError, match=r"'placer.device' of shape") as error:
                other.load_state_dict(policy.state_dict())
            assert error.value.hint == hint

    def test_a_smaller_machine_uses_its_own_devices_only(self) -> None:
        policy = built(fakes.chain(devices=4))
        placed = policy.rollout(fakes.chain(), 50, np.random.default_rng(0), 1.0).placements
        assert set(np.unique(placed.device)) == {0, 1}


def test_devices_that_are_not_allowed_have_no_probability() -> None:
    problem = fakes.mixed()
    policy = built(problem)
    drawn = policy.rollout(problem, 20, np.random.default_rng(0), 1.0)
    p = np.exp(drawn.extra["log_p"])
    np.testing.assert_allclose(p.sum(axis=2), 1.0, rtol=1e-5)
    allowed = problem.allowed[drawn.group[0]]
    assert np.array_equal(p > 0, np.broadcast_to(allowed, p.shape))


def test_one_kind_of_device_is_a_certain_choice() -> None:
    problem = fakes.diamond(devices=1)
    drawn = built(problem).rollout(problem, 3, np.random.default_rng(0), 1.0)
    assert not drawn.entropy.any()
    assert not drawn.log_prob.any()
