"""`placekit new-plugin`: what it writes installs, is found, runs, and passes the conformance kit as it stands."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest
from kit_tools import own_checks, skipped
from placekit_testing import LearnablePolicyContract, PolicyContract
from placekit_testing.new_plugin import LEARNABLE, write
from placekit_testing.pytest_plugin import Outcome

from placekit_core import installed
from placekit_core.contracts.hookspecs import KINDS
from tests.repo import project
from tests.venvs import ROOT, closure, install, make_venv, run

HEADINGS = ["What it implements", "What differs", "Options", "How to run", "Results"]
ASKED = {kind: (kind,) for kind in KINDS} | {LEARNABLE: ("policy", "--learnable")}  # the arguments, by template
RUNS = {  # how each is run
    "importer": ["+importer=my_importer"],
    "grouper": ["workload=mlp", "+grouper=my_grouper"],
    "policy": ["workload=mlp", "+policy=my_policy"],
    LEARNABLE: ["workload=mlp", "+policy=my_learnable"],
    "trainer": ["workload=mlp", "+policy=my_trainer_softmax"],
    "backend": ["workload=mlp", "+backend=my_backend", "+policy=round_robin"],
}


@pytest.fixture(scope="session")
def plugins(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The python of an environment with a new plugin from every template, and the folder that they are in."""
    folder = tmp_path_factory.mktemp("plugins")
    python = make_venv(folder / "venv")
    for template, (kind, *options) in ASKED.items():
        run(python, "placekit", "new-plugin", kind, f"my-{template}", *options, cwd=folder)
    install(python, *(folder / f"placekit-my-{template}" for template in ASKED))
    return python, folder


@pytest.fixture(scope="session")
def core_alone(plugins: tuple[Path, Path]) -> Path:
    """The python of an environment with the plugins that need only the core, and no other plugin."""
    folder = plugins[1]
    python = make_venv(folder / "core", closure("placekit-testing", "hatchling", "pip"))
    install(python, *(folder / f"placekit-my-{kind}" for kind in KINDS))
    return python


@pytest.mark.slow
class TestInstalled:
    def test_they_are_listed(self, plugins: tuple[Path, Path]) -> None:
        words = run(plugins[0], "placekit", "plugins").stdout.split()
        for template in ASKED:
            found = [
                words[i + 2] for i in range(len(words) - 2) if words[i : i + 2] == [f"placekit-my-{template}", "0.1.0"]
            ]
            assert f"my_{template}" in found
        assert "my_trainer_softmax" in words

    @pytest.mark.long  # tests/test_write_a_plugin.py does it for one method of each kind
    @pytest.mark.parametrize("template", ASKED)
    def test_its_own_tests_pass(self, plugins: tuple[Path, Path], core_alone: Path, template: str) -> None:
        python = plugins[0] if template == LEARNABLE else core_alone
        done = run(python, "pytest", "-q", "-p", "no:cacheprovider", f"placekit-my-{template}", cwd=plugins[1])
        assert " passed" in done.stdout

    @pytest.mark.long
    @pytest.mark.parametrize("template", ASKED)
    def test_it_runs(self, plugins: tuple[Path, Path], template: str, tmp_path: Path) -> None:
        python = plugins[0]
        run(python, "placekit", "run", *RUNS[template], "budget.evaluations=100", "run_dir=out", cwd=tmp_path)
        assert (tmp_path / "out" / "result.json").is_file()


@pytest.mark.parametrize("template", ASKED)
def test_the_package_is_like_those_of_this_repository(
    template: str, placekit: Callable[..., Outcome], tmp_path: Path
) -> None:
    assert placekit("new-plugin", ASKED[template][0], "some-2d-name", *ASKED[template][1:]).code == 0
    folder = tmp_path / "placekit-some-2d-name"
    data, core = project(folder), project(ROOT)["project"]
    assert data["project"]["name"] == folder.name
    assert data["project"]["entry-points"]["placekit"] == {"some_2d_name": "placekit_some_2d_name"}
    assert data["project"]["requires-python"] == core["requires-python"]
    minor = ".".join(core["version"].split(".")[:2])
    assert f"placekit-core=={minor}.*" in data["project"]["dependencies"]
    assert data["project"]["optional-dependencies"] == {"test": [f"placekit-testing=={minor}.*"]}
    assert "tool" not in data
    readme = (folder / "README.md").read_text()
    assert [line[3:] for line in readme.splitlines() if line.startswith("## ")] == HEADINGS
    files = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
    assert {"placekit_some_2d_name/some_2d_name.py", "tests/test_some_2d_name.py"} <= files
    texts = [p.read_text() for p in folder.rglob("*") if p.is_file()]
    assert [t for t in texts if "my_method" in t.lower() or "my-method" in t or "KIND" in t or "0.0.*" in t] == []
    assert "class Some2dName(" in (folder / "placekit_some_2d_name" / "some_2d_name.py").read_text()
    assert [p.name for p in tmp_path.iterdir()] == [folder.name]  # nothing half-written is left


def test_a_policy_that_learns_keeps_its_contract(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write("policy", "new_learner", tmp_path, installed(), LEARNABLE)
    monkeypatch.syspath_prepend(folder)
    policy = importlib.import_module("placekit_new_learner.new_learner").NewLearner
    checks = own_checks(LearnablePolicyContract, PolicyContract)
    abilities = {"check_imitates", "check_teaches", "check_rollouts_near_a_placement", "check_values"}
    assert skipped(LearnablePolicyContract, checks, policy, tmp_path) == abilities
    spec = importlib.util.spec_from_file_location("test_new_learner", folder / "tests" / "test_new_learner.py")
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(own := importlib.util.module_from_spec(spec))
    own.test_it_learns_where_each_group_is_fastest()


def test_it_says_what_to_do_next(placekit: Callable[..., Outcome]) -> None:
    out = placekit("new-plugin", "trainer", "my-trainer").out
    assert out.splitlines()[1:] == [
        "  pip install -e './placekit-my-trainer[test]'",
        "  placekit run +policy=my_trainer_softmax",
        "  pytest placekit-my-trainer",
    ]


def test_another_folder(placekit: Callable[..., Outcome], tmp_path: Path) -> None:
    (tmp_path / "plugins").mkdir()
    outcome = placekit("new-plugin", "policy", "my_method", "plugins")
    assert outcome.code == 0
    assert "./plugins/placekit-my-method[test]" in outcome.out
    assert (tmp_path / "plugins" / "placekit-my-method" / "pyproject.toml").is_file()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["policy"], "usage: placekit new-plugin"),
        (["polisy", "mine"], "did you mean 'policy'?"),
        (["command", "mine"], "a command, preset or runtime goes into any plugin: docs/write-a-plugin.md"),
        (["trainer", "mine", "--learnable"], "a trainer does not learn: --learnable is for policies"),
        (["policy", "2fast"], "'2fast' cannot be the name of a plugin"),
        (["policy", "My-Method"], "cannot be the name of a plugin"),
        (["policy", "class"], "'class' cannot be the name of a plugin"),
        (["trainer", "softmax"], "'softmax' cannot be the name of a plugin"),  # a module that the package has already
        (["policy", "critical-path"], "policy 'critical_path' is in placekit-heuristics"),
        (["policy", "core"], "a package placekit_core is installed already"),
        (["policy", "mine", "nowhere"], "cannot write nowhere/placekit-mine: No such file or directory"),
    ],
)
def test_what_cannot_be_written_is_refused(
    placekit: Callable[..., Outcome], tmp_path: Path, arguments: list[str], says: str
) -> None:
    outcome = placekit("new-plugin", *arguments)
    assert outcome.code == 1
    assert says in outcome.err
    assert "Traceback" not in outcome.err
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_write_leaves_nothing(
    placekit: Callable[..., Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "rename", full)
    outcome = placekit("new-plugin", "policy", "mine")
    assert outcome.code == 1
    assert "No space left on device" in outcome.err
    assert list(tmp_path.iterdir()) == []
