"""Each plugin alone, and small sets of plugins: what they declare, and nothing else that is installed here."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from placekit_testing.new_plugin import write

from placekit_core import installed
from tests.repo import NAMES, PLUGINS, imported, imports_of, package_of, project
from tests.venvs import closure, make_venv, run

INSTALLED = """
from placekit_core import installed
print(*(p.distribution for p in installed().packages))
"""
PLUGIN_AND_TESTS = """
import sys, pytest
from placekit_core.cli.main import main
tests, sys.argv = sys.argv[1], ["placekit", "plugins"]
if main():
    sys.exit("placekit plugins says that one is broken")
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "--collect-only", tests]))
"""
"""Lists plugins, and imports the tests in a folder; that they pass is seen elsewhere."""
TESTING = ("placekit-testing", "hypothesis")  # what tests may use besides
WITHOUT_TORCH = ("placekit-sim", "placekit-grouping", "placekit-heuristics", "placekit-search", "placekit-formats",
                 "placekit-einsum", "placekit-report")  # fmt: skip
"""What docs/getting-started.md names for an installation without torch, and `compare`."""


def importing(folder: Path) -> str:
    """Code that imports every module of the package in `folder`, and all packages that they name, in functions too."""
    package = package_of(folder)
    paths = [p.relative_to(folder).with_suffix("") for p in sorted(package.rglob("*.py")) if "templates" not in p.parts]
    modules = [".".join(p.parts).removesuffix(".__init__") for p in paths] + sorted(
        {module for p in paths for module, _ in imported((folder / p).with_suffix(".py"))}
    )
    return f"import importlib\nfor m in {modules!r}: importlib.import_module(m)\n"


def needed(plugin: Path) -> set[str]:
    """Names of the distributions that a plugin, its extras and its tests may use."""
    extras = ",".join(project(plugin)["project"].get("optional-dependencies", {}))
    return closure(f"{plugin.name}[{extras}]" if extras else plugin.name, *TESTING)


@pytest.mark.parametrize("plugin", PLUGINS, ids=NAMES)
def test_tests_import_declared_plugins(plugin: Path) -> None:
    """What a file of tests imports when it is collected is declared, or skipped without (`pytest.importorskip`)."""
    needs = needed(plugin)
    for path in (plugin / "tests").rglob("*.py"):
        body = ast.Module([s for s in ast.parse(path.read_text()).body if not hasattr(s, "body")], [])
        called = [n for n in ast.walk(body) if isinstance(n, ast.Call) and "importorskip" in ast.unparse(n.func)]
        free = {str(ast.literal_eval(n.args[0])).partition(".")[0] for n in called}
        packages = {module.partition(".")[0] for module, _ in imports_of(body)}
        plugins = {p.replace("_", "-") for p in packages - free if p.startswith("placekit_")}
        assert plugins <= needs, f"{path} imports {plugins - needs}, which {plugin.name} does not declare"


FEW = {"placekit-doppler", "placekit-onnx", "placekit-search"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "plugin", [p if p.name in FEW else pytest.param(p, marks=pytest.mark.long) for p in PLUGINS], ids=NAMES
)
def test_a_plugin_needs_only_what_it_declares(plugin: Path, tmp_path: Path) -> None:
    needs = needed(plugin)
    python = make_venv(tmp_path / "venv", needs)
    code = INSTALLED + importing(plugin) + PLUGIN_AND_TESTS  # one process: torch takes seconds to import
    done = run(python, "python", "-c", code, str(plugin / "tests"), cwd=tmp_path, code=None)
    skipped = done.returncode == 5 and "SKIPPED" in done.stdout  # its tests say that they need another plugin
    assert done.returncode == 0 or skipped, done.stdout + done.stderr
    found = done.stdout.splitlines()[0].split()
    assert plugin.name in found
    assert set(found) <= needs  # it is as alone as it says


@pytest.mark.slow
def test_the_core_alone(tmp_path: Path) -> None:
    needs = closure("placekit-core")
    assert not needs & {"torch", "numba", "scipy", "pytest"}
    python = make_venv(tmp_path / "venv", needs)
    assert "placekit-core" in run(python, "placekit", "plugins").stdout or not needs & set(NAMES)
    assert run(python, "placekit", "--help").stdout.count("\n  ") == 2  # its commands: plugins, run
    (tmp_path / "net.json").write_text(NET)
    for argv in ([], ["net.json"], ["none.json"], ["net"], ["importer=mlp", "--help"]):
        said = run(python, "placekit", "run", *argv, cwd=tmp_path, code=1).stderr
        assert "placekit: " in said
        assert "Traceback" not in said
        assert "no importer is installed: `pip install placekit`" in said
        assert "available: " not in said


@pytest.mark.slow
def test_without_torch(tmp_path: Path) -> None:
    """The core and a few plugins place files and tensor programs."""
    needs = closure(*WITHOUT_TORCH)
    assert "torch" not in needs
    python = make_venv(tmp_path / "venv", needs)
    small = "workload=chainmm_small", "budget.evaluations=64"
    assert "seed 0, simulated" in run(python, "placekit", "run", *small, "run_dir=a", cwd=tmp_path).stdout
    (tmp_path / "net.json").write_text(NET)
    assert (
        "seed 0, simulated"
        in run(python, "placekit", "run", "net.json", "+policy=etf", "run_dir=b", cwd=tmp_path).stdout
    )
    assert "portfolio" in run(python, "placekit", "compare", "a", "b", cwd=tmp_path).stdout


NET = """{"format": "placekit-program", "version": 1, "name": "net", "operations": [
 {"name": "a", "outputs": [1000], "flops": 1e9}, {"name": "b", "inputs": ["a"], "outputs": [1000], "flops": 1e9}]}
"""


@pytest.mark.parametrize("declared", [False, True])
def test_an_undeclared_dependency_is_found(tmp_path: Path, declared: bool) -> None:
    """networkx stands for any package that is installed here; it is imported when a function is called."""
    folder = write("policy", "mine", tmp_path, installed())
    method, data = folder / "placekit_mine" / "mine.py", folder / "pyproject.toml"
    method.write_text(method.read_text() + "\n\ndef later():\n    import networkx\n\n    return networkx\n")
    if declared:
        data.write_text(data.read_text().replace('"numpy>=1.26"', '"numpy>=1.26", "networkx"'))
    python = make_venv(tmp_path / "venv", closure(*project(folder)["project"]["dependencies"]))
    if declared:
        run(python, "python", "-c", importing(folder), PYTHONPATH=str(folder))
    else:
        with pytest.raises(AssertionError, match="No module named 'networkx'"):
            run(python, "python", "-c", importing(folder), PYTHONPATH=str(folder))
