"""The findings of `placekit doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Finding:
    """One line of the report; `hint` says what to do if the level is not `ok`."""

    level: Literal["ok", "warn", "fail"]
    text: str
    hint: str = ""


def ok(text: str) -> Finding:
    """Something works."""
    return Finding("ok", text)


def warn(text: str, hint: str) -> Finding:
    """Something is missing or doubtful, and the rest works without it."""
    return Finding("warn", text, hint)


def fail(text: str, hint: str) -> Finding:
    """Something does not work."""
    return Finding("fail", text, hint)
