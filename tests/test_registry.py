"""The registry: broken, colliding, misspelt and unknown plugins, each isolated."""

from __future__ import annotations

import pickle
import sys
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

import pytest
from placekit_testing.registries import use_registry

from placekit_core import PluginError, Problem, Registry, installed, place
from placekit_core.run.entries import Package
from placekit_core.run.registry import discover

GOOD = """
from placekit_core import PolicyComponent, hookimpl
from placekit_core import Options

@hookimpl
def placekit_policies():
    return [PolicyComponent(name="{name}", summary="made up", config=Options, target="{target}")]
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
    assert registry.broken[0].reason == "no hook is called placekit_policy; did you mean placekit_policies?"
    assert registry.names("policy") == ["mine"], "the others work"


COMMAND = """
from placekit_core import Command, hookimpl

@hookimpl
def placekit_commands():
    return [Command(name="run", usage="", summary="another one", target="nothing:main")]
"""


def test_a_command_that_is_called_as_one_of_the_core_leaves_it_alone(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "madeup_command.py").write_text(COMMAND)
    own = [p for p in entry_points(group="placekit") if p.dist is not None and p.dist.name == "placekit-core"]
    registry = discover([*own, EntryPoint(name="aaa", value="madeup_command", group="placekit")])
    assert registry.command("run").distribution == "placekit-core"
    [broken] = registry.broken
    assert broken.reason == "its command 'run' is ignored: placekit-core has a command of this name"


def test_a_factory_that_takes_no_model_of_options(plugins) -> None:
    source = GOOD.format(name="mine", target="TARGET") + "\ndef make(**options):\n    pass\n"
    registry = plugins(factory=source.replace("TARGET:", "").replace('"TARGET"', '__name__ + ":make"'))
    with pytest.raises(PluginError, match=r"policy .mine. of .* cannot be built: make") as e:
        registry.build("policy", "mine", {})
    assert "take its options as one argument, `options`" in e.value.hint


def test_a_component_without_a_name(plugins) -> None:
    """As a preset whose `defaults` name no component gives it."""
    with pytest.raises(PluginError, match="no policy is chosen: the section `policy` has no `name`") as e:
        plugins().get("policy", "")
    assert "`name: NAME`" in e.value.hint


def test_what_is_added_to_plugins_is_listed(placekit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as runtimes, whose entry points `placekit_runtimes` reads."""
    for name in ("one", "two"):
        info = tmp_path / f"placekit_{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: placekit-{name}\nVersion: 1.0\n")
        points = f"[placekit.engines]\nquick = madeup_{name}:NOTHING\n{name} = madeup_{name}:NOTHING\n"
        (info / "entry_points.txt").write_text(points)
    monkeypatch.syspath_prepend(str(tmp_path))
    outcome = placekit("plugins", "engines")
    assert outcome.code == 1
    assert outcome.out.splitlines() == [
        "engine one (placekit-one 1.0)",
        "engine quick (placekit-one 1.0 and placekit-two 1.0)",
        "engine two (placekit-two 1.0)",
        "defined several times, so that none can be used",
        "  engine quick",
        "    placekit-one 1.0",
        "    placekit-two 1.0",
    ]


def test_hook_that_raises_or_returns_rubbish_is_broken(plugins) -> None:
    registry = plugins(
        raises=GOOD.format(name="x", target="m:C").replace("return [", "raise RuntimeError('boom')\n    return ["),
        rubbish=GOOD.format(name="x", target="m:C").replace("return [PolicyComponent", "return [dict"),
    )
    reasons = {b.plugin: b.reason for b in registry.broken}
    assert reasons["raises"].startswith("RuntimeError: boom (")
    assert reasons["raises"].endswith("_raises.py, line 7)"), "it names the place"
    assert "not a Component" in reasons["rubbish"]
    assert registry.names("policy") == []


def test_two_components_of_one_name_are_an_error_that_names_both(plugins) -> None:
    registry = plugins(one=GOOD.format(name="same", target="m:A"), two=GOOD.format(name="same", target="m:B"))
    with pytest.raises(PluginError, match="2 policies are named 'same'"):
        registry.get("policy", "same")


def test_two_plugins_of_one_name_are_both_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    for module in ("twin_a", "twin_b"):
        (tmp_path / f"{module}.py").write_text(GOOD.format(name=module, target="m:C"))
    points = [EntryPoint(name="twin", value=m, group="placekit") for m in ("twin_a", "twin_b")]
    registry = discover(points)
    assert registry.names("policy") == []
    assert len(registry.broken) == 2
    assert "2 plugins are called 'twin'" in registry.broken[0].reason


def test_the_core_contributes_its_commands_as_plugins_do() -> None:
    from importlib.metadata import entry_points

    own = [p for p in entry_points(group="placekit") if p.name == "core"]
    registry = discover(own)
    assert registry.broken == []
    assert sorted(registry.commands) == ["plugins", "run"]
    assert registry.all() == [], "every component is a plugin's"
    twice = discover([*own, EntryPoint(name="core", value="placekit_core.cli.commands", group="placekit")])
    assert next(iter(twice.broken)).reason.startswith("2 plugins are called 'core'")


COMMANDS = """
from placekit_core import Command, hookimpl

@hookimpl
def placekit_commands():
    return [Command(name="{name}", usage="", summary="made up", target="{target}")]
"""


def test_in_another_process_a_registry_is_that_of_what_is_installed(plugins) -> None:
    assert pickle.loads(pickle.dumps(plugins(good=GOOD.format(name="mine", target="m:C")))) is installed()


@pytest.fixture
def with_presets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The installed plugins and further packages, given as name=(conf files)."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(**packages: tuple[str, ...]) -> Registry:
        registry = discover()
        for name, files in packages.items():
            for file in files:
                path = tmp_path / name / "conf" / file
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text("{}\n")
            (tmp_path / name / "__init__.py").write_text("")
            registry.packages.append(Package(name, name, f"placekit-{name}", "1.0"))
        return registry

    return make


def test_presets_of_this_repository_are_defined_once() -> None:
    assert discover().duplicates() == {}


@pytest.mark.parametrize(
    ("files", "group", "owners"),
    [
        ("cluster/p100x4.yaml", "cluster", ["placekit-core", "placekit-presets_one"]),
        ("policy/annealing.yaml", "policy", ["placekit-search", "placekit-presets_one"]),
        ("trainer/auto.yaml", "trainer", ["placekit-core", "placekit-presets_one"]),
        ("config.yaml", "", ["placekit-core", "placekit-presets_one"]),
        ("hydra/launcher/mine.yaml", "hydra/launcher", ["placekit-presets_one", "placekit-presets_two"]),
    ],
)
def test_what_is_defined_twice(with_presets, files: str, group: str, owners: list[str]) -> None:
    second = {"presets_two": (files, "policy/other.yaml")} if len(owners) == 2 and owners[1].endswith("two") else {}
    registry = with_presets(presets_one=(files, "policy/fine.yaml"), **second)
    [(key, found)] = registry.duplicates().items()
    assert key == (group, Path(files).stem)
    assert [c.distribution for c in found] == owners
    registry.check_choices({"policy": "fine", "experiment": None})
    with pytest.raises(PluginError, match=f"{key[1]} is defined 2 times: .* and .*conf/{files}"):
        registry.check_choices({key[0]: key[1]})


def test_a_machine_that_is_defined_twice_is_refused_everywhere(
    with_presets, monkeypatch: pytest.MonkeyPatch, placekit, problem: Problem
) -> None:
    use_registry(monkeypatch, with_presets(presets_one=("cluster/p100x4.yaml",)))
    with pytest.raises(PluginError, match="cluster=p100x4 is defined 2 times"):
        place(problem.graph, cluster="p100x4")
    assert "cluster=p100x4 is defined 2 times" in placekit("cluster", "show", "p100x4").err


def test_a_sweep_over_a_name_that_is_defined_twice_begins_no_job(
    with_presets, monkeypatch: pytest.MonkeyPatch, placekit
) -> None:
    use_registry(monkeypatch, with_presets(presets_one=("policy/annealing.yaml",)))
    outcome = placekit("run", "-m", "policy=etf,annealing", "run_dir=sweep")
    assert (outcome.code, Path("sweep").exists()) == (1, False)
    assert outcome.err.startswith("placekit: policy=annealing is defined 2 times")


def test_presets_of_a_plugin_are_options_and_importing_nothing_finds_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, placekit
) -> None:
    package = tmp_path / "preset_pkg"
    (package / "conf" / "policy").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('looking for presets must not import the plugin')")
    (package / "conf" / "policy" / "long_search.yaml").write_text("defaults: [annealing]\nstarts: 5\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = discover()
    found.packages.append(Package("preset", "preset_pkg", "placekit-preset", "1.0"))
    use_registry(monkeypatch, found)
    outcome = placekit("run", "--cfg", "job", "+policy=long_search")
    assert outcome.code == 0, outcome.err
    assert "name: annealing" in outcome.out
    assert "starts: 5" in outcome.out
    assert "long_search" in placekit("run", "--help", "all").out


def test_the_code_of_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its Python files and nothing else; what cannot be read, such as an editor's lock, is not in the way."""
    monkeypatch.syspath_prepend(str(tmp_path))
    folder = tmp_path / "madeup_code"
    (folder / "inner").mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "inner" / "a.py").write_text("x = 1")

    def code() -> str:
        return Package("p", "madeup_code", "placekit-p", "1").code

    first = code()
    (folder / ".#a.py").symlink_to("nobody@nowhere")
    (folder / "__pycache__").mkdir()
    (folder / "notes.txt").write_text("edited")
    assert code() == first != ""
    (folder / "inner" / "a.py").write_text("x = 2")
    assert code() != first
    assert Package("p", "no_such_package_at_all", "placekit-p", "1").code == ""
    assert Package("p", "sys", "placekit-p", "1").code == Package("p", "sys", "placekit-p", "1").code
