"""`pip install placekit` in a fresh environment, from wheels: a first run, and a third-party plugin with its tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.repo import BUNDLE, PLUGINS, ROOT
from tests.venvs import closure, install, make_venv, run

BUILD = """
import os, sys
from hatchling.build import build_wheel
for package in sys.argv[2:]:
    os.chdir(package)
    build_wheel(sys.argv[1])
"""  # in one process: pip starts three for each package
OURS = {p.name: p for p in PLUGINS} | {"placekit": BUNDLE, "placekit-core": ROOT}


def build(names: list[str], folder: Path) -> list[Path]:
    """Wheels of these packages of the repository, by the function of their build backend that pip would call for each."""
    subprocess.run([sys.executable, "-c", BUILD, str(folder), *(str(OURS[name]) for name in names)], check=True)
    return sorted(folder.glob("*.whl"))


@pytest.mark.slow
@pytest.mark.long
def test_a_first_run_after_pip_install_placekit(tmp_path: Path) -> None:
    needs = closure("placekit")
    ours = sorted(needs & OURS.keys())
    wheels = build(ours, tmp_path / "wheels")
    assert len(wheels) == len(ours)
    # what others publish is linked from the running environment, for there is no network
    python = make_venv(tmp_path / "venv", needs - OURS.keys() | closure("pip", "hatchling", "editables"))
    install(python, *wheels)
    run(python, "pip", "check")  # every requirement that is declared is there, in a version that will do
    folder = tmp_path / "work"
    folder.mkdir()
    where = run(python, "python", "-c", "import placekit_core; print(placekit_core.__file__)", cwd=folder).stdout
    assert Path(where.strip()).is_relative_to(tmp_path)
    assert "seed 0, simulated" in run(python, "placekit", "run", "budget.evaluations=200", cwd=folder).stdout
    assert run(python, "placekit", "doctor", cwd=folder).returncode == 0
    run(python, "placekit", "new-plugin", "policy", "mine", cwd=folder)
    install(python, folder / "placekit-mine", editable=True)
    assert "mine" in run(python, "placekit", "run", "+policy=mine", "workload=mlp", cwd=folder).stdout
    run(python, "pytest", "-q", str(folder / "placekit-mine"), cwd=folder)
