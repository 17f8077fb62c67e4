"""Policy `placeto` with the head that scores each device by what is on it."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from placekit_placeto.arrays import Groups, Rules
from placekit_placeto.per_device import ReplayedSums, draw_devices
from placekit_placeto.placeto import Placeto, _episodes_of
from placekit_placeto.prepared import as_matrix, groups_of
from placekit_placeto.state import NUMBERS, SETS, TIMES, State, View, observe, place, view_of
from placekit_testing import fakes

from placekit_core import Placements, Problem

PROBLEMS = {"mixed": fakes.mixed, "unequal": fakes.unequal, "chain": lambda: fakes.chain(30)}
NETWORKS = {
    "placeto": {},
    "no residual, plain sums": {"residual": False, "sums": "plain", "rounds": 2},
    "no schedule": {"schedule": False},
    "no messages": {"rounds": 0},
    "one sum over all groups": {"pooling": "graph", "rounds": 0},
    "several visits": {"visits": 2, "order": "random"},
}


def shaken(problem: Problem, **options: object) -> Placeto:
    """A policy whose parameters are all far from zero, biases too."""
    policy = Placeto(size=5, **options)
    policy.build([problem], np.random.default_rng(0))
    rng = np.random.default_rng(1)
    policy.apply({name: 0.2 * rng.standard_normal(x.shape) for name, x in policy.state_dict().items()})
    return policy


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("problem", PROBLEMS)
def test_what_isdraw_devices_step_by_step_is_judged_at_once(problem: str, network: str) -> None:
    found = PROBLEMS[problem]()
    policy = shaken(found, **NETWORKS[network])
    r = policy.rollout(found, 3, np.random.default_rng(2), 1.0)
    np.testing.assert_allclose(policy.log_prob(found, r), r.log_prob, atol=1e-5)
    np.testing.assert_allclose(policy.kl(found, r), 0.0, atol=1e-5)
    found.check(r.placements)
    assert r.log_prob.std() > 1e-4
    gradients = policy.gradients(found, r, np.random.default_rng(3).standard_normal(r.log_prob.shape), 0.1)
    assert all(np.isfinite(x).all() for x in gradients.values())


def test_devices_are_not_told_apart_by_their_numbers() -> None:
    """Renamed, equal devices get the same probabilities under their new names."""
    problem = fakes.chain(8, devices=3)
    policy = shaken(problem)
    r = policy.rollout(problem, 4, np.random.default_rng(0), 1.0)
    log_p = r.extra["log_p"]
    assert log_p.std() > 1e-3
    assert r.start is not None
    for new in permutations(range(3)):
        renamed = np.array(new, np.int16)
        other = type(r)(
            Placements.of(renamed[r.placements.device]), r.group, renamed[r.device], r.log_prob, r.entropy,
            start=Placements.of(renamed[r.start.device]), extra={"log_p": log_p[:, :, np.argsort(new)]},
        )  # fmt: skip
        np.testing.assert_allclose(policy.kl(problem, other), 0.0, atol=1e-5)
        np.testing.assert_allclose(policy.log_prob(problem, other), r.log_prob, atol=1e-5)


def test_one_network_serves_any_number_of_devices() -> None:
    policy = shaken(fakes.chain(6, devices=2))
    for devices in (1, 2, 5):
        r = policy.rollout(fakes.chain(9, devices=devices), 2, np.random.default_rng(0), 1.0)
        assert r.extra["log_p"].shape == (2, fakes.chain(9).g, devices)


def episode(
    found: Problem, rounds: int, rng: np.random.Generator, whole: bool = False
) -> tuple[Groups, State, View, NDArray[np.float32]]:
    """An episode after `rounds` steps of it, in random order; and outputs of l."""
    groups = groups_of(found, found.cluster.size, "scaled")
    view = view_of(found, groups, Rules(residual=True, whole=whole))
    now, new = (np.where(found.allowed, rng.random(found.allowed.shape), -1).argmax(axis=1) for _ in range(2))
    state = State.of(view, now.astype(np.int16)[None])
    for v in rng.permutation(found.g)[:rounds]:
        place(view, state, 0, v, new[v])
    return groups, state, view, rng.standard_normal((SETS, found.g, 3)).astype(np.float32)


def seen(found: Problem, state: State, view: View, v: int, pooled: NDArray[np.float32]) -> list[NDArray[np.float32]]:
    """Sums and numbers."""
    d = found.cluster.size
    arrays = [np.empty((SETS, d, 3), np.float32), np.empty((d, NUMBERS + TIMES), np.float32)]
    observe(view, state, 0, v, pooled, *arrays)
    return arrays


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("problem", PROBLEMS)
def test_numbers_and_sums_are_what_they_say(problem: str, whole: bool) -> None:
    found = PROBLEMS[problem]()
    g, devices, cluster = found.g, found.cluster.size, found.cluster
    groups, state, view, pooled = episode(found, g // 2, np.random.default_rng(0), whole)
    before, after = (as_matrix(bits, g) for bits in (groups.before, groups.after))
    device, visited = state.device[0], state.visited[0]
    time_s, graph, routes = np.where(found.allowed, found.group_s, 0.0), found.grouped, cluster.routes
    own_s = time_s.sum(axis=1) / found.allowed.sum(axis=1)
    for v in range(g):
        beside = [u for u in range(g) if u != v and not before[v, u] and not after[v, u]]
        sets = [
            [u for u in range(g) if before[v, u]],
            [u for u in range(g) if after[v, u]],
            [u for u in beside if visited[u]],
            [u for u in beside if not visited[u]],
        ]
        if whole:
            sets = [list(range(g)), [], [], []]
        sums, numbers = seen(found, state, view, v, pooled)
        for d in range(devices):
            for k, members in enumerate(sets):
                expected = pooled[k, [u for u in members if device[u] == d]].sum(axis=0) / g * devices
                np.testing.assert_allclose(sums[k, d], expected, rtol=1e-4, atol=1e-5)
            to_v = from_v = 0.0
            for tensor, reader in zip(graph.input_tensor, graph.edge_op, strict=True):
                u = graph.tensor_producer[tensor]
                sent = float(graph.tensor_bytes[tensor])
                if reader == v:
                    to_v += routes.latency_s[device[u], d] + sent * routes.s_per_byte[device[u], d]
                if u == v:
                    from_v += routes.latency_s[d, device[reader]] + sent * routes.s_per_byte[d, device[reader]]
            there = [u for u in range(g) if u != v and device[u] == d]
            load = sum(time_s[u, d] for u in there) / own_s.sum() * devices
            busy = sum(time_s[u, d] * visited[u] for u in there) / own_s.sum() * devices
            kept = sum(found.group_persistent_bytes[u] for u in [*there, v]) / cluster.memory_bytes[d]
            expected = [
                device[v] == d, np.log1p(to_v / own_s.mean()), np.log1p(from_v / own_s.mean()),
                np.log1p(time_s[v, d] / own_s.mean()), load, busy, kept,
            ]  # fmt: skip
            np.testing.assert_allclose(numbers[d, :NUMBERS], np.array(expected, float), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("backwards", [False, True])
def test_the_schedule_is_that_by_hand(problem: str, backwards: bool) -> None:
    """Group after group in the order of the visits: when its device is free and its inputs are there, it starts."""
    found = PROBLEMS[problem]()
    graph, routes, devices = found.grouped, found.cluster.routes, found.cluster.size
    rng = np.random.default_rng(0)
    _, state, view, pooled = episode(found, 0, rng)
    now, new = state.device[0].copy(), np.where(found.allowed, rng.random(found.allowed.shape), -1).argmax(axis=1)
    time_s = np.where(found.allowed, found.group_s, 0.0)
    own_s = time_s.sum(axis=1) / found.allowed.sum(axis=1)
    edges = [
        (int(graph.tensor_producer[tensor]), int(reader), float(graph.tensor_bytes[tensor]))
        for tensor, reader in zip(graph.input_tensor, graph.edge_op, strict=True)
    ]
    end, free = np.zeros(found.g), np.zeros(devices)
    for v in graph.topological_order:
        end[v] = own_s[v] + max((end[a] for a, b, _ in edges if b == v), default=0.0)
    for v in graph.topological_order[:: -1 if backwards else 1]:
        start = np.zeros(devices)
        for d in range(devices):
            there = [
                end[a] + routes.latency_s[now[a], d] + sent * routes.s_per_byte[now[a], d]
                for a, b, sent in edges
                if b == v
            ]
            start[d] = max([free[d], *there])
        _, numbers = seen(found, state, view, v, pooled)
        for k, times in enumerate((start, start + time_s[v])):
            late = (times - times[found.allowed[v]].min()).clip(0)
            np.testing.assert_allclose(numbers[:, NUMBERS + k], np.log1p(late / own_s.mean()), rtol=1e-3, atol=1e-4)
        place(view, state, 0, v, new[v])
        now[v] = new[v]
        end[v] = free[new[v]] = start[new[v]] + time_s[v, new[v]]
        np.testing.assert_allclose(state.end[0] * own_s.mean(), end, rtol=1e-4, atol=1e-7)
        np.testing.assert_allclose(state.free[0] * own_s.mean(), free, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("visits", [1, 2])
def test_gradients_of_the_sums(visits: int) -> None:
    """The sums are linear in what is summed: a product with them changes as its gradient says."""
    problem = fakes.mixed()
    policy = shaken(problem, visits=visits)
    r = policy.rollout(problem, 3, np.random.default_rng(0), 1.0)
    view, e = policy.prepared(problem).inputs.view, _episodes_of(r)
    generator = torch.Generator().manual_seed(0)
    pooled, change = (torch.randn(SETS, problem.g, 5, generator=generator) for _ in range(2))
    pooled.requires_grad_()
    sums, numbers = ReplayedSums.apply(pooled, view, e)
    assert sums.shape[:2] == r.group.shape == (3, visits * problem.g)
    assert not numbers.requires_grad
    weight = torch.randn(sums.shape, generator=generator)
    (sums * weight).sum().backward()
    with torch.no_grad():
        changed = ((ReplayedSums.apply(pooled + change, view, e)[0] - sums) * weight).sum()
    np.testing.assert_allclose((pooled.grad * change).sum(), changed, rtol=1e-3)


def test_gradients_in_parts_are_those_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = fakes.mixed()
    policy = shaken(problem)
    r = policy.rollout(problem, 3, np.random.default_rng(0), 1.0)
    weight = np.random.default_rng(1).standard_normal(r.log_prob.shape)
    whole = policy.gradients(problem, r, weight, 0.1)
    monkeypatch.setattr("placekit_placeto.per_device._LARGEST_ARRAY", 5 * 200 * problem.cluster.size)
    parts = policy.gradients(problem, r, weight, 0.1)
    for name, values in whole.items():
        np.testing.assert_allclose(parts[name], values, rtol=1e-3, atol=1e-5)


def test_draws_follow_the_probabilities() -> None:
    with np.errstate(divide="ignore"):
        log_p = np.log(np.array([[0.2, 0.0, 0.8, 0.0]], np.float32))
    drawn = [int(draw_devices(log_p, np.array([u]))[0]) for u in (0.0, 0.19, 0.21, 0.999, 1.0)]
    assert drawn == [0, 0, 2, 2, 2]
