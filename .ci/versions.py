"""Whether placekit works with other versions of Python and of what it requires: without torch, in fresh environments.

    python .ci/versions.py [--python python3.10 python3.13 ...] [--lowest] [--keep FOLDER]

For each Python: an environment with the core and the plugins that need no torch, and with the newest versions of their
requirements that pip finds, or with `--lowest` the lowest ones that they allow; then fast tests of these packages. A row per
Python says which versions were installed and how the tests ended; the exit code is 1 if one failed. Needs a package registry, and
Python 3.11 or later to run itself; minutes per Python.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import tomllib
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
PLUGINS = (
    "libraries/placekit-scheduling", "libraries/placekit-layers", "libraries/placekit-partitioning", "backends/placekit-sim",
    "groupers/placekit-grouping", "policies/placekit-heuristics", "policies/placekit-search", "importers/placekit-formats",
    "importers/placekit-einsum", "reporting/placekit-report", "commands/placekit-inspect",
    "development/placekit-testing", "commands/placekit-doctor",
)  # fmt: skip
TESTS = ("tests/test_graph.py", "tests/test_cluster.py", "tests/test_files.py", "tests/test_costs.py", "tests/test_results.py",
         "tests/test_evaluator.py", "plugins/backends/placekit-sim", "plugins/groupers/placekit-grouping",
         "plugins/policies/placekit-heuristics", "plugins/importers/placekit-formats")  # fmt: skip
SHOWN = ("numpy", "pydantic", "numba", "scipy", "pluggy", "hydra-core", "rich")
TOOLS = ("hatchling", "editables", "setuptools", "wheel")
TESTING = ("pytest", "hypothesis", "pytest-timeout", "packaging")


def lowest(folders: list[Path]) -> list[str]:
    """A constraint for each requirement with a lower limit: this version, with any last part."""
    found = {}
    for folder in folders:
        for text in tomllib.loads((folder / "pyproject.toml").read_text())["project"]["dependencies"]:
            needed = Requirement(text)
            limits = [s.version for s in needed.specifier if s.operator in (">=", "~=")]
            if limits and not needed.name.startswith("placekit"):
                found[needed.name] = f"{needed.name}=={limits[0]}.*"
    return sorted(found.values())


def check(python: str, low: bool, folder: Path) -> str:
    """Install and test; returns a row."""

    def call(*command: str) -> str:
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        (folder / "log").open("a").write(f"$ {' '.join(command)}\n{done.stdout}\n")
        if done.returncode:
            raise RuntimeError(" ".join(done.stdout.strip().splitlines()[-2:]) or f"exit code {done.returncode}")
        return done.stdout

    folders = [ROOT, *(ROOT / "plugins" / p for p in PLUGINS)]
    own = str(folder / "venv" / "bin" / "python")
    try:
        call(python, "-m", "venv", str(folder / "venv"))
        constraints = folder / "constraints.txt"
        constraints.write_text("\n".join(lowest(folders) if low else []) + "\n")
        pip = (own, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        call(*pip, *TOOLS)
        editable = [x for f in folders for x in ("-e", str(f))]
        call(*pip, "--no-build-isolation", "-c", str(constraints), *editable, *TESTING)
        listed = dict(line.split("==") for line in call(own, "-m", "pip", "freeze").splitlines() if "==" in line)
        versions = ", ".join(f"{name} {listed[name]}" for name in SHOWN if name in listed)
    except RuntimeError as e:
        return f"{python}: not installed: {e}"
    try:
        said = call(own, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow and not gpu", *TESTS)
    except RuntimeError as e:
        return f"{python}: {versions}: FAILED: {e}"
    return f"{python}: {versions}: {said.strip().splitlines()[-1]}"


def main() -> int:
    """Print a row per Python. Returns 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--python", nargs="+", default=[sys.executable])
    parser.add_argument("--lowest", action="store_true", help="the lowest versions that are allowed, not the newest")
    parser.add_argument("--keep", type=Path, help="keep environments and logs in this folder")
    given = parser.parse_args()
    failed = False
    with tempfile.TemporaryDirectory() as temporary:
        for i, python in enumerate(given.python):
            folder = (given.keep or Path(temporary)) / str(i)
            folder.mkdir(parents=True)
            row = check(python, given.lowest, folder)
            failed |= ": not installed: " in row or ": FAILED: " in row
            print(row, flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
