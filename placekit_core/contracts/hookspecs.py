"""The hooks. They collect components; the abstract base classes in interfaces.py are the contracts."""

# mypy: disable-error-code="empty-body"
# (specifications have no bodies)

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pluggy
from pydantic import BaseModel

if TYPE_CHECKING:
    from placekit_core.contracts.cluster import Cluster
    from placekit_core.contracts.problem import Problem
    from placekit_core.contracts.result import ErrorBand, Result


hookspec = pluggy.HookspecMarker("placekit")
hookimpl = pluggy.HookimplMarker("placekit")

KINDS = ("importer", "grouper", "policy", "trainer", "backend")


@dataclass(frozen=True)
class Component:
    """Describes one component of a plugin. Listing plugins reads only this, so it imports nothing heavy.

    Importers have an `ImporterComponent`. A policy may have a `PolicyComponent`, which says more.

    Attributes:
        name: what users write, e.g. `+policy=NAME`.
        summary: one line for `placekit plugins`.
        config: pydantic model of its options, the only source of defaults: every option has one, and none is called `name`.
        target: `"module:Class"`, imported at first use.
        paper: the source of the method, if it is published.
    """

    name: str
    summary: str
    config: type[BaseModel]
    target: str
    paper: str = ""


@dataclass(frozen=True)
class PolicyComponent(Component):
    """Describes a policy, with its trainer if it learns, and whether it is a baseline.

    Attributes:
        trainer: for a learnable policy, the trainer that `trainer: auto` takes.
        trainer_options: values that replace the defaults of that trainer's options, whether a user names the trainer or not.
        baseline: show the placement of this policy beside the result of every run. With default options, such a policy
            returns the same placement in every run, needs little time and few evaluations, and raises NotApplicable for a
            program or machine that it was not made for.
    """

    trainer: str = ""
    trainer_options: Mapping[str, Any] = field(default_factory=dict)
    baseline: bool = False


@dataclass(frozen=True)
class ImporterComponent(Component):
    """Describes an importer. An option `module` in its `config` names Python code, `package.module:factory`.

    Attributes:
        files: endings of the names of the files that it reads; its options then have a `path`.
        detect: whether it reads a file that begins with these bytes (4096 at most). It is called for every file, so it is
            light and never raises. Without it, the ending alone decides.
        writes: True if the class has `write` for files with the endings in `files`; or the endings of the files that it
            writes, where other importers write files with the endings in `files`.
        objects: the types of the Python objects that it takes, `module.Class`.
        shorthand: options that command lines and `place` take without `importer.`. The first one chooses the importer:
            `model=NAME batch=8` means `importer=X importer.model=NAME importer.batch=8`. If its value is a file that
            another importer reads, that importer reads it.
    """

    files: tuple[str, ...] = ()
    detect: Callable[[bytes], bool] | None = None
    writes: bool | tuple[str, ...] = False
    objects: tuple[str, ...] = ()
    shorthand: tuple[str, ...] = ()

    @property
    def written(self) -> tuple[str, ...]:
        """The endings of the files that the importer writes."""
        return self.writes if isinstance(self.writes, tuple) else self.files if self.writes else ()


COMPONENT: Mapping[str, type[Component]] = {"importer": ImporterComponent}
"""The class that describes components of a kind; `Component` for kinds that are not in it."""


@dataclass(frozen=True)
class Command:
    """A command of `placekit` that a plugin contributes.

    Attributes:
        name: one word of a-z, 0-9 and -, or two where several commands share a subject: `graph show`, `graph export`;
            the first is not `help`.
        usage: the arguments after the name, e.g. `DIR ... [--json]`.
        summary: one line for `placekit --help`.
        target: `"module:function"`, imported at first use: `function(arguments, registry)` returns the exit code. It
            shows its own `--help`.
        group: its heading in `placekit --help`.
    """

    name: str
    usage: str
    summary: str
    target: str
    group: str = "more"


@hookspec
def placekit_importers() -> list[ImporterComponent]:
    """Return the importers of this plugin."""


@hookspec
def placekit_groupers() -> list[Component]:
    """Return the groupers of this plugin."""


@hookspec
def placekit_policies() -> Sequence[Component]:
    """Return the policies of this plugin."""


@hookspec
def placekit_trainers() -> list[Component]:
    """Return the trainers of this plugin."""


@hookspec
def placekit_backends() -> list[Component]:
    """Return the backends of this plugin."""


@hookspec
def placekit_run_started(run_dir: Path, config: Mapping[str, Any]) -> None:
    """A run begins; `config` is its complete configuration.

    If a run fails before its first evaluation, `placekit_run_finished` is not called.
    """


@hookspec
def placekit_evaluated(run_dir: Path, directory: Path, program: str, row: Mapping[str, float]) -> None:
    """A batch of `program` was evaluated; `row` is the new row of its history, `directory` the folder of its files."""


@hookspec
def placekit_checkpoint(run_dir: Path) -> None:
    """A checkpoint was written, from which the run can be resumed."""


@hookspec
def placekit_run_finished(run_dir: Path, result: Result) -> None:
    """A run ended. All its results are written except result.json, which comes last and marks a run as complete."""


@hookspec
def placekit_next_steps(run_dir: Path, result: Result) -> list[str]:
    """Return what a user may do next with the result of a run: one line each, that begins with a verb or a command.

    `placekit run` prints the first three lines of all plugins, after result.json is written and something that fits was found;
    in the order of pluggy, so that `@hookimpl(tryfirst=True)` comes first and `trylast=True` last. A hook that fails is a
    warning.
    """


@hookspec
def placekit_result_methods() -> Mapping[str, Callable[..., Any]]:
    """Return methods that each `Result` gets, by name: functions whose first argument is the result.

    A notebook shows a result by its method `_repr_html_`. Let the functions import what they need. No two plugins may use
    the same name. A hook that fails is a warning.
    """


@hookspec
def placekit_sweep_finished(directory: Path, registry: Any) -> None:
    """All jobs of a sweep have ended, whether they failed or not; their run directories are in `directory`.

    `registry` is the `Registry` of the installed plugins, as commands get it.
    """


@hookspec
def placekit_commands() -> list[Command]:
    """Return the commands of this plugin."""


@hookspec
def placekit_facts() -> Mapping[str, str | int | float | bool | None]:
    """Return what decides the results of this process besides versions, such as the number of threads of a library.

    Called when a run has ended; leave out a library that the run did not import. `result.json` holds
    the facts of all plugins; no two plugins may use the same name. A hook that fails is a warning.
    """


@hookspec(firstresult=True)
def placekit_error_band(problem: Problem, devices: Sequence[int]) -> ErrorBand | None:
    """Return how far predictions of programs like this one, on these devices of the machine, are from published measurements.

    Called before a search chooses its placement, and for the result: look it up, and simulate nothing. None leaves it to other
    plugins.
    """


@hookspec(firstresult=True)
def placekit_this_computer() -> Cluster | None:
    """Return the computer that this process runs on, or None to leave that to other plugins; `cluster=auto` asks for it.

    Called again on the same computer, it should return the same machine: measure nothing. Raises ClusterError for a computer
    that cannot be read.
    """
