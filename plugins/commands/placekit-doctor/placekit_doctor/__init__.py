"""The commands `doctor` and `quickstart`."""

from __future__ import annotations

from placekit_core import Command, hookimpl


@hookimpl
def placekit_commands() -> list[Command]:
    """`doctor` and `quickstart`."""
    return [
        Command(
            name="doctor",
            usage="[--all] [--json] [--clear-imports]",
            summary="check this installation, and say what to do",
            target="placekit_doctor.doctor:main",
            group="install and extend",
        ),
        Command(
            name="quickstart",
            usage="[DIR]",
            summary="write a small project that runs: model, machine, script",
            target="placekit_doctor.quickstart:main",
            group="place",
        ),
    ]
