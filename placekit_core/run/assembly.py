"""Checks a request, and builds everything that it names: components, programs, machine, problems, open backends."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from placekit_core.contracts.cluster import Cluster, load_cluster
from placekit_core.contracts.costs import CostTable, roofline, with_measured
from placekit_core.contracts.errors import ClusterError, ConfigError, explain, unknown
from placekit_core.contracts.grouping import Grouping
from placekit_core.contracts.interfaces import (
    Backend,
    Grouper,
    Importer,
    LearnablePolicy,
    Plugin,
    Policy,
    Trainer,
)
from placekit_core.contracts.ledger import Ledger
from placekit_core.contracts.measurement import Schedule
from placekit_core.contracts.problem import Problem, importing_for
from placekit_core.contracts.program import Program
from placekit_core.contracts.progress import report_progress
from placekit_core.contracts.result import Baseline, ErrorBand
from placekit_core.contracts.task import Session, Task
from placekit_core.contracts.units import format_value
from placekit_core.run.busy import busy_note
from placekit_core.run.config import (
    AUTO,
    DEFAULT,
    DEFAULT_EVALUATIONS,
    DEFAULT_SECONDS,
    NONE,
    PYTHON,
    RunConfig,
    Streams,
    conf_dir,
)
from placekit_core.run.entries import Entry
from placekit_core.run.evaluator import BudgetedEvaluator
from placekit_core.run.registry import Registry
from placekit_core.run.request import SECTIONS as SECTIONS, Request

DEFAULT_CLUSTER = "rtx4090_3090"
INNER = "inner"
"""The option of a backend that evaluates on another one: that backend, as `{name: ..., OPTION: ...}`."""
_INTERFACES: Mapping[str, type[Plugin]] = {
    "importer": Importer, "grouper": Grouper, "policy": Policy, "trainer": Trainer, "backend": Backend
}  # fmt: skip


def kind_of(section: str) -> str:
    """The kind of component that a section names."""
    return "backend" if section in ("proxy", "parallel") else section


@dataclass(frozen=True, eq=False)
class PythonObjects:
    """Objects that a Python program gave in place of components that its configuration names."""

    programs: Sequence[Program] | None = None
    grouper: Grouper | None = None
    policy: Policy | None = None
    trainer: Trainer | None = None
    backend: Backend | None = None
    proxy: Backend | None = None


@dataclass(eq=False)
class OpenProgram:
    """One program that is being placed: its problem, the backend open on it, and the task for the policy.

    The end of a run fills in the rest (finish.py): the `schedule` of its best placement, and the `baselines`.
    """

    program: Program
    problem: Problem
    session: Session
    evaluate: BudgetedEvaluator
    task: Task
    directory: Path
    baselines: Sequence[Baseline] = ()
    recorded: bool = False
    schedule: Schedule | None = None
    unwritten: OSError | None = None  # why the placement could not be written

    @property
    def name(self) -> str:
        """The program's name."""
        return self.program.graph.name

    @property
    def proxy(self) -> BudgetedEvaluator | None:
        """The evaluator of the proxy, if it is another backend and was used."""
        found = self.task.opened_proxy
        return found if isinstance(found, BudgetedEvaluator) else None


def assemble(request: Request, registry: Registry) -> Assembly:
    """Check a request before anything runs. Raises ConfigError or PluginError."""
    data, objects = dict(request.options), dict[str, Any]()
    for section, given in request.components.items():
        if isinstance(given, Plugin):
            if not isinstance(given, _INTERFACES[kind_of(section)]):
                raise ConfigError(f"{section}={type(given).__name__}() is not a {kind_of(section)}")
            objects[section], data[section] = given, {"name": given.name, **given.options.model_dump(mode="json")}
        elif section == "importer" and not isinstance(given, Mapping):
            objects["programs"], data[section] = given, {"name": PYTHON}
        else:
            data[section] = given
    if "cluster" in data:
        data["cluster"] = _whole_machine(data["cluster"], registry)
    data["python_objects"] = tuple(k for k, v in objects.items() if not _is_installed(kind_of(k), v, registry))
    try:
        config = RunConfig.model_validate(data)
    except ValidationError as e:
        raise ConfigError(*explain(e, RunConfig)) from None
    policy, trainer = str(config.policy.get("name")), config.trainer.get("name")
    if "trainer" not in objects and trainer in (AUTO, registry.own_trainer(policy)):
        options = {"name": trainer, **registry.own_trainer_options(policy), **config.trainer}
        config = config.model_copy(update={"trainer": options})
    complete = {section: _complete(config, section, registry) for section in SECTIONS if section not in objects}
    if config.parallel.get("name") != NONE:
        complete["parallel"] = {k: v for k, v in _complete(config, "parallel", registry).items() if k != INNER}
    return Assembly(config.model_copy(update=complete), registry, PythonObjects(**objects))


def _whole_machine(given: Any, registry: Registry) -> Any:
    """The section `cluster`; words, or a file with options beside it, become the whole machine. Raises ClusterError."""
    own = dict(given) if isinstance(given, Mapping) else {}
    words = str(own.pop("words", "") or own.pop("path", ""))
    if own.get("name") in ("file", "words"):
        del own["name"]
    if not words or "devices" in own or (not own and "words" not in given):
        return given
    is_file = "words" not in given or words.endswith((".yaml", ".yml"))  # in sweeps, files are among words
    found = load_cluster(words) if is_file else registry.machine(words)
    if found is None:
        raise unknown("cluster", words, [], ClusterError)
    return _merged(found.model_dump(mode="json"), own)


def _merged(whole: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`whole` with `changes`, also to the mappings in it."""
    both = [k for k, v in changes.items() if isinstance(v, Mapping) and isinstance(whole.get(k), Mapping)]
    return {**whole, **changes, **{k: _merged(whole[k], changes[k]) for k in both}}


def _complete(config: RunConfig, section: str, registry: Registry) -> dict[str, Any]:
    """A section with the value of every option. Raises PluginError or ConfigError."""
    given: dict[str, Any] = getattr(config, section)
    if (section, given.get("name")) in (("trainer", AUTO), ("trainer", NONE), ("importer", PYTHON)):
        return given
    entry, options = component(config, section, registry)
    return {"name": entry.component.name, **options.model_dump(mode="json")}


def _is_installed(kind: str, given: Any, registry: Registry) -> bool:
    """Whether a component is an installed one, which a configuration can name."""
    entries = registry.entries.get((kind, given.name), []) if isinstance(given, Plugin) else []
    return len(entries) == 1 and entries[0].load() is type(given)


class Assembly:
    """Builds the things that `config` names, each at first use.

    Attributes:
        streams: the random generators of the run.
    """

    def __init__(self, config: RunConfig, registry: Registry, objects: PythonObjects | None = None) -> None:
        self.config, self.registry, self.objects = config, registry, objects or PythonObjects()
        self.streams = Streams(config.seed)

    def build(self, section: str) -> Any:
        """The component that `section` names, built. Raises PluginError or ConfigError."""
        entry, options = component(self.config, section, self.registry)
        return entry.build(options)

    @cached_property
    def grouper(self) -> Grouper:
        return self.objects.grouper or self.build("grouper")

    @cached_property
    def policy(self) -> Policy:
        return self.objects.policy or self.build("policy")

    @cached_property
    def backend(self) -> Backend:
        """The backend; with `parallel`, the one that evaluates on it. Raises ConfigError if no other process can build it."""
        if self.config.parallel["name"] == NONE:
            return self.objects.backend or self.build("backend")
        if "backend" in self.config.python_objects:
            raise ConfigError(
                f"parallel={self.config.parallel['name']}: another process cannot build the backend, an object of this program",
                "give the name of an installed backend, or leave out parallel",
            )
        return self.build("parallel")  # type: ignore[no-any-return]

    @cached_property
    def proxy(self) -> Backend:
        return self.objects.proxy or self.build("proxy")

    @cached_property
    def trainer(self) -> Trainer | None:
        """The trainer of a learnable policy: the one asked for, else the policy's own; None if nothing is trained."""
        if self.objects.trainer is not None:
            return self.objects.trainer
        policy, name = self.policy, self.config.trainer["name"]
        options = {k: v for k, v in self.config.trainer.items() if k != "name"}
        if name == NONE:
            if isinstance(policy, LearnablePolicy) and policy.options.checkpoint is None:
                raise ConfigError(
                    f"trainer=none, but policy {policy.name!r} is not trained", "give it policy.checkpoint=RUN_DIR"
                )
            return None
        if not isinstance(policy, LearnablePolicy):
            if name != AUTO or options:
                what = f"trainer={name}" if name != AUTO else f"trainer.{next(iter(options))}"
                raise ConfigError(f"policy {policy.name!r} has nothing to train, but {what}", "leave out `trainer`")
            return None
        if policy.options.rollouts > 1:
            raise ConfigError(
                f"policy.rollouts={policy.options.rollouts} is for a trained policy, and this one would be trained",
                "add trainer=none, or leave out policy.rollouts",
            )
        if name == AUTO:
            name = self.registry.own_trainer(str(self.config.policy["name"]))
            if not name:
                raise ConfigError(
                    f"policy {self.config.policy['name']!r} names no trainer of its own", "choose one: trainer=NAME"
                )
        config = self.config.model_copy(update={"trainer": {"name": name, **options}})
        return Assembly(config, self.registry).build("trainer")  # type: ignore[no-any-return]

    @property
    def level(self) -> str:
        """`Policy.level` of the policy; does not build the policy."""
        if self.objects.policy is not None:
            return self.objects.policy.level
        return str(component(self.config, "policy", self.registry)[0].load().level)

    @cached_property
    def programs(self) -> Sequence[Program]:
        """The programs of the importer, at least one."""
        programs = self.objects.programs
        if programs is None:
            with importing_for(self._named_cluster):
                programs = self.registry.imported(self.config.importer)
        if not programs:
            raise ConfigError(f"there is no program to place (importer {self.config.importer['name']!r})")
        return programs

    def one_program(self, what: str) -> Program:
        """The only program. Raises ConfigError if there are more; `what` names the thing that needs a single program."""
        if len(self.programs) != 1:
            raise ConfigError(f"{what} works on one program, not on {len(self.programs)}", "choose one of them")
        return self.programs[0]

    @cached_property
    def _named_cluster(self) -> Cluster | None:
        found = named_cluster(self.config.cluster)
        return found and with_headroom(found, self.config.headroom)

    def cluster(self, program: Program) -> Cluster:
        """The machine. `default` and `auto` take the program's own machine, else the one that the backend finds.

        If there is neither, `default` takes `DEFAULT_CLUSTER` and `auto` takes this computer. Raises ClusterError.
        """
        cluster = self._cluster(program)
        usual = program.graph.attributes.get("launching", cluster.launching)
        return cluster.launched(self.config.launching or usual)

    def _cluster(self, program: Program) -> Cluster:
        if self._named_cluster is not None:
            return self._named_cluster
        own = program.cluster or self.backend.devices()
        if own is None and self.config.cluster["name"] == AUTO:
            own = self.registry.this_computer()
        own = own or load_cluster(conf_dir() / "cluster" / f"{DEFAULT_CLUSTER}.yaml")
        return with_headroom(own, self.config.headroom)

    def costs(self, program: Program, cluster: Cluster) -> CostTable:
        """The program's own costs, else the roofline; measured costs from a named file replace them."""
        costs = program.costs or roofline(program.graph, cluster)
        if self.config.costs.file is not None:
            costs = with_measured(costs, program.graph, self.config.costs.file)
        return costs

    def problem(self, program: Program, grouped: bool = True) -> Problem:
        """The program on its machine, grouped for the policy, or else with only co-located operations grouped."""
        cluster = self.cluster(program)
        if not grouped or self.level == "operation":
            grouping = Grouping.colocated(program.graph)
        else:
            grouping = self.grouper.group(program.graph, self.streams("grouper"))
            if self.backend.offloads:
                grouping = grouping.sources_apart(program.graph)
        return Problem(program.graph, grouping, cluster, self.costs(program, cluster))

    def open(
        self, run_dir: Path, stack: contextlib.ExitStack, on_row: Callable[[OpenProgram, Mapping[str, float]], None]
    ) -> list[OpenProgram]:
        """Open the backend on the problem of every program; `stack` closes the sessions.

        The programs that a learnable policy is trained on share one budget, also on the proxy; every other program has
        its own. `on_row` is called for each new row of a history.
        """
        programs, learns = self.programs, self.trainer is not None
        shared = self._ledger(), Ledger(self.config.budget.proxy_evaluations)
        busy = "" if self.backend.simulated else busy_note(self.backend)
        searches = []
        for i, program in enumerate(programs):
            name = re.sub(r"[^\w.\-]+", "_", program.graph.name).lstrip(".")
            directory = run_dir if len(programs) == 1 else run_dir / "programs" / f"{i:03d}-{name}"
            trained = learns and program.split != "test"
            ledgers = shared if trained else (self._ledger(), Ledger(self.config.budget.proxy_evaluations))
            searches.append(self._open(program, directory, ledgers, stack, on_row))
        if busy:
            searches[0].evaluate.note(busy)
        return searches

    def _open(
        self,
        program: Program,
        directory: Path,
        ledgers: tuple[Ledger, Ledger],
        stack: contextlib.ExitStack,
        on_row: Callable[[OpenProgram, Mapping[str, float]], None],
    ) -> OpenProgram:
        """Open one program; `ledgers` are the ledgers of the backend and of the proxy."""
        problem = self.problem(program)

        def evaluator(backend: Backend, ledger: Ledger, **more: Any) -> BudgetedEvaluator:
            session = backend.open(problem, program.executable)
            stack.callback(session.close)
            return BudgetedEvaluator(
                problem, session, ledger, deterministic=backend.deterministic, objective=backend.objective,
                failing_signal_s=self.config.failing_signal_s, backend=backend.name, **more,
            )  # fmt: skip

        search: OpenProgram
        evaluate = evaluator(self.backend, ledgers[0], on_row=lambda row: on_row(search, row))
        same = self.objects.proxy is None and self.config.proxy == self.config.backend

        def open_proxy() -> BudgetedEvaluator:
            return evaluator(self.proxy, ledgers[1], on_row=lambda row: _show_proxy(row, ledgers[1], self.proxy.unit))

        task = Task(
            problem, evaluate,
            None if same else open_proxy,
            program.executable,
            self.config.budget.proxy_evaluations, measures=not self.backend.simulated,
            backend={} if "backend" in self.config.python_objects else self.config.backend,
            error_band=partial(self.error_band, problem),
        )  # fmt: skip
        if problem.grouping.note:
            evaluate.note(problem.grouping.note)
        if self.level == "operation" and self.grouper.requested:
            evaluate.note(f"grouper {self.grouper.name!r} is not used: the policy groups the operations by itself")
        search = OpenProgram(program, problem, evaluate.session, evaluate, task, directory)
        return search

    def error_band(self, problem: Problem, devices: Sequence[int]) -> ErrorBand | None:
        """How wrong a value with kernels on `devices` is; None if the backend measures."""
        return self.registry.error_band(problem, devices) if self.backend.simulated else None

    def _ledger(self) -> Ledger:
        evaluations, seconds = self.config.budget.evaluations, self.config.budget.seconds
        if evaluations is None and seconds is None:
            return Ledger(DEFAULT_EVALUATIONS) if self.backend.simulated else Ledger(seconds=DEFAULT_SECONDS)
        return Ledger(evaluations, seconds)


def named_cluster(given: Mapping[str, Any]) -> Cluster | None:
    """The machine that the section `cluster` names or describes; None for `default` and `auto`. Raises ClusterError."""
    data = dict(given)
    if data.get("name") == "file" and set(data) == {"name", "path"}:  # a machine may be named `file`
        return load_cluster(str(data["path"]))
    if data in ({"name": AUTO}, {"name": DEFAULT}):
        return None
    return Cluster.parse(data, f"cluster {data.get('name', '')!r}")


def with_headroom(cluster: Cluster, headroom: float | None) -> Cluster:
    """`cluster` with this headroom for all kinds; None changes nothing. Raises ClusterError if no memory is left."""
    if headroom is None:
        return cluster
    kinds = {name: {**kind.model_dump(), "headroom": headroom} for name, kind in cluster.kinds.items()}
    return Cluster.parse({**cluster.model_dump(), "kinds": kinds}, f"{cluster.name!r} with headroom={headroom:g}")


def _show_proxy(row: Mapping[str, float], ledger: Ledger, unit: str) -> None:
    """Report the progress on a proxy."""
    share = None if ledger.limit is None and ledger.limit_s is None else ledger.progress
    best = format_value(row["best_s"], unit)
    report_progress(f"{int(row['evaluations']):,} evaluations on the proxy, best {best}", share)


def component(config: RunConfig, section: str, registry: Registry) -> tuple[Entry, BaseModel]:
    """The component that `section` names, and its checked options. Raises PluginError or ConfigError."""
    values = dict(getattr(config, section))
    entry = registry.get(kind_of(section), str(values.pop("name", "")))
    if section == "parallel":
        if INNER not in entry.component.config.model_fields:
            raise ConfigError(
                f"parallel={entry.component.name}: this backend cannot evaluate on another one", "leave out parallel"
            )
        values[INNER] = config.backend
    try:
        return entry, entry.options(values, f"{section}.")
    except ConfigError as e:
        unknown = values.keys() - entry.component.config.model_fields.keys()
        others = [
            x for x in registry.all() if x.kind == entry.kind and unknown <= x.component.config.model_fields.keys()
        ]
        if not unknown or not others or e.hint.startswith("did you mean"):
            raise
        names = " or ".join(f"{section}={x.component.name}" for x in others[:3])
        names += f" and {len(others) - 3} more" if others[3:] else ""
        raise ConfigError(e.message, f"it is an option of {names}; {e.hint}") from None


def distributions(config: RunConfig, registry: Registry, importer: bool = True) -> list[str]:
    """The installed distributions that the components of `config` come from, with or without the importer's."""
    names = [(kind_of(s), str(getattr(config, s)["name"])) for s in SECTIONS if importer or s != "importer"]
    if config.trainer["name"] == AUTO:
        names.append(("trainer", registry.own_trainer(str(config.policy["name"]))))
    names.append(("backend", str(config.parallel["name"])))
    return sorted({entry.distribution for name in names for entry in registry.entries.get(name, [])})
