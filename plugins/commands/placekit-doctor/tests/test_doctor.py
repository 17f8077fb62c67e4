"""`placekit doctor`: each check says what is wrong where something is."""

from __future__ import annotations

import io
import json
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest
from placekit_doctor import doctor, findings, self_test
from placekit_doctor.doctor import Doctor

from placekit_core import Component, Options, PluginError, Policy, installed
from placekit_core.run.entries import Choice, Entry
from placekit_core.run.registry import CORE
from tests import venvs


def texts(found: object, level: str) -> list[str]:
    return [f.text for f in found if f.level == level]


@pytest.mark.slow
@pytest.mark.long  # docs/getting-started.md shows it
def test_this_installation_is_fine(placekit) -> None:
    done = placekit("doctor", "--all")
    assert done.code == 0, done.out
    lines, out = done.out.splitlines(), " ".join(done.out.split())
    assert [x for x in lines if not x.startswith(" ")][:-1] == list(Doctor(installed()).sections())
    assert lines[-1].startswith("0 failed, ")
    for entry in installed().all():
        if entry.distribution != CORE:
            assert f"{entry.kind} {entry.component.name}" in out
    for policy in ("annealing", "etf", "single_device"):
        assert f"ok policy {policy} finds" in out


@pytest.mark.slow
def test_the_core_alone(tmp_path: Path) -> None:
    out = diagnosis(tmp_path, "placekit-doctor")
    assert "warn nothing can be placed: no importer, no grouper, no policy, no backend is installed" in out
    assert " pip install placekit " in out
    assert "warn not possible: no simulated backend is installed" in out
    assert "ok placekit-doctor: command doctor, command quickstart" in out
    assert "torch" not in out
    assert out.endswith("0 failed, 2 warnings: see the hint below each line")


def diagnosis(folder: Path, *distributions: str) -> str:
    """What `placekit doctor` prints where these distributions are installed and what they need, on one line."""
    python = venvs.make_venv(folder / "venv", venvs.closure(*distributions))
    return " ".join(venvs.run(python, "placekit", "doctor", "--all", cwd=folder).stdout.split())


def test_a_check_that_breaks_is_a_failure_and_the_others_go_on(placekit, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken():
        yield findings.ok("so far")
        raise ZeroDivisionError("in the check")

    sections = {"first": broken, "second": lambda: iter([findings.ok("fine")])}
    monkeypatch.setattr(Doctor, "sections", lambda _: sections)
    done = placekit("doctor", "--all")
    assert done.code == 1
    assert "fail  this check failed to run: ZeroDivisionError: in the check" in done.out
    assert "ok    fine" in done.out
    assert done.out.splitlines()[-1].startswith("1 failed, 0 warnings: ")
    short = placekit("doctor").out.splitlines()
    assert short[:2] == ["first", "  fail  this check failed to run: ZeroDivisionError: in the check"]
    assert short[3] == "  ok    second: 1 check"
    machine = placekit("doctor", "--json")
    assert machine.code == 1
    found = json.loads(machine.out)
    assert [f["level"] for f in found["first"]] == ["ok", "fail"]
    assert found["second"] == [{"level": "ok", "text": "fine", "hint": ""}]


def test_kept_imports_are_shown_and_removed(placekit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLACEKIT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(Doctor, "sections", lambda _: {})
    folder = tmp_path / "imports"
    folder.mkdir()
    for name, size in (("a.import", 2**20), ("b.import", 2**20), (".c.import.1.part", 0), ("mine.txt", 9)):
        (folder / name).write_bytes(b"x" * size)
    assert f"ok    imports: 3 kept imports, 2.0 MiB in {folder}" in " ".join(
        placekit("doctor").out.split("\n" + " " * 10)
    )
    assert "removed 3 kept imports, 2.0 MiB from" in placekit("doctor", "--clear-imports").out
    assert [path.name for path in folder.iterdir()] == ["mine.txt"]
    assert "imports: 0 kept imports, 0.0 MiB" in placekit("doctor").out


@pytest.mark.parametrize("terminal", [True, False])
def test_lines_come_as_soon_as_they_are_known(
    terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A terminal also shows what is being checked, and the report on standard output is the same."""
    done: list[str] = []

    def section():
        findings.working("composing ...")
        done.append(capsys.readouterr().out)
        yield findings.ok("first")
        done.append(capsys.readouterr().out)

    monkeypatch.setattr(Doctor, "sections", lambda _: {"title": section})
    monkeypatch.setattr("sys.stderr", stream := io.StringIO())
    monkeypatch.setattr(stream, "isatty", lambda: terminal)
    monkeypatch.setenv("TERM", "xterm")
    doctor.main(["--all"], installed())
    assert done == ["title\n", "  ok    first\n"]
    shown = [text.rstrip() for text in stream.getvalue().split("\r")]
    assert shown == (["", "composing ...", "", "", ""] if terminal else [""])


def test_requirements(monkeypatch: pytest.MonkeyPatch) -> None:
    needs = ["numpy>=1", "pytest>=999", "no-such-distribution>=2", "also-none; extra == 'x'"]
    monkeypatch.setattr("importlib.metadata.requires", lambda _: needs)
    found = list(doctor._requirements("mine"))
    assert [f.level for f in found] == ["ok", "fail", "fail"]
    assert "mine needs pytest>=999, but" in found[1].text
    assert found[2].hint == "pip install 'no-such-distribution>=2'"


def with_components(*loaded: tuple[Entry, type | PluginError]) -> Doctor:
    """A Doctor for these components."""
    found = Doctor(installed())
    found.loaded = list(loaded)
    return found


def test_components_that_do_not_implement_their_interface() -> None:
    broken = PluginError("policy 'c' is broken", "reinstall it")
    found = with_components((entry("a"), dict), (entry("b"), Policy), (entry("c"), broken))
    failed = texts(found.plugins(), "fail")
    assert [("policy a" in failed[0]), ("policy b" in failed[1])] == [True, True]
    assert "does not implement placekit_core.Policy" in failed[0]
    assert failed[2] == "policy 'c' is broken"


def test_duplicates_are_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    twins = [Choice("policy", "x", "placekit-a", "1"), Choice("policy", "x", "placekit-b", "2")]
    monkeypatch.setattr(installed(), "duplicates", lambda: {("policy", "x"): twins}, raising=False)
    assert texts(Doctor(installed()).plugins(), "fail") == [
        "policy=x is defined 2 times: placekit-a 1 and placekit-b 2"
    ]


def test_runtimes_and_the_like_that_are_broken_or_have_a_twin(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [EntryPoint("mine", value, "placekit.runtimes") for value in ("json:dumps", "no_such_module:RUNTIME")]
    monkeypatch.setattr("placekit_doctor.doctor.others", lambda: points)
    assert texts(Doctor(installed()).plugins(), "fail") == [
        "runtime 'mine' of ? is defined 2 times",
        "runtime 'mine' of ? is defined 2 times",
        "runtime 'mine' of ? is broken: ModuleNotFoundError: No module named 'no_such_module'",
    ]


def test_what_plugins_contribute() -> None:
    found = texts(Doctor(installed()).plugins(), "ok")
    assert "placekit-doctor: command doctor, command quickstart" in found
    for distribution, own in (
        ("placekit-partitioning", "a library"),
        ("placekit-report", "command compare, logger report"),
    ):
        if distribution in {p.distribution for p in installed().packages}:
            assert f"{distribution}: {own}" in found


def test_versions_and_what_plugins_say_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {"torch_cuda": None, "torch_threads": 3}
    monkeypatch.setattr("placekit_doctor.doctor.facts", lambda registry: facts)
    found = texts(Doctor(installed()).versions(), "ok")
    assert found[-2:] == ["torch cuda: none", "torch threads: 3"]
    assert f"numpy {np.__version__}" in found
    assert len(found) == len(set(found)), "what several plugins need stands there once"


def test_what_measuring_backends_find(monkeypatch: pytest.MonkeyPatch) -> None:
    class Blind:
        simulated = False

        def __init__(self, options: object) -> None:
            pass

        def devices(self) -> object:
            return None

    class Seeing(Blind):
        def devices(self) -> object:
            return self_test.pair()

    class Failing(Blind):
        def devices(self) -> object:
            raise OSError("no driver")

    monkeypatch.setattr(Entry, "load", lambda self: classes[self.component.name])
    classes = {"blind": Blind, "seeing": Seeing, "failing": Failing}
    found = list(with_components(*((entry(n, "backend"), c) for n, c in classes.items())).devices())[-3:]
    assert [f.level for f in found] == ["warn", "ok", "fail"]
    assert found[1].text == "backend seeing finds gpu:0 (1.00 GiB), gpu:1 (1.00 GiB)"
    assert "OSError: no driver" in found[2].text


# the self-test


def entry(name: str, kind: str = "policy") -> Entry:
    return Entry(kind, Component(name, "made up", Options, "m:C"), "x", "placekit-x", "1.0")


class Fine(Policy):
    name = "fine"

    def place(self, task, rng):
        return task.problem.placement(rng.integers(0, 2, task.problem.g).astype(np.int16))


class Unseeded(Fine):
    calls = 0

    def place(self, task, rng):
        Unseeded.calls += 1
        return super().place(task, np.random.default_rng(Unseeded.calls))


class Raising(Fine):
    def place(self, task, rng):
        raise ValueError("not today")


class Wrong(Fine):
    def place(self, task, rng):
        return task.problem.placement(np.full(task.problem.g, 7, np.int16))


def simulator() -> tuple[Entry, type]:
    found = installed().get("backend", "simulator")
    return found, found.load()


@pytest.mark.parametrize(
    ("policy", "level", "said"),
    [
        (Fine, "ok", "policy x finds"),
        (Unseeded, "fail", "the same seed gave"),
        (Raising, "fail", "ValueError: not today"),
        (Wrong, "fail", "PlacementError"),
    ],
)
def test_a_policy_in_the_self_test(
    policy: type[Policy], level: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Entry, "build", lambda self, options: classes[self.component.name](options))
    classes = {"x": policy, "simulator": simulator()[1]}
    found = list(self_test.self_test([simulator(), (entry("x"), policy)]))
    assert [f.level for f in found] == ["ok", level]
    assert said in found[1].text


@pytest.mark.parametrize(("factor", "levels"), [(1.0, ["ok", "ok"]), (0.2, ["fail", "fail"]), (1.5, ["fail", "ok"])])
def test_a_backend_in_the_self_test(factor: float, levels: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    own, cls = simulator()
    opened = cls.open

    def skewed(self, problem, executable=None):
        session = opened(self, problem, executable)
        evaluate = session.evaluate

        def wrong(placements):
            m = evaluate(placements)
            return type(m)(m.value_s * factor, m.peak_bytes, m.fits, m.error, m.spread_s)

        session.evaluate = wrong
        return session

    monkeypatch.setattr(cls, "open", skewed)
    real = installed().get("policy", "single_device")
    found = list(self_test.self_test([(own, cls), (real, real.load())]))
    assert [f.level for f in found] == levels
    if factor < 1:
        assert "below the bound" in found[1].text


def test_without_a_simulator_there_is_no_self_test() -> None:
    [found] = self_test.self_test([(entry("x"), Fine)])
    assert found.level == "warn"
    assert "no simulated backend is installed" in found.text
