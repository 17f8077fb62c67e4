"""The facts about this process that plugins give (hook `placekit_facts`), for `result.json`."""

from __future__ import annotations

import json
from typing import Any

from placekit_core.contracts.files import finite, parse_json
from placekit_core.run.lifecycle import warn
from placekit_core.run.registry import Registry

Fact = str | int | float | bool | None


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


def _checked(facts: Any) -> dict[str, Fact]:
    """What a hook returned. Raises an exception unless it is facts that a file can hold."""
    for name, value in facts.items():
        if not isinstance(name, str) or not isinstance(value, Fact):
            raise TypeError(f"fact {name!r} is a {type(value).__name__}, not a string, number, truth value or None")
    parse_json(json.dumps(finite(facts)).encode())  # such as text that is not valid Unicode
    return dict(facts)
