"""The way from a command line or a call into the pipeline: short, and the same for both; broken plugins and streams."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

import placekit_core
from placekit_core import GraphBuilder, place
from placekit_core.cli.main import main
from placekit_core.run import pipeline
from placekit_core.run.assembly import Assembly

CORE = str(Path(placekit_core.__file__).parent)


class Entered(BaseException):
    """The pipeline begins."""


def way_into_the_pipeline(enter: Callable[[], object]) -> set[CodeType]:
    """The core's named functions that are called until `pipeline.run` is entered, discovery of plugins included.

    The body of a class runs once, at the import of its module, and is not a function: its code has no fast locals.
    """
    seen: set[CodeType] = set()

    def profile(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        function = code.co_flags & inspect.CO_OPTIMIZED and not code.co_name.startswith("<")
        if event == "call" and function and code.co_filename.startswith(CORE):
            if code is pipeline.run.__code__:
                sys.setprofile(None)
                raise Entered
            seen.add(code)

    sys.setprofile(profile)
    try:
        enter()
    except Entered:
        pass
    finally:
        sys.setprofile(None)
    return seen


def test_the_way_is_short_and_python_takes_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    b = GraphBuilder("net")
    b.add("a", outputs=[4], flops=1e9)
    graph = b.build()
    code = (
        "import sys, tests.test_front_door as t; sys.argv = ['placekit', 'run', '+policy=etf', 'workload=chainmm_small'];"
        "found = t.way_into_the_pipeline(t.main); print(len(found), len({c.co_filename for c in found}))"
    )
    root = Path(__file__).parent.parent
    shown = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(root)},
    ).stdout
    functions, files = map(int, shown.split())
    assert functions <= 90
    assert files <= 25
    called = way_into_the_pipeline(lambda: place(graph, policy="etf"))
    assert {"assemble", "_complete"} <= {code.co_name for code in called}


def test_a_request_from_python_and_from_a_command_line_is_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found: list[Assembly] = []

    def run(assembly: Assembly, *_: Any, **__: Any) -> Any:
        found.append(assembly)
        raise Entered

    monkeypatch.setattr("placekit_core.run.pipeline.run", run)
    monkeypatch.setattr("placekit_core.run.api.run", run)
    monkeypatch.setattr("sys.argv", ["placekit", "run", "importer=mlp", "importer.batch=8", "policy=etf", "seed=3"])
    for enter in (main, lambda: place("mlp", batch=8, policy="etf", seed=3, run_dir=tmp_path / "out")):
        with pytest.raises(Entered):
            enter()
    assert found[0].config.model_copy(update={"run_dir": ""}) == found[1].config.model_copy(update={"run_dir": ""})


PLUGINS = {
    "no module": ("import-with-dash", "", "names no module"),
    "sys.exit in a hook": (
        "odd", "import sys, placekit_core as p\n@p.hookimpl\ndef placekit_policies(): sys.exit(4)\n", "SystemExit: 4",
    ),
    "BaseException at import": ("odd", "class X(BaseException): pass\nraise X('no')\n", "X: no"),
    "prints at import": ("odd", "print('noise')\n", ""),
}  # fmt: skip


def placekit(folder: Path, *arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own, with a plugin that is in `folder`."""
    env = {**os.environ, "PYTHONPATH": str(folder), **more.pop("env", {})}
    return subprocess.run(
        [sys.executable, "-m", "placekit_core", *arguments], text=True, check=False, env=env, timeout=120, **more
    )


@pytest.mark.parametrize("case", PLUGINS)
def test_a_broken_plugin_is_listed_and_everything_else_works(case: str, tmp_path: Path) -> None:
    module, code, reason = PLUGINS[case]
    info = tmp_path / "placekit_odd-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: placekit-odd\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[placekit]\nodd = {module}\n")
    (tmp_path / "odd.py").write_text(code)
    done = placekit(tmp_path, "plugins", capture_output=True)
    assert "noise" not in done.stdout
    assert "simulator" in done.stdout
    assert done.returncode == int(bool(reason))
    assert reason in done.stdout


RUN = ["run", "workload=chainmm_small", "policy=etf", "baselines=[]", "log=[]", "run_dir=out"]


def test_a_reader_that_leaves_costs_no_result(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)  # nobody reads what is written
    done = placekit(tmp_path, *RUN, cwd=tmp_path, stdout=write, stderr=write)
    assert (done.returncode, (tmp_path / "out" / "result.json").exists()) == (0, True)


def test_commands_to_paste_are_quoted(tmp_path: Path) -> None:
    done = placekit(
        tmp_path, *RUN[:-2], "run_dir=a b;$HOME", cwd=tmp_path, capture_output=True, env={"PLACEKIT_QUIET": ""}
    )
    assert "next: open 'a b;$HOME/report.html'" in done.stderr
    again = placekit(tmp_path, *RUN[:-1], "run_dir=a b;$HOME", cwd=tmp_path, capture_output=True)
    assert "choose another run_dir" in again.stderr
