"""Trainer `asynchronous`: runs controllers, workers and a parameter server (Mirhoseini et al. 2017, section 3.4)."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import ray
from numpy.random import Generator
from placekit_learn.policy_gradient import TOO_FEW, PolicyGradient
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from placekit_core import (
    Backend,
    BackendError,
    BudgetExhausted,
    Checkpoint,
    ConfigError,
    LearnablePolicy,
    State,
    Task,
    Trainer,
    installed,
    report_progress,
)
from placekit_ray.backend import RaySession, to_open
from placekit_ray.cluster import check_alive, check_versions, connect, distributions_of, end, start_workers
from placekit_ray.controller import Controller
from placekit_ray.fleet import LOST
from placekit_ray.options import AsynchronousOptions
from placekit_ray.server import ParameterServer, first_state
from placekit_ray.wire import measurements_from, packed, placements_from
from placekit_ray.worker import failed

_POLL_S = 0.2
"""Seconds between two requests to the server for new evaluations."""
_CHECKPOINT_S, _CHECKPOINT_FACTOR = 1.0, 20.0
"""Least seconds between two checkpoints: this many, and this many times the duration of the last checkpoint."""


class Asynchronous(Trainer):
    """Computes the updates of another trainer in many processes.

    Each of C controllers has a copy of the policy, its own random numbers and its own baseline. It draws a batch, has its W
    workers simulate it, computes a gradient, and sends it to the parameter server. The server applies gradients as they
    arrive, with one optimiser, and answers with its parameters. Others may update the parameters between the moment when a
    controller reads them and the moment when its gradient is applied; the number of these updates is the gradient's staleness.

    Attributes:
        staleness: number of gradients by staleness.
    """

    name = "asynchronous"
    options_class = AsynchronousOptions
    options: AsynchronousOptions

    def fit(
        self,
        policy: LearnablePolicy,
        tasks: Sequence[Task],
        rng: Generator,
        state: State | None = None,
        checkpoint: Checkpoint | None = None,
    ) -> None:
        """Train until the budget ends. Raises ConfigError, and BackendError if the cluster cannot be used."""
        self._refuse_backend(tasks[0])
        trainer, o = self._inner(policy, tasks), self.options
        seeds = list(state["seeds"]) if state else [int(s) for s in rng.integers(2**62, size=o.controllers)]
        actors: list[Any] = []
        try:
            with tasks[0].evaluate.ledger.paused():  # starting processes is not searching
                connect(o, o.controllers * o.workers * o.worker_cpus + 1)
                kinds = [("backend", tasks[0].backend["name"]), ("policy", policy.name), ("trainer", trainer.name)]
                check_versions(distributions_of(kinds))
                server = self._server(policy, trainer, tasks, state)
                actors.append(server)
                runs = self._start(server, self._data_for_controllers(policy, trainer, tasks, seeds), actors)
            self._supervise(server, runs, policy, tasks, seeds, checkpoint)
        finally:
            end(actors)
        raise BudgetExhausted(tasks[0].evaluate)

    def _start(self, server: Any, about: Mapping[str, Any], actors: list[Any]) -> list[Any]:
        """Start workers and controllers, and add them to `actors`. Returns references to the results of the controllers."""
        o = self.options
        workers = start_workers(o.controllers * o.workers, o)
        actors += workers
        make: Any = ray.remote(Controller).options(num_cpus=0, max_restarts=-1, max_task_retries=-1)
        controllers = [make.remote() for _ in range(o.controllers)]
        actors += controllers
        shared = ray.put(about)
        own = [workers[i * o.workers : (i + 1) * o.workers] for i in range(o.controllers)]
        preparing = [c.prepare.remote(shared, w) for c, w in zip(controllers, own, strict=True)]
        while preparing:
            preparing = _unfinished(preparing)
        return [c.run.remote(i, shared, server, own[i]) for i, c in enumerate(controllers)]

    def _refuse_backend(self, task: Task) -> None:
        """Raise ConfigError if the run's backend cannot evaluate in several processes of this trainer."""
        backend = _backend(task)
        if not backend.simulated:
            raise ConfigError(
                f"trainer asynchronous needs a simulator, but backend {backend.name!r} measures",
                "to measure on several machines, use parallel=ray with another trainer, such as trainer=reinforce",
            )
        if isinstance(task.evaluate.session, RaySession):
            raise ConfigError("trainer asynchronous starts its own workers", "leave out parallel=ray")
        if not backend.parallel:
            raise ConfigError(
                f"trainer asynchronous cannot evaluate on backend {backend.name!r} in several processes",
                "choose another simulator",
            )

    def _inner(self, policy: LearnablePolicy, tasks: Sequence[Task]) -> PolicyGradient:
        """The trainer whose updates are computed. Raises ConfigError if other processes cannot compute them."""
        registry = installed()
        entries = registry.entries.get(("policy", policy.name), [])
        if len(entries) != 1 or entries[0].load() is not type(policy):
            raise ConfigError(
                f"trainer asynchronous: other processes cannot build policy {policy.name!r}, an object of this program",
                "give the name of an installed policy",
            )
        if any(task.pretraining is not None for task in tasks):
            raise ConfigError(
                "trainer asynchronous does not train on a proxy first", "leave out budget.proxy_evaluations"
            )
        own = registry.own_trainer(policy.name)
        spec = dict(self.options.inner or {"name": own})
        name = str(spec.pop("name", ""))
        if name == own:
            spec = {**registry.own_trainer_options(policy.name), **spec}
        entry = registry.get("trainer", name)
        trainer = entry.build(entry.options(spec, "trainer.inner."))
        if not isinstance(trainer, PolicyGradient):
            raise ConfigError(
                f"trainer asynchronous cannot share the updates of trainer {name!r}",
                "choose a policy gradient of placekit-learn, such as trainer.inner=reinforce",
            )
        return trainer

    def _data_for_controllers(
        self, policy: LearnablePolicy, trainer: PolicyGradient, tasks: Sequence[Task], seeds: list[int]
    ) -> dict[str, Any]:
        """The data from which a `Controller` builds policy, trainer and problems."""
        backend = _backend(tasks[0])
        return {
            "policy": {"name": policy.name, **policy.options.model_dump(mode="json")},
            "trainer": {"name": trainer.name, **trainer.options.model_dump(mode="json")},
            "problems": [packed(task.problem) for task in tasks],
            "failing_signal_s": [task.evaluate.failing_signal_s for task in tasks],
            "objective": tasks[0].evaluate.objective,
            "seeds": seeds,
            "opened": [to_open(backend, task.problem, None, self.options.least_s) for task in tasks],
            "timeout_s": self.options.timeout_s,
        }

    def _server(
        self, policy: LearnablePolicy, trainer: PolicyGradient, tasks: Sequence[Task], state: State | None
    ) -> Any:
        """Start the server on the machine of the run."""
        if state is not None:
            begin = dict(state["server"])
        else:
            evaluate = tasks[0].evaluate
            limit = None if evaluate.remaining == float("inf") else int(evaluate.remaining)
            count, optimiser = self.options.controllers, trainer.options.optimiser
            begin = first_state(policy.state_dict(), optimiser, count, limit, evaluate.progress)
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        make: Any = ray.remote(ParameterServer).options(num_cpus=0, scheduling_strategy=here)
        return make.remote(begin)

    def _supervise(
        self,
        server: Any,
        runs: list[Any],
        policy: LearnablePolicy,
        tasks: Sequence[Task],
        seeds: list[int],
        checkpoint: Checkpoint | None,
    ) -> None:
        """Record evaluations and offer checkpoints until the controllers have ended."""
        ledger, every_s, offered = tasks[0].evaluate.ledger, _CHECKPOINT_S, time.monotonic()
        while runs:
            runs = _unfinished(runs)
            version = self._record(server, tasks)
            report_progress(self._updates(version), tasks[0].evaluate.progress)
            if ledger.limit_s is not None:
                server.set_seconds.remote(1.0 if ledger.remaining <= 0 else ledger.progress)
            if checkpoint is not None and time.monotonic() - offered >= every_s:
                offered = time.monotonic()
                # the snapshot holds the uncollected evaluations; if collected now, a resumed run would lose them
                checkpoint({"server": self._load(server, policy), "seeds": seeds})
                every_s = max(_CHECKPOINT_S, _CHECKPOINT_FACTOR * (time.monotonic() - offered))
        version = self._record(server, tasks)
        snapshot = self._load(server, policy)
        self.staleness = {int(k): int(v) for k, v in sorted(snapshot["staleness"].items())}
        late = sum(k * v for k, v in self.staleness.items()) / max(version, 1)
        tasks[0].evaluate.note(
            f"trainer asynchronous: {self._updates(version)}; gradients were {late:.1f} updates late on average,"
            f" at most {max(self.staleness, default=0)}"
        )
        if not version:
            tasks[0].evaluate.note(TOO_FEW)

    def _record(self, server: Any, tasks: Sequence[Task]) -> int:
        """Record new evaluations from the server. Returns the number of updates so far."""
        found, version = _answer(server.collect.remote())
        for number, placements, measurements in found:
            tasks[number].evaluate.record(placements_from(placements), measurements_from(measurements))
            ledger = tasks[number].evaluate.ledger
            if ledger.limit_s is not None:  # recording may have repeated measurements, which takes seconds
                server.set_seconds.remote(ledger.progress)
        return int(version)

    def _load(self, server: Any, policy: LearnablePolicy) -> dict[str, Any]:
        """Load the server's parameters into the policy. Returns the server's snapshot."""
        snapshot: dict[str, Any] = _answer(server.snapshot.remote())
        policy.load_state_dict({name: np.array(values) for name, values in snapshot["parameters"].items()})
        return snapshot

    def _updates(self, version: int) -> str:
        count = self.options.controllers
        return f"{version:,} update{'s'[version == 1 :]} by {count} controller{'s'[count == 1 :]}"


def _backend(task: Task) -> Backend:
    """Build the backend of a task again from its name and options. Raises ConfigError if it has no name."""
    if not task.backend:
        raise ConfigError(
            "trainer asynchronous: other processes cannot build the backend, an object of this program",
            "give the name of an installed backend",
        )
    options = {key: value for key, value in task.backend.items() if key != "name"}
    found: Backend = installed().build("backend", task.backend["name"], options)
    return found


def _answer(reference: Any) -> Any:
    """Wait for an answer of the parameter server. Raises BackendError if its process has died."""
    try:
        return ray.get(reference)
    except LOST as e:
        raise BackendError(
            f"the parameter server is lost: {str(e).splitlines()[0]}", "go on with `placekit run resume=RUN_DIR`"
        ) from None


def _unfinished(calls: list[Any]) -> list[Any]:
    """Wait a moment; returns the calls of controllers that still run. Raises BackendError if a call has failed."""
    check_alive()
    done, rest = ray.wait(calls, timeout=_POLL_S)
    for reference in done:
        if error := failed(_answer(reference)):
            raise error
    return rest
