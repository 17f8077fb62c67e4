"""What `placekit compare --profile` prints: where the time of found placements goes, the runs side by side."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from placekit_report.profile import OTHER, DeviceProfile, Profile, TransferProfile, load_profile, top_types

from placekit_compare.labels import labels
from placekit_core import PHASES, ConfigError, Registry, RunError, Summary
from placekit_core.cli.console import table
from placekit_core.contracts.units import count, percent, seconds
from placekit_core.run.checkpoint import CHECKPOINT
from placekit_core.run.run_directory import CONFIG, RESULT, find_runs, load_summary

TOP = 8
"""Operation types that the table names."""
Runs = dict[str, Profile]


@dataclass(frozen=True, eq=False)
class Found:
    """The profile of one program of a run."""

    run_dir: Path
    folder: Path  # of the profile
    run: Summary
    profile: Profile


def compare_profiles(folders: Sequence[Path], as_json: bool, png: str | None, registry: Registry) -> int:
    """Tables, one program after the other; or all profiles as JSON; with `png`, the one program as a figure, too."""
    programs, damaged = profiles(folders)
    if as_json:
        found = [f for each in programs.values() for f in each]
        many = {f.run_dir for f in found if len(f.run.programs) > 1}
        places = [_shown(f.folder if f.run_dir in many else f.run_dir) for f in found]
        parts = [{"run": where} | f.profile.model_dump(mode="json") for where, f in zip(places, found, strict=True)]
        print(json.dumps(parts, indent=1))
        sys.stdout.flush()
        return int(damaged)
    if png and len(programs) > 1:
        names = ", ".join(programs)
        raise ConfigError(f"a figure shows one program, and these runs have {len(programs)}: {names}", "give fewer DIR")
    for i, (program, each) in enumerate(programs.items()):
        runs = {name: f.profile for name, f in zip(titles(each, registry), each, strict=True)}
        print("\n" if i else "", end="")
        show(program, runs)
        if png:
            write(Path(png), runs)
            print(f"drawn in {png}")
    return int(damaged)


def profiles(folders: Sequence[str | Path]) -> tuple[dict[str, list[Found]], bool]:
    """Profiles by program, of all runs at or below `folders`; and whether some cannot be read.

    Names the runs that are left out: unreadable ones, and runs that found no placement that fits, which have no profile.
    Raises RunError if there is none at all, or a run has not finished.
    """
    for folder in map(Path, folders):
        unfinished = any(os.path.exists(folder / name) for name in (CHECKPOINT, CONFIG))
        if unfinished and not any(folder.rglob(RESULT)):
            raise RunError(f"the run in {folder} has not finished", f"continue it: placekit run resume={folder}")
    found: dict[str, list[Found]] = {}
    left_out: list[RunError] = []
    damaged = False
    for run_dir in find_runs(folders):
        try:
            run = load_summary(run_dir)
        except RunError as e:
            left_out.append(e)
            damaged = True
            continue
        for program in run.programs:
            folder = run_dir / program.directory
            try:
                one = load_profile(folder)
            except RunError as e:
                left_out.append(e)
                damaged |= program.fits
                continue
            found.setdefault(one.program, []).append(Found(run_dir, folder, run, one))
    if left_out and not found:
        raise left_out[0]
    for reason in left_out:
        print(f"left out: {reason.message}", file=sys.stderr)
    return found, damaged


def titles(found: Sequence[Found], registry: Registry) -> list[str]:
    """A name for each: the label of `placekit compare`, other differences, and the folder if runs are still alike."""
    shown = labels([f.run for f in found], registry)
    for option in ("workload", "cluster", "backend", "seed"):
        values = [getattr(f.run, option) for f in found]
        for alike in _alike(shown):
            if len({values[i] for i in alike}) > 1:
                for i in alike:
                    shown[i] += f" {option}={values[i]}"
    for alike in _alike(shown):
        above = os.path.commonpath([found[i].folder.absolute() for i in alike])
        for i in alike:
            shown[i] = f"{shown[i]} {os.path.relpath(found[i].folder.absolute(), above)}"
    return shown


def _alike(shown: Sequence[str]) -> list[list[int]]:
    """Lists of indices with the same name, for names that occur several times."""
    found: dict[str, list[int]] = {}
    for i, name in enumerate(shown):
        found.setdefault(name, []).append(i)
    return [same for same in found.values() if len(same) > 1]


def _shown(path: Path) -> str:
    """A folder as the user would write it."""
    here = Path.cwd().resolve()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def write(path: Path, runs: Runs) -> None:
    """Draw the runs side by side. Raises RunError."""
    from placekit_report.figure import draw

    try:
        draw(path, runs)
    except OSError as e:
        raise RunError(f"cannot write {path}: {e.strerror or e}") from None


def show(program: str, runs: Runs) -> None:
    """Print three tables, a column per run: devices, operation types, transfers."""
    table(["device", program, *runs], _devices(runs), left=2)
    print()
    table(["operation type", "device", *runs], _types(runs), left=2)
    pairs = _transfers(runs)
    if pairs:
        print()
        table(["from", "to", *runs], pairs, left=2)


def _row(first: str, second: str, runs: Runs, cell: Callable[[Profile], str]) -> list[str]:
    return [first, second, *(cell(p) for p in runs.values())]


def _names(runs: Runs) -> list[str]:
    """Devices of all runs."""
    return list(dict.fromkeys(d.device for p in runs.values() for d in p.devices))


def _devices(runs: Runs) -> list[list[str]]:
    rows = [
        _row("", "machine", runs, lambda p: p.cluster),
        _row("", "makespan", runs, lambda p: seconds(p.makespan_s)),
        *(_row("" if i else "all", name, runs, _total(name)) for i, name in enumerate(PHASES)),
    ]
    for device in _names(runs):
        for i, name in enumerate((*PHASES, "idle", "copies")):
            rows.append(_row("" if i else device, name, runs, _of_device(device, name)))
    return rows


def _total(name: str) -> Callable[[Profile], str]:
    return lambda p: seconds(sum(getattr(d, f"{name}_s") for d in p.devices))


def _of_device(device: str, name: str) -> Callable[[Profile], str]:
    """Seconds of one device, `-` if the run has no such device; idle time and copies with their share of the step."""

    def cell(p: Profile) -> str:
        found: DeviceProfile | None = next((d for d in p.devices if d.device == device), None)
        if found is None:
            return "-"
        value: float = getattr(found, {"idle": "idle_s", "copies": "copy_s"}.get(name, f"{name}_s"))
        share = f" ({percent(value / p.makespan_s)})" if name not in PHASES and p.makespan_s else ""
        return seconds(value) + share

    return cell


def _types(runs: Runs) -> list[list[str]]:
    names, rows = top_types(runs.values(), TOP), []
    table_of = {run: p.by_type(names).sum(axis=1) for run, p in runs.items()}
    place = {run: {d.device: i for i, d in enumerate(p.devices)} for run, p in runs.items()}
    for i, name in enumerate([*names, OTHER]):
        first = name
        for device in _names(runs):
            values = [table_of[run][i, place[run][device]] if device in place[run] else None for run in runs]
            if any(values):
                rows.append([first, device, *(seconds(v) for v in values)])
                first = ""
    return rows


def _transfers(runs: Runs) -> list[list[str]]:
    found = {run: {(t.source, t.destination): t for t in p.transfers} for run, p in runs.items()}
    names = _names(runs)
    pairs = [(a, b) for a in names for b in names if any((a, b) in t for t in found.values())]

    def cell(t: TransferProfile | None) -> str:
        return "-" if t is None else f"{seconds(t.busy_s)}, {count(t.bytes)}B"

    rows = [[a, b, *(cell(found[run].get((a, b))) for run in runs)] for a, b in pairs]
    total = [_row("all", "", runs, lambda p: f"{count(sum(t.bytes for t in p.transfers))}B")]
    return rows + total if rows else []
