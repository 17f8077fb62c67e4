"""Learning in parts on large programs: policy `doppler` beside the default search, and without learning.

    python benchmarks/doppler_parts.py [--seeds 6] [--evaluations 10000] [--methods A;B] [--folder DIR] [--write] [OPTION=VALUE]

Each row is a sweep of `placekit run` over the seeds with the options given (none: the default workload and machine). Prints
values in milliseconds, and the medians of the seconds that the run reports; shares are over another method with the same seed,
with the t interval of 95% of their mean. `--write` keeps the rows of other options in the file of results.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from scipy import stats

from placekit_core.run.run_directory import find_runs, load_summary

LEARNED, NOT_LEARNED = "doppler", "doppler, nothing learned"
METHODS = {
    "default search": [],
    LEARNED: ["+policy=doppler"],
    NOT_LEARNED: ["+policy=doppler", "trainer=three_stage", "trainer.part_learning_rate=0"],
}
RESULT = Path(__file__).parent / "results/doppler_parts.md"
TITLE = "# Doppler in parts, beside the default search\n"


def sweep(name: str, options: list[str], folder: Path, seeds: int, evaluations: int) -> list[tuple[int, float, float]]:
    """Seed, milliseconds and seconds of each run."""
    run_dir = folder / "_".join([name.replace(" ", "_").replace(",", ""), str(evaluations), *options]).replace("/", "_")
    given = [f"budget.evaluations={evaluations}", f"seed={','.join(map(str, range(seeds)))}", f"run_dir={run_dir}"]
    command = [str(Path(sys.executable).parent / "placekit"), "run", "-m", *METHODS[name], *options, *given]
    if len(list(run_dir.glob("*/result.json"))) < seeds:
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    found = [load_summary(run) for run in find_runs([run_dir])]
    return sorted((s.seed, 1e3 * (s.value_s or float("inf")), s.seconds) for s in found)[:seeds]


def section(options: list[str], given: argparse.Namespace, folder: Path) -> str:
    """The table of one problem."""
    command = f"python benchmarks/doppler_parts.py --seeds {given.seeds} --evaluations {given.evaluations}"
    if given.methods != ";".join(METHODS):
        command += f" --methods '{given.methods}'"
    lines = [
        f"\n## {' '.join(options) or 'the default workload and machine'}\n",
        f"`{' '.join([command, *options, '--write'])}`, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores at the start\n",
        "| method | ms, by seed | mean ms | over the search | seconds |",
        "| --- | --- | ---: | ---: | ---: |",
    ]
    found: dict[str, list[float]] = {}
    for name in given.methods.split(";"):
        rows = sweep(name, options, folder, given.seeds, given.evaluations)
        values = found[name] = [ms for _, ms, _ in rows]
        over = over_other(values, next(iter(found.values()))) if len(found) > 1 else ""
        lines.append(
            f"| {name} | {', '.join(f'{ms:.2f}' for ms in values)} | {statistics.mean(values):.2f} | {over} |"
            f" {statistics.median(s for _, _, s in rows):.1f} |"
        )
        print(lines[-1], flush=True)
    if {LEARNED, NOT_LEARNED} <= set(found):
        lines.append(
            f"\nBy learning: {over_other(found[LEARNED], found[NOT_LEARNED])}, with the same episodes in parts."
        )
        print(lines[-1], flush=True)
    return "\n".join([*lines, ""])


def over_other(values: list[float], other: list[float]) -> str:
    """By how much values are above others with the same seeds: the mean, and its t interval of 95%."""
    share = [100 * (a / b - 1) for a, b in zip(values, other, strict=True)]
    wide = float("nan")
    if len(share) > 1:
        wide = float(stats.t.ppf(0.975, len(share) - 1)) * statistics.stdev(share) / len(share) ** 0.5
    return f"{statistics.mean(share):+.2f} ± {wide:.2f}%"


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--evaluations", type=int, default=10_000)
    parser.add_argument("--methods", default=";".join(METHODS), help="the first is what the others are compared with")
    parser.add_argument("--folder", type=Path, help="keep the runs there, and use those that are there already")
    parser.add_argument("--write", action="store_true", help=f"into {RESULT.name}")
    parser.add_argument("options", nargs="*", metavar="OPTION=VALUE")
    given = parser.parse_intermixed_args()
    with tempfile.TemporaryDirectory() as folder:
        text = section(given.options, given, given.folder or Path(folder))
    if given.write:
        before = RESULT.read_text() if RESULT.exists() else TITLE
        head = text.split("\n")[1]
        kept = [part for part in before.split("\n## ")[1:] if f"## {part.splitlines()[0]}" != head]
        RESULT.write_text(TITLE + "".join(f"\n## {part}" for part in kept) + text)


if __name__ == "__main__":
    main()
