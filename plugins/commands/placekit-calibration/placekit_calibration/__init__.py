"""Commands that measure. Importing this module is light."""

from __future__ import annotations

from placekit_core import Command, hookimpl


@hookimpl
def placekit_commands() -> list[Command]:
    """`cluster profile`, `fidelity`."""
    return [
        Command(
            name="cluster profile",
            usage="OUT_DIR [OPTION=VALUE ...]",
            summary="measure this machine and a program's operations",
            target="placekit_calibration.calibrate:main",
            group="measure",
        ),
        Command(
            name="fidelity",
            usage="OUT_DIR [OPTION=VALUE ...]",
            summary="simulated beside measured seconds of placements",
            target="placekit_calibration.fidelity:main",
            group="measure",
        ),
    ]
