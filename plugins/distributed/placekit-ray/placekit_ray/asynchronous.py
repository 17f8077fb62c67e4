"""Trainer `asynchronous`: the driver of controllers, workers and a parameter server (Mirhoseini et al. 2017, section 3.4)."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
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
    unpack_state,
)
from placekit_ray.backend import RaySession, Workers, alone
from placekit_ray.cluster import check_versions, connect, distributions_of, end, start_workers, using
from placekit_ray.controller import Controller
from placekit_ray.fleet import LOST, PIECE_S, Faults
from placekit_ray.options import AsynchronousOptions, ClusterOptions
from placekit_ray.server import ParameterServer
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
    with one optimiser, and answers with its parameters; so a gradient may be some steps late (its staleness). With `synchronous`,
    controllers wait for each other, the mean of their gradients is one step, and equal seeds give equal results.

    Workers that simulate are its own. Those that measure are the run's, of `parallel=ray`, a machine each: so what the run itself
    measures, to tell the best placements apart, waits for its turn in the same processes.

    Attributes:
        faults: processes that died or hung, and evaluations that were repeated.
        staleness: for each number of steps between reading the parameters and applying the gradient, how often.
        lost: evaluations of which no step was made, because their controller died.
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
        o, ledger = self.options, tasks[0].evaluate.ledger
        measuring = self._measuring(tasks)
        about, trainer = self._about(policy, tasks, measuring)
        about["seeds"] = list(state["seeds"]) if state else [int(s) for s in rng.integers(2**62, size=o.controllers)]
        folder = tempfile.mkdtemp(prefix="placekit-server-")
        actors: list[Any] = []
        try:
            with contextlib.ExitStack() as stack:
                with ledger.paused():  # starting processes is not searching
                    if measuring is None:
                        connect(o, o.controllers * o.workers * o.worker_cpus + 1)
                    stack.enter_context(using())
                    kinds = [("backend", tasks[0].backend["name"]), ("policy", policy.name), ("trainer", trainer.name)]
                    check_versions(distributions_of(kinds))
                    server = self._server(folder, policy, trainer, tasks, state)
                    actors.append(server)
                    runs = self._start(server, about, actors, measuring)
                    while runs and not ray.get(server.ready.remote()):
                        runs = _going_on(runs)
                self._follow(server, runs, policy, tasks, state, about["seeds"], checkpoint)
        finally:
            end(actors)
            shutil.rmtree(folder, ignore_errors=True)
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
        own = ray.put({key: value for key, value in about.items() if key != "workers"})
        told = ray.put(about["workers"])
        controllers = [make.remote() for _ in range(o.controllers)]
        actors += controllers
        return [
            c.run.remote(i, own, told, server, workers[i * o.workers : (i + 1) * o.workers])
            for i, c in enumerate(controllers)
        ]

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
        for name, field in ClusterOptions.model_fields.items():
            if getattr(o, name) != field.default:
                raise ConfigError(
                    f"trainer asynchronous measures in the workers of parallel=ray: trainer.{name} has no effect",
                    "leave it out" if name == "worker_cpus" else f"set parallel.{name}",
                )
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

    def _about(
        self, policy: LearnablePolicy, tasks: Sequence[Task], measuring: Workers | None
    ) -> tuple[dict[str, Any], PolicyGradient]:
        """What controllers and workers are told, and the inner trainer. Raises ConfigError if they cannot do it."""
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
                f"trainer asynchronous cannot share the steps of trainer {name!r}",
                "choose one that is a policy gradient of placekit-learn: trainer.inner=reinforce",
            )
        problems = [packed(task.problem) for task in tasks]
        if measuring is None:
            backend = _backend(tasks[0])
            workers = {
                "backend": {"name": backend.name, **alone(backend.options.model_dump(mode="json"))},
                "problems": problems,
                "recipes": [None] * len(tasks),  # nothing is run for real
                "least_s": self.options.least_s,
            }
        else:
            workers = measuring.about
        sessions = [task.evaluate.session for task in tasks]
        return {
            "policy": {"name": policy.name, **policy.options.model_dump(mode="json")},
            "trainer": {"name": trainer.name, **trainer.options.model_dump(mode="json")},
            "problems": problems,
            "failing_signal_s": [task.evaluate.failing_signal_s for task in tasks],
            "objective": tasks[0].evaluate.objective,
            "timeout_s": self.options.timeout_s if measuring is None else measuring.fleet.timeout_s,
            "queue_s": 0.0 if measuring is None else measuring.fleet.queue_s,
            "workers": workers,
            "numbers": [s.number if isinstance(s, RaySession) else i for i, s in enumerate(sessions)],
            "devices": [task.problem.cluster.size for task in tasks] if measuring is None else measuring.fleet.devices,
        }, trainer

    def _server(
        self, folder: str, policy: LearnablePolicy, trainer: PolicyGradient, tasks: Sequence[Task], state: State | None
    ) -> Any:
        """Start the server on this machine: where the driver is lost, everything is."""
        left = tasks[0].evaluate.remaining
        about: dict[str, Any] = {
            "parameters": policy.state_dict(), "optimiser": trainer.options.optimiser,
            "controllers": self.options.controllers, "synchronous": self.options.synchronous,
            "limit": None if left == float("inf") else int(left), "progress": tasks[0].evaluate.progress,
        }  # fmt: skip
        if state is not None:
            count = self.options.controllers
            about = {**state["server"], "left": [False] * count, "closed": False, "told": 0.0}
            about["restarts"] -= count  # all are started once more, which is no fault
        make: Any = ray.remote(ParameterServer).options(
            num_cpus=0, max_restarts=-1, max_task_retries=-1, scheduling_strategy=_here(), max_concurrency=1000
        )
        server = make.remote(folder)
        ray.get(server.begin.remote(about))
        return server

    def _follow(
        self,
        server: Any,
        runs: list[Any],
        policy: LearnablePolicy,
        tasks: Sequence[Task],
        state: State | None,
        seeds: list[int],
        checkpoint: Checkpoint | None,
    ) -> None:
        """Record the evaluations as they are made, offer checkpoints, and end when the controllers have ended."""
        ledger = tasks[0].evaluate.ledger
        taken = int(state["taken"]) if state else 0
        every_s = _CHECKPOINT_S
        faults, offered, told = Faults(**(state["faults"] if state else {})), time.monotonic(), False
        while runs:
            runs = _going_on(runs)
            taken, version = self._record(server, taken, tasks, faults)
            report_progress(self._updates(version), tasks[0].evaluate.progress)
            if not told and ledger.limit_s is not None and ledger.remaining <= 0:
                _of(server.tell.remote(1.0))
                told = True
            elif ledger.limit_s is not None:
                server.tell.remote(ledger.progress)
            if checkpoint is not None and time.monotonic() - offered >= every_s:
                offered = time.monotonic()
                # evaluations that are not taken yet are in the snapshot: taking them now would lose them at a resume
                checkpoint(self._state(unpack_state(_of(server.snapshot.remote())), taken, faults, seeds, policy))
                every_s = max(_CHECKPOINT_S, _RARELY * (time.monotonic() - offered))
        _of([server.leave.remote(i) for i in range(self.options.controllers)])  # so that the last evaluations are told
        taken, version = self._record(server, taken, tasks, faults)
        snapshot = unpack_state(_of(server.snapshot.remote()))
        policy.load_state_dict({name: np.array(values) for name, values in snapshot["parameters"].items()})
        faults.lost += int(snapshot["restarts"])
        self.faults, self.lost = faults, int(snapshot["lost"])
        self.staleness = {int(k): int(v) for k, v in sorted(snapshot["staleness"].items())}
        tasks[0].evaluate.note(self._said(version))
        if not version:
            tasks[0].evaluate.note(TOO_FEW)

    def _record(self, server: Any, taken: int, tasks: Sequence[Task], faults: Faults) -> tuple[int, int]:
        """Take the new evaluations from the server; the number of the next one, and the server's version."""
        found, version = _of(server.collect.remote(taken))
        for number, placements, measurements, more in found:
            tasks[number].evaluate.record(placements_from(placements), measurements_from(measurements))
            faults.add(more)
            ledger = tasks[number].evaluate.ledger
            if ledger.limit_s is not None:
                # to record may have meant to measure again, for seconds, of which the controllers know nothing
                server.tell.remote(ledger.progress)
        return taken + len(found), int(version)

    def _state(
        self, snapshot: Mapping[str, Any], taken: int, faults: Faults, seeds: list[int], policy: LearnablePolicy
    ) -> dict[str, Any]:
        policy.load_state_dict({name: np.array(values) for name, values in snapshot["parameters"].items()})
        return {"server": dict(snapshot), "taken": taken, "faults": vars(faults), "seeds": seeds}

    def _updates(self, version: int) -> str:
        count = self.options.controllers
        return f"{version:,} update{'s'[version == 1 :]} by {count} controller{'s'[count == 1 :]}"

    def _said(self, version: int) -> str:
        """What happened, for the result."""
        total = sum(self.staleness.values())
        late = sum(k * v for k, v in self.staleness.items()) / max(total, 1)
        text = f"trainer asynchronous: {self._updates(version)}"
        if not self.options.synchronous:
            most = max(self.staleness, default=0)
            text += f"; gradients were {late:.1f} updates late on average, at most {most}"
        if self.faults.lost or self.lost:
            text += f"; {self.faults.lost} processes were lost, {self.faults.repeated} evaluations repeated"
            text += f", {self.lost} not learned from"
        return text + (f"; {self.faults.hung} evaluations gave no answer in time" if self.faults.hung else "")


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


def _of(reference: Any) -> Any:
    """An answer of the parameter server. Raises BackendError if it is lost."""
    try:
        return ray.get(reference)
    except LOST as e:
        raise BackendError(f"the parameter server is lost: {str(e).splitlines()[0]}") from None


def _going_on(runs: list[Any]) -> list[Any]:
    """The controllers that have not ended, after a moment. Raises BackendError for what one of the others raised."""
    done, rest = ray.wait(runs, timeout=_LOOK_S)
    for reference in done:
        try:
            answer = ray.get(reference)
        except LOST as e:
            raise BackendError(f"a controller is lost for good: {str(e).splitlines()[0]}") from None
        if error := failed(answer):
            raise error
    return rest
