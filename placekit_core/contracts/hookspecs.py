"""The hooks: functions of a plugin, marked with `@hookimpl`, that add components, commands and loggers to placekit.

The hooks that return components and commands are called whenever plugins are listed, so their module must import nothing heavy.
The abstract base classes in interfaces.py say what components must do.
"""

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
    from placekit_core.contracts.placement import Placement
    from placekit_core.contracts.problem import Problem
    from placekit_core.contracts.result import ErrorBand, Export, Result


hookspec = pluggy.HookspecMarker("placekit")
hookimpl = pluggy.HookimplMarker("placekit")

KINDS = ("importer", "grouper", "policy", "trainer", "backend")


@dataclass(frozen=True)
class Component:
    """Describes one component of a plugin. Listing plugins reads only this, so it imports nothing heavy.

    Importers return an `ImporterComponent` instead, and policies may return a `PolicyComponent`.

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
        trainer: for a learnable policy, the trainer that `trainer: auto` chooses.
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
        detect: a function of the first bytes of a file (at most 4096) that says whether the importer reads the file. It
            is called for every file, so it must be fast and must not raise. Without it, the ending alone decides.
        writes: True if the class has `write` for files with the endings in `files`; or the endings of the files that it
            writes, where other importers write files with the endings in `files`.
        objects: the types of the Python objects that it takes, `module.Class`.
        shorthand: options that users may write without `importer.`. The first one chooses the importer:
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
    """Return the policies of this plugin.

    Example::

        @hookimpl
        def placekit_policies():
            return [Component("greedy", "each group where it ends first", GreedyOptions, "placekit_greedy.policy:Greedy")]
    """


@hookspec
def placekit_trainers() -> list[Component]:
    """Return the trainers of this plugin."""


@hookspec
def placekit_backends() -> list[Component]:
    """Return the backends of this plugin."""


@hookspec
def placekit_run_started(run_dir: Path, config: Mapping[str, Any]) -> None:
    """Called when a run starts or is resumed, before the program is imported; `config` is the complete configuration.

    If a run fails before its first evaluation, `placekit_run_finished` is not called.

    Example::

        @hookimpl
        def placekit_run_started(run_dir, config):
            print(f"{config['policy']['name']} with seed {config['seed']} in {run_dir}")
    """


@hookspec
def placekit_evaluated(run_dir: Path, directory: Path, program: str, row: Mapping[str, float]) -> None:
    """Called after each evaluated batch of `program`; `row` is the new row of its history, `directory` the folder of its files.

    `row` has the columns of history.csv. The time of this hook is part of the run's seconds.

    Example::

        @hookimpl
        def placekit_evaluated(program, row):
            print(f"{program}: {row['best_s']:.6f} s after {row['evaluations']:.0f} evaluations")
    """


@hookspec
def placekit_checkpoint(run_dir: Path) -> None:
    """Called when a checkpoint has been written.

    Flush the logger's output here: then it holds the same rows as the checkpoint, from which a resumed run continues.
    """


@hookspec
def placekit_run_finished(run_dir: Path, result: Result) -> None:
    """Called at the end of a run, when all results are written except result.json, which marks the run as complete.

    Also called if no placement fits, after Ctrl-C, and after an error once something was evaluated: see
    `result.summary.fits` and `result.summary.status`.
    """


@hookspec
def placekit_next_steps(run_dir: Path, result: Result) -> list[str]:
    """Return suggestions for using the result of a run: lines that begin with a verb or a command.

    `placekit run` calls it for every installed plugin after writing result.json, if a placement fits; sweeps do not. It
    prints the first three lines of all plugins to stderr: `@hookimpl(tryfirst=True)` comes first, `trylast=True` last.
    If a hook fails, the run warns and goes on.

    Example::

        @hookimpl(trylast=True)
        def placekit_next_steps(run_dir, result):
            return [f"look at {run_dir}: nothing is proven"] if result.summary.gap is None else []
    """


@hookspec
def placekit_result_methods() -> Mapping[str, Callable[..., Any]]:
    """Return methods to add to every `Result`, by name: functions whose first argument is the result.

    Notebooks show a result by its method `_repr_html_`. Define the functions at the top level of a module, so that
    results can be pickled, and import what they need inside them. A hook that fails or returns a name that `Result` has
    already is ignored, with a warning.

    Example::

        def is_proven(result):
            return result.summary.gap == 0


        @hookimpl
        def placekit_result_methods():
            return {"is_proven": is_proven}
    """


@hookspec
def placekit_sweep_finished(directory: Path, registry: Any) -> None:
    """Called when all jobs of a sweep have ended, failed ones included; their run directories are in `directory`.

    Called for every installed plugin. `registry` holds the installed plugins, as for commands.

    Example::

        @hookimpl
        def placekit_sweep_finished(directory):
            print(f"{sum(1 for _ in directory.rglob('result.json'))} results in {directory}")
    """


@hookspec
def placekit_commands() -> list[Command]:
    """Return the commands of this plugin."""


@hookspec
def placekit_facts() -> Mapping[str, str | int | float | bool | None]:
    """Return settings of this process, other than versions, that influence results, such as a library's number of threads.

    Called when a run has ended; leave out libraries that the run did not import. `result.json` holds the facts of all
    plugins, and no two plugins may use the same name. If a hook fails, the run warns and goes on.

    Example::

        @hookimpl
        def placekit_facts():
            torch = sys.modules.get("torch")
            return {} if torch is None else {"torch_threads": torch.get_num_threads()}
    """


@hookspec(firstresult=True)
def placekit_error_band(problem: Problem, devices: Sequence[int]) -> ErrorBand | None:
    """Return how far predictions of similar programs, on these devices of the machine, are from published measurements.

    Called before a search chooses its placement, and again for the result: look the answer up, do not simulate. None
    leaves the answer to other plugins; the first answer counts.

    Example::

        @hookimpl
        def placekit_error_band(problem, devices):
            if problem.graph.attributes.get("mode") == "my_mode" and len(devices) == 1:
                return ErrorBand(kind="my measurements, one GPU", rows=40, error=0.08)
            return None
    """


@hookspec
def placekit_exports(problem: Problem, placement: Placement) -> Sequence[Export]:
    """Return a placement in the forms that other programs take, for the page of a run; leave out what cannot express it.

    Example::

        @hookimpl
        def placekit_exports(problem, placement):
            devices = [problem.cluster.device_names[d] for d in problem.expand(placement.device)]
            return [Export("a list of devices", "", "\\n".join(devices), placement)]
    """


@hookspec(firstresult=True)
def placekit_machine(words: str) -> Cluster | None:
    """Return the machine that `words` describe, as in `cluster="2x h100"`, or None to leave that to other plugins.

    Called for a machine that is neither a preset nor a file. Runs record the whole machine, and show its name. Raises
    ClusterError, with the words that exist, for words that it cannot read.

    Example::

        @hookimpl
        def placekit_machine(words):
            return load_cluster("ours.yaml") if words == "our server" else None
    """


@hookspec(firstresult=True)
def placekit_this_computer() -> Cluster | None:
    """Return this computer as a machine, for `cluster=auto`, or None to leave that to other plugins.

    Do not measure: the same computer must always give the same machine. Raises ClusterError if its hardware cannot be
    read.

    Example::

        @hookimpl
        def placekit_this_computer():
            memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
            cpu = {"type": "cpu", "flops_per_s": {"float32": 1e12}, "memory_bytes": memory, "memory_bytes_per_s": 5e10}
            return Cluster.parse({"name": "here", "kinds": {"cpu": cpu}, "devices": [{"kind": "cpu"}]})
    """
