"""Other registries for a test: with one more plugin, or without plugins."""

from __future__ import annotations

import copy
import dataclasses
import functools
import importlib
import itertools
from pathlib import Path
from typing import Any

import pluggy
import pytest

from placekit_core import Registry
from placekit_core.contracts import hookspecs
from placekit_core.run import registry

_numbers = itertools.count()


def use_registry(monkeypatch: pytest.MonkeyPatch, found: Registry) -> None:
    """Let the registry of this process hold the content of `found` until the test ends.

    The registry is changed in place, because `installed` returns this one object in every module.
    """
    for part in dataclasses.fields(found):
        monkeypatch.setattr(registry.installed(), part.name, getattr(found, part.name))
    _own_config_store(monkeypatch)


def _own_config_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Hydra forget, at the end of the test, everything stored in it from here on."""
    from hydra.core.config_store import ConfigStore
    from hydra.core.plugins import Plugins

    from placekit_core.cli import compose

    Plugins.instance()  # so that it stores its own configurations now, and not in the copy that is thrown away
    monkeypatch.setattr(ConfigStore.instance(), "repo", copy.deepcopy(ConfigStore.instance().repo))
    monkeypatch.setattr(compose, "register", functools.lru_cache(maxsize=1)(compose.register.__wrapped__))


def listed(
    monkeypatch: pytest.MonkeyPatch, folder: Path, kind: str, *classes: Any, code: str = "", **fields: str
) -> None:
    """Install a plugin with these component classes of `kind`, which are at the top level of their modules.

    The plugin's module is written to `folder`; `code` is executed when the module is imported; `fields` are further fields
    of the components. Other plugins stay listed. The end of the test uninstalls the plugin.
    """
    module = f"fake_plugin_{next(_numbers)}"
    described = hookspecs.COMPONENT.get(kind, hookspecs.Component).__name__
    components = []
    for c in classes:
        text = {"name": c.name, "summary": "a fake", "target": f"{c.__module__}:{c.__qualname__}", **fields}
        options = c.options_class
        components.append(
            f"{described}(**{text!r}, config=import_module({options.__module__!r}).{options.__qualname__})"
        )
    (folder / f"{module}.py").write_text(
        f"from importlib import import_module\nfrom placekit_core import {described}, hookimpl\n"
        f"{code}\n@hookimpl\ndef placekit_{registry.PLURAL[kind]}():\n    return [{', '.join(components)}]\n"
    )
    monkeypatch.syspath_prepend(str(folder))
    now = registry.installed()
    manager = pluggy.PluginManager(registry.GROUP)
    manager.add_hookspecs(hookspecs)
    for name, plugin in now.manager.list_name_plugin():
        manager.register(plugin, name)
    entries = {key: list(own) for key, own in now.entries.items()}
    found = dataclasses.replace(now, manager=manager, entries=entries, broken=list(now.broken))
    found.add(module, importlib.import_module(module), module, "0.0.0")
    assert not [b for b in found.broken if b.plugin == module], found.broken
    use_registry(monkeypatch, found)
