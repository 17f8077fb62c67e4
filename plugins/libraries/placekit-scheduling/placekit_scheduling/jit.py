"""How the loops of this library are compiled; importing it imports numba, and lets every compilation be told."""

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
from placekit_scheduling.cache_keys import KeyedCache
from placekit_scheduling.first_run import get_help

UNCOUNTED: dict[str, Any] = {"_nrt": False} if hasattr(DefaultOptions, "_nrt") else {}
"""Options of `njit` for functions that allocate nothing, and return arrays only to functions compiled in the same way:
without reference counts of the many arrays, calls take a fifth of the time. It is an internal option of numba: a version
without it is slower, but the results are the same."""
COUNTED: dict[str, Any] = dict.fromkeys(UNCOUNTED, True)
"""Options of `njit` for functions that such functions call, and that allocate: else they would inherit `UNCOUNTED`."""


def _defer_scipy() -> None:
    """Let numba import scipy when it compiles linear algebra: by default it does so before it loads its first function.

    It imports scipy's linear algebra, which takes as long as numba itself, only to learn that it is there.
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
    """numba's `njit`. With `cache=True`, code on disk also depends on what the function takes from other files (`KeyedCache`).

    Args:
        signature: to compile for at once, one; not the function: `@njit()`.
    """
    if isinstance(signature, (FunctionType, list)):
        raise TypeError("njit takes one signature, or none: write @njit()")

    def decorate(function: Any) -> Any:
        made: Any = numba.njit(**options)(function)  # noqa: TID251
        KeyedCache.replace(made)
        if signature is not None and isinstance(made, CPUDispatcher):  # not if NUMBA_DISABLE_JIT is set
            made.compile(signature)  # looks for code on disk, so not before
            made.disable_compile()
        return made

    return decorate


compiled: Any = njit(cache=True, **{"no_cfunc_wrapper": True, **UNCOUNTED})  # nobody calls it as C does
inlined: Any = njit(cache=True, forceinline=True, **UNCOUNTED)


class _Inner(CPUDispatcher):
    """A compiled function without the code by which Python calls it: without this class, such a call ends the process."""

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise TypeError(f"{self.py_func.__name__} is called by compiled code only")


def inner(function: Any) -> Any:
    """Like `compiled`, for a function that only compiled code calls. Raises TypeError if Python does.

    Without the code that unpacks Python's arguments, what takes tuples of many arrays compiles faster.
    """
    return _inner(function, UNCOUNTED)


def counted_inner(function: Any) -> Any:
    """`inner`, for a function that allocates or that such functions call: with reference counts."""
    return _inner(function, {})


def _inner(function: Any, options: dict[str, Any]) -> Any:
    alone: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, **options}
    made: Any = njit(cache=True, **alone)(function)
    if isinstance(made, CPUDispatcher):
        made.__class__ = _Inner
    return made


@inlined  # type: ignore[untyped-decorator]
def at(number: Any) -> Any:
    """An int32 that is not negative, as an index: compiled code then need not ask whether it counts from the end.

    A loop that does little but look things up asks that often. A negative number becomes a large one, without an error.
    """
    return np.int64(np.uint32(number))


COMPILING = "compiling, once on this computer: a minute or two, which later runs do not take"
"""What a run says before it compiles for the first time."""


class _Told(event.Listener):
    """Reports what is being compiled: the first run on a computer takes minutes longer than the next ones."""

    def on_start(self, event: Any) -> None:
        function = event.data["dispatcher"].py_func
        if function.__module__.startswith("placekit_"):  # others may compile at every run
            announce(COMPILING)
            get_help(function.__module__.partition(".")[0])
        if not function.__module__.startswith("numba."):  # its own functions are parts of ours
            report_progress(f"compiling {function.__name__}, once on this computer")

    def on_end(self, event: Any) -> None:
        """The next report takes the place of this one."""


event.register("numba:compile", _Told())  # type: ignore[no-untyped-call]
