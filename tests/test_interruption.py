"""Signals that end a run: what was found is kept, whatever comes, and whoever looks."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from placekit_core.run import interruption
from placekit_core.run.interruption import Interruption, end_signals

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
RUN = [
    "run",
    "workload=chainmm_small",
    "policy=annealing",
    "budget.evaluations=120000",
    "checkpoint_s=0",
    "run_dir=run",
]


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Nothing of a test stays."""
    before = {s: signal.getsignal(s) for s in SIGNALS}
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under `nohup` it is ignored
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_is_noted_and_the_second_ends_at_once(number: int, capfd: pytest.CaptureFixture[str]) -> None:
    with Interruption() as stop:
        signal.raise_signal(number)
        assert stop.asked
        assert "stopping at the next point" in capfd.readouterr().err
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)


def test_two_in_quick_succession_do_not_lose_what_is_being_written(capfd: pytest.CaptureFixture[str]) -> None:
    """The first one has ended the search; the second comes when the results are written."""
    with Interruption() as stop:
        signal.raise_signal(signal.SIGINT)
        stop.writing = True
        signal.raise_signal(signal.SIGINT)
        assert "once more loses it" in capfd.readouterr().err
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_a_run_that_ignores_hangups_goes_on() -> None:
    """As under `nohup`."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    assert signal.SIGHUP not in end_signals()
    with Interruption() as stop:
        signal.raise_signal(signal.SIGHUP)
        assert not stop.asked


@pytest.mark.parametrize("kept", [(), (1,), (2,)])
def test_only_a_closed_terminal_is_left(tmp_path: Path, kept: tuple[int, ...]) -> None:
    """What goes to a file goes on; writing to a terminal that is gone fails, and must not end what is to be kept."""
    script = f"""
import os, sys
sys.path.insert(0, {str(Path(interruption.__file__).parents[2])!r})
from placekit_core.run.interruption import tell
sys.stdin.read()
tell("once")
os.write(1, b"stdout")
os.write(2, b"stderr")
"""
    ours, theirs = pty.openpty()
    files = {fd: (tmp_path / str(fd)).open("wb") for fd in kept}
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=files.get(1, theirs), stderr=files.get(2, theirs)
    )
    time.sleep(1.0)
    os.close(theirs)
    os.close(ours)
    process.communicate()
    assert process.returncode == 0
    texts = {1: "stdout", 2: "once\nstderr"}
    assert {fd: (tmp_path / str(fd)).read_text() for fd in kept} == {fd: texts[fd] for fd in kept}


def test_an_interruption_while_placekit_is_imported_shows_no_traceback() -> None:
    """The import of its registry takes most of a second on a slow machine."""
    code = """
import sys
from importlib.abc import MetaPathFinder
class Interrupting(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "placekit_core.run.registry":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupting())
from placekit_core.cli.main import script
sys.argv = ["placekit", "plugins"]
sys.exit(script())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "placekit: interrupted\n")
