"""The policy `hierarchical`: its groups, their joint probabilities, and that it learns."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
import torch
from placekit_learn.policy_gradient import Reinforce
from placekit_learn.torch_features import positional_encoding
from placekit_seq2seq.hierarchical import Hierarchical
from placekit_testing import fakes

from placekit_core import BudgetExhausted, PlacekitError, Problem

SMALL = {"groups": 5, "grouper_hidden": 8, "hidden": 8, "attention": 4, "type_size": 4, "type_buckets": 16}


def built(problem: Problem, **options) -> Hierarchical:
    policy = Hierarchical(**{**SMALL, **options})
    policy.build([problem], np.random.default_rng(0))
    return policy


def test_operations_are_where_their_group_is() -> None:
    problem = fakes.chain()
    drawn = built(problem).rollout(problem, 10, np.random.default_rng(0), 1.0)
    group, device = drawn.extra["op_group"], drawn.extra["group_device"]
    assert group.shape == (10, problem.g)
    assert device.shape == (10, 5)
    assert np.array_equal(drawn.device, np.take_along_axis(device, group, axis=1))


def test_an_operation_that_may_not_run_there_goes_to_its_first_device() -> None:
    problem = fakes.mixed()
    drawn = built(problem).rollout(problem, 10, np.random.default_rng(0), 1.0)
    wanted = np.take_along_axis(drawn.extra["group_device"], drawn.extra["op_group"], axis=1)
    allowed = problem.allowed[drawn.group[0]]
    may = allowed[np.arange(problem.g), wanted]
    assert not may.all()
    assert np.array_equal(drawn.device, np.where(may, wanted, allowed.argmax(axis=1)))


def test_log_probabilities_add_up_to_the_joint_one() -> None:
    """Of all groupings and placements of three operations into two groups on two devices: the probabilities add up to 1."""
    problem = fakes.independent(3)
    policy = built(problem, groups=2, sharpness=0)  # or some groupings are too rare to be among 4,000
    drawn = policy.rollout(problem, 4000, np.random.default_rng(0), 1.0)
    total = np.exp(drawn.log_prob.sum(axis=1))
    group, device = drawn.extra["op_group"], drawn.extra["group_device"].astype(int)
    used = np.stack([(group == k).any(axis=1) for k in range(2)], axis=1)
    key = np.concatenate([group, np.where(used, device, -1)], axis=1)  # where an empty group is does not matter
    _, first = np.unique(key, axis=0, return_index=True)
    assert len(first) == 2 * 2 + 6 * 4
    assert total[first].sum() == pytest.approx(1.0, abs=1e-4)


def test_the_places_of_a_sequence() -> None:
    at = positional_encoding(8, 2)
    assert at.shape == (8, 4)
    assert torch.allclose(
        at[:, 0], torch.tensor([0.0, 0.5**0.5, 1.0, 0.5**0.5, 0.0, -(0.5**0.5), -1.0, -(0.5**0.5)]), atol=1e-6
    )
    assert torch.allclose(at[:4, 1], at[4:, 1], atol=1e-6), "the second octave has half the period"
    assert positional_encoding(8, 0).shape == (8, 0)
    assert bool(positional_encoding(100_000, 16).isfinite().all())


@pytest.mark.parametrize("sharpness", [1.0, 3.0])
def test_groups_differ_by_place_at_first(sharpness: float) -> None:
    """Operations that are alike but for their place: logits around 0, of the spread that was asked for."""
    problem = fakes.chain(400)
    policy = built(problem, groups=64, grouper_hidden=64, sharpness=sharpness)
    features = policy.features(problem)
    with torch.no_grad():
        log_p = policy._group_log_p(features, policy._types(features))
    by_place = log_p - log_p.mean(dim=1, keepdim=True)
    found = by_place.sub(by_place.mean(dim=0)).square().mean().sqrt() / (2 * np.log(64)) ** 0.5
    assert found == pytest.approx(sharpness, rel=0.3)
    assert by_place.mean(dim=0).abs().mean() < 0.2 * by_place.abs().mean(), "some groups are everyone's favourites"


@pytest.mark.parametrize("options", [{"groups": 1}, {"octaves": 0}, {"sharpness": 0}, {"octaves": 16}])
def test_ends_of_the_options(options: dict[str, int]) -> None:
    problem = fakes.chain()
    drawn = built(problem, **options).rollout(problem, 3, np.random.default_rng(0), 1.0)
    assert np.isfinite(drawn.log_prob).all()


def test_other_octaves_name_the_option() -> None:
    trained, policy = built(fakes.chain(), octaves=4), built(fakes.chain())
    with pytest.raises(PlacekitError) as error:
        policy.load_state_dict(trained.state_dict())
    assert error.value.hint == "give policy.octaves=4, as it was trained with"


def test_parameters_for_other_sizes_name_the_option() -> None:
    policy = built(fakes.chain())
    with pytest.raises(PlacekitError) as error:
        built(fakes.chain(devices=3)).load_state_dict(policy.state_dict())
    assert error.value.hint == "train it with policy.max_devices=3, or more"


@pytest.mark.parametrize(("trained_on", "placed"), [(2, 4), (4, 2)])
def test_a_trained_policy_keeps_its_groups_on_a_graph_of_other_size(trained_on: int, placed: int) -> None:
    trained = built(fakes.independent(trained_on))
    problem = fakes.independent(placed)
    policy = built(problem)
    policy.load_state_dict(trained.state_dict())
    assert policy.groups == trained_on
    assert policy.state_dict().keys() == trained.state_dict().keys()
    assert policy.rollout(problem, 2, np.random.default_rng(0), 1.0).extra["group_device"].shape == (2, trained_on)


def test_parameters_that_do_not_fit_leave_it_as_it_was() -> None:
    problem = fakes.independent(3)
    policy = built(problem)
    before = policy.rollout(problem, 4, np.random.default_rng(0)).placements.device
    with pytest.raises(PlacekitError):
        policy.load_state_dict(built(fakes.chain(devices=3)).state_dict())
    assert policy.groups == 3
    assert np.array_equal(policy.rollout(problem, 4, np.random.default_rng(0)).placements.device, before)


def test_no_more_groups_than_operations() -> None:
    problem = fakes.independent(3)
    policy = built(problem, groups=256)
    assert policy.groups == 3
    assert policy.rollout(problem, 2, np.random.default_rng(0), 1.0).extra["group_device"].shape == (2, 3)


def test_it_has_no_kl_divergence() -> None:
    problem = fakes.chain()
    policy = built(problem)
    drawn = policy.rollout(problem, 2, np.random.default_rng(0), 1.0)
    with pytest.raises(PlacekitError, match="KL divergence"):
        policy.kl(problem, drawn)
    with pytest.raises(PlacekitError, match=r"no KL divergence\n  leave out trainer.kl_target"):
        policy.gradients(problem, drawn, np.ones(drawn.log_prob.shape), kl_weight=1.0)


def test_grouper_and_placer_are_trained_jointly() -> None:
    problem = fakes.chain()
    policy = built(problem)
    drawn = policy.rollout(problem, 4, np.random.default_rng(0), 1.0)
    gradient = policy.gradients(problem, drawn, np.random.default_rng(1).standard_normal(drawn.log_prob.shape))
    for part in ("types", "grouper", "placer.encoder", "placer.decoder"):
        assert any(values.any() for name, values in gradient.items() if name.startswith(part)), part


@pytest.mark.slow
def test_finds_the_optimum() -> None:
    """Each type of operation has a fast device, which only the right groups can use."""
    problem = fakes.unequal(6, devices=2)
    task = fakes.fake_task(problem, 4000)
    policy = built(problem)
    session = fakes.session_of(task)

    def mean_s() -> float:
        return float(
            session.evaluate(policy.rollout(problem, 64, np.random.default_rng(0), 1.0).placements).value_s.mean()
        )

    before = mean_s()
    with contextlib.suppress(BudgetExhausted):
        Reinforce(learning_rate=1e-2).fit(policy, [task], np.random.default_rng(0))
    assert task.evaluate.best is not None
    assert task.evaluate.best.value_s == session.lower_bound()
    assert mean_s() <= before
