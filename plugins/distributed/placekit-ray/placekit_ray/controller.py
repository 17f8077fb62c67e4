"""A controller: a Ray actor that draws placements, has its workers evaluate them, and sends gradients to the server."""

from __future__ import annotations

import dataclasses
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
from placekit_ray.fleet import Faults, Fleet
from placekit_ray.wire import measurements_as, placements_as, unpacked
from placekit_ray.worker import raised


class Link:
    """The connection of one controller to the server: every call has a number, so that a repeated one counts once.

    Attributes:
        step, ticket: numbers of the next gradients and of the next evaluations.
        version: number of steps behind the parameters that the controller has.
        progress: share of the budget that is used.
    """

    def __init__(self, server: Any, controller: int) -> None:
        self.server, self.controller = server, controller
        begun = ray.get(server.fetch.remote(controller))
        self.step, self.ticket, self.life = int(begun["step"]), int(begun["ticket"]), int(begun["life"])
        self.version, self.progress = int(begun["version"]), float(begun["progress"])
        self.parameters: Mapping[str, NDArray[Any]] = begun["parameters"]
        self.kept: State | None = begun["kept"]

    def reserve(self, count: int) -> int:
        """How many of `count` evaluations may be made."""
        granted, self.progress = ray.get(self.server.reserve.remote(self.controller, self.life, count))
        return int(granted)

    def record(
        self, number: int, placements: Placements, measurements: Measurements, faults: Mapping[str, int]
    ) -> None:
        """Count evaluations of problem `number`."""
        plain = placements_as(placements), measurements_as(measurements), dict(faults)
        self.progress = ray.get(self.server.record.remote(self.controller, self.life, self.ticket, number, *plain))
        self.ticket += 1

    def push(self, optimiser: str, gradients: Mapping[str, NDArray[Any]], rate: float) -> Mapping[str, NDArray[Any]]:
        """Send gradients; returns the parameters after the step."""
        call = self.server.push.remote(
            self.controller, self.life, self.step, optimiser, dict(gradients), rate, self.version
        )
        self.version, parameters = ray.get(call)
        self.step += 1
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
        self._told = dataclasses.asdict(Faults())

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
            now = dataclasses.asdict(self.fleet.faults)
            self.link.record(self.number, part, m, {name: count - self._told[name] for name, count in now.items()})
            self._told = now
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
            placement = self.problem.placement(*placements.one(row))
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
    `failing_signal_s` of each, their `numbers` in the workers, `devices` of all problems there, `objective`, `workers` (what each
    is told, see `Worker.ready`), `timeout_s` and `queue_s` of the fleet, and the `seeds` of the controllers.
    """

    def run(
        self, index: int, about: Mapping[str, Any], workers_about: Any, server: Any, workers: Sequence[Any]
    ) -> dict[str, Any]:
        """Train until the budget ends. Returns what was raised, if anything was. Ray calls it again after a restart."""
        try:
            return self._run(index, about, workers_about, server, workers)
        except BudgetExhausted:
            return {}
        except Exception as e:
            return raised(e)
        finally:
            server.leave.remote(index)

    def _run(
        self, index: int, about: Mapping[str, Any], workers_about: Any, server: Any, workers: Sequence[Any]
    ) -> dict[str, Any]:
        problems = [unpacked(data) for data in about["problems"]]
        link = Link(server, index)
        policy: LearnablePolicy = _built("policy", about["policy"])
        rng = np.random.default_rng(about["seeds"][index])
        policy.build(problems, rng)
        policy.load_state_dict({name: np.array(values) for name, values in link.parameters.items()})
        fleet = Fleet(workers, ray.put(workers_about), list(about["devices"]), about["timeout_s"], about["queue_s"])
        tasks = [
            Task(p, SharedEvaluator(link, fleet, i, opened, p, about["failing_signal_s"][i], about["objective"]))
            for i, (opened, p) in enumerate(zip(about["numbers"], problems, strict=True))
        ]
        trainer: PolicyGradient = _built("trainer", about["trainer"])
        trainer.shared = lambda name: SharedOptimiser(link, policy, name)
        fleet.wait()
        ray.get(server.arrive.remote(index))
        state = None
        if link.kept is not None:
            rng.bit_generator.state = link.kept["rng"]
            state = link.kept["trainer"]

        def keep(state: State) -> None:
            link.keep({"trainer": dict(state), "rng": rng.bit_generator.state})

        trainer.fit(policy, tasks, rng, state, keep)
        return {}


def _built(kind: str, spec: Mapping[str, Any]) -> Any:
    return installed().build(kind, spec["name"], {k: v for k, v in spec.items() if k != "name"})
