"""Importer `pipedream`: the text format of the profiles that PipeDream's authors published.

Narayanan et al., PipeDream: Generalized Pipeline Parallelism for DNN Training (SOSP 2019); repository msr-fiddle/pipedream,
`profiler/**/profiles/*/graph.txt`, as read by its `graph/graph.py`. The format is in this package's README.md.
"""

from __future__ import annotations

import math
import re
from array import array
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
)
from placekit_formats import PipeDreamOptions
from placekit_formats.reading import HINT, MAX_BYTES, MAX_TOTAL, mistake, naming, scan_file
from placekit_formats.scanning import MAX_EDGES, MAX_OPERATIONS, lines

KIND = "v100"
MAX_NODES = MAX_OPERATIONS // 2  # a node becomes up to two operations
_FIELDS = ("forward_compute_time", "backward_compute_time", "activation_size", "parameter_size")
_ID = re.compile(r"\w+", re.ASCII)
_NODE = re.compile(
    r"(\w+) -- (.*) -- forward_compute_time=([^,]*), backward_compute_time=([^,]*), activation_size=([^,]*),"
    r" parameter_size=([^,]*?)(?: -- stage_id=([^,]*))?",
    re.ASCII,
)
_NUMBER = re.compile(r"\d+(\.\d*)?([eE][+-]?\d+)?", re.ASCII)
_TYPE = re.compile(r"\w+", re.ASCII)
Array = NDArray[np.int64]


class PipeDreamImporter(Importer):
    """One program, named like its file: a forward and a backward operation per node, on the authors' machine.

    - `NODE` and `NODE.backward` share a device. They take the profile's milliseconds on kind `v100`.
    - A forward operation has one output of `activation_size` bytes. The backward operation reads this output, and the inputs
      of the forward operation, so activations are kept until then. It also reads the gradients that the backward operations
      of its successors write, and writes a gradient of the activation's size for each predecessor.
    - A node without predecessors, backward time and parameters, such as the input, has no backward operation; in a profile
      without any backward time no node has one.
    - `parameter_size` is persistent. The file has no gradients of parameters and no optimiser state.
    """

    name = "pipedream"
    options_class = PipeDreamOptions

    def load(self) -> list[Program]:
        """The program. Raises ImporterError that names file and line."""
        path = self.options.path
        return [scan_file(path, self.name, _Reader(path).read).program()]


def machine() -> Cluster:
    """A server of the authors' cluster A (section 5.1): four V100 of 16 GB over PCIe.

    NVIDIA Tesla V100 data sheet, PCIe: 14 / 7 TFLOP/s in float32 / float64, 112 in float16 on tensor cores, 900 GB/s. PCIe
    3.0 x16 and its latency are as in `v100x8`.
    """
    kind = {
        "flops_per_s": {"float32": 14e12, "float16": 112e12, "float64": 7e12},
        "memory_bytes": 16 * 2**30,
        "memory_bytes_per_s": 900e9,
        "launch_overhead_s": 5e-6,
    }
    links = [{"a": f"{KIND}:*", "b": "pcie", "bytes_per_s": 12e9, "latency_s": 5e-6}]
    data = {"name": "pipedream_a", "kinds": {KIND: kind}, "devices": [{"kind": KIND, "count": 4}], "links": links}
    return Cluster.parse({**data, "description": "a server of PipeDream's cluster A: 4 x Tesla V100 16 GB, PCIe"})


class _Reader:
    """Reads a file into columns."""

    def __init__(self, path: str) -> None:
        self.path, self.line = path, 0
        self.index: dict[str, int] = {}
        self.types: dict[str, int] = {}
        self.descriptions: dict[str, int] = {}
        self.type, self.description, self.stage = array("i"), array("i"), array("i")
        self.ms = array("d")  # forward, backward, forward, ...
        self.activation, self.parameter = array("q"), array("q")
        self.source, self.target = array("q"), array("q")

    def error(self, problem: str, hint: str = HINT) -> ImporterError:
        return mistake(f"{self.path}, line {self.line}", problem, hint)

    def read(self, file: BinaryIO) -> _Reader:
        """Read the whole file; returns this reader. Raises ValueError or ImporterError."""
        for self.line, text in enumerate(lines(file), 1):
            if text.startswith("\t"):
                self.edge(text)
            elif text and not text.isspace():
                self.node(text)
        if not self.index:
            raise ValueError("it has no node")
        return self

    def node(self, text: str) -> None:
        """Check a node, and append its fields to the columns."""
        match = _NODE.fullmatch(text.rstrip())
        if match is None:
            raise self.malformed(text)
        name, description, forward, backward, activation, parameter, stage = match.groups()
        if name in self.index:
            raise self.error(f"node {name!r:.60} is there twice")
        if not description.isprintable():
            raise self.error(f"the description {description!r:.60} has characters that cannot be printed")
        if len(self.index) >= MAX_NODES:
            raise ValueError(f"it has more than {MAX_NODES:,} nodes")
        self.index[name] = len(self.index)
        kind = _TYPE.match(description)
        self.type.append(self.types.setdefault(kind[0] if kind else "operation", len(self.types)))
        self.description.append(self.descriptions.setdefault(description, len(self.descriptions)))
        self.ms.append(self.number("forward_compute_time", forward, MAX_SECONDS * 1e3))
        self.ms.append(self.number("backward_compute_time", backward, MAX_SECONDS * 1e3))
        self.activation.append(self.sizes("activation_size", activation))
        self.parameter.append(self.sizes("parameter_size", parameter))
        if stage is not None and not (stage.isascii() and stage.isdigit() and len(stage) < 10):
            raise self.error(f"stage_id is {stage!r:.60}: it must be a whole number below 10^9")
        self.stage.append(-1 if stage is None else int(stage))

    def malformed(self, text: str) -> ImporterError:
        """The error for a line that is not a node."""
        form = "node -- description -- " + ", ".join(f"{f}=..." for f in _FIELDS)
        parts = text.split(" -- ")
        if " " in text[:1] and len(parts) == 2:
            return self.error(
                f"{text!r:.60} is not an edge: it does not begin with a tab", "an edge: a tab, then `node1 -- node2`"
            )
        if len(parts) < 3 or _ID.fullmatch(parts[0]) is None:
            return self.error(
                f"{text!r:.60} is neither a node nor an edge", f"a node: `{form}`; an edge: a tab, `node1 -- node2`"
            )
        missing = next((f for f in _FIELDS if f"{f}=" not in text), None)
        if missing is not None:
            return self.error(f"node {parts[0]!r:.60} has no {missing}", f"a node: `{form}`")
        return self.error(f"the fields of node {parts[0]!r:.60} are in another form", f"a node: `{form}`")

    def number(self, field: str, text: str, most: float) -> float:
        """A number from 0 to `most`."""
        value = float(text) if _NUMBER.fullmatch(text) else math.nan
        if not 0 <= value <= most:
            raise self.error(f"{field} is {text!r:.60}: it must be a number, 0 to {most:g}")
        return value

    def sizes(self, field: str, text: str) -> int:
        """Bytes: a number, or the sum of a list `[a; b]`, rounded up."""
        parts = text[1:-1].split(";") if text.startswith("[") and text.endswith("]") else [text]
        total = math.fsum(self.number(field, part.strip(), MAX_BYTES) for part in parts)
        if total > MAX_BYTES:
            raise self.error(f"{field} is {text!r:.60}: it must be at most 2^53 together")
        return math.ceil(total)

    def edge(self, text: str) -> None:
        """Keep an edge."""
        ends = text.strip().split(" -- ")
        if len(ends) != 2:
            raise self.error(f"{text!r:.60} is not an edge", "an edge: a tab, then `node1 -- node2`")
        source, target = (self.index.get(end.strip(), -1) for end in ends)
        if source < 0 or target < 0:
            unknown = ends[0 if source < 0 else 1]
            raise self.error(f"no node above is called {unknown!r:.60}", f"nodes come before edges; {HINT}")
        if source == target:
            raise self.error(f"node {ends[0]!r:.60} reads its own output", "a dataflow graph is acyclic")
        if len(self.source) >= MAX_EDGES:
            raise ValueError(f"it has more than {MAX_EDGES:,} edges")
        self.source.append(source)
        self.target.append(target)

    def program(self) -> Program:
        """Build the program from the columns. Raises ImporterError."""
        n = len(self.index)
        pairs = np.unique(np.frombuffer(self.target, np.int64) * n + np.frombuffer(self.source, np.int64))
        source, target = pairs % n, pairs // n
        ms = np.frombuffer(self.ms).reshape(n, 2)
        parameter = np.frombuffer(self.parameter, np.int64)
        back = np.bincount(target, minlength=n).astype(np.bool_) | (ms[:, 1] > 0) | (parameter > 0)
        back &= bool(ms[:, 1].any())
        nodes = np.flatnonzero(back)[::-1]  # nodes with a backward operation, in the order of these operations
        op_s = np.concatenate([ms[:, 0], ms[nodes, 1]])[:, None] / 1e3
        costs = CostTable((KIND,), op_s, np.ones(op_s.shape, np.bool_))
        graph = self.graph(source, target, nodes, parameter, len(self.source) - len(pairs))
        with naming(self.path):
            costs.check(validate_graph(graph))
        return Program(graph, costs, machine())

    def graph(self, source: Array, target: Array, nodes: Array, parameter: Array, repeated: int) -> Graph:
        """Build the graph, without validation, from distinct edges; `nodes` have backward operations."""
        n, ops = len(self.index), np.concatenate([np.arange(len(self.index)), nodes])
        backward = np.arange(len(ops)) >= n
        producer, size, inputs = self.dataflow(source, target, nodes)
        order = np.lexsort((inputs[1], inputs[0]))
        codes, t = np.frombuffer(self.type, np.int32)[ops], len(producer)
        op_types = (*self.types, *(f"{name}_backward" for name in self.types))
        kind = np.where(backward, codes + len(self.types), codes).astype(np.int32)
        same = np.zeros(len(ops), np.int32)
        names = list(self.index)
        columns: dict[str, Any] = {
            "description": Labels(np.frombuffer(self.description, np.int32)[ops], tuple(self.descriptions))
        }
        stage = np.frombuffer(self.stage, np.int32)
        if np.any(stage >= 0):
            columns["stage_id"] = stage[ops]
        persistent = np.where(backward, 0, parameter[ops])
        if float(persistent.sum(dtype=np.float64)) + float(size.sum(dtype=np.float64)) > MAX_TOTAL:
            raise mistake(self.path, "its activations, gradients and parameters are more than 2^62 bytes together")
        return Graph(
            name=Path(self.path).stem,
            op_name=(*names, *(f"{names[v]}.backward" for v in nodes.tolist())),
            op_type=Labels(kind, op_types),
            op_class=Labels(same, ("other",)),
            dtype=Labels(same, ("float32",)),
            flops=np.zeros(len(ops)),
            bytes_accessed=np.zeros(len(ops)),
            persistent_bytes=persistent,
            kernel=np.ones(len(ops), np.bool_),
            phase=np.where(backward, PHASES.index("backward"), PHASES.index("forward")).astype(np.uint8),
            module=Labels(same, ("",)),
            call=np.zeros(len(ops), np.int32),
            colocate=np.where(np.isin(ops, nodes), ops, -1).astype(np.int32),
            allowed=Labels(same, ("",)),
            tensor_producer=producer.astype(np.int32),
            tensor_bytes=size,
            tensor_storage=np.arange(t, dtype=np.int32),
            shape_ptr=np.zeros(t + 1, np.int32),
            shape_dim=np.zeros(0, np.int64),
            input_ptr=np.concatenate([[0], np.cumsum(np.bincount(inputs[0], minlength=len(ops)))]).astype(np.int32),
            input_tensor=inputs[1][order].astype(np.int32),
            columns=columns,
            attributes={"repeated_edges": repeated} if repeated else {},
        )

    def dataflow(self, source: Array, target: Array, nodes: Array) -> tuple[Array, Array, Array]:
        """[t] producers and [t] bytes of the tensors, and [2, e] pairs (operation, tensor that it reads).

        Tensor v < n is the activation of node v. The others are gradients, in the order of the operations that write them.
        """
        n, activation = len(self.index), np.frombuffer(self.activation, np.int64)
        back = np.full(n, -1)
        back[nodes] = n + np.arange(len(nodes))  # number of each node's backward operation
        both = (back[source] >= 0) & (back[target] >= 0)
        to, by = (
            source[both],
            target[both],
        )  # of each gradient: the node that it is for, and the node that writes it
        order = np.lexsort((to, back[by]))
        to, by = to[order], by[order]
        saved = back[target] >= 0
        rows = [
            (target, source),
            (back[nodes], nodes),
            (back[target[saved]], source[saved]),
            (back[to], n + np.arange(len(to))),
        ]
        inputs = np.stack([np.concatenate([r[k] for r in rows]) for k in (0, 1)])
        return np.concatenate([np.arange(n), back[by]]), np.concatenate([activation, activation[to]]), inputs
