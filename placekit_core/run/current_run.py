"""One run in progress: calls the components in turn, and informs the observer and loggers."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from placekit_core.contracts.errors import BudgetExhausted, ConfigError, PlacementError, RunError
from placekit_core.contracts.files import WriteError, write_json
from placekit_core.contracts.interfaces import Checkpoint, LearnablePolicy, State
from placekit_core.contracts.ledger import Ledger
from placekit_core.contracts.progress import listening
from placekit_core.contracts.task import Task
from placekit_core.contracts.version import __version__
from placekit_core.run import run_directory, stages
from placekit_core.run.assembly import Assembly, OpenProgram, distributions
from placekit_core.run.baselines import chosen_baselines
from placekit_core.run.checkpoint import save_checkpoint
from placekit_core.run.failures import warn
from placekit_core.run.interruption import Interruption
from placekit_core.run.lifecycle import Lifecycle
from placekit_core.run.placing import place_one
from placekit_core.run.trained import load_policy


class Observer:
    """Receives the progress of a run, as the command line does to show it. Override any of the methods."""

    def stage(self, text: str) -> None:
        """A stage that takes a while begins."""

    def say(self, text: str) -> None:
        """A fact about the programs."""

    def progress(self, text: str, share: float | None) -> None:
        """A component reports how far it is; see `report_progress`."""

    def row(self, program: str, row: Mapping[str, float], ledger: Ledger, unit: str = "s") -> None:
        """A batch was evaluated."""


class Run:
    """One run in progress.

    Attributes:
        programs: the programs, once the backend is open on them.
        who: the component that is working, such as `policy 'etf'`; errors name it.
    """

    def __init__(self, assembly: Assembly, run_dir: Path, observer: Observer, stack: contextlib.ExitStack) -> None:
        self.assembly, self.config, self.run_dir = assembly, assembly.config, run_dir
        self.observer, self.stack, self.stop = observer, stack, Interruption()
        self.lifecycle = Lifecycle(assembly.registry, self.config.log, run_dir)
        self.programs: list[OpenProgram] = []
        self.who = ""
        self._every_s = self.config.checkpoint_s  # None writes no checkpoints
        self._written = 0.0  # time of the last checkpoint, by `perf_counter`
        self._warned = False  # whether a checkpoint could not be written

    def begin(self, resume: bool) -> None:
        """Lock the run directory, and tell the loggers that the run begins. Raises RunError."""
        run_dir, registry = self.run_dir, self.assembly.registry
        run_directory.prepare(run_dir, resume)
        self.stack.enter_context(run_directory.locked(run_dir))
        run_directory.refuse_used(run_dir, resume)  # another run may have written there before the lock
        registry.code(
            distributions(self.config, registry, importer=False)
        )  # hash the plugins' code now: somebody may edit it during the run
        data = self.config.model_dump(mode="json")
        if resume and run_directory.holds_run(run_dir):
            run_directory.check_same(run_dir, self.config)
            if run_directory.has_finished(run_dir):
                raise RunError(
                    f"the run in {run_dir} has finished", "choose another run_dir, or remove it to run again"
                )
        else:
            write_json(run_dir / run_directory.CONFIG, data)
        self.lifecycle.call("placekit_run_started", config=data)

    def open(self) -> None:
        """Import the programs, group them, and open the backend on them."""
        assembly, config = self.assembly, self.config
        self.stack.enter_context(listening(self.observer.progress, self.observer.say))
        for section in ("grouper", "policy", "backend", "trainer"):  # a mistake ends the run before the import
            self.who = f"{section} {getattr(config, section)['name']!r}"
            getattr(assembly, section)
        chosen_baselines(config, assembly.registry)  # raises if one does not exist
        self.who = f"importer {config.importer['name']!r}"
        self.observer.stage(f"importing {stages.source(config)}")
        if assembly.trainer is not None and all(p.split == "test" for p in assembly.programs):
            raise ConfigError(
                "there is no program to train on: each has the split `test`",
                "give programs of split `train`, or a trained policy: trainer=none policy.checkpoint=RUN_DIR",
            )
        self.observer.say(f"  {stages.imported(assembly.programs)}")
        self.stack.enter_context(self.stop)
        self.observer.stage(f"grouping with {config.grouper['name']}, opening backend {config.backend['name']}")
        self.who = f"grouper {config.grouper['name']!r} or backend {config.backend['name']!r}"
        self.open_programs()
        self.observer.say(f"  {stages.opened(self.programs)}")

    def open_programs(self) -> None:
        """Group the programs, and open the backend on them."""
        self.programs = self.assembly.open(self.run_dir, self.stack, self._on_row)

    def place(self, saved: Mapping[str, Any] | None) -> None:
        """Place every program: first train if there is a trainer. Continue from a checkpoint if there is one."""
        if saved is not None and saved["identity"] != self._identity:
            raise RunError(
                f"the checkpoint in {self.run_dir} was made with another configuration, program, grouping, cluster or costs",
                "the code or a file that the run reads has changed since: start a new run",
            )
        self.observer.stage(stages.search(self.config, self.programs))
        done, state = self._start(saved)
        self._written = time.perf_counter()
        todo: list[OpenProgram | None] = [*([None] if self.assembly.trainer is not None else []), *self.programs]
        for i, program in enumerate(todo[done:], done):
            self.stop.deferred = False
            self._stage(i, program, state)
            state = None
            if i + 1 < len(todo):
                if self._every_s is not None:
                    self._save(i + 1, None)
                if self.stop.asked:
                    raise KeyboardInterrupt

    def _start(self, saved: Mapping[str, Any] | None) -> tuple[int, State | None]:
        """Build the policy and restore a checkpoint. Returns the number of complete stages and the state of the next one."""
        policy = self.assembly.policy
        if isinstance(policy, LearnablePolicy):
            policy.build([p.problem for p in self.programs], self.assembly.streams("parameters"))
            if saved is None and policy.options.checkpoint is not None:
                load_policy(policy, policy.options.checkpoint)
        if saved is None:
            return 0, None
        self.assembly.streams.restore(saved["streams"])
        for program, evaluator, proxy in zip(self.programs, saved["evaluators"], saved["proxies"], strict=True):
            program.evaluate.restore(evaluator)
            if proxy is not None:
                _ = program.task.proxy  # opens it
                assert program.proxy is not None
                program.proxy.restore(proxy)
        if isinstance(policy, LearnablePolicy):
            policy.load_state_dict(saved["parameters"])
        return saved["done"], saved["state"]

    def _stage(self, number: int, program: OpenProgram | None, state: State | None) -> None:
        """Place one program; None trains the policy."""
        policy, trainer, streams = self.assembly.policy, self.assembly.trainer, self.assembly.streams
        trained = [p for p in self.programs if p.program.split != "test"]
        ledger = (trained[0] if program is None else program).evaluate.ledger
        checkpoint = self._checkpoint(number, ledger)
        ledger.start()
        try:
            if program is None:
                assert trainer is not None
                self.who = f"trainer {trainer.name!r}"
                self._train([p.task for p in trained], state, checkpoint)
            else:
                self.who = f"policy {policy.name!r}"
                stream = "policy" if len(self.programs) == 1 else f"policy/{self.programs.index(program)}"
                place_one(policy, program.task, streams(stream), state, checkpoint if trainer is None else None)
        except PlacementError as e:
            raise PlacementError(f"policy {policy.name!r}: {e.message}", e.hint) from e
        finally:  # writing the results of a run that ends here is not searching
            ledger.stop()

    def _train(self, tasks: Sequence[Task], state: State | None, checkpoint: Checkpoint) -> None:
        policy, trainer = self.assembly.policy, self.assembly.trainer
        assert trainer is not None
        assert isinstance(policy, LearnablePolicy)
        # reserve evaluations (not seconds) for each program's final placement, and for the best one found on its proxy
        kept = sum(1 if task.pretraining is None else 2 for task in tasks)
        with tasks[0].evaluate.ledger.reserved(kept), contextlib.suppress(BudgetExhausted):
            trainer.fit(policy, tasks, self.assembly.streams("trainer"), state, checkpoint)

    def _on_row(self, program: OpenProgram, row: Mapping[str, float]) -> None:
        """A batch was evaluated."""
        self.observer.row(program.name, row, program.evaluate.ledger, self.assembly.backend.unit)
        self.lifecycle.call("placekit_evaluated", directory=program.directory, program=program.name, row=row)
        if self.stop.asked and not self.stop.deferred:
            raise KeyboardInterrupt

    @property
    def _identity(self) -> list[str]:
        """A checkpoint is valid only with the same version of placekit, problems, and options that change the result."""
        text = self.config.model_dump_json(exclude=self.config.without_effect)
        return [__version__, hashlib.sha256(text.encode()).hexdigest(), *(p.problem.fingerprint for p in self.programs)]

    def _checkpoint(self, stage: int, ledger: Ledger) -> Checkpoint:
        """The `checkpoint` function for this stage: it writes from time to time, and ends the run after Ctrl-C."""

        def checkpoint(state: State) -> None:
            self.stop.deferred = True
            every_s = self._every_s
            if every_s is not None and (self.stop.asked or time.perf_counter() - self._written >= every_s):
                with ledger.paused():
                    self._save(stage, state)
                self._written = time.perf_counter()
            if self.stop.asked:
                raise KeyboardInterrupt

        return checkpoint

    def _save(self, done: int, state: State | None) -> None:
        """Write a checkpoint: `done` stages are complete, `state` is the state of the next one. A failure is a warning."""
        parts: dict[str, Any] = {
            "done": done,
            "identity": self._identity,
            "streams": self.assembly.streams.state(),
            "evaluators": [p.evaluate.state() for p in self.programs],
            "proxies": [None if p.proxy is None else p.proxy.state() for p in self.programs],
            "state": state,
        }
        if isinstance(self.assembly.policy, LearnablePolicy):
            parts["parameters"] = self.assembly.policy.state_dict()
        try:
            save_checkpoint(self.run_dir, parts)
        except WriteError as e:  # there may be space again at the next one
            if not self._warned:
                warn(
                    f"cannot write {e.filename}: {e.strerror}; the run goes on, and tries again at its next checkpoint"
                )
            self._warned = True
        else:
            self.lifecycle.call("placekit_checkpoint")
