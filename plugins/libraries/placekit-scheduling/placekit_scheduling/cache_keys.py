"""Keys of numba's cache on disk that cover all code that a function is compiled from. Importing this imports numba.

numba finds stored code by a function's signature and bytecode, and drops it when the file of the function changes. But compiled
code also contains functions and constants from other files: after an upgrade of one package, its callers in other packages
would still run the old code. So this module makes them part of the key.
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

from placekit_scheduling import compile_lock


class KeyedCache(FunctionCache):
    """numba's cache of one function, with `digest` in its key."""

    function: Any

    @classmethod
    def replace(cls, function: Any) -> None:
        """Replace the cache of a compiled function, if it has one."""
        own: Any = getattr(function, "_cache", None)
        if type(own) is FunctionCache:
            vars(own)["function"], own.__class__ = function, cls

    def is_stored(self) -> bool:
        """Whether compiled code of this version of the function is loaded or on disk, perhaps for other types."""
        return bool(self.function.overloads) or any(
            key[-1] == digest(self.function) for key in self._cache_file._load_index()
        )

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Load compiled code, or return None: then the caller compiles, while the user's other processes wait."""
        found = super().load_overload(sig, target_context)
        if found is None and compile_lock.take(self):
            found = super().load_overload(sig, target_context)  # another process may have compiled it meanwhile
            if found is not None:
                compile_lock.release(self)
        return found

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)
        finally:
            compile_lock.release(self)

    def _index_key(self, sig: Any, codegen: Any) -> tuple[Any, ...]:
        return (*super()._index_key(sig, codegen), digest(self.function))

    def _load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return super()._load_overload(sig, target_context)
        except (AttributeError, ImportError):  # it refers to a class or module that no longer exists
            self.flush()
            return None


def digest(function: Any) -> str:
    """A hash of the code, constants and options of a function, and of all compiled functions that it calls, directly or not.

    It does not depend on line numbers, comments, file paths or the process. It covers constants, arrays, tuples, named tuples,
    functions, and names read from modules; of other objects only the name.
    """
    hashes: dict[Any, str] = {}
    todo = [function]
    while todo:
        used = todo.pop()
        if used not in hashes:
            hashes[used], called = _hash_alone(used)
            todo += called
    return hashlib.sha256("".join(hashes.values()).encode()).hexdigest()


@cache  # many functions call the same ones
def _hash_alone(function: Any) -> tuple[str, tuple[Any, ...]]:
    """The hash of a function alone, and the compiled functions that it calls."""
    plain: FunctionType = getattr(function, "py_func", function)
    codes = list(_codes(plain.__code__))
    used = [cell.cell_contents for cell in plain.__closure__ or ()]
    for code in codes:
        used += _values_of(code.co_names, plain.__globals__)
    options = sorted(getattr(function, "targetoptions", {}).items())
    others = (tuple(options), plain.__defaults__, tuple(sorted((plain.__kwdefaults__ or {}).items())))
    parts = [plain.__module__, plain.__qualname__, *map(_text, others), *map(_text, used)]
    parts += [f"{code.co_code.hex()} {code.co_names} {code.co_varnames}" for code in codes]
    parts += [_text(constant) for code in codes for constant in code.co_consts]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest(), tuple(f for value in used for f in _compiled(value))


def _codes(code: CodeType) -> Iterator[CodeType]:
    """The code of a function, and of the functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _values_of(names: tuple[str, ...], scope: dict[str, Any]) -> Iterator[Any]:
    """The values of `names` in a scope; for a module, also the values of the other names in it (`module.name`)."""
    for name in names:
        if name in scope:
            yield scope[name]
            if isinstance(scope[name], ModuleType):
                yield from _values_of(tuple(n for n in names if n != name), vars(scope[name]))


def _compiled(value: Any) -> Iterator[Any]:
    """The compiled functions in a value."""
    if isinstance(value, Dispatcher):
        yield value
    elif isinstance(value, tuple):
        for part in value:
            yield from _compiled(part)


def _text(value: Any) -> str:
    """The value of a constant as text; for a function or class, its name and fields."""
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
