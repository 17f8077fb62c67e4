"""What a stream can show: its width, and whether it takes more than plain text."""

from __future__ import annotations

import os
import shutil
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
    return max(NARROWEST, min(WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns))


def quiet() -> bool:
    """Whether the user wants no progress on standard error: `PLACEKIT_QUIET` is set."""
    return bool(os.environ.get("PLACEKIT_QUIET"))
