"""What `fuzz_files.py` watches while a file is read: Python's audit events."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numba

FORBIDDEN = ("os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "os.fork", "ctypes.dlopen", "pickle.find_class",
             "marshal.loads", "socket.connect", "shutil.rmtree", "os.symlink", "os.link")  # fmt: skip
"""Audit events that reading a file must not raise; and `open` for writing, and `os.remove`, outside of its folder."""

NUMBA = Path(numba.__file__).parent


class Watch:
    """Notes what is forbidden while it is `armed`; a hook for Python's audit events cannot be taken out again."""

    def __init__(self) -> None:
        self.folder, self.armed, self.seen = Path(), False, list[str]()
        sys.addaudithook(self._note)

    @contextlib.contextmanager
    def on(self, folder: Path) -> Iterator[None]:
        """Watch in the block; `folder` is where files may be written."""
        self.folder, self.armed = folder.resolve(), True
        try:
            yield
        finally:
            self.armed = False

    def taken(self) -> str:
        """What was noted since the last call."""
        text = ", ".join(dict.fromkeys(self.seen))
        self.seen.clear()
        return text

    def _note(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.armed:
            return
        if event in FORBIDDEN and not self._trusted():
            self.seen.append(f"{event} {arguments[:1]!r:.80}")
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if (writes or event in ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.truncate")) and isinstance(
            arguments[0], str | os.PathLike
        ):
            path = Path(os.path.realpath(os.fspath(arguments[0])))
            if (
                self.folder not in (path, *path.parents)
                and "__pycache__" not in path.parts
                and path != Path(os.devnull)
            ):
                self.seen.append(f"{event} {path!s:.120}")

    def _trusted(self) -> bool:
        """Whether Python imports a module, or numba loads its compiled code: both load libraries, and numba unpickles."""
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            file = frame.f_code.co_filename
            if file.startswith("<frozen importlib") or NUMBA in Path(file).parents:
                return True
            frame = frame.f_back
        return False
