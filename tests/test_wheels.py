"""What `make dist` builds: its files and metadata; installed in a fresh environment, a first run and a third-party plugin."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import pytest

from tests.repo import BUNDLE, PLUGINS, ROOT, project, tracked
from tests.venvs import closure, install, link, make_venv, run, site_of

FOLDERS = {p.name: p for p in PLUGINS} | {"placekit": BUNDLE, "placekit-core": ROOT}
PACKAGES = {name: name.replace("-", "_") for name in FOLDERS if name != "placekit"}
"""The package of each distribution; the metapackage `placekit` has none."""


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all source archives and wheels."""
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, str(ROOT / ".ci/dist.py"), str(folder)], check=True, stdout=subprocess.DEVNULL)
    return folder


def archive_faults(dist: Path, name: str) -> Iterator[str]:
    """What the wheel and the source archive of a distribution lack."""
    folder, stem = FOLDERS[name], f"{name.replace('-', '_')}-{project(FOLDERS[name])['project']['version']}"
    with zipfile.ZipFile(dist / f"{stem}-py3-none-any.whl") as wheel:
        built = set(wheel.namelist())
        licence = wheel.read(f"{stem}.dist-info/licenses/LICENSE").decode()
        metadata = wheel.read(f"{stem}.dist-info/METADATA").decode()
    with tarfile.open(dist / f"{stem}.tar.gz") as source:
        sources = {n.removeprefix(f"{stem}/") for n in source.getnames()}
    ours = [p.relative_to(folder) for p in tracked() if p.is_relative_to(folder)]
    code = {p.as_posix() for p in ours if p.parts[0] in (PACKAGES.get(name), "hydra_plugins")}
    yield from (f"{file} is not in the wheel" for file in sorted(code - built))
    wanted = code | {"LICENSE", "README.md", "pyproject.toml"}
    yield from (f"{file} is not in the source archive" for file in sorted(wanted - sources))
    if licence != (ROOT / "LICENSE").read_text():
        yield "the licence is another"
    yield from (f"its description has the link {link}" for link in re.findall(r"\]\((?!https?:)[^)]*\)", metadata))
    for line in ("License-Expression: Apache-2.0", "License-File: LICENSE", "Author: the placekit authors"):
        if f"{line}\n" not in metadata:
            yield f"its metadata lack {line!r}"


def test_relative_links_become_text() -> None:
    convert = runpy.run_path(str(ROOT / ".ci/dist.py"))["without_relative_links"]
    assert convert("[page](../docs/a.md#b), [in\ntwo lines](#here)") == "page, in\ntwo lines"
    assert convert("![A picture](docs/a.svg)") == "A picture"
    for kept in ("[site](https://example.org/a.html)", "`f[i](x)`", "- [ ] (a.b)"):
        assert convert(kept) == kept


@pytest.mark.slow
def test_archives_are_complete(dist: Path) -> None:
    assert len(list(dist.iterdir())) == 2 * len(FOLDERS)
    assert [f"{name}: {fault}" for name in FOLDERS for fault in archive_faults(dist, name)] == []


@pytest.fixture
def python(dist: Path, tmp_path: Path) -> Path:
    """The python of a fresh environment into which pip installed `placekit`.

    What others publish is linked from the running environment, for there is no network.
    """
    python = make_venv(tmp_path / "venv", closure("placekit", "pip", "hatchling", "editables") - FOLDERS.keys())
    install_from(dist, python, "placekit")
    return python


def install_from(dist: Path, python: Path, requirement: str) -> None:
    """What a user of the wheels types."""
    run(python, "pip", "install", "--quiet", "--no-index", "--find-links", str(dist), requirement)
    run(python, "pip", "check")  # every requirement that is declared is there, in a version that will do


@pytest.mark.slow
@pytest.mark.long
def test_a_first_run_after_pip_install_placekit(dist: Path, python: Path, tmp_path: Path) -> None:
    """With the requirements of `placekit` alone; then the rest is installed, too."""
    assert "seed 0, simulated" in run(python, "placekit", "run", "budget.evaluations=200", cwd=tmp_path).stdout
    for name in closure("placekit[all]") - FOLDERS.keys():
        link(distribution(name), site_of(python))
    install_from(dist, python, "placekit[all]")
    code = f"import {', '.join(PACKAGES.values())}; print(placekit_core.__file__)"
    assert Path(run(python, "python", "-c", code, cwd=tmp_path).stdout.strip()).is_relative_to(tmp_path)


@pytest.mark.slow
@pytest.mark.long
def test_a_third_party_plugin_beside_wheels(python: Path, tmp_path: Path) -> None:
    assert run(python, "placekit", "doctor", cwd=tmp_path).returncode == 0
    run(python, "placekit", "new-plugin", "policy", "mine", cwd=tmp_path)
    install(python, tmp_path / "placekit-mine", editable=True)
    assert "mine" in run(python, "placekit", "run", "+policy=mine", "workload=mlp", cwd=tmp_path).stdout
    run(python, "pytest", "-q", str(tmp_path / "placekit-mine"), cwd=tmp_path)
