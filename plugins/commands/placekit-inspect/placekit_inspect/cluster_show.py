"""`placekit cluster show`: lists the machines that ship (presets), or prints one machine in detail."""

from __future__ import annotations

import numpy as np

from placekit_core import UNLIMITED, Cluster, ClusterError, Registry, load_cluster, unknown
from placekit_core.cli.console import facts, table, wrapped
from placekit_core.cli.parser import Parser
from placekit_core.contracts.cluster import DeviceKind, Host
from placekit_core.contracts.units import count, mebibytes, seconds


def main(argv: list[str], registry: Registry) -> int:
    """Print the presets or, if a name is given, one machine."""
    parser = Parser("cluster show", "The machines that ship; or the devices, links and transfers of one.")
    how = "a preset, a file, or a machine in words and quotes"
    parser.add_argument("name", nargs="?", metavar="NAME|FILE.yaml|WORDS", help=how)
    name = parser.read(argv).name
    presets = [(p.name, p.path) for p in registry.presets() if p.group == "cluster" and p.path]
    if name is None:
        rows = []
        for preset, path in sorted(presets):
            c = load_cluster(path)
            rows.append([preset, c.description, f"{c.size}", _memory(float(c.memory_bytes.sum()), c.size)])
        table(["cluster", "description", "devices", "usable"], rows, left=2)
        return 0
    paths = dict(presets)
    named = name in paths or name.endswith((".yaml", ".yml"))
    registry.check_choices({"cluster": name})
    found = load_cluster(paths.get(name, name)) if named else registry.machine(name)
    if found is None:
        raise unknown("cluster", name, paths, ClusterError, "placekit cluster show")
    show(found)
    return 0


def show(cluster: Cluster) -> None:
    """Print devices, channels, and the seconds to send a megabyte between each pair of devices."""
    if cluster.description:
        print(wrapped(f"{cluster.name}: {cluster.description}"))
    for name in cluster.kind_names:
        k = cluster.kinds[name]
        print(wrapped(f"{_devices(cluster, name)} ({k.type})"))
        facts([
            ("peak", ", ".join(f"{d} {count(f)}FLOP/s" for d, f in k.flops_per_s.items())),
            ("memory", f"{_memory(k.memory_bytes)}, {_rate(k.memory_bytes_per_s)}"),
            *([("usable", _usable(k))] if k.usable_bytes < k.memory_bytes else []),
            ("launch", seconds(k.launch_overhead_s)),
            ("streams", str(k.streams)),
        ])  # fmt: skip
    for host in cluster.hosts:
        print(wrapped(_host(host, cluster.launching)))
    r = cluster.routes
    limit = {UNLIMITED: "any number of transfers"}
    rows = [
        [c.name, limit.get(c.capacity, f"{c.capacity} at a time"), _rate(c.bytes_per_s), seconds(c.latency_s)]
        for c in r.channels
    ]
    once = {"carries": "each carries {}", "latency": "latency {}"}
    print()
    table(["channel", "carries", "bandwidth", "latency"], rows, f"{len(r.channels)} channels", left=2, once=once)
    print("\nseconds for 1 MB, from (row) to (column):")
    time = r.latency_s + 1e6 * r.s_per_byte
    names = cluster.device_names
    body = [
        [a, *("-" if i == j else seconds(float(time[i, j])) for j in range(len(names)))] for i, a in enumerate(names)
    ]
    table(["", *names], body)
    slowest = float(np.max(r.s_per_byte))
    print(
        f"\nmulticast {'yes' if cluster.multicast else 'no'}; slowest pair {_rate(1 / slowest if slowest else np.inf)}"
    )
    print(f"fingerprint {cluster.fingerprint}")


def _host(host: Host, launching: str) -> str:
    """The seconds that a host adds to operations and transfers."""
    own = host.devices if isinstance(host.devices, str) else ", ".join(host.devices)
    graphs = launching == "graph"
    times = [f"{'no time' if graphs else seconds(host.launch_s)} per launch"]
    if handover := host.graph_handover_s if graphs else host.handover_s:
        times.append(f"{seconds(handover)} more per transfer between GPUs")
    if not graphs and host.graph_handover_s:
        times.append(f"{seconds(host.graph_handover_s)} with launching=graph")
    return f"host of {own} (launching {launching}): {', '.join(times)}"


def _usable(kind: DeviceKind) -> str:
    """The memory for placements, and the reserve and headroom."""
    rest = [f"{mebibytes(kind.reserve_bytes)} reserved"] if kind.reserve_bytes else []
    rest += [f"{100 * kind.headroom:g}% headroom"] if kind.headroom else []
    return f"{mebibytes(kind.usable_bytes)}: {', '.join(rest)}"


def _memory(total_bytes: float, devices: int = 1) -> str:
    """The memory of devices; clusters without a memory limit have a huge number."""
    return "unlimited" if total_bytes >= devices * 2**50 else mebibytes(total_bytes)


def _rate(bytes_per_s: float) -> str:
    return "unlimited" if bytes_per_s >= 1e18 else f"{count(bytes_per_s)}B/s"


def _devices(cluster: Cluster, kind: str) -> str:
    """The devices of a kind; more than two as `FIRST to LAST`."""
    names = [d for d, own in zip(cluster.device_names, cluster.device_kind, strict=True) if own == kind]
    numbered = names == [f"{kind}:{i}" for i in range(len(names))]
    return f"{names[0]} to {names[-1]}" if numbered and len(names) > 2 else ", ".join(names)
