"""Packs many arrays into a few for compiled functions, and unpacks them there. Importing this imports numba.

Every compiled evaluation (`placekit_scheduling.Kernel`) takes two flat arrays and two scratch arrays. A list of `Field` names
the numbers and arrays in them, in order, and `lay_out` fills the flat arrays. In compiled code, `view_of` returns all fields as
a NamedTuple; `unpacked` compiles a function where each field is a local variable. A NamedTuple is simpler, and fine for a few
dozen fields. With the hundred fields of the simulator, it would take numba long to compile.

Compiled code cannot loop over fields of different types. So `builder_of`, `row_of` and `copier_of` generate functions that
name each field of a NamedTuple.
"""
# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

import numpy as np
from numba import types
from numba.np.numpy_support import from_dtype
from numpy.typing import NDArray

from placekit_scheduling.jit import UNCOUNTED, compiled, njit


class Field(NamedTuple):
    """A number, a flag, or an array of a compiled evaluation.

    Attributes:
        where: `number`, `flag`; `ints`, `floats`: in the problem; `scratch_ints`, `scratch_floats`: in working space.
        size: name of the size of an array in working space.
        wide: the array holds integers of 64 bits (in `scratch_floats`).
    """

    name: str
    where: str
    size: str = ""
    wide: bool = False


def fields(where: str, names: str, size: str = "") -> list[Field]:
    """Fields with the same place and size; `names` are separated by spaces."""
    return [Field(name, where, size) for name in names.split()]


@dataclass(frozen=True, eq=False)
class Layout:
    """The arrays of `placekit_scheduling.Kernel`, and the index at which each array begins in its own."""

    ints: NDArray[np.int32]
    floats: NDArray[np.float64]
    begin: dict[str, int]
    scratch_ints: int
    scratch_floats: int


def lay_out(
    layout: Sequence[Field],
    numbers: Mapping[str, int],
    arrays: Mapping[str, NDArray[Any]],
    sizes: Mapping[str, int],
) -> Layout:
    """Lay numbers and arrays out by `layout`. Entry i of the integers is number i, or the index at which array i begins."""
    used = {"ints": len(layout), "floats": 0, "scratch_ints": 0, "scratch_floats": 0}
    begin = {}
    for field in layout:
        if field.where in used:
            begin[field.name] = used[field.where]
            used[field.where] += sizes[field.size] if field.size else arrays[field.name].size
    header = [int({**numbers, **begin}[field.name]) for field in layout]
    given = {w: [arrays[f.name].ravel() for f in layout if f.where == w] for w in ("ints", "floats")}
    return Layout(
        np.concatenate([header, *given["ints"]]).astype(np.int32),
        np.concatenate([[], *given["floats"]]).astype(np.float64),
        begin,
        used["scratch_ints"],
        used["scratch_floats"],
    )


def view_of(cls: type[Any], layout: Sequence[Field]) -> Any:
    """A compiled function (ints, floats, scratch_ints, scratch_floats) that returns a `cls` with every field of `layout`."""
    values = {field.name: _found(i, field) for i, field in enumerate(layout)}
    return builder_of(cls, "ints, floats, scratch_ints, scratch_floats", values, forceinline=True, **UNCOUNTED)


def unpacked(
    layout: Sequence[Field],
    function: Callable[..., Any],
    *signature: Any,
    name: str = "",
    known: Mapping[str, bool] | None = None,
    **options: Any,
) -> Any:
    """Compile a function whose parameter `m` stands for all fields of `layout`.

    In the compiled function, the four arrays `ints, floats, scratch_ints, scratch_floats` replace `m`, as a parameter and as an
    argument of calls, and each `m.name` becomes a local variable. A tuple of a hundred arrays would do the same, but takes
    long to compile.

    Args:
        name: name of the compiled function. Numba confuses functions of the same name if they are called through
            `Kernel.function`.
        known: flags with a fixed value in this variant; the code that they exclude is left out.
    """
    lines, line = inspect.getsourcelines(function)
    tree = ast.parse(textwrap.dedent("".join(lines)))
    [written] = tree.body
    assert isinstance(written, ast.FunctionDef)
    written.name, written.decorator_list = name or written.name, []
    _Unpacking(known or {}).visit(written)
    written.args.args = [ast.arg(n) for a in written.args.args for n in (_ARRAYS if a.arg == "m" else (a.arg,))]
    used = {node.id for node in ast.walk(written) if isinstance(node, ast.Name)}
    first = [f"m_{f.name} = {_found(i, f)}" for i, f in enumerate(layout) if f"m_{f.name}" in used]
    after = int(ast.get_docstring(written) is not None)
    written.body[after:after] = ast.parse("\n".join(first)).body
    ast.increment_lineno(ast.fix_missing_locations(tree), line - 1)
    names: dict[str, Any] = {}
    function.__globals__.setdefault("np", np)  # for the views of the arrays
    exec(compile(tree, str(inspect.getsourcefile(function)), "exec"), function.__globals__, names)
    made = names[written.name]
    # numba's cache does not see the layout, so the name must depend on it
    about = repr((lines, layout, known, _SOURCE))
    made.__qualname__ = f"{written.name}_{zlib.crc32(about.encode()):08x}"
    return njit(*signature, **options)(made)


_ARRAYS = ("ints", "floats", "scratch_ints", "scratch_floats")
_SOURCE = zlib.crc32(Path(__file__).read_bytes())


def _is_m(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "m"


class _Unpacking(ast.NodeTransformer):
    """Replaces `m.name` by a local variable or known flag, and `m` as an argument by the arrays; drops unreachable code."""

    def __init__(self, known: Mapping[str, bool]) -> None:
        self.known = known

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        self.generic_visit(node)
        if not _is_m(node.value):
            return node
        return ast.Constant(self.known[node.attr]) if node.attr in self.known else ast.Name(f"m_{node.attr}", node.ctx)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        node.args = [x for a in node.args for x in ([ast.Name(n, ast.Load()) for n in _ARRAYS] if _is_m(a) else [a])]
        self.generic_visit(node)
        return node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.op, ast.Not) and isinstance(node.operand, ast.Constant):
            return ast.Constant(not node.operand.value)
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        self.generic_visit(node)
        deciding = isinstance(node.op, ast.Or)  # `True or x` is True, `False and x` is False
        if any(isinstance(v, ast.Constant) and v.value is deciding for v in node.values):
            return ast.Constant(deciding)
        node.values = [v for v in node.values if not isinstance(v, ast.Constant)]
        return node if len(node.values) > 1 else node.values[0] if node.values else ast.Constant(not deciding)

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.test, ast.Constant):
            return node.body if node.test.value else node.orelse
        return node

    def visit_If(self, node: ast.If) -> Any:
        self.generic_visit(node)
        if isinstance(node.test, ast.Constant):
            return (node.body if node.test.value else node.orelse) or ast.Pass()
        return node


def _found(i: int, field: Field) -> str:
    if field.where in ("number", "flag"):
        return f"np.int64(ints[{i}])" if field.where == "number" else f"ints[{i}] != 0"
    # unsigned, so that slicing need not check whether it counts from the end
    return f"{field.where}[np.uint32(ints[{i}]) :]" + (".view(np.int64)" if field.wide else "")


def builder_of(cls: type[Any], arguments: str, values: Mapping[str, str], **options: Any) -> Any:
    """A compiled function of `arguments` that returns a `cls`; `values` has an expression for each field.

    `np` is numpy in the expressions. `options` are those of `njit`.
    """
    fields = ", ".join(values[name] for name in cls._fields)
    return _compiled(cls, f"def build({arguments}): return cls({fields})", **options)


def row_of(cls: type[Any]) -> Any:
    """A compiled function (stacked, i) that returns the `cls` of row i of every array of `stacked`.

    Only functions compiled with `UNCOUNTED` may call it: the arrays that it returns have no reference counts.
    """
    return builder_of(cls, "stacked, i", {name: f"stacked.{name}[i]" for name in cls._fields}, **UNCOUNTED)


def copier_of(cls: type[Any]) -> Any:
    """A compiled function (into, values) that copies every array of a `cls`."""
    lines = [f"    copy(into.{name}, values.{name})" for name in cls._fields]
    return _compiled(cls, "\n".join(["def copy_all(into, values):", *lines]), **UNCOUNTED)


def numba_type(cls: type[Any]) -> Any:
    """The numba type of a NamedTuple of numbers, contiguous arrays and such tuples. `Annotated[array, 2]` has two dimensions."""
    hints = get_type_hints(cls, include_extras=True)
    return types.NamedTuple([_type_of(hints[name]) for name in cls._fields], cls)  # type: ignore[no-untyped-call]


def _type_of(hint: Any) -> Any:
    if hint in (bool, int, float):
        return from_dtype(np.dtype(hint))
    if hasattr(hint, "_fields"):
        return numba_type(hint)
    dimensions = 1
    if get_origin(hint) is Annotated:
        hint, dimensions = get_args(hint)
    [dtype] = get_args(get_args(hint)[1])
    return types.Array(from_dtype(np.dtype(dtype)), dimensions, "C")


def _compiled(cls: type[Any], source: str, **options: Any) -> Any:
    """The only function in `source`, compiled as if it were in the file of `cls`: errors and `placekit doctor` name this file."""
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
