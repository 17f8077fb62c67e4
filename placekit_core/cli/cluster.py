"""`placekit cluster show | profile`: the machines that ship, one machine in detail, or this one as it is measured."""

from __future__ import annotations

import numpy as np

from placekit_core.cli.console import table
from placekit_core.cluster import UNLIMITED, Cluster, load_cluster
from placekit_core.config import conf_dir
from placekit_core.errors import ClusterError, ConfigError, unknown
from placekit_core.units import count, mebibytes, seconds


def main(argv: list[str]) -> int:
    """`show` alone lists the presets, `show NAME` or `show FILE.yaml` describes one machine; `profile` measures this one."""
    if argv[:1] == ["profile"]:
        from placekit_core.cli import calibrate

        return calibrate.main(argv[1:])
    if argv and argv[0] not in ("show", "profile"):
        raise unknown("command", f"cluster {argv[0]}", ["cluster show", "cluster profile"], ConfigError)
    if argv[:1] != ["show"] or len(argv) > 2:
        raise ConfigError(
            "usage: placekit cluster show [NAME|FILE.yaml] | profile OUT_DIR [repeats=9] [OPTION=VALUE ...]"
        )
    presets = {p.stem: p for p in sorted((conf_dir() / "cluster").glob("*.yaml"))}
    if len(argv) == 1:
        rows = []
        for name, path in presets.items():
            c = load_cluster(path)
            rows.append([name, c.description, f"{c.size}", mebibytes(float(c.memory_bytes.sum()))])
        table(["cluster", "description", "devices", "memory"], rows, left=2)
        return 0
    name = argv[1]
    if name not in presets and not name.endswith((".yaml", ".yml")):
        raise unknown("cluster", name, presets, ClusterError)
    show(load_cluster(presets.get(name, name)))
    return 0


def show(cluster: Cluster) -> None:
    """Devices, channels, and what a megabyte takes from each device to each other."""
    if cluster.description:
        print(f"{cluster.name}: {cluster.description}")
    rows = []
    for name, kind_name in zip(cluster.device_names, cluster.device_kind, strict=True):
        k = cluster.kinds[kind_name]
        rate = ", ".join(f"{d} {count(f)}FLOP/s" for d, f in k.flops_per_s.items())
        rows.append(
            [name, k.type, rate, mebibytes(k.memory_bytes), f"{count(k.memory_bytes_per_s)}B/s",
             seconds(k.launch_overhead_s), str(k.streams)]
        )  # fmt: skip
    table(["device", "type", "peak", "memory", "bandwidth", "launch", "streams"], rows, left=3)
    r = cluster.routes
    print(f"\n{len(r.channels)} channels:")
    limit = {UNLIMITED: "any number of transfers"}
    rows = [
        [c.name, f"{count(c.bytes_per_s)}B/s", seconds(c.latency_s), limit.get(c.capacity, f"{c.capacity} at a time")]
        for c in r.channels
    ]
    table(["channel", "bandwidth", "latency", "carries"], rows)
    print("\nseconds for 1 MB, from (row) to (column):")
    time = r.latency_s + 1e6 * r.s_per_byte
    names = cluster.device_names
    body = [
        [a, *("-" if i == j else seconds(float(time[i, j])) for j in range(len(names)))] for i, a in enumerate(names)
    ]
    table(["", *names], body)
    print(f"\nfingerprint {cluster.fingerprint}; multicast {'yes' if cluster.multicast else 'no'};"
          f" slowest pair {count(1 / float(np.max(r.s_per_byte)) if np.max(r.s_per_byte) else np.inf)}B/s")  # fmt: skip
