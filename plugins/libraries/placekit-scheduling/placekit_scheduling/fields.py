"""Compiled functions that do something to every field of a NamedTuple; importing it imports numba.

Compiled code cannot loop over fields of different types. So these functions are written out here, from the fields of the
NamedTuple.
"""
# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import numpy as np
from numba import njit, types
from numba.np.numpy_support import from_dtype

from placekit_scheduling.jit import UNCOUNTED, compiled


def builder_of(cls: type[Any], arguments: str, values: Mapping[str, str], **options: Any) -> Any:
    """A compiled function of `arguments` that returns a `cls`, each field from its expression in `values`.

    `np` is numpy in the expressions. `options` are those of `njit`.
    """
    fields = ", ".join(values[name] for name in cls._fields)
    return _compiled(cls, f"def build({arguments}): return cls({fields})", **options)


def row_of(cls: type[Any]) -> Any:
    """A compiled function (stacked, i): the `cls` of row i of every array of `stacked`.

    It is for functions that are compiled with `UNCOUNTED`: the arrays that it returns have no reference counts.
    """
    return builder_of(cls, "stacked, i", {name: f"stacked.{name}[i]" for name in cls._fields}, **UNCOUNTED)


def copier_of(cls: type[Any]) -> Any:
    """A compiled function (into, values) that copies every array of a `cls`."""
    lines = [f"    copy(into.{name}, values.{name})" for name in cls._fields]
    return _compiled(cls, "\n".join(["def copy_all(into, values):", *lines]), **UNCOUNTED)


def numba_type(cls: type[Any]) -> Any:
    """The numba type of a NamedTuple of numbers and contiguous arrays. `Annotated[array, 2]` has two dimensions."""
    hints = get_type_hints(cls, include_extras=True)
    return types.NamedTuple([_type_of(hints[name]) for name in cls._fields], cls)  # type: ignore[no-untyped-call]


def _type_of(hint: Any) -> Any:
    if hint in (bool, int, float):
        return from_dtype(np.dtype(hint))
    dimensions = 1
    if get_origin(hint) is Annotated:
        hint, dimensions = get_args(hint)
    [dtype] = get_args(get_args(hint)[1])
    return types.Array(from_dtype(np.dtype(dtype)), dimensions, "C")


def _compiled(cls: type[Any], source: str, **options: Any) -> Any:
    """The only function of `source`, as if it stood in the file of `cls`: errors and `placekit doctor` name that file."""
    file = sys.modules[cls.__module__].__file__
    names = {"__name__": cls.__module__, "cls": cls, "copy": _copy, "np": np}
    before = set(names)
    exec(compile(source, str(file), "exec"), names)
    [name] = set(names) - before - {"__builtins__"}
    return njit(**options)(names[name])


@compiled
def _copy(into: Any, values: Any) -> None:
    for i in range(into.size):
        into.flat[i] = values.flat[i]
