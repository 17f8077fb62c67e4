"""Plugins that are really installed and wrong in every way that there is, beside one that works."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from placekit_testing.speed import mostly_slow

from placekit_core import save_graph
from tests import venvs

COMPONENTS = """
from placekit_core import PolicyComponent, hookimpl
from placekit_core import Options

@hookimpl
def placekit_policies():
    return [PolicyComponent(name="{policy}", summary="made up", config=Options, target="{target}:Method")]
"""
METHOD = """
import numpy as np
from placekit_core import Policy

class Method(Policy):
    name = "{policy}"

    def place(self, task, rng):
        return task.problem.placement(np.zeros(task.problem.g, np.int16))
"""


def package(
    folder: Path,
    name: str,
    version: str,
    *,
    policy: str = "",
    entry: str = "",
    top: str | None = None,
    method: str | None = None,
    presets: tuple[str, ...] = (),
) -> Path:
    """A distribution `placekit-NAME` whose policy (called NAME unless given) puts everything on the first device."""
    module, policy = f"placekit_{name.replace('-', '_')}", policy or name
    root = folder / name
    inner = root / module
    inner.mkdir(parents=True)
    (root / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
        f'[project]\nname = "placekit-{name}"\nversion = "{version}"\n'
        'dependencies = ["placekit-core"]\n'
        f'[project.entry-points.placekit]\n"{entry or name}" = "{module}"\n'
    )
    components = COMPONENTS.format(policy=policy, target=f"{module}.method")
    (inner / "__init__.py").write_text(components if top is None else top.format(components=components))
    (inner / "method.py").write_text(METHOD.format(policy=policy) if method is None else method)
    for preset in presets:
        path = inner / "conf" / f"{preset}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("defaults: [random]\nsamples: 2\n")
    return root


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with all of them."""
    folder = tmp_path_factory.mktemp("plugins")
    python = venvs.make_venv(folder / "venv")
    venvs.install(
        python,
        package(folder, "good", "1.0", presets=("policy/good_preset",)),
        package(folder, "raises", "1.1", top="raise ImportError('libnothing.so is missing')"),
        package(folder, "misspelt", "1.2", top="{components}\nplacekit_policys = placekit_policies\n"),
        package(folder, "twin-a", "1.3", entry="twin"),
        package(folder, "twin-b", "1.3", entry="twin"),
        package(folder, "same-a", "1.4", policy="same"),
        package(folder, "same-b", "1.5", policy="same"),
        package(folder, "halfway", "1.7"),
        package(folder, "late", "1.8", method="import nothing_of_this_name\n"),
        package(folder, "preset-a", "1.9", presets=("policy/shared", "cluster/v100x8")),
        package(folder, "preset-b", "1.9", presets=("policy/shared", "policy/etf")),
    )
    shutil.rmtree(venvs.site_of(python) / "placekit_halfway")
    return python


@pytest.fixture
def command(python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., CompletedProcess[str]]:
    """Run `placekit ARGS` there, in an empty folder; standard error has warnings and errors only."""
    monkeypatch.setenv("PLACEKIT_QUIET", "1")
    return lambda *args, code=0: venvs.run(python, "placekit", *args, cwd=tmp_path, code=code)


@pytest.fixture
def place(command, tmp_path: Path, diamond) -> Callable[..., CompletedProcess[str]]:
    """Place a tiny graph there with the options given."""
    save_graph(diamond, tmp_path / "tiny.graph.npz")
    fixed = ("importer=file", "importer.path=tiny.graph.npz", "cluster=p100x4", "budget.evaluations=10")
    return lambda *options, code=0: command("run", *fixed, *options, code=code)


# what of `placekit-X VERSION` is broken, and the name under which somebody would ask for it
BROKEN = [
    ("raises", "placekit-raises", "1.1", "ImportError: libnothing.so is missing"),
    ("misspelt", "placekit-misspelt", "1.2", "placekit_policys"),
    ("twin", "placekit-twin-a", "1.3", "2 plugins are called 'twin': placekit-twin-a and placekit-twin-b"),
    ("halfway", "placekit-halfway", "1.7", "ModuleNotFoundError: No module named 'placekit_halfway'"),
]


@pytest.mark.slow
def test_plugins_lists_what_is_broken_and_what_collides(command) -> None:
    said = " ".join(command("plugins", code=1).stdout.split())
    for name, distribution, version, reason in BROKEN:
        assert f"{distribution} {version}, plugin {name}: " in said
        assert reason in said
    assert "placekit-twin-b 1.3, plugin twin: 2 plugins" in said
    assert "policy=same placekit-same-a 1.4 placekit-same-b 1.5" in said
    assert "policy=shared placekit-preset-a 1.9 (conf/policy/shared.yaml)" in said
    assert "cluster=v100x8 placekit-core 0.1.0 (conf/cluster/v100x8.yaml)" in said
    assert "policy=etf placekit-heuristics 0.1.0 placekit-preset-b 1.9 (conf/policy/etf.yaml)" in said
    assert "placekit-good 1.0 good " in said
    assert "placekit-late 1.8 late " in said, "its module is not imported"


@pytest.mark.slow
def test_a_run_that_asks_for_none_of_them_works_and_warns_of_each_once(place) -> None:
    done = place("+policy=good")
    assert "good on p100x4" in done.stdout
    for _, distribution, version, reason in BROKEN:
        [line] = [x for x in done.stderr.splitlines() if f"plugin {distribution} {version} is broken" in x]
        assert line.startswith("placekit: warning:")
        assert reason in line
    assert len(done.stderr.splitlines()) == len(BROKEN) + 1, "one line for each, two for the twins"


@pytest.mark.slow
def test_the_preset_of_the_good_plugin_works(place) -> None:
    assert "random on p100x4" in place("+policy=good_preset").stdout


def errors(done: CompletedProcess[str]) -> str:
    """What is on standard error after the warnings: an error of at most two lines."""
    lines = [x for x in done.stderr.splitlines() if not x.startswith("placekit: warning:")]
    assert "Traceback" not in done.stderr
    assert 1 <= len(lines) <= 2, done.stderr
    assert lines[0].startswith("placekit: ")
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("name", "distribution", "version", "reason"), mostly_slow(BROKEN, BROKEN[:1]), ids=[b[0] for b in BROKEN]
)
def test_asking_for_a_broken_one_names_distribution_version_and_reason(
    place, name: str, distribution: str, version: str, reason: str
) -> None:
    error = errors(place(f"+policy={name}", code=1))
    assert f"plugin {distribution} {version} is broken" in error
    assert reason in error


@pytest.mark.parametrize(
    ("option", "owners"),
    [
        ("policy=same", ["placekit-same-a 1.4", "placekit-same-b 1.5"]),
        ("policy=shared", ["placekit-preset-a 1.9 (conf/policy/shared.yaml)", "placekit-preset-b 1.9"]),
        ("policy=etf", ["placekit-heuristics 0.1.0", "placekit-preset-b 1.9 (conf/policy/etf.yaml)"]),
        pytest.param(
            "cluster=v100x8",
            ["placekit-core 0.1.0 (conf/cluster/v100x8.yaml)", "placekit-preset-a 1.9"],
            marks=pytest.mark.slow,
        ),
    ],
)
@pytest.mark.parametrize("plus", mostly_slow(["", "+"], [""]))
def test_asking_for_what_exists_twice_names_both(place, option: str, owners: list[str], plus: str) -> None:
    error = errors(place(plus + option, code=1))
    assert f"{option} is defined 2 times" in error
    assert all(owner in error for owner in owners)
    assert "uninstall one of them" in error


def test_a_job_of_a_sweep_over_what_exists_twice_fails(place, tmp_path: Path) -> None:
    assert "policy=same is defined 2 times" in place("-m", "+policy=good,same", "run_dir=sweep", code=1).stderr
    assert (tmp_path / "sweep" / "policy=good" / "result.json").exists()


def test_one_whose_module_fails_only_when_it_is_asked_for(place) -> None:
    error = errors(place("+policy=late", code=1))
    assert "policy 'late' of placekit-late 1.8 is broken: ModuleNotFoundError" in error
    assert "reinstall placekit-late" in error


def test_asking_for_what_is_not_installed_lists_what_is(place) -> None:
    error = errors(place("+policy=goods", code=1))
    assert "no policy named 'goods'\n  did you mean 'good'? available: good, good_preset, " in error
    assert "more: `placekit run --help` lists them" in error
    assert "broken plugins: placekit-halfway 1.7" in error


def test_pytest_works_there(python: Path, tmp_path: Path) -> None:
    (tmp_path / "test_nothing.py").write_text("def test_nothing():\n    pass\n")
    assert "1 passed" in venvs.run(python, "pytest", "-q", "-p", "no:cacheprovider", ".", cwd=tmp_path).stdout


@pytest.mark.slow
@pytest.mark.long
def test_doctor_says_all_of_it(command) -> None:
    out = " ".join(command("doctor", code=1).stdout.split())
    for _, distribution, version, reason in BROKEN:
        assert f"fail {distribution} {version} is set aside: " in out
        assert reason in out
    assert "fail policy=same is defined 2 times: placekit-same-a 1.4 and placekit-same-b 1.5" in out
    assert "fail policy=shared is defined 2 times" in out
    assert "fail policy 'late' of placekit-late 1.8 is broken: ModuleNotFoundError" in out
    assert "ok policy good finds" in out
    assert "this check broke off" not in out
    assert "fail cluster=v100x8 is defined 2 times" in out
    assert " 0 warnings: " in out


@pytest.mark.slow
def test_a_plugin_that_imports_torch_works(tmp_path: Path, diamond) -> None:
    python = venvs.make_venv(tmp_path / "venv")
    venvs.install(python, package(tmp_path, "heavy", "1.0", top="import torch\n{components}"))
    save_graph(diamond, tmp_path / "tiny.graph.npz")
    assert "placekit-heavy" in venvs.run(python, "placekit", "plugins", cwd=tmp_path).stdout
    options = ("importer=file", "importer.path=tiny.graph.npz", "+policy=heavy")
    assert "heavy on rtx4090_3090" in venvs.run(python, "placekit", "run", *options, cwd=tmp_path).stdout
