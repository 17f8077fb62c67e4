"""Calls the hooks of loggers, and collects facts and next steps from plugins. A plugin that fails is left out."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

from placekit_core.contracts.errors import PluginError, unknown
from placekit_core.contracts.result import Result
from placekit_core.run.failures import optional, warn
from placekit_core.run.registry import Registry

FIELDS = {field.name for field in fields(Result)}
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

    def call(self, hook: str, **arguments: Any) -> None:
        """Call the hook `placekit_...` of every logger. A logger that fails is left out from here on, with a warning."""
        for name, plugin, implementation in [*self._calls]:
            if name == hook:
                failed = f"logger {plugin!r} failed and is left out from here on"
                with optional(lambda text, plugin=plugin: self._drop(plugin, text), failed):  # type: ignore[misc]
                    known = {"run_dir": self.run_dir, **arguments}
                    implementation.function(*(known[a] for a in implementation.argnames))

    def _drop(self, plugin: str, text: str) -> None:
        self._calls = [call for call in self._calls if call[1] != plugin]
        warn(text)


def facts(registry: Registry) -> dict[str, Fact]:
    """The facts of all plugins, by name."""
    found: dict[str, Fact] = {}
    hooks = registry.manager.hook.placekit_facts.get_hookimpls()
    for implementation in sorted(hooks, key=lambda h: h.plugin_name):
        with optional(warn, f"plugin {implementation.plugin_name!r} gives no facts"):
            found |= json.loads(json.dumps(implementation.function()))  # result.json holds them
    return dict(sorted(found.items()))


def result_methods(registry: Registry) -> dict[str, Callable[..., Any]]:
    """The methods that plugins add to results, by name."""
    found: dict[str, Callable[..., Any]] = {}
    hooks = registry.manager.hook.placekit_result_methods.get_hookimpls()
    for implementation in sorted(hooks, key=lambda h: h.plugin_name):
        with optional(warn, f"plugin {implementation.plugin_name!r} adds nothing to results"):
            added: Any = implementation.function()
            if taken := [name for name in added if name in found or hasattr(Result, name) or name in FIELDS]:
                raise PluginError(f"results already have {', '.join(taken)}")
            found |= added
    return found


def next_steps(registry: Registry, run_dir: Path, result: Result) -> list[str]:
    """The next steps that plugins suggest to the user, in pluggy's order."""
    found: list[str] = []
    hooks = registry.manager.hook.placekit_next_steps.get_hookimpls()
    known = {"run_dir": run_dir, "result": result}
    for implementation in reversed(hooks):  # pluggy calls the last one first
        with optional(warn, f"plugin {implementation.plugin_name!r} suggests no next steps"):
            lines: Any = implementation.function(*(known[a] for a in implementation.argnames))
            found += lines
    return list(dict.fromkeys(found))
