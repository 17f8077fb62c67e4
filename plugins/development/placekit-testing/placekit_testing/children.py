"""Rebuilds a component in other processes, like a run on another day: same class, same options, other hash seed.

Each value of PYTHONHASHSEED has one server per test session. The server imports what a job needs, and forks a fresh process
for the job. So each import is paid once, and no job sees the leftovers of another.
"""

from __future__ import annotations

import atexit
import hashlib
import importlib
import importlib.util
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from functools import cache, reduce
from typing import Any

import numpy as np
import pytest

from placekit_core.contracts.interfaces import Plugin

_START = "import sys; sys.path[:] = {path!r}; from placekit_testing.children import serve; serve()"


def in_children(
    component: Plugin, work: Callable[..., str], *arguments: Any, hash_seeds: Sequence[int] = (1, 2)
) -> list[str]:
    """The results of `work(component, *arguments)` in new processes, one for each value of PYTHONHASHSEED, side by side.

    `work` is a function at the top level of its module. The component's class should be at the top level, too: if another
    process cannot import it by its name, the test is skipped. `arguments` are plain data. If a process fails, this raises
    AssertionError with its traceback.
    """
    assert "PLACEKIT_CHILD" not in os.environ, (
        f"importing {type(component).__module__} runs checks; guard its main code"
    )
    job = {
        "path": [p or os.getcwd() for p in sys.path],
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "component": address_of(type(component)),
        "options": component.options.model_dump_json(),
        "work": address_of(work),
        "arguments": arguments,
    }
    servers = [_server(seed) for seed in hash_seeds]
    for server in servers:
        server.ask(job)
    answers = [server.answer() for server in servers]
    for text, failed in answers:
        assert not failed, f"{type(component).__name__} fails in another process:\n{text}"
    return [text for text, _ in answers]


class _Server:
    """A process with one hash seed, which answers one job at a time."""

    def __init__(self, hash_seed: int) -> None:
        path = [p or os.getcwd() for p in sys.path]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START.format(path=path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PLACEKIT_CHILD": "1", "PYTHONHASHSEED": str(hash_seed)},
        )  # fmt: skip
        atexit.register(self._process.kill)

    def ask(self, job: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()

    def answer(self) -> tuple[str, bool]:
        """The result of the job or its traceback, and whether the job failed."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:  # the server was killed, or a library of the component ended it during its import
            _server.cache_clear()
            return f"it ended with {self._process.wait()}", True
        text, failed = json.loads(line)
        return text, failed


@cache
def _server(hash_seed: int) -> _Server:
    return _Server(hash_seed)


def serve() -> None:
    """The loop of a server: for each line of standard input, a fresh process does the job and answers with one line."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # so that text printed by a component is not taken for an answer
    for line in sys.stdin:
        answers.write(json.dumps(_in_a_fork(json.loads(line))) + "\n")
        answers.flush()


def _in_a_fork(job: dict[str, Any]) -> tuple[str, bool]:
    """The result of the job in a process of its own, and whether it failed. Its imports are made here, and stay."""
    sys.path[:] = job["path"]
    try:
        load(*job["component"])
        load(*job["work"])
    except BaseException:
        return traceback.format_exc(), True
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.environ.update(job["environment"])
        os.chdir(job["folder"])
        try:
            text, failed = _work(job), False
        except BaseException:
            text, failed = traceback.format_exc(), True
        with os.fdopen(writer, "w") as out:
            out.write(json.dumps((text, failed)))
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as found:
        text = found.read()
    _, status = os.waitpid(child, 0)
    if not text:
        return f"it ended with {os.waitstatus_to_exitcode(status)}", True
    answer: tuple[str, bool] = tuple(json.loads(text))
    return answer


def digest(parts: Iterable[Any]) -> str:
    """A short text that differs if any of the parts does; arrays count by type, shape and bytes, others by `repr`."""
    found = hashlib.sha256()
    for part in parts:
        array = isinstance(part, np.ndarray)
        found.update(repr((str(part.dtype), part.shape, part.tobytes()) if array else part).encode())
    return found.hexdigest()[:16]


def address_of(item: Any) -> tuple[str, str, str]:
    """Module, file and qualified name of a class or function; skips the test if they do not lead back to `item`."""
    file = getattr(sys.modules.get(item.__module__), "__file__", None) or ""
    address = item.__module__, file, item.__qualname__
    try:
        found = _at(sys.modules[item.__module__], item.__qualname__)
    except (KeyError, AttributeError):
        found = None
    if found is not item or item.__module__ == "__main__":  # `__main__` is another module in each process
        pytest.skip(f"no other process can import {item.__qualname__} of {item.__module__}")
    return address


def _at(module: Any, qualname: str) -> Any:
    return reduce(getattr, qualname.split("."), module)


def load(name: str, file: str, qualname: str) -> Any:
    """Load by the module's name, or by its file, because tests are often outside packages and `sys.path`."""
    try:
        module = importlib.import_module(name)
    except ImportError:
        module = None
    if module is None or (getattr(module, "__file__", None) or "") != file:
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None, f"no module {name!r}"
        assert spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return _at(module, qualname)


def _work(job: dict[str, Any]) -> str:
    cls = load(*job["component"])
    component = cls(cls.options_class.model_validate_json(job["options"]))
    return str(load(*job["work"])(component, *job["arguments"]))
