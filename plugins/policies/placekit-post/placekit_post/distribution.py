"""Independent softmax distributions over the devices of every group: sampling, and the updates of Post in closed form.

Shapes: K samples, g groups, D devices. `u` [g, D] holds the parameters: log-probabilities up to a constant per group, -inf
for a device of probability 0, such as one that is not allowed; only `mixed` makes it finite again. Everything is float64 and
summed in a fixed order, so that a seed gives the same bits on any number of threads.

Source: Gao et al. 2018, "Post: Device Placement with Cross-Entropy Minimization and Proximal Policy Optimization", section 3.
"""

from __future__ import annotations

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Devices = NDArray[np.int16]


def uniform(allowed: NDArray[np.bool_]) -> Floats:
    """[g, D] parameters that are zero where `allowed`: every allowed device is equally likely (Algorithm 1, line 1)."""
    return np.where(allowed, 0.0, -np.inf)


def log_probabilities(u: Floats) -> Floats:
    """[g, D] logarithm of Eq. 2; -inf for a device of probability 0."""
    shifted = u - u.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))


def probabilities(u: Floats) -> Floats:
    """[g, D] Eq. 2: the softmax of each group's parameters."""
    e = np.exp(u - u.max(axis=1, keepdims=True))
    return np.asarray(e / e.sum(axis=1, keepdims=True))


def entropy(p: Floats) -> Floats:
    """[g] entropy of each group's distribution, nats."""
    return np.asarray(-(p * np.log(np.where(p > 0, p, 1.0))).sum(axis=1))


def sample(p: Floats, count: int, rng: Generator) -> Devices:
    """[count, g] placements from the product of the groups' distributions (Eq. 3); none has probability 0."""
    upper = p.cumsum(axis=1)
    drawn = rng.random((count, len(p), 1)) * upper[:, -1:]  # sums of probabilities are not exactly 1
    return np.asarray((drawn >= upper).sum(axis=2), np.int16)


def frequencies(device: Devices, size: int, weight: Floats | None = None) -> Floats:
    """[g, D] sum of `weight` [K] (default 1) over the samples with that device for the group, divided by K."""
    count, g = device.shape
    cell = np.arange(g) * size + device
    weights = None if weight is None else np.repeat(weight, g)
    total = np.bincount(cell.ravel(), weights, minlength=g * size)
    return np.asarray(total.reshape(g, size) / count)


def cross_entropy(promising: Devices, size: int) -> Floats:
    """[g, D] Eq. 10: the distribution of least cross-entropy (Eq. 9) to the promising placements [P, g]."""
    return frequencies(promising, size)


def mixed(p: Floats, allowed: NDArray[np.bool_], share: float) -> Floats:
    """[g, D] parameters of (1 - share) p + share * uniform over the allowed devices (Algorithm 1, line 12)."""
    even = allowed / allowed.sum(axis=1, keepdims=True)
    with np.errstate(divide="ignore"):  # with share 0, a device of no promising placement has probability 0
        return np.asarray(np.log((1.0 - share) * p + share * even))


def importance(device: Devices, advantage: Floats, p: Floats) -> Floats:
    """[g, D] importance weights: the first term of Eq. 11 is the sum of weight * new probability over groups and devices.

    A weight is the mean over samples of advantage / old probability, for the samples with this device.
    """
    total = frequencies(device, p.shape[1], advantage)
    return np.divide(total, p, out=np.zeros_like(p), where=p > 0)


def surrogate(u: Floats, old: Floats, weight: Floats, beta: float) -> float:
    """Eq. 11 at parameters `u`; `old` [g, D] are the probabilities drawn from, `weight` comes from `importance`."""
    return float((weight * probabilities(u)).sum() - beta * divergence(old, u).sum())


def gradient(u: Floats, old: Floats, weight: Floats, beta: float) -> Floats:
    """[g, D] gradient of `surrogate` in `u`; 0 for a device of probability 0."""
    p = probabilities(u)
    return np.asarray(p * (weight - (p * weight).sum(axis=1, keepdims=True)) - beta * (p - old))


def divergence(old: Floats, u: Floats) -> Floats:
    """[g] KL divergence of the distribution of `u` from `old` [g, D], nats."""
    ratio = np.log(old, out=np.zeros_like(old), where=old > 0)
    np.subtract(ratio, log_probabilities(u), out=ratio, where=old > 0)
    return np.asarray((old * ratio).sum(axis=1))


def ascend(u: Floats, weight: Floats, beta: float, rate: float, steps: int) -> Floats:
    """[g, D] parameters after `steps` steps of gradient ascent on `surrogate` from `u`, with which the samples were drawn.

    The first step is that of REINFORCE (Williams 1992): at `u` the divergence has no gradient, whatever beta is.
    """
    old = probabilities(u)
    for _ in range(steps):
        u = u + rate * gradient(u, old, weight, beta)
    return u


def adapted(beta: float, kl: float, target: float) -> float:
    """The next KL coefficient: doubled above 1.5 * target, halved below target / 1.5 (Schulman et al. 2017, section 4)."""
    if kl > 1.5 * target:
        return 2.0 * beta
    return beta / 2.0 if kl < target / 1.5 else beta
