"""Ray for the tests, started once, and an installed backend that does harm.

Workers import what they evaluate on by its name. So the backend `harmful` is a plugin: its module lies beside the tests, its
metadata in a folder of the session, and both are on the path of Ray's processes.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CPUS = 6
"""CPUs that Ray thinks it has: more than there are, so that workers need not wait for each other."""

sys.path.insert(0, str(HERE))  # pytest's import mode `importlib` does not put this folder on the path


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of processes that know the plugin `harmful`."""
    folder = tmp_path_factory.mktemp("harmful")
    metadata = folder / "placekit_harmful-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: placekit-harmful\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[placekit]\nharmful = placekit_harmful\n")
    path = [str(HERE), str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"RAY_AUTH_MODE": "disabled", "PYTHONPATH": os.pathsep.join(path)}


@pytest.fixture(scope="session")
def rays(environment: dict[str, str]) -> Iterator[Callable[[], None]]:
    """Starts Ray, unless it runs; the end of the session ends it."""
    ray = pytest.importorskip("ray")

    def start() -> None:
        if not ray.is_initialized():
            with pytest.MonkeyPatch.context() as patch:
                patch.delenv("RAY_ADDRESS", raising=False)
                for name, value in environment.items():
                    patch.setenv(name, value)
                ray.init(
                    address="local",
                    num_cpus=CPUS,
                    include_dashboard=False,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                )

    yield start
    ray.shutdown()


@pytest.fixture
def local(rays: Callable[[], None]) -> None:
    """Ray on this computer alone."""
    rays()


@pytest.fixture
def harmful(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the plugin `harmful` in this process."""
    from placekit_testing.registries import use_registry

    from placekit_core.run.registry import discover

    for folder in environment["PYTHONPATH"].split(os.pathsep)[:2]:
        monkeypatch.syspath_prepend(folder)
    importlib.invalidate_caches()
    found = discover()
    assert ("backend", "harmful") in found.entries, found.broken
    use_registry(monkeypatch, found)


@pytest.fixture
def processes() -> Callable[[str], list[int]]:
    """The ids of the processes of actors whose class begins so, in a Ray that this process has started."""
    return _processes


def _processes(kind: str) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            title = (folder / "cmdline").read_bytes()
            if title.startswith(f"ray::{kind}".encode()) and _parent(_parent(int(folder.name))) == os.getpid():
                found.append(int(folder.name))
    return found


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
