"""Finds plugins, isolates broken ones, looks components up by name.

Plugins are found one by one through the entry points of group `placekit`, in the order of their names. One that cannot be
imported, misspells a hook, or whose hook raises is set aside with the reason; the others work.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, cast

import pluggy
from pydantic import BaseModel

from placekit_core import __version__, hookspecs
from placekit_core.errors import PluginError, unknown
from placekit_core.hookspecs import KINDS, Component

GROUP = "placekit"
PLURAL = {"policy": "policies"} | {k: f"{k}s" for k in KINDS if k != "policy"}


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
                f"{self.component.target} must implement placekit_core.interfaces.{self.kind.capitalize()}",
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
        """Why, in one line."""
        return f"{type(self.cause).__name__}: {' '.join(str(self.cause).split())}"


@dataclass
class Registry:
    """All components that are installed. Two of one kind and name are both kept, and an error once they are asked for."""

    manager: pluggy.PluginManager
    entries: dict[tuple[str, str], list[Entry]] = field(default_factory=dict)
    broken: list[Broken] = field(default_factory=list)
    packages: list[tuple[str, str]] = field(default_factory=list)  # plugin name, top-level package

    def add(self, plugin: str, module: Any, distribution: str, version: str) -> None:
        """Register a plugin module and collect its components; set it aside if anything about it is wrong."""
        try:
            self.manager.register(module, name=plugin)
            self.manager.check_pending()
            found = [(kind, c) for kind in KINDS for c in self._collect(kind, plugin)]
        except Exception as e:
            self.manager.unregister(name=plugin)
            self.broken.append(Broken(plugin, distribution, version, e))
            return
        for kind, component in found:
            entry = Entry(kind, component, plugin, distribution, version)
            self.entries.setdefault((kind, component.name), []).append(entry)

    def _collect(self, kind: str, plugin: str) -> Iterable[Component]:
        hook: pluggy.HookCaller = getattr(self.manager.hook, f"placekit_{PLURAL[kind]}")
        for implementation in hook.get_hookimpls():
            if implementation.plugin_name == plugin:
                for component in cast("list[object]", implementation.function()):
                    if not isinstance(component, Component):
                        raise TypeError(f"placekit_{PLURAL[kind]} returned {component!r}, not a Component")
                    if "name" in component.config.model_fields:
                        raise TypeError(f"an option of {kind} {component.name!r} is called `name`, which the core uses")
                    component.config()  # every option has a default, or no configuration could be composed
                    yield component

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
            if b.plugin == name or b.distribution.removeprefix("placekit-") == name:
                raise PluginError(
                    f"{kind} {name!r}: plugin {b.distribution} {b.version} is broken: {b.reason}",
                    f"reinstall or remove {b.distribution}",
                ) from b.cause
        error = unknown(kind, name, self.names(kind))
        if self.broken:
            error = PluginError(
                error.message, f"{error.hint}; broken plugins: {', '.join(b.distribution for b in self.broken)}"
            )
        raise error

    def conf_folders(self) -> list[tuple[str, Path]]:
        """(plugin, folder) of the presets that plugins ship; found without importing anything."""
        folders = []
        for plugin, package in self.packages:
            spec = importlib.util.find_spec(package)
            for location in (spec.submodule_search_locations or ()) if spec else ():
                folder = Path(location) / "conf"
                if folder.is_dir():
                    folders.append((plugin, folder))
        return folders


def discover(points: Iterable[EntryPoint] | None = None) -> Registry:
    """A registry of the core's own components and of every plugin among `points` (the installed ones by default)."""
    manager = pluggy.PluginManager(GROUP)
    manager.add_hookspecs(hookspecs)
    registry = Registry(manager)
    from placekit_core import builtin

    registry.add("placekit", builtin, "placekit", __version__)
    found = sorted(entry_points(group=GROUP) if points is None else points, key=lambda p: (p.name, p.value))
    for point in found:
        distribution = point.dist.name if point.dist else "?"
        version = point.dist.version if point.dist else "?"
        twins = [p for p in found if p.name == point.name]
        if len(twins) > 1:
            owners = " and ".join(p.dist.name if p.dist else "?" for p in twins)
            cause: BaseException = PluginError(f"two plugins are called {point.name!r}: {owners}")
            registry.broken.append(Broken(point.name, distribution, version, cause))
            continue
        try:
            module = point.load()
        except (Exception, SystemExit) as e:
            registry.broken.append(Broken(point.name, distribution, version, e))
            continue
        registry.packages.append((point.name, point.module.partition(".")[0]))
        registry.add(point.name, module, distribution, version)
    return registry


@cache
def installed() -> Registry:
    """The registry of this process."""
    return discover()
