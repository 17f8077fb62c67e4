"""Each plugin alone: the core, the plugin, what they declare that they need, and nothing else that is installed here."""

from __future__ import annotations

from pathlib import Path

import pytest

from placekit_core.cli.new_plugin import write
from tests.test_repo import NAMES, PLUGINS, imports, project
from tests.venvs import closure, make_venv, run

INSTALLED = """
from placekit_core.registry import installed
print(*(p.distribution for p in installed().packages))
"""
TESTING = ("placekit[test]", "hypothesis")  # what tests may use besides


def import_all(python: Path, folder: Path, **env: str) -> None:
    """Import every module of the package in `folder`, and all packages that they name, in functions too."""
    package = folder / folder.name.replace("-", "_")
    paths = [p.relative_to(folder).with_suffix("") for p in sorted(package.rglob("*.py"))]
    modules = [".".join(p.parts).removesuffix(".__init__") for p in paths] + sorted(imports(package))
    run(python, "python", "-c", f"import importlib\nfor m in {modules!r}: importlib.import_module(m)", **env)


@pytest.mark.slow
@pytest.mark.parametrize("plugin", PLUGINS, ids=NAMES)
def test_a_plugin_needs_only_what_it_declares(plugin: Path, tmp_path: Path) -> None:
    extras = ",".join(project(plugin)["project"].get("optional-dependencies", {}))
    needs = closure(f"{plugin.name}[{extras}]" if extras else plugin.name, *TESTING)
    python = make_venv(tmp_path / "venv", needs)
    import_all(python, plugin)
    run(python, "placekit", "plugins")  # fails if one is broken
    found = run(python, "python", "-c", INSTALLED).stdout.split()
    assert plugin.name in found
    assert set(found) <= needs  # it is as alone as it says
    how = "-q", "-p", "no:cacheprovider", "--collect-only"  # its tests are imported; that they pass is seen elsewhere
    done = run(python, "pytest", *how, str(plugin / "tests"), cwd=tmp_path, code=None)
    skipped = done.returncode == 5 and "SKIPPED" in done.stdout  # its tests say that they need another plugin
    assert done.returncode == 0 or skipped, done.stdout + done.stderr


def test_the_core_alone(tmp_path: Path) -> None:
    python = make_venv(tmp_path / "venv", closure("placekit"))
    rows = [line.split()[:3] for line in run(python, "placekit", "plugins").stdout.splitlines()]
    assert [r[2] for r in rows[1:]] == ["placekit"] * (len(rows) - 1)
    listing = "import importlib.metadata as m; print(*sorted({d.name for d in m.distributions()}))"
    names = run(python, "python", "-c", listing).stdout.split()
    assert "torch" not in names
    assert "pytest" not in names


@pytest.mark.parametrize("declared", [False, True])
def test_an_undeclared_dependency_is_found(tmp_path: Path, declared: bool) -> None:
    """networkx stands for any package that is installed here; it is imported when a function is called."""
    folder = write("policy", "mine", tmp_path)
    method, data = folder / "placekit_mine" / "mine.py", folder / "pyproject.toml"
    method.write_text(method.read_text() + "\n\ndef later():\n    import networkx\n\n    return networkx\n")
    if declared:
        data.write_text(data.read_text().replace('"numpy>=1.26"', '"numpy>=1.26", "networkx"'))
    python = make_venv(tmp_path / "venv", closure(*project(folder)["project"]["dependencies"]))
    if declared:
        import_all(python, folder, PYTHONPATH=str(folder))
    else:
        with pytest.raises(AssertionError, match="No module named 'networkx'"):
            import_all(python, folder, PYTHONPATH=str(folder))
