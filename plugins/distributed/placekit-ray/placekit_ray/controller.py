"""A controller: a Ray actor that draws placements, has its workers evaluate them, and sends gradients to the server."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray
from placekit_learn.optimisers import Optimiser
from placekit_learn.policy_gradient import PolicyGradient

from placekit_core import (
    BackendError,
    Best,
    BudgetExhausted,
    Evaluator,
    LearnablePolicy,
    Ledger,
    Measurements,
    Placement,
    Placements,
    Problem,
    Schedule,
    Session,
    State,
    Task,
    installed,
)
from placekit_ray.fleet import LOST, Fleet
from placekit_ray.wire import measurements_as, placements_as, unpacked
from placekit_ray.worker import raised


class Link:
    """The connection of one controller to the server.

    Attributes:
        life: how often this controller was started.
        version: number of updates in the parameters that the controller has.
        parameters: initial parameters.
        kept: the controller's state after its last update, if Ray has restarted it or the run was resumed; else None.
        progress: share of the budget that is used.
    """

    def __init__(self, server: Any, controller: int) -> None:
        self.server, self.controller = server, controller
        begun = ray.get(server.join.remote(controller))
        self.life, self.version, self.progress = int(begun["life"]), int(begun["version"]), float(begun["progress"])
        self.parameters: Mapping[str, NDArray[Any]] = begun["parameters"]
        self.kept: State | None = begun["kept"]

    def reserve(self, count: int) -> int:
        """How many of `count` evaluations the budget allows now."""
        granted, self.progress = ray.get(self.server.reserve.remote(self.controller, self.life, count))
        return int(granted)

    def record(self, number: int, placements: Placements, measurements: Measurements) -> None:
        """Count evaluations of problem `number`."""
        plain = placements_as(placements), measurements_as(measurements)
        self.progress = ray.get(self.server.record.remote(self.controller, self.life, number, *plain))

    def push(self, optimiser: str, gradients: Mapping[str, NDArray[Any]], rate: float) -> Mapping[str, NDArray[Any]]:
        """Send gradients; returns the parameters after the update."""
        call = self.server.push.remote(self.controller, self.life, optimiser, dict(gradients), rate, self.version)
        self.version, parameters = ray.get(call)
        return {name: np.array(values) for name, values in parameters.items()}

    def keep(self, state: State) -> None:
        """Save the state of this controller on the server."""
        self.server.keep.remote(self.controller, self.life, dict(state))


class SharedOptimiser(Optimiser):
    """Sends gradients to the server, whose optimiser makes the step, and loads the parameters that come back."""

    def __init__(self, link: Link, policy: LearnablePolicy, name: str) -> None:
        self.link, self.policy, self.name = link, policy, name

    def steps(self, gradients: Mapping[str, NDArray[Any]], learning_rate: float) -> dict[str, NDArray[Any]]:
        """Send the gradients and load the new parameters; returns zeros, because nothing is left to add."""
        self.policy.load_state_dict(self.link.push(self.name, gradients, learning_rate))
        return {name: np.zeros_like(values) for name, values in gradients.items()}


class SharedEvaluator(Evaluator):
    """The evaluator of problem `number` in a controller: the server keeps the budget, workers evaluate."""

    objective: str | None

    def __init__(
        self,
        link: Link,
        fleet: Fleet,
        number: int,
        problem: Problem,
        failing_signal_s: float,
        objective: str | None,
    ) -> None:
        self.link, self.fleet, self.number, self.problem = link, fleet, number, problem
        self.failing_signal_s, self.objective = failing_signal_s, objective
        self.session: Session = _NoSession()
        self.ledger, self.evaluations = Ledger(), 0
        self.best: Best | None = None
        self.proven_s: float | None = None
        self.notes: list[str] = []

    @property
    def remaining(self) -> float:
        return 0 if self.link.progress >= 1 else math.inf

    @property
    def progress(self) -> float:
        return self.link.progress

    def __call__(self, placements: Placements) -> Measurements:
        self.problem.check(placements)
        granted = self.link.reserve(len(placements))
        if granted:
            part = placements[:granted]
            m = self.fleet.evaluate(self.number, part)
            self.link.record(self.number, part, m)
            self._see(part, m)
        if granted < len(placements):
            raise BudgetExhausted(self)
        return m

    def _see(self, placements: Placements, m: Measurements) -> None:
        """Count, and keep the best placement."""
        self.evaluations += len(m)
        value = np.where(m.fits & np.isfinite(m.value_s), m.value_s, np.inf)
        row = int(np.argmin(value))
        if np.isfinite(value[row]) and (self.best is None or value[row] < self.best.value_s):
            placement = self.problem.row(placements, row)
            self.best = Best(placement, float(value[row]), m.peak_bytes[row], None, self.evaluations)

    def kernel(self) -> Any:
        return None

    def charge(self, evaluations: int, best: Placements, mean_s: float = math.nan) -> None:
        raise ValueError("a controller has no compiled evaluation to charge for")

    def record(self, placements: Placements, measurements: Measurements) -> None:
        raise ValueError("the server records the evaluations of a controller")

    def log(self, **values: float) -> None:
        """Do nothing: the history of the run has no columns of single controllers."""

    def prefer(self, placement: Placement, within: float) -> bool:
        return False


class _NoSession(Session):
    """A controller has no backend of its own."""

    def evaluate(self, placements: Placements) -> Measurements:
        raise BackendError("a trainer evaluates by its evaluator, not by the session of the backend")

    def schedule(self, placement: Placement) -> Schedule:
        raise BackendError("a controller has no backend that makes schedules")


class Controller:
    """Trains a copy of the policy, with the parameters of the server.

    `about` is plain data: `policy` and `trainer` (`{"name": ..., OPTION: ...}`), `problems` (see `wire.packed`) with the
    `failing_signal_s` of each, `objective`, the `seeds` of the controllers, and for the workers `opened` (references to what
    `Worker.open` needs for each problem) and `timeout_s`.
    """

    problems: Sequence[Problem] = ()

    def prepare(self, about: Mapping[str, Any], workers: Sequence[Any]) -> dict[str, Any]:
        """Build the policy and wait for the workers, before the budget's clock starts. Returns the exception, if any."""
        try:
            self.problems = [unpacked(data) for data in about["problems"]]
            self.policy: LearnablePolicy = _built("policy", about["policy"])
            self.fleet = Fleet(workers, about["opened"], [p.cluster.size for p in self.problems], about["timeout_s"])
            self.fleet.wait()
        except Exception as e:
            return raised(e)
        return {}

    def run(self, index: int, about: Mapping[str, Any], server: Any, workers: Sequence[Any]) -> dict[str, Any]:
        """Train until the budget ends. Returns the exception, if any. After a restart, Ray calls it again."""
        if not self.problems and (error := self.prepare(about, workers)):
            return error
        try:
            self._run(index, about, Link(server, index))
        except BudgetExhausted:
            pass
        except LOST as e:
            return raised(BackendError(f"the parameter server is lost: {str(e).splitlines()[0]}"))
        except Exception as e:
            return raised(e)
        return {}

    def _run(self, index: int, about: Mapping[str, Any], link: Link) -> None:
        rng = np.random.default_rng(about["seeds"][index])
        self.policy.build(self.problems, rng)
        self.policy.load_state_dict({name: np.array(values) for name, values in link.parameters.items()})
        tasks = [
            Task(p, SharedEvaluator(link, self.fleet, i, p, about["failing_signal_s"][i], about["objective"]))
            for i, p in enumerate(self.problems)
        ]
        trainer: PolicyGradient = _built("trainer", about["trainer"])
        trainer.shared = lambda name: SharedOptimiser(link, self.policy, name)
        state = None
        if link.kept is not None:
            rng.bit_generator.state = link.kept["rng"]
            state = link.kept["trainer"]

        def keep(state: State) -> None:
            link.keep({"trainer": dict(state), "rng": rng.bit_generator.state})

        trainer.fit(self.policy, tasks, rng, state, keep)


def _built(kind: str, spec: Mapping[str, Any]) -> Any:
    return installed().build(kind, spec["name"], {k: v for k, v in spec.items() if k != "name"})
