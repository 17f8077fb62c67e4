"""Writes programs as text in the format of importer `msr`."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from placekit_core import Cluster, CostTable, Graph, Labels, Program
from placekit_formats.reading import mistake


def text_of(program: Program, devices: Sequence[str] | None, where: str) -> str:
    """The program as text; `devices` adds member `device` to each node. Raises ImporterError that begins with `where`."""
    graph, costs, cluster = program.graph, program.costs, program.cluster
    if costs is None or cluster is None:
        lacks = " and ".join(what for what, x in (("seconds", costs), ("machine", cluster)) if x is None)
        raise mistake(
            where, f"{graph.name!r} has no {lacks}", "the format holds both; json and graph files need neither"
        )
    kinds = _kinds(cluster, costs, where)
    _check_operations(graph, cluster, where)
    if devices is not None:
        _check_devices(graph, cluster, devices, where)
    accelerators = [k for k in cluster.device_kind if cluster.kinds[k].type == "gpu"]
    memory = cluster.kinds[accelerators[0] if accelerators else kinds[0]].memory_bytes
    machine = {
        "maxSizePerFPGA": memory,
        "maxFPGAs": len(accelerators),
        "maxCPUs": cluster.size - len(accelerators),
    }
    head = json.dumps(machine)[1:-1]
    nodes = ",\n".join(_nodes(graph, costs, kinds, devices))
    edges = ",\n".join(_edges(graph, cluster))
    return f'{{{head},\n"nodes": [\n{nodes}\n],\n"edges": [\n{edges}\n]}}\n'


def _kinds(cluster: Cluster, costs: CostTable, where: str) -> tuple[str, str]:
    """The kind of accelerators and the kind of CPUs whose seconds are written; the same one twice if there is no other."""
    found: list[str] = []
    for kind_type, what in (("gpu", "accelerators"), ("cpu", "CPUs")):
        kinds = [k for k in cluster.kind_names if cluster.kinds[k].type == kind_type]
        if len(kinds) > 1:
            raise mistake(
                where, f"{cluster.name!r} has {what} of several kinds: {', '.join(kinds)}", "the format has one kind"
            )
        known = [k for k in costs.kinds if k in cluster.kinds and cluster.kinds[k].type == kind_type]
        found += kinds or known[:1] or [""]
    accelerator, cpu = found
    missing = next((k for k in found if k and k not in costs.kinds), None)
    if missing is not None:
        raise mistake(
            where, f"the program has no costs for device kind {missing!r}", f"it has them for: {', '.join(costs.kinds)}"
        )
    return accelerator or cpu, cpu or accelerator


def _check_operations(graph: Graph, cluster: Cluster, where: str) -> None:
    """Raise ImporterError for an operation with several outputs that are read, or that may not run on the machine's CPUs."""
    read = np.bincount(graph.tensor_producer[np.unique(graph.input_tensor)], minlength=graph.n)
    several = np.flatnonzero(read > 1)
    if len(several):
        name = graph.op_name[several[0]]
        raise mistake(
            where, f"{read[several[0]]} outputs of {name!r} are read", "the format has only one output per node"
        )
    if any(cluster.kinds[k].type == "cpu" for k in cluster.kind_names):
        bound = np.flatnonzero(graph.allowed.is_value("gpu"))
        if len(bound):
            problem = f"{graph.op_name[bound[0]]!r} may not run on the CPUs of {cluster.name!r}"
            raise mistake(where, problem, "the format cannot say so: there, all nodes may run on CPUs")


def _check_devices(graph: Graph, cluster: Cluster, devices: Sequence[str], where: str) -> None:
    if len(devices) != graph.n:
        raise mistake(where, f"there are devices for {len(devices)} operations, but {graph.name!r} has {graph.n}")
    unknown = next((d for d in devices if d not in cluster.device_names), None)
    if unknown is not None:
        raise mistake(
            where, f"{cluster.name!r} has no device {unknown!r}", f"devices: {', '.join(cluster.device_names)}"
        )


def _nodes(graph: Graph, costs: CostTable, kinds: tuple[str, str], devices: Sequence[str] | None) -> list[str]:
    """One object per operation, as text."""
    fpga, cpu = (costs.op_s[:, costs.kinds.index(k)].tolist() for k in kinds)
    ids, names = _ids(graph).tolist(), graph.columns.get("node_name")
    given = names.tolist() if isinstance(names, Labels) else graph.op_name
    sizes = graph.columns.get("node_bytes", graph.persistent_bytes)
    bytes_ = sizes.tolist()
    rows: list[str] = []
    for v in range(graph.n):
        node = {
            "name": given[v],
            "id": ids[v],
            "supportedOnFpga": graph.allowed[v] != "cpu",
            "cpuLatency": milliseconds(cpu[v]),
            "fpgaLatency": milliseconds(fpga[v]),
            "isBackwardNode": bool(graph.phase[v]),
            "size": bytes_[v],
        }
        if graph.colocate[v] >= 0:
            node["colorClass"] = int(graph.colocate[v])
        if devices is not None:
            node["device"] = devices[v]
        rows.append(json.dumps(node))
    return rows


def _edges(graph: Graph, cluster: Cluster) -> list[str]:
    """One object per edge, as text, in the order of the operations that write and read."""
    transfer_s = graph.columns.get("transfer_s")
    costs = _one_hop_s(graph, cluster) if transfer_s is None else transfer_s
    edge_tensor, edge_op = graph.input_tensor, graph.edge_op
    producer = graph.tensor_producer[edge_tensor]
    ids = _ids(graph)
    order = np.lexsort((edge_op, producer))
    columns = (ids[producer], ids[edge_op], np.asarray(costs)[producer], graph.tensor_bytes[edge_tensor])
    rows = zip(*(c[order].tolist() for c in columns), strict=True)
    return [
        json.dumps({"sourceId": source, "destId": target, "cost": milliseconds(seconds), "size": size})
        for source, target, seconds, size in rows
    ]


def _ids(graph: Graph) -> NDArray[np.int64]:
    found = graph.columns.get("node_id")
    return found if isinstance(found, np.ndarray) else np.arange(graph.n, dtype=np.int64)


def _one_hop_s(graph: Graph, cluster: Cluster) -> NDArray[np.float64]:
    """[n] seconds of each operation's output from an accelerator to the host, for graphs without column `transfer_s`.

    The route is that from the first accelerator to the first CPU. Without CPUs, it is half of a route between accelerators,
    which has two hops.
    """
    types = [cluster.kinds[k].type for k in cluster.device_kind]
    gpus, cpus = ([d for d, t in enumerate(types) if t == kind] for kind in ("gpu", "cpu"))
    a, b, hops = (gpus[0], cpus[0], 1) if gpus and cpus else (0, cluster.size - 1, 2)
    found = np.zeros(graph.n)
    if a != b and gpus:
        routes, read = cluster.routes, np.unique(graph.input_tensor)
        seconds = (routes.latency_s[a, b] + graph.tensor_bytes[read] * routes.s_per_byte[a, b]) / hops
        found[graph.tensor_producer[read]] = seconds
    return found


def milliseconds(seconds: float) -> float:
    """Milliseconds that the importer reads as exactly these seconds, with few digits if possible."""
    near = seconds * 1e3
    choice = float(f"{near:.15g}"), near, math.nextafter(near, math.inf), math.nextafter(near, 0)
    return next((x for x in choice if x / 1e3 == seconds), near)
