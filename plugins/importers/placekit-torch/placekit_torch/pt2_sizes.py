"""The sizes of dimensions in a program of `torch.export`: `Mul(Integer(2), Symbol('s0', integer=True))`.

torch evaluates them as Python, by `sympy.sympify`. Here they are sums, products and quotients of whole numbers and names.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

_MAX_NUMBER = 2**62
_OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "Add": operator.add, "Mul": operator.mul, "FloorDiv": operator.floordiv, "Mod": operator.mod, "Max": max, "Min": min,
    "PythonMod": operator.mod, "CleanDiv": operator.floordiv,
}  # fmt: skip


def _tree(text: str) -> ast.expr:
    if not isinstance(text, str) or len(text) > 1000:
        raise ValueError(f"a size is {text!r:.60}")
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ValueError(f"a size is {text!r:.60}") from None


def symbols_in(text: str) -> list[str]:
    """The names of dimensions in the size `text`."""
    found = []
    for node in ast.walk(_tree(text)):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Symbol" and node.args:
            found.append(str(getattr(node.args[0], "value", "")))
        elif isinstance(node, ast.Name) and node.id not in (*_OPERATIONS, "Symbol", "Integer"):
            found.append(node.id)
    return list(dict.fromkeys(found))


def evaluated(text: str, sizes: Mapping[str, Any]) -> int:
    """The size `text` (`Mul(Integer(2), Symbol('s0'))`), for these sizes of its dimensions. Raises ValueError."""

    def value(node: ast.expr) -> int:
        if isinstance(node, ast.Name) and node.id in sizes:
            return int(sizes[node.id])
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return node.value
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
            name, first = node.func.id, node.args[0]
            if name == "Symbol" and isinstance(first, ast.Constant) and str(first.value) in sizes:
                return int(sizes[str(first.value)])
            if name == "Integer":
                return value(first)
            if name in _OPERATIONS:
                total = value(first)
                for each in node.args[1:]:
                    total = _OPERATIONS[name](total, value(each))
                    if abs(total) > _MAX_NUMBER:
                        break
                return total
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -value(node.operand)
        raise ValueError(f"a size is {text!r:.100}, which is no sum or product of dimensions")

    try:
        return value(_tree(text))
    except ZeroDivisionError:
        raise ValueError(f"a size is {text!r:.100}") from None
