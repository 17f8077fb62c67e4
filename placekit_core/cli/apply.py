"""`placekit apply RUN_DIR`: the placement that a run found, in the form that other code takes."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from placekit_core import results
from placekit_core.config import AUTO, RunConfig
from placekit_core.errors import BackendError, ConfigError, RunError, unknown
from placekit_core.graph_file import write_atomically
from placekit_core.grouping import Grouping
from placekit_core.handback import Conflict, device_map, device_names, pipeline
from placekit_core.placement import Placement, load_placement, read_placement
from placekit_core.problem import Problem
from placekit_core.results import ProgramSummary, Summary
from placekit_core.units import percent

FORMATS = ("device_map", "pipeline", "json")
_USAGE = f"usage: placekit apply RUN_DIR [--format {'|'.join(FORMATS)}] [--out FILE]"
_SHOWN = 3  # modules that a warning names


def main(argv: list[str]) -> int:
    """Print a placement as JSON, or write it to `--out`; what the form cannot hold is a warning."""
    folder, form, out = _arguments(argv)
    text = json.dumps(_FORMS[form](folder), indent=1)
    if out is None:
        print(text)
        return 0
    try:
        write_atomically(out, f"{text}\n".encode())
    except OSError as e:
        raise RunError(f"cannot write {out}: {e.strerror or e}", "choose another: --out FILE") from None
    return 0


def _arguments(argv: list[str]) -> tuple[Path, str, Path | None]:
    """Run directory, format, and the file to write. Raises ConfigError."""
    values: dict[str, str | None] = {"--format": FORMATS[0], "--out": None}
    folders, words = [], iter(argv)
    for word in words:
        key, equals, value = word.partition("=")
        if key in values:
            values[key] = value if equals else next(words, "")
        elif word.startswith("-"):
            raise ConfigError(f"placekit apply takes no {key}", _USAGE)
        else:
            folders.append(Path(word))
    form, out = values["--format"], values["--out"]
    if form not in FORMATS:
        raise unknown("format", form or "", FORMATS, ConfigError)
    if len(folders) != 1 or out == "":
        raise ConfigError(_USAGE)
    return folders[0], form, None if out is None else Path(out)


def _device_map(folder: Path) -> Any:
    problem, placement = _load(folder)
    made = device_map(problem, placement)
    _warn_of_conflicts(made.conflicts, made.elsewhere)
    others = [n for n, d in zip(problem.cluster.device_names, device_names(problem), strict=True) if d == "cpu"]
    if len(others) > 1:
        warnings.warn(f"a device_map knows one 'cpu': it is all of {', '.join(others)}", stacklevel=1)
    if made.mixed:
        warnings.warn(
            f"{_named(made.mixed)} by itself reads from modules on different devices: accelerate moves nothing there;"
            " place it as a whole: grouper=module with a pattern of it in grouper.blocks",
            stacklevel=1,
        )
    return made.devices


def _pipeline(folder: Path) -> Any:
    made = pipeline(*_load(folder))
    _warn_of_conflicts(made.conflicts, made.elsewhere)
    return {
        "stages": [{"device": stage.device, "begins": stage.begins} for stage in made.stages],
        "split_spec": made.split_spec,
    }


def _json(folder: Path) -> Any:
    """placement.json with the value of the placement; it is a placement file again."""
    run, program = _found(folder)[1:]
    value = {"objective": run.objective, "simulated": run.simulated, "value_s": program.value_s}
    return {**read_placement(folder / results.PLACEMENT), **value}


_FORMS = {"device_map": _device_map, "pipeline": _pipeline, "json": _json}


def _warn_of_conflicts(conflicts: Sequence[Conflict], elsewhere: float) -> None:
    if conflicts:
        shown = ", ".join(
            f"{c.module!r}, which goes to {c.device!r}, by {percent(c.elsewhere)}" for c in conflicts[:_SHOWN]
        )
        more = f", and {len(conflicts) - _SHOWN} more" if len(conflicts) > _SHOWN else ""
        warnings.warn(
            f"{percent(elsewhere)} of the work is placed elsewhere than its module goes: {shown}{more}",
            stacklevel=1,
        )


def _named(modules: Sequence[str]) -> str:
    """The first of some modules, and how many more there are."""
    first = f"module {modules[0]!r}" if modules[0] else "the network"
    return first if len(modules) == 1 else f"{first} (and {len(modules) - 1} more)"


def _found(folder: Path) -> tuple[Path, Summary, ProgramSummary]:
    """The run directory, its summary, and the program of `folder`. Raises RunError that says what is there instead."""
    for run_dir in (folder, *folder.absolute().parents[:2]):  # DIR, or DIR/programs/NAME of a family
        if (run_dir / results.RESULT).is_file():
            break
    else:
        runs = sorted(p.parent for p in folder.rglob(results.RESULT))
        there = f"give one of the {len(runs)} below it, e.g. {runs[0]}" if runs else "give what a run called run_dir"
        raise RunError(f"{folder} is no directory of a run: it has no {results.RESULT}", there)
    summary = results.load_summary(run_dir)
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


def _load(folder: Path) -> tuple[Problem, Placement]:
    """The program of a run, imported again, and its placement. Raises RunError if the program or machine has changed."""
    from placekit_core.opening import choose_cluster, make_costs

    run_dir, summary, own = _found(folder)
    config = RunConfig.model_validate(summary.config)  # of its components, the importer alone needs to be there
    if "programs" in config.given:
        raise RunError(
            f"{run_dir} was placed from Python, with programs that only its script has",
            "call placekit_core.handback there, with result.problem and result.placement; or use `--format json`",
        )
    programs = config.build("importer").load()
    if len(programs) != len(summary.programs):
        raise RunError(f"the importer of {run_dir} gives {len(programs)} programs now, not {len(summary.programs)}")
    program = programs[summary.programs.index(own)]
    named = config.cluster != {"name": AUTO} or program.cluster is not None
    try:
        cluster = choose_cluster(config, program, None if named else config.build("backend"))
    except BackendError as e:
        raise RunError(
            f"{run_dir} was placed on the machine that backend {config.backend['name']!r} saw, which is not this one:"
            f" {e.message}",
            "apply it there; `--format json` prints the placement as it was found",
        ) from None
    for what, now, then in (
        ("program", program.graph.fingerprint, own.graph_fingerprint),
        ("machine", cluster.fingerprint, summary.cluster_fingerprint),
    ):
        if now != then:
            raise RunError(
                f"the {what} of {run_dir} has changed since it was placed: fingerprint {now}, it was {then}",
                "place it again; `--format json` prints the placement as it was found",
            )
    # the finest grouping takes the placement of any other
    grouping = Grouping.colocated(program.graph)
    problem = Problem(program.graph, grouping, cluster, make_costs(config, program, cluster))
    return problem, load_placement(folder / results.PLACEMENT, problem)
