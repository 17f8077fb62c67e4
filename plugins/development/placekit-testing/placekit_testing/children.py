"""Rebuilds a component in other processes, like a run on another day: same class, same options, another hash seed.

Each value of PYTHONHASHSEED has one process per test session, so that imports are paid once.
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
    """The results of `work(component, *arguments)` in other processes, one for each value of PYTHONHASHSEED.

    `work` is a function at the top level of its module. The component's class should be at the top level, too: if another
    process cannot import it by its name, the test is skipped. `arguments` are plain data. Raises AssertionError with the
    traceback if a process fails.
    """
    assert "PLACEKIT_CHILD" not in os.environ, (
        f"importing {type(component).__module__} runs checks; guard its main code"
    )
    job = {
        "path": [p or os.getcwd() for p in sys.path],
        "environment": {k: v for k, v in os.environ.items() if k != "PYTHONHASHSEED"},
        "folder": os.getcwd(),
        "component": address_of(type(component)),
        "options": component.options.model_dump_json(),
        "work": address_of(work),
        "arguments": arguments,
    }
    servers = [_server(seed) for seed in hash_seeds]
    for server in servers:  # all of them work at the same time
        print(json.dumps(job), file=server.stdin, flush=True)
    # All of them before one fails: an answer that is left would be taken for that of the next job.
    answers = [_answer(server) for server in servers]
    found = []
    for server, line in zip(servers, answers, strict=True):
        if not line:
            _server.cache_clear()
        text, failed = json.loads(line) if line else (f"it ended with {server.wait()}", True)
        assert not failed, f"{type(component).__name__} fails in another process:\n{text}"
        found.append(text)
    return found


@cache
def _server(hash_seed: int) -> subprocess.Popen[str]:
    """The process with this hash seed."""
    process = subprocess.Popen(
        [sys.executable, "-c", _START.format(path=[p or os.getcwd() for p in sys.path])],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PLACEKIT_CHILD": "1", "PYTHONHASHSEED": str(hash_seed)},
    )  # fmt: skip
    atexit.register(process.kill)
    return process


def _answer(server: subprocess.Popen[str]) -> str:
    assert server.stdout is not None, "it was started with a pipe"
    return server.stdout.readline()


def serve() -> None:
    """Do the jobs on standard input, one per line, and answer each with a line: the result or a traceback, and which."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # so that text printed by a component is not taken for an answer
    for line in sys.stdin:
        job = json.loads(line)
        sys.path[:] = job["path"]
        os.environ.update(job["environment"])
        os.chdir(job["folder"])
        try:
            cls, work = load(*job["component"]), load(*job["work"])
            component = cls(cls.options_class.model_validate_json(job["options"]))
            answer = str(work(component, *job["arguments"])), False
        except BaseException:
            answer = traceback.format_exc(), True
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def digest(parts: Iterable[Any]) -> str:
    """A short text that differs if any of the parts does; arrays count by type, shape and bytes, others by `repr`."""
    found = hashlib.sha256()
    for part in parts:
        array = isinstance(part, np.ndarray)
        found.update(repr((str(part.dtype), part.shape, part.tobytes()) if array else part).encode())
    return found.hexdigest()[:16]


def address_of(item: Any) -> tuple[str, str, str]:
    """Module, file and qualified name of a class or function; skips the test if they do not lead back to `item`."""
    module = sys.modules.get(item.__module__)
    try:
        found: Any = reduce(getattr, item.__qualname__.split("."), module)
    except AttributeError:
        found = None
    if found is not item or item.__module__ == "__main__":  # `__main__` is another module in each process
        pytest.skip(f"no other process can import {item.__qualname__} of {item.__module__}")
    return item.__module__, getattr(module, "__file__", None) or "", item.__qualname__


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
    return reduce(getattr, qualname.split("."), module)
