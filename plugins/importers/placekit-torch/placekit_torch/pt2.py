"""Importer `pt2`: inference of a program that `torch.export.save` wrote.

`torch.export.load` unpickles parts of the archive, evaluates texts in it as Python (sizes of dimensions), and calls whatever
function a node names. This importer does none of that: it reads JSON, takes sizes and types of weights from there without
reading the weights, and calls operators only (pt2_graph.py).
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch._export.serde.schema import SCHEMA_VERSION

from placekit_core import Importer, ImporterError, PlacekitError, Program, parse_json, reading, shortened
from placekit_torch.factory import Given
from placekit_torch.importer import import_program
from placekit_torch.options import Kernels
from placekit_torch.pt2_options import Pt2Options
from placekit_torch.pt2_signature import Reader
from placekit_torch.step import Step

HINT = "a program of torch.export is one file that ends in .pt2, from torch.export.save"
MAX_JSON = 128 * 2**20
MAX_ENTRIES = 200_000
MAX_DIRECTORY = 64 * 2**20  # bytes of the archive's table of contents
_LEGACY = "serialized_exported_program.json"  # written by torch 2.6 and older


class Pt2Importer(Importer):
    """One program, named like its file, for inference; without an executable, because the weights are not read."""

    name = "pt2"
    options_class = Pt2Options

    def load(self) -> list[Program]:
        """The program. Raises ImporterError that names the file, and the node."""
        o: Pt2Options = self.options
        if not o.path:
            raise ImporterError(f"importer {self.name!r} needs a file", "give importer.path=FILE")
        path = Path(o.path)
        kernels = Kernels(attention=o.attention, fusion=o.fusion)  # type: ignore[call-arg]
        try:
            with reading(path, ImporterError, "program of torch.export", HINT):
                program, tied = _read(path)
                exported = Reader(o, program, tied).exported()
            step = Step(exported, exported.examples())
            traced = import_program(Given(step), name=path.stem, mode="inference", kernels=kernels)
        except PlacekitError as e:
            named = e.message if o.path in e.message else f"{o.path}: {e.message}"
            raise ImporterError(shortened(named), e.hint) from e
        return [Program(traced.graph)]


def _read(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """The program as JSON, and for each weight the file in the archive that holds it. Raises OSError and ValueError."""
    try:
        with path.open("rb") as file:
            _check_directory(file)
            with zipfile.ZipFile(file) as archive:
                return _contents(archive)
    except (zipfile.BadZipFile, NotImplementedError, EOFError, RuntimeError, zlib.error) as e:
        raise ValueError(f"it is no zip archive, or a damaged one: {e}") from None


def _check_directory(file: Any) -> None:
    """Raise ValueError if the archive's table of contents is so long that reading it would take much memory."""
    size = file.seek(0, 2)
    file.seek(max(size - 2**16 - 22, 0))
    tail = file.read()
    at = tail.rfind(b"PK\x05\x06")
    length = int.from_bytes(tail[at + 12 : at + 16], "little") if at >= 0 else 0
    if length == 2**32 - 1:
        before = tail.rfind(b"PK\x06\x06")
        length = int.from_bytes(tail[before + 40 : before + 48], "little") if before >= 0 else length
    if length > MAX_DIRECTORY:
        raise ValueError(f"its table of contents has {length:,} bytes")
    file.seek(0)


def _contents(archive: zipfile.ZipFile) -> tuple[dict[str, Any], dict[str, str]]:
    entries = {}
    if len(archive.filelist) > MAX_ENTRIES:
        raise ValueError(f"it has {len(archive.filelist):,} files")
    for info in archive.filelist:
        _, _, name = info.filename.partition("/")
        entries[name or info.filename] = info
        entries.setdefault(info.filename, info)

    def parsed(name: str) -> Any:
        info = entries[name]
        if info.file_size > MAX_JSON:
            raise ValueError(f"its file {name!r:.100} has {info.file_size:,} bytes, more than {MAX_JSON:,}")
        with archive.open(info) as file:
            data = file.read(MAX_JSON + 1)
        try:
            return parse_json(data)
        except ValueError as e:
            raise ValueError(f"its file {name!r:.100}: {e}") from None

    models = sorted(n for n in entries if n.startswith("models/") and n.endswith(".json"))
    if len(models) > 1:
        models = [n for n in models if n == "models/model.json"] or models
    if len(models) > 1:
        raise ValueError(f"it holds {len(models)} programs, and none of them is called 'model'")
    if not models and any(n.startswith("data/aotinductor/") for n in entries):
        raise ValueError("it holds compiled code (AOTInductor) and no program: save the exported program itself")
    if not models and "data.pkl" in entries:
        kind = "torch.jit.save" if any(n.startswith("code/") for n in entries) else "torch.save, weights or a module"
        raise ValueError(f"it is a file of {kind}; save torch.export.export(module, inputs) with torch.export.save")
    if not models and _LEGACY not in entries:
        raise ValueError("it holds no program (models/model.json)")
    program = parsed(models[0] if models else _LEGACY)
    _check_version(program)
    config = f"data/weights/{models[0][7:-5]}_weights_config.json" if models else ""
    return program, _homes(config, parsed) if config in entries else {}


def _check_version(program: Any) -> None:
    version = program.get("schema_version") if isinstance(program, dict) else None
    if not isinstance(version, dict) or not isinstance(version.get("major"), int):
        raise ValueError("it does not say the version of its schema")
    if version["major"] != SCHEMA_VERSION[0]:
        wrote = program.get("torch_version", "an unknown version")
        raise ValueError(
            f"its schema has version {version['major']}.{version.get('minor', 0)} (written by torch {wrote!s:.30}), and torch"
            f" {torch.__version__} reads {SCHEMA_VERSION[0]}.*; export it again with this torch"
        )


def _homes(config: str, parsed: Callable[[str], Any]) -> dict[str, str]:
    """For each weight, where its data is; weights at one place are tied."""
    try:
        entries = parsed(config)["config"].items()
        return {
            str(name): str([each["path_name"], each["tensor_meta"]["storage_offset"], each["tensor_meta"]["sizes"]])
            for name, each in entries
            if each["tensor_meta"] is not None
        }
    except (KeyError, TypeError, AttributeError):
        raise ValueError(f"its file {config!r} is no table of weights") from None
