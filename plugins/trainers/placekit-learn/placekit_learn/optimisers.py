"""Optimizers on dicts of numpy arrays. They ascend: a step is to be added to the parameters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = Mapping[str, NDArray[Any]]


class Optimiser(ABC):
    """Computes steps from gradients."""

    @abstractmethod
    def steps(self, gradients: Arrays, learning_rate: float) -> dict[str, NDArray[Any]]:
        """The step to add to each parameter, of the shape and precision of its gradient."""

    def state(self) -> dict[str, Any]:
        """The state that `restore` takes."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state`."""
        return None


class Sgd(Optimiser):
    """Steps in the direction of the gradient."""

    def steps(self, gradients: Arrays, learning_rate: float) -> dict[str, NDArray[Any]]:
        return {name: np.asarray(learning_rate * g, g.dtype) for name, g in gradients.items()}


class Adam(Optimiser):
    """Kingma and Ba 2015, Algorithm 1, with its constants."""

    beta1, beta2, epsilon = 0.9, 0.999, 1e-8

    def __init__(self) -> None:
        self.count = 0
        self.mean: dict[str, NDArray[Any]] = {}
        self.square: dict[str, NDArray[Any]] = {}

    def steps(self, gradients: Arrays, learning_rate: float) -> dict[str, NDArray[Any]]:
        self.count += 1
        unbiased = learning_rate / (1 - self.beta1**self.count)
        correction = (1 - self.beta2**self.count) ** 0.5
        return {name: self._step(name, g, unbiased, correction) for name, g in gradients.items()}

    def _step(self, name: str, gradient: NDArray[Any], rate: float, correction: float) -> NDArray[Any]:
        if name not in self.mean:
            self.mean[name], self.square[name] = np.zeros_like(gradient), np.zeros_like(gradient)
        mean, square = self.mean[name], self.square[name]
        mean += (1 - self.beta1) * (gradient - mean)
        square += (1 - self.beta2) * (gradient * gradient - square)
        return np.asarray(rate * mean / (np.sqrt(square) / correction + self.epsilon), gradient.dtype)

    def state(self) -> dict[str, Any]:
        mean = {name: values.copy() for name, values in self.mean.items()}
        square = {name: values.copy() for name, values in self.square.items()}
        return {"count": self.count, "mean": mean, "square": square}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.count = int(state["count"])
        self.mean = {name: np.array(values) for name, values in state["mean"].items()}
        self.square = {name: np.array(values) for name, values in state["square"].items()}


OPTIMISERS: Mapping[str, type[Optimiser]] = {"adam": Adam, "sgd": Sgd}


def norm(gradients: Arrays) -> float:
    """The Euclidean norm of all gradients together."""
    return float(sum(float(np.sum(np.square(g, dtype=np.float64))) for g in gradients.values()) ** 0.5)


def clipped(gradients: Arrays, max_norm: float | None) -> Arrays:
    """The gradients, scaled down together to the Euclidean norm `max_norm` if theirs is larger."""
    if max_norm is None:
        return gradients
    length = norm(gradients)
    if length <= max_norm:
        return gradients
    return {name: np.asarray(g * (max_norm / length), g.dtype) for name, g in gradients.items()}
