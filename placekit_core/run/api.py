"""placekit from Python: `place` runs the pipeline, `search` lends its evaluator to a search of your own.

Both take the same arguments as `placekit run`, and the same seed gives the same result. Nothing is written unless
`run_dir` is given.
"""

from __future__ import annotations

import contextlib
import difflib
import inspect
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike, NDArray

from placekit_core.contracts.cluster import Cluster, Launching, load_cluster
from placekit_core.contracts.errors import (
    BudgetExhausted,
    ClusterError,
    ConfigError,
    ImporterError,
    PlacekitError,
    unknown,
)
from placekit_core.contracts.graph import Graph
from placekit_core.contracts.interfaces import Importer, Plugin, Policy
from placekit_core.contracts.measurement import Measurements, Schedule
from placekit_core.contracts.placement import Placement, Placements
from placekit_core.contracts.problem import importing_for
from placekit_core.contracts.program import Program
from placekit_core.contracts.result import Result
from placekit_core.contracts.task import Best, Task
from placekit_core.run.assembly import Assembly, OpenProgram, assemble, named_cluster
from placekit_core.run.baselines import chosen_baselines
from placekit_core.run.config import AUTO, DEFAULT, default_groups
from placekit_core.run.current_run import Observer, Run
from placekit_core.run.detection import chosen_by, importer_of, known_files, names_file, readers_of
from placekit_core.run.failures import BoundError, Interrupted, NothingFits, RunFailed
from placekit_core.run.finish import end
from placekit_core.run.pipeline import run
from placekit_core.run.registry import LISTING, Registry, installed
from placekit_core.run.request import SECTIONS, Request

Spec = str | Mapping[str, Any] | Plugin
"""A component: its name, its name with options (`{"name": NAME, OPTION: VALUE}`), or an instance."""
PolicySpec = Spec | Callable[[Task, Generator], Placement]
ClusterSpec = str | Path | Mapping[str, Any] | Cluster
BudgetSpec = float | Mapping[str, float] | None


def place(
    source: Any = None,
    *,
    cluster: ClusterSpec | None = None,
    policy: PolicySpec | None = None,
    budget: BudgetSpec = None,
    seed: int = 0,
    grouper: Spec | None = None,
    trainer: Spec | None = None,
    backend: Spec | None = None,
    proxy: Spec | None = None,
    parallel: str | Mapping[str, Any] | None = None,
    costs: str | Path | None = None,
    headroom: float | str | None = None,
    failing_signal_s: float | None = None,
    launching: Launching | None = None,
    run_dir: str | Path | None = None,
    log: Sequence[str] | None = None,
    baselines: Sequence[str] | None = None,
    resume: bool = False,
    progress: bool = False,
    **about: Any,
) -> Result:
    """Find a placement of `source` on `cluster`.

    Args:
        source, about: what to place; see `load_programs`.
        cluster: a preset, words (`2x h100`), a YAML file, its data, or a `Cluster`; `auto` is this computer. None: the default.
        policy: a policy, or a function `f(task, rng) -> Placement`; None: the default.
        budget, seed: evaluations, or a mapping with `evaluations`, `seconds`, `proxy_evaluations`; the random seed.
        grouper, trainer, backend, proxy: given as for `policy`; `trainer="auto"` is the policy's own.
        parallel: evaluates on the backend in other processes: its name, or its name with options; None uses this process.
        costs: file of measured costs; the roofline model gives the costs of operations that it lacks.
        headroom: part of every device's memory that stays free, such as 0.1 or "10%"; None: as the machine says.
        failing_signal_s: value that a learner gets for a placement that does not fit, seconds.
        launching: `eager`, `graph` or `per_device` on a machine with hosts; None: as the program usually runs.
        run_dir, log: folder for the files that `placekit run` writes (None writes nothing), and loggers (None: the default).
        baselines: policies to compare the result with; None is the standard ones, [] compares with none.
        resume, progress: continue the interrupted run in `run_dir`, with the same other arguments; show a progress bar.

    Raises PlacekitError with a hint on what to do; NothingFits if no placement that fits was found; RunFailed if a component
    failed after something was evaluated (`__cause__` is its error; before that, its error is raised); Interrupted on Ctrl-C.
    NothingFits, RunFailed, BoundError and Interrupted have a `result` with everything found until then.
    """
    if resume and run_dir is None:
        raise ConfigError("resume=True without a run_dir", "give the run_dir of the run that was interrupted")
    if callable(policy) and not isinstance(policy, Plugin | type):
        policy = FunctionPolicy(getattr(policy, "__name__", type(policy).__name__), policy)
    components = {"policy": policy, "grouper": grouper, "trainer": trainer, "backend": backend, "proxy": proxy}
    options = {
        "seed": seed, "failing_signal_s": failing_signal_s, "launching": launching, "log": log, "baselines": baselines,
        "parallel": parallel, "costs": costs, "cluster": cluster, "headroom": headroom, "budget": budget, "run_dir": run_dir,
    }  # fmt: skip
    assembly = assemble(_request(source, about, components, options, registry := installed()), registry)
    with _folder(run_dir) as folder, _observer(progress) as observer:
        try:
            return _without_temporary(run(assembly, folder, resume=resume, observer=observer), run_dir)
        except (Interrupted, RunFailed, BoundError, NothingFits) as e:
            e.result = _without_temporary(e.result, run_dir)
            raise


def search(
    source: Any = None,
    *,
    cluster: ClusterSpec | None = None,
    budget: BudgetSpec = None,
    seed: int = 0,
    grouper: Spec | None = None,
    backend: Spec | None = None,
    parallel: str | Mapping[str, Any] | None = None,
    costs: str | Path | None = None,
    headroom: float | str | None = None,
    failing_signal_s: float | None = None,
    launching: Launching | None = None,
    run_dir: str | Path | None = None,
    log: Sequence[str] | None = None,
    baselines: Sequence[str] | None = None,
    name: str = "search",
    **about: Any,
) -> Search:
    """Lend the evaluator of one program to a search of your own.

    The arguments are those of `place`; `name` is the name of the method in results. Use it as a context manager::

        with placekit_core.search(graph, cluster="p100x4", budget=1000) as s:
            while s.remaining > 0:
                devices = ...  # [b, g], from s.problem and s.rng
                measured = s.evaluate(devices)
        print(s.result)
    """
    components = {"policy": FunctionPolicy(name), "grouper": grouper, "backend": backend, "proxy": backend}
    options = {
        "seed": seed, "failing_signal_s": failing_signal_s, "launching": launching, "log": log, "baselines": baselines,
        "parallel": parallel, "costs": costs, "cluster": cluster, "headroom": headroom, "budget": budget, "run_dir": run_dir,
    }  # fmt: skip
    registry = installed()
    return Search(assemble(_request(source, about, components, options, registry), registry), run_dir)


class Search:
    """One program with its evaluator and its budget; made by `search`.

    As for every policy, evaluations count against the budget, and the best placement that fits is kept. If the block
    exceeds the budget, it ends there without an exception. `result` is set after the block, also after an exception. The
    end of the block raises BoundError if the value is below its proven bound.

    Attributes:
        rng: the policy's generator under this seed.
        problem: what is placed: `problem.g` groups, `problem.cluster.size` devices, `problem.allowed` [g, D].
        result: what was found; None until the block has ended, or if nothing was evaluated before an exception.
    """

    def __init__(self, assembly: Assembly, run_dir: str | Path | None) -> None:
        self._assembly, self._run_dir, self._open = assembly, run_dir, False
        self.rng = assembly.streams("policy")
        self.result: Result | None = None

    def __enter__(self) -> Search:
        assembly = self._assembly
        assembly.one_program("a search")
        chosen_baselines(assembly.config, assembly.registry)  # raises if a baseline does not exist
        with contextlib.ExitStack() as stack:
            self._run = Run(assembly, stack.enter_context(_folder(self._run_dir)), Observer(), stack)
            self._run.who = "the block of the search"
            self._run.begin(resume=False)
            self._run.open_programs()
            self._stack = stack.pop_all()
        self._program, self._open = self._run.programs[0], True
        self.problem = self._program.problem
        self._program.evaluate.ledger.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        evaluate = self._program.evaluate
        evaluate.ledger.stop()
        self._open = False
        spent = isinstance(error, BudgetExhausted) and error.args[0] is evaluate
        early = None if spent else error
        with self._stack:
            if early is None or evaluate.evaluations:
                try:
                    self.result = _without_temporary(end(self._run, early), self._run_dir)
                except BaseException as e:
                    if found := getattr(e, "result", None):
                        self.result = e.result = _without_temporary(found, self._run_dir)  # type: ignore[attr-defined]
                    if early is None and not isinstance(e, NothingFits):  # else the block's own error is raised
                        raise
        return spent

    @property
    def _opened(self) -> OpenProgram:
        """The program, open. Raises PlacekitError outside the block."""
        if not self._open:
            raise PlacekitError("a search can only be used inside its `with` block", "write `with search(...) as s:`")
        return self._program

    @property
    def remaining(self) -> float:
        """Evaluations left; infinite without a limit; 0 once the seconds are used up and something was evaluated."""
        return self._opened.evaluate.remaining

    @property
    def best(self) -> Best | None:
        """The best placement so far that fits: `placement`, `value_s`, `peak_bytes`, and the number of its evaluation."""
        return self._program.evaluate.best

    def evaluate(self, device: ArrayLike | Placements, priority: ArrayLike | None = None) -> Measurements:
        """Measure a batch.

        Args:
            device: [b, g] or [g] device of each group, or `Placements`.
            priority: of the same shape, or None; the higher runs first among ready operations.

        Raises:
            PlacementError: a placement is not one of this problem.
            BudgetExhausted: the budget ended within the batch; the evaluations until then are recorded.
        """
        return self._opened.evaluate(device if isinstance(device, Placements) else Placements.of(device, priority))

    def scores(self, measurements: Measurements) -> NDArray[np.float64]:
        """[b] the objective in seconds, or the failing signal where a placement does not fit."""
        return self._opened.evaluate.scores(measurements)

    def schedule(self, device: ArrayLike, priority: ArrayLike | None = None) -> Schedule:
        """The timed events of one placement; does not count against the budget."""
        opened = self._opened
        return opened.session.schedule(opened.problem.placement(device, priority))


class FunctionPolicy(Policy):
    """A policy that calls the function `f(task, rng) -> Placement`; without a function, it only names the caller's `search`."""

    def __init__(self, name: str, function: Callable[[Task, Generator], Placement] | None = None) -> None:
        super().__init__()
        self.name = name  # type: ignore[misc]
        self._function = function

    def place(self, task: Task, rng: Generator) -> Placement:
        assert self._function is not None, "a search has no policy to ask"
        return self._function(task, rng)


def load_programs(source: Any = None, **about: Any) -> list[Program]:
    """The programs in `source`.

    Args:
        source: a `Graph`, `Program` or list of them; a graph file; an importer (its name, its name with options, or an
            instance); or an object that an importer takes, such as a module of a library. Without it, one of `about` is
            an option that chooses an importer (`ImporterComponent.shorthand`), as `model="hf:NAME"` does for importer `model`.
        about: options of a named importer, or what the importer needs to know about an object, such as its inputs.

    Raises:
        PlacekitError: what is wrong with the source, or which sources there are.
    """
    registry = installed()
    found = _programs(source, about, registry)
    if isinstance(found, Mapping):
        return registry.imported(found)
    return found


def _how_to_say(source: str, registry: Registry) -> str:
    """A hint for a text that is neither a file nor an importer: it may be the name of a model, `hf:gpt2`."""
    first = sorted({c.shorthand[0] for c in registry.importers() if c.shorthand})
    named = [f"write the name of a model as {key}={source!r}" for key in first if ":" in source[2:]]
    return "; ".join([known_files(registry), *named])


def _programs(source: Any, about: Mapping[str, Any], registry: Registry) -> dict[str, Any] | list[Program]:
    """The name and options of the importer of `source`; its programs if an object or a file holds them."""
    if source is None:
        component = chosen_by(about, registry)
        if component is None:
            known = sorted({f"{c.shorthand[0]}=..." for c in registry.importers() if c.shorthand})
            hint = " or ".join(["give a graph, a file or an object", *known])
            raise ImporterError("no program to place was given", hint)
        first = component.shorthand[0]
        if not names_file(str(about[first]), registry):
            return {"name": component.name, **about}
        source, about = str(about[first]), {k: v for k, v in about.items() if k != first}
    if isinstance(source, str | Path) and ("importer", str(source)) not in registry.entries:
        if not readers_of(source, registry) and not os.path.isfile(source):
            missing = isinstance(source, Path) or os.sep in source or "." in source
            what = f"there is no file {source}" if missing else f"no importer is called {source!r}, and no file"
            raise ImporterError(what, _how_to_say(str(source), registry))
        return registry.imported({"name": importer_of(source, registry), "path": str(source), **about})
    if isinstance(source, str):
        return {"name": source, **about}
    if isinstance(source, Mapping):
        return {**source, **about}
    if isinstance(source, type):
        raise ImporterError(f"{source.__name__} is a class", f"give an instance of it: {source.__name__}(...)")
    return _from_object(source, about, registry)


def _from_object(source: Any, about: Mapping[str, Any], registry: Registry) -> list[Program]:
    """The programs of `source`: a graph, a program, a list of them, an importer, or an object that an importer takes."""
    several = [source] if isinstance(source, Graph | Program) else source
    given = isinstance(several, Sequence) and all(isinstance(p, Graph | Program) for p in several)
    if about and (given or isinstance(source, Importer)):
        raise ImporterError(f"{type(source).__name__} takes no {next(iter(about))!r}", "give it alone")
    if given:
        return [Program(p) if isinstance(p, Graph) else p for p in several]
    if isinstance(source, Importer):
        return source.load()
    types = [f"{c.__module__}.{c.__qualname__}" for c in type(source).__mro__]
    for component in registry.importers():
        if any(t in component.objects for t in types):
            cls: type[Importer] = registry.get("importer", component.name).load()
            return cls.convert(source, **about)
    takes = sorted({t for c in registry.importers() for t in c.objects})
    raise ImporterError(
        f"no importer can read a {types[0]}",
        f"give a graph, a program, a graph file or an importer{''.join(f', or a {t}' for t in takes)}; plugins add other types",
    )


def _request(
    source: Any,
    about: Mapping[str, Any],
    components: Mapping[str, Any],
    options: Mapping[str, Any],
    registry: Registry,
) -> Request:
    """The request that the arguments of `place` or `search` describe; None stands for the default of `placekit run`."""
    given, run_dir = {k: v for k, v in options.items() if v is not None}, options["run_dir"]
    if run_dir is not None and (not isinstance(run_dir, str | Path) or run_dir == ""):
        raise ConfigError(f"run_dir={run_dir!r}", "give a folder, or None to write nothing")
    if run_dir is None:
        given |= {"log": (), "checkpoint_s": None}
    for key in ("costs", "run_dir"):
        if key in given:
            given[key] = {"file": str(given[key])} if key == "costs" else str(given[key])
    if isinstance(given.get("parallel"), str):
        given["parallel"] = {"name": given["parallel"]}
    if "budget" in given and not isinstance(given["budget"], Mapping):
        budget = given["budget"]
        given["budget"] = {"evaluations": budget.item() if isinstance(budget, np.generic) else budget}
    defaults = {**default_groups(), "proxy": default_groups()["backend@proxy"]}
    given["cluster"] = _cluster(given.get("cluster", defaults["cluster"]), registry)
    try:
        with importing_for(None if "headroom" in given else named_cluster(given["cluster"])):
            found = _programs(source, about, registry)
        if isinstance(found, Mapping):  # an option that the importer lacks may be a misspelt argument
            registry.get("importer", str(found["name"])).options(
                {k: v for k, v in found.items() if k != "name"}, "importer."
            )
    except PlacekitError as e:
        for key in about:
            if key in NAMES:
                other = "place" if key in inspect.signature(place).parameters else "search"
                raise ConfigError(f"no argument {key!r}", f"only `{other}` takes it") from None
            if close := difflib.get_close_matches(key, NAMES, 1, 0.75):
                raise ConfigError(f"no argument {key!r}", f"did you mean {close[0]!r}? or: {e.message}") from None
        raise
    parts = {s: _component(s, components.get(s) or defaults[s]) for s in SECTIONS if s != "importer"}
    return Request({"importer": found, **parts}, given)


def _component(section: str, spec: Any) -> Any:
    """A component as a mapping or an instance. Raises ConfigError."""
    if isinstance(spec, str):
        return {"name": spec}
    if not isinstance(spec, Mapping | Plugin):
        what = f"{spec.__name__} is a class" if isinstance(spec, type) else f"{spec!r} is not a component"
        raise ConfigError(f"{section}: {what}", "give its name, its name with options, or an instance of a component")
    return spec


def _cluster(spec: ClusterSpec, registry: Registry) -> dict[str, Any]:
    """The section `cluster` of a configuration."""
    if spec in (AUTO, DEFAULT):
        return {"name": spec}
    if isinstance(spec, str) and not spec.endswith((".yaml", ".yml")):
        presets = {p.name: p.path for p in registry.presets() if p.group == "cluster" and p.path}
        registry.check_choices({"cluster": spec})
        found = presets.get(spec) or registry.machine(spec)
        if found is None:
            raise unknown("cluster", spec, [AUTO, DEFAULT, *presets], ClusterError, LISTING)
        spec = found
    if isinstance(spec, str | Path):
        spec = load_cluster(spec)
    if not isinstance(spec, Cluster):
        if not isinstance(spec, Mapping):
            raise ConfigError(f"cluster={spec!r}", "give a preset, words, a YAML file, its data, or a Cluster")
        spec = Cluster.parse(dict(spec))
    return spec.model_dump(mode="json")


@contextlib.contextmanager
def _folder(run_dir: str | Path | None) -> Iterator[Path]:
    """The run directory; a temporary one if none is asked for."""
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
    from placekit_core.run.progress import Progress

    with Progress() as bars:
        yield bars


NAMES = frozenset({*inspect.signature(place).parameters, *inspect.signature(search).parameters} - {"about", "source"})


def _without_temporary(result: Result, run_dir: str | Path | None) -> Result:
    """`result`, without the path of a temporary folder, which is gone."""
    return result if run_dir is not None else replace(result, run_dir=None)
