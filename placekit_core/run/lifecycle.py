"""Calls the hooks of plugins about a run: its loggers, and facts. A plugin that fails is left out, and the run goes on."""

from __future__ import annotations

import contextlib
import json
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from placekit_core.contracts.errors import unknown
from placekit_core.contracts.files import finite, parse_json
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


def warn(text: str, cause: BaseException | None = None) -> None:
    """Warn of a failure that must not cost the results of the run: never raise, even if warnings are errors."""
    with contextlib.suppress(Warning):
        warnings.warn(text if cause is None else f"{text}: {reason(cause)}", stacklevel=3)


def reason(cause: BaseException) -> str:
    """The type and the message of `cause`, in one line."""
    return ": ".join(filter(None, [type(cause).__name__, " ".join(str(cause).split())]))


class Lifecycle:
    """The loggers `names` of one run; None stands for the plugins with the attribute `LOGS_BY_DEFAULT = True`.

    Raises PluginError; see `check_loggers`.
    """

    def __init__(self, registry: Registry, names: Iterable[str] | None, run_dir: Path) -> None:
        self.run_dir = run_dir
        if names is None:
            plugins = {name: registry.manager.get_plugin(name) for name in loggers(registry)}
            names = [name for name, plugin in plugins.items() if getattr(plugin, "LOGS_BY_DEFAULT", False) is True]
        names = tuple(names)
        check_loggers(names, registry)
        self._calls = {
            (hook, i.plugin_name): i
            for hook in HOOKS
            for i in getattr(registry.manager.hook, hook).get_hookimpls()
            if i.plugin_name in names
        }

    def _call(self, hook: str, **arguments: Any) -> None:
        for (name, plugin), implementation in list(self._calls.items()):
            if name != hook:
                continue
            try:
                implementation.function(*(arguments[a] for a in implementation.argnames))
            except (Exception, SystemExit) as e:  # a faulty logger must not cost the results of the run
                self._calls = {k: v for k, v in self._calls.items() if k[1] != plugin}
                warn(f"logger {plugin!r} failed and is left out from here on", e)

    def started(self, config: Mapping[str, Any]) -> None:
        self._call("placekit_run_started", run_dir=self.run_dir, config=config)

    def evaluated(self, directory: Path, program: str, row: Mapping[str, float]) -> None:
        self._call("placekit_evaluated", run_dir=self.run_dir, directory=directory, program=program, row=row)

    def checkpoint(self) -> None:
        self._call("placekit_checkpoint", run_dir=self.run_dir)

    def finished(self, result: Result) -> None:
        self._call("placekit_run_finished", run_dir=self.run_dir, result=result)


def facts(registry: Registry) -> dict[str, Fact]:
    """The facts of all plugins, by name.

    If a plugin's hook fails, or gives what no file can hold, its facts are left out. If two plugins give a fact of one
    name, that of the first plugin, by its name, is kept. Both are warnings: a run has its results by then.
    """
    found: dict[str, tuple[str, Fact]] = {}
    hooks = registry.manager.hook.placekit_facts.get_hookimpls()
    for implementation in sorted(hooks, key=lambda h: h.plugin_name):
        plugin = implementation.plugin_name
        try:
            contributed = _checked(implementation.function())
        except (Exception, SystemExit) as e:
            warn(f"plugin {plugin!r} gives no facts", e)
            continue
        for name, value in contributed.items():
            owner, _ = found.setdefault(name, (plugin, value))
            if owner != plugin:
                warn(f"plugins {owner!r} and {plugin!r} both give a fact {name!r}; that of {owner!r} is kept")
    return {name: value for name, (_, value) in sorted(found.items())}


def next_steps(registry: Registry, run_dir: Path, result: Result) -> list[str]:
    """What the plugins say that a user may do next, in pluggy's order. A plugin that fails is left out, with a warning."""
    found: list[str] = []
    hooks = registry.manager.hook.placekit_next_steps.get_hookimpls()
    known = {"run_dir": run_dir, "result": result}
    for implementation in reversed(hooks):  # pluggy calls the last one first
        try:
            lines: Any = implementation.function(*(known[a] for a in implementation.argnames))
            if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
                raise TypeError(f"{lines!r} is no list of strings")
            found += [" ".join(line.split()) for line in lines]
        except (Exception, SystemExit) as e:
            warn(f"plugin {implementation.plugin_name!r} does not say what to do next", e)
    return list(dict.fromkeys(found))


def _checked(facts: Any) -> dict[str, Fact]:
    """What a hook returned. Raises an exception unless it is facts that a file can hold."""
    for name, value in facts.items():
        if not isinstance(name, str) or not isinstance(value, Fact):
            raise TypeError(f"fact {name!r} is a {type(value).__name__}, not a string, number, truth value or None")
    parse_json(json.dumps(finite(facts)).encode())  # such as text that is not valid Unicode
    return dict(facts)
