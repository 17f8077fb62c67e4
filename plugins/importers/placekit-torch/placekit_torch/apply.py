"""`placekit apply RUN_DIR`: the placement that a run found, in the form that other code needs."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from placekit_core import (
    BackendError,
    ConfigError,
    Placement,
    Problem,
    ProgramSummary,
    Registry,
    RunError,
    Summary,
    load_placement,
    unknown,
    write_atomically,
)
from placekit_core.cli.completion import Completion
from placekit_core.cli.parser import Parser
from placekit_core.contracts.files import checked, reading
from placekit_core.contracts.placement_file import read_placement
from placekit_core.contracts.units import percent
from placekit_core.run.assembly import Assembly
from placekit_core.run.config import RunConfig
from placekit_core.run.run_directory import PLACEMENT, RESULT, load_summary
from placekit_torch.export import Conflict, device_map, device_names, pipeline

FORMATS = ("device_map", "pipeline", "json")
_SHOWN = 3  # number of modules that a warning names


def main(argv: list[str], registry: Registry) -> int:
    """Print a placement as JSON, or write it to `--out`; warn about anything that the form cannot hold."""
    parser = Parser("apply", "The placement that a run found, in the form that other code needs.")
    parser.add_argument("folder", metavar="RUN_DIR", type=Path, help="the run_dir of the run")
    parser.add_argument(
        "--format", default=FORMATS[0], metavar="|".join(FORMATS),
        help="device_map: devices of modules (the default); pipeline: the stages of one; json: the device of every"
        " operation, as in placement.json",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, metavar="FILE", help="write it to this file instead of printing it")
    arguments = parser.read(argv)
    form, out = arguments.format, arguments.out
    if form not in FORMATS:
        raise unknown("format", form, FORMATS, ConfigError)
    text = json.dumps(_FORMS[form](arguments.folder, registry), indent=1)
    if out is None:
        print(text)
        return 0
    try:
        write_atomically(out, f"{text}\n".encode())
    except OSError as e:
        raise RunError(f"cannot write {out}: {e.strerror or e}", "choose another: --out FILE") from None
    return 0


def complete(words: list[str], word: str, completion: Completion) -> Iterator[str]:
    """Candidates for the shell; see `placekit_core.Command`."""
    if words and words[-1] == "--format":
        yield from completion.whole(FORMATS)
    else:
        yield from completion.paths(word, ("",) if words and words[-1] == "--out" else ())
        yield from completion.whole(["--format", "--out"] if word.startswith("-") else ())


def _device_map(folder: Path, registry: Registry) -> Any:
    problem, placement = _load(folder, registry)
    made = device_map(problem, placement)
    _warn_of_conflicts(made.conflicts, made.elsewhere, "device_map")
    others = [n for n, d in zip(problem.cluster.device_names, device_names(problem), strict=True) if d == "cpu"]
    if len(others) > 1:
        warnings.warn(f"a device_map knows one 'cpu': it is all of {', '.join(others)}", stacklevel=1)
    if made.mixed:
        warnings.warn(
            f"{_named(made.mixed)} by itself reads from modules on different devices, and accelerate moves nothing there;"
            " place it as a whole: grouper=module with a pattern for it in grouper.blocks",
            stacklevel=1,
        )
    return made.devices


def _pipeline(folder: Path, registry: Registry) -> Any:
    made = pipeline(*_load(folder, registry))
    _warn_of_conflicts(made.conflicts, made.elsewhere, "pipeline")
    return {
        "stages": [{"device": stage.device, "begins": stage.begins} for stage in made.stages],
        "split_spec": made.split_spec,
    }


def _json(folder: Path, registry: Registry) -> Any:
    """placement.json with the value of the placement; the result is again a placement file."""
    run, program = _found(folder)[1:]
    value = {"objective": run.objective, "simulated": run.simulated, "value_s": program.value_s}
    return {**read_placement(folder / PLACEMENT).model_dump(exclude_unset=True), **value}


_FORMS = {"device_map": _device_map, "pipeline": _pipeline, "json": _json}


def _warn_of_conflicts(conflicts: Sequence[Conflict], elsewhere: float, form: str) -> None:
    if conflicts:
        shown = "; ".join(map(_conflict, conflicts[:_SHOWN]))
        more = f"; and {len(conflicts) - _SHOWN} more" if len(conflicts) > _SHOWN else ""
        number = "a module" if len(conflicts) == 1 else f"{len(conflicts)} modules"
        warnings.warn(
            f"the placement splits {number}, which a {form} cannot, so {percent(elsewhere)} of the step's seconds move to"
            f" other devices than they were placed on: {shown}{more}",
            stacklevel=1,
        )


def _conflict(conflict: Conflict) -> str:
    device = f"GPU {conflict.device}" if isinstance(conflict.device, int) else conflict.device
    return f"{_named([conflict.module])} is on {device} as a whole, {percent(conflict.elsewhere)} of it moves there"


def _named(modules: Sequence[str]) -> str:
    """The first of some modules, and the number of others."""
    first = f"module {modules[0]!r}" if modules[0] else "the network"
    return first if len(modules) == 1 else f"{first} (and {len(modules) - 1} more)"


def _found(folder: Path) -> tuple[Path, Summary, ProgramSummary]:
    """The run directory, its summary, and the program of `folder`. Raises RunError if `folder` has no such placement."""
    for run_dir in (folder, *folder.absolute().parents[:2]):  # DIR, or DIR/programs/NAME of a family
        if os.path.isfile(run_dir / RESULT):
            break
    else:
        runs = sorted(p.parent for p in folder.rglob(RESULT)) if os.path.isdir(folder) else []
        there = f"give one of the {len(runs)} below it, e.g. {runs[0]}" if runs else "give the run_dir of a run"
        raise RunError(f"{folder} is no directory of a run: it has no {RESULT}", there)
    summary = load_summary(run_dir)
    one = len(summary.programs) == 1
    own = [p for p in summary.programs if (run_dir / p.directory).resolve() == folder.resolve()]
    if not own:
        places = [str(run_dir / p.directory) for p in summary.programs]
        raise RunError(
            f"{folder} holds no program" if one or run_dir != folder else f"{folder} holds {len(places)} programs",
            f"give the directory of one, e.g. {places[0]}",
        )
    if own[0].value_s is None:
        raise RunError(
            f"the run in {run_dir} found no placement of {own[0].program!r} that fits"
            if own[0].error is None
            else f"the run in {run_dir} could not measure a placement of {own[0].program!r}: {own[0].error}",
            "there is nothing to apply",
        )
    return run_dir, summary, own[0]


def _load(folder: Path, registry: Registry) -> tuple[Problem, Placement]:
    """The program of a run, imported again, and its placement. Raises RunError if the program or machine has changed."""
    run_dir, summary, own = _found(folder)
    with reading(run_dir / RESULT, RunError):  # of the run's components, only the importer must be installed
        config = checked(summary.config, RunConfig)
    if "programs" in config.python_objects:
        raise RunError(
            f"{run_dir} was placed from Python, with programs that only its script has",
            "call placekit_torch.device_map or pipeline there, with result.problem and result.placement; or use `--format json`",
        )
    parts = Assembly(config, registry)
    programs = parts.programs
    if len(programs) != len(summary.programs):
        raise RunError(f"the importer of {run_dir} gives {len(programs)} programs now, not {len(summary.programs)}")
    program = programs[summary.programs.index(own)]
    try:
        problem = parts.problem(program, grouped=False)  # any grouping's placement fits the finest one
    except BackendError as e:
        raise RunError(
            f"{run_dir} was placed on the machine that backend {config.backend['name']!r} found, which is not this one:"
            f" {e.message}",
            "apply it there; `--format json` prints the placement as it was found",
        ) from None
    for what, now, then in (
        ("program", program.graph.fingerprint, own.graph_fingerprint),
        ("machine", problem.cluster.fingerprint, summary.cluster_fingerprint),
    ):
        if now != then:
            raise RunError(
                f"the {what} of {run_dir} has changed since it was placed: fingerprint {now}, it was {then}",
                "place it again; `--format json` prints the placement as it was found",
            )
    return problem, load_placement(folder / PLACEMENT, problem)
