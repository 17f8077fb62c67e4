"""`placekit compare DIR ...`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from placekit_compare.rows import load, rows
from placekit_compare.text import show
from placekit_core import ConfigError, Registry
from placekit_core.cli.completion import Completion
from placekit_core.cli.parser import Parser
from placekit_core.cli.sweep import show_troubles, troubles


def main(argv: list[str], registry: Registry) -> int:
    """One row per workload, machine, backend and policy; 1 if a result could not be read."""
    parser = Parser(
        "compare", "Compare runs: a row per workload, machine, backend and policy, with medians over seeds."
    )
    parser.add_argument("folders", nargs="+", metavar="DIR", type=Path, help="folders of runs, at any depth")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument(
        "--profile", action="store_true", help="show where the time of the placements goes, the runs side by side"
    )
    parser.add_argument("--png", metavar="FILE", help="with --profile: also draw it as a PNG file")
    arguments = parser.read(argv)
    if arguments.png is not None and (arguments.json or not arguments.profile):
        raise ConfigError("--png draws what --profile prints", "give --profile, and no --json")
    if arguments.profile:
        from placekit_compare.profiles import compare_profiles

        return compare_profiles(arguments.folders, arguments.json, arguments.png, registry)
    found = [troubles(folder) for folder in arguments.folders]
    failed, missing = ([x for each in found for x in each[i]] for i in (0, 1))
    results, damaged = load(arguments.folders, bool(failed or missing))
    if arguments.json:
        print(json.dumps([r.data() for r in rows(list(results.values()), registry)], indent=1))
        sys.stdout.flush()
    else:
        show(rows(list(results.values()), registry))
    show_troubles(failed, missing, sys.stderr if arguments.json else sys.stdout)
    return int(damaged > 0)


def complete(words: list[str], word: str, completion: Completion) -> Iterator[str]:
    """Candidates for the shell; see `placekit_core.Command`."""
    yield from completion.paths(word)
    if word.startswith("-"):
        yield from completion.whole(["--json", "--png", "--profile"])
