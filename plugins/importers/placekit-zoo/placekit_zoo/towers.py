"""Data parallelism (Mirhoseini et al. 2017, section 4.4): the training step of a network, replicated. Imports no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from placekit_core import (
    PHASES,
    Graph,
    GraphBuilder,
    Importer,
    ImporterError,
    Labels,
    Program,
    installed,
)
from placekit_zoo.towers_options import TowersOptions

SHARED = ("parameter", "state")
"""Kinds of sources that all towers share; each tower has its own buffers and inputs of the network."""
BACKWARD, UPDATE = PHASES.index("backward"), PHASES.index("update")


class TowersImporter(Importer):
    """Importer `towers`: each program of another importer, replicated; see `replicate`."""

    name = "towers"
    options_class = TowersOptions

    def load(self) -> list[Program]:
        """The replicated programs, without executables.

        Raises ImporterError if the importer named in `of` has no option `batch`, its batch cannot be divided, it has
        costs of its own, or its program is not a training step; PluginError if there is no such importer; ConfigError if
        an option in `of` is wrong.
        """
        o: TowersOptions = self.options
        programs = self.inner().load()
        if any(p.costs is not None for p in programs):
            raise ImporterError(
                f"importer {o.of['name']!r} has costs for one replica only",
                "give those of all replicas with costs.file",
            )
        return [
            Program(replicate(p.graph, o.towers, o.synchronous, o.steps), cluster=p.cluster, split=p.split)
            for p in programs
        ]

    def inner(self) -> Importer:
        """The importer of one tower, built with the tower's part of the batch."""
        o: TowersOptions = self.options
        values = dict(o.of)
        if "name" not in values:
            raise ImporterError("importer.of names no importer", "give one, such as importer.of.name=inception_v3")
        registry = installed()
        entry = registry.get("importer", str(values.pop("name")))
        if not _has_batch(entry.component.config):
            importers = (e.component for e in registry.all() if e.kind == "importer")
            having = [component.name for component in importers if _has_batch(component.config)]
            raise ImporterError(
                f"importer {entry.component.name!r} has no option `batch` that could be divided among towers",
                f"these have: {', '.join(having)}",
            )
        batch = entry.options(values, "importer.of.").batch  # type: ignore[attr-defined]
        if batch % o.towers:
            below = batch // o.towers * o.towers
            near = " or ".join(f"importer.of.batch={b}" for b in (below, below + o.towers) if b)
            raise ImporterError(f"a batch of {batch} cannot be divided among {o.towers} towers", f"{near} can")
        importer: Importer = entry.build(entry.options({**values, "batch": batch // o.towers}, "importer.of."))
        return importer


def _has_batch(options: type[BaseModel]) -> bool:
    """Whether the importer has a batch in any case; that of an ONNX file is an option only if the file leaves it open."""
    return isinstance(getattr(options.model_fields.get("batch"), "default", None), int)


def replicate(graph: Graph, towers: int, synchronous: bool = True, steps: int = 1) -> Graph:
    """`steps` training steps of `towers` towers, each a copy of the forward and backward operations of `graph`.

    Parameters and optimiser state exist once, inputs once per tower and step, buffers (statistics of batch normalisation)
    once per tower.

    Synchronous: each gradient (an output of a backward operation that an update reads) exists once per tower; an operation
    `average` averages the copies, and one update follows. An input that only updates read, such as a learning rate, exists
    once per step.

    Asynchronous: each tower has its own updates in each step, with its own gradients; no tower waits for another. A step
    reads the parameters from the tower's own update in the step before. All versions of a parameter are in the same memory,
    as on a parameter server without locks: the order of updates by different towers is left open.

    Column `tower` is the tower of each operation, -1 for shared ones: parameters, state, averages, updates; if synchronous,
    also inputs that only updates read.

    Raises ImporterError if nothing is updated, an updated value is read in the same step, an update writes a buffer, or a
    synchronous update reads a tensor that exists once per tower and is not a gradient.
    """
    parts = _Parts.of(graph, synchronous)
    copy = _Copy(graph, parts.shared, f"{graph.name}_towers")
    shared = [_Values()]
    for v in parts.parameters:
        copy.add(v, shared[0], [], "", -1)
    if not synchronous:
        shared += [_Values(dict(shared[0].now), dict(shared[0].now), dict(shared[0].op)) for _ in range(1, towers)]
    own = [_Values() for _ in range(towers)]
    for i, values in enumerate(own):
        for v in parts.buffers:
            copy.add(v, values, [], f"tower{i}/", i)
    for step in range(steps):
        prefix = f"step{step}/" if steps > 1 else ""
        for i, values in enumerate(own):
            for v in parts.computing:
                copy.add(v, values, [values, shared[i % len(shared)]], f"{prefix}tower{i}/", i)
        for v in parts.once:
            copy.add(v, shared[0], [], prefix, -1)
        gradients = [copy.averages(own, parts.updates, prefix)] if synchronous else own
        for i, values in enumerate(shared):
            for v in parts.updates:
                copy.add(v, values, [values, gradients[i]], prefix if synchronous else f"{prefix}tower{i}/", -1)
        for values in (*own, *shared):
            values.now.update(values.next)
    return copy.build({"towers": towers, "synchronous": synchronous, "steps": steps, "of": dict(graph.attributes)})


@dataclass(frozen=True)
class _Parts:
    """The operations of a step, each list in topological order.

    Attributes:
        parameters: parameters and state, once for all towers and steps.
        buffers: once per tower.
        computing: forward and backward operations and the inputs of the network, once per tower and step.
        once: inputs that only updates read, once per step.
        updates: once per step; if asynchronous, once per tower and step.
        shared: [n] whether all towers have one copy; if asynchronous, this includes updates, which have several.
    """

    parameters: list[int]
    buffers: list[int]
    computing: list[int]
    once: list[int]
    updates: list[int]
    shared: NDArray[np.bool_]

    @classmethod
    def of(cls, graph: Graph, synchronous: bool) -> _Parts:
        """The parts of the step `graph`. Raises ImporterError if it cannot be replicated; see `replicate`."""
        order = graph.topological_order
        source = np.isin(graph.op_type.tolist(), SHARED) & ~graph.kernel
        update = graph.kernel & (graph.phase == UPDATE)
        if not update.any():
            raise ImporterError(
                f"{graph.name!r} updates no parameters: towers replicate a training step", "set importer.of.mode=train"
            )
        early = graph.kernel[graph.edge_op] & ~update[graph.edge_op] & update[graph.tensor_producer[graph.input_tensor]]
        if early.any():
            name = graph.op_name[graph.edge_op[early][0]]
            raise ImporterError(
                f"{name!r} of {graph.name!r} reads a value that the step has updated, so the order of towers is undefined"
            )
        given = ~graph.kernel & graph.op_type.is_value("input")
        producer, by_update = graph.tensor_producer[graph.input_tensor], update[graph.edge_op]
        once = given & np.isin(np.arange(graph.n), producer[by_update]) & synchronous
        once[producer[~by_update]] = False
        shared_rows = source | update | once
        _check_updates(
            graph, source, update, shared_rows | (graph.kernel & (graph.phase == BACKWARD)) | (not synchronous)
        )
        buffers, computing = ~graph.kernel & ~source & ~given, (given & ~once) | (graph.kernel & ~update)

        def ordered(rows: NDArray[np.bool_]) -> list[int]:
            found: list[int] = order[rows[order]].tolist()
            return found

        return cls(
            ordered(source), ordered(buffers), ordered(computing), ordered(once), ordered(update), shared_rows
        )  # fmt: skip


def _check_updates(
    graph: Graph, source: NDArray[np.bool_], update: NDArray[np.bool_], readable: NDArray[np.bool_]
) -> None:
    """Raise ImporterError unless updates read outputs of `readable` [n], and write into no sources but `source` [n]."""
    reads = update[graph.edge_op] & ~readable[graph.tensor_producer[graph.input_tensor]]
    if reads.any():
        reader, read = graph.edge_op[reads][0], graph.tensor_producer[graph.input_tensor[reads][0]]
        raise ImporterError(
            f"update {graph.op_name[reader]!r} of {graph.name!r} reads {graph.op_name[read]!r}, which is not a gradient"
            " but differs between towers",
            "let each tower update on its own: importer.synchronous=false",
        )
    memory = graph.tensor_producer[graph.tensor_storage]
    writes = update[graph.tensor_producer] & ~graph.kernel[memory] & ~source[memory]
    if writes.any():
        raise ImporterError(
            f"update {graph.op_name[graph.tensor_producer[writes][0]]!r} of {graph.name!r} writes into"
            f" {graph.op_name[memory[writes][0]]!r}, which the towers do not share",
            f"towers share sources of op_type {' or '.join(SHARED)} only",
        )


@dataclass
class _Values:
    """The copies of the original's tensors, in one tower or in the shared part.

    Attributes:
        now: current tensor by original tensor.
        home: tensor of a source, which shares its memory with all its versions, by original tensor.
        op: operation by original operation.
        next: tensors that replace the tensors of sources in the next step, by original tensor.
    """

    now: dict[int, int] = field(default_factory=dict)
    home: dict[int, int] = field(default_factory=dict)
    op: dict[int, int] = field(default_factory=dict)
    next: dict[int, int] = field(default_factory=dict)


class _Copy:
    """Builds the graph of towers. Operations in `shared` [n] keep their co-location sets; others have one set per tower."""

    def __init__(self, graph: Graph, shared: NDArray[np.bool_], name: str) -> None:
        self.graph, self.builder = graph, GraphBuilder(name)
        self.one_set = set(graph.colocate[shared].tolist())
        self.sets: dict[tuple[int, int], int] = {}
        self.rows: list[int] = []  # original of each operation; for an average, the update that reads it
        self.tower: list[int] = []
        self.signature: dict[int, str] = {}  # signatures of averages
        self.forward_of: list[int] = []

    def add(self, v: int, values: _Values, read: list[_Values], prefix: str, tower: int) -> None:
        """Copy operation v; its inputs are in `read`, its outputs go to `values`."""
        g, op = self.graph, len(self.rows)
        together = int(g.colocate[v])
        key = (together, -1 if together in self.one_set else tower)
        name = prefix + g.op_name[v]
        inputs = [next(x.now[t] for x in read if t in x.now) for t in g.inputs(v).tolist()]
        self.builder.add(
            name, op_type=g.op_type[v], op_class=g.op_class[v], dtype=g.dtype[v], inputs=inputs,
            flops=float(g.flops[v]), bytes_accessed=float(g.bytes_accessed[v]),
            persistent_bytes=int(g.persistent_bytes[v]), kernel=bool(g.kernel[v]), phase=PHASES[g.phase[v]],
            module=g.module[v], call=int(g.call[v]), allowed=g.allowed[v],
            colocate=-1 if together < 0 else self.sets.setdefault(key, len(self.sets)),
        )  # fmt: skip
        for t in sorted(
            g.outputs(v), key=lambda t: int(g.tensor_storage[t]) != t
        ):  # tensors that own memory first, then views of them
            owner = int(g.tensor_storage[t])
            renewed = int(g.tensor_producer[owner]) if owner != t else v
            if renewed == v or g.kernel[renewed]:  # its own, or it writes over the value of another kernel
                values.now[t] = self._output(op, t, -1 if owner == t else values.now[owner])
            else:  # an update, which writes into the memory of a source
                values.next[owner] = values.now[t] = self._output(op, t, values.home[owner])
                for view in (x for x in g.outputs(renewed) if x != owner and g.tensor_storage[x] == owner):
                    values.next[view] = self._output(op, view, values.home[owner])
            if not g.kernel[v]:
                values.home[t] = values.now[t]
        values.op[v] = op
        forward = g.columns.get("forward_of")
        known = isinstance(forward, np.ndarray) and forward[v] >= 0
        self.forward_of.append(values.op[int(forward[v])] if known else -1)  # type: ignore[index]
        self.rows.append(v)
        self.tower.append(tower)

    def _output(self, op: int, tensor: int, storage: int) -> int:
        return self.builder.output(op, int(self.graph.tensor_bytes[tensor]), self.graph.shape(tensor), storage)

    def averages(self, own: list[_Values], updates: list[int], prefix: str) -> _Values:
        """Average the gradients, the only values of towers that updates read: towers - 1 additions, a scaling per element."""
        g, result = self.graph, _Values()
        for v in updates:
            for t in (t for t in g.inputs(v).tolist() if t in own[0].now and t not in result.now):
                u = int(g.tensor_producer[t])
                size, elements = int(g.tensor_bytes[t]), math.prod(g.shape(t))
                name = f"{prefix}{g.op_name[u]}{'' if t == g.output_ptr[u] else f'.{t - g.output_ptr[u]}'}/average"
                [result.now[t]] = self.builder.add(
                    name, op_type="average", op_class="elementwise", dtype=g.dtype[u],
                    inputs=[values.now[t] for values in own], outputs=[size], shapes=[g.shape(t)],
                    flops=float(len(own) * elements), bytes_accessed=float((len(own) + 1) * size),
                    phase="backward", module=g.module[v],
                )  # fmt: skip
                shape = ",".join(map(str, g.shape(t)))
                self.signature[len(self.rows)] = f"average({len(own)} * {g.dtype[u]}[{shape}])"
                self.rows.append(v)
                self.tower.append(-1)
                self.forward_of.append(-1)
        return result

    def build(self, attributes: dict[str, object]) -> Graph:
        """The graph, with the columns of the original and `tower`."""
        rows = np.asarray(self.rows)
        for key, column in self.graph.columns.items():
            self.builder.columns[key] = column.take(rows) if isinstance(column, Labels) else column[rows]
        if "forward_of" in self.graph.columns:
            self.builder.columns["forward_of"] = np.asarray(self.forward_of, np.int32)
        signature = self.graph.columns.get("signature")
        if isinstance(signature, Labels):
            texts = (self.signature.get(i, signature[v]) for i, v in enumerate(self.rows))
            self.builder.columns["signature"] = Labels.of(texts)
        self.builder.columns["tower"] = np.asarray(self.tower, np.int16)
        self.builder.attributes = attributes
        return self.builder.build()
