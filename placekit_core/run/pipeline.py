"""THE data flow, in the order of the picture in docs/data-flow.md.

importer --Graph--> grouper --Grouping--> policy --Placement--> report
                                           ^  |                   ^
                                    update |  | Placements        | Measurement, Schedule
                                           |  v                   |
                                         trainer --evaluate()--> backend
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from placekit_core.contracts.errors import BudgetExhausted, ConfigError, PlacekitError, PlacementError, RunError
from placekit_core.contracts.files import WriteError, write_json
from placekit_core.contracts.interfaces import Checkpoint, LearnablePolicy, State
from placekit_core.contracts.ledger import Ledger
from placekit_core.contracts.placement_file import save_placement
from placekit_core.contracts.progress import listening
from placekit_core.contracts.result import Result
from placekit_core.contracts.task import Task
from placekit_core.contracts.units import seconds
from placekit_core.run import run_directory, stages
from placekit_core.run.assembly import Assembly, OpenProgram, PythonObjects, distributions
from placekit_core.run.baselines import add_baselines, chosen, compared_programs
from placekit_core.run.checkpoint import (
    CHECKPOINT,
    SALVAGED,
    CheckpointTooLargeError,
    Saved,
    load_saved,
    salvage,
    save_checkpoint,
)
from placekit_core.run.config import CHANGES_NO_RESULT, RunConfig
from placekit_core.run.contained import Overdue, left, on_time, staying
from placekit_core.run.failures import Interrupted, NothingFits, RunFailed, instead_of_others
from placekit_core.run.interruption import Interruption
from placekit_core.run.last_resort import place_simply
from placekit_core.run.lifecycle import Lifecycle, reason, warn
from placekit_core.run.placing import place_one
from placekit_core.run.registry import Registry
from placekit_core.run.report import (
    bound_error,
    cannot_write,
    commit,
    kept_elsewhere,
    record,
    report,
    why_nothing_fits,
)
from placekit_core.run.trained import load_policy, save_policy


class Observer:
    """Receives the progress of a run; the command line shows it. Override any of the methods."""

    def stage(self, text: str) -> None:
        """Something that takes a while begins."""

    def say(self, text: str) -> None:
        """A fact about what is placed."""

    def progress(self, text: str, share: float | None) -> None:
        """A component says how far it is; see `report_progress`."""

    def row(self, program: str, row: Mapping[str, float], ledger: Ledger, unit: str) -> None:
        """A batch was evaluated."""


def run(
    config: RunConfig,
    run_dir: str | Path,
    registry: Registry,
    *,
    resume: bool = False,
    observer: Observer | None = None,
    objects: PythonObjects | None = None,
) -> Result:
    """Place the programs that `config` names, and write the run directory.

    With `resume`, it continues from the checkpoint in `run_dir`, with the same result as if it had never stopped. `objects`
    replace components named in `config`.

    Raises PlacekitError; NothingFits if no placement that fits was found; RunFailed if a component raised after something
    was evaluated; Interrupted after Ctrl-C. The last three hold the result so far, which is also written.
    """
    run_dir, observer = Path(run_dir), observer or Observer()
    try:
        with staying():
            return _run(config, run_dir, registry, resume, observer, Assembly(config, registry, objects))
    except SystemExit as e:
        raise left(e, "", registry.where(e)) from None
    except WriteError as e:
        raise cannot_write(e, run_dir, "") from None


def _run(
    config: RunConfig, run_dir: Path, registry: Registry, resume: bool, observer: Observer, assembly: Assembly
) -> Result:
    with contextlib.ExitStack() as stack:
        lifecycle = begin(config, run_dir, registry, resume, stack)
        saved, damage = None, None
        if resume:
            try:
                saved = load_saved(run_dir)
            except RunError as e:  # the best placement in it may be whole
                damage = e
                stack.enter_context(instead_of_others(e))
                observer.say(f"{e.message}: looking for what is whole")
        stack.enter_context(listening(observer.progress, observer.say))
        _ = assembly.grouper, assembly.policy, assembly.backend, assembly.trainer  # fail at once if one has a mistake
        chosen(config, registry)

        observer.stage(f"importing {stages.source(config)}")
        if assembly.trainer is not None and all(p.split == "test" for p in assembly.programs):
            raise ConfigError("there is no program to train on: each has the split `test`")
        observer.say(f"  {stages.imported(assembly.programs)}")
        with Interruption() as stop:
            observer.stage(f"grouping with {config.grouper['name']}, opening backend {config.backend['name']}")
            placing = _Placing(assembly, run_dir, lifecycle, observer, stop, stack)
            if damage is not None:
                raise placing.salvaged(damage)
            placing.check(saved)
            observer.say(f"  {stages.opened(placing.searches)}")

            observer.stage(stages.search(config, placing.searches))
            status = placing.place(saved)
            stop.writing = True  # whatever is left: a second Ctrl-C must not lose what was found
            if status == "finished":
                for search in placing.searches:
                    record(search)
                if chosen(config, registry) and compared_programs(placing.searches):
                    observer.stage("evaluating the baselines")
                add_baselines(assembly, placing.searches, stop)

            observer.stage(f"writing to {run_dir}")
            result = placing.finish(status)
            if status == "interrupted" or stop.asked:
                raise Interrupted(result)
        if not result.summary.fits:
            raise NothingFits(*why_nothing_fits(placing.searches, assembly.backend.unit), result)
        return result


def begin(config: RunConfig, run_dir: Path, registry: Registry, resume: bool, stack: contextlib.ExitStack) -> Lifecycle:
    """Lock the run directory until `stack` is closed, and tell the loggers. Raises RunError, or PluginError for a logger."""
    lifecycle = Lifecycle(registry, config.log, run_dir)
    run_directory.prepare(run_dir, resume)
    stack.enter_context(run_directory.locked(run_dir))
    run_directory.refuse_used(run_dir, resume)  # another run may have written there before the lock
    registry.code(distributions(config, registry, importer=False))  # now, because a plugin may be edited during the run
    data = config.model_dump(mode="json")
    if resume and run_directory.holds_run(run_dir):
        run_directory.check_same(run_dir, config)
        finished = (run_dir / run_directory.RESULT).is_file()
        if finished and run_directory.load_summary(run_dir).status == "finished":
            raise RunError(f"the run in {run_dir} has finished", "choose another run_dir, or remove it to run again")
    else:
        write_json(run_dir / run_directory.CONFIG, data)
    lifecycle.started(data)
    return lifecycle


class _Placing:
    """The part of a run in which the policy, its trainer and the backend work on the opened programs.

    `stack` closes the sessions of the backend.
    """

    def __init__(
        self,
        assembly: Assembly,
        run_dir: Path,
        lifecycle: Lifecycle,
        observer: Observer,
        stop: Interruption,
        stack: contextlib.ExitStack,
    ) -> None:
        self.assembly, self.config, self.run_dir = assembly, assembly.config, run_dir
        self.lifecycle, self.observer, self.stop = lifecycle, observer, stop
        self.policy, self.trainer, self.streams = assembly.policy, assembly.trainer, assembly.streams
        self.unit = assembly.backend.unit
        self.every_s = self.config.checkpoint_s  # None writes no checkpoints
        self.written = 0.0  # when the last checkpoint was, by `perf_counter`
        self.who = ""  # the component that works
        self.unwritten = False  # whether a checkpoint could not be written
        self.searches = assembly.open(run_dir, stack, self.on_row)

    def on_row(self, search: OpenProgram, row: Mapping[str, float]) -> None:
        """A batch was evaluated."""
        self.observer.row(search.name, row, search.evaluate.ledger, self.unit)
        self.lifecycle.evaluated(search.directory, search.name, row)
        if self.stop.asked and not self.stop.deferred:
            raise KeyboardInterrupt

    @property
    def identity(self) -> list[str]:
        """What a checkpoint belongs to: the problems, and the configuration without options that change no result."""
        text = self.config.model_dump_json(exclude=set(CHANGES_NO_RESULT))
        return [hashlib.sha256(text.encode()).hexdigest(), *(s.problem.fingerprint for s in self.searches)]

    def salvaged(self, damage: RunError) -> RunError:
        """Write the best placements that are whole in a damaged checkpoint. Returns the error, which names them."""
        kept = []
        for search, found in zip(self.searches, salvage(self.run_dir, [s.problem for s in self.searches]), strict=True):
            if found is not None:
                search.directory.mkdir(parents=True, exist_ok=True)
                path = save_placement(found[0], search.problem, search.directory / SALVAGED)
                kept.append(f"the best placement so far ({seconds(found[1])}) was whole, and is in {path} now")
        return RunError(damage.message, "; ".join([*kept, damage.hint]))

    def check(self, saved: Saved | None) -> None:
        """Raise RunError if the checkpoint belongs to another run."""
        if saved is not None and saved.identity != self.identity:
            raise RunError(
                f"the checkpoint in {self.run_dir} was made with another configuration, program, grouping, cluster or costs",
                "the code or a file that the run reads has changed since: start a new run",
            )

    def place(self, saved: Saved | None) -> str:
        """Place every program, from a checkpoint if there is one. Returns the status; see `_fail` for what it raises."""
        try:
            self._stages(saved)
            return "finished"
        except KeyboardInterrupt:
            return "interrupted"
        except SystemExit as e:
            self._fail(left(e, self.who, self.assembly.registry.where(e)))
        except Exception as e:
            self._fail(e)

    def _fail(self, error: Exception) -> NoReturn:
        """Keep what was found before the failure, and raise RunFailed; `error` itself if nothing was, or can be, kept."""
        if not self.has_begun:
            raise error
        self.stop.writing = True
        self._keep_policy()
        worked = f", while {self.who} worked" if self.who else ""
        told = error.message if isinstance(error, PlacekitError) else f"{reason(error)}{worked}"
        self.searches[0].evaluate.note(f"the run failed: {told}")
        kept: Path | None = self.run_dir
        try:
            result = self._write(report(self.assembly, self.searches, self.run_dir, "failed"))
        except RunFailed as unwritten:
            warn(f"{unwritten.message}; {unwritten.hint}")
            result, kept = unwritten.result, None
        except Exception:  # report the first failure
            raise error from None
        raise RunFailed(error, result, self.who, kept) from error

    def finish(self, status: str) -> Result:
        """Write the results. Raises BoundError."""
        self._keep_policy()
        result = report(self.assembly, self.searches, self.run_dir, status)
        wrong = bound_error(result)
        if wrong is not None:
            self._write(wrong.result)
            raise wrong
        self._write(result)
        if status == "finished":
            (self.run_dir / CHECKPOINT).unlink(missing_ok=True)
        return result

    @property
    def has_begun(self) -> bool:
        """Whether anything was evaluated."""
        return any(s.evaluate.evaluations for s in self.searches)

    def _write(self, result: Result) -> Result:
        """Loggers first: once result.json exists, all other files are complete. Raises RunFailed for what cannot be written."""
        self.lifecycle.finished(result)
        try:
            for search in self.searches:
                if search.unwritten is not None:
                    raise search.unwritten
            commit(result, self.run_dir)
        except OSError as e:
            raise RunFailed(cannot_write(e, self.run_dir, kept_elsewhere(self.searches)), result) from None
        return result

    def _keep_policy(self) -> None:
        """Write the parameters of a policy that was trained; a failure to do so is a note, and costs no result."""
        if self.trainer is None or not self.has_begun or not isinstance(self.policy, LearnablePolicy):
            return
        about = {
            "workload": self.config.workload,
            "cluster": self.searches[0].problem.cluster.name,
            "programs": [s.name for s in self.searches if s.program.split != "test"],
            "trainer": {"name": self.trainer.name, **self.trainer.options.model_dump(mode="json")},
            "seed": self.config.seed,
            "evaluations": self.searches[0].evaluate.ledger.evaluations,
        }
        try:
            save_policy(self.policy, self.run_dir, about)
        except Exception as e:
            self.searches[0].evaluate.note(f"the trained policy is not written: {reason(e)}")

    def _start(self, saved: Saved | None) -> tuple[int, State | None]:
        """Build the policy and restore a checkpoint; returns the number of complete stages and the state of the next one."""
        policy = self.policy
        if isinstance(policy, LearnablePolicy):
            policy.build([s.problem for s in self.searches], self.streams("parameters"))
            if saved is None and policy.options.checkpoint is not None:
                load_policy(policy, policy.options.checkpoint)
        if saved is None:
            return 0, None
        self.streams.restore(saved.streams)
        for search, evaluator, proxy in zip(self.searches, saved.evaluators, saved.proxies, strict=True):
            search.evaluate.restore(evaluator)
            if proxy is not None:
                _ = search.task.proxy  # opens it
                assert search.proxy is not None
                search.proxy.restore(proxy)
        if isinstance(policy, LearnablePolicy):
            policy.load_state_dict(saved.parameters or {})
        return saved.done, saved.state

    def _stages(self, saved: Saved | None) -> None:
        """First the training if there is any, then every program."""
        done, state = self._start(saved)
        self.written = time.perf_counter()
        stages: list[OpenProgram | None] = [*([None] if self.trainer is not None else []), *self.searches]
        for i, search in enumerate(stages[done:], done):
            self.stop.deferred = False
            self.who = f"policy {self.policy.name!r}"
            if search is None and self.trainer is not None:
                self.who = f"trainer {self.trainer.name!r}"
            trained = [s for s in self.searches if s.program.split != "test"]
            first = (trained[0] if search is None else search).evaluate
            ledger = first.ledger
            ledger.start()
            checkpoint, ended = self._checkpoint(i, ledger), False
            try:
                with on_time(ledger, lambda: any(s.measuring for s in self.searches)):
                    if search is None:
                        self._train([s.task for s in trained], state, checkpoint)
                    else:
                        stream = "policy" if len(self.searches) == 1 else f"policy/{self.searches.index(search)}"
                        resumable = checkpoint if self.trainer is None else None
                        ended = place_one(self.policy, search.task, self.streams(stream), state, resumable)
            except Overdue as e:
                ended = True
                first.note(f"{self.who} was stopped: it went on {e}")
            except PlacementError as e:
                raise PlacementError(f"policy {self.policy.name!r}: {e.message}", e.hint) from e
            finally:  # writing the results of a run that ends here is not searching
                ledger.stop()
            if search is not None and search.evaluate.best is None and (ended or self.trainer is not None):
                search.fallback = place_simply(search.evaluate, self.policy.name)
            state = None
            if i + 1 < len(stages):
                if self.every_s is not None:
                    self._save(i + 1, None)
                if self.stop.asked:
                    raise KeyboardInterrupt

    def _train(self, tasks: Sequence[Task], state: State | None, checkpoint: Checkpoint) -> None:
        assert self.trainer is not None
        assert isinstance(self.policy, LearnablePolicy)
        # keep evaluations for the trained policy's placements and the best ones on the proxy; no seconds are kept for them
        kept = sum(1 if task.pretraining is None else 2 for task in tasks)
        with tasks[0].evaluate.ledger.reserved(kept), contextlib.suppress(BudgetExhausted):
            self.trainer.fit(self.policy, tasks, self.streams("trainer"), state, checkpoint)

    def _checkpoint(self, stage: int, ledger: Ledger) -> Checkpoint:
        """The `checkpoint` function for this stage: it writes from time to time, and ends the run after Ctrl-C."""

        def checkpoint(state: State) -> None:
            self.stop.deferred = True
            every_s = self.every_s
            if every_s is not None and (self.stop.asked or time.perf_counter() - self.written >= every_s):
                with ledger.paused():
                    self._save(stage, state)
                self.written = time.perf_counter()
            if self.stop.asked:
                raise KeyboardInterrupt

        return checkpoint

    def _save(self, done: int, state: State | None) -> None:
        """Write a checkpoint: `done` stages are complete, `state` is the state of the next one.

        If it is too large to be read again, the run goes on without checkpoints.
        """
        parts: dict[str, Any] = {
            "done": done,
            "identity": self.identity,
            "streams": self.streams.state(),
            "evaluators": [s.evaluate.state() for s in self.searches],
            "proxies": [None if s.proxy is None else s.proxy.state() for s in self.searches],
        }
        if state is not None:
            parts["state"] = state
        if isinstance(self.policy, LearnablePolicy):
            parts["parameters"] = self.policy.state_dict()
        try:
            save_checkpoint(self.run_dir, parts)
        except CheckpointTooLargeError as e:
            self.every_s = None
            warn(f"{e.message}; the run goes on without checkpoints")
        except WriteError as e:  # there may be space again at the next one
            if not self.unwritten:
                warn(
                    f"cannot write {e.filename}: {e.strerror}; the run goes on, and tries again at its next checkpoint"
                )
            self.unwritten = True
        else:
            self.lifecycle.checkpoint()
