"""`placekit cluster profile`: measures a machine and a program's operations, and writes what a run can read."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path

from placekit_core.calibration import CLUSTER, COSTS, Calibration, ClassRatio, class_ratios
from placekit_core.cli.arguments import quoted, take_numbers
from placekit_core.cli.console import table
from placekit_core.cluster import Cluster
from placekit_core.errors import BackendError, ConfigError
from placekit_core.interfaces import Backend
from placekit_core.results import new_folder
from placekit_core.units import count, percent, seconds

USAGE = "placekit cluster profile OUT_DIR [repeats=9] [OPTION=VALUE ...]"


def main(argv: list[str]) -> int:
    """Measure with the backend that the options name, on the cluster and for the programs that they name."""
    from placekit_core.cli.hydra_app import compose
    from placekit_core.config import validate
    from placekit_core.opening import choose_cluster

    if not argv or "=" in argv[0] or argv[0].startswith("-"):
        raise ConfigError(f"usage: {USAGE}")
    out = Path(argv[0])
    numbers, options = take_numbers(argv[1:], {"repeats": 9})
    repeats = numbers["repeats"]
    config = validate(compose(options))
    if config.costs.file is not None:
        raise ConfigError("costs.file is for runs: here costs are measured", "leave it out")
    with new_folder(out):
        backend: Backend = config.build("backend")
        programs = config.build("importer").load()
        cluster = choose_cluster(config, programs[0], backend)
        found = backend.calibrate(programs, cluster, repeats)
        _show(found, class_ratios([p.graph for p in programs], cluster, found))
        kernels = sum(int(p.graph.kernel.sum()) for p in programs)
        _say(found, cluster, kernels)
        found.write(out)
    kept = " ".join(_shell(o) for o in options if not o.lstrip("+").startswith("cluster="))
    print(f"written to {out}; use it:\n  placekit run {kept} {files(out)}")
    if found.interrupted:
        raise KeyboardInterrupt
    if found.failures:
        more = f" (and {len(found.failures) - 1} more)" if len(found.failures) > 1 else ""
        raise BackendError(
            f"{found.failures[0]}{more}",
            f"what was measured before is in {out}; operations without a figure cost the roofline",
        )
    return 0


def files(out: Path) -> str:
    """The options that let a run use what was written to `out`."""
    paths = [f"{out}/{name}" for name in (CLUSTER, COSTS)]
    if not re.fullmatch(r"[\w./\-]+", str(out)):  # a comma would make a sweep of it
        paths = [quoted(path) for path in paths]
    return f"{_shell(f'cluster={paths[0]}')} {_shell(f'costs.file={paths[1]}')}"


def _say(found: Calibration, cluster: Cluster, kernels: int) -> None:
    """What the figures are, and what could not be measured."""
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
        print(f"note: every two devices have a full-duplex link of their own in place of the links of {cluster.name!r}")


def _shell(text: str) -> str:
    """As a shell takes it literally."""
    import shlex

    return shlex.quote(text)


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
