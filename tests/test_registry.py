"""The registry: broken, colliding, misspelt and unknown plugins, each isolated."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from placekit_core.errors import PluginError
from placekit_core.registry import Registry, discover

GOOD = """
from placekit_core.hookspecs import Component, hookimpl
from placekit_core.interfaces import Options

@hookimpl
def placekit_policies():
    return [Component(name="{name}", summary="made up", config=Options, target="{target}")]
"""


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """discover() over modules given as name=source."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(**sources: str) -> Registry:
        points = []
        for name, source in sources.items():
            module = f"madeup_{tmp_path.name}_{name}".replace("-", "_")
            (tmp_path / f"{module}.py").write_text(source)
            sys.modules.pop(module, None)
            points.append(EntryPoint(name=name, value=module, group="placekit"))
        return discover(points)

    return make


def test_good_plugin_is_listed_without_importing_its_target(plugins) -> None:
    registry = plugins(good=GOOD.format(name="mine", target="no_such_module_at_all:Mine"))
    assert registry.names("policy") == ["mine"]
    assert registry.broken == []
    with pytest.raises(PluginError, match=r"policy 'mine' of .* is broken: ModuleNotFoundError"):
        registry.get("policy", "mine").load()


def test_broken_plugin_is_isolated_and_named_when_asked_for(plugins) -> None:
    registry = plugins(bad="import nothing_like_this", good=GOOD.format(name="mine", target="m:C"))
    assert registry.names("policy") == ["mine"]
    assert [b.plugin for b in registry.broken] == ["bad"]
    with pytest.raises(PluginError, match=r"plugin .* is broken: ModuleNotFoundError: No module named") as e:
        registry.get("policy", "bad")
    assert isinstance(e.value.__cause__, ModuleNotFoundError)


def test_misspelt_hook_is_broken_not_silent(plugins) -> None:
    source = GOOD.format(name="mine", target="m:C").replace("placekit_policies", "placekit_policy")
    registry = plugins(typo=source, good=GOOD.format(name="mine", target="m:C"))
    assert [b.plugin for b in registry.broken] == ["typo"]
    assert "placekit_policy" in registry.broken[0].reason
    assert registry.names("policy") == ["mine"], "the others work"


def test_hook_that_raises_or_returns_rubbish_is_broken(plugins) -> None:
    registry = plugins(
        raises=GOOD.format(name="x", target="m:C").replace("return [", "raise RuntimeError('boom')\n    return ["),
        rubbish=GOOD.format(name="x", target="m:C").replace("return [Component", "return [dict"),
    )
    reasons = {b.plugin: b.reason for b in registry.broken}
    assert reasons["raises"] == "RuntimeError: boom"
    assert "not a Component" in reasons["rubbish"]
    assert registry.names("policy") == []


def test_two_components_of_one_name_are_an_error_that_names_both(plugins) -> None:
    registry = plugins(one=GOOD.format(name="same", target="m:A"), two=GOOD.format(name="same", target="m:B"))
    with pytest.raises(PluginError, match="2 policies are named 'same'"):
        registry.get("policy", "same")


def test_unknown_name_lists_what_exists(plugins) -> None:
    registry = plugins(good=GOOD.format(name="annealing", target="m:C"))
    with pytest.raises(PluginError, match="no policy named 'anealing'") as e:
        registry.get("policy", "anealing")
    assert "did you mean 'annealing'?" in e.value.hint


def test_two_plugins_of_one_name_are_both_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    for module in ("twin_a", "twin_b"):
        (tmp_path / f"{module}.py").write_text(GOOD.format(name=module, target="m:C"))
    points = [EntryPoint(name="twin", value=m, group="placekit") for m in ("twin_a", "twin_b")]
    registry = discover(points)
    assert registry.names("policy") == []
    assert len(registry.broken) == 2
    assert "two plugins are called 'twin'" in registry.broken[0].reason


def test_presets_of_a_plugin_are_options_and_importing_nothing_finds_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, placekit
) -> None:
    package = tmp_path / "preset_pkg"
    (package / "conf" / "policy").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('looking for presets must not import the plugin')")
    (package / "conf" / "policy" / "long_search.yaml").write_text("defaults: [annealing]\nstarts: 5\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = discover()
    found.packages.append(("preset", "preset_pkg"))
    monkeypatch.setattr("placekit_core.cli.hydra_app.installed", lambda: found)
    outcome = placekit("run", "--cfg", "job", "+policy=long_search")
    assert outcome.code == 0, outcome.err
    assert "name: annealing" in outcome.out
    assert "starts: 5" in outcome.out
    assert "long_search" in placekit("run", "--help").out
