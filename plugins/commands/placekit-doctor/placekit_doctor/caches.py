"""The check of compiled functions on disk, for `placekit doctor`.

numba stores a compiled function for its source file, and compiles it anew when that file changes. A constant or function that
it uses from another file is frozen into it.
"""

from __future__ import annotations

import ast
import glob
import os
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from placekit_core.contracts.units import mebibytes
from placekit_doctor.findings import Finding, ok, warn


def caches(classes: Iterable[type[Any]]) -> Iterator[Finding]:
    """Folders, sizes, and entries that are older than their sources. `classes` are those of the components."""
    override = os.environ.get("NUMBA_CACHE_DIR")
    if override:
        yield ok(f"NUMBA_CACHE_DIR is {override}")
    packages = {"placekit_scheduling"} | {c.__module__.partition(".")[0] for c in classes}
    folders: dict[Path, list[Any]] = {}
    for function in compiled(packages):
        folders.setdefault(Path(function.stats.cache_path), []).append(function)
    if not folders:
        yield ok("no function is compiled to disk")
    for folder, functions in sorted(folders.items()):
        yield from _folder(folder, functions)


def compiled(packages: Iterable[str]) -> list[Any]:
    """The functions of the imported modules of `packages` that numba keeps on disk."""
    if "numba" not in sys.modules:
        return []
    from numba.core.dispatcher import Dispatcher

    found = {}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in packages:
            for value in vars(module).values():
                if isinstance(value, Dispatcher) and value.stats.cache_path:
                    found[id(value)] = value
    return list(found.values())


def _folder(folder: Path, functions: list[Any]) -> Iterator[Finding]:
    current = {f: _files(folder, f) for f in functions}
    stems = {Path(f.py_func.__code__.co_filename).stem for f in functions}
    files = {p for stem in stems for p in folder.glob(f"{glob.escape(stem)}.*.nb[ic]")}
    old = files - {p for entries in current.values() for p in entries}
    text = f"{len(functions)} compiled functions, {len(files)} files, {mebibytes(_size(files))} in {folder}"
    if old:
        text += f" ({mebibytes(_size(old))} of functions that have changed since)"
    existing = next(p for p in (folder, *folder.parents) if p.exists())
    if not os.access(existing, os.W_OK):
        yield warn(f"{text}, which cannot be written to", "set NUMBA_CACHE_DIR to a folder that can")
    else:
        yield ok(text)
    stale = sorted({f.py_func.__name__ for f, entries in current.items() if is_stale(f, entries)})
    if stale:
        yield warn(
            f"compiled before code that they use from another file changed: {', '.join(stale)}",
            f"remove the files *.nbi and *.nbc in {folder}",
        )


def is_stale(function: Any, entries: Iterable[Path]) -> bool:
    """Whether one of `entries` would be used although a file that `function` takes something from is newer."""
    own = _changed(function.py_func.__code__.co_filename)
    newest = max(map(_changed, sources(function)), default=0.0)
    return any(own <= p.stat().st_mtime < newest for p in entries if p.suffix == ".nbc")


def sources(function: Any) -> set[str]:
    """Other files with constants and compiled functions that a compiled function uses, directly or through others."""
    found: set[str] = set()
    todo, seen = [function], set()
    own = function.py_func.__module__.partition(".")[0]
    while todo:
        used = todo.pop()
        if id(used) in seen:
            continue
        seen.add(id(used))
        code, names = used.py_func.__code__, used.py_func.__globals__
        found.add(code.co_filename)
        origins = _imports(code.co_filename)
        for name in code.co_names:
            value = names.get(name)
            if hasattr(value, "py_func"):
                todo.append(value)
            elif isinstance(value, ModuleType) or name in origins:
                module = value if isinstance(value, ModuleType) else sys.modules.get(origins[name])
                file = getattr(module, "__file__", None)
                if file and module and module.__name__.partition(".")[0] in {"placekit_scheduling", own}:
                    found.add(file)
    return found - {function.py_func.__code__.co_filename}


@cache
def _imports(file: str) -> dict[str, str]:
    """The module of each name that a file imports by `from module import name`."""
    tree = ast.parse(Path(file).read_text())
    return {
        alias.asname or alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and not node.level
        for alias in node.names
    }


def _files(folder: Path, function: Any) -> list[Path]:
    code = function.py_func.__code__
    stem, name = Path(code.co_filename).stem, function.py_func.__qualname__.replace("<", "").replace(">", "")
    version = f"py{sys.version_info.major}{sys.version_info.minor}"
    return list(folder.glob(f"{glob.escape(f'{stem}.{name}-{code.co_firstlineno}.{version}')}*.nb[ic]"))


def _size(files: Iterable[Path]) -> float:
    return float(sum(p.stat().st_size for p in files))


def _changed(file: str) -> float:
    return Path(file).stat().st_mtime
