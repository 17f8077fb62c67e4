"""Notes what Python code reads while a program is imported, and tells later whether all of it is still the same.

A file is the same if its size, its times, its inode and its file system are. Nobody can set the time of the last change (ctime),
so no edit goes unseen. Anything that cannot be tracked, such as a connection or another process, counts as a doubt.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
import re
import stat
import sys
import sysconfig
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.machinery import FileFinder
from importlib.util import source_from_cache
from typing import Any

SETTLED_NS = 2 * 10**9
"""A file that changed more recently is a doubt: on a coarse clock, two edits may have the same time."""
DOUBTS = {
    "socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto", "socket.sendmsg", "sqlite3.connect",
    "subprocess.Popen", "os.system", "os.fork", "os.forkpty", "os.exec", "os.posix_spawn",
}  # fmt: skip
"""Audit events (docs.python.org/3/library/audit_events.html) after which an import may depend on something that is not
tracked."""
UNSEEN = (
    "cv2",
    "h5py",
    "netCDF4",
    "pandas",
    "polars",
    "pyarrow",
    "safetensors",
    "sentencepiece",
    "tables",
    "tokenizers",
)
"""Libraries whose compiled code opens files that a user's code names, without asking Python first whether they exist."""
_METADATA = "-info"  # ending of the folders of installed distributions
# these describe the computer, which is part of a kept import's key; /dev/shm has files like any other folder
_SYSTEM = re.compile(r"/(proc|sys|dev(?!/shm/))/")
_stat, _lstat, _readlink = os.stat, os.lstat, os.readlink  # `Watch` replaces them for a while


def changed(files: Mapping[str, Any], folders: Mapping[str, Any]) -> str:
    """The first difference from what `Watch.finish` returned, in words; empty if everything is the same."""
    for file, before in files.items():
        if _state(file) != before:
            return f"{file} has changed"
    for place, (wanted, before) in folders.items():
        if _present(_names(place), wanted) != before:
            return f"{place} has other files"
    return ""


State = list[str | int] | None


def _state(path: str) -> State:
    """The target of a link, the kind of file, and for a plain file its identity and times; None if nothing exists."""
    link = ""
    try:
        found = _lstat(path)
        if stat.S_ISLNK(found.st_mode):
            link, found = _readlink(path), _stat(path)
    except (OSError, ValueError):
        return None
    about: list[str | int] = [link, stat.S_IFMT(found.st_mode)]
    if stat.S_ISREG(found.st_mode):
        about += [found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]
    return about


def _names(place: str) -> list[str]:
    try:
        return os.listdir(place)
    except OSError:
        return []


def _present(names: Iterable[str], wanted: Iterable[str]) -> list[str]:
    """The names that matter to an import: modules in `wanted`; also all distributions for `-info`, or all names for `*`."""
    wanted = frozenset(wanted)
    return sorted(
        name
        for name in names
        if name != "__pycache__"
        and (name.partition(".")[0] in wanted or "*" in wanted or (_METADATA in wanted and name.endswith(_METADATA)))
    )


_hooked = False
_listener: Watch | None = None


def _hear_of(watch: Watch | None) -> None:
    """Let audit events be heard by `watch`. Nothing removes a hook, and each slows down every call of `id`: there is only one."""
    global _listener, _hooked
    _listener = watch
    if not _hooked:
        _hooked = True
        sys.addaudithook(_hook)


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if _listener is not None:
        _listener._hear(event, arguments)


class Watch:
    """Notes what Python code reads during an import.

    Attributes:
        doubts: why the import cannot be kept.
        warnings: the texts of warnings that were shown.
    """

    def __init__(self, began_ns: int) -> None:
        self.doubts: list[str] = []
        self.warnings: list[str] = []
        self._began_ns, self._on, self._loaded = began_ns, True, set(sys.modules)
        self._files: dict[str, State] = {}  # at first sight
        self._folders: dict[str, list[str]] = {}  # names in each folder, at first sight
        self._wanted: dict[str, set[str]] = {}

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Note what is read within the block."""
        functions = [(os, name, getattr(os, name)) for name in ("stat", "lstat", "access", "readlink")]
        if of_pathlib := getattr(pathlib, "_normal_accessor", None):  # Python 3.10's pathlib has its own reference
            functions.append((of_pathlib, "stat", os.stat))
        find_spec, shown = FileFinder.find_spec, warnings.showwarning

        def find(finder: FileFinder, name: str, target: Any = None) -> Any:
            self._search(finder.path, name.rpartition(".")[2])
            found = find_spec(finder, name, target)
            if found is not None and found.origin:
                self._see(found.origin)
            return found

        def show(message: Any, *about: Any, **more: Any) -> None:
            self.warnings.append(str(message))
            shown(message, *about, **more)

        _hear_of(self)
        try:
            for place, name, function in functions:  # no audit event tells of them
                setattr(place, name, self._noting(function))
            FileFinder.find_spec, warnings.showwarning = find, show  # type: ignore[method-assign, assignment]
            yield
        finally:
            self._on = False
            _hear_of(None)
            for place, name, function in functions:
                setattr(place, name, function)
            FileFinder.find_spec, warnings.showwarning = find_spec, shown  # type: ignore[method-assign]

    def finish(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Everything that was read: the states of files, and of folders what was wanted and found there."""
        known = set()
        for name, module in list(sys.modules.items()):
            file = _own(module, "__file__")
            if isinstance(file, str):
                parent, _, tail = name.rpartition(".")
                for place in _own(sys.modules.get(parent), "__path__") or () if parent else sys.path:
                    self._search(place, tail)
                self._see(file, self._began_ns)
                if name in self._loaded or name.startswith("placekit_"):
                    known.add(file)
        for place in sys.path:  # modules may be in one that does not exist yet, or in an archive
            self._see(place)
        own = [f for f in self._files if f.endswith(".py") and f not in known and not f.startswith(_installed())]
        for name in UNSEEN if own else ():
            if name in sys.modules and any(re.search(rf"\b{name}\b", _text(file)) for file in own):
                self.doubts.append(f"{name} opens files unseen")
        for library in _mapped():
            self._see(library, self._began_ns)
        wanted = {place: sorted(some) for place, some in self._wanted.items()}
        folders = {place: (wanted[place], _present(names, wanted[place])) for place, names in self._folders.items()}
        self.doubts += filter(None, [changed(self._files, folders)])
        return self._files, folders

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Note an audit event."""
        if event == "open":
            path, _, flags = arguments
            if not flags & (os.O_WRONLY | os.O_RDWR):
                self._see(path)
            # a new file, or one without a name in a folder, is a temporary one, or compiled code
            elif not (flags & os.O_EXCL or _SYSTEM.match(str(path)) or os.path.isdir(path)):
                self.doubts.append(f"{path} is written")
        elif event in ("os.listdir", "os.scandir"):
            code = sys._getframe(2).f_code
            if code.co_name == "children" and "metadata" in code.co_filename:
                self._list(arguments[0], _METADATA)
            elif code is not _names.__code__ and code.co_name != "_fill_cache":  # FileFinder's: see `find`
                self._list(arguments[0], "*")
        elif event in DOUBTS:
            self.doubts.append(event)

    def _noting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def noting(path: Any, *about: Any, **more: Any) -> Any:
            if self._on:  # a module may have kept this function
                self._see(path)
                if more.get("dir_fd") is not None:
                    self.doubts.append(f"{path} in an open folder")
            return function(path, *about, **more)

        return noting

    def _see(self, path: Any, before_ns: int | None = None) -> None:
        """Note the state of a file, which must not have changed shortly before `before_ns`, or before now."""
        if not isinstance(path, str | bytes | os.PathLike):  # an open file
            return
        file = os.path.abspath(os.fsdecode(path))
        if file.endswith(".pyc"):
            with contextlib.suppress(ValueError):  # a module without its source
                file = source_from_cache(file)
        if file not in self._files and not _SYSTEM.match(file):
            self._files[file] = state = _state(file)
            if state is not None and int(state[-1]) > (before_ns or time.time_ns()) - SETTLED_NS:
                self.doubts.append(f"{file} has changed recently")

    def _search(self, place: Any, name: str) -> None:
        """Note that a module was looked for in a folder. A folder of its name comes first once it has an `__init__`."""
        if name in self._list(place, name):
            self._list(os.path.join(place, name), "__init__")

    def _list(self, place: Any, wanted: str) -> list[str]:
        """Note that the names in a folder were asked for. Returns all of them."""
        if isinstance(place, int):
            self.doubts.append("an open folder is listed")
            return []
        path = os.path.abspath(os.fsdecode(place or "."))
        if path not in self._folders:
            self._folders[path] = _names(path)
        self._wanted.setdefault(path, set()).add(wanted)
        return self._folders[path]


def _own(module: Any, name: str) -> Any:
    """An attribute of a module, without calling a `__getattr__` of its own."""
    return getattr(module, "__dict__", {}).get(name)


@functools.cache
def _installed() -> tuple[str, ...]:
    """The folders of installed code."""
    paths = sysconfig.get_paths()
    return tuple(paths[key] + os.sep for key in ("stdlib", "platstdlib", "purelib", "platlib"))


def _text(file: str) -> str:
    """The text of a file; empty if it cannot be read."""
    try:
        return pathlib.Path(file).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _mapped() -> set[str]:
    """The files that this process has mapped into memory, such as the libraries of extension modules, where Linux says so."""
    lines = _text("/proc/self/maps").splitlines()
    return {parts[5] for line in lines if len(parts := line.split(None, 5)) == 6 and parts[5].startswith("/")}
