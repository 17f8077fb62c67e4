"""How large report.html is, and how long it takes to make.

    python benchmarks/report.py [--keep DIR] [--write] [NAME ...]

Each program is placed once; then its page is made three times from the result, and the fastest counts, in seconds of the clock
and of the processor.
`--keep` leaves the run directories in DIR, for benchmarks/report_page.py; `--write` keeps the table in
benchmarks/results/report.md.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
import time
import warnings
from pathlib import Path

from placekit_report.document import document
from placekit_report.logger import PAGE, run_of
from placekit_report.page import render

from placekit_core import Result, installed
from placekit_core.cli.compose import assembled
from placekit_core.run.pipeline import run

RESULT = Path(__file__).parent / "results" / "report.md"
TIMES = 3
RUNS = {
    "inception": ("Inception-V3, 4 x P100", "workload=inception_v3 cluster=p100x4"),
    "llama": ("Llama 3.1 8B, 32 layers, decode, 5090 + 2 x 3080",
              "model=hf:meta-llama/Llama-3.1-8B mode=decode context=4096 cluster=rtx5090_3080x2"),
    "nmt": ("NMT, 4 x K80", "workload=nmt cluster=k80x4 policy=heft"),
    "nmt4": ("NMT of 4 + 4 layers, 4 x P100", "workload=nmt_4layer cluster=p100x4 policy=heft"),
    "nmt8": ("NMT of 8 + 8 layers, 8 x K80", "workload=nmt_8layer cluster=k80x8 policy=heft"),
    "measured": ("small Inception-V3, measured on 2 CPU threads",
                 "workload=inception_v3_small backend=cpu backend.devices=2 policy=single_device"),
}  # fmt: skip


def placed(words: str, folder: Path) -> Result:
    """Run once, without loggers."""
    registry = installed()
    assembly = assembled([*words.split(), f"run_dir={folder}", "log=[csv]"], registry)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return run(assembly, folder)


def row(label: str, folder: Path, result: Result) -> list[str]:
    """One row of the table."""
    wall, used, data, page = [], [], {}, ""
    for _ in range(TIMES):
        with contextlib.ExitStack() as stack:
            began, processor = time.perf_counter(), time.process_time()
            data = document([run_of(folder, result, installed(), stack)])
            page = render(data)
            wall.append(time.perf_counter() - began)
            used.append(time.process_time() - processor)
    (folder / PAGE).write_text(page)
    bare = {**data, "runs": [{**r, "programs": []} for r in data["runs"]]}
    found, [p] = result.programs[0], data["runs"][0]["programs"]
    size = len(page.encode())
    return [
        label,
        f"{found.problem.graph.n:,}",
        f"{len(p['timeline']['events']['name']):,}",
        f"{size / 1e6:.2f}",
        f"{(size - len(render(bare).encode())) / 1e6:.2f}",
        f"{min(wall):.2f}",
        f"{min(used):.2f}",
    ]


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of {', '.join(RUNS)}; without it, all")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the run directories here")
    parser.add_argument("--write", action="store_true", help=f"into {RESULT.name}")
    arguments = parser.parse_args()
    lines = [
        "# Size and seconds of report.html\n\n`python benchmarks/report.py --write`: the fastest of three times, with what would"
        " change the step simulated again. Of the megabytes, *data* are the tables and the embedded JSON, the rest is the page"
        " itself.\n\n| run | operations | events | MB | data MB | seconds | processor seconds |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    with tempfile.TemporaryDirectory() as temporary:
        base = arguments.keep or Path(temporary)
        for name in arguments.names or RUNS:
            label, words = RUNS[name]
            result = placed(words, base / name)
            lines.append("| " + " | ".join(row(label, base / name, result)) + " |")
            print(lines[-1], flush=True)
    lines.append(f"\n{os.cpu_count()} cores, shared with other work.")
    print("\n".join(lines))
    if arguments.write:
        RESULT.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
