"""Families: importers that sample many graphs from a seed, and split them for training and testing. Imports no torch.

Several processes trace a large family. They return only graphs; a program is traced again when it is first executed.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tempfile
import time
from abc import abstractmethod
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
from numpy.random import Generator

from placekit_core import (
    Deferred,
    Executable,
    FileModel,
    Graph,
    Importer,
    ImporterError,
    PlacekitError,
    Program,
    load_graph,
    read_json,
    save_graph,
    usable_cores,
    write_atomically,
)
from placekit_zoo.family_options import FamilyOptions

if TYPE_CHECKING:
    from placekit_torch.step import Step

LEAST_PARALLEL = 8
"""Smaller families are traced in this process, because other processes take seconds to start."""


class FamilyImporter(Importer):
    """A family of graphs; a subclass samples the members and builds their steps."""

    @abstractmethod
    def sample(self, member: int) -> Any:
        """Sample what defines member number `member`, as JSON values, independently of option `graphs`."""

    @abstractmethod
    def step(self, sampled: Any) -> Step:
        """Build the step of a member from its sample; called for tracing and again for execution."""

    def rng(self, *key: int) -> Generator:
        """A random generator for `key`, seeded with `family_seed`."""
        return np.random.default_rng([self.options.family_seed, *key])

    def split(self, member: int) -> Literal["train", "test"]:
        """Whether the random split puts a member into training or testing."""
        o: FamilyOptions = self.options
        place = np.random.default_rng([o.family_seed, 2**32 - 1]).permutation(o.graphs)
        return "train" if place[member] < o.train else "test"

    def load(self) -> list[Program]:
        """All members, or the one that option `only` names."""
        o: FamilyOptions = self.options
        if o.only is not None:
            return [self.member(o.only)]
        workers = min(usable_cores(), o.graphs)
        if o.graphs < LEAST_PARALLEL or workers == 1:
            return [self.member(i) for i in range(o.graphs)]
        return [
            Program(
                graph,
                executable=cast(Executable, Deferred(partial(self.member, i), graph, self.recipe(i))),
                split=self.split(i),
            )
            for i, graph in enumerate(trace_in_processes(self, workers))
        ]

    def recipe(self, member: int) -> dict[str, Any]:
        """The recipe by which another process rebuilds a member."""
        return {"importer": self.name, "options": {**self.options.model_dump(mode="json"), "only": member}}

    def member(self, member: int) -> Program:
        """One member, traced in this process."""
        from placekit_torch.factory import Made
        from placekit_torch.importer import import_program

        from placekit_zoo.base import KERNELS

        o: FamilyOptions = self.options
        sampled, name = self.sample(member), f"{self.name}-{member:02d}"
        maker = Made(partial(self.step, sampled), name)
        program = import_program(
            maker, name=name, mode=o.mode, seed=o.seed, recipe=self.recipe(member), kernels=KERNELS
        )
        graph = program.graph.replace(attributes={**program.graph.attributes, "sampled": sampled})
        return replace(program, graph=graph, split=self.split(member))


def trace_in_processes(family: FamilyImporter, workers: int) -> list[Graph]:
    """Trace all members with `workers` new processes. Raises ImporterError if one of them fails.

    Workers are started as commands, not by multiprocessing, which would run the user's main script again.
    """
    o: FamilyOptions = family.options
    task = _Task(module=type(family).__module__, name=type(family).__name__, options=o.model_dump(mode="json"))
    # tracing needs no threads; PYTHONSAFEPATH: no file in the current folder may shadow a module
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1"}
    with tempfile.TemporaryDirectory(prefix="placekit-") as folder:
        (Path(folder) / _TASK).write_text(task.model_dump_json())
        logs = [Path(folder) / f"{i}.log" for i in range(workers)]
        running = []
        try:
            for number, log in enumerate(logs):
                command = [sys.executable, "-m", __name__, folder, str(number), str(workers)]
                with log.open("wb") as output:
                    process = subprocess.Popen(
                        command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
                    )
                running.append(process)
            while any(p.poll() is None for p in running) and not any(p.poll() for p in running):
                time.sleep(0.05)
            failed = [i for i, p in enumerate(running) if p.poll()]
        finally:
            for p in running:
                p.kill()
                p.wait()
        if failed:
            errors = sorted(Path(folder).glob(_ERROR.format("*")))
            if errors:
                failure = read_json(errors[0], _Failure, error=ImporterError)
                raise ImporterError(failure.message, failure.hint)
            last = (logs[failed[0]].read_text(errors="replace").strip().splitlines() or ["it printed nothing"])[-1]
            raise ImporterError(
                f"a process that traced members of {family.name!r} ended with exit code {running[failed[0]].returncode}: {last}",
                "if it was killed, memory may be short: let placekit use fewer cores (taskset)",
            )
        return [load_graph(Path(folder) / _GRAPH.format(i)) for i in range(o.graphs)]


_TASK, _GRAPH, _ERROR = "task.json", "{}.graph.npz", "{}.error.json"


class _Task(FileModel):
    """A worker's task: module and name of the importer's class, and its options."""

    module: str
    name: str
    options: dict[str, Any]


class _Failure(FileModel):
    """A `PlacekitError` that a worker raised."""

    message: str
    hint: str


def _work(folder: Path, number: int, workers: int) -> None:
    """Trace every `workers`-th member, from member `number` on, and save the graphs in `folder`."""
    task = read_json(folder / _TASK, _Task, error=ImporterError)
    family_class = getattr(importlib.import_module(task.module), task.name)
    family: FamilyImporter = family_class(family_class.options_class.model_validate(task.options))
    for i in range(number, family.options.graphs, workers):
        try:
            save_graph(family.member(i).graph, folder / _GRAPH.format(i))
        except PlacekitError as e:
            failure = _Failure(message=e.message, hint=e.hint)
            write_atomically(folder / _ERROR.format(i), failure.model_dump_json().encode())
            sys.exit(1)


if __name__ == "__main__":
    _work(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
