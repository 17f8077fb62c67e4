"""Keeps the graphs that importers make, so that a second `placekit run` of a program needs neither torch nor its tracing.

A kept graph is found by a key that is known before an import (`_key`). It is used only if nothing that Python code read during
the import has changed (watch.py). This covers the modules and shared libraries of the process, the files that were opened or
asked for, even absent ones, and the names in folders that were listed or searched for modules. In case of doubt, nothing is kept.
Importers take part by options of class `ImporterOptions`.

Only a command keeps an import, and only its first one. In other processes, the user's code may have changed something that the
import depends on, such as the default type of torch.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import logging
import os
import platform
import re
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy as np
from pydantic import BaseModel

from placekit_core.contracts.cores import usable_cores
from placekit_core.contracts.errors import ImporterError
from placekit_core.contracts.files import read_bytes, write_atomically
from placekit_core.contracts.graph_file import graph_bytes, parse_graph
from placekit_core.contracts.graph_rules import validate_graph
from placekit_core.contracts.options import ImporterOptions
from placekit_core.contracts.program import Deferred, Executable, Program
from placekit_core.contracts.progress import announce
from placekit_core.contracts.state_file import pack_state, unpack_state
from placekit_core.run.entries import Entry
from placekit_core.run.watch import Watch, changed

VARIABLE = "PLACEKIT_CACHE_DIR"
LEAST_S = 1.0
"""Quicker imports are not worth a file."""
LIMIT = 2**30
"""Bytes of all kept imports; beyond it, the oldest ones are removed."""
_VERSION = 1  # of what a file holds
_ENDING = ".import"
_log = logging.getLogger(__name__)
# Variables of a terminal or session; graphs that depend on any other one are kept apart.
_SESSION = re.compile(
    rf"_|{VARIABLE}|(OLD)?PWD|SHLVL|COLUMNS|LINES|WINDOWID|STY|TERM|COLORTERM|TMUX|(TERM|SSH|TMUX|XDG_SESSION|DBUS|VSCODE)_.*"
)
_imported_before = False


def folder() -> Path:
    """The folder of kept imports."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(os.environ.get(VARIABLE) or os.path.join(home, "placekit"), "imports")


def kept() -> dict[Path, int]:
    """The files of kept imports and their bytes, the oldest first; none if the folder cannot be read."""
    found = []
    with contextlib.suppress(OSError):
        for path in folder().iterdir():
            with contextlib.suppress(OSError):  # another process has removed it
                if path.name.endswith((_ENDING, ".part")):
                    found.append((path.stat().st_mtime_ns, path, path.stat().st_size))
    return {path: size for _, path, size in sorted(found)}


def load(entry: Entry, options: BaseModel, keep: bool, began_ns: int) -> list[Program]:
    """The programs of an importer: kept ones if nothing that they depend on has changed, else newly imported.

    Args:
        keep: whether this process may take kept programs, and keep its own.
        began_ns: when this process had read only few of its modules, in nanoseconds since the epoch.
    """
    if not (keep and isinstance(options, ImporterOptions) and options.cache):
        return _import(entry, options)
    path = folder() / f"{_key(entry, options)}{_ENDING}"
    try:
        programs = _read(path, entry, options)
    except Exception as e:  # a damaged file fails in many ways
        _log.debug("%s is not used: %s", path, e)
    else:
        return programs
    if _imported_before:
        return _import(entry, options)
    watch, started = Watch(began_ns), time.perf_counter()
    with watch.watching():
        programs = _import(entry, options)
    if time.perf_counter() - started >= LEAST_S:
        try:
            _write(path, programs, watch)
        except Exception as e:  # keeping must not cost a run
            _log.debug("%s is not kept: %s", path, e)
    return programs


def _import(entry: Entry, options: BaseModel) -> list[Program]:
    global _imported_before
    _imported_before = True
    programs: list[Program] = entry.build(options).load()
    return programs


def _key(entry: Entry, options: BaseModel) -> str:
    """Hash of what an import depends on and that is known before it."""
    variables = {k: v for k, v in os.environ.items() if not _SESSION.fullmatch(k)}
    with contextlib.suppress(OSError):
        variables["/dev"] = str(sorted(name for name in os.listdir("/dev") if name.startswith(("nvidia", "kfd"))))
    about = [
        _VERSION, entry.component.target, entry.distribution, entry.version, options.model_dump(mode="json"), os.getcwd(),
        sys.path, sys.version, sys.prefix, sys.flags, sys.warnoptions, sorted(sys._xoptions.items()), platform.system(),
        platform.node(), platform.release(), platform.machine(), usable_cores(), variables,
    ]  # fmt: skip
    return hashlib.sha256(json.dumps(about, sort_keys=True, default=str).encode()).hexdigest()[:32]


def _read(path: Path, entry: Entry, options: BaseModel) -> list[Program]:
    """The programs in a file of kept imports. Raises OSError, or ValueError if it is damaged or anything has changed."""
    state = unpack_state(read_bytes(path, LIMIT))
    about = json.loads(state["about"])
    if difference := changed(about["files"], about["folders"]):
        raise ValueError(difference)
    programs: list[Program] = []

    @functools.cache
    def again() -> list[Program]:
        """The programs themselves, for backends that run them."""
        imported = _import(entry, options)
        if [p.graph.fingerprint for p in imported] != [p.graph.fingerprint for p in programs]:
            path.unlink(missing_ok=True)
            raise ImporterError(
                f"importing {programs[0].graph.name!r} again gave another graph than the kept one, which was removed",
                "start again; if every import gives another graph, set importer.cache=false",
            )
        return imported

    def imported_again(i: int) -> Program:
        return again()[i]

    for i, (data, (recipe, split)) in enumerate(zip(state["graphs"], about["programs"], strict=True)):
        validate_graph(graph := parse_graph(data.tobytes()))
        made = None if recipe is None else Deferred(functools.partial(imported_again, i), graph, recipe)
        programs.append(Program(graph, executable=cast("Executable | None", made), split=split))
    announce(f"  graph kept since {about['date']} (importer.cache=false imports again)")
    for text in about["warnings"]:
        warnings.warn(text, stacklevel=2)
    return programs


def _write(path: Path, programs: Sequence[Program], watch: Watch) -> None:
    """Keep programs, unless there is a doubt. Raises OSError, ValueError or PlacekitError if they cannot be kept."""
    files, folders = watch.finish()
    if watch.doubts or any(p.costs is not None or p.cluster is not None for p in programs):
        raise ValueError("; ".join(watch.doubts[:3]) or "it has costs or a machine")
    graphs = [graph_bytes(p.graph) for p in programs]
    for program, data in zip(programs, graphs, strict=True):
        if parse_graph(data).attributes != program.graph.attributes:
            raise ValueError(f"a file holds no attributes like those of {program.graph.name}")
    about = {
        "date": time.strftime("%Y-%m-%d"),
        "files": files,
        "folders": folders,
        "warnings": watch.warnings,
        "programs": [(None if p.executable is None else dict(p.executable.recipe), p.split) for p in programs],
    }
    state = {"about": json.dumps(about), "graphs": [np.frombuffer(data, np.uint8) for data in graphs]}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, pack_state(state))
    excess = sum(kept().values()) - LIMIT
    for old, size in kept().items():
        if excess > 0:
            old.unlink(missing_ok=True)
            excess -= size
