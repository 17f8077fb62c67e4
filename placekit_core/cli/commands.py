"""The core's own commands, contributed in the same way as those of plugins."""

from __future__ import annotations

from placekit_core.contracts.hookspecs import Command, hookimpl


@hookimpl
def placekit_commands() -> list[Command]:
    """`run` and `plugins`."""
    return [
        Command(
            name="run",
            usage="[FILE] [OPTION=VALUE ...]",
            summary="place a program; resume=DIR continues a run or sweep",
            target="placekit_core.cli.run:main",
            group="place",
        ),
        Command(
            name="plugins",
            usage="[WORD]",
            summary="what is installed, and what is broken and why",
            target="placekit_core.cli.plugins:main",
            group="install and extend",
        ),
    ]
