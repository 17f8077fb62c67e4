"""A first run gets help: other processes compile what it will need."""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, ClassVar

import pytest
from placekit_scheduling import first_run
from placekit_scheduling.bounds.makespan import compile_bounds
from placekit_scheduling.first_run import ALONE, GROUP, end_help, main, start_helpers

COMPILED = list[str]()


def compile_something() -> None:
    COMPILED.append("something")


def compile_nothing() -> None:
    raise RuntimeError("not installed as it should be")


HERE = "test_first_run"
ENTRIES = [
    EntryPoint("2-broken", f"{HERE}:compile_nothing", GROUP),
    EntryPoint("1-module", HERE, GROUP),
    EntryPoint("4-absent", "placekit_absent.kernel", GROUP),
    EntryPoint("3-function", f"{HERE}:compile_something", GROUP),
]


class Started:
    """Stands for subprocess.Popen, and remembers what it was asked for."""

    all: ClassVar[list[Started]] = []

    def __init__(self, command: list[str], env: dict[str, str], **_: Any) -> None:
        self.command, self.env, self.ended = command, env, list[str]()
        self.all.append(self)

    def kill(self) -> None:
        self.ended.append("kill")

    def wait(self) -> None:
        self.ended.append("wait")


@pytest.fixture
def entries(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setitem(sys.modules, HERE, sys.modules[__name__])
    monkeypatch.setattr(first_run, "entry_points", lambda group: ENTRIES if group == GROUP else [])
    monkeypatch.setattr(subprocess, "Popen", Started)
    monkeypatch.setattr(atexit, "register", lambda *_: None)
    monkeypatch.delenv(ALONE, raising=False)
    monkeypatch.setattr(first_run, "_helpers", [])
    monkeypatch.setattr(first_run, "_lock_files", [])
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    first_run._entries.cache_clear()
    Started.all.clear()
    COMPILED.clear()
    yield
    first_run._entries.cache_clear()
    for file in first_run._lock_files:
        os.close(file)


@pytest.mark.usefixtures("entries")
def test_each_other_core_begins_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_run, "usable_cores", lambda: 3)
    start_helpers("placekit_absent")
    start_helpers(HERE)
    assert [s.command[4] for s in Started.all] == ["1", "2"], "once, whatever is compiled next"
    assert all(s.command[5] == str(os.getpid()) and s.command[6:] == sys.path and s.env[ALONE] for s in Started.all)


@pytest.mark.usefixtures("entries")
def test_one_process_of_a_computer_has_help(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import fcntl

    monkeypatch.setattr(first_run, "usable_cores", lambda: 4)
    with (tmp_path / f"placekit-compiling-{os.getuid()}").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        start_helpers("placekit_absent")
        assert not Started.all
    start_helpers("placekit_absent")
    assert Started.all


@pytest.mark.usefixtures("entries")
def test_help_ends_before_something_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_run, "usable_cores", lambda: 3)
    start_helpers("placekit_absent")
    end_help()
    assert [s.ended for s in Started.all] == [["kill", "wait"]] * 2
    end_help()


@pytest.mark.usefixtures("entries")
def test_help_compiles_all_from_its_place_on_and_goes_with_its_parent() -> None:
    main("2", str(os.getppid()))
    assert COMPILED == ["something"]  # and neither the broken nor the absent one ended it
    main("2", "1" if os.getppid() != 1 else "2")
    assert COMPILED == ["something"]


def test_help_runs_where_the_current_folder_has_modules_of_the_same_names(tmp_path: Any) -> None:
    """Python would import them from there, as `python -c` looks into the current folder first."""
    (tmp_path / "placekit_scheduling.py").write_text("raise SystemExit('ran a file of the current folder')")
    command = [sys.executable, "-I", "-c", first_run._COMMAND, "0", "1", *sys.path]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_what_default_runs_compile_is_named_in_the_order_of_need() -> None:
    found = first_run._entries()
    assert [e.name for e in found if e.module.startswith("placekit_scheduling")] == ["2-list-scheduling", "5-bounds"]
    assert len({e.name for e in found}) == len(found)
    assert compile_bounds in [e.load() for e in found]


def test_the_bounds_of_the_warm_up_problem_are_compiled_for_all_others() -> None:
    """Arrays of other strides would be compiled anew: a machine of several kinds of devices, or of one."""
    from placekit_scheduling.bounds import kernel, label_kernel
    from placekit_scheduling.bounds.makespan import all_bounds
    from placekit_testing import fakes

    compile_bounds()
    functions = [kernel.raise_heads, kernel.restrict, kernel.merge, label_kernel.detours, label_kernel.raise_by_trees]
    for problem in (fakes.mixed(), fakes.diamond(), fakes.tight()):
        all_bounds(problem)
    assert [len(f.signatures) for f in functions] == [1] * len(functions)


def test_the_scheduler_warms_up_with_favourites_and_without() -> None:
    from placekit_scheduling.list_scheduling.scheduler import warm_up

    warm_up()
    warm_up(favourites=True)
