"""Command `compare`; a sweep ends with its table, too. Importing this module is light."""

from __future__ import annotations

from pathlib import Path

from placekit_core import Command, Registry, hookimpl


@hookimpl
def placekit_commands() -> list[Command]:
    """`compare`."""
    return [
        Command(
            name="compare",
            usage="DIR ... [--tex | --csv | --md | --html | --json] [--out FILE] [--profile] [--png FILE]",
            summary="tables and plots over runs; --profile: where time goes",
            target="placekit_compare.command:main",
            group="look",
        )
    ]


@hookimpl
def placekit_sweep_finished(directory: Path, registry: Registry) -> None:
    """The table of the sweep's runs."""
    from placekit_compare.text import show_folder

    show_folder(directory, registry)
