"""Logger `report`: the profile of a run's placement as a figure. Importing this module imports no matplotlib."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from placekit_core.hookspecs import hookimpl

if TYPE_CHECKING:
    from placekit_core.fidelity import Fidelity
    from placekit_core.profile import Profile
    from placekit_core.report import Result

FILE = "profile.png"
LOGS_BY_DEFAULT = True


@hookimpl
def placekit_run_finished(run_dir: Path, result: Result) -> None:
    """`profile.png` beside the `profile.json` of each program for which a placement was found."""
    from placekit_core.profile import load_profile
    from placekit_report.figure import draw

    for program in result.programs:
        if program.schedule is not None:
            folder = run_dir / program.summary.directory
            draw(folder / FILE, {result.summary.policy: load_profile(folder)})


@hookimpl
def placekit_draw_profiles(path: Path, profiles: Mapping[str, Profile]) -> bool:
    """The runs side by side, with the same axes and colours."""
    from placekit_report.figure import draw

    draw(path, profiles)
    return True


@hookimpl
def placekit_draw_fidelity(path: Path, fidelity: Fidelity) -> bool:
    """A point per placement: simulated over measured seconds."""
    from placekit_report.scatter import draw

    draw(path, fidelity)
    return True
