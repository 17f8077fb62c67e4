"""The closed forms of Post: Eq. 10 against Eq. 9, the gradient of Eq. 11 against finite differences and autograd."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from placekit_post import distribution as dist

Floats = NDArray[np.float64]
ALLOWED = np.array([[1, 1, 1, 1], [0, 1, 1, 1], [1, 0, 0, 1], [0, 0, 1, 0]], np.bool_)


def example(seed: int = 0, count: int = 12) -> tuple[Floats, Floats, NDArray[np.int16], Floats]:
    """Old and new parameters [4, 4] on `ALLOWED`, placements drawn from the old ones, and their advantages."""
    rng = np.random.default_rng(seed)
    old, new = (np.where(ALLOWED, rng.standard_normal(ALLOWED.shape), -np.inf) for _ in range(2))
    return old, new, dist.sample(dist.probabilities(old), count, rng), rng.standard_normal(count)


def equation_9(u: Floats, promising: NDArray[np.int16]) -> float:
    """Cross-entropy to the promising placements, mean over them, as in the paper."""
    log_p = dist.log_probabilities(u)
    return -float(log_p[np.arange(len(u)), promising].sum(axis=1).mean())


def equation_11(u: Floats, old: Floats, device: NDArray[np.int16], advantage: Floats, beta: float) -> float:
    """The objective as the paper has it, sample by sample."""
    p, q = dist.probabilities(u), dist.probabilities(old)
    total = 0.0
    for placement, a in zip(device, advantage, strict=True):
        for m, d in enumerate(placement):
            kl = sum(q[m, j] * np.log(q[m, j] / p[m, j]) for j in range(len(q[m])) if q[m, j] > 0)
            total += p[m, d] / q[m, d] * a - beta * kl
    return total / len(device)


def test_equation_10_is_the_minimum_of_equation_9() -> None:
    optimize = pytest.importorskip("scipy.optimize")
    promising = np.random.default_rng(1).integers(0, 3, (6, 5)).astype(np.int16)
    found = optimize.minimize(
        lambda x: equation_9(x.reshape(5, 3), promising), np.zeros(15), method="L-BFGS-B", options={"ftol": 1e-15}
    )
    closed = dist.cross_entropy(promising, 3)
    np.testing.assert_allclose(dist.probabilities(found.x.reshape(5, 3)), closed, atol=1e-3)
    used = closed > 0
    entropy = -(closed[used] * np.log(closed[used])).sum()
    assert entropy <= found.fun <= entropy + 1e-4, "nothing is below the closed form"


def test_equation_10_is_a_minimum_without_scipy() -> None:
    """Moves of the parameters from it, in any direction, make the cross-entropy greater."""
    rng = np.random.default_rng(2)
    promising = rng.integers(0, 3, (40, 5)).astype(np.int16)
    u = np.log(dist.cross_entropy(promising, 3))
    least = equation_9(u, promising)
    for _ in range(50):
        assert equation_9(u + 0.1 * rng.standard_normal(u.shape), promising) > least


@pytest.mark.parametrize("beta", [0.0, 1.0, 3.0])
def test_surrogate_is_equation_11(beta: float) -> None:
    old, new, device, advantage = example()
    q = dist.probabilities(old)
    weight = dist.importance(device, advantage, q)
    expected = equation_11(new, old, device, advantage, beta)
    assert dist.surrogate(new, q, weight, beta) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("rewarded", "beta"), [(1.0, 0.0), (0.0, 1.0), (1.0, 2.5)], ids=["ratio", "kl", "both"])
def test_gradient_of_equation_11_by_finite_differences(rewarded: float, beta: float) -> None:
    old, new, device, advantage = example(3)
    advantage = rewarded * advantage
    q = dist.probabilities(old)
    gradient = dist.gradient(new, q, dist.importance(device, advantage, q), beta)
    step = 1e-6
    for m, j in np.argwhere(ALLOWED):
        up, down = new.copy(), new.copy()
        up[m, j] += step
        down[m, j] -= step
        higher, lower = (equation_11(u, old, device, advantage, beta) for u in (up, down))
        assert gradient[m, j] == pytest.approx((higher - lower) / (2 * step), abs=1e-8)
    assert (gradient[~ALLOWED] == 0).all()


@pytest.mark.parametrize(("rewarded", "beta"), [(1.0, 0.0), (0.0, 1.0), (1.0, 2.5)], ids=["ratio", "kl", "both"])
def test_gradient_of_equation_11_by_autograd(rewarded: float, beta: float) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(4)
    old, new = rng.standard_normal((2, 6, 3))
    q = dist.probabilities(old)
    device = dist.sample(q, 12, rng)
    advantage = rewarded * rng.standard_normal(12)
    u = torch.tensor(new, requires_grad=True)
    before, now = torch.log_softmax(torch.tensor(old), 1), torch.log_softmax(u, 1)
    chosen = torch.arange(6), torch.tensor(device.astype(np.int64))
    ratio = (now[chosen] - before[chosen]).exp()
    kl = (before.exp() * (before - now)).sum()
    ((ratio * torch.tensor(advantage)[:, None]).sum(1).mean() - beta * kl).backward()
    closed = dist.gradient(new, q, dist.importance(device, advantage, q), beta)
    np.testing.assert_allclose(closed, u.grad.numpy(), rtol=1e-10, atol=1e-12)


def test_first_step_is_reinforce_whatever_beta() -> None:
    old, _, device, advantage = example(5)
    p = dist.probabilities(old)
    chosen = np.eye(4)[device]  # [K, g, D]
    reinforce = (advantage[:, None, None] * (chosen - p)).mean(axis=0)
    weight = dist.importance(device, advantage, p)
    for beta in (0.0, 7.0):
        np.testing.assert_allclose(
            dist.ascend(old, weight, beta, 0.5, 1)[ALLOWED], (old + 0.5 * reinforce)[ALLOWED], atol=1e-12
        )


def test_ascent_improves_the_objective() -> None:
    old, _, device, advantage = example(6)
    q = dist.probabilities(old)
    weight = dist.importance(device, 0.2 * advantage, q)
    values = [dist.surrogate(dist.ascend(old, weight, 1.0, 1.0, steps), q, weight, 1.0) for steps in (1, 3, 10, 100)]
    assert values == sorted(values)
    assert values[0] > dist.surrogate(old, q, weight, 1.0)


def test_beta_adapts_to_the_target() -> None:
    assert dist.adapted(1.0, 0.046, 0.03) == 2.0
    assert dist.adapted(1.0, 0.044, 0.03) == 1.0
    assert dist.adapted(1.0, 0.021, 0.03) == 1.0
    assert dist.adapted(1.0, 0.019, 0.03) == 0.5


def test_divergence_of_distributions() -> None:
    u = np.log(np.array([[0.5, 0.5, 0.0]]), where=[[True, True, False]], out=np.full((1, 3), -np.inf))
    assert dist.divergence(np.array([[1.0, 0.0, 0.0]]), u)[0] == pytest.approx(np.log(2))
    assert dist.divergence(np.array([[0.5, 0.5, 0.0]]), u)[0] == pytest.approx(0.0)


def test_samples_follow_the_distribution() -> None:
    old, *_ = example(7)
    p = dist.probabilities(old)
    device = dist.sample(p, 20_000, np.random.default_rng(0))
    np.testing.assert_allclose(dist.frequencies(device, 4), p, atol=0.015)
    assert ALLOWED[np.arange(4), device].all()


def test_starts_uniform_over_the_allowed() -> None:
    p = dist.probabilities(dist.uniform(ALLOWED))
    np.testing.assert_allclose(p, ALLOWED / ALLOWED.sum(axis=1, keepdims=True))


def test_mixing_is_over_the_allowed() -> None:
    promising = np.array([[3, 3, 3, 2]], np.int16)
    p = dist.probabilities(dist.mixed(dist.cross_entropy(promising, 4), ALLOWED, 0.1))
    np.testing.assert_allclose(p[0], [0.025, 0.025, 0.025, 0.925])
    np.testing.assert_allclose(p[2], [0.05, 0.0, 0.0, 0.95])
    assert (p[~ALLOWED] == 0).all()


def test_what_has_no_probability_never_has_any_by_gradients() -> None:
    promising = np.zeros((3, 4), np.int16)
    promising[:, 1:] = [1, 3, 2]
    u = dist.mixed(dist.cross_entropy(promising, 4), ALLOWED, 0.0)
    p = dist.probabilities(u)
    device = dist.sample(p, 12, np.random.default_rng(0))
    assert (device == promising[0]).all()
    after = dist.ascend(u, dist.importance(device, np.linspace(-1, 1, 12), p), 1.0, 1.0, 10)
    np.testing.assert_array_equal(dist.probabilities(after), p)
