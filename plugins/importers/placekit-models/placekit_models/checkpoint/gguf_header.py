"""Reads the header of a GGUF file, and nothing beyond it: its values and the list of its tensors.

The format is documented in ggml-org/ggml, docs/gguf.md. The reader of package `gguf` maps whole files into memory and makes an
object of every word of the vocabulary; sizes of types come from there.
"""

from __future__ import annotations

import itertools
import math
import re
import struct
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

from placekit_core import ImporterError, reading
from placekit_models.shape import Tensor

MAX_HEADER = 2**27
"""Bytes: the vocabulary of 262,144 words in Gemma 3 takes 8 MB."""
MAX_TENSORS, MAX_KEYS, MAX_NAME, MAX_TEXT, MAX_KEPT = 100_000, 10_000, 512, 2**20, 4096
MAX_NUMBERS = 2**45
HINT = "download the file again; from a .gguf file, only the header is read"
_FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
MAGIC = int.from_bytes(b"GGUF", "little")
_BLOCK = 2**16


@dataclass(frozen=True)
class Header:
    """A header. For arrays of text, and arrays of more than `MAX_KEPT` numbers, `values` has only the length."""

    values: dict[str, Any]
    tensors: tuple[Tensor, ...]
    missing_bytes: int


class _Cursor:
    """Reads a file in small blocks, to read little of what follows the header. Raises ValueError at the end of the file."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.data, self.at, self.before = file, b"", 0, 0

    @property
    def position(self) -> int:
        return self.before + self.at

    def need(self, count: int) -> int:
        """Have `count` more bytes in `data`; returns where they begin, and moves on."""
        if len(self.data) - self.at < count:
            if self.position + count > MAX_HEADER:
                raise ValueError(f"its header has more than {MAX_HEADER:,} bytes")
            rest = self.data[self.at :]
            more = self.file.read(max(count - len(rest), _BLOCK))
            if len(rest) + len(more) < count:
                raise ValueError(f"it ends in its header, after {self.position + len(rest) + len(more):,} bytes")
            self.before, self.data, self.at = self.position, rest + more, 0
        begin = self.at
        self.at += count
        return begin

    def number(self, format_: str) -> Any:
        layout = f"<{format_}"
        begin = self.need(struct.calcsize(layout))
        return struct.unpack_from(layout, self.data, begin)[0]

    def text(self, limit: int) -> str:
        length = self.number("Q")
        if length > limit:
            raise ValueError(
                f"a text of {length:,} bytes at byte {self.position:,}, where at most {limit:,} are expected"
            )
        begin = self.need(length)
        try:
            return self.data[begin : begin + length].decode()
        except UnicodeDecodeError:
            raise ValueError(f"a text that is not UTF-8 before byte {self.position:,}") from None

    def value(self) -> Any:
        """A value with its type before it."""
        kind = self.number("I")
        if kind == _STRING:
            return self.text(MAX_TEXT)
        if kind != _ARRAY:
            return self.number(_format(kind))
        inner, length = self.number("I"), self.number("Q")
        if inner == _STRING:
            if length > MAX_HEADER // 8:
                raise ValueError(f"a list of {length:,} texts")
            unpack, need = struct.Struct("<Q").unpack_from, self.need
            for _ in range(length):
                begin = need(8)
                (size,) = unpack(self.data, begin)
                need(size)
            return length
        format_ = _format(inner)
        begin = self.need(struct.calcsize(f"<{format_}") * length)
        return list(struct.unpack_from(f"<{length}{format_}", self.data, begin)) if length <= MAX_KEPT else length


def _format(kind: int) -> str:
    if kind not in _FORMATS:
        raise ValueError(f"a value of type {kind}, which the format does not have")
    return _FORMATS[kind]


@cache
def types() -> dict[str, tuple[int, int]]:
    """The types of numbers: their block, and its bytes."""
    from gguf.constants import GGML_QUANT_SIZES

    return {t.name: size for t, size in GGML_QUANT_SIZES.items()}


@cache
def _numbered() -> dict[int, str]:
    from gguf.constants import GGML_QUANT_SIZES

    return {int(t): t.name for t in GGML_QUANT_SIZES}


def bits_of(type_: str) -> float:
    """Bits of a number of a type, scales included."""
    block, size = types()[type_]
    return size * 8 / block


def read_gguf(path: Path) -> Header:
    """The header of a file, or of all parts if its name ends in `-00001-of-00003.gguf`. Raises ImporterError."""
    parts = [_read(part) for part in _parts(path)]
    values = parts[0].values | {k: v for part in parts[1:] for k, v in part.values.items() if k not in parts[0].values}
    tensors = tuple(t for part in parts for t in part.tensors)
    names = {t.name for t in tensors}
    if len(names) < len(tensors):
        raise ImporterError(f"parts of {path} have tensors of the same name", "download all parts of one model again")
    return Header(values, tensors, sum(part.missing_bytes for part in parts))


def _parts(path: Path) -> list[Path]:
    match = re.fullmatch(r"(.*)-(\d{5})-of-(\d{5})\.gguf", path.name)
    if match is None:
        return [path]
    count = int(match[3])
    parts = [path.with_name(f"{match[1]}-{i:05d}-of-{match[3]}.gguf") for i in range(1, min(count, 1000) + 1)]
    missing = [part.name for part in parts if not part.is_file()]
    if missing:
        raise ImporterError(
            f"{path.name} is one of {count} parts, but {len(missing)} are not beside it: {missing[0]}",
            "download all parts; the beginning of each is enough",
        )
    return parts


def _read(path: Path) -> Header:
    with reading(path, ImporterError, "GGUF file", HINT), path.open("rb", buffering=0) as file:
        cursor = _Cursor(file)
        if cursor.number("I") != MAGIC:
            raise ValueError("it does not begin with GGUF")
        version, tensors, keys = cursor.number("I"), cursor.number("Q"), cursor.number("Q")
        if version not in (2, 3):
            order = ", with the bytes in another order" if version & 0xFFFF == 0 else ""
            raise ValueError(f"its version is {version}{order}; versions 2 and 3 are known")
        if tensors > MAX_TENSORS or keys > MAX_KEYS:
            raise ValueError(f"it claims to have {tensors:,} tensors and {keys:,} values")
        values: dict[str, Any] = {}
        for _ in range(keys):
            name = cursor.text(MAX_NAME)
            if name in values:
                raise ValueError(f"the value {name!r:.60} occurs twice")
            values[name] = cursor.value()
        found: dict[str, Tensor] = {}
        ends = []
        for _ in range(tensors):
            tensor, offset = _tensor(cursor)
            if tensor.name in found:
                raise ValueError(f"the tensor {tensor.name!r:.60} occurs twice")
            found[tensor.name] = tensor
            ends.append((offset, offset + tensor.bytes, tensor.name))
        alignment = values.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 1 <= alignment <= 2**20:
            raise ValueError(f"its alignment is {alignment!r:.20}")
        _check(sorted(ends))
        begin = -(-cursor.position // alignment) * alignment
        size = path.stat().st_size
        return Header(values, tuple(found.values()), max(0, begin + max((e for _, e, _ in ends), default=0) - size))


def _tensor(cursor: _Cursor) -> tuple[Tensor, int]:
    """A tensor, and where its data begin, from the end of the header."""
    name, dimensions = cursor.text(MAX_NAME), cursor.number("I")
    if not name or not name.isprintable():
        raise ValueError(f"a tensor has the name {name!r:.60}")
    if not 1 <= dimensions <= 4:
        raise ValueError(f"the tensor {name!r:.60} has {dimensions} dimensions")
    shape = tuple(cursor.number("Q") for _ in range(dimensions))
    kind, offset = cursor.number("I"), cursor.number("Q")
    if kind not in _numbered():
        raise ValueError(f"the tensor {name!r:.60} has numbers of type {kind}, which package gguf does not know")
    type_ = _numbered()[kind]
    if not 0 < math.prod(shape) <= MAX_NUMBERS:
        raise ValueError(f"the tensor {name!r:.60} has {math.prod(shape):,} numbers")
    if shape[0] % types()[type_][0]:
        raise ValueError(f"the tensor {name!r:.60} has rows of {shape[0]} numbers, no multiple of {type_}'s block")
    return Tensor(name, shape, bits_of(type_), type_), offset


def _check(spans: list[tuple[int, int, str]]) -> None:
    """Raise ValueError if the data of tensors overlap."""
    for (_, end, before), (begin, _, name) in itertools.pairwise(spans):
        if begin < end:
            raise ValueError(f"the data of tensors {before!r:.60} and {name!r:.60} overlap")
