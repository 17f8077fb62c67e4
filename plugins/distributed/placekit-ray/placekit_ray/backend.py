"""Backend `ray`: evaluates on another backend, in processes of a Ray cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ray
from pydantic import BaseModel

from placekit_core import (
    Backend,
    BackendError,
    Baseline,
    Calibration,
    Cluster,
    ConfigError,
    Executable,
    Measurements,
    Placement,
    Placements,
    Problem,
    Program,
    Schedule,
    Session,
    installed,
)
from placekit_ray.cluster import (
    check_versions,
    connect,
    distributions_of,
    end,
    leave_dead,
    start_measuring,
    start_workers,
)
from placekit_ray.fleet import Fleet
from placekit_ray.options import RayOptions
from placekit_ray.wire import packed


class RayBackend(Backend):
    """Evaluates on another backend, `inner`, in worker processes; all other methods are those of the inner backend.

    The values of a deterministic inner backend stay the same to the last bit. An inner backend that simulates must be
    `parallel`; if it measures, each worker has a machine to itself.
    """

    name = "ray"
    options_class = RayOptions
    simulated = deterministic = True  # with the default options; instances copy their inner backend

    def __init__(self, options: BaseModel | None = None, **values: Any) -> None:
        super().__init__(options, **values)
        given = dict(self.options.inner)
        self.inner_name = str(given.pop("name", ""))
        if self.inner_name == self.name:
            raise ConfigError(
                "backend 'ray' evaluates on another backend, not on itself", "set backend.inner.name=simulator"
            )
        entry = installed().get("backend", self.inner_name)
        self.inner: Backend = entry.build(entry.options(given, "backend.inner."))
        if self.inner.simulated and not self.inner.parallel:
            raise ConfigError(
                f"backend {self.inner_name!r} cannot evaluate in several processes at once", "leave out parallel=ray"
            )
        self.objective, self.unit = self.inner.objective, self.inner.unit
        self.simulated, self.deterministic = self.inner.simulated, self.inner.deterministic
        self.workers: Workers | None = None

    @property
    def offloads(self) -> bool:
        return self.inner.offloads

    def devices(self) -> Cluster | None:
        return self.inner.devices()

    def hardware(self) -> str:
        return self.inner.hardware()

    def others(self) -> str:
        return self.inner.others()

    def open(self, problem: Problem, executable: Executable | None = None) -> Session:
        """Open the problem in the workers. All sessions share them; the first session starts them.

        Raises BackendError if the cluster cannot be reached, or a worker cannot open the problem.
        """
        if self.workers is None:
            self.workers = Workers(self, problem)
        return RaySession(self.workers, problem, executable)

    def calibrate(self, programs: Any, cluster: Cluster | None = None, *, repeats: int) -> Calibration:
        found: list[Program] = list(programs)
        return self.inner.calibrate(found, cluster, repeats=repeats)


class Workers:
    """The workers of a backend, shared by its open sessions, which `sessions` counts."""

    def __init__(self, backend: RayBackend, problem: Problem) -> None:
        self.backend, self.sessions = backend, 0
        o, inner = backend.options, backend.inner
        connect(o, (o.workers or 0) * o.worker_cpus)
        check_versions(distributions_of([("backend", backend.inner_name)]))
        gpus = sum(problem.device_type(d) == "gpu" for d in range(problem.cluster.size))
        workers = start_workers(o.workers, o) if inner.simulated else start_measuring(o.workers, gpus)
        self.fleet = Fleet(workers, timeout_s=o.timeout_s)

    def add(self, problem: Problem, executable: Executable | None) -> int:
        """Let all workers open another problem. Returns the number of the problem."""
        recipe = recipe_of(problem, executable, self.backend.inner)
        if recipe is not None:
            check_versions(distributions_of([("importer", str(recipe["importer"]))]))
        about = to_open(self.backend.inner, problem, recipe, self.backend.options.least_s)
        self.fleet.add(about, problem.cluster.size)
        self.sessions += 1
        return len(self.fleet.problems) - 1

    def release(self) -> None:
        """Count one session less; the last one ends the workers."""
        self.sessions -= 1
        if self.sessions <= 0:
            end(self.fleet.workers)
            leave_dead()  # the run has written its results
            self.backend.workers = None


class RaySession(Session):
    """One problem, open in all workers, and in this process too if the backend simulates."""

    def __init__(self, workers: Workers, problem: Problem, executable: Executable | None) -> None:
        self.problem, self.workers = problem, workers
        inner = workers.backend.inner
        try:
            self.local = inner.open(problem, None) if inner.simulated else None
            self.number = workers.add(problem, executable)  # waits for the workers, before the budget's clock starts
        except BaseException:
            if not workers.sessions:
                workers.release()
            raise
        self.at_once = len(workers.fleet.workers)
        if self.local is not None:
            self.repeats, self.prefetch = self.local.repeats, self.local.prefetch
            self.priorities = self.local.priorities

    def evaluate(self, placements: Placements) -> Measurements:
        """Evaluate a batch in the workers, in order."""
        return self.workers.fleet.evaluate(self.number, placements)

    def schedule(self, placement: Placement) -> Schedule:
        if self.local is not None:
            return self.local.schedule(placement)
        return self.workers.fleet.schedule(self.number, placement.batch())

    def lower_bound(self) -> float | None:
        return None if self.local is None else self.local.lower_bound()

    def baselines(self) -> Sequence[Baseline]:
        return () if self.local is None else self.local.baselines()

    def kernel(self) -> Any:
        """The inner backend's kernel: a compiled search in this process is faster than messages to workers."""
        return None if self.local is None else self.local.kernel()

    def close(self) -> None:
        self.workers.release()
        if self.local is not None:
            self.local.close()


def recipe_of(problem: Problem, executable: Executable | None, backend: Backend) -> dict[str, Any] | None:
    """The recipe by which a worker builds the program; None if it only simulates. Raises BackendError without a recipe."""
    if backend.simulated:
        return None
    if executable is None or not executable.recipe:
        raise BackendError(
            f"a worker cannot build {problem.graph.name!r}: it was built from Python objects, or cannot be executed",
            "give its name to an importer: model=FILE.py:FUNCTION, or importer=torch importer.module=package.module:factory",
        )
    return dict(executable.recipe)


def to_open(backend: Backend, problem: Problem, recipe: dict[str, Any] | None, least_s: float) -> Any:
    """A reference to the data with which `Worker.open` opens a problem."""
    options = backend.options.model_dump(mode="json")
    if options.get("threads", 0) is None:  # workers share a machine: one thread each, unless the user set more
        options["threads"] = 1
    return ray.put(
        {
            "backend": {"name": backend.name, **options}, "problem": packed(problem), "recipe": recipe,
            "least_s": least_s,
        }
    )  # fmt: skip
