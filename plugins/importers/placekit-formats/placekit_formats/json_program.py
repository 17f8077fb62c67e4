"""Importer `json`: placekit's own JSON format, in which any tool can write programs. docs/formats.md describes it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    StrictBool,
    ValidationError,
)

from placekit_core import (
    MAX_SECONDS,
    PHASES,
    Cluster,
    CostTable,
    Graph,
    GraphBuilder,
    Importer,
    ImporterError,
    OperationClass,
    Program,
    parse_json,
    plain,
    write_atomically,
)
from placekit_formats import JsonOptions
from placekit_formats.reading import MAX_BYTES, MAX_TOTAL, mistake, naming, read_file

FORMAT, VERSION = "placekit-program", 1
MAX_PART_VALUES = 50_000  # limit on the values in the attributes, the machine, or one operation
MAX_MEMBERS = 100  # limit on the members at the top level; the format has seven


def _no_boolean(value: Any) -> Any:
    if isinstance(value, bool | str):  # pydantic would read true as 1 and "1" as 1
        raise ValueError("it must be a number")
    return value


def _an_integer(value: Any) -> Any:
    if type(value) is not int:  # true and 1.0 equal 1
        raise ValueError("input should be 1")
    return value


def _printable(value: str) -> str:
    if not value.isprintable():
        raise ValueError("it has characters that cannot be printed")
    return value


_Number = BeforeValidator(_no_boolean)
Amount = Annotated[float, _Number, Field(ge=0)]
Bytes = Annotated[int, _Number, Field(ge=0, le=MAX_BYTES)]
Index = Annotated[int, _Number, Field(ge=0, lt=2**31)]
Seconds = Annotated[float, _Number, Field(ge=0, le=MAX_SECONDS)]
Text = Annotated[str, AfterValidator(_printable)]
Tensor = str | tuple[str, Index]
DType = Literal[
    "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float8_e4m3fn", "float8_e5m2",
    "float16", "bfloat16", "float32", "float64", "complex32", "complex64", "complex128",
]  # fmt: skip


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class Output(_Part):
    """An output tensor with a shape or a storage; others are only a number of bytes."""

    bytes: Bytes
    shape: list[Annotated[int, _Number, Field(ge=0, le=MAX_BYTES)]] = []
    storage: Tensor | None = None


class Operation(_Part):
    """One operation; the fields are those of a graph's columns (docs/data-flow.md)."""

    name: Text = Field(min_length=1)
    op_type: Text | None = None
    op_class: OperationClass = "other"
    dtype: DType = "float32"
    kernel: StrictBool = True
    flops: Amount = 0.0
    bytes_accessed: Amount | None = None
    persistent_bytes: Bytes | None = None
    phase: Literal["forward", "backward", "update"] = "forward"
    module: Text = ""
    call: Index = 0
    colocate: Annotated[int, _Number, Field(ge=-1, lt=2**31)] = -1
    allowed: list[Literal["cpu", "gpu"]] = []
    outputs: list[Bytes | Output] = []
    inputs: list[Tensor] = []
    seconds: dict[str, Seconds] = {}


class Document(_Part):
    """The whole file. Its operations are validated one by one later, so that only the first wrong one is reported."""

    format: Literal["placekit-program"]
    version: Annotated[Literal[1], BeforeValidator(_an_integer)]
    name: Text | None = None
    attributes: dict[str, JsonValue] = {}
    cluster: dict[str, Any] | None = None
    measured: StrictBool = False
    operations: list[Any] = Field(min_length=1)


_NOT_OF_SOURCES = {
    "op_class": "a source has the class `source`",
    "flops": "a source computes nothing",
    "bytes_accessed": "a source reads and writes nothing",
    "inputs": "a source reads nothing",
    "seconds": "a source takes no time",
}
"""Fields that a source must not have, and why."""


class JsonImporter(Importer):
    """One program: its graph and, if the file has them, the seconds of its operations and its machine."""

    name = "json"
    options_class = JsonOptions

    def load(self) -> list[Program]:
        """The program. Raises ImporterError that names the file, the operation and the field."""
        path = self.options.path
        return [program_of(path, read_file(path, self.name, _parse))]

    @classmethod
    def write(cls, program: Program, path: Path) -> None:
        """Write graph, costs and machine of `program`, as far as the format can hold them (docs/formats.md).

        If that fails, or if `load` would refuse the file, it raises ImporterError and writes nothing.
        """
        data = _document(program)
        program_of(f"cannot write {path}", data)
        try:
            content = json.dumps(data, indent=1).encode()
            _parse(content)
            write_atomically(path, content)
        except (OSError, ValueError) as e:
            raise ImporterError(f"cannot write {path}: {getattr(e, 'strerror', None) or e}") from e


def _parse(content: bytes) -> Any:
    """Parse a file, and limit its size, so that validation cannot collect millions of errors. Raises ValueError."""
    data = parse_json(content)
    if isinstance(data, dict):
        if len(data) > MAX_MEMBERS:
            raise ValueError(f"it has {len(data):,} members")
        parts = [data.get("attributes"), data.get("cluster")]
        parts += data["operations"] if isinstance(data.get("operations"), list) else []
        for part in parts:
            if isinstance(part, dict | list):
                plain(part, MAX_PART_VALUES)
    return data


def program_of(path: str, data: Any) -> Program:
    """Build the program from a document's data. Raises ImporterError with a message that begins with `path`."""
    try:
        document = Document.model_validate(data)
    except ValidationError as e:
        raise _explain(path, e) from None
    operations: list[Operation] = []
    for i, operation in enumerate(document.operations):
        try:
            operations.append(Operation.model_validate(operation))
        except ValidationError as e:
            name = operation.get("name") if isinstance(operation, Mapping) else None
            raise _explain(f"{path}: {_place(i, name)}", e) from None
    with naming(path):
        return _Builder(path, document, operations).program()


class _Builder:
    """Builds a program from a document."""

    def __init__(self, path: str, document: Document, operations: list[Operation]) -> None:
        self.path, self.document, self.operations = path, document, operations
        self.number: dict[str, int] = {}
        self.first: list[int] = [0]  # number of each operation's first output
        for i, op in enumerate(operations):
            if self.number.setdefault(op.name, i) < i:
                raise self.error(i, f"operations[{self.number[op.name]}] has the same name")
            self.first.append(self.first[-1] + len(op.outputs))
        self.sizes = [o if isinstance(o, int) else o.bytes for op in operations for o in op.outputs]

    def error(self, i: int, problem: str) -> ImporterError:
        return mistake(self.path, f"{_place(i, self.operations[i].name)}: {problem}")

    def program(self) -> Program:
        name = self.document.name
        builder = GraphBuilder(Path(self.path).stem if name is None else name)
        builder.attributes = self.document.attributes
        total = sum(self.sizes)
        for i, op in enumerate(self.operations):
            total += self.add(builder, i, op)
        if total > MAX_TOTAL:
            raise mistake(self.path, f"the tensors have {total:.3g} bytes together")
        graph, costs = builder.build(), self.costs()
        cluster = None
        if self.document.cluster is not None:
            cluster = Cluster.parse(self.document.cluster, "its machine")
        if costs is not None:
            costs.check(graph)
            if cluster is not None:
                costs.on(cluster)
        return Program(graph, costs, cluster)

    def add(self, builder: GraphBuilder, i: int, op: Operation) -> int:
        """Add operation `i`. Returns its persistent bytes."""
        inputs = [self.tensor(i, t, "inputs") for t in op.inputs]
        if not op.kernel:
            given = next((f for f in _NOT_OF_SOURCES if f in op.model_fields_set and getattr(op, f)), None)
            if given is not None:
                raise self.error(i, f"`kernel` is false, and it has {given}: {_NOT_OF_SOURCES[given]}")
        written = self.sizes[self.first[i] : self.first[i + 1]]
        moved = op.bytes_accessed
        if moved is None:
            moved = float(sum(written) + sum(self.sizes[t] for t in dict.fromkeys(inputs))) if op.kernel else 0.0
        held = op.persistent_bytes
        if held is None:
            held = 0 if op.kernel else sum(written)
        builder.add(
            op.name, op_type=op.op_type or ("operation" if op.kernel else "input"),
            op_class=op.op_class if op.kernel else "source", dtype=op.dtype, inputs=inputs, flops=op.flops,
            bytes_accessed=moved, persistent_bytes=held, kernel=op.kernel, phase=op.phase, module=op.module,
            call=op.call, colocate=op.colocate, allowed="|".join(op.allowed),
        )  # fmt: skip
        for size, output in zip(written, op.outputs, strict=True):
            if isinstance(output, Output):
                storage = -1 if output.storage is None else self.tensor(i, output.storage, "storage")
                builder.output(i, size, tuple(output.shape), storage)
            else:
                builder.output(i, size)
        return held

    def tensor(self, i: int, named: Tensor, field: str) -> int:
        """The number of the tensor that operation `i` names in `field`."""
        name, k = (named, 0) if isinstance(named, str) else named
        op = self.number.get(name)
        if op is None:
            raise self.error(i, f"{field}: no operation is named {name!r}")
        if k >= self.first[op + 1] - self.first[op]:
            count = self.first[op + 1] - self.first[op]
            raise self.error(i, f"{field}: {name!r} has no output {k}; it has {count}, counted from 0")
        return self.first[op] + k

    def costs(self) -> CostTable | None:
        """The seconds of all kernels, which must be for the same kinds of devices; None if no kernel has any."""
        operations = self.operations
        known = next((op for op in operations if op.seconds), None)
        if known is None:
            return None
        kinds = tuple(known.seconds)
        for i, op in enumerate(operations):
            if op.kernel and op.seconds.keys() != known.seconds.keys():
                raise self.error(
                    i,
                    f"it has seconds for {', '.join(op.seconds) or 'no device'}, but {known.name!r} for {', '.join(kinds)};"
                    " give all kernels seconds for the same kinds of devices, or give none any",
                )
        rows = [[op.seconds.get(kind, 0.0) for kind in kinds] for op in operations]
        measured = np.asarray([op.kernel and self.document.measured for op in operations])
        return CostTable(kinds, np.asarray(rows, np.float64), np.repeat(measured[:, None], len(kinds), axis=1))


def _place(i: int, name: object) -> str:
    return f"operations[{i}]" + (f" ({name!r})" if isinstance(name, str) and name else "")


def _explain(where: str, error: ValidationError) -> ImporterError:
    """The error for the first mistake in the part of the file at `where`."""
    errors = error.errors(include_url=False)
    # if a value may have several forms, take the mistake in the form that fits best
    first = max((e for e in errors if e["loc"][:2] == errors[0]["loc"][:2]), key=lambda e: len(e["loc"]))
    said, location = first["msg"].removeprefix("Value error, "), list(first["loc"])
    said = "input should be an object" if first["type"] == "model_type" else said[:1].lower() + said[1:]
    if location[:1] == ["attributes"]:  # without the names of the forms, which pydantic inserts
        location = location[:1] + location[1::2]
    elif location[:1] in (["outputs"], ["inputs"]):
        location = [x for x in location if isinstance(x, int) or x in ("outputs", "inputs", *Output.model_fields)]
    field = ".".join(str(x) for x in location)
    if first["type"] == "extra_forbidden":
        return mistake(where, f"there is no field {field!r}")
    got = "" if first["type"] == "missing" else f" (got {first['input']!r:.60})"
    return mistake(where, f"{field + ': ' if field else ''}{said}{got}")


def _document(program: Program) -> dict[str, Any]:
    """The data of a program's document."""
    g, costs = program.graph, program.costs
    data: dict[str, Any] = {"format": FORMAT, "version": VERSION, "name": g.name, "attributes": dict(g.attributes)}
    if program.cluster is not None:
        data["cluster"] = program.cluster.model_dump(mode="json")
    operations = [_operation(g, v) for v in range(g.n)]
    if costs is not None:
        data["measured"] = bool(costs.measured[g.kernel].all())
        for v in np.flatnonzero(g.kernel).tolist():
            operations[v]["seconds"] = dict(zip(costs.kinds, costs.op_s[v].tolist(), strict=True))
    return data | {"operations": operations}


def _operation(g: Graph, v: int) -> dict[str, Any]:
    outputs: list[Any] = []
    for t in g.outputs(v):
        output: dict[str, Any] = {"bytes": int(g.tensor_bytes[t])}
        if g.shape(t):
            output["shape"] = list(g.shape(t))
        if g.tensor_storage[t] != t:
            output["storage"] = _tensor(g, int(g.tensor_storage[t]))
        outputs.append(output if len(output) > 1 else output["bytes"])
    data: dict[str, Any] = {
        "name": g.op_name[v], "op_type": g.op_type[v], "op_class": g.op_class[v], "dtype": g.dtype[v],
        "kernel": bool(g.kernel[v]), "flops": float(g.flops[v]), "bytes_accessed": float(g.bytes_accessed[v]),
        "persistent_bytes": int(g.persistent_bytes[v]), "phase": PHASES[g.phase[v]], "module": g.module[v],
        "call": int(g.call[v]), "colocate": int(g.colocate[v]), "allowed": [a for a in g.allowed[v].split("|") if a],
        "outputs": outputs, "inputs": [_tensor(g, t) for t in g.inputs(v).tolist()],
    }  # fmt: skip
    return data if data["kernel"] else {k: x for k, x in data.items() if k not in _NOT_OF_SOURCES}


def _tensor(g: Graph, t: int) -> Any:
    op = int(g.tensor_producer[t])
    k = t - g.outputs(op)[0]
    return [g.op_name[op], k] if k else g.op_name[op]
