"""Keys of numba's cache on disk that know all the code of which a function is compiled; importing it imports numba.

numba finds stored code by a function's signature and bytecode, and drops it when the file that defines the function changes. But
functions and constants from other files are frozen into it: after an upgrade of one package, those that call it would run its old
code. Here they are part of the key.
"""
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cache
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
from numba.core.caching import FunctionCache
from numba.core.dispatcher import Dispatcher
from numba.core.types import Type


class KeyedCache(FunctionCache):
    """numba's cache of one function, with `digest` in its key."""

    function: Any

    @classmethod
    def replace(cls, function: Any) -> None:
        """Give a compiled function such a cache in place of its own, if it has one."""
        own: Any = getattr(function, "_cache", None)
        if type(own) is FunctionCache:
            vars(own)["function"], own.__class__ = function, cls

    def _index_key(self, sig: Any, codegen: Any) -> tuple[Any, ...]:
        return (*super()._index_key(sig, codegen), digest(self.function))

    def _load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return super()._load_overload(sig, target_context)
        except (AttributeError, ImportError):  # it names a class or a module that is no longer there
            self.flush()
            return None


def digest(function: Any) -> str:
    """A hash of a function's code, constants and options, and of those of all compiled functions that it calls, directly or not.

    It depends neither on lines and comments, nor on where files lie, nor on the process. Known are constants, arrays, tuples,
    named tuples, functions, and what is read from modules; of other objects only the name.
    """
    hashes: dict[Any, str] = {}
    todo = [function]
    while todo:
        used = todo.pop()
        if used not in hashes:
            hashes[used], called = _own(used)
            todo += called
    return hashlib.sha256("".join(hashes.values()).encode()).hexdigest()


@cache  # a function is part of many others
def _own(function: Any) -> tuple[str, tuple[Any, ...]]:
    """The hash of a function without those that it calls, and these."""
    plain: FunctionType = getattr(function, "py_func", function)
    codes = list(_codes(plain.__code__))
    used = [cell.cell_contents for cell in plain.__closure__ or ()]
    for code in codes:
        used += _read(code.co_names, plain.__globals__)
    options = sorted(getattr(function, "targetoptions", {}).items())
    others = (tuple(options), plain.__defaults__, tuple(sorted((plain.__kwdefaults__ or {}).items())))
    parts = [plain.__module__, plain.__qualname__, *map(_text, others), *map(_text, used)]
    parts += [f"{code.co_code.hex()} {code.co_names} {code.co_varnames}" for code in codes]
    parts += [_text(constant) for code in codes for constant in code.co_consts]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest(), tuple(f for value in used for f in _compiled(value))


def _codes(code: CodeType) -> Iterator[CodeType]:
    """The code of a function, and of those inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _read(names: tuple[str, ...], scope: dict[str, Any]) -> Iterator[Any]:
    """What `names` stand for in a scope; for a module, also what it has of the other ones (`module.name`)."""
    for name in names:
        if name in scope:
            yield scope[name]
            if isinstance(scope[name], ModuleType):
                yield from _read(tuple(n for n in names if n != name), vars(scope[name]))


def _compiled(value: Any) -> Iterator[Any]:
    """The compiled functions of a value."""
    if isinstance(value, Dispatcher):
        yield value
    elif isinstance(value, tuple):
        for part in value:
            yield from _compiled(part)


def _text(value: Any) -> str:
    """A constant's value as text; of a function or class its name, and a class's fields."""
    kind = f"{type(value).__qualname__} {getattr(type(value), '_fields', '')}"
    if isinstance(value, np.ndarray):
        return f"{kind} {value.dtype} {value.shape} {value.tobytes().hex()}"
    if isinstance(value, slice):
        return f"{kind} {_text((value.start, value.stop, value.step))}"
    if isinstance(value, (tuple, set, frozenset)):
        texts = [_text(v) for v in value]
        return f"{kind} {texts if isinstance(value, tuple) else sorted(texts)}"
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes, np.generic, Type)):
        return f"{kind} {value!r}"
    about = [getattr(value, name, "") for name in ("__module__", "__qualname__", "__name__", "_fields", "__members__")]
    return f"{kind} {about}"
