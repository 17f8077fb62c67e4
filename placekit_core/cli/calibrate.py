"""`placekit cluster profile`: measures a machine and a program's operations, and writes what a run can read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from placekit_core.calibration import Calibration, ClassRatio, class_ratios
from placekit_core.cli.arguments import take
from placekit_core.cli.console import table
from placekit_core.cluster import Cluster
from placekit_core.errors import ConfigError, RunError
from placekit_core.interfaces import Backend
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
    given, options = take(argv[1:], "repeats")
    repeats = whole("repeats", given, 9)
    config = validate(compose(options))
    if out.exists():  # before minutes of measuring
        raise RunError(f"{out} exists already", "remove it, or choose another folder")
    backend: Backend = config.build("backend")
    programs = config.build("importer").load()
    cluster = choose_cluster(config, programs[0], backend)
    found = backend.calibrate(programs, cluster, repeats)
    found.write(out)
    _show(found, class_ratios([p.graph for p in programs], cluster, found))
    kernels = sum(int(p.graph.kernel.sum()) for p in programs)
    print(
        f"\n{found.figures} figures for {kernels} operations, medians of {repeats}, spread {percent(found.spread)},"
        f" in {found.seconds:.1f} s"
    )
    kept = " ".join(_shell(o) for o in options if not o.lstrip("+").startswith(("cluster=", "costs.file=")))
    print(f"written to {out}; use it:\n  placekit run {kept} {files(out)}")
    return 0


def files(out: Path) -> str:
    """The options that let a run use what was written to `out`."""
    return f"{_shell(f'cluster={out}/cluster.yaml')} {_shell(f'costs.file={out}/costs.json')}"


def whole(name: str, value: str | None, default: int, least: int = 1) -> int:
    """The number that `name=value` gives. Raises ConfigError."""
    if value is None:
        return default
    if not value.isdecimal() or int(value) < least:
        raise ConfigError(f"{name}={value}: it must be a whole number, {least} at least")
    return int(value)


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
