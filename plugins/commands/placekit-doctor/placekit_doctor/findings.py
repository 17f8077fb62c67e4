"""The findings of `placekit doctor`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Literal

from placekit_core.run import terminal


@dataclass(frozen=True)
class Finding:
    """A line of the report; `hint` says what to do unless the level is `ok`."""

    level: Literal["ok", "warn", "fail"]
    text: str
    hint: str = ""


def working(text: str) -> None:
    """Show progress on a terminal, replaced by the next call and the next line of the report."""
    if terminal.is_terminal(sys.stderr):
        room = terminal.columns(sys.stderr) - 1
        text = terminal.harmless(text)
        print(f"\r{text:{room}.{room}}\r", end="", file=terminal.unfiltered(sys.stderr), flush=True)


def ok(text: str) -> Finding:
    """Something works."""
    return Finding("ok", text)


def warn(text: str, hint: str) -> Finding:
    """Something is missing or doubtful, but the rest works."""
    return Finding("warn", text, hint)


def fail(text: str, hint: str) -> Finding:
    """Something does not work."""
    return Finding("fail", text, hint)
