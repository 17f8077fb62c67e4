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
        version: number of updates behind the parameters that the controller has.
        parameters: at the start.
        kept: the state of the controller after its last update, if Ray has restarted it or the run was resumed.
        progress: share of the budget that is used.
    """

    def __init__(self, server: Any, controller: int) -> None:
        self.server, self.controller = server, controller
        begun = ray.get(server.join.remote(controller))
        self.life, self.version, self.progress = int(begun["life"]), int(begun["version"]), float(begun["progress"])
        self.parameters: Mapping[str, NDArray[Any]] = begun["parameters"]
        self.kept: State | None = begun["kept"]

    def reserve(self, count: int) -> int:
        """How many of `count` evaluations may be made."""
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
        """Have the server keep the state of this controller; its calls are carried out in their order."""
        self.server.keep.remote(self.controller, self.life, dict(state))


class SharedOptimiser(Optimiser):
    """Sends gradients to the server, whose optimiser makes the step, and loads the parameters that come back."""

    def __init__(self, link: Link, policy: LearnablePolicy, name: str) -> None:
        self.link, self.policy, self.name = link, policy, name

    def steps(self, gradients: Mapping[str, NDArray[Any]], learning_rate: float) -> dict[str, NDArray[Any]]:
        """Zeros, for nothing is left to add: the policy has the new parameters when this returns."""
        self.policy.load_state_dict(self.link.push(self.name, gradients, learning_rate))
        return {name: np.zeros_like(values) for name, values in gradients.items()}


class SharedEvaluator(Evaluator):
    """The evaluator of a problem in a controller: the server keeps the budget, workers evaluate.

    `number` is that of the problem among those of the training, `opened` among those of the workers.
    """

    objective: str | None

    def __init__(
        self,
        link: Link,
        fleet: Fleet,
        number: int,
        opened: int,
        problem: Problem,
        failing_signal_s: float,
        objective: str | None,
    ) -> None:
        self.link, self.fleet, self.number, self.opened, self.problem = link, fleet, number, opened, problem
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
            m = self.fleet.evaluate(self.opened, part)
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
        """Nothing: the updates of one controller are not those of the run."""

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

    `about` is plain data: `policy` and `trainer` (`{"name": ..., OPTION: ...}`), `problems` (see `wire.packed`),
    `failing_signal_s` of each, their `numbers` in the workers, `objective`, the `seeds` of the controllers, and of the workers
    `opened` (references to all that they open), `devices` (of each of these), `timeout_s` and `queue_s`.
    """

    problems: Sequence[Problem] = ()

    def prepare(self, about: Mapping[str, Any], workers: Sequence[Any]) -> dict[str, Any]:
        """Build the policy and wait for the workers, before the budget's clock starts. Returns what was raised, if anything."""
        try:
            self.problems = [unpacked(data) for data in about["problems"]]
            self.policy: LearnablePolicy = _built("policy", about["policy"])
            self.fleet = Fleet(workers, about["opened"], about["devices"], about["timeout_s"], about["queue_s"])
            self.fleet.wait()
        except Exception as e:
            return raised(e)
        return {}

    def run(self, index: int, about: Mapping[str, Any], server: Any, workers: Sequence[Any]) -> dict[str, Any]:
        """Train until the budget ends. Returns what was raised, if anything. Ray calls it again in the process of a restart."""
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
            Task(p, SharedEvaluator(link, self.fleet, i, opened, p, about["failing_signal_s"][i], about["objective"]))
            for i, (opened, p) in enumerate(zip(about["numbers"], self.problems, strict=True))
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
