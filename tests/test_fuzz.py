"""The fuzzer of files: it finds nothing in placekit's readers, and finds what is planted there."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from placekit_core import PlacekitError

NEVER_REFUSED = ("failed", "history")
"""Kinds of which nothing is an error: they are said to be damaged, or written again."""
BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


@pytest.fixture(scope="module")
def fuzz() -> Any:
    sys.path.insert(0, str(BENCHMARKS))
    spec = importlib.util.spec_from_file_location("benchmark_fuzz_files", BENCHMARKS / "fuzz_files.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # for its dataclasses
    spec.loader.exec_module(module)
    yield module
    sys.path.remove(str(BENCHMARKS))


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(3600)
def test_damaged_files_are_clear_errors() -> None:
    """In a process of its own: it forks, and a process that has run other tests has threads, whose locks a fork keeps."""
    command = [sys.executable, str(BENCHMARKS / "fuzz_files.py"), "--cases", os.environ.get("PLACEKIT_CASES", "120")]
    done = subprocess.run([*command, "--seed", "1"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


def raises(content: bytes) -> None:
    raise KeyError("a check is missing")


def is_slow(content: bytes) -> None:
    end = time.process_time() + 0.4
    while time.process_time() < end:
        pass


def takes_memory(content: bytes) -> None:
    np.ones(200 * 2**20, np.uint8)


def executes(content: bytes) -> None:
    subprocess.run(["true"], check=True)


def unpickles(content: bytes) -> None:
    import pickle

    pickle.loads(b"cos\ngetpid\n(tR.")


def writes(content: bytes) -> None:
    (Path.home() / ".placekit-fuzzed").write_bytes(b"")
    os.remove(Path.home() / ".placekit-fuzzed")


@pytest.mark.parametrize(
    ("bug", "said"),
    [(raises, "KeyError"), (is_slow, " s, "), (takes_memory, " MiB"), (executes, "subprocess.Popen"), (unpickles, "pickle"),
     (writes, "open ")],
)  # fmt: skip
def test_planted_bugs_are_found(
    fuzz: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bug: Callable[[bytes], None], said: str
) -> None:
    """One damaged file in twenty runs into the bug."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(fuzz, "MAX_S", 0.3)
    monkeypatch.setattr(fuzz, "MAX_MIB", 50.0)
    monkeypatch.setattr(fuzz, "cases", lambda *_: ((f"{i}", b"%d" % i) for i in range(40)))

    def read(folder: Path) -> None:
        content = (folder / "x.json").read_bytes()
        if content != b"{}" and int(content) % 20 == 7:
            bug(content)
        raise PlacekitError("damaged")

    kind = fuzz.Kind("planted", "x.json", b"{}", "json", read)
    found = fuzz._in_a_process(partial(fuzz.try_kind, kind, {}, 0, 40))
    assert (found.cases, len(found.wrong)) == (40, 2)
    assert all(said in line for line in found.wrong)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_rare_bug_in_any_reader_is_found(fuzz: Any, tmp_path: Path) -> None:
    """In every kind of file: a refusal in ten is another exception."""
    for kind in fuzz.kinds(tmp_path):
        if not kind.form:
            continue

        def read(folder: Path, kind: Any = kind) -> object:
            try:
                return kind.read(folder)
            except PlacekitError as e:
                if zlib.crc32((folder / kind.file).read_bytes()) % 10 == 0:
                    raise KeyError("a check is missing") from e
                raise

        planted = fuzz.Kind(kind.name, kind.file, kind.good, kind.form, read, kind.beside)
        refused = fuzz._in_a_process(partial(fuzz.try_kind, planted, {}, 0, 40))
        assert refused.other > 0 or kind.name in NEVER_REFUSED, kind.name
