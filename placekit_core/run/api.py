"""placekit from Python: `place` runs the pipeline, `search` lends its evaluator to a search of your own.

Both take the same arguments as `placekit run`, and the same seed gives the same result. Nothing is written unless
`run_dir` is given.
"""

from __future__ import annotations

import contextlib
import inspect
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from placekit_core.contracts.errors import BudgetExhausted, ConfigError, PlacekitError
from placekit_core.contracts.interfaces import Plugin
from placekit_core.contracts.measurement import Measurements, Schedule
from placekit_core.contracts.placement import Placements
from placekit_core.contracts.problem import Problem
from placekit_core.contracts.program import Program
from placekit_core.contracts.result import Result
from placekit_core.contracts.task import Best
from placekit_core.run import assembly, python_arguments
from placekit_core.run.assembly import Assembly
from placekit_core.run.baselines import add_baselines, chosen
from placekit_core.run.failures import BoundError, Interrupted, NothingFits, RunFailed
from placekit_core.run.pipeline import Observer, begin, run
from placekit_core.run.python_arguments import (
    Arguments,
    BudgetSpec,
    ClusterSpec,
    FunctionPolicy,
    PolicySpec,
    Spec,
    configure,
)
from placekit_core.run.registry import installed
from placekit_core.run.report import bound_error, commit, record, report


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
    failing_signal_s: float | None = None,
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
        cluster: a preset, a YAML file, its data, or a `Cluster`. None, or `default`, is the program's own cluster,
            else the one that the backend finds, else a preset; `auto` has this computer in place of the preset.
        policy: a policy, or a function `f(task, rng) -> Placement`; None is the default of `placekit run`.
        budget: evaluations, or a mapping with `evaluations`, `seconds`, `proxy_evaluations`; None is as in `placekit run`.
        seed: random seed.
        grouper, trainer, backend, proxy: given as for `policy`; `trainer="auto"` is the policy's own.
        parallel: what evaluates on the backend in other processes: its name, or its name with options; None: nothing.
        costs: file of measured costs; an operation that it does not have gets its cost from the roofline model.
        failing_signal_s: value that a learner gets for a placement that does not fit, seconds.
        run_dir: folder for the files that `placekit run` writes; None writes nothing.
        log: the loggers of a run that writes; None is `csv`, and the installed ones that are on by default.
        baselines: policies to compare the result with; None is the standard ones, [] none.
        resume: continue the interrupted run in `run_dir`, with the same arguments; an error if no run has begun there.
        progress: show a progress bar.

    Raises:
        PlacekitError: says what is wrong, and what exists; NothingFits if no placement that fits was found.
        RunFailed: a component raised `__cause__` after something was evaluated; before that, this is raised itself.
        Interrupted: on Ctrl-C. It, NothingFits, RunFailed and BoundError have a `result` with all that was found until then.
    """
    if resume and run_dir is None:
        raise ConfigError("resume=True without a run_dir", "give the run_dir of the run that was interrupted")
    arguments = Arguments(
        source, about, cluster, _policy(policy), grouper, trainer, backend, proxy, budget, costs, run_dir,
        _run_options(seed, failing_signal_s, log, baselines, parallel),
    )  # fmt: skip
    config, objects = configure(arguments, NAMES, registry := installed())
    with _folder(run_dir) as folder, _observer(progress) as observer:
        try:
            result = run(config, folder, registry, resume=resume, observer=observer, objects=objects)
        except (Interrupted, RunFailed, BoundError, NothingFits) as e:
            e.result = _kept(e.result, run_dir)
            raise
    return _kept(result, run_dir)


def _policy(spec: PolicySpec | None) -> PolicySpec | None:
    """A function as a policy, anything else as it is."""
    if callable(spec) and not isinstance(spec, Plugin | type):
        return FunctionPolicy(getattr(spec, "__name__", type(spec).__name__), spec)
    return spec


def _run_options(
    seed: int,
    failing_signal_s: float | None,
    log: Sequence[str] | None,
    baselines: Sequence[str] | None,
    parallel: str | Mapping[str, Any] | None,
) -> dict[str, Any]:
    """`Arguments.options`."""
    return {
        "seed": seed,
        "failing_signal_s": failing_signal_s,
        "log": log,
        "baselines": baselines,
        "parallel": {"name": parallel} if isinstance(parallel, str) else parallel,
    }


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
    return python_arguments.load_programs(source, installed(), about)


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
    failing_signal_s: float | None = None,
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
    options = _run_options(seed, failing_signal_s, log, baselines, parallel)
    arguments = Arguments(
        source, about, cluster, FunctionPolicy(name), grouper, None, backend, backend, budget, costs, run_dir, options
    )
    registry = installed()
    config, objects = configure(arguments, NAMES, registry)
    return Search(Assembly(config, registry, objects), run_dir)


class Search:
    """One program with its evaluator and its budget; made by `search`.

    As for every policy, evaluations count against the budget, and the best placement that fits is kept. If the block
    exceeds the budget, it ends there without an exception. `result` is set after the block, also after an exception. The
    end of the block raises BoundError if the value is below its proven bound.

    Attributes:
        rng: the policy's generator under this seed.
        result: what was found; None until the block has ended, or if nothing was evaluated before an exception.
    """

    result: Result | None = None
    _opened: assembly.OpenProgram | None = None
    _open = False

    def __init__(self, parts: Assembly, run_dir: str | Path | None) -> None:
        self._parts, self._run_dir = parts, run_dir
        self.rng = parts.streams("policy")

    def __enter__(self) -> Search:
        parts = self._parts
        parts.one_program("a search")
        chosen(parts.config, parts.registry)  # fail at once if one does not exist
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(_folder(self._run_dir))
            self._lifecycle = begin(parts.config, folder, parts.registry, False, stack)
            on_row = lambda p, row: self._lifecycle.evaluated(p.directory, p.name, row)  # noqa: E731
            [opened] = parts.open(folder, stack, on_row)
            self._opened = opened
            self._stack = stack.pop_all()
        self._open = True
        opened.evaluate.ledger.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        opened = self._within
        evaluate, folder = opened.evaluate, opened.directory
        evaluate.ledger.stop()
        self._open = False
        spent = isinstance(error, BudgetExhausted) and error.args[0] is evaluate
        if error is None or spent:
            status = "finished"
        else:
            status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        with self._stack:
            if status == "finished" or evaluate.evaluations:
                # report the failure of the block, not one that follows from it
                with contextlib.suppress(*([Exception] if status == "failed" else [])):
                    interrupted = False
                    if status == "finished":
                        record(opened)
                        interrupted = add_baselines(self._parts, [opened])
                    result = report(self._parts, [opened], folder, status)
                    wrong = bound_error(result)
                    result = result if wrong is None else wrong.result
                    self._lifecycle.finished(result)
                    commit(result, folder)
                    self.result = _kept(result, self._run_dir)
                    if wrong is not None and status == "finished":
                        wrong.result = self.result
                        raise wrong
                    if interrupted:  # the result is complete, and the program that asked for it still has to end
                        raise KeyboardInterrupt
        return spent

    @property
    def _within(self) -> assembly.OpenProgram:
        """The program, open. Raises PlacekitError outside the block."""
        if not self._open or self._opened is None:
            raise PlacekitError("a search is open within its block only", "write `with search(...) as s:`")
        return self._opened

    @property
    def problem(self) -> Problem:
        """What is placed: `problem.g` groups, `problem.cluster.size` devices, `problem.allowed` [g, D]."""
        return (self._opened or self._within).problem

    @property
    def remaining(self) -> float:
        """Evaluations left; infinite without a limit; 0 once the seconds are used up and something was evaluated."""
        return self._within.evaluate.remaining

    @property
    def best(self) -> Best | None:
        """The best placement so far that fits: `placement`, `value_s`, `peak_bytes`, and the number of its evaluation."""
        return None if self._opened is None else self._opened.evaluate.best

    def evaluate(self, device: ArrayLike | Placements, priority: ArrayLike | None = None) -> Measurements:
        """Measure a batch.

        Args:
            device: [b, g] or [g] device of each group, or `Placements`.
            priority: of the same shape, or None; the higher runs first among ready operations.

        Raises:
            PlacementError: a placement is not one of this problem.
            BudgetExhausted: the budget ended within the batch; the evaluations until then are recorded.
        """
        return self._within.evaluate(device if isinstance(device, Placements) else Placements.of(device, priority))

    def scores(self, measurements: Measurements) -> NDArray[np.float64]:
        """[b] the objective in seconds, or the failing signal where a placement does not fit."""
        return self._within.evaluate.scores(measurements)

    def schedule(self, device: ArrayLike, priority: ArrayLike | None = None) -> Schedule:
        """The timed events of one placement; does not count against the budget."""
        opened = self._within
        return opened.session.schedule(opened.problem.placement(device, priority))


@contextlib.contextmanager
def _folder(run_dir: str | Path | None) -> Iterator[Path]:
    """The run directory; if none is asked for, a temporary one."""
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


def _kept(result: Result, run_dir: str | Path | None) -> Result:
    """`result`, without the path of a temporary folder, which is gone."""
    return result if run_dir is not None else replace(result, run_dir=None)
