"""`placekit cluster profile`: measures a machine and a program's operations, and writes files for runs."""

from __future__ import annotations

import argparse
import contextlib
import math
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from placekit_core import BackendError, Calibration, Cluster, ConfigError, Registry, RunError
from placekit_core.cli.arguments import quoted
from placekit_core.cli.compose import assembled
from placekit_core.cli.console import table
from placekit_core.cli.parser import Parser
from placekit_core.contracts.units import count, percent, seconds
from placekit_inspect.calibration import CLUSTER, COSTS, ClassRatio, class_ratios, write


def main(argv: list[str], registry: Registry) -> int:
    """Measure with the backend, on the cluster and for the programs of the options."""
    what = "Measure this machine and the operations of a program, and write files that a run can read."
    parser = Parser("cluster profile", what, options=True)
    add_number(parser, "--repeats", 9, "measurements of each figure")
    parser.add_argument("out", metavar="OUT_DIR", type=Path, help=f"a new folder, for {CLUSTER} and {COSTS}")
    arguments = parser.read(argv)
    out = out_dir(arguments.out)
    options = arguments.options
    parts = assembled(options, registry)
    if parts.config.costs.file is not None:
        raise ConfigError("costs.file is for runs: here costs are measured", "leave it out")
    with new_folder(out):
        programs = parts.programs
        cluster = parts.cluster(programs[0])
        found = parts.backend.calibrate(programs, cluster, repeats=arguments.repeats)
        _show(found, class_ratios([p.graph for p in programs], cluster, found))
        _summarize(found, cluster, sum(int(p.graph.kernel.sum()) for p in programs))
        write(found, out)
    kept = " ".join(shlex.quote(o) for o in options if not o.lstrip("+").startswith("cluster="))
    print(f"written to {out}; use it:\n  placekit run {kept} {files(out)}")
    if found.interrupted:
        raise KeyboardInterrupt
    if found.failures:
        more = f" (and {len(found.failures) - 1} more)" if len(found.failures) > 1 else ""
        raise BackendError(
            f"{found.failures[0]}{more}",
            f"{out} has all other measurements; operations without a figure get their roofline cost",
        )
    return 0


def add_number(parser: Parser, flag: str, default: int, meaning: str, least: int = 1) -> None:
    """Add an option for a whole number of at least `least`."""

    def number(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
        return int(text)

    parser.add_argument(flag, type=number, default=default, metavar="N", help=f"{meaning}; default: {default}")


def out_dir(path: Path) -> Path:
    """The folder to write. Raises ConfigError if the first argument is an option."""
    if "=" in str(path):
        raise ConfigError(f"{path} is an option, not a folder", "give OUT_DIR as the first argument")
    return path


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[None]:
    """Create a folder, and remove it at the end if it is still empty. Raises RunError if it cannot be created."""
    try:
        path.mkdir(parents=True)
    except FileExistsError:
        raise RunError(f"{path} exists already", "remove it, or choose another folder") from None
    except OSError as e:
        raise RunError(f"cannot write {path}: {e.strerror or e}", "choose another folder") from None
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.rmdir()


def files(out: Path) -> str:
    """The options with which a run uses the files in `out`."""
    paths = [f"{out}/{name}" for name in (CLUSTER, COSTS)]
    if not re.fullmatch(r"[\w./\-]+", str(out)):  # a comma would start a sweep
        paths = [quoted(path) for path in paths]
    return f"{shlex.quote(f'cluster={paths[0]}')} {shlex.quote(f'costs.file={paths[1]}')}"


def _summarize(found: Calibration, cluster: Cluster, kernels: int) -> None:
    """Print how many figures were measured, how much they vary, and the notes."""
    spread = ""
    if not math.isnan(found.spread):
        spread = f", spread {percent(found.spread)} ({percent(found.largest_spread)} at most)"
    ended = f"interrupted: at most {found.repeats} samples" if found.interrupted else f"medians of {found.repeats}"
    print(f"\n{found.figures} figures for {kernels} operations, {ended}{spread}, in {found.seconds:.1f} s")
    for note in found.notes:
        print(f"note: {note}")
    if cluster.size > 1 and (
        cluster.multicast or cluster.relay or len(cluster.routes.channels) != len(found.cluster.routes.channels)
    ):
        print(f"note: in the new file, each pair of devices has its own full-duplex link, unlike in {cluster.name!r}")


def _show(found: Calibration, ratios: Sequence[ClassRatio]) -> None:
    _devices(found.cluster)
    if found.cluster.size > 1:
        print()
        r = found.cluster.routes
        rows = [[c.name, f"{count(c.bytes_per_s)}B/s", seconds(c.latency_s)] for c in r.channels]
        table(["link", "bandwidth", "latency"], rows)
    print()
    rows = [
        [r.kind, r.op_class, f"{r.kernels}", seconds(r.measured_s), seconds(r.roofline_s), f"{r.ratio:.2f}"]
        for r in ratios
    ]
    table(["device kind", "class", "operations", "measured", "roofline", "median ratio"], rows, left=2)


def _devices(cluster: Cluster) -> None:
    rows = []
    for name, k in cluster.kinds.items():
        rate = ", ".join(f"{d} {count(f)}FLOP/s" for d, f in k.flops_per_s.items())
        rows.append([name, rate, f"{count(k.memory_bytes_per_s)}B/s", seconds(k.launch_overhead_s)])
    table(["device kind", "reached", "bandwidth", "launch"], rows, left=2)
