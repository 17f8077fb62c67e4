"""The command `placekit accuracy`: predictions beside published measurements."""

from __future__ import annotations

from placekit_core import Command, hookimpl


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
