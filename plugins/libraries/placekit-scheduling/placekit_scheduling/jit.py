"""Compiles functions with numba. Importing this imports numba, and from then on every compilation is reported."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from types import FunctionType
from typing import Any

import numba
import numba.np.linalg
import numpy as np
from numba.core import event
from numba.core.options import DefaultOptions
from numba.core.registry import CPUDispatcher

from placekit_core import announce, report_progress
from placekit_scheduling import compile_lock
from placekit_scheduling.cache_keys import KeyedCache

UNCOUNTED: dict[str, Any] = {"_nrt": False} if hasattr(DefaultOptions, "_nrt") else {}
"""Options of `njit` for code without reference counting: calls with many arrays take a fifth of the time.

Only for functions that allocate no arrays, and return arrays only to functions with the same options. `_nrt` is an internal
option of numba; a version without it gives the same results, but slower."""


def _defer_scipy() -> None:
    """Let numba import scipy only when it compiles linear algebra.

    By default it imports scipy's linear algebra before it loads its first function, only to check that it is installed. This
    takes as long as importing numba itself.
    """
    linalg = numba.np.linalg
    if "numba.np.arraymath" in sys.modules or not hasattr(linalg, "ensure_blas") or not find_spec("scipy"):
        return
    ensure = linalg.ensure_blas
    linalg.ensure_blas = lambda: None
    try:
        from numba.np import arraymath
    finally:
        linalg.ensure_blas = ensure
    arraymath.ensure_blas = ensure  # type: ignore[attr-defined]


_defer_scipy()


def njit(signature: Any = None, **options: Any) -> Any:
    """numba's `njit`, whose code on disk (`cache=True`) also follows changes in other files that it uses (`KeyedCache`).

    Args:
        signature: compile for this signature at once. Without one, write `@njit()`.
    """
    if isinstance(signature, (FunctionType, list)):
        raise TypeError("njit takes one signature, or none: write @njit()")

    def decorate(function: Any) -> Any:
        dispatcher: Any = numba.njit(**options)(function)  # noqa: TID251
        KeyedCache.replace(dispatcher)
        return dispatcher if signature is None else compiled_for(signature, dispatcher)

    return decorate


def compiled_for(signature: Any, function: Any) -> Any:
    """The function, compiled for this signature, and for no other."""
    if isinstance(function, CPUDispatcher) and not function.overloads:  # not if NUMBA_DISABLE_JIT is set
        function.compile(signature)  # looks for code on disk, so the cache must be set before
        function.disable_compile()
    return function


compiled: Any = njit(cache=True, **{"no_cfunc_wrapper": True, **UNCOUNTED})  # without the code to call it from C
inlined: Any = njit(cache=True, forceinline=True, **UNCOUNTED)


class _Inner(CPUDispatcher):
    """A compiled function that Python cannot call. Without this class, such a call would crash the process."""

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise TypeError(f"{self.py_func.__name__} can only be called by compiled code")


def inner(function: Any) -> Any:
    """Like `compiled`, for a function that only compiled code calls. Raises TypeError if Python calls it.

    Functions that take tuples of many arrays compile faster without the code that unpacks Python's arguments.
    """
    return _inner(function, UNCOUNTED)


def counted_inner(function: Any) -> Any:
    """Like `inner`, but with reference counting: for functions that allocate arrays, and for their callers."""
    return _inner(function, {})


def _inner(function: Any, options: dict[str, Any]) -> Any:
    no_wrappers: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, **options}
    dispatcher: Any = njit(cache=True, **no_wrappers)(function)
    if isinstance(dispatcher, CPUDispatcher):
        dispatcher.__class__ = _Inner
    return dispatcher


@inlined  # type: ignore[untyped-decorator]
def at(number: Any) -> Any:
    """A non-negative int32 as an index: compiled code then need not check whether it counts from the end.

    This saves time in loops with many look-ups. A negative number becomes a large one, without an error.
    """
    return np.int64(np.uint32(number))


COMPILING = "compiling for this computer: up to a minute, only in the first runs"
"""The line that a run prints before it compiles for the first time."""


class _Reporter(event.Listener):
    """Reports each function that is compiled, because a first run takes longer than the next ones."""

    def on_start(self, event: Any) -> None:
        function = event.data["dispatcher"].py_func
        if function.__module__.startswith("placekit_"):  # functions of others may compile in every run
            announce(COMPILING)
        if not function.__module__.startswith("numba."):  # these are parts of our functions
            report_progress(f"compiling {function.__name__}, once on this computer")

    def on_end(self, event: Any) -> None:
        """Let other processes compile if this compilation failed. The next report replaces this one's."""
        if sys.exc_info()[0] is not None:  # the event does not tell
            compile_lock.release(event.data["dispatcher"]._cache)


event.register("numba:compile", _Reporter())  # type: ignore[no-untyped-call]


SMALL = 500
"""Problems with at most this many pairs of operations and devices (or kinds) use Python for functions that run a few times."""
_interpreted: dict[Any, FunctionType] = {}


def by_size(function: Any, size: int) -> Any:
    """Choose how to run a compiled function that runs a few times, for a problem of `size` pairs.

    Small problems use `interpreted`, unless a run with a larger program has left compiled code on disk.
    """
    stored = getattr(function, "_cache", None)
    if size > SMALL or (isinstance(stored, KeyedCache) and stored.is_stored()):
        return function
    return np.errstate(over="ignore")(interpreted(function))  # numpy warns in Python if random numbers wrap around


def interpreted(function: Any) -> Any:
    """The Python version of a compiled function and of all functions that it calls. Results are the same to the last bit.

    For a small program, it takes milliseconds; compiling would take seconds.
    """
    if not isinstance(function, CPUDispatcher):
        return function
    if function not in _interpreted:
        plain: Any = function.py_func
        scope = dict(plain.__globals__)
        _interpreted[function] = FunctionType(
            plain.__code__, scope, plain.__name__, plain.__defaults__, plain.__closure__
        )
        scope.update({name: interpreted(scope[name]) for name in plain.__code__.co_names if name in scope})
    return _interpreted[function]
