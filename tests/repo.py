"""What there is in this repository: its packages, and which module imports which. For tests of its rules."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli")

ROOT = Path(__file__).resolve().parent.parent
PLUGINS = sorted(p.parent for p in ROOT.glob("plugins/*/*/pyproject.toml") if p.parent.name != "placekit")
NAMES = [p.name for p in PLUGINS]
BUNDLE = ROOT / "plugins/bundles/placekit"


def project(folder: Path) -> dict[str, Any]:
    """The pyproject.toml of a package."""
    return tomllib.loads((folder / "pyproject.toml").read_text())


def package_of(plugin: Path) -> Path:
    """The folder with the modules of a plugin."""
    return plugin / plugin.name.replace("-", "_")


@cache
def tracked() -> tuple[Path, ...]:
    """The files of the repository."""
    names = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    ).stdout.split("\n")
    return tuple(ROOT / n for n in names if n and (ROOT / n).is_file())


@cache
def modules() -> dict[str, Path]:
    """Every module of placekit, by its dotted name."""
    found = {}
    for package in [ROOT / "placekit_core", *map(package_of, PLUGINS)]:
        for path in package.rglob("*.py"):
            if "templates" not in path.parts:
                name = ".".join(path.relative_to(package.parent).with_suffix("").parts)
                found[name.removesuffix(".__init__")] = path
    return found


@cache
def lazy_names(package: str) -> dict[str, str]:
    """Name to module, of what a package re-exports at first use (`_HOME` in its `__init__.py`)."""
    found = {}
    for node in ast.parse(modules()[package].read_text()).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "_HOME":
            for key, value in ast.literal_eval(node.value).items():
                if f"{package}.{key}" in modules():  # module to names
                    found |= dict.fromkeys(value.split(), f"{package}.{key}")
                else:  # name to module
                    found[key] = f"{package}.{value}"
    return found


@cache
def parsed(path: Path) -> ast.Module:
    """The code of a file."""
    return ast.parse(path.read_text())


@cache
def imported(path: Path) -> tuple[tuple[str, str], ...]:
    """(module, name) of every import in a file, lazy ones and those for type checking included; the name may be ''."""
    return tuple(imports_of(parsed(path)))


def imports_of(tree: ast.AST) -> list[tuple[str, str]]:
    """(module, name) of every import in parsed code."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(a.name, "") for a in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found += [(node.module, a.name) for a in node.names]
    return found


@cache
def import_graph() -> dict[str, frozenset[str]]:
    """The modules of placekit that each imports. A re-exported name counts for the module that it is in."""
    graph = {}
    for name, path in modules().items():
        reached = set()
        for module, attribute in imported(path):
            if f"{module}.{attribute}" in modules():
                reached.add(f"{module}.{attribute}")
            elif module in modules():
                own = lazy_names(module) if "." not in module else {}
                reached.add(own.get(attribute, module))
        if "." not in name:
            reached -= set(lazy_names(name).values())  # what it re-exports is no use of its own
        graph[name] = frozenset(reached - {name})
    return graph


def circles(graph: dict[str, frozenset[str]]) -> list[list[str]]:
    """The sets of modules that reach each other."""
    reach: dict[str, set[str]] = {}
    for start in graph:
        seen: set[str] = set()
        todo = list(graph[start])
        while todo:
            module = todo.pop()
            if module not in seen:
                seen.add(module)
                todo += graph.get(module, ())
        reach[start] = seen
    found = {frozenset(m for m in graph if m in reach[n] and n in reach[m]) for n in graph if n in reach[n]}
    return sorted(sorted(c) for c in found)


def script(name: str) -> ModuleType:
    """A script of docs/, which is no package."""
    spec = importlib.util.spec_from_file_location(f"placekit_docs_{name}", ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
