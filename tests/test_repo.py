"""The repository's own rules: what is listed somewhere is compared with what is there."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

import placekit_core
from placekit_core.run.config import defaults_list
from placekit_core.run.registry import CORE, installed
from tests.repo import (
    BUNDLE,
    NAMES,
    PLUGINS,
    ROOT,
    circles,
    import_graph,
    imported,
    lazy_names,
    modules,
    package_of,
    parsed,
    project,
    tracked,
)

HEADINGS = {
    "policies": ["What it implements", "What differs", "Options", "How to run", "Results"],
    "libraries": ["What it holds", "How to use it"],
    "commands": ["What it does", "How to run"],
    "papers": ["What it does", "How to run", "Limits"],
    "development": ["What it does", "How to run"],
}
"""The headings of a plugin's README, by its role; other roles have those of policies."""


def test_top_level() -> None:
    top = {p.relative_to(ROOT).parts[0] for p in tracked()}
    allowed = {
        "pyproject.toml", "placekit_core", "plugins", "conf", "tests", "docs", "CONTRIBUTING.md", "README.md", "LICENSE",
        "CHANGELOG.md", "CITATION.cff", "Makefile", "constraints.txt", "requirements-dev.txt", "benchmarks",
    }  # fmt: skip
    assert {t for t in top if not t.startswith(".")} == allowed


def test_every_plugin_is_installed_for_development() -> None:
    lines = (ROOT / "requirements-dev.txt").read_text().splitlines()
    listed = [line.removeprefix("-e ") for line in lines if line.startswith("-e plugins/")]
    assert listed == sorted(str(p.relative_to(ROOT)) for p in [*PLUGINS, BUNDLE]), (
        "a line for each in requirements-dev.txt"
    )


def test_placekit_all_installs_every_plugin() -> None:
    """Libraries come with what needs them."""
    data = project(BUNDLE)["project"]
    named = [*data["dependencies"], *(d for extra in data["optional-dependencies"].values() for d in extra)]
    names = {re.split(r"[\[<>=~ ]", d)[0] for d in named} - {"placekit", "placekit-core"}
    assert names == {p.name for p in PLUGINS if p.parent.name != "libraries"}


def test_wheels_hold_the_presets() -> None:
    targets = project(ROOT)["tool"]["hatch"]["build"]["targets"]
    assert targets["wheel"]["force-include"] == {"conf": "placekit_core/conf"}
    assert "/conf" in targets["sdist"]["include"]


def test_torch_is_pinned_in_one_place() -> None:
    pins = [p for p in tracked() if p.suffix in (".toml", ".txt") and re.search(r"(?<!-)\btorch\s*==", p.read_text())]
    assert pins == [ROOT / "constraints.txt"]


def metadata_faults(folder: Path) -> Iterator[str]:
    """What is wrong with the metadata of a distribution, one line each. What all share is the core's."""
    about, core = project(folder)["project"], project(ROOT)["project"]
    for key in ("version", "license", "requires-python", "readme", "authors", "keywords", "classifiers"):
        if not about.get(key) or about[key] != core[key]:
            yield f"{key} in pyproject.toml is not the core's"
    description = about.get("description", "")
    if not description or len(description) > 160 or description.endswith("."):
        yield "its description is not one line of at most 160 characters without a period"
    declared = [
        *about["dependencies"],
        *(d for extra in about.get("optional-dependencies", {}).values() for d in extra),
    ]
    fitting = f"=={core['version'].rpartition('.')[0]}.*"
    for needed in map(Requirement, declared):
        ours = needed.name.startswith("placekit") and needed.name != about["name"]
        if ours and str(needed.specifier) != fitting:
            yield f"its range of {needed.name} is not {fitting}"
    package = folder / about["name"].replace("-", "_")
    if folder != BUNDLE and not (package / "py.typed").exists():
        yield f"{package.name} has no py.typed"


def test_metadata_of_all_distributions() -> None:
    folders = [ROOT, BUNDLE, *PLUGINS]
    assert [f"{folder.name}: {fault}" for folder in folders for fault in metadata_faults(folder)] == []
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    core = project(ROOT)["project"]
    assert (citation["version"], citation["license"]) == (core["version"], core["license"])
    assert citation["authors"] == core["authors"]


def test_files_for_github_and_pre_commit() -> None:
    """They parse, `make` has the targets that they call, and the hooks of pre-commit are what `make lint` calls."""
    makefile = (ROOT / "Makefile").read_text()
    files = sorted(ROOT.glob(".github/**/*.yml"))
    assert [f.name for f in files] == ["bug_report.yml", "publish.yml", "test.yml"]
    workflows = [yaml.safe_load(f.read_text()) for f in files if f.parent.name == "workflows"]
    steps = [step for workflow in workflows for job in workflow["jobs"].values() for step in job["steps"]]
    called = "\n".join(step.get("run", "") for step in steps)
    assert all((ROOT / script).exists() for script in re.findall(r"\.ci/[\w.]+", called))
    assert all(f"\n{target}:" in makefile for target in re.findall(r"make (\S+)", called))
    form = yaml.safe_load((ROOT / ".github/ISSUE_TEMPLATE/bug_report.yml").read_text())
    assert {"command", "doctor"} <= {field["id"] for field in form["body"]}
    [own] = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    lint = re.findall(r"^\t\$\(BIN\)/(.*)$", makefile.partition("\nlint:")[2].partition("\n\n")[0], re.M)
    assert [hook["entry"].removeprefix(".venv/bin/") for hook in own["hooks"]] == lint


def plugin_faults(plugin: Path) -> Iterator[str]:
    """What is wrong with a plugin's package, one line each."""
    data = project(plugin)
    about, own = data["project"], package_of(plugin)
    [(name, target)] = about["entry-points"]["placekit"].items()
    if (about["name"], name, target.partition(":")[0]) != (
        plugin.name,
        plugin.name.removeprefix("placekit-"),
        own.name,
    ):
        yield "the names of folder, distribution, entry point and module differ"
    required = [Requirement(d) for d in about["dependencies"]]
    if CORE not in [r.name for r in required]:
        yield f"it does not depend on {CORE}"
    launcher = {"hatch": {"build": {"targets": {"wheel": {"packages": [own.name, "hydra_plugins"]}}}}}
    if data.get("tool", {}) != (launcher if (plugin / "hydra_plugins").exists() else {}):
        yield "pyproject.toml has tables of tools"
    readme = (plugin / "README.md").read_text()
    headings = HEADINGS.get(plugin.parent.name, HEADINGS["policies"])
    if not readme.startswith(f"# {plugin.name}\n") or re.findall(r"^## (.*)$", readme, re.M) != headings:
        yield f"the headings of README.md are not {headings}"
    if not list((plugin / "tests").glob("test_*.py")) or (plugin / "tests" / "__init__.py").exists():
        yield "no tests, or an __init__.py beside them"
    used = {m.partition(".")[0] for n, path in modules().items() if n.partition(".")[0] == own.name
            for m, _ in imported(path)}  # fmt: skip
    optional = [Requirement(d) for extra in about.get("optional-dependencies", {}).values() for d in extra]
    declared = {r.name.replace("-", "_") for r in [*required, *optional]} | {own.name}
    for undeclared in sorted(u for u in used - declared if u.startswith("placekit_")):
        yield f"imports {undeclared}, and does not depend on it"
    owners: dict[tuple[str, str], set[str]] = {}
    for choice in installed().choices():
        owners.setdefault((choice.group, choice.name), set()).add(choice.distribution)
    for path in own.glob("conf/*/*.yaml"):
        if path.parent.name == "experiment":  # an experiment chooses what its reader has installed
            continue
        for key, chosen in defaults_list(path).items():
            group = key.partition("@")[0] or path.parent.name
            if not owners[group, chosen] & {plugin.name, CORE, *(r.name for r in required)}:
                yield f"{path.name} chooses {group}={chosen}, and the plugin does not depend on the package that has it"


def test_the_packages_of_plugins_agree() -> None:
    assert [f"{plugin.name}: {fault}" for plugin in PLUGINS for fault in plugin_faults(plugin)] == []


def allowed_imports() -> dict[str, set[str]]:
    """The table of CONTRIBUTING.md: package to those that it may import."""
    text = (ROOT / "CONTRIBUTING.md").read_text().partition("## Who may import whom")[2].partition("\n## ")[0]
    rows = [[c.strip() for c in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| ")]
    return {name: {p.strip() for p in may.split(",") if p.strip()} for name, may in rows[1:]}


def layer(module: str) -> str:
    """The package of a module; in the core one of its three layers, and `placekit_core` for its public names."""
    parts = module.split(".")
    return ".".join(parts[:2]) if parts[0] == "placekit_core" and len(parts) > 1 else parts[0]


def modules_of_commands() -> set[str]:
    """Modules in the folders of commands, and those that a command elsewhere names."""
    folders = {package_of(p).name for p in PLUGINS if p.parent.name in ("commands", "development", "papers")}
    found = {m for m in modules() if m.partition(".")[0] in folders}
    return found | {c.command.target.partition(":")[0] for each in installed().commands.values() for c in each}


def test_imports_go_one_way() -> None:
    table, commands = allowed_imports(), modules_of_commands()
    wrong = []
    for name, path in modules().items():
        own = layer(name)
        may = table.get(own, set()) | {own}
        if not own.startswith("placekit_core"):
            may |= table["every plugin"] | (table["modules of commands"] if name in commands else set())
        for module, attribute in imported(path):
            whole = f"{module}.{attribute}"
            target = layer(whole if whole in modules() else module)
            if (
                target.startswith("placekit_")
                and target not in may
                and own not in ("placekit_core", "placekit_core.__main__")
            ):
                wrong.append(f"{name} imports {whole}")
    assert wrong == []


def test_the_table_of_imports_names_what_is_used() -> None:
    """A row that nothing needs any more goes."""
    graph = import_graph()
    for package, may in allowed_imports().items():
        if package.startswith("placekit_") and not package.startswith("placekit_core"):
            reached = {layer(t) for name in graph if layer(name) == package for t in graph[name]}
            assert may <= reached, package


ASK_WHAT_IS_INSTALLED = {
    "placekit_core",  # exports it
    "placekit_core.cli.main",
    "placekit_core.run.api",
    "placekit_cuda.worker",  # another process, which has no registry yet
    "placekit_ray.asynchronous",  # builds the trainer whose updates are made
    "placekit_ray.backend",  # builds another backend
    "placekit_ray.cluster",  # another machine, which has no registry yet
    "placekit_ray.controller",  # another process
    "placekit_ray.worker",  # another process
    "placekit_report",  # builds the run's backend again, to simulate what would change
    "placekit_runtimes.planning.plan",  # called from Python
    "placekit_search.exact",  # builds another policy
    "placekit_training.plan",  # called from Python
    "placekit_search.named_policies",  # builds them
    "placekit_testing.contract",
    "placekit_testing.importers",
    "placekit_testing.registries",
    "placekit_zoo.towers",  # builds another importer
}
"""The modules that may call `installed()`; others get a registry passed."""


def test_a_registry_is_passed_along() -> None:
    asking = {name for name, path in modules().items() if re.search(r"\binstalled\(\)", path.read_text())}
    asking |= {
        name for name, path in modules().items() if "installed" in {attribute for _, attribute in imported(path)}
    }
    assert asking - {"placekit_core.run.registry"} == ASK_WHAT_IS_INSTALLED


def test_there_are_no_circles() -> None:
    assert circles(import_graph()) == []


def test_a_circle_is_found() -> None:
    graph = {"a": frozenset("b"), "b": frozenset("c"), "c": frozenset("a"), "d": frozenset("a"), "e": frozenset("e")}
    assert circles(graph) == [["a", "b", "c"], ["e"]]


def test_public_names_are_there() -> None:
    """`_HOME` and the imports for type checkers are the same list, and every name loads."""
    for package in ("placekit_core", "placekit_scheduling", "placekit_testing"):
        names = lazy_names(package)
        typed = {
            alias.asname or alias.name: node.module
            for node in ast.walk(parsed(modules()[package]))
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(f"{package}.")
            for alias in node.names
        }
        assert names == {k: v for k, v in typed.items() if k in names}, package
        assert set(typed) - set(names) <= {"units"}, package
    for name in lazy_names("placekit_core"):
        assert getattr(placekit_core, name) is not None


def test_core_knows_no_plugin_and_no_library_of_one() -> None:
    for path in (ROOT / "placekit_core").rglob("*.py"):
        tree = parsed(path)
        used = {module.partition(".")[0] for module, _ in imported(path)}
        assert not used & {*(n.replace("-", "_") for n in NAMES), "torch", "numba", "scipy", "pandas", "matplotlib"}, (
            path
        )
        texts = {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
        assert not texts & {"torch", "numba", "loss", "cuda:0"}, path


def test_core_names_nothing_of_a_plugin() -> None:
    """Its messages and docstrings are true where no plugin is installed: no package, command or component of one."""
    commands = [c.command.name for found in installed().commands.values() for c in found if c.distribution != CORE]
    names = [*NAMES, *(n.replace("-", "_") for n in NAMES), *(f"placekit {name}" for name in commands)]
    names += [f"{e.kind}={e.component.name}" for e in installed().all()]
    pattern = re.compile(rf"(?<![\w-])({'|'.join(map(re.escape, names))})(?![\w-])")
    found = {p.name: pattern.findall(p.read_text()) for p in (ROOT / "placekit_core").rglob("*.py")}
    assert {name: hits for name, hits in found.items() if hits} == {}


def test_test_files_have_unique_names() -> None:
    files = [p.name for p in [*ROOT.glob("tests/test_*.py"), *ROOT.glob("plugins/*/*/tests/test_*.py")]]
    assert len(files) == len(set(files))


COMPILED = {"simulate", "run_earliest", "run_favourites", "explore"}
"""Kernels that are compiled by numba: each is one loop, whose parts would have to pass its twenty arrays on."""


def test_functions_fit_on_a_screen() -> None:
    long = {
        node.name: f"{p.relative_to(ROOT)}: {node.name} has {node.end_lineno - node.lineno + 1} lines"
        for p in tracked() if p.suffix == ".py"
        for node in ast.walk(parsed(p))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (node.end_lineno or 0) - node.lineno >= 60
    }  # fmt: skip
    assert [text for name, text in long.items() if name not in COMPILED] == []
    assert set(long) >= COMPILED, "names of functions that are short, or gone"


def test_no_registry_host_and_no_home_directory_in_files() -> None:
    forbidden = re.compile(r"(index-url|pypi\.org|files\.pythonhosted|/" + r"work/main|/" + r"root/)")
    hits = [
        f"{p.relative_to(ROOT)}: {m.group()}"
        for p in tracked()
        if p.suffix in (".py", ".md", ".toml", ".txt", ".yaml", ".yml", ".cff", ".json", "")
        and p.stat().st_size < 2**20
        for m in [forbidden.search(p.read_text(errors="replace"))]
        if m and p.name != "test_repo.py"
    ]
    assert not hits


def run_python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_importing_the_core_is_light() -> None:
    heavy = ("torch", "numba", "hydra", "pydantic", "numpy")
    code = f"import placekit_core, sys; print([m for m in {heavy} if m in sys.modules])"
    assert run_python(code).strip() == "[]"


@pytest.mark.parametrize(
    "argv",
    [["--help"], ["plugins"], ["run", "--help"], ["run", "policy=etf", "--help"], ["run", "--cfg", "job"]],
    ids=" ".join,
)
def test_listings_are_light(argv: list[str], tmp_path: Path) -> None:
    """They import nothing heavy, and build no model of options; and as they end, Python looks through no objects for garbage."""
    code = f"""
import gc, os, sys
os.chdir({str(tmp_path)!r})
sys.argv = ["placekit", *{argv!r}]
from placekit_core.cli.main import script
code = script()
heavy = {{"torch", "numba"}} if "--cfg" in sys.argv else {{"torch", "numba", "hydra", "omegaconf"}}
heavy |= set() if "run" in sys.argv else {{"numpy"}}
from placekit_core import Options
from placekit_core.contracts.files import FileModel
from placekit_core.run.config import RunConfig
built = [m for m in (RunConfig, *FileModel.__subclasses__(), *Options.__subclasses__()) if m.__pydantic_complete__]
print("CODE", code, "HEAVY", heavy & set(sys.modules), "BUILT", built * ("--cfg" not in sys.argv), gc.get_freeze_count() > 0)
"""
    assert run_python(code).strip().splitlines()[-1] == "CODE 0 HEAVY set() BUILT [] True"


def test_a_run_imports_only_what_it_needs(tmp_path: Path) -> None:
    """A run with policy `heft` needs neither frameworks nor plots, nor the loops of backends and policies that it has not."""
    code = f"""
import sys
sys.argv = ["placekit", "run", "workload=chainmm_small", "policy=heft", "budget.evaluations=2", "run_dir={tmp_path}/r"]
from placekit_core.cli.main import main
assert main() == 0
unwanted = ("torch", "pandas", "matplotlib", "ray", "placekit_search.walk", "placekit_pipeline.pipeline_kernel")
print("HEAVY", [m for m in unwanted if m in sys.modules])
"""
    assert run_python(code).strip().splitlines()[-1] == "HEAVY []"


def test_a_search_loads_no_loops_that_it_does_not_call() -> None:
    """Each of these modules compiles when it is imported, some for minutes; policy `portfolio` has starts from all plugins."""
    code = """
import sys
from placekit_core import installed
for kind, name in (("policy", "portfolio"), ("policy", "m_etf"), ("backend", "simulator"), ("backend", "pipeline")):
    installed().build(kind, name, {})
kernels = [f"placekit_pipeline.{name}" for name in ("pipeline_kernel", "max_load_kernel", "blocking_kernel", "chain_tables")]
print("HEAVY", [m for m in ("torch", "scipy.optimize", "matplotlib", *kernels) if m in sys.modules])
"""
    assert run_python(code).strip().splitlines()[-1] == "HEAVY []"


def test_every_component_of_this_repository_loads() -> None:
    assert installed().broken == []
    for entry in installed().all():
        cls = entry.load()
        assert cls.name == entry.component.name
        assert cls.options_class is entry.component.config
        assert entry.component.summary


def contract_tests(folder: Path) -> set[tuple[str, str]]:
    """(contract, name) for each name in a test class that subclasses the contract, or in what it takes from its module."""
    found = set()
    for path in folder.glob("test_*.py"):
        module = parsed(path)
        body = module.body
        names = {id(node): {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} for node in body}
        given = {
            target.id: names[id(node)]
            for node in body if isinstance(node, ast.Assign)
            for target in node.targets if isinstance(target, ast.Name)
        }  # fmt: skip
        for node in body:
            for base in node.bases if isinstance(node, ast.ClassDef) else ():
                used = names[id(node)].union(*(given.get(name, set()) for name in names[id(node)]))
                found |= {(base.id, name) for name in used if isinstance(base, ast.Name)}
    return found


IN_OTHER_PROCESSES = {"asynchronous"}
"""Other processes build these again from what is installed there, as the kit's fakes are not: they have tests of their own."""


def test_every_component_of_this_repository_is_tested_by_its_contract() -> None:
    folders = {p.name: p / "tests" for p in PLUGINS}
    tested = {name: contract_tests(folder) for name, folder in folders.items()}
    for entry in (
        e for e in installed().all() if e.distribution in folders and e.component.name not in IN_OTHER_PROCESSES
    ):
        contracts = {f"{entry.kind.capitalize()}Contract", f"Learnable{entry.kind.capitalize()}Contract"}
        name = entry.component.target.partition(":")[2]
        assert {(c, name) for c in contracts} & tested[entry.distribution], f"{entry.kind} {entry.component.name}"


def test_changelog_names_the_version() -> None:
    version = project(ROOT)["project"]["version"]
    assert f"## {version}" in (ROOT / "CHANGELOG.md").read_text()
