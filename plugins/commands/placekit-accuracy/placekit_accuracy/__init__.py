"""The command `placekit accuracy`: predictions beside published measurements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from placekit_core import Command, hookimpl

if TYPE_CHECKING:
    from placekit_core import ErrorBand, Problem


@hookimpl
def placekit_commands() -> list[Command]:
    """The command."""
    return [
        Command(
            "accuracy",
            "[WORD]",
            "predicted beside published speeds: the error by kind of row",
            "placekit_accuracy.command:main",
            "measure",
        )
    ]


@hookimpl
def placekit_error_band(problem: Problem, devices: Sequence[int]) -> ErrorBand:
    """The band of held-out rows like the problem."""
    from placekit_accuracy.bands import band

    return band(problem, devices)
