"""Trainer `asynchronous`: the driver of controllers, workers and a parameter server (Mirhoseini et al. 2017, section 3.4)."""

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
from placekit_ray.backend import RaySession, Workers, to_open
from placekit_ray.cluster import check_versions, connect, distributions_of, end, start_workers
from placekit_ray.controller import Controller
from placekit_ray.fleet import LOST, PIECE_S, Fleet
from placekit_ray.options import AsynchronousOptions
from placekit_ray.server import ParameterServer, first_state
from placekit_ray.wire import measurements_from, packed, placements_from
from placekit_ray.worker import failed

_LOOK_S = 0.2  # between two looks at the server
_CHECKPOINT_S, _RARELY = 1.0, 20.0
"""Seconds between two offers of a checkpoint, and at least so many times what the last one took; the run decides whether to
write it."""


class Asynchronous(Trainer):
    """Makes the updates of another trainer in many processes.

    Each of C controllers has a copy of the policy, its own random numbers and its own baseline. It draws a batch, has its W
    workers evaluate it, computes a gradient, and sends it to the parameter server. The server applies gradients as they arrive,
    with one optimiser, and answers with its parameters; so a gradient may be some updates late (its staleness).

    Where evaluations are simulated, the trainer starts its own workers. Where they are measured, it uses those of `parallel=ray`,
    each alone on a machine: what the run measures itself, to compare the best placements, waits for its turn there.

    Attributes:
        staleness: for each number of updates between reading the parameters and applying the gradient, how often it occurred.
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
        ledger, measuring = tasks[0].evaluate.ledger, self._measuring(tasks)
        trainer = self._inner(policy, tasks)
        seeds = list(state["seeds"]) if state else [int(s) for s in rng.integers(2**62, size=self.options.controllers)]
        actors: list[Any] = []
        try:
            with ledger.paused():  # starting processes is not searching
                if measuring is None:
                    connect(
                        self.options, self.options.controllers * self.options.workers * self.options.worker_cpus + 1
                    )
                kinds = [("backend", tasks[0].backend["name"]), ("policy", policy.name), ("trainer", trainer.name)]
                check_versions(distributions_of(kinds))
                server = self._server(policy, trainer, tasks, state)
                actors.append(server)
                runs = self._start(server, self._about(policy, trainer, tasks, seeds, measuring), actors, measuring)
            self._follow(server, runs, policy, tasks, seeds, checkpoint)
        finally:
            end(actors)
        raise BudgetExhausted(tasks[0].evaluate)

    def _start(self, server: Any, about: Mapping[str, Any], actors: list[Any], measuring: Workers | None) -> list[Any]:
        """Start controllers, and workers if none measure; add them to `actors`. Returns references of the controllers' ends."""
        o = self.options
        where: Any = "DEFAULT"
        if measuring is None:
            workers = start_workers(o.controllers * o.workers, o)
            actors += workers
        else:  # the machines of the workers are for measuring
            workers, where = list(measuring.fleet.workers), _here()
        make: Any = ray.remote(Controller).options(
            num_cpus=0, max_restarts=-1, max_task_retries=-1, scheduling_strategy=where
        )
        controllers = [make.remote() for _ in range(o.controllers)]
        actors += controllers
        shared = ray.put(about)
        own = [workers[i * o.workers : (i + 1) * o.workers] for i in range(o.controllers)]
        preparing = [c.prepare.remote(shared, w) for c, w in zip(controllers, own, strict=True)]
        while preparing:
            preparing = _unfinished(preparing)
        return [c.run.remote(i, shared, server, own[i]) for i, c in enumerate(controllers)]

    def _measuring(self, tasks: Sequence[Task]) -> Workers | None:
        """The workers of parallel=ray, if they measure; None: the trainer starts its own. Raises ConfigError if it cannot."""
        o, session, backend = self.options, tasks[0].evaluate.session, _backend(tasks[0])
        if not isinstance(session, RaySession):
            if not backend.simulated:
                raise ConfigError(
                    f"trainer asynchronous measures on backend {backend.name!r} in the workers of parallel=ray",
                    f"add parallel=ray parallel.address=HOST:PORT, and {o.controllers * o.workers} machines: one for each of"
                    f" {o.controllers} x {o.workers} workers (trainer.controllers, trainer.workers); here is room for 1 x 1",
                )
            if not backend.parallel:
                raise ConfigError(
                    f"trainer asynchronous cannot evaluate on backend {backend.name!r} in several processes",
                    "choose another simulator",
                )
            return None
        if backend.simulated:
            raise ConfigError("trainer asynchronous has workers of its own", "leave out parallel=ray")
        fleet = session.workers.fleet
        count = len(fleet.workers)
        if count != o.controllers * o.workers:
            raise ConfigError(
                f"{o.controllers} controllers of {o.workers} workers need {o.controllers * o.workers} machines that measure;"
                f" parallel=ray has {count}",
                f"set parallel.workers={o.controllers * o.workers}, or trainer.controllers and trainer.workers so that their"
                f" product is {count}",
            )
        fleet.queue_s = (fleet.timeout_s or 0.0) + 2 * PIECE_S  # the longest piece of a controller, or of the run
        return session.workers

    def _inner(self, policy: LearnablePolicy, tasks: Sequence[Task]) -> PolicyGradient:
        """The trainer whose updates are made. Raises ConfigError if other processes cannot make them."""
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
        spec = dict(self.options.inner or {"name": registry.own_trainer(policy.name)})
        name = str(spec.pop("name", ""))
        entry = registry.get("trainer", name)
        trainer = entry.build(entry.options(spec, "trainer.inner."))
        if not isinstance(trainer, PolicyGradient):
            raise ConfigError(
                f"trainer asynchronous cannot share the updates of trainer {name!r}",
                "choose one that is a policy gradient of placekit-learn: trainer.inner=reinforce",
            )
        return trainer

    def _about(
        self,
        policy: LearnablePolicy,
        trainer: PolicyGradient,
        tasks: Sequence[Task],
        seeds: list[int],
        measuring: Workers | None,
    ) -> dict[str, Any]:
        """What controllers need, see `Controller`."""
        sessions = [task.evaluate.session for task in tasks]
        if measuring is None:
            backend, least_s = _backend(tasks[0]), self.options.least_s
            opened = [to_open(backend, task.problem, None, least_s) for task in tasks]
            fleet = Fleet([], opened, [task.problem.cluster.size for task in tasks], self.options.timeout_s)
        else:
            fleet = measuring.fleet
        return {
            "policy": {"name": policy.name, **policy.options.model_dump(mode="json")},
            "trainer": {"name": trainer.name, **trainer.options.model_dump(mode="json")},
            "problems": [packed(task.problem) for task in tasks],
            "failing_signal_s": [task.evaluate.failing_signal_s for task in tasks],
            "numbers": [s.number if isinstance(s, RaySession) else i for i, s in enumerate(sessions)],
            "objective": tasks[0].evaluate.objective,
            "seeds": seeds,
            "opened": fleet.problems, "devices": fleet.devices, "timeout_s": fleet.timeout_s, "queue_s": fleet.queue_s,
        }  # fmt: skip

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
        make: Any = ray.remote(ParameterServer).options(num_cpus=0, scheduling_strategy=_here())
        return make.remote(begin)

    def _follow(
        self,
        server: Any,
        runs: list[Any],
        policy: LearnablePolicy,
        tasks: Sequence[Task],
        seeds: list[int],
        checkpoint: Checkpoint | None,
    ) -> None:
        """Record the evaluations as they are made, offer checkpoints, and end when the controllers have ended."""
        ledger, every_s, offered = tasks[0].evaluate.ledger, _CHECKPOINT_S, time.monotonic()
        while runs:
            runs = _unfinished(runs)
            version = self._record(server, tasks)
            report_progress(self._updates(version), tasks[0].evaluate.progress)
            if ledger.limit_s is not None:
                server.set_seconds.remote(1.0 if ledger.remaining <= 0 else ledger.progress)
            if checkpoint is not None and time.monotonic() - offered >= every_s:
                offered = time.monotonic()
                # evaluations that are not collected yet are in the snapshot: collecting them now would lose them at a resume
                checkpoint({"server": self._load(server, policy), "seeds": seeds})
                every_s = max(_CHECKPOINT_S, _RARELY * (time.monotonic() - offered))
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
        """Take the new evaluations from the server. Returns its version."""
        found, version = _answer(server.collect.remote())
        for number, placements, measurements in found:
            tasks[number].evaluate.record(placements_from(placements), measurements_from(measurements))
            ledger = tasks[number].evaluate.ledger
            if ledger.limit_s is not None:  # recording may have measured again, for seconds
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
    """The backend of a task, built once more. Raises ConfigError if other processes could not do this."""
    if not task.backend:
        raise ConfigError(
            "trainer asynchronous: other processes cannot build the backend, an object of this program",
            "give the name of an installed backend",
        )
    options = {key: value for key, value in task.backend.items() if key != "name"}
    found: Backend = installed().build("backend", task.backend["name"], options)
    return found


def _here() -> NodeAffinitySchedulingStrategy:
    """On this machine."""
    return NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)


def _answer(reference: Any) -> Any:
    """The answer of the parameter server. Raises BackendError if it is lost."""
    try:
        return ray.get(reference)
    except LOST as e:
        raise BackendError(
            f"the parameter server is lost: {str(e).splitlines()[0]}", "go on with `placekit run resume=RUN_DIR`"
        ) from None


def _unfinished(calls: list[Any]) -> list[Any]:
    """The calls of controllers that have not ended, after a moment. Raises BackendError for what one of the others raised."""
    done, rest = ray.wait(calls, timeout=_LOOK_S)
    for reference in done:
        if error := failed(_answer(reference)):
            raise error
    return rest
