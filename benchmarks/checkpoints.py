"""Models as importer `checkpoint` makes them, beside the published sizes of their files.

    python benchmarks/checkpoints.py [--models A,B] [--write]

A process for each row imports the decode step at 10,000 tokens. The table has its CPU seconds, with the start of Python, its
highest memory, the bytes of the cache per token, and the FLOPs of the step.
`--write` saves the table in benchmarks/results/checkpoints.md.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from placekit_core import parse_yaml, read_bytes

HERE = Path(__file__).resolve().parent
RESULT = HERE / "results" / "checkpoints.md"
TESTS = HERE.parent / "plugins" / "importers" / "placekit-models" / "tests"
CONTEXT = 10_000
CHILD = """
import json, re, sys, time
from pathlib import Path
from placekit_core import load_programs
def load(context):
    return load_programs(checkpoint=sys.argv[1], weights=sys.argv[2], context=context)[0].graph
def kept(graph, kind):
    return int(graph.persistent_bytes[graph.op_type.is_value(kind)].sum())
graph = load(int(sys.argv[3]))
loaded = time.time(), time.process_time()
peak = int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024
cache = kept(load(int(sys.argv[3]) + 1), "buffer") - kept(graph, "buffer")
numbers = kept(graph, "parameter"), cache, float(graph.flops.sum())
print(json.dumps([*numbers, *loaded, peak, "torch" in sys.modules]))
"""


def measured(model: str, weights: str) -> tuple[list[float], float]:
    """Bytes of weights, cache bytes of a token, its FLOPs, time when it was loaded, CPU seconds, MiB, torch; seconds."""
    begin = time.time()
    command = [sys.executable, "-c", CHILD, model, weights, str(CONTEXT)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found: list[float] = json.loads(output)
    return found, found[3] - begin


def published_gib(row: dict[str, Any]) -> float:
    """The size of a row; numbers count as 16 bits."""
    if "gib" in row:
        return float(row["gib"])
    return (row["bytes"] if "bytes" in row else row["gb"] * 1e9 if "gb" in row else 2 * float(row["numbers"])) / 2**30


def line(row: dict[str, Any]) -> tuple[str, float | None, float, float, float]:
    """A row of the table, its difference (None: it has a reason), seconds, CPU seconds and MiB."""
    (bytes_, cache, flops, _, cpu, peak, torch), seconds = measured(row["model"], row["weights"])
    assert not torch, "importer checkpoint imported torch"
    published = published_gib(row)
    far = bytes_ / 2**30 / published - 1
    marked = f"{far:+.2%}{' *' if 'differs' in row else ''}"
    text = (
        f"| {row['model']} | {row['weights']} | {bytes_ / 2**30:.3f} | {published:.2f} | {marked} |"
        f" {cache:,} | {flops / 1e9:.2f} | {cpu:.2f} | {peak:.0f} | {row['source']} |"
    )
    return text, None if "differs" in row else far, seconds, cpu, peak


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", default="", help="empty: all in tests/published_sizes.yaml of placekit-models")
    parser.add_argument("--write", action="store_true", help=f"into {RESULT.name}")
    arguments = parser.parse_args()
    rows = parse_yaml(read_bytes(TESTS / "published_sizes.yaml"))["sizes"]
    rows = [row for row in rows if not arguments.models or row["model"] in arguments.models.split(",")]
    found = []
    for row in rows:
        found.append(line(row))
        print(found[-1][0], flush=True)
    far = [abs(value) for _, value, *_ in found if value is not None]
    within = sum(value <= 0.01 for value in far)
    summary = (
        f"{len({row['model'] for row in rows})} models, {len(rows)} sizes: {within} of {len(far)} within 1% (median"
        f" {statistics.median(far):.2%}, worst {max(far):.2%}); {len(rows) - len(far)} with * are beyond, for the reasons in"
        f" [published_sizes.yaml](../../plugins/importers/placekit-models/tests/published_sizes.yaml), which has the sources."
        f" At most {max(row[3] for row in found):.2f} CPU seconds ({max(row[2] for row in found):.1f} s, while other programs"
        f" used the computer) and {max(row[4] for row in found):.0f} MiB."
    )
    head = "| model | weights | GiB | published | difference | cache bytes per token | GFLOP per token | CPU s | MiB | source |"
    lines = [
        "# Checkpoints beside published sizes\n",
        f"`python benchmarks/checkpoints.py --write`, Python {platform.python_version()}, {platform.machine()}. Each row is a"
        " process of its own; CPU seconds from Python's start until one token of decode is loaded, at"
        f" {CONTEXT:,} tokens. Source `hf` counts numbers, which are 16 bits here.\n",
        summary + "\n",
        head,
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---|",
        *(text for text, *_ in found),
    ]
    print(summary)
    if arguments.write:
        RESULT.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
