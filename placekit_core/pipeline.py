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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from numpy.random import Generator

from placekit_core import results
from placekit_core.config import AUTO, CHANGES_NO_RESULT, NONE, RunConfig, Streams
from placekit_core.errors import BudgetExhausted, ConfigError, PluginError, RunError
from placekit_core.evaluator import Evaluator, Ledger
from placekit_core.interfaces import (
    Backend,
    Checkpoint,
    Grouper,
    LearnablePolicy,
    Policy,
    State,
    Trainer,
)
from placekit_core.interruption import Interruption
from placekit_core.lifecycle import Lifecycle
from placekit_core.opening import OpenProgram, open_programs
from placekit_core.placement import Placement
from placekit_core.problem import Program, Task
from placekit_core.registry import installed
from placekit_core.report import Result, bound_error, commit, report, why_nothing_fits
from placekit_core.trained import load_policy, save_policy


class Observer:
    """What a run tells while it goes on; the command line shows it. Every method may be left as it is."""

    def stage(self, text: str) -> None:
        """Something that takes a while begins."""

    def row(self, program: str, row: Mapping[str, float], ledger: Ledger) -> None:
        """A batch was evaluated."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C ended the search early; what it had found is written, and `result` has it."""

    def __init__(self, result: Result) -> None:
        self.result = result
        super().__init__("interrupted")


def run(
    config: RunConfig,
    run_dir: str | Path,
    *,
    resume: bool = False,
    observer: Observer | None = None,
    given: Mapping[str, Any] | None = None,
    load: Callable[[], Sequence[Program]] | None = None,
) -> Result:
    """Place the programs that `config` names, and write the run directory.

    With `resume`, continues from the checkpoint in `run_dir`, with the same result as if it had never stopped. `given`
    holds objects that take the place of what `config` names: components by section, and a list of programs as `programs`.
    `load` gives what the importer of `config` would, if that is known already.
    Raises PlacekitError; RunError if no placement that fits was found; Interrupted after Ctrl-C, with the best so far
    written.
    """
    with contextlib.ExitStack() as stack:
        return _run(config, Path(run_dir), resume, observer or Observer(), given or {}, load, stack)


def _run(
    config: RunConfig,
    run_dir: Path,
    resume: bool,
    observer: Observer,
    given: Mapping[str, Any],
    load: Callable[[], Sequence[Program]] | None,
    stack: contextlib.ExitStack,
) -> Result:
    lifecycle = begin(config, run_dir, resume, stack)
    saved = results.load_checkpoint(run_dir) if resume else None
    streams = Streams(config.seed)

    grouper: Grouper = given.get("grouper") or config.build("grouper")
    policy: Policy = given.get("policy") or config.build("policy")
    backend: Backend = given.get("backend") or config.build("backend")
    trainer = given.get("trainer") or _trainer(config, policy)

    observer.stage(f"importing {config.importer['name']}")
    programs = given["programs"] if "programs" in given else (load or config.build("importer").load)()
    if not programs or (trainer is not None and all(p.split == "test" for p in programs)):
        what = "no program to train on" if programs else "no program"
        raise ConfigError(f"importer {config.importer['name']!r} gave {what}")
    with Interruption() as stop:
        observer.stage("grouping")

        def on_row(search: OpenProgram, row: Mapping[str, float]) -> None:
            observer.row(search.name, row, search.task.evaluate.ledger)
            lifecycle.evaluated(search.directory, search.name, row)
            if stop.asked and not stop.deferred:
                raise KeyboardInterrupt

        learns = trainer is not None
        searches = open_programs(
            config,
            programs,
            grouper,
            policy.level,
            backend,
            learns,
            streams,
            run_dir,
            stack,
            on_row,
            given.get("proxy"),
        )
        identity = _identity(config, searches)
        if saved is not None and saved["identity"] != identity:
            raise RunError(
                f"the checkpoint in {run_dir} was made with another configuration, program, grouping, cluster or costs",
                "the code or a file that the run reads has changed since: start a new run",
            )

        def write(done: int, state: State | None) -> None:
            parts: dict[str, Any] = {
                "done": done,
                "identity": identity,
                "streams": streams.state(),
                "evaluators": [s.task.evaluate.state() for s in searches],
                "proxies": [p.state() if (p := s.task.opened_proxy) else None for s in searches],
            }
            if state is not None:
                parts["state"] = state
            if isinstance(policy, LearnablePolicy):
                parts["parameters"] = policy.state_dict()
            results.save_checkpoint(run_dir, parts)
            lifecycle.checkpoint()

        def keep() -> None:
            begun = any(s.task.evaluate.evaluations for s in searches)
            if trainer is not None and begun and isinstance(policy, LearnablePolicy):
                save_policy(policy, run_dir, trained_on(config, trainer, searches))

        observer.stage(f"placing with {config.policy['name']}")
        status = "finished"
        try:
            _place(config, policy, trainer, searches, streams, saved, write, stop)
        except KeyboardInterrupt:
            status = "interrupted"
        except Exception as e:
            if any(s.task.evaluate.evaluations for s in searches):  # what was found before the failure is not lost
                with contextlib.suppress(Exception):  # this failure is the one to hear of
                    found = report(config, searches, backend, trainer, run_dir, "failed")
                    e.result = _written(found, run_dir, lifecycle)  # type: ignore[attr-defined]
                with contextlib.suppress(Exception):
                    keep()
            raise
        observer.stage("writing the results")
        keep()
        result = report(config, searches, backend, trainer, run_dir, status)
        wrong = bound_error(result)
        if wrong is not None:
            status = "failed"
            result = wrong.result = replace(result, summary=result.summary.model_copy(update={"status": status}))
        result = _written(result, run_dir, lifecycle)
        if wrong is not None:
            raise wrong
        if status == "finished":
            (run_dir / results.CHECKPOINT).unlink(missing_ok=True)
        if status == "interrupted" or stop.asked:
            raise Interrupted(result)
    if not result.summary.fits:
        raise RunError(*why_nothing_fits(searches))
    return result


def begin(config: RunConfig, run_dir: Path, resume: bool, stack: contextlib.ExitStack) -> Lifecycle:
    """Take the run directory, until `stack` is closed, and tell the loggers. Raises RunError if it cannot be had."""
    lifecycle = Lifecycle(installed(), config.log, results.prepare(run_dir, resume))
    stack.enter_context(results.locked(run_dir))
    results.refuse_used(run_dir, resume)  # another run may have been faster
    installed().code(config.distributions(importer=False))  # of what runs now: a plugin may be edited meanwhile
    data = config.model_dump(mode="json")
    if resume and results.holds_run(run_dir):
        results.check_same(run_dir, data)
        if (run_dir / results.RESULT).is_file() and results.load_summary(run_dir).status == "finished":
            raise RunError(f"the run in {run_dir} has finished", "choose another run_dir, or remove it to run again")
    else:
        results.write_json(run_dir / results.CONFIG, data)
    lifecycle.started(data)
    return lifecycle


def _written(result: Result, run_dir: Path, lifecycle: Lifecycle) -> Result:
    """Loggers first: whoever sees result.json finds the rest complete."""
    lifecycle.finished(result)
    commit(result, run_dir)
    return result


def trained_on(config: RunConfig, trainer: Trainer, searches: Sequence[OpenProgram]) -> dict[str, Any]:
    """What the files of a trained policy say of its training."""
    ledger = searches[0].task.evaluate.ledger
    programs = [s.name for s in searches if s.program.split != "test"]
    about = {"workload": config.workload, "cluster": searches[0].problem.cluster.name, "programs": programs}
    how = {"name": trainer.name, **trainer.options.model_dump(mode="json")}
    return {**about, "trainer": how, "seed": config.seed, "evaluations": ledger.evaluations}


def _identity(config: RunConfig, searches: list[OpenProgram]) -> list[str]:
    """What a checkpoint belongs to: the configuration without what changes no result, and the problems."""
    text = config.model_dump_json(exclude=set(CHANGES_NO_RESULT))
    return [hashlib.sha256(text.encode()).hexdigest(), *(s.problem.fingerprint for s in searches)]


def _trainer(config: RunConfig, policy: Policy) -> Trainer | None:
    """The trainer of a learnable policy: the one that is asked for, else the policy's own, with the options given.

    None where nothing is to be trained.
    """
    name, given = config.trainer["name"], {k: v for k, v in config.trainer.items() if k != "name"}
    if name == NONE:
        if given:
            raise ConfigError(f"trainer=none has no option {next(iter(given))!r}", "leave it out, or choose a trainer")
        if isinstance(policy, LearnablePolicy) and _checkpoint(policy) is None:
            raise ConfigError(
                f"trainer=none, but policy {policy.name!r} is not trained", "give it policy.checkpoint=RUN_DIR"
            )
        return None
    if not isinstance(policy, LearnablePolicy):
        if name != AUTO or given:
            what = f"trainer={name}" if name != AUTO else f"trainer.{next(iter(given))}"
            raise ConfigError(f"policy {policy.name!r} has nothing to train, but {what}", "leave out `trainer`")
        return None
    if name != AUTO:
        return config.build("trainer")  # type: ignore[no-any-return]
    found = installed().entries.get(("policy", config.policy["name"]), [])
    default = found[0].component.trainer if found else ""
    if not default:
        raise ConfigError(f"policy {config.policy['name']!r} names no trainer of its own", "choose one: trainer=NAME")
    return config.model_copy(update={"trainer": {"name": default, **given}}).build("trainer")  # type: ignore[no-any-return]


def _checkpoint(policy: LearnablePolicy) -> str | None:
    """Where the policy's parameters are to be loaded from."""
    return getattr(policy.options, "checkpoint", None)


def _place(
    config: RunConfig,
    policy: Policy,
    trainer: Trainer | None,
    searches: list[OpenProgram],
    streams: Streams,
    saved: dict[str, Any] | None,
    write: Callable[[int, State | None], None],
    stop: Interruption,
) -> None:
    """The loop between policy, trainer and backend: first the training if there is any, then every program."""
    done, state = 0, None
    if isinstance(policy, LearnablePolicy):
        policy.build([s.problem for s in searches], streams("parameters"))
        path = _checkpoint(policy)
        if saved is None and path is not None:
            load_policy(policy, path)
    if saved is not None:
        done, state = int(saved["done"]), saved.get("state")
        streams.restore(saved["streams"])
        for i, s in enumerate(searches):
            s.task.evaluate.restore(saved["evaluators"][i])
            if saved["proxies"][i] is not None:
                s.task.proxy.restore(saved["proxies"][i])
        if isinstance(policy, LearnablePolicy):
            policy.load_state_dict(saved["parameters"])
    last = time.perf_counter()

    def checkpoint(state: State) -> None:
        nonlocal last
        stop.deferred = True
        if stop.asked or time.perf_counter() - last >= config.checkpoint_s:
            with ledger.paused():
                write(done, state)
            last = time.perf_counter()
        if stop.asked:
            raise KeyboardInterrupt

    stages: list[OpenProgram | None] = [*([None] if trainer is not None else []), *searches]
    for i, stage in enumerate(stages):
        if i < done:
            continue
        stop.deferred = False
        tasks = [stage.task] if stage else [s.task for s in searches if s.program.split != "test"]
        ledger = tasks[0].evaluate.ledger
        ledger.start()
        if stage is not None:
            rng = streams("policy" if len(searches) == 1 else f"policy/{searches.index(stage)}")
            _place_one(policy, stage.task, rng, state, checkpoint if trainer is None else None)
        elif trainer is not None and isinstance(policy, LearnablePolicy):
            # what the trained policy places is evaluated too, and what was best on the proxy; of seconds nothing is kept for it
            kept = sum(1 if task.pretraining is None else 2 for task in tasks)
            with ledger.reserved(kept), contextlib.suppress(BudgetExhausted):
                trainer.fit(policy, tasks, streams("trainer"), state, checkpoint)
        ledger.stop()
        done, state = i + 1, None
        if done < len(stages):
            write(done, None)
            if stop.asked:
                raise KeyboardInterrupt


def _place_one(policy: Policy, task: Task, rng: Generator, state: State | None, checkpoint: Checkpoint | None) -> None:
    """Let the policy place one program, and measure what it returned and what it found only on the proxy."""
    found: list[Placement] = []
    with contextlib.suppress(BudgetExhausted):
        placement = policy.place(task, rng, state, checkpoint)
        if not isinstance(placement, Placement):
            raise PluginError(
                f"policy {policy.name!r} returned {type(placement).__name__}, not a Placement",
                "make one with task.problem.placement(device, priority)",
            )
        found.append(placement)
    if task.opened_proxy is not None and task.opened_proxy.best is not None:
        found.append(task.opened_proxy.best.placement)
    with contextlib.suppress(BudgetExhausted):
        for i, placement in enumerate(found):
            _offer(task.evaluate, placement, i == 0 and isinstance(policy, LearnablePolicy))


def _offer(evaluate: Evaluator, placement: Placement, learned: bool) -> None:
    """Evaluate `placement` unless the budget is used up, or it is the best already and no result of training."""
    if evaluate.remaining > 0 and (learned or not (evaluate.best and evaluate.best.placement.same_as(placement))):
        evaluate(placement.batch())
