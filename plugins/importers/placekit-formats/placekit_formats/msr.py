"""Importer `msr`: the JSON format of the graphs that Tarnawski et al. published; `write_placed` can add a placement.

Tarnawski et al., Efficient Algorithms for Device Placement of DNN Graph Operators (NeurIPS 2020); repository
msr-fiddle/dnn-partitioning, whose README and `throughput-dp/dp.cpp` define the fields. The format is in this package's README.md.
"""

from __future__ import annotations

import io
import re
from array import array
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from placekit_core import (
    MAX_SECONDS,
    PHASES,
    Cluster,
    CostTable,
    Graph,
    Importer,
    ImporterError,
    Labels,
    Program,
    validate_graph,
    write_atomically,
)
from placekit_formats import MsrOptions
from placekit_formats.msr_text import text_of
from placekit_formats.reading import HINT, MAX_BYTES, MAX_TOTAL, mistake, naming, scan_file
from placekit_formats.scanning import MAX_EDGES, MAX_OPERATIONS, JsonScanner

ACCELERATOR, CPU, HOST = "accelerator", "cpu", "host"
UNLIMITED_BYTES, UNLIMITED_RATE = 10**18, 1e30
COST_TOLERANCE_MS = 1e-6  # differences between the costs of a node's edges that dp.cpp ignores, too
DEFAULT_RATE = 1e9  # bytes per second of transfers if no edge has a size
_INTEGER = 2**63
_TYPE = re.compile(r"[A-Za-z]+")
Rule = tuple[Callable[[Any], bool], str]
"""The test of a field, and what the field must be, for messages."""


def _amount(most: float) -> Callable[[Any], bool]:
    return lambda x: (type(x) is float or type(x) is int) and 0 <= x <= most


def _optional(test: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda x: x is None or test(x)


def _integer(x: Any) -> bool:
    return type(x) is int and -_INTEGER <= x < _INTEGER


def _text(x: Any) -> bool:
    return type(x) is str and x != "" and x.isprintable()


def _flag(x: Any) -> bool:
    return type(x) is bool or (type(x) is int and 0 <= x <= 1)


_ID = _integer, "a whole number of at most 64 bits"
_MS = _amount(MAX_SECONDS * 1e3), f"a number of milliseconds, 0 to {MAX_SECONDS * 1e3:g}"
_FLAG = _flag, "true, false, 0 or 1"
_COUNT = (lambda x: type(x) is int and 0 <= x <= 1024), "a whole number, 0 to 1024"
_NODE: dict[str, Rule] = {
    "id": _ID,
    "supportedOnFpga": _FLAG,
    "cpuLatency": _MS,
    "fpgaLatency": _MS,
    "size": (_amount(MAX_BYTES), "a number of bytes, 0 to 2^53"),
    "isBackwardNode": _FLAG,
    "colorClass": (_optional(_integer), "a whole number of at most 64 bits, or absent"),
    "name": (_optional(_text), "text of printable characters, or absent"),
}
_EDGE: dict[str, Rule] = {
    "sourceId": _ID,
    "destId": _ID,
    "cost": _MS,
    "size": (_optional(_amount(MAX_BYTES)), "a number of bytes, 0 to 2^53, or absent"),
}
_TOP: dict[str, Rule] = {
    "maxSizePerFPGA": (_amount(MAX_TOTAL), "a number of bytes, 0 to 2^62"),
    "maxFPGAs": _COUNT,
    "maxCPUs": _COUNT,
}
_DEVICE: dict[str, Rule] = {"device": (_optional(_text), "the name of a device, or absent")}


class MsrImporter(Importer):
    """One program, named like its file: an operation per node, in the file's order, with its seconds and the machine.

    - Operations have the nodes' names; names that occur twice also get the node's id. `node_id` has the ids.
    - The costs are the file's latencies, on the kinds `accelerator` and `cpu`. The file does not say whether they were
      measured, so they count as estimates.
    - `persistent_bytes` is the node's `size`; nodes of a `colorClass` share a device; `allowed` is `cpu` for a node that is
      not supported on accelerators.
    - A node with outgoing edges has one output. Its bytes are the largest `size` of these edges. Column `transfer_s` has the
      edges' `cost`: seconds for one hop of the output between an accelerator and the host's memory; 0 without an output.
    - The machine has the file's accelerators and CPUs, linked to one hub, `host`. The links' rate is the sum of bytes over
      the sum of `transfer_s`, an approximation for simulators that know bytes only.
    """

    name = "msr"
    options_class = MsrOptions

    def load(self) -> list[Program]:
        """The program. Raises ImporterError that names the file and the field, or the place."""
        path = self.options.path
        return [scan_file(path, self.name, _Reader(path).read).program()]

    @classmethod
    def write(cls, program: Program, path: Path) -> None:
        """Write the graph, seconds and machine of `program`, as far as the format can hold them (docs/formats.md).

        If that fails, it raises ImporterError and writes nothing.
        """
        write_placed(program, None, path)

    @classmethod
    def placed_text(cls, program: Program, devices: Sequence[str]) -> str:
        """The text that `write_placed` writes. Raises ImporterError."""
        return placed_text(program, devices)


def write_placed(program: Program, devices: Sequence[str] | None, path: Path | str) -> None:
    """Write `program` in the format of `msr`; `devices` adds the name of each operation's device, as member `device`.

    Raises ImporterError, and writes nothing, for a program that the format cannot hold (no seconds or machine, several
    kinds of accelerators, ...), for a device that the machine does not have, and if the file cannot be written.
    """
    content = placed_text(program, devices, f"cannot write {path}").encode()
    try:
        write_atomically(Path(path), content)
    except (OSError, ValueError) as e:
        raise ImporterError(f"cannot write {path}: {getattr(e, 'strerror', None) or e}") from e


def placed_text(program: Program, devices: Sequence[str] | None = None, where: str = "the program") -> str:
    """The text that `write_placed` writes. Raises ImporterError that begins with `where`."""
    text = text_of(program, devices, where)
    _Reader(where).read(io.BytesIO(text.encode())).program()  # raises for numbers that `load` would not accept
    return text


def placed_devices(path: str | Path) -> list[str | None]:
    """Device of each node of a file, in the file's order; None for nodes without `device`. Raises ImporterError."""
    names: dict[str, str] = {}  # one string per device, not per node
    found: list[str | None] = []

    def take(i: int, node: Mapping[str, Any]) -> None:
        _check(str(path), f"nodes[{i}]", node, _DEVICE)
        device = node.get("device")
        found.append(None if device is None else names.setdefault(device, device))

    reader = _Reader(str(path))
    reader.take_node = take
    scan_file(str(path), MsrImporter.name, reader.read)
    return found


def _check(path: str, where: str, data: Any, rules: Mapping[str, Rule]) -> None:
    """Check the fields of `data`. Raises ImporterError that names the file and the field."""
    if type(data) is not dict:
        raise mistake(path, f"{where} is {data!r:.60}, not an object")
    for field, (test, must) in rules.items():
        if not test(data.get(field)):
            name = f"{where}.{field}" if where else field
            if field in data:
                raise mistake(path, f"{name} is {data[field]!r:.60}: it must be {must}")
            raise mistake(
                path, f"{name} is missing: it must be {must}", f"it has: {', '.join(data) or 'nothing'}; {HINT}"
            )


class _Reader:
    """Reads a file into columns."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.stem = Path(path).stem.removesuffix(".msr")
        self.top: dict[str, Any] = {}
        self.names: list[str | None] = []
        self.ids, self.color = array("q"), array("q")
        self.supported, self.backward, self.colored = bytearray(), bytearray(), bytearray()
        self.latency, self.size = array("d"), array("d")  # latency: accelerator, CPU, accelerator, ...
        self.ends, self.edge = array("q"), array("d")  # source, target, ...; cost, size (-1: none), ...
        self.take_node: Callable[[int, Mapping[str, Any]], None] = self.node

    def read(self, file: BinaryIO) -> _Reader:
        """Read the whole file; returns this reader. Raises ValueError or ImporterError."""
        scanner = JsonScanner(file)
        seen: list[str] = []
        for key in scanner.members():
            seen.append(key)
            if key == "nodes":
                for i, node in enumerate(scanner.elements(key)):
                    if i >= MAX_OPERATIONS:
                        raise ValueError(f"it has more than {MAX_OPERATIONS:,} nodes")
                    self.take_node(i, node)
            elif key == "edges":
                for i, edge in enumerate(scanner.elements(key)):
                    if i >= MAX_EDGES:
                        raise ValueError(f"it has more than {MAX_EDGES:,} edges")
                    self.take_edge(i, edge)
            else:
                self.top[key] = scanner.value()
        missing = next((key for key in ("nodes", "edges") if key not in seen), None)
        if missing is not None:
            has = f"it has: {', '.join(seen) or 'nothing'}; {HINT}"
            raise mistake(self.path, f"{missing} is missing: it must be a list", has)
        _check(self.path, "", self.top, _TOP)
        return self

    def node(self, i: int, node: Mapping[str, Any]) -> None:
        """Check a node, and append its fields to the columns."""
        _check(self.path, f"nodes[{i}]", node, _NODE)
        color = node.get("colorClass")
        self.ids.append(node["id"])
        self.names.append(node.get("name"))
        self.supported.append(node["supportedOnFpga"])
        self.backward.append(node["isBackwardNode"])
        self.colored.append(color is not None)
        self.color.append(0 if color is None else color)
        self.latency.append(node["fpgaLatency"])
        self.latency.append(node["cpuLatency"])
        self.size.append(node["size"])

    def take_edge(self, i: int, edge: Mapping[str, Any]) -> None:
        """Check an edge, and append its fields to the columns."""
        _check(self.path, f"edges[{i}]", edge, _EDGE)
        size = edge.get("size")
        self.ends.append(edge["sourceId"])
        self.ends.append(edge["destId"])
        self.edge.append(edge["cost"])
        self.edge.append(-1 if size is None else size)

    def program(self) -> Program:
        """Build the program from the columns. Raises ImporterError."""
        if not self.names:
            raise mistake(self.path, "nodes is empty: it must have at least one node")
        source, target = self.edges()
        transfer_s, sizes, several = self.outputs(source)
        sizes = np.ceil(sizes)
        sized = (sizes > 0) & (transfer_s > 0)
        rate = float(sizes[sized].sum() / transfer_s[sized].sum()) if sized.any() else DEFAULT_RATE
        free = not transfer_s.any()
        tensor_bytes = np.where(sizes < 0, np.ceil(transfer_s * rate), sizes)
        persistent = np.ceil(np.frombuffer(self.size))
        if persistent.sum() + tensor_bytes.sum() > MAX_TOTAL or tensor_bytes.max(initial=0) > MAX_BYTES:
            raise mistake(self.path, "the sizes of its nodes and edges are more than 2^62 bytes together")
        graph = self.graph(source, target, transfer_s, tensor_bytes, persistent.astype(np.int64), several)
        op_s = np.frombuffer(self.latency).reshape(-1, 2) / 1e3
        costs = CostTable((ACCELERATOR, CPU), op_s, np.zeros(op_s.shape, np.bool_))
        with naming(self.path):
            costs.check(validate_graph(graph))
            return Program(graph, costs, self.cluster(UNLIMITED_RATE if free else rate))

    def edges(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """[edges] source and target of each edge, as indices of nodes. Raises ImporterError for unknown ids."""
        ids = np.frombuffer(self.ids, np.int64)
        order = np.argsort(ids, kind="stable")
        ranked = ids[order]
        twice = np.flatnonzero(ranked[1:] == ranked[:-1])
        if len(twice):
            first, second = order[twice[0]], order[twice[0] + 1]
            raise mistake(self.path, f"nodes[{second}].id is {ids[second]}, which is the id of nodes[{first}], too")
        ends = np.frombuffer(self.ends, np.int64)
        place = np.minimum(np.searchsorted(ranked, ends), len(ranked) - 1)
        unknown = np.flatnonzero(ranked[place] != ends)
        if len(unknown):
            i, field = unknown[0] // 2, ("sourceId", "destId")[unknown[0] % 2]
            near = ", ".join(map(str, ranked[max(place[unknown[0]] - 1, 0) :][:3]))
            raise mistake(
                self.path, f"edges[{i}].{field} is {ends[unknown[0]]}, but no node has this id (near it: {near})"
            )
        found = order[place].reshape(-1, 2)
        return found[:, 0], found[:, 1]

    def outputs(self, source: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64], int]:
        """[n] seconds and [n] bytes (-1: not given) of each node's output, and how many nodes have edges of different sizes.

        Raises ImporterError if edges of one node have different costs.
        """
        n = len(self.names)
        cost, size = np.frombuffer(self.edge).reshape(-1, 2).T
        sources, first, inverse = np.unique(source, return_index=True, return_inverse=True)
        other = np.flatnonzero(np.abs(cost - cost[first][inverse]) > COST_TOLERANCE_MS)
        if len(other):
            i, k = other[0], first[inverse[other[0]]]
            raise mistake(
                self.path,
                f"edges[{i}].cost is {cost[i]}, and edges[{k}].cost is {cost[k]}, from the same node {self.ids[source[i]]}",
                f"a cost belongs to the output of the node, so all its edges have the same; {HINT}",
            )
        transfer_s, largest, smallest = np.zeros(n), np.full(n, -1.0), np.full(n, np.inf)
        transfer_s[sources] = cost[first] / 1e3
        np.maximum.at(largest, source, size)
        np.minimum.at(smallest, source, size)
        return transfer_s, largest, int(np.sum(smallest[sources] < largest[sources]))

    def graph(
        self,
        source: NDArray[np.int64],
        target: NDArray[np.int64],
        transfer_s: NDArray[np.float64],
        tensor_bytes: NDArray[np.float64],
        persistent: NDArray[np.int64],
        several: int,
    ) -> Graph:
        """Build the graph, without validation; `several` nodes have edges of different sizes."""
        n = len(self.names)
        pairs = np.unique(target * n + source)  # an edge that is listed twice is one edge
        producers = np.unique(source)
        tensor = np.full(n, -1, np.int32)
        tensor[producers] = np.arange(len(producers))
        t = len(producers)
        repeated = len(source) - len(pairs)
        counts = {"repeated_edges": repeated, "outputs_of_several_sizes": several}
        names, columns = self.named()
        columns |= {"transfer_s": transfer_s, "node_id": np.array(self.ids, np.int64)}
        if np.any(persistent != np.frombuffer(self.size)):
            columns["node_bytes"] = np.array(self.size, np.float64)
        same = Labels(np.zeros(n, np.int32), ("other",))
        return Graph(
            name=self.stem,
            op_name=names,
            op_type=Labels.of(_type(name) for name in names),
            op_class=same,
            dtype=Labels(same.codes, ("float32",)),
            flops=np.zeros(n),
            bytes_accessed=np.zeros(n),
            persistent_bytes=persistent,
            kernel=np.ones(n, np.bool_),
            phase=np.where(np.frombuffer(self.backward, np.uint8), PHASES.index("backward"), 0).astype(np.uint8),
            module=Labels(same.codes, ("",)),
            call=np.zeros(n, np.int32),
            colocate=self.colocate(),
            allowed=Labels(np.frombuffer(self.supported, np.uint8).astype(np.int32), ("cpu", "")),
            tensor_producer=producers.astype(np.int32),
            tensor_bytes=tensor_bytes[producers].astype(np.int64),
            tensor_storage=np.arange(t, dtype=np.int32),
            shape_ptr=np.zeros(t + 1, np.int32),
            shape_dim=np.zeros(0, np.int64),
            input_ptr=np.concatenate([[0], np.cumsum(np.bincount(pairs // n, minlength=n))]).astype(np.int32),
            input_tensor=tensor[pairs % n],
            columns=columns,
            attributes={key: count for key, count in counts.items() if count},
        )

    def named(self) -> tuple[tuple[str, ...], dict[str, Any]]:
        """Names of the operations, and the column `node_name` if they differ from the nodes' names."""
        given = [f"node{i}" if name is None else name for name, i in zip(self.names, self.ids, strict=True)]
        seen, twice = set[str](), set[str]()
        for name in given:
            (twice if name in seen else seen).add(name)
        if not twice:
            return tuple(given), {}
        names = tuple(f"{name} (node {i})" if name in twice else name for name, i in zip(given, self.ids, strict=True))
        return names, {"node_name": Labels.of(given)}

    def colocate(self) -> NDArray[np.int32]:
        """[n] colour class of each node, renumbered if the file's numbers are not within 0 to 2^31 - 1; -1 for none."""
        color = np.frombuffer(self.color, np.int64)
        colored = np.frombuffer(self.colored, np.bool_)
        found = color[colored]
        if len(found) and not 0 <= found.min() <= found.max() < 2**31:
            color = color.copy()
            color[colored] = np.unique(found, return_inverse=True)[1]
        return np.where(colored, color, -1).astype(np.int32)

    def cluster(self, rate: float) -> Cluster:
        """The file's machine. Raises ClusterError."""
        accelerators, cpus = self.top["maxFPGAs"], self.top["maxCPUs"]
        if accelerators + cpus == 0:
            raise mistake(self.path, "maxFPGAs and maxCPUs are both 0: the machine needs a device")
        memory = int(self.top["maxSizePerFPGA"])
        if accelerators and not memory:
            raise mistake(self.path, "maxSizePerFPGA is less than a byte: accelerators need memory, or maxFPGAs is 0")
        nominal = {"flops_per_s": {"float32": 1e12}, "memory_bytes_per_s": 1e12}  # unused: the seconds are in the file
        links: list[dict[str, Any]] = []
        if accelerators and accelerators + cpus > 1:
            links += [{"a": f"{ACCELERATOR}:*", "b": HOST, "bytes_per_s": rate}]
        if cpus and accelerators + cpus > 1:
            links += [{"a": f"{CPU}:*", "b": HOST, "bytes_per_s": UNLIMITED_RATE, "concurrent": "unlimited"}]
        devices = [{"kind": kind, "count": k} for kind, k in ((ACCELERATOR, accelerators), (CPU, cpus)) if k]
        kinds = {
            ACCELERATOR: {"type": "gpu", "memory_bytes": memory or 1, **nominal},
            CPU: {"type": "cpu", "memory_bytes": UNLIMITED_BYTES, **nominal},
        }
        return Cluster.parse({"name": self.stem, "kinds": kinds, "devices": devices, "links": links}, self.path)


def _type(name: str) -> str:
    """A short operator type from a node's name: the first letters behind its last dot or slash."""
    match = _TYPE.search(name, max(name.rfind("."), name.rfind("/")) + 1)
    return match[0] if match else "operation"
