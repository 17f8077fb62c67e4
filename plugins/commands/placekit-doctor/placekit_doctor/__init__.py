"""Commands `doctor`, `completion` and `quickstart`. Importing this module is light."""

from __future__ import annotations

from placekit_core import Command, hookimpl


@hookimpl
def placekit_commands() -> list[Command]:
    """`doctor`, `completion`, `quickstart`."""
    return [
        Command(
            name="doctor",
            usage="[--thorough | --licences]",
            summary="check this installation, and say what to do",
            target="placekit_doctor.doctor:main",
            group="install and extend",
        ),
        Command(
            name="completion",
            usage="bash|zsh|fish",
            summary="print a script that completes commands",
            target="placekit_doctor.completion:main",
            group="install and extend",
            completer="placekit_doctor.completion:complete_shells",
        ),
        Command(
            name="quickstart",
            usage="[DIR]",
            summary="write a small project that runs: model, machine, script",
            target="placekit_doctor.quickstart:main",
            group="place",
            completer="placekit_doctor.quickstart:complete",
        ),
    ]
