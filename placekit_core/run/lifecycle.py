"""Calls the hooks of plugins about a run: its loggers, facts and next steps. A plugin that fails is left out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from placekit_core.contracts.errors import unknown
from placekit_core.contracts.files import finite, parse_json
from placekit_core.run.failures import optional, warn
from placekit_core.run.registry import Registry

if TYPE_CHECKING:
    from placekit_core.contracts.result import Result

Fact = str | int | float | bool | None
HOOKS = ("placekit_run_started", "placekit_evaluated", "placekit_checkpoint", "placekit_run_finished")


def loggers(registry: Registry) -> list[str]:
    """Names of the plugins that implement a lifecycle hook, sorted."""
    hooks = [getattr(registry.manager.hook, name) for name in HOOKS]
    return sorted({i.plugin_name for hook in hooks for i in hook.get_hookimpls()})


def check_loggers(names: Iterable[str], registry: Registry) -> None:
    """Raise PluginError for a name that no plugin with lifecycle hooks has."""
    known = loggers(registry)
    for name in names:
        if name not in known:
            raise unknown("logger", name, known)


class Lifecycle:
    """The loggers of one run. `names=None` takes the plugins with the attribute `LOGS_BY_DEFAULT = True`.

    Raises PluginError; see `check_loggers`.
    """

    def __init__(self, registry: Registry, names: Iterable[str] | None, run_dir: Path) -> None:
        self.run_dir = run_dir
        if names is None:
            plugins = {name: registry.manager.get_plugin(name) for name in loggers(registry)}
            names = [name for name, plugin in plugins.items() if getattr(plugin, "LOGS_BY_DEFAULT", False) is True]
        names = tuple(names)
        check_loggers(names, registry)
        self._calls = [
            (hook, i.plugin_name, i)
            for hook in HOOKS
            for i in getattr(registry.manager.hook, hook).get_hookimpls()
            if i.plugin_name in names
        ]

    def _call(self, hook: str, **arguments: Any) -> None:
        for name, plugin, implementation in [*self._calls]:
            if name == hook:
                failed = f"logger {plugin!r} failed and is left out from here on"
                with optional(lambda text, plugin=plugin: self._drop(plugin, text), failed):  # type: ignore[misc]
                    implementation.function(*(arguments[a] for a in implementation.argnames))

    def _drop(self, plugin: str, text: str) -> None:
        self._calls = [call for call in self._calls if call[1] != plugin]
        warn(text)

    def started(self, config: Mapping[str, Any]) -> None:
        self._call("placekit_run_started", run_dir=self.run_dir, config=config)

    def evaluated(self, directory: Path, program: str, row: Mapping[str, float]) -> None:
        self._call("placekit_evaluated", run_dir=self.run_dir, directory=directory, program=program, row=row)

    def checkpoint(self) -> None:
        self._call("placekit_checkpoint", run_dir=self.run_dir)

    def finished(self, result: Result) -> None:
        self._call("placekit_run_finished", run_dir=self.run_dir, result=result)


def facts(registry: Registry) -> dict[str, Fact]:
    """The facts of all plugins, by name. If two plugins give the same fact, the first one by name keeps it, with a warning."""
    found: dict[str, tuple[str, Fact]] = {}
    hooks = registry.manager.hook.placekit_facts.get_hookimpls()
    for implementation in sorted(hooks, key=lambda h: h.plugin_name):
        plugin = implementation.plugin_name
        with optional(warn, f"plugin {plugin!r} gives no facts"):
            for name, value in _checked(implementation.function()).items():
                owner, _ = found.setdefault(name, (plugin, value))
                if owner != plugin:
                    warn(f"plugins {owner!r} and {plugin!r} both give a fact {name!r}; that of {owner!r} is kept")
    return {name: value for name, (_, value) in sorted(found.items())}


def next_steps(registry: Registry, run_dir: Path, result: Result) -> list[str]:
    """What a user may do next, as the plugins suggest it, in pluggy's order."""
    found: list[str] = []
    hooks = registry.manager.hook.placekit_next_steps.get_hookimpls()
    known = {"run_dir": run_dir, "result": result}
    for implementation in reversed(hooks):  # pluggy calls the last one first
        with optional(warn, f"plugin {implementation.plugin_name!r} suggests no next steps"):
            lines: Any = implementation.function(*(known[a] for a in implementation.argnames))
            if not isinstance(lines, list):
                raise TypeError(f"{lines!r} is not a list of strings")
            found += [" ".join(line.split()) for line in lines]
    return list(dict.fromkeys(found))


def _checked(facts: Any) -> dict[str, Fact]:
    """Facts that a hook returned. Raises an exception if a file cannot hold them."""
    for name, value in facts.items():
        if not isinstance(name, str) or not isinstance(value, Fact):
            raise TypeError(f"fact {name!r} is a {type(value).__name__}, not a string, number, truth value or None")
    parse_json(json.dumps(finite(facts)).encode())  # refuses text that is not valid Unicode
    return dict(facts)
