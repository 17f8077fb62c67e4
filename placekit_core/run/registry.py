"""Finds plugins, isolates broken ones, looks up components and commands by name.

Plugins are found one by one through the entry points of group `placekit`, in the order of their names. A plugin is set
aside, with the reason, if it needs another version of the core, cannot be imported, misspells a hook, or has a hook that
raises; the others work.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import platform
import re
import sysconfig
import traceback
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, requires, version
from pathlib import Path
from typing import Any, TypeVar, cast

import pluggy
from pydantic import BaseModel

from placekit_core.contracts import hookspecs
from placekit_core.contracts.errors import PlacekitError, PluginError, unknown
from placekit_core.contracts.hookspecs import KINDS, Command, Component
from placekit_core.contracts.version import __version__
from placekit_core.run.config import conf_dir
from placekit_core.run.csv_log import CsvLog

GROUP = "placekit"
CORE = "placekit-core"
"""The distribution of this module."""
T = TypeVar("T")

PLURAL = {"policy": "policies"} | {k: f"{k}s" for k in KINDS if k != "policy"}
BUILT_IN = (("trainer", "auto"), ("trainer", "none"), ("cluster", "auto"), ("cluster", "file"))
"""(group, name) of the choices that are neither components nor presets."""


@dataclass(frozen=True)
class Entry:
    """One component and where it comes from."""

    kind: str
    component: Component
    plugin: str
    distribution: str
    version: str

    def load(self) -> type[Any]:
        """The component's class. Raises PluginError, chained to the cause, if its module cannot be imported."""
        module, _, attribute = self.component.target.partition(":")
        try:
            return getattr(importlib.import_module(module), attribute)  # type: ignore[no-any-return]
        except Exception as e:
            raise PluginError(
                f"{self.kind} {self.component.name!r} of {self.distribution} {self.version} is broken:"
                f" {type(e).__name__}: {e}",
                f"it is at {self.component.target}; reinstall or remove {self.distribution}",
            ) from e

    def build(self, options: BaseModel) -> Any:
        """The component, built from its options. Raises PluginError if its class is abstract or takes no options."""
        cls = self.load()
        try:
            return cls(options)
        except TypeError as e:
            raise PluginError(
                f"{self.kind} {self.component.name!r} of {self.distribution} {self.version} cannot be built: {e}",
                f"{self.component.target} must implement placekit_core.{self.kind.capitalize()}",
            ) from e


@dataclass(frozen=True)
class CommandEntry:
    """One command and where it comes from."""

    command: Command
    distribution: str
    version: str

    def load(self, target: str) -> Any:
        """The function at `target`, one of the command's. Raises PluginError, chained to the cause."""
        module, _, attribute = target.partition(":")
        try:
            return getattr(importlib.import_module(module), attribute)
        except Exception as e:
            raise PluginError(
                f"command {self.command.name!r} of {self.distribution} {self.version} is broken: {type(e).__name__}: {e}",
                f"it is at {target}; reinstall or remove {self.distribution}",
            ) from e


@dataclass(frozen=True)
class Broken:
    """A plugin that was set aside."""

    plugin: str
    distribution: str
    version: str
    cause: BaseException

    @property
    def reason(self) -> str:
        """Why the plugin was set aside, in one line."""
        if isinstance(self.cause, PlacekitError):
            return self.cause.message
        place = where(self.cause)
        return f"{type(self.cause).__name__}: {' '.join(str(self.cause).split())}" + (f" ({place})" if place else "")

    @property
    def hint(self) -> str:
        """What to do about it."""
        return getattr(self.cause, "hint", "") or f"reinstall or remove {self.distribution}"

    def answers(self, name: str) -> bool:
        """Whether `name` is probably one of its components; a guess, because they are not known."""
        names = {self.plugin, self.distribution.removeprefix("placekit-")}
        return name.replace("_", "-") in {n.replace("_", "-") for n in names}


@dataclass(frozen=True)
class Package:
    """The top-level package of a plugin that works."""

    plugin: str
    module: str
    distribution: str
    version: str

    @cached_property
    def code(self) -> str:
        """Hash of its Python sources, kept in results: an edited package keeps its version, but not its hash."""
        try:
            spec = importlib.util.find_spec(self.module)
        except ValueError:  # a module made by hand, not imported
            spec = None
        folders = [Path(f) for f in (spec.submodule_search_locations or ())] if spec else []
        files = {p.relative_to(f).as_posix(): p for f in folders for p in f.rglob("*.py") if not p.name.startswith(".")}
        if spec and spec.origin and not folders:
            files = {self.module: Path(spec.origin)}
        digest = hashlib.sha256()
        for name in sorted(n for n, p in files.items() if p.is_file()):
            digest.update(f"{name} {hashlib.sha256(files[name].read_bytes()).hexdigest()}\n".encode())
        return digest.hexdigest()[:16] if files else ""


@dataclass(frozen=True)
class Choice:
    """The choice that `GROUP=NAME` makes: a component, or a preset in a `conf` folder."""

    group: str
    name: str
    distribution: str
    version: str
    path: Path | None = None  # for a preset

    @property
    def owner(self) -> str:
        """The origin of the choice: distribution and version, and for a preset its file."""
        file = "" if self.path is None else f" (conf/{'/'.join(filter(None, (self.group, self.name)))}.yaml)"
        return f"{self.distribution} {self.version}{file}"


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

    def add(self, plugin: str, hooks: Any, distribution: str, version: str) -> None:
        """Register a plugin (a module, or a class that is built here) and collect its components.

        If anything about the plugin is wrong, it is set aside.
        """
        try:
            self.manager.register(hooks() if isinstance(hooks, type) else hooks, name=plugin)
            self.manager.check_pending()
            found = [(kind, c) for kind in KINDS for c in self._components(kind, plugin)]
            commands = self._contributed("placekit_commands", plugin, Command)
        except Exception as e:
            if self.manager.has_plugin(plugin):
                self.manager.unregister(name=plugin)
            self.broken.append(Broken(plugin, distribution, version, e))
            return
        for kind, component in found:
            entry = Entry(kind, component, plugin, distribution, version)
            self.entries.setdefault((kind, component.name), []).append(entry)
        for command in commands:
            self.commands.setdefault(command.name, []).append(CommandEntry(command, distribution, version))

    def _contributed(self, hook: str, plugin: str, kind: type[T]) -> list[T]:
        """The values that the plugin's `hook` returns. Raises TypeError for a value that is no `kind`."""
        found: list[T] = []
        for implementation in getattr(self.manager.hook, hook).get_hookimpls():
            if implementation.plugin_name == plugin:
                for one in cast("list[object]", implementation.function()):
                    if not isinstance(one, kind):
                        raise TypeError(f"{hook} returned {one!r}, not a {kind.__name__}")
                    found.append(one)
        return found

    def _components(self, kind: str, plugin: str) -> Iterable[Component]:
        for component in self._contributed(f"placekit_{PLURAL[kind]}", plugin, Component):
            if "name" in component.config.model_fields:
                raise TypeError(f"an option of {kind} {component.name!r} is called `name`, which the core uses")
            component.config()  # raises if an option has no default: then no configuration could be composed
            yield component

    def code(self, distributions: Iterable[str]) -> dict[str, str]:
        """`Package.code` by distribution, for the plugins and libraries among these distributions and their requirements."""
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
        """Versions of Python, placekit, and these distributions with their requirements."""
        found = {"python": platform.python_version(), "placekit": __version__}
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
        for b in self.broken:
            if b.answers(name):
                raise PluginError(
                    f"{kind} {name!r}: plugin {b.distribution} {b.version} is broken: {b.reason}", b.hint
                ) from b.cause
        raise self.mention_broken(unknown(kind, name, self.names(kind)))

    def command(self, name: str) -> CommandEntry:
        """The command. Raises PluginError: unknown (lists what exists), or ambiguous."""
        found = self.commands.get(name, [])
        if len(found) > 1:
            owners = " and ".join(f"{c.distribution} {c.version}" for c in found)
            raise PluginError(f"{len(found)} commands are called {name!r}: {owners}", "uninstall one of them")
        if not found:
            raise self.mention_broken(unknown("command", name, self.commands))
        return found[0]

    def mention_broken(self, error: PlacekitError) -> PlacekitError:
        """`error` about an unknown name, with the broken plugins in its hint: one of them may have the name."""
        if not self.broken:
            return error
        names = dict.fromkeys(f"{b.distribution} {b.version}" for b in self.broken)
        return type(error)(error.message, f"{error.hint}; broken plugins: {', '.join(names)}")

    def conf_folders(self) -> list[tuple[str, Path]]:
        """(plugin, folder) for the presets that plugins ship; found without importing anything."""
        return [(package.plugin, folder) for package, folder in self._conf_folders()]

    def _conf_folders(self) -> Iterator[tuple[Package, Path]]:
        for package in self.packages:
            spec = importlib.util.find_spec(package.module)
            for location in (spec.submodule_search_locations or ()) if spec else ():
                folder = Path(location) / "conf"
                if folder.is_dir():
                    yield package, folder

    def presets(self) -> list[Choice]:
        """Every preset (`conf/GROUP/NAME.yaml` in the core or a plugin), the core's first."""
        core = Package("placekit", "placekit_core", CORE, __version__)
        found = []
        for package, folder in [(core, conf_dir()), *self._conf_folders()]:
            for path in sorted(folder.rglob("*.yaml")):
                group = path.parent.relative_to(folder).as_posix()
                name = path.stem
                found.append(Choice("" if group == "." else group, name, package.distribution, package.version, path))
        return found

    def duplicates(self) -> dict[tuple[str, str], list[Choice]]:
        """Choices that are defined more than once, by (group, name); Hydra would silently take one of them."""
        found: dict[tuple[str, str], list[Choice]] = {}
        for key in BUILT_IN:
            found[key] = [Choice(*key, CORE, __version__)]
        for e in self.all():
            choice = Choice(e.kind, e.component.name, e.distribution, e.version)
            found.setdefault((choice.group, choice.name), []).append(choice)
        for preset in self.presets():
            found.setdefault((preset.group, preset.name), []).append(preset)
        return {key: choices for key, choices in found.items() if len(choices) > 1}

    def check_choices(self, choices: Mapping[str, str | None]) -> None:
        """Raise PluginError if one of `choices` (group to name, as Hydra's `runtime.choices`) is defined more than once."""
        duplicates = self.duplicates()
        for group, name in choices.items():
            twins = duplicates.get((group.partition("@")[0], str(name)))
            if twins:
                raise PluginError(
                    f"{group}={name} is defined {len(twins)} times: {' and '.join(t.owner for t in twins)}",
                    "uninstall one of them",
                )


def discover(points: Iterable[EntryPoint] | None = None) -> Registry:
    """A registry of the logger `csv` and the plugins in `points`; by default the installed plugins and the core's commands."""
    manager = pluggy.PluginManager(GROUP)
    manager.add_hookspecs(hookspecs)
    registry = Registry(manager)
    registry.add("csv", CsvLog, CORE, __version__)
    found = sorted(entry_points(group=GROUP) if points is None else points, key=lambda p: (p.name, p.value))
    for point in found:
        distribution, version = _owner(point)
        try:
            twins = [_owner(p)[0] for p in found if p.name == point.name]
            if len(twins) > 1:
                raise PluginError(f"{len(twins)} plugins are called {point.name!r}: {' and '.join(twins)}")
            if manager.has_plugin(point.name):
                raise PluginError(f"the core has a plugin called {point.name!r}")
            check_version(point)
            hooks = point.load()
        except (Exception, SystemExit) as e:
            registry.broken.append(Broken(point.name, distribution, version, e))
            continue
        registry.add(point.name, hooks, distribution, version)
        if manager.has_plugin(point.name) and distribution != CORE:
            registry.packages.append(Package(point.name, point.module.partition(".")[0], distribution, version))
    return registry


def _owner(point: EntryPoint) -> tuple[str, str]:
    """Distribution and version; `?` if the metadata is missing, as after an incomplete uninstallation."""
    return (point.dist.name or "?", point.dist.version or "?") if point.dist else ("?", "?")


@cache
def required(distribution: str) -> tuple[str, ...]:
    """Names of the distributions that this one requires here, without its extras; none if it is not installed."""
    from packaging.requirements import Requirement

    try:
        needs = [Requirement(text) for text in requires(distribution) or ()]
    except PackageNotFoundError:
        return ()
    return tuple(r.name for r in needs if r.marker is None or r.marker.evaluate({"extra": ""}))


def check_version(point: EntryPoint) -> None:
    """Raise PluginError if the plugin's distribution needs another version of the core than this one."""
    for text in (point.dist.requires or ()) if point.dist else ():
        if not re.match(r"placekit[-_.]+core\s*[^\w.\s-]", text, re.I):  # not the core, or any version of it
            continue
        from packaging.requirements import Requirement

        needed = Requirement(text)
        if needed.marker is not None and not needed.marker.evaluate({"extra": ""}):
            continue
        if not needed.specifier.contains(__version__, prereleases=True):
            raise PluginError(
                f"needs placekit-core{needed.specifier}, and this is placekit-core {__version__}",
                "install versions that fit each other",
            )


def where(error: BaseException) -> str:
    """`FILE, line N` where `error` was raised outside the core, or of a syntax error; empty if there is no such place."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}"
    core, library = (
        str(Path(__file__).resolve().parent.parent),
        tuple(sysconfig.get_paths()[k] for k in ("stdlib", "purelib")),
    )
    outside = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(("<", core))]
    own = [f for f in outside if not f.filename.startswith(library) or f"{GROUP}_" in f.filename]
    return f"{own[-1].filename}, line {own[-1].lineno}" if own else ""


@cache
def installed() -> Registry:
    """The registry of this process, for entry points (which pass it on) and components that look up others."""
    return discover()
