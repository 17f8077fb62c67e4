"""Graphs in files: `NAME.graph.npz`, a zip of plain numpy arrays and one JSON header; nothing in it is executable.

Version 1. Member `header.json` (UTF-8 bytes as a uint8 array): `format` = "placekit-graph", `version`, `name`,
`attributes`, `vocabularies` (strings of each labeled column), `fingerprint`. Member `op_name`: UTF-8 names joined by
newlines. One member per field of `Graph` (codes for labeled columns), extra columns prefixed by `column.`.
"""

from __future__ import annotations

import dataclasses
import io
import json
import os
import zipfile
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import JsonValue

from placekit_core.contracts.arrays import parse_arrays
from placekit_core.contracts.errors import GraphError
from placekit_core.contracts.files import FileModel, checked, parse_json, read_bytes, reading, write_atomically
from placekit_core.contracts.graph import Column, Graph, Labels
from placekit_core.contracts.graph_builder import GraphBuilder
from placekit_core.contracts.graph_rules import validate_graph

MAX_BYTES = 2**30  # of all arrays, uncompressed; a decoder's training step of a million operations has 140 MB
_COMPRESSION = 1  # the default level takes 5 times as long for a tenth fewer bytes
_EXTRA = "column."
_COLUMNS = {f.name for f in dataclasses.fields(Graph)} - {"name", "op_name", "columns", "attributes"}


def _type(column: Column) -> tuple[bool, str, int]:
    """Whether a column holds strings, numpy's kind of its numbers, and its dimensions."""
    values = column.codes if isinstance(column, Labels) else column
    return isinstance(column, Labels), values.dtype.kind, values.ndim


_TYPES = {key: _type(column) for key, column in GraphBuilder("").build().all_columns().items()}


class _Header(FileModel):
    """Member `header.json`."""

    format: Literal["placekit-graph"]
    version: Literal[1]
    name: str
    attributes: dict[str, JsonValue]
    vocabularies: dict[str, list[str]]
    fingerprint: str


def graph_bytes(graph: Graph) -> bytes:
    """The content of the graph file of `graph`."""
    vocabularies: dict[str, list[str]] = {}
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    for key, column in graph.all_columns().items():
        member = _EXTRA + key if key in graph.columns else key
        if isinstance(column, Labels):
            vocabularies[member] = list(column.vocabulary)
            arrays[member] = column.codes
        else:
            arrays[member] = column
    header = {
        "format": "placekit-graph", "version": 1, "name": graph.name, "attributes": dict(graph.attributes),
        "vocabularies": vocabularies, "fingerprint": graph.fingerprint,
    }  # fmt: skip
    arrays["header.json"] = np.frombuffer(json.dumps(header).encode(), np.uint8)
    arrays["op_name"] = np.frombuffer("\n".join(graph.op_name).encode(), np.uint8)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=_COMPRESSION) as archive:
        for key, values in arrays.items():
            with archive.open(f"{key}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, values, allow_pickle=False)
    return buffer.getvalue()


def save_graph(graph: Graph, path: str | Path) -> Path:
    """Write `graph` to `path`, atomically. Returns the path. Raises GraphError if it cannot."""
    target = Path(path)
    try:
        write_atomically(target, graph_bytes(graph))
    except (OSError, ValueError) as e:
        raise GraphError(
            f"cannot write graph file {path}: {getattr(e, 'strerror', None) or e}",
            "it needs a folder that exists and is writable, and a name that is not a folder's",
        ) from e
    return target


def load_graph(path: str | Path) -> Graph:
    """Read and validate a graph file. Raises GraphError that names the file and what is wrong with it."""
    path = Path(path)
    if not os.path.isfile(path):
        raise GraphError(f"no graph file {path}", "`placekit_core.save_graph` writes one")
    with reading(path, GraphError, "graph file", "it is truncated, damaged, or of another format"):
        graph = parse_graph(read_bytes(path))
    try:
        validate_graph(graph)
    except GraphError as e:
        raise GraphError(f"{path}: {e.message}", e.hint) from None
    return graph


def parse_graph(data: bytes) -> Graph:
    """The graph in the content of a graph file, which is not validated. Raises ValueError."""
    arrays = parse_arrays(data, MAX_BYTES)
    absent = sorted({"header.json", "op_name", *_COLUMNS} - set(arrays))
    if absent:
        raise ValueError(f"it has no member {' and no '.join(absent)}")
    header = checked(parse_json(arrays["header.json"].tobytes()), _Header)
    text = arrays["op_name"].tobytes().decode()
    columns = {
        key: Labels(arrays[key], tuple(header.vocabularies[key])) if key in header.vocabularies else arrays[key]
        for key in arrays
        if key in _COLUMNS or key.startswith(_EXTRA)
    }
    for key, column in columns.items():
        found = _type(column)
        extra = (True, "i", 1) if isinstance(column, Labels) else found  # an extra column may hold any numbers
        if found != _TYPES.get(key, extra) or found[2] == 0:
            raise ValueError(f"column {key!r} has another type or number of dimensions")
    graph = Graph(
        name=header.name,
        op_name=tuple(text.split("\n")) if text or np.size(arrays["flops"]) else (),
        columns={key.removeprefix(_EXTRA): columns.pop(key) for key in list(columns) if key not in _COLUMNS},
        attributes=header.attributes,
        **columns,  # type: ignore[arg-type]
    )
    if graph.fingerprint != header.fingerprint:
        raise ValueError("it does not match its own fingerprint: it was changed after it was written")
    return graph
