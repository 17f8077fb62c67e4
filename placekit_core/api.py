"""placekit from Python: `place` runs the pipeline, `search` lends its evaluator to a search of your own.

Both take the same arguments as `placekit run`, and find the same for the same seed. Nothing is written unless `run_dir` is
given.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike, NDArray
from pydantic import ValidationError

from placekit_core import results
from placekit_core.cluster import Cluster, load_cluster
from placekit_core.config import AUTO, GIVEN, RunConfig, Streams, conf_dir, explain
from placekit_core.errors import BudgetExhausted, ClusterError, ConfigError, ImporterError, unknown
from placekit_core.evaluator import Best
from placekit_core.graph import Graph
from placekit_core.interfaces import Backend, Checkpoint, Importer, Plugin, Policy, State
from placekit_core.lifecycle import Lifecycle
from placekit_core.measurement import Measurements, Schedule
from placekit_core.pipeline import Interrupted, Observer, open_searches, run
from placekit_core.placement import Placement, Placements
from placekit_core.problem import Problem, Program, Task
from placekit_core.registry import installed
from placekit_core.report import Result, report

Spec = str | Mapping[str, Any] | Plugin
"""A component: its name, its name with options (`{"name": "annealing", "starts": 32}`), or itself."""
PolicySpec = Spec | Callable[[Task, Generator], Placement]
ClusterSpec = str | Path | Mapping[str, Any] | Cluster
BudgetSpec = int | Mapping[str, float] | None

NEVER_S = 1e9  # between checkpoints of a run that keeps no files


class _Yours(Policy):
    """The caller's own method: a function `f(task, rng) -> Placement`; without one, a loop of theirs (`search`)."""

    def __init__(self, name: str, function: Callable[[Task, Generator], Placement] | None = None) -> None:
        super().__init__()
        self.name = name  # type: ignore[misc]
        self._function = function

    def place(
        self, task: Task, rng: Generator, state: State | None = None, checkpoint: Checkpoint | None = None
    ) -> Placement:
        assert self._function is not None, "a search has no policy to ask"
        return self._function(task, rng)


def load_programs(source: Any, **about: Any) -> list[Program]:
    """What there is to place in `source`.

    Args:
        source: a `Graph`, `Program` or list of them; a graph file; an importer (its name, its name with options, or
            itself); or an object that an importer takes, such as a torch module or a `placekit_torch.Step`.
        about: options of a named importer, or what the importer needs to know of an object: for a torch module `inputs`,
            and for a training step `loss`, `targets`, `optimizer`.

    Raises:
        PlacekitError: what is wrong with the source, or which sources there are.
    """
    if isinstance(source, Graph | Program):
        source = [source]
    if (
        isinstance(source, Sequence)
        and not isinstance(source, str)
        and all(isinstance(p, Graph | Program) for p in source)
    ):
        if about:
            raise ImporterError(f"a graph needs no {next(iter(about))!r}")
        return [Program(p) if isinstance(p, Graph) else p for p in source]
    if isinstance(source, Importer):
        return source.load()
    if isinstance(source, str | Path | Mapping):
        name = _file_importer(source)
        spec = {"path": str(source), "name": name} if name else {"name": source} if isinstance(source, str) else source
        if not isinstance(spec, Mapping):
            known = [x for e in installed().all() for x in e.component.files]
            raise ImporterError(f"no importer reads {str(spec)!r}", f"files end in {', '.join(known)}")
        section = _section("importer", {**spec, **about})
        entry = installed().get("importer", section.pop("name"))
        programs: list[Program] = entry.build(entry.component.config.model_validate(section)).load()
        return programs
    types = [f"{c.__module__}.{c.__qualname__}" for c in type(source).__mro__]
    entries = [e for e in installed().all() if e.kind == "importer"]
    for entry in entries:
        if any(t in entry.component.objects for t in types):
            cls: type[Importer] = installed().get("importer", entry.component.name).load()
            return cls.convert(source, **about)
    takes = sorted({t for e in entries for t in e.component.objects})
    raise ImporterError(
        f"no importer takes a {types[0]}",
        f"graphs, programs, graph files, importers, and {', '.join(takes) or 'nothing else'}; others come with plugins",
    )


def place(
    source: Any,
    *,
    cluster: ClusterSpec = AUTO,
    policy: PolicySpec = "annealing",
    budget: BudgetSpec = None,
    seed: int = 0,
    grouper: Spec = "none",
    trainer: Spec = AUTO,
    backend: Spec = "simulator",
    proxy: Spec = "simulator",
    costs: str | Path | None = None,
    failing_signal_s: float | None = None,
    run_dir: str | Path | None = None,
    log: Sequence[str] = ("csv",),
    resume: bool = False,
    progress: bool = False,
    **about: Any,
) -> Result:
    """Find a placement of `source` on `cluster`.

    Args:
        source, about: what to place; see `load_programs`.
        cluster: a preset, a YAML file, its data, or a `Cluster`; `auto` is the program's own, else what the backend sees,
            else p100x4.
        policy: a policy, or a function `f(task, rng) -> Placement`.
        budget: evaluations, or a mapping with `evaluations`, `seconds`, `proxy_evaluations`; None is 10,000 evaluations
            on a simulator and 600 s on a backend that measures.
        seed: the one seed.
        grouper, trainer, backend, proxy: the other components; `trainer="auto"` is the policy's own.
        costs: file of measured costs; the roofline model where it has none.
        failing_signal_s: what a learner is told of a placement that does not fit, seconds.
        run_dir: where to write what `placekit run` writes; None writes nothing.
        log: the loggers of a run that writes.
        resume: continue what was interrupted in `run_dir`, with the same arguments.
        progress: show a progress bar.

    Raises:
        PlacekitError: what is wrong, and what exists; RunError if no placement that fits was found.
        Interrupted: on Ctrl-C; its `result` has the best so far.
    """
    if isinstance(policy, type):
        raise ConfigError(f"policy={policy.__name__} is a class", f"give a policy: {policy.__name__}()")
    if callable(policy) and not isinstance(policy, Plugin):
        policy = _Yours(getattr(policy, "__name__", type(policy).__name__), policy)
    config, given = _configure(
        source, about, cluster, budget, run_dir, log, seed=seed, costs=costs, failing_signal_s=failing_signal_s,
        policy=policy, grouper=grouper, trainer=trainer, backend=backend, proxy=proxy,
    )  # fmt: skip
    with _folder(run_dir) as folder, _observer(progress) as observer:
        try:
            result = run(config, folder, resume=resume, observer=observer, given=given)
        except Interrupted as e:
            e.result = _kept(e.result, run_dir)
            raise
    return _kept(result, run_dir)


def search(
    source: Any,
    *,
    cluster: ClusterSpec = AUTO,
    budget: BudgetSpec = None,
    seed: int = 0,
    grouper: Spec = "none",
    backend: Spec = "simulator",
    costs: str | Path | None = None,
    failing_signal_s: float | None = None,
    run_dir: str | Path | None = None,
    log: Sequence[str] = ("csv",),
    name: str = "search",
    **about: Any,
) -> Search:
    """Lend the evaluator of one program to a search of your own.

    The arguments are those of `place`; `name` is what results call the method. Use it as a context manager::

        with placekit_core.search(graph, cluster="p100x4", budget=1000) as s:
            while s.remaining > 0:
                devices = ...  # [b, g], from s.problem and s.rng
                measured = s.evaluate(devices)
        print(s.result)
    """
    config, given = _configure(
        source, about, cluster, budget, run_dir, log, seed=seed, costs=costs, failing_signal_s=failing_signal_s,
        policy=_Yours(name), grouper=grouper, trainer=AUTO, backend=backend, proxy=backend,
    )  # fmt: skip
    return Search(config, given, run_dir)


class Search:
    """One program with its evaluator and its budget; made by `search`.

    What is evaluated counts against the budget, and the best that fits is kept, as for every policy. The block ends
    quietly where the budget is exceeded within it; `result` is there after the block, also after an exception.

    Attributes:
        problem: what is placed: `problem.g` groups, `problem.cluster.size` devices, `problem.allowed` [g, D].
        rng: the policy's generator under this seed.
        result: what was found; None until the block has ended, or if nothing was evaluated before an exception.
    """

    problem: Problem
    rng: Generator
    result: Result | None = None

    def __init__(self, config: RunConfig, given: Mapping[str, Any], run_dir: str | Path | None) -> None:
        self._config, self._given, self._run_dir = config, given, run_dir

    def __enter__(self) -> Search:
        config, given = self._config, self._given
        programs = given["programs"] if "programs" in given else config.build("importer").load()
        if len(programs) != 1:
            raise ConfigError(
                f"a search is of one program, not of {len(programs)}", "give one of load_programs(source)"
            )
        with contextlib.ExitStack() as stack:
            folder = results.prepare(stack.enter_context(_folder(self._run_dir)))
            results.write_json(folder / results.CONFIG, config.model_dump(mode="json"))
            self._lifecycle = Lifecycle(installed(), config.log, folder)
            self._lifecycle.started(config.model_dump(mode="json"))
            self._backend: Backend = given.get("backend") or config.build("backend")
            grouper = given.get("grouper") or config.build("grouper")
            streams = Streams(config.seed)
            [self._search] = open_searches(
                config, programs, grouper, "group", self._backend, False, streams, folder, stack,
                lambda s, row: self._lifecycle.evaluated(s.directory, s.name, row),
            )  # fmt: skip
            self.problem, self.rng, self._evaluate = self._search.problem, streams("policy"), self._search.task.evaluate
            self._stack = stack.pop_all()
        self._evaluate.ledger.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._evaluate.ledger.stop()
        spent = isinstance(error, BudgetExhausted) and error.args[0] is self._evaluate
        status = "finished" if error is None or spent else "interrupted" if kind is KeyboardInterrupt else "failed"
        with self._stack:
            if status == "finished" or self._evaluate.evaluations:
                result = report(self._config, [self._search], self._backend, None, self._search.directory, status)
                self._lifecycle.finished(result)
                self.result = _kept(result, self._run_dir)
        return spent

    @property
    def remaining(self) -> float:
        """Evaluations left; infinite without a limit; 0 once the seconds are used up."""
        return self._evaluate.remaining

    @property
    def best(self) -> Best | None:
        """The best placement so far that fits: `placement`, `value_s`, `peak_bytes`, and at which evaluation."""
        return self._evaluate.best

    def evaluate(self, device: ArrayLike | Placements, priority: ArrayLike | None = None) -> Measurements:
        """Measure a batch.

        Args:
            device: [b, g] or [g] device of each group, or `Placements`.
            priority: of the same shape, or None; the higher runs first among ready operations.

        Raises:
            PlacementError: a placement is not one of this problem.
            BudgetExhausted: the budget ended within the batch; what was evaluated is recorded.
        """
        return self._evaluate(device if isinstance(device, Placements) else Placements.of(device, priority))

    def scores(self, measurements: Measurements) -> NDArray[np.float64]:
        """[b] the objective in seconds, or the failing signal where a placement does not fit."""
        return self._evaluate.scores(measurements)

    def schedule(self, device: ArrayLike, priority: ArrayLike | None = None) -> Schedule:
        """The timed events of one placement; does not count against the budget."""
        return self._search.session.schedule(self.problem.placement(device, priority))


def _configure(
    source: Any,
    about: Mapping[str, Any],
    cluster: ClusterSpec,
    budget: BudgetSpec,
    run_dir: str | Path | None,
    log: Sequence[str],
    costs: str | Path | None,
    **rest: Any,
) -> tuple[RunConfig, dict[str, Any]]:
    """The configuration of a run from Python, and the objects that take the place of what it names."""
    given: dict[str, Any] = {k: v for k, v in rest.items() if isinstance(v, Plugin)}
    if isinstance(source, str | Mapping) and _file_importer(source) is None:
        importer = _section("importer", {**({"name": source} if isinstance(source, str) else source), **about})
    else:
        importer, given["programs"] = {"name": GIVEN}, load_programs(source, **about)
    data = {
        **rest,
        **{kind: _section("backend" if kind == "proxy" else kind, rest[kind])
           for kind in ("policy", "grouper", "trainer", "backend", "proxy")},
        "importer": importer,
        "cluster": _cluster(cluster),
        "budget": {"evaluations": budget} if isinstance(budget, int) else dict(budget or {}),
        "costs": {"file": None if costs is None else str(costs)},
        "run_dir": "" if run_dir is None else str(run_dir),
        "log": tuple(log) if run_dir is not None else (),
        "checkpoint_s": 2.0 if run_dir is not None else NEVER_S,
    }  # fmt: skip
    try:
        return RunConfig.model_validate(data), given
    except ValidationError as e:
        raise ConfigError(*explain(e, RunConfig)) from None


def _section(kind: str, spec: Spec) -> dict[str, Any]:
    """The section of a configuration for a component, with every option. Raises PluginError or ConfigError."""
    if isinstance(spec, Plugin):
        return {"name": spec.name, **spec.options.model_dump(mode="json")}
    values = {"name": spec} if isinstance(spec, str) else dict(spec)
    name = str(values.pop("name", ""))
    if kind == "trainer" and name == AUTO:
        return {"name": AUTO, **values}
    options = installed().get(kind, name).component.config
    try:
        return {"name": name, **options.model_validate(values).model_dump(mode="json")}
    except ValidationError as e:
        raise ConfigError(*explain(e, options, f"{kind}.")) from None


def _file_importer(source: Any) -> str | None:
    """The importer whose files end as `source` does, or None."""
    if not isinstance(source, str | Path):
        return None
    entries = [e.component for e in installed().all() if e.kind == "importer"]
    return next((c.name for c in entries if c.files and str(source).endswith(c.files)), None)


def _cluster(spec: ClusterSpec) -> dict[str, Any]:
    """The section `cluster` of a configuration."""
    if spec == AUTO:
        return {"name": AUTO}
    if isinstance(spec, str) and not spec.endswith((".yaml", ".yml")):
        folders = [conf_dir(), *(folder for _, folder in installed().conf_folders())]
        presets = {p.stem: p for f in folders for p in sorted((f / "cluster").glob("*.yaml"))}
        if spec not in presets:
            raise unknown("cluster", spec, [AUTO, *presets], ClusterError)
        spec = presets[spec]
    if isinstance(spec, str | Path):
        spec = load_cluster(spec)
    if not isinstance(spec, Cluster):
        spec = Cluster.parse(dict(spec))
    return spec.model_dump(mode="json")


@contextlib.contextmanager
def _folder(run_dir: str | Path | None) -> Iterator[Path]:
    """The run directory; one that is removed again where none is asked for."""
    if run_dir is not None:
        yield Path(run_dir)
        return
    with tempfile.TemporaryDirectory(prefix="placekit-") as folder:
        yield Path(folder)


@contextlib.contextmanager
def _observer(progress: bool) -> Iterator[Observer]:
    if not progress:
        yield Observer()
        return
    from placekit_core.cli.console import Progress

    with Progress() as bars:
        yield bars


def _kept(result: Result, run_dir: str | Path | None) -> Result:
    """Without the folder that is gone."""
    return result if run_dir is not None else replace(result, run_dir=None)
