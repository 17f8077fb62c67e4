"""What a Python program gives to `place` and `search`, as the programs and the configuration of a run."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator
from pydantic import ValidationError

from placekit_core.cluster import Cluster, load_cluster
from placekit_core.config import AUTO, GIVEN, NONE, RunConfig, conf_dir, explain
from placekit_core.detection import endings, importer_of, readers_of
from placekit_core.errors import ClusterError, ConfigError, ImporterError, PlacekitError, unknown
from placekit_core.graph import Graph
from placekit_core.interfaces import Backend, Checkpoint, Grouper, Importer, Plugin, Policy, State, Trainer
from placekit_core.placement import Placement
from placekit_core.problem import Program, Task
from placekit_core.registry import installed

Spec = str | Mapping[str, Any] | Plugin
"""A component: its name, its name with options (`{"name": "annealing", "starts": 32}`), or itself."""
PolicySpec = Spec | Callable[[Task, Generator], Placement]
ClusterSpec = str | Path | Mapping[str, Any] | Cluster
BudgetSpec = float | Mapping[str, float] | None

OFTEN_S, NEVER_S = 2.0, 1e9  # between checkpoints; the second for a run that keeps no files


INTERFACES: Mapping[str, type[Plugin]] = {
    "importer": Importer, "grouper": Grouper, "policy": Policy, "trainer": Trainer, "backend": Backend
}  # fmt: skip


class Yours(Policy):
    """The caller's own method: a function `f(task, rng) -> Placement`; without one, a loop of theirs (`search`)."""

    def __init__(self, name: str, function: Callable[[Task, Generator], Placement] | None = None) -> None:
        super().__init__()
        self.name = name  # type: ignore[misc]
        self._function = function

    def place(
        self, task: Task, rng: Generator, state: State | None = None, checkpoint: Checkpoint | None = None
    ) -> Placement:
        assert self._function is not None, "a search has no policy to ask"
        return self._function(task, rng)


def load_programs(source: Any, **about: Any) -> list[Program]:
    """What there is to place in `source`.

    Args:
        source: a `Graph`, `Program` or list of them; a graph file; an importer (its name, its name with options, or
            itself); or an object that an importer takes, such as a torch module or a `placekit_torch.Step`.
        about: options of a named importer, or what the importer needs to know of an object: for a torch module `inputs`,
            and for a training step `loss`, `targets`, `optimizer`.

    Raises:
        PlacekitError: what is wrong with the source, or which sources there are.
    """
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
        return source.load()
    if isinstance(source, str | Path | Mapping):
        name = _file_importer(source)
        spec = {"path": str(source), "name": name} if name else {"name": source} if isinstance(source, str) else source
        if not isinstance(spec, Mapping):
            raise ImporterError(f"no importer reads {str(spec)!r}", f"files end in {', '.join(endings())}")
        section = _section("importer", {**spec, **about})
        entry = installed().get("importer", section.pop("name"))
        programs: list[Program] = entry.build(entry.component.config.model_validate(section)).load()
        return programs
    if isinstance(source, type):
        raise ImporterError(f"{source.__name__} is a class", f"give an instance of it: {source.__name__}(...)")
    types = [f"{c.__module__}.{c.__qualname__}" for c in type(source).__mro__]
    entries = [e for e in installed().all() if e.kind == "importer"]
    for entry in entries:
        if any(t in entry.component.objects for t in types):
            cls: type[Importer] = installed().get("importer", entry.component.name).load()
            return cls.convert(source, **about)
    takes = sorted({t for e in entries for t in e.component.objects})
    raise ImporterError(
        f"no importer takes a {types[0]}",
        f"graphs, programs, graph files, importers, and {', '.join(takes) or 'nothing else'}; others come with plugins",
    )


def configure(
    source: Any,
    about: Mapping[str, Any],
    cluster: ClusterSpec,
    budget: BudgetSpec,
    run_dir: str | Path | None,
    log: Sequence[str],
    arguments: Collection[str],
    costs: str | Path | None,
    **rest: Any,
) -> tuple[RunConfig, dict[str, Any]]:
    """The configuration of a run from Python, and the objects that take the place of what it names.

    `arguments` are the names that the caller knows, for what is misspelt among `about`.
    """
    given: dict[str, Any] = {k: v for k, v in rest.items() if isinstance(v, Plugin)}
    objects = [k for k, v in given.items() if not _is_installed("backend" if k == "proxy" else k, v)]
    try:
        if isinstance(source, str | Mapping) and _file_importer(source) is None:
            importer = _section("importer", {**({"name": source} if isinstance(source, str) else source), **about})
        else:
            importer, given["programs"] = {"name": GIVEN}, load_programs(source, **about)
            objects = ["programs", *objects]
    except PlacekitError as e:
        for key in about:
            close = difflib.get_close_matches(key, arguments, 1, 0.75)
            if close:
                raise ConfigError(f"no argument {key!r}", f"did you mean {close[0]!r}? or: {e.message}") from None
        raise
    data = {
        **rest,
        **{kind: _section("backend" if kind == "proxy" else kind, rest[kind])
           for kind in ("policy", "grouper", "trainer", "backend", "proxy")},
        "importer": importer,
        "cluster": _cluster(cluster),
        "budget": _budget(budget),
        "costs": {"file": None if costs is None else str(costs)},
        "run_dir": "" if run_dir is None else str(run_dir),
        "log": log if run_dir is not None else (),
        "checkpoint_s": OFTEN_S if run_dir is not None else NEVER_S,
        "given": tuple(objects),
    }  # fmt: skip
    try:
        return RunConfig.model_validate(data), given
    except ValidationError as e:
        raise ConfigError(*explain(e, RunConfig)) from None


def _is_installed(kind: str, component: Plugin) -> bool:
    """Whether a configuration can name the component."""
    entries = installed().entries.get((kind, component.name), [])
    return len(entries) == 1 and entries[0].load() is type(component)


def _budget(spec: BudgetSpec) -> dict[str, Any]:
    """The section `budget` of a configuration."""
    if spec is None or isinstance(spec, Mapping):
        return dict(spec or {})
    number = isinstance(spec, int | float | np.number) and not isinstance(spec, bool)
    if not number or not np.isfinite(spec) or spec != int(spec):
        raise ConfigError(f"budget={spec!r}", "give a number of evaluations, or {'evaluations': ..., 'seconds': ...}")
    return {"evaluations": int(spec)}


def _section(kind: str, spec: Any) -> dict[str, Any]:
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
    options = installed().get(kind, name).component.config
    try:
        return {"name": name, **options.model_validate(values).model_dump(mode="json")}
    except ValidationError as e:
        raise ConfigError(*explain(e, options, f"{kind}.")) from None


def _file_importer(source: Any) -> str | None:
    """The importer that reads the file `source`, or None if `source` is no file's name. Raises GraphError."""
    if not isinstance(source, str | Path) or ("importer", str(source)) in installed().entries:
        return None
    return importer_of(source) if readers_of(source) or os.path.isfile(source) else None


def _cluster(spec: ClusterSpec) -> dict[str, Any]:
    """The section `cluster` of a configuration."""
    if spec == AUTO:
        return {"name": AUTO}
    if isinstance(spec, str) and not spec.endswith((".yaml", ".yml")):
        folders = [conf_dir(), *(folder for _, folder in installed().conf_folders())]
        presets = {p.stem: p for f in folders for p in sorted((f / "cluster").glob("*.yaml"))}
        if spec not in presets:
            raise unknown("cluster", spec, [AUTO, *presets], ClusterError)
        spec = presets[spec]
    if isinstance(spec, str | Path):
        spec = load_cluster(spec)
    if not isinstance(spec, Cluster):
        if not isinstance(spec, Mapping):
            raise ConfigError(f"cluster={spec!r}", "give a preset, a YAML file, its data, or a Cluster")
        spec = Cluster.parse(dict(spec))
    return spec.model_dump(mode="json")
