"""placekit from Python: `place` runs the pipeline, `search` lends its evaluator to a search of your own.

Both take the same arguments as `placekit run`, and find the same for the same seed. Nothing is written unless `run_dir` is
given.
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
from numpy.random import Generator
from numpy.typing import ArrayLike, NDArray

from placekit_core.config import AUTO, RunConfig, Streams
from placekit_core.errors import BudgetExhausted, ConfigError, PlacekitError
from placekit_core.evaluator import Best, Evaluator
from placekit_core.given import BudgetSpec, ClusterSpec, PolicySpec, Spec, Yours, configure, load_programs
from placekit_core.interfaces import Backend, Plugin
from placekit_core.measurement import Measurements, Schedule
from placekit_core.opening import OpenProgram, open_programs
from placekit_core.pipeline import Interrupted, Observer, begin, run
from placekit_core.placement import Placements
from placekit_core.problem import Problem
from placekit_core.report import Result, commit, report

__all__ = ["Interrupted", "Search", "load_programs", "place", "search"]


def place(
    source: Any,
    *,
    cluster: ClusterSpec = AUTO,
    policy: PolicySpec = "portfolio",
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
        Exception: what a policy raises; if it had evaluated anything, the exception has a `result` with the best so far.
        Interrupted: on Ctrl-C; its `result` has the best so far.
    """
    if resume and run_dir is None:
        raise ConfigError("resume=True without a run_dir", "give the run_dir of the run that was interrupted")
    if callable(policy) and not isinstance(policy, Plugin | type):
        policy = Yours(getattr(policy, "__name__", type(policy).__name__), policy)
    config, given = configure(
        source, about, cluster, budget, run_dir, log, ARGUMENTS, seed=seed, costs=costs, failing_signal_s=failing_signal_s,
        policy=policy, grouper=grouper, trainer=trainer, backend=backend, proxy=proxy,
    )  # fmt: skip
    with _folder(run_dir) as folder, _observer(progress) as observer:
        try:
            result = run(config, folder, resume=resume, observer=observer, given=given)
        except BaseException as e:
            if isinstance(getattr(e, "result", None), Result):
                e.result = _kept(e.result, run_dir)  # type: ignore[attr-defined]
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
    config, given = configure(
        source, about, cluster, budget, run_dir, log, ARGUMENTS, seed=seed, costs=costs, failing_signal_s=failing_signal_s,
        policy=Yours(name), grouper=grouper, trainer=AUTO, backend=backend, proxy=backend,
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
    _opened: OpenProgram
    _open = False

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
            folder = stack.enter_context(_folder(self._run_dir))
            self._lifecycle = begin(config, folder, False, stack)
            self._backend: Backend = given.get("backend") or config.build("backend")
            grouper = given.get("grouper") or config.build("grouper")
            streams = Streams(config.seed)
            [self._opened] = open_programs(
                config, programs, grouper, "group", self._backend, False, streams, folder, stack,
                lambda p, row: self._lifecycle.evaluated(p.directory, p.name, row),
            )  # fmt: skip
            self.problem, self.rng = self._opened.problem, streams("policy")
            self._stack = stack.pop_all()
        self._open = True
        self._evaluate.ledger.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        evaluate, folder = self._evaluate, self._opened.directory
        evaluate.ledger.stop()
        self._open = False
        spent = isinstance(error, BudgetExhausted) and error.args[0] is evaluate
        status = (
            "finished"
            if error is None or spent
            else "interrupted"
            if isinstance(error, KeyboardInterrupt)
            else "failed"
        )
        with self._stack:
            if status == "finished" or evaluate.evaluations:
                with contextlib.suppress(
                    *([Exception] if status == "failed" else [])
                ):  # that failure is to be heard of
                    result = report(self._config, [self._opened], self._backend, None, folder, status)
                    self._lifecycle.finished(result)
                    commit(result, folder)
                    self.result = _kept(result, self._run_dir)
        return spent

    @property
    def _evaluate(self) -> Evaluator:
        if not self._open:
            raise PlacekitError("a search evaluates within its block only", "write `with search(...) as s:`")
        return self._opened.task.evaluate

    @property
    def remaining(self) -> float:
        """Evaluations left; infinite without a limit; 0 once the seconds are used up."""
        return self._evaluate.remaining

    @property
    def best(self) -> Best | None:
        """The best placement so far that fits: `placement`, `value_s`, `peak_bytes`, and at which evaluation."""
        return self._opened.task.evaluate.best if hasattr(self, "_opened") else None

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
        placement = self._evaluate.problem.placement(device, priority)
        return self._opened.session.schedule(placement)


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


ARGUMENTS = frozenset(
    {*inspect.signature(place).parameters, *inspect.signature(search).parameters} - {"about", "source"}
)


def _kept(result: Result, run_dir: str | Path | None) -> Result:
    """Without the folder that is gone."""
    return result if run_dir is not None else replace(result, run_dir=None)
