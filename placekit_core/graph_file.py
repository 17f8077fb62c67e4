"""Graphs in files: `NAME.graph.npz`, a zip of plain numpy arrays and one JSON header; nothing in it is executable.

Version 1. Member `header.json` (UTF-8 bytes as a uint8 array): `format` = "placekit-graph", `version`, `name`,
`attributes`, `vocabularies` (strings of each labelled column), `fingerprint`. Member `op_name`: UTF-8 names joined by
newlines. One member per field of `Graph` (codes for labelled columns), extra columns prefixed by `column.`.
"""

from __future__ import annotations

import dataclasses
import io
import json
import os
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from placekit_core.errors import GraphError
from placekit_core.graph import Graph, Labels

FORMAT, VERSION = "placekit-graph", 1
_EXTRA = "column."


PARTIAL = re.compile(r"\..+\.\d+\.part")
"""The name of a file that `write_atomically` has begun."""


def write_atomically(path: Path, data: bytes) -> None:
    """Write `data` to `path` so that a reader, or a crash, sees the old file or the new one, never a part."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with partial.open("wb") as f:
            f.write(data)
            f.flush()
            os.fsync(f.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def save_graph(graph: Graph, path: str | Path) -> Path:
    """Write `graph` to `path`, atomically. Returns the path. Raises GraphError if it cannot."""
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
        "format": FORMAT, "version": VERSION, "name": graph.name, "attributes": dict(graph.attributes),
        "vocabularies": vocabularies, "fingerprint": graph.fingerprint,
    }  # fmt: skip
    arrays["header.json"] = np.frombuffer(json.dumps(header).encode(), np.uint8)
    arrays["op_name"] = np.frombuffer("\n".join(graph.op_name).encode(), np.uint8)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    target = Path(path)
    try:
        write_atomically(target, buffer.getvalue())
    except (OSError, ValueError) as e:
        raise GraphError(
            f"cannot write graph file {path}: {getattr(e, 'strerror', None) or e}",
            "it needs a folder that exists and may be written, and a name that no folder has",
        ) from e
    return target


def load_graph(path: str | Path) -> Graph:
    """Read and validate a graph file. Raises GraphError that names the file and what is wrong with it."""
    path = Path(path)
    if not path.is_file():
        raise GraphError(f"no graph file {path}", "write one with `placekit graph export`")
    try:
        if not zipfile.is_zipfile(path):
            raise ValueError("it is not a zip of arrays")
        with np.load(path, allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in archive.files}
        absent = sorted({"header.json", "op_name"} - set(arrays))
        if absent:
            raise ValueError(f"it has no member {' and no '.join(absent)}")
        header = json.loads(arrays.pop("header.json").tobytes())
        text = arrays.pop("op_name").tobytes().decode()
        form, version = header.get("format"), header.get("version")
    except Exception as e:  # a damaged zip fails in a dozen ways (zlib.error, NotImplementedError, BadZipFile, ...)
        # numpy would suggest allow_pickle, which executes what the file says
        reason = "it holds pickled objects" if "pickle" in str(e) else str(e)
        raise GraphError(
            f"{path} is not a readable graph file: {reason}", "it is truncated, damaged, or of another format"
        ) from e
    if form != FORMAT or version != VERSION:
        raise GraphError(f"{path} is {form!r} version {version!r}", f"this placekit reads {FORMAT!r} version {VERSION}")
    missing = sorted({"name", "attributes", "vocabularies", "fingerprint"} - set(header))
    if missing:
        raise GraphError(f"the header of {path} lacks {', '.join(missing)}", "it was not written by placekit")
    kinds = {"name": str, "attributes": dict, "vocabularies": dict, "fingerprint": str}
    wrong = next((key for key, kind in kinds.items() if not isinstance(header[key], kind)), None)
    if wrong is not None:
        raise GraphError(
            f"{wrong} in the header of {path} is not a {kinds[wrong].__name__}", "it was not written by placekit"
        )
    for key, vocabulary in header["vocabularies"].items():
        if not isinstance(vocabulary, list) or not all(isinstance(word, str) for word in vocabulary):
            raise GraphError(
                f"the vocabulary of column {key!r} of {path} is not a list of strings", "it was not written by placekit"
            )
    columns: dict[str, Any] = {}
    for key, values in arrays.items():
        vocabulary = header["vocabularies"].get(key)
        columns[key] = values if vocabulary is None else Labels(values, tuple(vocabulary))
    extra = {key[len(_EXTRA) :]: columns.pop(key) for key in list(columns) if key.startswith(_EXTRA)}
    fields = {f.name for f in dataclasses.fields(Graph)} - {"name", "op_name", "columns", "attributes"}
    if set(columns) != fields:
        raise GraphError(f"{path} has the wrong members: {', '.join(sorted(fields ^ set(columns)))} differ")
    names = tuple(text.split("\n")) if text or np.size(columns["flops"]) else ()
    graph = Graph(
        name=header["name"], op_name=names, columns=extra, attributes=header["attributes"], **columns
    ).validate()
    if graph.fingerprint != header["fingerprint"]:
        raise GraphError(f"{path} does not match its own fingerprint", "the file was changed after it was written")
    return graph
