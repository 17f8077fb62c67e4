"""What a stream can show: its width, and whether it takes more than plain text."""

from __future__ import annotations

import os
from typing import TextIO

WIDTH, NARROWEST = 80, 40
"""Columns of text: at most `WIDTH`, also on wider terminals and in files, so that it looks the same in a document."""


def is_terminal(stream: TextIO) -> bool:
    """Whether a stream is a terminal that can move its cursor."""
    return stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def styled(stream: TextIO) -> bool:
    """Whether text on this stream may be bold or coloured: on terminals, unless `NO_COLOR` is set (https://no-color.org)."""
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
