"""Families: importers of many graphs, sampled from a seed, with a split for training and testing. Imports no torch.

A large family is traced by several processes at once. Its programs then have graphs only; a program that is to run is traced
again at its first use.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tempfile
import time
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.random import Generator

from placekit_core import (
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

APART = 8
"""Families with at least this many members are traced by other processes, which take seconds to start."""


class FamilyImporter(Importer):
    """A family; a subclass defines what is sampled for each member, and how its step is built."""

    @abstractmethod
    def sample(self, member: int) -> Any:
        """The sample that defines member number `member`, as JSON values; it does not depend on `graphs`."""

    @abstractmethod
    def step(self, sampled: Any) -> Step:
        """The network of a member, with inputs, targets and loss; called under a fake mode, and when the program runs."""

    def rng(self, *key: int) -> Generator:
        """A generator of the family's seed, for `key`."""
        return np.random.default_rng([self.options.family_seed, *key])

    def split(self, member: int) -> Literal["train", "test"]:
        """The part of the random split that the member is in."""
        o: FamilyOptions = self.options
        place = np.random.default_rng([o.family_seed, 2**32 - 1]).permutation(o.graphs)
        return "train" if place[member] < o.train else "test"

    def load(self) -> list[Program]:
        """The members by number, or only the member that option `only` names."""
        o: FamilyOptions = self.options
        if o.only is not None:
            return [self.member(o.only)]
        workers = min(usable_cores(), o.graphs)
        if o.graphs < APART or workers == 1:
            return [self.member(i) for i in range(o.graphs)]
        return [
            Program(graph, executable=Deferred(partial(self.member, i), graph, self.recipe(i)), split=self.split(i))
            for i, graph in enumerate(trace_apart(self, workers))
        ]

    def recipe(self, member: int) -> dict[str, Any]:
        """The recipe for another process to rebuild a member from."""
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


class Deferred:
    """`placekit_core.Executable` of a program that is traced at its first use."""

    def __init__(self, trace: Callable[[], Program], graph: Graph, recipe: Mapping[str, Any]) -> None:
        self._trace, self._graph, self.recipe = trace, graph, recipe

    @cached_property
    def _made(self) -> Executable:
        program = self._trace()
        if program.graph.fingerprint != self._graph.fingerprint or program.executable is None:
            raise ImporterError(f"tracing {self._graph.name!r} again gave another graph", "load the family again")
        return program.executable

    def initial(self, seed: int | None = None) -> dict[int, Any]:
        """Values of all sources."""
        return self._made.initial(seed)

    def compile(
        self, ops: Sequence[int], device: Any = None, keep: Collection[int] | None = None
    ) -> Callable[..., dict[int, Any]]:
        """A function that runs kernels `ops`."""
        return self._made.compile(ops, device, keep)

    @property
    def views(self) -> Mapping[int, int]:
        """Tensors that are views."""
        return self._made.views

    def view(self, tensor: int) -> Callable[[Any], Any]:
        """The function from the value of `views[tensor]` to that of `tensor`."""
        return self._made.view(tensor)

    @property
    def updates(self) -> Mapping[int, int]:
        """For the tensor of each updated source, the tensor that replaces it."""
        return self._made.updates

    @property
    def results(self) -> Mapping[str, int]:
        """Results of the step."""
        return self._made.results

    def result(self, name: str, values: Mapping[int, Any]) -> Any:
        """The result `name`."""
        return self._made.result(name, values)

    @property
    def random_ops(self) -> frozenset[int]:
        """Operations that draw random numbers."""
        return self._made.random_ops


def trace_apart(family: FamilyImporter, workers: int) -> list[Graph]:
    """The graphs of all members, traced by `workers` new processes. Raises ImporterError if one of them fails.

    Workers are started as commands, not by multiprocessing, which would run the user's main script again.
    """
    o: FamilyOptions = family.options
    task = _Task(module=type(family).__module__, name=type(family).__name__, options=o.model_dump(mode="json"))
    # tracing needs no threads; and no file in the current folder may take the place of a module
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1"}
    with tempfile.TemporaryDirectory(prefix="placekit-") as folder:
        (Path(folder) / _TASK).write_text(task.model_dump_json())
        logs = [Path(folder) / f"{i}.log" for i in range(workers)]
        running = []
        try:
            for log in logs:
                with log.open("wb") as output:
                    command = [sys.executable, "-m", __name__, folder]
                    running.append(
                        subprocess.Popen(
                            command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
                        )
                    )
            while any(p.poll() is None for p in running) and not any(p.poll() for p in running):
                time.sleep(0.05)
            failed = [i for i, p in enumerate(running) if p.poll()]
        finally:
            for p in running:
                p.kill()
                p.wait()
        if failed:
            said = sorted(Path(folder).glob(_ERROR.format("*")))
            if said:
                failure = read_json(said[0], _Failure, error=ImporterError)
                raise ImporterError(failure.message, failure.hint)
            last = (logs[failed[0]].read_text(errors="replace").strip().splitlines() or ["it said nothing"])[-1]
            raise ImporterError(
                f"a process that traced members of {family.name!r} ended with exit code {running[failed[0]].returncode}: {last}",
                "if it was killed, memory may be short: let placekit use fewer cores (taskset)",
            )
        return [load_graph(Path(folder) / _GRAPH.format(i)) for i in range(o.graphs)]


_TASK, _GRAPH, _ERROR, _TAKEN = "task.json", "{}.graph.npz", "{}.error.json", "{}.taken"


class _Task(FileModel):
    """What a worker traces: the importer's class, by its module and name, and its options."""

    module: str
    name: str
    options: dict[str, Any]


class _Failure(FileModel):
    """A `PlacekitError` of a worker."""

    message: str
    hint: str


def _work(folder: Path) -> None:
    """Trace members that no other worker has taken, into `folder`, until none is left."""
    task = read_json(folder / _TASK, _Task, error=ImporterError)
    family_class = getattr(importlib.import_module(task.module), task.name)
    family: FamilyImporter = family_class(family_class.options_class.model_validate(task.options))
    for i in range(family.options.graphs):
        try:
            (folder / _TAKEN.format(i)).touch(exist_ok=False)
        except FileExistsError:
            continue
        try:
            save_graph(family.member(i).graph, folder / _GRAPH.format(i))
        except PlacekitError as e:
            failure = _Failure(message=e.message, hint=e.hint)
            write_atomically(folder / _ERROR.format(i), failure.model_dump_json().encode())
            sys.exit(1)


if __name__ == "__main__":
    _work(Path(sys.argv[1]))
