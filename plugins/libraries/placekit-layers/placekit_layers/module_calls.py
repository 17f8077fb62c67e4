"""Names the call of a module that each operation belongs to, with module paths cut at given blocks."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import cache

from placekit_core import Graph, GraphError, Labels


def block_tags(graph: Graph, blocks: Sequence[str] = (), depth: int | None = None) -> list[str]:
    """[n] `path@number` of the block of each operation (`path` where the number is 0); empty where it has none.

    Module paths are cut at the longest block that matches one of the patterns `blocks`, else after `depth` parts. In a pattern
    `*` is any text without dots, and `**` any number of parts.

    The number tells calls of a block apart. In a graph with the column `call_path` it is the call of the module at which the
    path was cut, in any other graph that of the operation's own module.

    Raises:
        GraphError: a `call_path` is not one number for each part of the module path.
    """
    patterns = [pattern.split(".") for pattern in blocks]

    @cache
    def length(path: str) -> int:
        """Parts of the path up to its cut: the longest block, or the module itself."""
        parts = path.split(".") if path else []
        matched = (k for k in range(len(parts), 0, -1) if any(_matches(parts[:k], p) for p in patterns))
        return next(matched, min(len(parts), depth or len(parts)))

    @cache
    def tag(path: str, calls: str, call: int) -> str:
        cut = length(path)
        if calls and cut:
            call = int(calls.split(".")[cut - 1])
        block = ".".join(path.split(".")[:cut])
        return f"{block}@{call}" if block and call else block

    column = graph.columns.get("call_path")
    calls = column.tolist() if isinstance(column, Labels) else [""] * graph.n
    for v, (path, numbers) in enumerate(zip(graph.module.tolist(), calls, strict=True)):
        parts = numbers.split(".")
        if numbers and not (len(parts) == len(path.split(".")) and all(part.isdecimal() for part in parts)):
            raise GraphError(
                f"operation {graph.op_name[v]!r} has the call_path {numbers!r} and the module {path!r}",
                "call_path has a number for each part of the module path: 0.0.1 for h.0.attention; it may be empty",
            )
    return [tag(*row) for row in zip(graph.module.tolist(), calls, graph.call.tolist(), strict=True)]


def _matches(path: Sequence[str], pattern: Sequence[str]) -> bool:
    """Whether the parts of a path match those of a pattern, where `**` matches any number of parts."""
    if not pattern:
        return not path
    if pattern[0] == "**":
        return any(_matches(path[k:], pattern[1:]) for k in range(len(path) + 1))
    return bool(path) and fnmatchcase(path[0], pattern[0]) and _matches(path[1:], pattern[1:])
