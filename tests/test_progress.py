"""What a run says on standard error: stages, a bar, what to do next; on terminals, narrow and dumb ones, and in logs."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import types
from pathlib import Path
from typing import Any

import pytest
from placekit_testing.pytest_plugin import Outcome
from placekit_testing.registries import use_registry

from placekit_core import Ledger, Registry, hookimpl, report_progress
from placekit_core.contracts.progress import listening
from placekit_core.run import progress
from placekit_core.run.lifecycle import next_steps
from placekit_core.run.progress import Progress
from placekit_core.run.registry import discover

RUN = ("run", "workload=chainmm_small", "policy=etf", "log=[]", "cluster=p100x4")
SGR = re.compile(r"\x1b\[[0-9;]*m")
OTHER = re.compile(r"\x1b\[[0-9;?]*[A-Za-ln-z]")


def on_a_terminal(columns: int, code: str, **variables: str) -> str:
    """What a Python program prints to a terminal of this width."""
    main, own = pty.openpty()
    fcntl.ioctl(own, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    kept = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR", "PLACEKIT_QUIET")}
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=own, stdout=own, stderr=own, env={**kept, "TERM": "xterm", **variables}
    )
    os.close(own)
    shown = b""
    while True:
        try:
            part = os.read(main, 65536)
        except OSError:  # the child has closed it
            break
        if not part:
            break
        shown += part
    assert child.wait() == 0, shown.decode()
    os.close(main)
    return shown.decode()


SHOW = """
import time
from placekit_core import Ledger
from placekit_core.cli.console import table, wrapped
from placekit_core.run.progress import Progress
with Progress(lines=True) as p:
    p.stage("placing with a policy of a rather long name: at most 10,000 evaluations")
    ledger = Ledger(100)
    for i in range(3):
        ledger.evaluations += 20
        p.row("net", {"evaluations": 20 * i, "best_s": 0.0125}, ledger)
        time.sleep(0.12)
    p.progress("proven bound 12 ms, and much more to say about all that goes on meanwhile", None)
    time.sleep(0.12)
table(["name", "a number of something", "another number", "one more number"], [["a", "1", "2", "3"]], "about " * 20)
print(wrapped("word " * 30))
"""


@pytest.fixture(scope="module")
def shown() -> dict[int, str]:
    return {columns: on_a_terminal(columns, SHOW) for columns in (100, 40)}


class TestTerminal:
    @pytest.mark.parametrize("columns", [100, 40])
    def test_no_line_is_wider_than_the_terminal(self, shown: dict[int, str], columns: int) -> None:
        lines = [OTHER.sub("", SGR.sub("", line)) for part in shown[columns].split("\n") for line in part.split("\r")]
        assert max(map(len, lines)) <= columns
        assert any("evaluations, best 12.5 ms" in line for line in lines)
        assert any("placing with a policy" in line for line in lines)

    def test_a_log_has_the_same_text(self, shown: dict[int, str]) -> None:
        done = subprocess.run([sys.executable, "-c", SHOW], capture_output=True, text=True, check=True)
        assert "\x1b" not in done.stdout + done.stderr
        assert "\r" not in done.stdout + done.stderr
        said = [line for line in OTHER.sub("", SGR.sub("", shown[100])).replace("\r", "\n").splitlines() if line]
        assert all(line in said for line in done.stdout.splitlines() if line)
        assert " ".join(done.stderr.split()) == (
            "placing with a policy of a rather long name: at most 10,000 evaluations"
        )


class TestStages:
    def test_a_run_says_what_it_does(self, placekit: Any) -> None:
        done: Outcome = placekit(*RUN, "run_dir=r")
        lines = done.err.splitlines()
        assert lines[0].startswith("importing chainmm_small (importer ")
        assert re.fullmatch(r"  \d+ operations: \d+ kernels, \S+ .FLOP", lines[1])
        assert lines[2] == "grouping with auto, opening backend simulator"
        assert "groups; machine p100x4: p100:0 (" in lines[3]
        assert "placing with etf: at most 10,000 evaluations" in lines
        assert "writing to r" in lines
        assert all(len(line) <= 80 for line in lines)
        assert "importing" not in done.out

    def test_quiet(self, placekit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        said: Outcome = placekit(*RUN, "run_dir=a")
        monkeypatch.setenv("PLACEKIT_QUIET", "1")
        quiet: Outcome = placekit(*RUN, "run_dir=b")
        assert quiet.err == ""
        tables = [
            [line for line in done.out.splitlines() if not line.startswith(("written", "chainmm"))]
            for done in (quiet, said)
        ]
        assert tables[0] == tables[1] != []
        assert placekit("run", "policy=gone").err.startswith("placekit: no policy named 'gone'")

    def test_long_stages_without_a_terminal(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        now = [0.0]
        monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
        with Progress(lines=True) as bar:
            bar.stage("placing")
            for now[0] in (1.0, 11.0, 12.0, 25.0, 39.0, 41.0):
                bar.row("net", {"evaluations": 10 * now[0], "best_s": 1.0}, Ledger(10_000))
        assert capsys.readouterr().err.splitlines() == [
            "placing",
            "  0%, 110 evaluations, best 1 s",
            "  0%, 250 evaluations, best 1 s",
            "  0%, 410 evaluations, best 1 s",
        ]


class TestReports:
    def test_the_last_block_listens(self) -> None:
        heard: list[Any] = []
        report_progress("nobody listens")
        with listening(lambda *said: heard.append(("outer", *said))):
            report_progress("one", 0.5)
            with listening(lambda *said: heard.append(("inner", *said))):
                report_progress("two")
            report_progress("three", 1.0)
        report_progress("nobody listens")
        assert heard == [("outer", "one", 0.5), ("inner", "two", None), ("outer", "three", 1.0)]


class TestNextSteps:
    @pytest.fixture
    def registry(self, monkeypatch: pytest.MonkeyPatch) -> Registry:
        found = discover([])
        use_registry(monkeypatch, found)
        return found

    def add(self, registry: Registry, name: str, steps: Any, **order: bool) -> None:
        def placekit_next_steps(run_dir: Path) -> list[str]:
            return [f"{step} {run_dir}" for step in steps]

        module = types.ModuleType(name)
        module.placekit_next_steps = hookimpl(**order)(placekit_next_steps)  # type: ignore[attr-defined]
        registry.add(name, module, f"placekit-{name}", "1.0")
        assert [b.reason for b in registry.broken] == []

    def test_the_order_is_pluggys_and_a_failure_is_a_warning(self, registry: Registry) -> None:
        self.add(registry, "last", ["last"], trylast=True)
        self.add(registry, "first", ["first"], tryfirst=True)
        self.add(registry, "some", ["more", "more"])
        self.add(registry, "broken", None)
        result: Any = None
        with pytest.warns(UserWarning, match="plugin 'broken' suggests no next steps: TypeError"):
            steps = next_steps(registry, Path("r"), result)
        assert steps == ["first r", "more r", "last r"]

    def test_three_lines_end_a_run(self, placekit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("placekit_core.cli.run.next_steps", lambda *_: [f"do {i}" for i in range(5)])
        done: Outcome = placekit(*RUN, "run_dir=r")
        assert done.err.splitlines()[-3:] == ["next: do 0", "      do 1", "      do 2"]
