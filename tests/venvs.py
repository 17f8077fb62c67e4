"""Virtual environments for tests that really install packages.

`make_venv(folder)` sees everything that the running environment has, editable packages included; `make_venv(folder,
closure(...))` sees exactly the distributions that are named, linked from the running environment. Neither downloads.
"""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = {"placekit": "placekit_core.cli.main:script", "pytest": "pytest:main", "pip": "pip._internal.cli.main:main"}


def make_venv(folder: Path, distributions: Iterable[str] | None = None) -> Path:
    """A virtual environment in `folder`; returns its python. `placekit`, `pytest` and `pip` are beside it."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    if distributions is None:
        base = sysconfig.get_path("purelib")  # addsitedir reads the .pth files there, which plain lines would not
        (site_of(python) / "running.pth").write_text(f"import site; site.addsitedir({base!r})\n")
    else:
        for name in distributions:
            link(importlib.metadata.distribution(name), site_of(python))
    for name, target in SCRIPTS.items():
        module, _, function = target.partition(":")
        script = folder / "bin" / name
        script.write_text(f"#!{python}\nimport sys\nfrom {module} import {function}\nsys.exit({function}())\n")
        script.chmod(0o755)
    return python


def site_of(python: Path) -> Path:
    """The site-packages of a virtual environment."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return python.parent.parent / "lib" / version / "site-packages"


def install(python: Path, *sources: Path | str, editable: bool = False) -> None:
    """pip-install folders into the environment: built by its hatchling, dependencies must be there already."""
    flag = ["-e"] if editable else []
    run(python, "pip", "install", "--quiet", "--no-deps", *(x for s in sources for x in [*flag, str(s)]))


def run(
    python: Path, command: str, *arguments: str, cwd: Path | None = None, code: int | None = 0, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run a command of the environment, `python` included. Fails unless it exits with `code`; None: any will do."""
    script = python.parent / command
    done = subprocess.run(
        [str(script), *arguments], cwd=cwd, capture_output=True, text=True, env={**environment(python), **env}
    )
    assert code is None or done.returncode == code, f"{command} {' '.join(arguments)}\n{done.stdout}\n{done.stderr}"
    return done


def environment(python: Path) -> dict[str, str]:
    """Environment variables as in a shell that has activated it; pip stays offline."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PYTEST", "COV", "PIP_", "VIRTUAL_ENV"))}
    path = f"{python.parent}{os.pathsep}{os.environ.get('PATH', '')}"
    pip = {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "false", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    # one width for every table, whoever runs the tests
    return {**kept, **pip, "PATH": path, "VIRTUAL_ENV": str(python.parent.parent), "COLUMNS": "120"}


def closure(*requirements: str) -> set[str]:
    """Names of the distributions that these requirements declare, with theirs, markers and extras evaluated."""
    found: set[str] = set()
    seen: set[tuple[str, str]] = set()
    todo = [Requirement(r) for r in requirements]
    while todo:
        wanted = todo.pop()
        name = canonicalize_name(wanted.name)
        found.add(name)
        for extra in ["", *wanted.extras]:
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            todo += [r for r in _requirements(name) if r.marker is None or r.marker.evaluate({"extra": extra})]
    return found


@cache
def _requirements(name: str) -> list[Requirement]:
    return [Requirement(r) for r in importlib.metadata.requires(name) or ()]


def link(distribution: importlib.metadata.Distribution, site: Path) -> None:
    """Make one distribution of the running environment importable in `site`: its files, not those beside them.

    An editable one has its source folder put on the path, and its metadata linked.
    """
    files = [Path(f) for f in distribution.files or ()]
    paths = [f for f in files if f.suffix == ".pth" and len(f.parts) == 1]
    base = Path(str(distribution.locate_file("")))
    for path in paths:
        (site / path.name).write_text((base / path).read_text())
    packages = {f.parent for f in files if f.name == "__init__.py"}
    for file in files:
        if file.parts[0] in ("..", "__pycache__") or file in paths or not (base / file).exists():
            continue
        # the outermost folder that nobody else installs into: a package, or the metadata
        whole = next((p for p in [*reversed(file.parents), file] if p in packages or p.suffix == ".dist-info"), file)
        target = site / whole
        if not target.is_symlink():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(base / whole)
