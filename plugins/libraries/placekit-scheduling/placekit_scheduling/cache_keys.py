"""Keys of numba's cache on disk that know all the code of which a function is compiled; importing it imports numba.

numba finds stored code by a function's signature and bytecode, and drops it when the file that defines the function changes. But
functions and constants from other files are frozen into it: after an upgrade of one package, those that call it would run its old
code. Here they are part of the key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cache
from types import CodeType, ModuleType
from typing import Any

import numpy as np
from numba.core.caching import FunctionCache
from numba.core.dispatcher import Dispatcher


class KeyedCache(FunctionCache):
    """numba's cache of one function, with `digest` in its key."""

    def _index_key(self, sig: Any, codegen: Any) -> tuple[Any, ...]:
        return (*super()._index_key(sig, codegen), digest(self._py_func))  # type: ignore[no-untyped-call]


def digest(function: Any) -> str:
    """A hash of a function's code and constants, and of those of all compiled functions that it calls, directly or not.

    It depends neither on lines and comments, nor on where files lie, nor on the process.
    """
    hashes: dict[Any, str] = {}
    todo = [function]
    while todo:
        used = todo.pop()
        if used not in hashes:
            hashes[used], called = _own(used)
            todo += called
    return hashlib.sha256("".join(sorted(hashes.values())).encode()).hexdigest()


@cache  # a function is part of many others
def _own(function: Any) -> tuple[str, tuple[Any, ...]]:
    """The hash of a function without those that it calls, and these."""
    plain = getattr(function, "py_func", function)
    cells = [cell.cell_contents for cell in plain.__closure__ or ()]
    codes = list(_codes(plain.__code__))
    used = [*cells, *(value for code in codes for value in _globals(code, plain.__globals__))]
    parts = [plain.__qualname__, _text(tuple(sorted(getattr(function, "targetoptions", {}).items())))]
    parts += [f"{code.co_code.hex()} {code.co_names}" for code in codes]
    parts += [_text(value) for value in (*used, *(c for code in codes for c in code.co_consts))]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest(), tuple(v for v in used if isinstance(v, Dispatcher))


def _codes(code: CodeType) -> Iterator[CodeType]:
    """The code of a function, and of those inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _globals(code: CodeType, names: dict[str, Any]) -> Iterator[Any]:
    """What global names stand for in `code`, and for a module what it has of the names there (`module.name`)."""
    for name in code.co_names:
        if name in names:
            value = names[name]
            yield value
            if isinstance(value, ModuleType):
                yield from (getattr(value, n) for n in code.co_names if hasattr(value, n))


def _text(value: Any) -> str:
    """A constant's value as text; of a function or class its name, and a named tuple's fields."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.shape} {value.tobytes().hex()}"
    if isinstance(value, (tuple, set, frozenset)):
        texts = [_text(v) for v in value]
        return f"{type(value).__qualname__} {texts if isinstance(value, tuple) else sorted(texts)}"
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes, np.generic)):
        return f"{type(value).__qualname__} {value!r}"
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", "")
    return f"{type(value).__qualname__} {name} {getattr(value, '_fields', '')}"
