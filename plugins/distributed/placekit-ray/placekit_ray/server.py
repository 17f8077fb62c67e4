"""The parameter server of trainer `asynchronous`: one Ray actor (Mirhoseini et al. 2017, section 3.4)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from placekit_learn.optimisers import OPTIMISERS, Optimiser

Arrays = Mapping[str, Any]


def first_state(
    parameters: Arrays, optimiser: str, controllers: int, limit: int | None, progress: float
) -> dict[str, Any]:
    """The initial state of a server.

    Args:
        parameters: the policy's parameters.
        optimiser: a name in OPTIMISERS.
        controllers: number of controllers.
        limit: largest number of evaluations; None: no limit.
        progress: share of the budget that was used before training.
    """
    return {
        "optimiser": optimiser, "limit": limit, "progress": progress, "parameters": dict(parameters), "optimisers": {},
        "version": 0, "evaluations": 0, "recorded": [], "kept": [None] * controllers, "staleness": {},
    }  # fmt: skip


class ParameterServer:
    """Shares the parameters, the optimisers and the budget among controllers. Ray calls its methods one at a time.

    Ray restarts a controller that dies. The new process calls `join`, which begins a new *life* of the controller; late calls
    from an earlier life are ignored. If the server itself dies, the run ends, and can be resumed from its checkpoint.

    Args:
        state: from `first_state` or `snapshot`.

    Attributes:
        version: number of updates so far.
        parameters: the parameters after these updates.
        recorded: evaluations that the driver has not collected yet.
        lives: number of lives of each controller so far.
        granted: evaluations that each controller may make now.
        kept: state of each controller after its last update, from which its next life continues.
        staleness: number of gradients by staleness; see `Asynchronous`.
    """

    def __init__(self, state: Mapping[str, Any]) -> None:
        self.optimiser, self.limit, self.used_before = str(state["optimiser"]), state["limit"], float(state["progress"])
        self.parameters = {name: np.array(values) for name, values in state["parameters"].items()}
        self.optimisers: dict[str, Optimiser] = {}
        for name, saved in state["optimisers"].items():
            self._optimiser(name).restore(saved)
        self.version, self.evaluations = int(state["version"]), int(state["evaluations"])
        self.recorded: list[Any] = list(state["recorded"])
        self.kept = list(state["kept"])
        self.staleness = {int(k): int(v) for k, v in state["staleness"].items()}
        self.lives, self.granted = [0] * len(self.kept), [0] * len(self.kept)
        self.seconds_progress = 0.0

    def snapshot(self) -> dict[str, Any]:
        """The whole state, for a checkpoint."""
        return {
            "optimiser": self.optimiser, "limit": self.limit, "progress": self.used_before,
            "parameters": self.parameters, "optimisers": {name: o.state() for name, o in self.optimisers.items()},
            "version": self.version, "evaluations": self.evaluations, "recorded": self.recorded, "kept": self.kept,
            "staleness": self.staleness,
        }  # fmt: skip

    def join(self, controller: int) -> dict[str, Any]:
        """Begin a new life of a controller. Returns the data with which it begins, or continues after a restart."""
        self.lives[controller] += 1
        self.granted[controller] = 0
        return {
            "life": self.lives[controller], "version": self.version, "parameters": self.parameters,
            "kept": self.kept[controller], "progress": self._progress(),
        }  # fmt: skip

    def reserve(self, controller: int, life: int, count: int) -> tuple[int, float]:
        """Grant a controller up to `count` evaluations. Returns the number granted and the used share of the budget."""
        if life != self.lives[controller]:
            return 0, self._progress()
        self.granted[controller] = 0
        left = math.inf if self.limit is None else self.limit - self.evaluations - sum(self.granted)
        self.granted[controller] = 0 if self.seconds_progress >= 1 else int(max(0, min(count, left)))
        return self.granted[controller], self._progress()

    def record(self, controller: int, life: int, number: int, placements: Arrays, measurements: Arrays) -> float:
        """Record evaluations of problem `number`. Returns the used share of the budget."""
        if life == self.lives[controller]:
            self.recorded.append([number, dict(placements), dict(measurements)])
            self.evaluations += len(measurements["value_s"])
            self.granted[controller] = 0
        return self._progress()

    def push(
        self, controller: int, life: int, optimiser: str, gradients: Arrays, rate: float, based_on: int
    ) -> tuple[int, dict[str, NDArray[Any]]]:
        """Apply gradients that were computed with the parameters of version `based_on`.

        Returns the version and the parameters after the update.
        """
        if life == self.lives[controller]:
            own = {name: np.array(values) for name, values in gradients.items()}
            for name, step in self._optimiser(optimiser).steps(own, rate).items():
                self.parameters[name] = self.parameters[name] + step
            late = self.version - based_on
            self.staleness[late] = self.staleness.get(late, 0) + 1
            self.version += 1
        return self.version, self.parameters

    def keep(self, controller: int, life: int, state: Mapping[str, Any]) -> None:
        """Save the state of a controller, from which its next life continues."""
        if life == self.lives[controller]:
            self.kept[controller] = dict(state)

    def set_seconds(self, progress: float) -> None:
        """Set the used share of the budget's seconds; from 1 on, no evaluations are granted."""
        self.seconds_progress = max(self.seconds_progress, progress)

    def collect(self) -> tuple[list[Any], int]:
        """Return the evaluations since the last call, and the version."""
        found, self.recorded = self.recorded, []
        return found, self.version

    def _progress(self) -> float:
        """Used share of the budget, in [0, 1]."""
        counted = 0.0
        if self.limit is not None:
            counted = self.used_before + (1 - self.used_before) * self.evaluations / max(self.limit, 1)
        return float(min(1.0, max(counted, self.seconds_progress)))

    def _optimiser(self, name: str) -> Optimiser:
        return self.optimisers.setdefault(name, OPTIMISERS[self.optimiser]())
