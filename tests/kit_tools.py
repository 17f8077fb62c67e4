"""For the conformance kit's own tests: run one check of a contract, and install fake components for the time of a test."""

from __future__ import annotations

import copy
import importlib
import inspect
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pluggy
import pytest

from placekit_core import hookspecs, registry

_numbers = itertools.count()


def run_check(contract: type, name: str, make: Callable[..., Any], tmp_path: Path) -> None:
    """Run the check `name` of `contract` on what `make` builds; it passes, or raises."""
    check = getattr(contract(), name)
    given = {"make": make, "tmp_path": tmp_path}
    check(**{parameter: given[parameter] for parameter in inspect.signature(check).parameters})


def fails(contract: type, name: str, make: Callable[..., Any], tmp_path: Path, says: str = "") -> BaseException:
    """What the check `name` raises for a wrong implementation, which must hold the words `says`.

    Raises AssertionError if the check passes, is skipped, or fails for another reason.
    """
    error: BaseException | None = None
    try:
        run_check(contract, name, make, tmp_path)
    except (Exception, pytest.fail.Exception) as e:
        error = e
    except pytest.skip.Exception as e:
        raise AssertionError(f"{name} was skipped: {e}") from None
    assert error is not None, f"{name} does not notice that {getattr(make, '__name__', make)} is wrong"
    assert says in f"{type(error).__name__}: {error}", f"{name} fails, and does not say {says!r}: {error!r}"
    return error


def listed(
    monkeypatch: pytest.MonkeyPatch, folder: Path, kind: str, *classes: Any, code: str = "", **fields: str
) -> None:
    """Install a plugin with these component classes of `kind`, which are at the top level of their modules.

    The plugin's module is written to `folder`; `code` is executed when it is imported; `fields` are further fields of
    the components. What was listed before stays. The test's end uninstalls it.
    """
    from hydra.core.config_store import ConfigStore
    from hydra.core.plugins import Plugins

    module = f"fake_plugin_{next(_numbers)}"
    components = []
    for c in classes:
        text = {"name": c.name, "summary": "a fake", "target": f"{c.__module__}:{c.__qualname__}", **fields}
        options = c.options_class
        components.append(f"Component(**{text!r}, config=import_module({options.__module__!r}).{options.__qualname__})")
    (folder / f"{module}.py").write_text(
        "from importlib import import_module\nfrom placekit_core.hookspecs import Component, hookimpl\n"
        f"{code}\n@hookimpl\ndef placekit_{registry.PLURAL[kind]}():\n    return [{', '.join(components)}]\n"
    )
    monkeypatch.syspath_prepend(str(folder))
    now = registry.installed()  # changed in place: every module has `installed`, which returns this one object
    manager = pluggy.PluginManager(registry.GROUP)
    manager.add_hookspecs(hookspecs)
    for name, plugin in now.manager.list_name_plugin():
        manager.register(plugin, name)
    monkeypatch.setattr(now, "manager", manager)
    monkeypatch.setattr(now, "entries", {key: list(entries) for key, entries in now.entries.items()})
    monkeypatch.setattr(now, "broken", list(now.broken))
    now.add(module, importlib.import_module(module), module, "0.0.0")
    Plugins.instance()  # stores its own configurations once, and not in the copy that is thrown away
    monkeypatch.setattr(ConfigStore.instance(), "repo", copy.deepcopy(ConfigStore.instance().repo))
    assert not [b for b in now.broken if b.plugin == module], now.broken
