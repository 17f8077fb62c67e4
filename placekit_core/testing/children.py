"""A component rebuilt in child processes, as another run on another day does: same class, same options, other hash seed."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import Any

import numpy as np
import pytest

from placekit_core.interfaces import Plugin

_START = (
    "import json, sys; job = json.loads(sys.argv[1]); sys.path[:] = job['path'];"
    " from placekit_core.testing.children import _work; print(_work(job))"
)


def in_children(
    component: Plugin, work: Callable[..., str], *arguments: Any, hash_seeds: Sequence[int] = (1, 2)
) -> list[str]:
    """What `work(component, *arguments)` gives in new processes, one for each value of PYTHONHASHSEED, side by side.

    `work` is a function at the top level of its module, and so should be the component's class: if no other process can
    import that by its name, the test is skipped. `arguments` are plain data. Raises AssertionError, with the child's
    traceback, if one fails.
    """
    assert "PLACEKIT_CHILD" not in os.environ, (
        f"importing {type(component).__module__} runs checks; guard its main code"
    )
    job = {
        "path": [p or os.getcwd() for p in sys.path],
        "component": address_of(type(component)),
        "options": component.options.model_dump_json(),
        "work": address_of(work),
        "arguments": arguments,
    }
    own = {**os.environ, "PLACEKIT_CHILD": "1"}
    children = [
        subprocess.Popen(
            [sys.executable, "-c", _START, json.dumps(job)], env={**own, "PYTHONHASHSEED": str(seed)},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for seed in hash_seeds
    ]  # fmt: skip
    ends = [(child, *child.communicate()) for child in children]
    for child, _, errors in ends:
        assert child.returncode == 0, (
            f"{type(component).__name__} ends with {child.returncode} in another process:\n{errors}"
        )
    return [output.splitlines()[-1] for _, output, _ in ends]


def digest(parts: Iterable[Any]) -> str:
    """A short text that differs when any of the parts does: arrays by type, shape and bytes, others by `repr`."""
    found = hashlib.sha256()
    for part in parts:
        array = isinstance(part, np.ndarray)
        found.update(repr((str(part.dtype), part.shape, part.tobytes()) if array else part).encode())
    return found.hexdigest()[:16]


def address_of(item: Any) -> tuple[str, str, str]:
    """Module, its file, and qualified name of a class or function; skips the test if these do not lead to it."""
    file = getattr(sys.modules.get(item.__module__), "__file__", None) or ""
    address = item.__module__, file, item.__qualname__
    try:
        found = _at(sys.modules[item.__module__], item.__qualname__)
    except (KeyError, AttributeError):
        found = None
    if found is not item or item.__module__ == "__main__":  # which is another module in every process
        pytest.skip(f"no other process can import {item.__qualname__} of {item.__module__}")
    return address


def _at(module: Any, qualname: str) -> Any:
    return reduce(getattr, qualname.split("."), module)


def load(name: str, file: str, qualname: str) -> Any:
    """By the module's name, or by its file: tests are often in no package, and in no folder of `sys.path`."""
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
