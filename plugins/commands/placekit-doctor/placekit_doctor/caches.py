"""The check of compiled functions on disk, for `placekit doctor`.

placekit's functions are compiled anew when what they use changes, in their own file or another
(`placekit_scheduling.jit.njit`).
"""

from __future__ import annotations

import glob
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from placekit_core.contracts.units import mebibytes
from placekit_doctor.findings import Finding, ok, warn


def caches(classes: Iterable[type[Any]]) -> Iterator[Finding]:
    """Folders and sizes. `classes` are those of the components."""
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


def _files(folder: Path, function: Any) -> list[Path]:
    code = function.py_func.__code__
    stem, name = Path(code.co_filename).stem, function.py_func.__qualname__.replace("<", "").replace(">", "")
    version = f"py{sys.version_info.major}{sys.version_info.minor}"
    return list(folder.glob(f"{glob.escape(f'{stem}.{name}-{code.co_firstlineno}.{version}')}*.nb[ic]"))


def _size(files: Iterable[Path]) -> float:
    return float(sum(p.stat().st_size for p in files))
