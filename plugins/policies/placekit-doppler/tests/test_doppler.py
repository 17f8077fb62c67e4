"""The dual policy: features by hand, what episodes explore, how they end."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from placekit_doppler.arrays import FEATURES, Episode
from placekit_doppler.doppler import Doppler
from placekit_doppler.features import Features, standardised
from placekit_doppler.network import Inputs, MessagePassing
from placekit_scheduling import ListScheduler
from placekit_testing import fakes

from placekit_core import GraphBuilder, Problem

SMALL = {"size": 8, "hidden": 8, "rounds": 2}


def built(problem: Problem, seed: int = 0, **options: Any) -> Doppler:
    policy = Doppler(**{**SMALL, **options})
    policy.build([problem], np.random.default_rng(seed))
    return policy


def test_features_by_hand() -> None:
    """x -> a -> (b, c) -> d, with b longer than c: the paths go through b."""
    problem = fakes.diamond()
    f = Features.of(problem)
    names = [problem.graph.op_name[v] for v in f.op]
    assert f.static.shape == (len(names), 5)
    assert_allclose(f.static.mean(axis=0), 0, atol=1e-6)
    assert f.edge.shape == (2, 8), "four edges, both directions"
    rows, members = f.to_exit
    first = names[int(np.argmax(f.b_level[f.op]))]
    path = [names[m] for r, m in zip(rows, members, strict=True) if names[r] == first]
    assert path[0] == first
    assert len(path) == 3
    assert_allclose(standardised(np.array([[1.0, 5.0], [3.0, 5.0]])), [[-1, 0], [1, 0]])


def test_messages_by_hand() -> None:
    """Gilmer et al. 2017, edge network: m_v = sum of A(e_uv) h_u over u; then h_v by a GRU."""
    layer, x = MessagePassing(8, 3), Inputs.of(Features.of(fakes.diamond()))
    first = torch.randn(len(x.static), 8, generator=torch.Generator().manual_seed(0))
    h = first
    with torch.no_grad():
        for _ in range(3):
            m = layer.root(h)
            for sender, receiver, w in zip(*x.edge, x.edge_s, strict=True):
                m[receiver] += h[sender] @ layer.edge(w[None]).view(8, 8)
            h = layer.update(torch.nn.functional.leaky_relu(m, 0.1), h)
        assert_allclose(layer(first, x.edge, x.edge_s), h, atol=1e-6)


def test_any_number_of_threads_gives_the_same_bits() -> None:
    problem = fakes.unequal(12)
    found = set()
    for threads in (1, 2, 3):
        policy = built(problem, episode_threads=threads)
        drawn = policy.rollout(problem, 9, np.random.default_rng(1), 1.0)
        gradient = policy.gradients(problem, drawn, np.ones(drawn.log_prob.shape), 0.1)
        found.add(drawn.log_prob.tobytes() + b"".join(g.tobytes() for g in gradient.values()))
    assert len(found) == 1


def test_greedy_explores_uniformly() -> None:
    """The paper's epsilon: half of the decisions are the likeliest, but for those that are drawn by chance."""
    problem = fakes.chain(40)
    policy = built(problem, exploration="greedy")
    policy.apply({"plc_device.weight": 100 * np.ones((8, FEATURES), np.float32)})
    best = policy.rollout(problem, 1, np.random.default_rng(0)).extra
    half = policy.rollout(problem, 200, np.random.default_rng(0), 0.5).extra
    first = half["device"][:, 0] == best["device"][0, 0]
    assert 0.6 < first.mean() < 0.9, "a half and a half of a half"


def test_drawn_weights_are_learned_by_ranks() -> None:
    """From the order of the advantages, whatever their size, to where they are highest; from equal ones nothing is learned."""
    problem, rng, goal = fakes.unequal(8), np.random.default_rng(1), np.linspace(-2, 2, 14)
    policy, every = built(problem, noise=0.7), np.full(32, True)
    for _ in range(60):
        drawn = policy.rollout(problem, 32, rng, 1.0)
        policy.learn_weights(drawn, -1e-9 * ((drawn.extra["weights"] - goal) ** 2).sum(axis=1), every)
    assert drawn.extra["weights"].std() > 1, "the goals"
    assert drawn.extra["weights"].std(axis=0).max() < 0.3
    assert_allclose(policy.rollout(problem, 1, rng).extra["weights"][0], goal, atol=0.3)
    before = policy.state_dict()["weights_mean"]
    policy.learn_weights(drawn, np.full(32, 3.0), every)
    assert_allclose(policy.state_dict()["weights_mean"], before, rtol=1e-6)
    policy.learn_weights(policy.rollout(problem, 32, rng), rng.random(32), every)  # did not explore
    policy.learn_weights(drawn, rng.random(32), ~every)  # do not count
    assert_allclose(policy.state_dict()["weights_mean"], before, rtol=1e-6)


def test_without_exploration_weights_are_their_mean() -> None:
    problem = fakes.unequal(8)
    policy = built(problem)
    policy.apply({"weights_mean": np.full(14, 0.02, np.float32)})
    assert_allclose(policy.rollout(problem, 3, np.random.default_rng(1)).extra["weights"], 2.0, rtol=1e-5)
    assert_allclose(policy.teach(problem, 3, np.random.default_rng(1), 1.0).extra["weights"], 2.0, rtol=1e-5)


def test_features_beyond_the_paper_by_hand() -> None:
    """x -> a -> (b, c) -> d on two devices: b beside c saves d a transfer, and does not need a's."""
    problem = fakes.diamond()
    policy = built(problem)
    e = Episode(**policy.rollout(problem, 20, np.random.default_rng(0), 1.0).extra)
    names, compared = problem.graph.op_name, 0
    for i in range(20):
        at = {names[v]: d for v, d in zip(e.op[i], e.device[i], strict=True)}
        step = [names[v] for v in e.op[i]].index("c")
        if "b" not in [names[v] for v in e.op[i, :step]]:
            continue
        compared += 1
        transfers, spared = e.features[i, step, :, 6], e.features[i, step, :, 7]
        if at["b"] == at["a"]:
            assert transfers[at["a"]] < transfers[1 - at["a"]]
        else:
            assert not transfers.any(), "b's copy of a is there"
        assert spared[at["b"]] > spared[1 - at["b"]]
    assert compared


def test_kinds_are_of_equal_static_features() -> None:
    """Five equal independent operations are of one kind; what is on a device counts there."""
    problem = fakes.independent(5, devices=3)
    assert Features.of(problem).kind.tolist() == [0] * 5
    e = Episode(**built(problem).rollout(problem, 1, np.random.default_rng(0), 1.0).extra)
    assert not e.features[0, 0, :, 8].any()
    second = e.features[0, 1, :, 8]
    assert second.argmax() == e.device[0, 0]


def test_episodes_near_a_placement() -> None:
    """Without chance they are the placement, order and all; with some, about that share is drawn and has gradients."""
    problem = fakes.unequal(12)
    policy = built(problem)
    best = policy.rollout(problem, 1, np.random.default_rng(7), 1.0)
    device, priority = best.placements.one(0)
    placement = problem.placement(device, priority)
    same = policy.rollout_near(problem, placement, 3, np.random.default_rng(0), 0.0)
    assert (same.extra["op"] == best.extra["op"]).all()
    assert (same.placements.device == device).all()
    assert not same.extra["drawn"].any()
    assert not any(g.any() for g in policy.gradients(problem, same, np.ones(same.log_prob.shape), 1.0).values())
    near = policy.rollout_near(problem, placement, 400, np.random.default_rng(0), 0.1)
    assert 0.07 < near.extra["drawn"][:, :, 1].mean() < 0.13
    assert_allclose(policy.log_prob(problem, near), near.log_prob, atol=1e-5)
    silent = ~near.extra["drawn"].any(axis=2)
    assert (near.log_prob[:, : silent.shape[1]][silent] == 0).all()
    assert 0.02 < (near.placements.device != device).mean() < 0.5


@pytest.mark.parametrize("options", [{"sel": "critical_path"}, {"plc": "earliest_start"}], ids=["plc", "sel"])
def test_ablations_near_a_placement_keep_its_ties(options: dict[str, Any]) -> None:
    """What is not learned follows the critical path, which has many ties here, as the placement broke them."""
    problem = fakes.independent(9, devices=3)
    policy = built(problem, **options)
    best = policy.rollout(problem, 1, np.random.default_rng(7), 1.0)
    device, priority = best.placements.one(0)
    same = policy.rollout_near(problem, problem.placement(device, priority), 5, np.random.default_rng(0), 0.0)
    assert (same.extra["op"] == best.extra["op"]).all()
    assert (same.placements.device == device).all()


def test_selection_order_becomes_priorities() -> None:
    problem = fakes.chain(6)
    r = built(problem).rollout(problem, 1, np.random.default_rng(0))
    priority = r.placements.one(0)[1]
    assert priority is not None
    order = [problem.grouping.group_of[v] for v in r.extra["op"][0]]
    assert (np.diff(priority[order]) < 0).all()


def test_a_full_device_is_not_offered() -> None:
    """Two operations whose weights fill a device each: wherever the first goes, the second goes elsewhere."""
    b = GraphBuilder("two")
    for i in range(2):
        w = b.source(f"w{i}", 60, colocate=i)
        b.add(f"a{i}", inputs=[w], outputs=[1], flops=1e9, colocate=i)
    cluster = fakes.diamond().cluster
    kinds = {k: {**v.model_dump(), "memory_bytes": 100} for k, v in cluster.kinds.items()}
    problem = Problem.of(b.build(), cluster.parse({**cluster.model_dump(), "kinds": kinds}))
    r = built(problem).rollout(problem, 50, np.random.default_rng(0), 1.0)
    used = problem.grouping.group_of[np.flatnonzero(problem.graph.kernel)]
    assert (r.placements.device[:, used[0]] != r.placements.device[:, used[1]]).all()


def test_ablations_do_as_the_critical_path() -> None:
    """Both of them together are the list schedule."""
    problem = fakes.unequal(12)
    policy = built(problem, sel="critical_path", plc="earliest_start")
    r = policy.rollout(problem, 1, np.random.default_rng(0))
    expected = ListScheduler(problem).run("critical_path").placement()
    session = fakes.FakeBackend().open(problem)
    assert session.evaluate(r.placements).value_s[0] == session.evaluate(expected.batch()).value_s[0]


def test_the_teacher_is_learned() -> None:
    """On a chain it stays where it is: of the loss remains what the first operation's free choice costs."""
    problem = fakes.chain(12)
    policy = built(problem)
    rng, losses = np.random.default_rng(0), []
    for _ in range(60):
        loss, gradient = policy.imitate(problem, policy.teach(problem, 8, rng, 1.0), rng)
        losses.append(loss)
        policy.apply({name: 1.0 * g.astype(np.float32) for name, g in gradient.items()})
    assert np.mean(losses[-10:]) < 0.5 * np.mean(losses[:10])
