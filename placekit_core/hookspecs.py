"""The hooks. They collect components; the abstract base classes in interfaces.py are the contracts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pluggy
from pydantic import BaseModel

if TYPE_CHECKING:
    from placekit_core.fidelity import Fidelity
    from placekit_core.profile import Profile
    from placekit_core.report import Result

hookspec = pluggy.HookspecMarker("placekit")
hookimpl = pluggy.HookimplMarker("placekit")

KINDS = ("importer", "grouper", "policy", "trainer", "backend")


@dataclass(frozen=True)
class Component:
    """What a plugin says about one component; light, so that listing plugins imports nothing heavy.

    Attributes:
        name: what users write, e.g. `+policy=NAME`.
        summary: one line for `placekit plugins`.
        config: pydantic model of its options, the only source of defaults.
        target: `"module:Class"`, imported at first use.
        paper: where the method comes from, if it is published.
        trainer: for a learnable policy, the trainer that `trainer: auto` takes.
        files: for an importer that reads files, the endings of their names; its options then have a `path`.
        detect: whether a file that begins with these bytes (4096 at most) is one of its: light, and never raises. Asked
            for every file; without it, the ending alone decides.
        writes: for an importer whose class has `write`: `placekit graph export` takes it for files of these endings.
        objects: for an importer that takes objects of Python programs, their types, `module.Class`.
    """

    name: str
    summary: str
    config: type[BaseModel]
    target: str
    paper: str = ""
    trainer: str = ""
    files: tuple[str, ...] = ()
    detect: Callable[[bytes], bool] | None = None
    writes: bool = False
    objects: tuple[str, ...] = ()


@hookspec
def placekit_importers() -> list[Component]:  # type: ignore[empty-body]
    """Return the importers of this plugin."""


@hookspec
def placekit_groupers() -> list[Component]:  # type: ignore[empty-body]
    """Return the groupers of this plugin."""


@hookspec
def placekit_policies() -> list[Component]:  # type: ignore[empty-body]
    """Return the policies of this plugin."""


@hookspec
def placekit_trainers() -> list[Component]:  # type: ignore[empty-body]
    """Return the trainers of this plugin."""


@hookspec
def placekit_backends() -> list[Component]:  # type: ignore[empty-body]
    """Return the backends of this plugin."""


@hookspec
def placekit_run_started(run_dir: Path, config: Mapping[str, Any]) -> None:
    """A run begins; `config` is its complete configuration. One that fails before its first evaluation has no end."""


@hookspec
def placekit_evaluated(run_dir: Path, directory: Path, program: str, row: Mapping[str, float]) -> None:
    """A batch of `program` was evaluated; `row` is the new row of the history, `directory` where its files are."""


@hookspec
def placekit_checkpoint(run_dir: Path) -> None:
    """A checkpoint was written, from which the run can be resumed."""


@hookspec
def placekit_run_finished(run_dir: Path, result: Result) -> None:
    """A run ended. Its results are written, but for result.json, which comes last: by it a run counts as written."""


@hookspec(firstresult=True)
def placekit_draw_profiles(path: Path, profiles: Mapping[str, Profile]) -> bool | None:
    """Draw the profiles of runs of one program, by the runs' names, side by side into the PNG file `path`; return True."""


@hookspec(firstresult=True)
def placekit_draw_fidelity(path: Path, fidelity: Fidelity) -> bool | None:
    """Draw simulated over measured seconds of placements into the PNG file `path`; return True."""
