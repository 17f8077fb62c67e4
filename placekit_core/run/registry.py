"""Finds plugins, sets broken ones aside, and looks up components and commands by name.

Plugins are the entry points of group `placekit`, in the order of their names. A plugin that cannot be imported, misspells a
hook or raises in one is listed as broken; everything else works.
"""

from __future__ import annotations

import contextlib
import difflib
import platform
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, requires, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pluggy

from placekit_core.contracts import hookspecs
from placekit_core.contracts.errors import ClusterError, PlacekitError, PluginError, unknown
from placekit_core.contracts.hookspecs import COMPONENT, KINDS, Command, Component, ImporterComponent, PolicyComponent
from placekit_core.contracts.version import __version__
from placekit_core.run.config import AUTO, DEFAULT, NONE, conf_dir
from placekit_core.run.csv_log import CsvLog
from placekit_core.run.entries import Broken, Choice, CommandEntry, Entry, Package, plugin_output, where

if TYPE_CHECKING:  # numpy is not needed to list what is installed
    from placekit_core.contracts.cluster import Cluster
    from placekit_core.contracts.problem import Problem
    from placekit_core.contracts.program import Program
    from placekit_core.contracts.result import ErrorBand

GROUP = "placekit"
CORE = "placekit-core"
"""The distribution of this module."""
PLURAL = {"policy": "policies"} | {k: f"{k}s" for k in KINDS if k != "policy"}
LISTING = "placekit run --help"
"""The command that lists the names of every group."""
NO_IMPORTER = "no importer is installed: `pip install placekit` installs what a first run needs"
BUILT_IN = {
    ("trainer", AUTO): "the trainer that the policy names as its own; nothing if the policy needs no training",
    ("trainer", NONE): "no training: use a learned policy as it is",
    ("cluster", DEFAULT): "the program's own machine, else what the backend finds, else a preset",
    ("cluster", AUTO): "the program's own machine, else what the backend finds, else this computer",
    ("cluster", "file"): "a machine of your own: cluster=FILE.yaml",
    ("cluster", "words"): "a machine in words: cluster='MACHINE'",
}
"""(group, name) and meaning of the choices that are neither components nor presets."""


@dataclass(eq=False)
class Registry:
    """Everything that is installed.

    If two components of one kind, or two commands, have the same name, both are kept; asking for that name is an error.
    """

    manager: pluggy.PluginManager
    entries: dict[tuple[str, str], list[Entry]] = field(default_factory=dict)
    commands: dict[str, list[CommandEntry]] = field(default_factory=dict)
    broken: list[Broken] = field(default_factory=list)
    packages: list[Package] = field(default_factory=list)
    began_ns: int = field(default_factory=time.time_ns, init=False)
    """When this process began to look for plugins, nanoseconds since the epoch."""
    keeps_imports: bool = field(default=False, init=False)
    """Whether importers' graphs are kept for later processes (imports.py)."""
    programs: dict[str, list[Program]] = field(default_factory=dict, init=False)
    """Imported programs that jobs of a sweep share, by importer (cli/sweep.py)."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as `installed()`: plugin managers cannot be pickled, so another process finds its plugins again."""
        return installed, ()

    def add(self, plugin: str, hooks: Any, distribution: str, version: str, module: str = "") -> None:
        """Register a plugin and collect what it contributes. If it is a class, an instance is built.

        A plugin that fails becomes one of `broken`. `module` is its top-level package.
        """
        try:
            own = hooks() if isinstance(hooks, type) else hooks
            for name in dir(own):
                if (
                    name.startswith("placekit_")
                    and not hasattr(hookspecs, name)
                    and hasattr(getattr(own, name), GROUP + "_impl")
                ):
                    raise PluginError(f"no hook is called {name}{_did_you_mean(name)}")
            self.manager.register(own, name=plugin)
            self.manager.check_pending()
            for name in dir(own):
                known = name.startswith("placekit_") and hasattr(hookspecs, name)
                if known and self.manager.parse_hookimpl_opts(own, name) is None:
                    raise PluginError(f"{name} has no @hookimpl")
            found = {kind: self._contributed(plugin, kind) for kind in (*KINDS, "command")}
        except KeyboardInterrupt:
            raise
        except BaseException as e:
            if self.manager.has_plugin(plugin):
                self.manager.unregister(name=plugin)
            self.broken.append(Broken(plugin, distribution, version, e, module))
            return
        for command in found.pop("command"):
            self.commands.setdefault(command.name, []).append(CommandEntry(command, distribution, version))
        for kind, components in found.items():
            for component in components:
                entry = Entry(kind, component, plugin, distribution, version)
                self.entries.setdefault((kind, component.name), []).append(entry)

    def _contributed(self, plugin: str, kind: str) -> list[Any]:
        """The components of `kind`, or the commands, of a plugin. Raises TypeError for an object of another type."""
        expected = Command if kind == "command" else COMPONENT.get(kind, Component)
        hook = getattr(self.manager.hook, f"placekit_{PLURAL.get(kind, 'commands')}")
        found = [one for h in hook.get_hookimpls() if h.plugin_name == plugin for one in h.function()]
        for one in found:
            if not isinstance(one, expected):
                raise TypeError(f"{hook.name} returned {one!r}, not a {expected.__name__}")
        return found

    def where(self, error: BaseException) -> str:
        """`FILE, line N` where a plugin or the user's own code raised `error`; empty if neither did."""
        return where(error, self.packages)

    def code(self, distributions: Iterable[str]) -> dict[str, str]:
        """`Package.code` of the plugins among these distributions and their requirements, by distribution."""
        packages = {p.distribution: p for p in self.packages}
        found: dict[str, str] = {}
        todo = sorted(distributions)
        while todo:
            package = packages.get(todo.pop())
            if package is not None and package.distribution not in found:
                found[package.distribution] = package.code
                todo += required(package.distribution)
        return dict(sorted(found.items()))

    def versions(self, distributions: Iterable[str]) -> dict[str, str]:
        """Versions of Python, the core, and these distributions with their requirements."""
        found = {"python": platform.python_version(), CORE: __version__}
        names = {n for d in {CORE, *distributions} for n in (d, *required(d))} - {CORE}
        for name in sorted(names):
            with contextlib.suppress(PackageNotFoundError):  # an optional requirement
                found[name] = version(name)
        return found

    def names(self, kind: str) -> list[str]:
        """Names of the components of `kind`, sorted."""
        return sorted(name for k, name in self.entries if k == kind)

    def all(self) -> list[Entry]:
        """Every component, by kind and name."""
        order = {k: i for i, k in enumerate(KINDS)}
        return [e for key in sorted(self.entries, key=lambda k: (order[k[0]], k[1])) for e in self.entries[key]]

    def importers(self) -> list[ImporterComponent]:
        """The descriptions of all importers, by name."""
        return [e.component for e in self.all() if isinstance(e.component, ImporterComponent)]

    def own_trainer(self, policy: str) -> str:
        """The trainer that the policy of this name names as its own; empty if it names none."""
        return next((c.trainer for c in self._policies(policy)), "")

    def own_trainer_options(self, policy: str) -> Mapping[str, Any]:
        """The options of its own trainer that the policy of this name sets."""
        return next((c.trainer_options for c in self._policies(policy)), {})

    def _policies(self, name: str) -> list[PolicyComponent]:
        found = [e.component for e in self.entries.get(("policy", name), ())]
        return [c for c in found if isinstance(c, PolicyComponent)]

    def get(self, kind: str, name: str) -> Entry:
        """The component. Raises PluginError: unknown (lists what exists), broken (chained to the cause), ambiguous."""
        found = self.entries.get((kind, name), [])
        if len(found) == 1:
            return found[0]
        if found:
            raise PluginError(
                f"{len(found)} {PLURAL[kind]} are named {name!r}:"
                f" {' and '.join(f'{e.distribution} {e.version}' for e in found)}",
                "uninstall one of them",
            )
        if not name:
            raise PluginError(
                f"no {kind} is chosen: the section `{kind}` has no `name`",
                f"choose one: {kind}=NAME; a preset names it by `name: NAME`, or takes it from another one in its `defaults`",
            )
        for b in self.broken:
            if b.may_have(name):
                raise PluginError(
                    f"{kind} {name!r}: plugin {b.distribution} {b.version} is broken: {b.reason}", b.hint
                ) from b.cause
        raise self.mention_broken(unknown(kind, name, self.names(kind), listing="placekit plugins"), kind)

    def build(self, kind: str, name: str, values: Mapping[str, Any]) -> Any:
        """The component, built from the values of its options. Raises PluginError or ConfigError."""
        entry = self.get(kind, name)
        return entry.build(entry.options(values, f"{kind}."))

    def imported(self, section: Mapping[str, Any]) -> list[Program]:
        """The programs of the importer that a configuration's section names. Raises PluginError, ConfigError, ImporterError."""
        from placekit_core.run.imports import load

        values = dict(section)
        entry = self.get("importer", str(values.pop("name", "")))
        return load(entry, entry.options(values, "importer."), self.keeps_imports, self.began_ns)

    def error_band(self, problem: Problem, devices: Sequence[int]) -> ErrorBand | None:
        """The error band of a simulated value with kernels on `devices`; None if the machine has no hosts, or no plugin knows."""
        if not problem.cluster.hosts:
            return None
        found: ErrorBand | None = self.manager.hook.placekit_error_band(problem=problem, devices=devices)
        return found

    def this_computer(self) -> Cluster:
        """The machine that this process runs on. Raises ClusterError if no plugin reads it, or it cannot be read."""
        found: Cluster | None = self.manager.hook.placekit_this_computer()
        if found is None:
            raise ClusterError(
                "cluster=auto: no installed plugin can describe this computer",
                "`pip install placekit` installs one that does; or name a cluster",
            )
        return found

    def machine(self, words: str) -> Cluster | None:
        """The machine that `words` describe; None if no plugin reads words, or for one word that none knows: a misspelled name.

        Raises ClusterError for several words that cannot be read, and for words after the comma of a machine.
        """
        try:
            found: Cluster | None = self.manager.hook.placekit_machine(words=words)
        except ClusterError:
            machine, comma, _ = words.partition(",")
            if re.search(r"[\s+(]", words) or (comma and self.machine(machine) is not None):
                raise
            return None
        return found

    def command(self, name: str) -> CommandEntry:
        """The command. Raises PluginError: unknown (lists what exists), or ambiguous."""
        found = self.commands.get(name, [])
        if len(found) > 1:
            owners = " and ".join(f"{c.distribution} {c.version}" for c in found)
            raise PluginError(f"{len(found)} commands are called {name!r}: {owners}", "uninstall one of them")
        if not found:
            raise self.mention_broken(unknown("command", name, self.commands, listing="placekit --help"))
        return found[0]

    def mention_broken(self, error: PlacekitError, group: str = "") -> PlacekitError:
        """`error` about an unknown name in `group`; its hint lists the broken plugins that may define the name."""
        if group in ("importer", "workload") and not self.names("importer"):
            error = type(error)(error.message, NO_IMPORTER)
        return type(error)(error.message, f"{error.hint}; {self.names_of_broken}") if self.broken else error

    @property
    def names_of_broken(self) -> str:
        """The broken plugins, in one line."""
        names = dict.fromkeys(f"{b.distribution} {b.version}" for b in self.broken)
        return f"broken plugins: {', '.join(names)}; `placekit plugins` says why"

    def conf_folders(self) -> list[tuple[Package, Path]]:
        """The folders of the presets that plugins ship; found without importing anything."""
        found = [(package, location / "conf") for package in self.packages for location in package.locations]
        return [(package, folder) for package, folder in found if folder.is_dir()]

    def presets(self) -> list[Choice]:
        """Every preset (`conf/GROUP/NAME.yaml` in the core or a plugin), the core's first."""
        core = Package("placekit", "placekit_core", CORE, __version__)
        found = []
        for package, folder in [(core, conf_dir()), *self.conf_folders()]:
            for path in sorted(folder.rglob("*.yaml")):
                group = path.parent.relative_to(folder).as_posix()
                name = path.stem
                found.append(Choice("" if group == "." else group, name, package.distribution, package.version, path))
        return found

    def choices(self) -> Iterator[Choice]:
        """Everything that a group offers: what is built in, components, presets."""
        yield from (Choice(*key, CORE, __version__) for key in BUILT_IN)
        yield from (Choice(e.kind, e.component.name, e.distribution, e.version) for e in self.all())
        yield from self.presets()

    def duplicates(self) -> dict[tuple[str, str], list[Choice]]:
        """Choices that are defined more than once, by (group, name); Hydra would silently take one of them."""
        found: dict[tuple[str, str], list[Choice]] = {}
        for choice in self.choices():
            found.setdefault((choice.group, choice.name), []).append(choice)
        return {key: choices for key, choices in found.items() if len(choices) > 1}

    def check_choices(self, choices: Mapping[str, str | None]) -> None:
        """Raise PluginError if one of `choices` (group to name, as Hydra's `runtime.choices`) is defined more than once."""
        for (group, name), twins in self.duplicates().items():
            if any((g.partition("@")[0], str(n)) == (group, name) for g, n in choices.items()):
                raise PluginError(
                    f"{group}={name} is defined {len(twins)} times: {' and '.join(t.owner for t in twins)}",
                    "uninstall one of them",
                )


def discover(points: Iterable[EntryPoint] | None = None) -> Registry:
    """A registry of the logger `csv` and the plugins in `points`; by default the installed plugins and the core's commands."""
    manager = pluggy.PluginManager(GROUP)
    manager.add_hookspecs(hookspecs)
    manager.register(CsvLog(), name="csv")
    registry = Registry(manager)
    found = sorted(entry_points(group=GROUP) if points is None else points, key=lambda p: (p.name, p.value))
    count = Counter(["csv", *(point.name for point in found)])
    with plugin_output():
        for point in found:
            module = point.value.partition(":")[0].partition(".")[0].strip()
            about: Any = (
                point.dist.metadata if point.dist else {}
            )  # read once: `dist.name` and `dist.version` read it again
            owner = about["Name"] or "?" if about else "?", about["Version"] or "?" if about else "?"
            try:
                if count[point.name] > 1:
                    raise PluginError(f"{count[point.name]} plugins are called {point.name!r}")
                if EntryPoint.pattern.match(point.value) is None:
                    raise PluginError(f"its entry point {point.value!r} names no module")
                hooks = point.load()
            except KeyboardInterrupt:
                raise
            except BaseException as e:
                registry.broken.append(Broken(point.name, *owner, e, module))
                continue
            registry.add(point.name, hooks, *owner, module)
            if manager.has_plugin(point.name) and owner[0] != CORE:
                registry.packages.append(Package(point.name, module, *owner))
    _keep_own_commands(registry)
    return registry


def _did_you_mean(hook: str) -> str:
    close = difflib.get_close_matches(hook, [name for name in dir(hookspecs) if name.startswith("placekit_")], 1)
    return f"; did you mean {close[0]}?" if close else ""


def _keep_own_commands(registry: Registry) -> None:
    """Ignore a plugin's command that has the name of one of the core's, and list the plugin as broken."""
    for name, found in registry.commands.items():
        own = [c for c in found if c.distribution == CORE]
        for other in found if own else ():
            if other.distribution != CORE:
                why = PluginError(f"its command {name!r} is ignored: {CORE} has a command of this name", "rename it")
                registry.broken.append(Broken(other.distribution, other.distribution, other.version, why))
        registry.commands[name] = own or found


@cache
def required(distribution: str) -> tuple[str, ...]:
    """Names of the distributions that this one requires here, without its extras; none if it is not installed."""
    try:
        texts = [text for text in requires(distribution) or () if not _FOR_AN_EXTRA.search(text)]
    except PackageNotFoundError:
        return ()
    if not any(";" in text for text in texts):  # as in most packages: needs no parser, whose import takes long
        return tuple(re.split(r"[^\w.-]", text, maxsplit=1)[0] for text in texts)
    from packaging.requirements import Requirement

    needs = [Requirement(text) for text in texts]
    return tuple(r.name for r in needs if r.marker is None or r.marker.evaluate({"extra": ""}))


_FOR_AN_EXTRA = re.compile(r";\s*extra\s*==\s*['\"][\w.-]+['\"]\s*$")


@cache
def installed() -> Registry:
    """The registry of this process, for entry points (which pass it on) and components that look up others."""
    return discover()
