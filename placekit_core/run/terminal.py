"""The width of a stream, whether it takes more than plain text, and streams that keep text from changing the terminal."""

from __future__ import annotations

import os
from typing import Any, TextIO

WIDTH, NARROWEST = 80, 40
"""Columns of text: at most `WIDTH`, also on wider terminals and in files, so that it looks the same in a document."""


def is_terminal(stream: TextIO) -> bool:
    """Whether a stream is a terminal that can move its cursor."""
    return stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def styled(stream: TextIO) -> bool:
    """Whether text on this stream may be bold or colored: on terminals, unless `NO_COLOR` is set (https://no-color.org)."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR")


def columns(stream: TextIO) -> int:
    """The columns for text on this stream: fewer than `WIDTH` on a narrow terminal only."""
    if not stream.isatty():
        return WIDTH
    try:  # the size of this very terminal: standard output may be a file while standard error is not
        wide = int(os.environ.get("COLUMNS") or 0) or os.get_terminal_size(stream.fileno()).columns or WIDTH
    except (OSError, ValueError):
        wide = WIDTH
    return max(NARROWEST, min(WIDTH, wide))


def quiet() -> bool:
    """Whether the user wants no progress on standard error: `PLACEKIT_QUIET` is set."""
    return bool(os.environ.get("PLACEKIT_QUIET"))


_CONTROL = [*range(9), *range(11, 32), *range(0x7F, 0xA0)]  # all but tabulator and line feed
_BIDIRECTIONAL = [0x61C, 0x200E, 0x200F, 0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
_ESCAPES = {n: f"\\x{n:02x}" if n < 256 else f"\\u{n:04x}" for n in (*_CONTROL, *_BIDIRECTIONAL)}


def harmless(text: str) -> str:
    """Escape control characters, which can change a terminal, and marks that reverse the order of letters."""
    return text.translate(_ESCAPES)


class Harmless:
    """A text stream that escapes the text of files: names of devices, operations and machines, and errors."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        """Write the text; returns its length."""
        self.stream.write(harmless(text))
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Write the lines."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        if name == "stream":  # of a copy that is being made
            raise AttributeError(name)
        return getattr(self.stream, name)


def unfiltered(stream: Any) -> TextIO:
    """The stream for code that moves the cursor."""
    found: TextIO = stream.stream if isinstance(stream, Harmless) else stream
    return found
