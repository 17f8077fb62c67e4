"""The repository's own rules: what is listed somewhere is compared with what is there."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli")

ROOT = Path(__file__).resolve().parent.parent
PLUGINS = sorted(p.parent for p in ROOT.glob("plugins/*/*/pyproject.toml"))
NAMES = [p.name for p in PLUGINS]
HEADINGS = ["What it implements", "What differs", "Options", "How to run", "Results"]
# the dependencies between packages of this repository that architecture.md allows, besides the core
MAY_USE = {
    "placekit-cuda": {"placekit_sim"},
    "placekit-doppler": {"placekit_learn"},
    "placekit-seq2seq": {"placekit_learn"},
    "placekit-zoo": {"placekit_torch"},
}


def project(folder: Path) -> dict:
    return tomllib.loads((folder / "pyproject.toml").read_text())


def tracked() -> list[Path]:
    names = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    ).stdout.split("\n")
    return [ROOT / n for n in names if n and (ROOT / n).is_file()]


def imports(folder: Path) -> set[str]:
    found = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {a.name.partition(".")[0] for a in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module.partition(".")[0])
    return found


def test_top_level() -> None:
    top = {p.relative_to(ROOT).parts[0] for p in tracked()}
    allowed = {
        "pyproject.toml", "placekit_core", "plugins", "conf", "tests", "docs", "CONTRIBUTING.md", "README.md", "LICENSE",
        "CHANGELOG.md", "Makefile", "constraints.txt", "requirements-dev.txt", "benchmarks",
    }  # fmt: skip
    assert {t for t in top if not t.startswith(".")} == allowed


def test_every_plugin_is_installed_for_development() -> None:
    lines = (ROOT / "requirements-dev.txt").read_text().splitlines()
    listed = [line.removeprefix("-e ").partition("[")[0] for line in lines if line.startswith("-e plugins/")]
    assert listed == [str(p.relative_to(ROOT)) for p in PLUGINS]


def test_placekit_all_installs_every_plugin() -> None:
    assert project(ROOT)["project"]["optional-dependencies"]["all"] == sorted(NAMES)


def test_wheels_hold_the_presets() -> None:
    targets = project(ROOT)["tool"]["hatch"]["build"]["targets"]
    assert targets["wheel"]["force-include"] == {"conf": "placekit_core/conf"}
    assert "/conf" in targets["sdist"]["include"]


def test_torch_is_pinned_in_one_place() -> None:
    pins = [p for p in tracked() if p.suffix in (".toml", ".txt") and re.search(r"torch\s*==", p.read_text())]
    assert pins == [ROOT / "constraints.txt"]


@pytest.mark.parametrize("plugin", PLUGINS, ids=NAMES)
class TestPlugin:
    def test_names_agree(self, plugin: Path) -> None:
        data = project(plugin)
        module = plugin.name.replace("-", "_")
        assert data["project"]["name"] == plugin.name
        assert (plugin / module / "__init__.py").is_file()
        assert data["project"]["entry-points"]["placekit"] == {plugin.name.removeprefix("placekit-"): module}

    def test_versions_and_metadata_agree(self, plugin: Path) -> None:
        data, core = project(plugin)["project"], project(ROOT)["project"]
        for key in ("version", "license", "requires-python", "readme"):
            assert data[key] == core[key], key
        assert "placekit" in [re.split(r"[<>=~ \[]", d)[0] for d in data["dependencies"]]

    def test_pyproject_is_short_and_has_no_tool_tables(self, plugin: Path) -> None:
        assert "tool" not in project(plugin)
        assert len((plugin / "pyproject.toml").read_text().splitlines()) <= 24

    def test_readme_has_its_headings_in_order(self, plugin: Path) -> None:
        text = (plugin / "README.md").read_text()
        assert text.startswith(f"# {plugin.name}\n")
        assert re.findall(r"^## (.*)$", text, re.M) == HEADINGS

    def test_tests_exist_without_init(self, plugin: Path) -> None:
        assert list((plugin / "tests").glob("test_*.py"))
        assert not (plugin / "tests" / "__init__.py").exists()

    def test_imports_no_other_plugin(self, plugin: Path) -> None:
        others = {n.replace("-", "_") for n in NAMES} - {plugin.name.replace("-", "_")}
        used = imports(plugin / plugin.name.replace("-", "_")) & others
        assert used <= MAY_USE.get(plugin.name, set())
        declared = {re.split(r"[<>=~ \[]", d)[0].replace("-", "_") for d in project(plugin)["project"]["dependencies"]}
        assert used <= declared

    def test_listed_in_the_readme(self, plugin: Path) -> None:
        assert plugin.name in (ROOT / "README.md").read_text()


def test_core_imports_no_plugin_and_no_torch() -> None:
    used = imports(ROOT / "placekit_core")
    assert not used & ({n.replace("-", "_") for n in NAMES} | {"torch"})


def test_test_files_have_unique_names() -> None:
    files = [p.name for p in [*ROOT.glob("tests/test_*.py"), *ROOT.glob("plugins/*/*/tests/test_*.py")]]
    assert len(files) == len(set(files))


def test_source_files_stay_small() -> None:
    long = [
        f"{p.relative_to(ROOT)}: {len(p.read_text().splitlines())} lines"
        for p in tracked()
        if p.suffix == ".py" and "tests" not in p.parts and len(p.read_text().splitlines()) > 420
    ]
    assert not long


def test_no_registry_host_and_no_home_directory_in_files() -> None:
    forbidden = re.compile(r"(index-url|pypi\.org|files\.pythonhosted|/" + r"work/main|/" + r"root/)")
    hits = [
        f"{p.relative_to(ROOT)}: {m.group()}"
        for p in tracked()
        if p.suffix in (".py", ".md", ".toml", ".txt", ".yaml", ".json", "") and p.stat().st_size < 2**20
        for m in [forbidden.search(p.read_text(errors="replace"))]
        if m and p.name != "test_repo.py"
    ]
    assert not hits


def run_python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_importing_the_core_is_light() -> None:
    code = "import placekit_core, sys; print([m for m in ('torch', 'numba', 'hydra') if m in sys.modules])"
    assert run_python(code).strip() == "[]"


@pytest.mark.parametrize("argv", [["plugins"], ["run", "--help"], ["--help"], ["run", "--cfg", "job"]])
def test_listing_imports_no_torch(argv: list[str], tmp_path: Path) -> None:
    code = f"""
import os, sys
os.chdir({str(tmp_path)!r})
sys.argv = ["placekit", *{argv!r}]
from placekit_core.cli import main
try:
    code = main()
except SystemExit as e:
    code = e.code
print("CODE", code, "HEAVY", [m for m in ("torch", "numba") if m in sys.modules])
"""
    assert run_python(code).strip().splitlines()[-1] == "CODE 0 HEAVY []"


def test_every_component_of_this_repository_loads() -> None:
    from placekit_core.registry import installed

    assert installed().broken == []
    for entry in installed().all():
        cls = entry.load()
        assert cls.name == entry.component.name
        assert cls.options_class is entry.component.config
        assert entry.component.summary


def is_switched_off(node: ast.Module | ast.ClassDef) -> bool:
    """Whether a test module or class says that it is not run, or not always: by `__test__`, or a mark that skips."""
    said = [s for s in node.body if isinstance(s, ast.Assign | ast.AnnAssign)] + getattr(node, "decorator_list", [])
    return any(word in ast.unparse(s) for s in said for word in ("__test__", "mark.skip", "mark.xfail"))


def contract_tests(folder: Path) -> set[tuple[str, str]]:
    """(contract, name) for each name in a test class that subclasses the contract, or in what it takes from its module."""
    found = set()
    for path in folder.glob("test_*.py"):
        module = ast.parse(path.read_text())
        body = [] if is_switched_off(module) else module.body
        names = {id(node): {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} for node in body}
        given = {
            target.id: names[id(node)]
            for node in body if isinstance(node, ast.Assign)
            for target in node.targets if isinstance(target, ast.Name)
        }  # fmt: skip
        for node in body:
            for base in node.bases if isinstance(node, ast.ClassDef) and not is_switched_off(node) else ():
                used = names[id(node)].union(*(given.get(name, set()) for name in names[id(node)]))
                found |= {(base.id, name) for name in used if isinstance(base, ast.Name)}
    return found


def test_a_contract_test_that_is_switched_off_does_not_count(tmp_path: Path) -> None:
    test = "class Test{}(GrouperContract):\n    {}\n    def make(self): return {}\n"
    off = [
        ("Attribute", "__test__ = False"),
        ("Annotated", "__test__: bool = False"),
        ("Mark", "pytestmark = pytest.mark.skip"),
    ]
    text = "".join(test.format(name, line, name) for name, line in [*off, ("On", "limit_option = ''")])
    text += "@pytest.mark.skipif(True, reason='')\n" + test.format("Decorated", "", "Decorated")
    text += "@pytest.mark.slow\n" + test.format("Slow", "", "Slow")
    (tmp_path / "test_some.py").write_text(text)
    (tmp_path / "test_none.py").write_text(f"pytestmark = [pytest.mark.skip]\n{test.format('Module', '', 'Module')}")
    tested = {name for _, name in contract_tests(tmp_path)}
    assert tested & {"Attribute", "Annotated", "Mark", "Decorated", "Module", "On", "Slow"} == {"On", "Slow"}


def test_every_component_of_this_repository_is_tested_by_its_contract() -> None:
    from placekit_core.registry import installed

    folders = {p.name: p / "tests" for p in PLUGINS} | {"placekit": ROOT / "tests"}
    tested = {name: contract_tests(folder) for name, folder in folders.items()}
    for entry in installed().all():
        contracts = {f"{entry.kind.capitalize()}Contract", f"Learnable{entry.kind.capitalize()}Contract"}
        name = entry.component.target.partition(":")[2]
        assert {(c, name) for c in contracts} & tested[entry.distribution], f"{entry.kind} {entry.component.name}"


def test_changelog_names_the_version() -> None:
    version = project(ROOT)["project"]["version"]
    assert f"## {version}" in (ROOT / "CHANGELOG.md").read_text()
