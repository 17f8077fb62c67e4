"""One process compiles, the others wait, say so, and load what it compiled; if it is killed, the next one goes on."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from placekit_scheduling import compile_lock

pytestmark = pytest.mark.skipif(os.name == "nt", reason="file locks of POSIX")

SCRIPT = """
import sys
from placekit_core.contracts.progress import listening
from placekit_scheduling import compile_lock, jit

@jit.njit(cache=True)
def plus_one(x):
    return x + 1

class Slow(jit.event.Listener):
    def on_start(self, event):
        print("compiling", flush=True)
        sys.stdin.readline()

    def on_end(self, event):
        pass

jit.event.register("numba:compile", Slow())
with listening(lambda *_: None, lambda line: print(line, flush=True)):
    assert plus_one(1) == 2
print(["compiled", "loaded"][len(plus_one.stats.cache_hits)], flush=True)
"""


def start(folder: Path, path: str = "") -> subprocess.Popen[str]:
    """A process that compiles a function, once it reads a line; it takes modules from `path` first."""
    script = folder / "script.py"
    if not script.exists():  # numba compiles again if the file is newer
        script.write_text(SCRIPT)
    path = os.pathsep.join(filter(None, (path, os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path, "NUMBA_CACHE_DIR": str(folder / "cache"), "TMPDIR": str(folder)}
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, script], stdin=pipe, stdout=pipe, text=True, env=environment)


def line(process: subprocess.Popen[str]) -> str:
    """The next line that a process prints."""
    assert process.stdout is not None
    return process.stdout.readline().rstrip()


def test_a_process_waits_for_another_and_loads_what_it_compiled(tmp_path: Path) -> None:
    first = start(tmp_path)
    assert line(first) == "compiling"
    second = start(tmp_path)
    assert line(second) == compile_lock.WAITING
    assert first.communicate("go\n", timeout=60)[0] == "compiled\n"
    assert second.communicate("go\n", timeout=60)[0] == "loaded\n"


@pytest.mark.slow
def test_if_the_first_is_killed_the_next_compiles(tmp_path: Path) -> None:
    first = start(tmp_path)
    assert line(first) == "compiling"
    second = start(tmp_path)
    assert line(second) == compile_lock.WAITING
    first.kill()
    first.communicate(timeout=60)
    assert second.communicate("go\n", timeout=60)[0].splitlines() == ["compiling", "compiled"]


@pytest.mark.slow
def test_another_installation_does_not_wait(tmp_path: Path) -> None:
    shutil.copytree(Path(compile_lock.__file__).parent, tmp_path / "other" / "placekit_scheduling")
    first, second = start(tmp_path), start(tmp_path, path=str(tmp_path / "other"))
    assert line(first) == line(second) == "compiling"
    for process in (first, second):
        process.communicate("go\n", timeout=60)


def test_a_failed_compilation_lets_others_compile(tmp_path: Path) -> None:
    from placekit_scheduling import jit

    @jit.njit(cache=True)
    def wrong(x):  # type: ignore[no-untyped-def]
        return x.nothing

    with pytest.raises(jit.numba.TypingError, match="nothing"):
        wrong(1)
    assert compile_lock._held is None
