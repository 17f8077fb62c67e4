"""Run the experiments of an item with `placekit run`, in processes of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from placekit_core import FileModel, RunError, read_json, write_atomically
from placekit_papers.claims import Item
from placekit_papers.parts import Placed, parts_in, write_parts
from placekit_papers.runs import Run, read_runs, runs_in, write_runs

_STDERR = 2  # the table is all that goes to stdout
_DONE_WITH_FAILURES = 1  # such as placements that do not fit, which are results here


def run_item(item: Item, folder: Path, options: Sequence[str] = ()) -> dict[str, list[Run]]:
    """Run an item's experiments with further options. Returns the runs by the name of their CSV.

    Each experiment's runs are written to `folder`/N.csv when it ends; an experiment that has this file is not run again, and one
    that was interrupted goes on where it stopped.
    `folder`/parts.csv has where the parts of their networks are, if the item has `parts`.
    Raises RunError if the folder has runs of another item, or with other options.
    """
    commands = [_merged(experiment.options, options) for experiment in item.experiments]
    _keep_to(folder / "experiments.json", commands)
    found: dict[str, list[Run]] = {}
    placed = list[Placed]()
    for i, experiment in enumerate(item.experiments):
        path = folder / f"{i}.csv"
        if not path.is_file():
            sweep(commands[i], folder / str(i))
            write_runs(runs_in(folder / str(i), experiment.method), path)
        name = experiment.runs or (item.runs[0] if item.runs else "runs")
        found.setdefault(name, []).extend(read_runs(path))
        placed += parts_in(folder / str(i), item.parts, experiment.method)
    if item.parts:
        write_parts(placed, folder / "parts.csv")
    return found


class _Experiments(FileModel):
    """`experiments.json`: the options of each experiment of a folder."""

    commands: list[list[str]]


def _keep_to(path: Path, commands: list[list[str]]) -> None:
    if not path.is_file():
        write_atomically(path, (json.dumps({"commands": commands}, indent=1) + "\n").encode())
    elif read_json(path, _Experiments, error=RunError).commands != commands:
        raise RunError(f"{path.parent} has runs of another item, or with other options", "give --run another folder")


def sweep(options: Sequence[str], run_dir: Path) -> None:
    """`placekit run` with these options, or the rest of it if it was interrupted. Raises RunError if it ends without results."""
    words = [f"resume={run_dir}"] if (run_dir / "sweep.json").is_file() else [*options, f"run_dir={run_dir}"]
    command = [sys.executable, "-m", "placekit_core", "run", *words]
    print("placekit", *command[3:], file=sys.stderr, flush=True)
    code = subprocess.run(command, stdout=_STDERR, check=False).returncode
    if code not in (0, _DONE_WITH_FAILURES):
        raise RunError(f"this command ended with code {code}", "its messages are above")


def _merged(options: Sequence[str], more: Sequence[str]) -> list[str]:
    """Options with further ones, which replace those of the same name."""
    replaced = {word.partition("=")[0] for word in more}
    return [*(word for word in options if word.partition("=")[0] not in replaced), *more]
