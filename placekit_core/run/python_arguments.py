"""Turns the arguments of `place` and `search` into the configuration and the objects of a run."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator
from pydantic import ValidationError

from placekit_core.contracts.cluster import Cluster, load_cluster
from placekit_core.contracts.errors import ClusterError, ConfigError, ImporterError, PlacekitError, explain, unknown
from placekit_core.contracts.graph import Graph
from placekit_core.contracts.interfaces import Backend, Grouper, Importer, Plugin, Policy, Trainer
from placekit_core.contracts.placement import Placement
from placekit_core.contracts.program import Program
from placekit_core.contracts.task import Task
from placekit_core.run.assembly import SECTIONS, PythonObjects, kind_of
from placekit_core.run.config import AUTO, DEFAULT, NONE, PYTHON, RunConfig, conf_dir, defaults_list
from placekit_core.run.detection import chosen_by, importer_of, known_files, names_file, readers_of
from placekit_core.run.registry import LISTING, Registry

Spec = str | Mapping[str, Any] | Plugin
"""A component: its name, its name with options (`{"name": NAME, OPTION: VALUE}`), or an instance."""
PolicySpec = Spec | Callable[[Task, Generator], Placement]
ClusterSpec = str | Path | Mapping[str, Any] | Cluster
BudgetSpec = float | Mapping[str, float] | None

INTERFACES: Mapping[str, type[Plugin]] = {
    "importer": Importer, "grouper": Grouper, "policy": Policy, "trainer": Trainer, "backend": Backend
}  # fmt: skip


class FunctionPolicy(Policy):
    """The caller's own method: a function `f(task, rng) -> Placement`; None for the caller's own loop (`search`)."""

    def __init__(self, name: str, function: Callable[[Task, Generator], Placement] | None = None) -> None:
        super().__init__()
        self.name = name  # type: ignore[misc]
        self._function = function

    def place(self, task: Task, rng: Generator) -> Placement:
        assert self._function is not None, "a search has no policy to ask"
        return self._function(task, rng)


def load_programs(source: Any, registry: Registry, about: Mapping[str, Any]) -> list[Program]:
    """The programs in `source`; see `placekit_core.load_programs`."""
    source, about = _in_full(source, about, registry)
    if isinstance(source, Graph | Program):
        source = [source]
    if (
        isinstance(source, Sequence)
        and not isinstance(source, str)
        and all(isinstance(p, Graph | Program) for p in source)
    ):
        if about:
            raise ImporterError(f"a graph needs no {next(iter(about))!r}")
        return [Program(p) if isinstance(p, Graph) else p for p in source]
    if isinstance(source, Importer):
        if about:
            raise ImporterError(
                f"an instance of an importer takes no {next(iter(about))!r}", "build it with its options"
            )
        return source.load()
    if isinstance(source, str | Path | Mapping):
        name = _file_importer(source, registry)
        spec = {"path": str(source), "name": name} if name else {"name": source} if isinstance(source, str) else source
        if not isinstance(spec, Mapping):
            raise ImporterError(f"no importer reads {str(spec)!r}", known_files(registry))
        section = _section("importer", {**spec, **about}, registry)
        programs: list[Program] = registry.build("importer", section.pop("name"), section).load()
        return programs
    if isinstance(source, type):
        raise ImporterError(f"{source.__name__} is a class", f"give an instance of it: {source.__name__}(...)")
    types = [f"{c.__module__}.{c.__qualname__}" for c in type(source).__mro__]
    for component in registry.importers():
        if any(t in component.objects for t in types):
            cls: type[Importer] = registry.get("importer", component.name).load()
            return cls.convert(source, **about)
    takes = sorted({t for c in registry.importers() for t in c.objects})
    raise ImporterError(
        f"no importer takes a {types[0]}",
        f"graphs, programs, graph files, importers, and {', '.join(takes) or 'nothing else'}; others come with plugins",
    )


def _in_full(source: Any, about: Mapping[str, Any], registry: Registry) -> tuple[Any, Mapping[str, Any]]:
    """Source and options; without a source, an option in `about` that chooses an importer names it. Raises ImporterError."""
    if source is not None:
        return source, about
    component = chosen_by(about, registry)
    if component is None:
        known = sorted({f"{c.shorthand[0]}=..." for c in registry.importers() if c.shorthand})
        hint = " or ".join(["give a graph, a file or an object", *known])
        raise ImporterError("nothing says what is placed", hint)
    first = component.shorthand[0]
    rest = {k: v for k, v in about.items() if k != first}
    if names_file(str(about[first]), registry):
        return str(about[first]), rest
    return {"name": component.name, **about}, {}


@dataclass(frozen=True, eq=False)
class Arguments:
    """The arguments of `place` and `search`, which describe them."""

    source: Any
    about: Mapping[str, Any]
    cluster: ClusterSpec | None
    policy: PolicySpec | None
    grouper: Spec | None
    trainer: Spec | None
    backend: Spec | None
    proxy: Spec | None
    budget: BudgetSpec
    costs: str | Path | None
    run_dir: str | Path | None
    options: Mapping[str, Any]
    """Options of RunConfig, unchanged; None leaves an option at its default."""


def configure(arguments: Arguments, names: Collection[str], registry: Registry) -> tuple[RunConfig, PythonObjects]:
    """The configuration of a run from Python, and the objects that replace components named in it.

    `names` are the arguments of the caller, to suggest one for a misspelt name in `about`.
    """
    (source, about), run_dir = _in_full(arguments.source, arguments.about, registry), arguments.run_dir
    if run_dir is not None and (not isinstance(run_dir, str | Path) or run_dir == ""):
        raise ConfigError(f"run_dir={run_dir!r}", "give a folder, or None to write nothing")
    defaults = defaults_list(conf_dir() / "config.yaml")
    defaults["proxy"] = defaults["backend@proxy"]
    asked = {k: getattr(arguments, k) for k in (*SECTIONS, "cluster") if k != "importer"}
    specs = {k: defaults[k] if spec is None else spec for k, spec in asked.items()}
    objects: dict[str, Any] = {k: v for k, v in specs.items() if isinstance(v, Plugin)}
    unnamed = [k for k, v in objects.items() if not _is_installed(kind_of(k), v, registry)]
    try:
        if isinstance(source, str | Mapping) and _file_importer(source, registry) is None:
            named = {"name": source} if isinstance(source, str) else source
            importer = _section("importer", {**named, **about}, registry)
        else:
            importer, objects["programs"] = {"name": PYTHON}, load_programs(source, registry, about)
            unnamed = ["programs", *unnamed]
    except PlacekitError as e:
        for key in about:
            close = difflib.get_close_matches(key, names, 1, 0.75)
            if close:
                raise ConfigError(f"no argument {key!r}", f"did you mean {close[0]!r}? or: {e.message}") from None
        raise
    kept = {} if run_dir is not None else {"log": (), "checkpoint_s": None}
    data = {
        **{key: value for key, value in arguments.options.items() if value is not None},
        **{
            section: _section(kind_of(section), spec, registry)
            for section, spec in specs.items()
            if section != "cluster"
        },
        **kept,
        "importer": importer,
        "cluster": _cluster(specs["cluster"], registry),
        "budget": _budget(arguments.budget),
        "costs": {"file": None if arguments.costs is None else str(arguments.costs)},
        "run_dir": "" if run_dir is None else str(run_dir),
        "python_objects": tuple(unnamed),
    }
    try:
        return RunConfig.model_validate(data), PythonObjects(**objects)
    except ValidationError as e:
        raise ConfigError(*explain(e, RunConfig)) from None


def _is_installed(kind: str, component: Plugin, registry: Registry) -> bool:
    """Whether the component is an installed one, which a configuration can name."""
    entries = registry.entries.get((kind, component.name), [])
    return len(entries) == 1 and entries[0].load() is type(component)


def _budget(spec: BudgetSpec) -> dict[str, Any]:
    """The section `budget` of a configuration."""
    if spec is None or isinstance(spec, Mapping):
        return dict(spec or {})
    whole = isinstance(spec, int | np.integer) and not isinstance(spec, bool)
    if not whole and not (isinstance(spec, float | np.floating) and float(spec).is_integer()):
        raise ConfigError(f"budget={spec!r}", "give a number of evaluations, or {'evaluations': ..., 'seconds': ...}")
    return {"evaluations": int(spec)}


def _section(kind: str, spec: Any, registry: Registry) -> dict[str, Any]:
    """The section of a configuration for a component, with every option. Raises PluginError or ConfigError."""
    if isinstance(spec, Plugin):
        if not isinstance(spec, INTERFACES[kind]):
            raise ConfigError(f"{kind}={type(spec).__name__}() is no {kind}")
        return {"name": spec.name, **spec.options.model_dump(mode="json")}
    if not isinstance(spec, str | Mapping):
        what = f"{spec.__name__} is a class" if isinstance(spec, type) else f"{spec!r} is no {kind}"
        raise ConfigError(
            f"{kind}: {what}", f"give its name, its name with options, or an instance of a {kind}'s class"
        )
    values = {"name": spec} if isinstance(spec, str) else dict(spec)
    name = str(values.pop("name", ""))
    if kind == "trainer" and name in (AUTO, NONE):
        return {"name": name, **values}
    options = registry.get(kind, name).options(values, f"{kind}.")
    return {"name": name, **options.model_dump(mode="json")}


def _file_importer(source: Any, registry: Registry) -> str | None:
    """The importer that reads the file `source`, or None if `source` is not the name of a file. Raises GraphError."""
    if not isinstance(source, str | Path) or ("importer", str(source)) in registry.entries:
        return None
    return importer_of(source, registry) if readers_of(source, registry) or os.path.isfile(source) else None


def _cluster(spec: ClusterSpec, registry: Registry) -> dict[str, Any]:
    """The section `cluster` of a configuration."""
    if spec in (AUTO, DEFAULT):
        return {"name": spec}
    if isinstance(spec, str) and not spec.endswith((".yaml", ".yml")):
        presets = {p.name: p.path for p in registry.presets() if p.group == "cluster" and p.path}
        if spec not in presets:
            raise unknown("cluster", spec, [AUTO, DEFAULT, *presets], ClusterError, LISTING)
        registry.check_choices({"cluster": spec})
        spec = presets[spec]
    if isinstance(spec, str | Path):
        spec = load_cluster(spec)
    if not isinstance(spec, Cluster):
        if not isinstance(spec, Mapping):
            raise ConfigError(f"cluster={spec!r}", "give a preset, a YAML file, its data, or a Cluster")
        spec = Cluster.parse(dict(spec))
    return spec.model_dump(mode="json")
