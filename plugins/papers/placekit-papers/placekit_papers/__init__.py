"""Command `paper`: repeat the tables of papers on learned placement and judge their claims. Importing this module is light."""

from __future__ import annotations

from placekit_core import Command, hookimpl


@hookimpl
def placekit_commands() -> list[Command]:
    """`paper`."""
    return [
        Command(
            name="paper",
            usage="[NAME [ITEM [--run DIR] [OPTION=VALUE ...]]]",
            summary="tables of papers beside ours, and which claims hold",
            target="placekit_papers.command:main",
            group="look",
        )
    ]
