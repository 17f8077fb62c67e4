"""Policy `placeto` with the paper's head."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from placekit_learn.optimisers import Adam
from placekit_placeto import paper
from placekit_placeto.placeto import Placeto
from placekit_placeto.prepared import as_matrix, groups_of, one_device
from placekit_scheduling import ListScheduler
from placekit_testing import fakes

from placekit_core import PlacekitError, Problem


def shaken(problem: Problem, **options: object) -> Placeto:
    """A policy whose parameters are all far from zero, biases too."""
    policy = Placeto(head="paper", size=5, max_devices=9, **options)
    policy.build([problem], np.random.default_rng(0))
    rng = np.random.default_rng(1)
    policy.apply({name: 0.2 * rng.standard_normal(x.shape) for name, x in policy.state_dict().items()})
    return policy


def test_steps_are_judged_as_they_were_drawn() -> None:
    """All states of all episodes at once, in parts, give the probabilities that the episodes met one by one."""
    problem = fakes.mixed()
    for options in ({"visits": 2, "order": "random"}, {"sums": "plain", "residual": False}, {"pooling": "graph"}):
        policy = shaken(problem, **options)
        found = policy.rollout(problem, 3, np.random.default_rng(2), 1.0)
        np.testing.assert_allclose(policy.log_prob(problem, found), found.log_prob, atol=2e-5)


@pytest.mark.slow
def test_gradients_in_parts_are_those_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = fakes.mixed()
    policy = shaken(problem)
    found = policy.rollout(problem, 3, np.random.default_rng(2), 1.0)
    weight = np.random.default_rng(3).standard_normal(found.log_prob.shape)
    whole = policy.gradients(problem, found, weight, 0.7, 0.3)
    monkeypatch.setattr(paper, "_LARGEST_ARRAY", 1)
    for name, values in policy.gradients(problem, found, weight, 0.7, 0.3).items():
        np.testing.assert_allclose(values, whole[name], rtol=1e-3, atol=1e-4 * max(np.abs(values).max(), 1e-3))


def test_reachability_is_that_of_all_paths() -> None:
    for problem in (fakes.mixed(), fakes.chain(130), fakes.independent(3)):
        graph, g = problem.grouped, problem.g
        direct = np.zeros((g, g), np.bool_)  # [v, u]: u sends to v
        direct[graph.edge_op, graph.tensor_producer[graph.input_tensor]] = True
        expected = direct.copy()
        for v in graph.topological_order:
            for u in np.flatnonzero(direct[v]):
                expected[v] |= expected[u]
        groups = groups_of(problem, problem.cluster.size, "plain")
        assert np.array_equal(as_matrix(groups.before, g), expected)
        assert np.array_equal(as_matrix(groups.after, g), expected.T)


def test_the_network_does_not_see_how_groups_are_numbered() -> None:
    """Of two groups that differ in their numbers only, both are placed with the same probabilities."""
    problem = fakes.independent(6)
    policy = shaken(problem, order="random", order_seed=3, start="one_device")
    r = policy.rollout(problem, 1, np.random.default_rng(0), 0.0)
    again = shaken(problem, order="random", order_seed=4, start="one_device").rollout(
        problem, 1, np.random.default_rng(0), 0.0
    )
    assert not np.array_equal(r.group, again.group)
    np.testing.assert_allclose(np.exp(r.extra["log_p"]), np.exp(again.extra["log_p"]), atol=1e-6)


def test_orders_and_starts() -> None:
    problem = fakes.chain(6)
    g = problem.g
    fixed = shaken(problem, order="random", orders=2)
    r = fixed.rollout(problem, 40, np.random.default_rng(0), 1.0)
    assert len(np.unique(r.group, axis=0)) == 2
    assert all(sorted(row) == list(range(g)) for row in r.group.tolist())
    fresh = shaken(problem, order="random", visits=2, start="one_device").rollout(
        problem, 40, np.random.default_rng(0), 1.0
    )
    assert len(np.unique(fresh.group, axis=0)) > 30
    assert all(sorted(row[:g]) == sorted(row[g:]) == list(range(g)) for row in fresh.group.tolist())
    assert fresh.start is not None
    assert (fresh.start.device == one_device(problem)).all()
    random = shaken(problem).rollout(problem, 40, np.random.default_rng(0), 1.0)
    assert random.start is not None
    assert len(np.unique(random.start.device, axis=0)) > 10


def test_the_start_is_allowed() -> None:
    problem = fakes.mixed()
    for start, seed in itertools.product(("one_device", "random"), range(3)):
        r = shaken(problem, start=start).rollout(problem, 5, np.random.default_rng(seed), 1.0)
        assert r.start is not None
        problem.check(r.start)


def test_too_many_devices_are_refused() -> None:
    policy = Placeto(head="paper")
    policy.build([fakes.diamond(devices=2)], np.random.default_rng(0))
    with pytest.raises(PlacekitError, match=r"(?s)was built for 2 devices, .* has 3.*policy.max_devices=3"):
        policy.rollout(fakes.diamond(devices=3), 1, np.random.default_rng(0))
    more = Placeto(head="paper")
    more.build([fakes.diamond(devices=3)], np.random.default_rng(0))
    with pytest.raises(PlacekitError, match="do not fit") as error:
        more.load_state_dict(policy.state_dict())
    assert error.value.hint == "train it with policy.max_devices=3, or more"


@pytest.mark.parametrize("visits", [1, 2])
def test_teaches_the_critical_path_from_any_start(visits: int) -> None:
    """In a lesson every visit takes its group to the device of a list schedule; starts are the policy's own."""
    problem = fakes.diamond()
    policy = shaken(problem, visits=visits, order="random", start="random")
    lesson = policy.teach(problem, 40, np.random.default_rng(5), 1.0)
    scheduled = {
        tuple(ListScheduler(problem).run("critical_path", seed=seed).devices().tolist()) for seed in range(200)
    }
    assert len(np.unique(lesson.start.device, axis=0)) > 1
    for i, placed in enumerate(lesson.placements.device):
        assert tuple(placed.tolist()) in scheduled
        assert np.array_equal(lesson.device[i], placed[lesson.group[i]])


@pytest.mark.parametrize("head", [pytest.param("paper", marks=pytest.mark.slow), "per_device"])
def test_learns_to_place_as_its_teacher_does(head: str) -> None:
    """The critical path keeps a chain on one device. After 120 lessons the policy does, too, in most of its own episodes."""
    problem = fakes.chain(6)
    policy = Placeto(head=head, size=5)
    policy.build([problem], np.random.default_rng(0))
    rng, optimiser = np.random.default_rng(1), Adam()

    def together() -> float:
        """The share of episodes that end on one device."""
        device = policy.rollout(problem, 100, np.random.default_rng(2), 1.0).placements.device
        return float((device == device[:, :1]).all(axis=1).mean())

    before = together()
    for _ in range(120):
        _, gradient = policy.imitate(problem, policy.teach(problem, 4, rng, 1.0), rng)
        policy.apply(optimiser.steps(gradient, 0.02))
    assert before < 0.1
    assert together() > 0.6
