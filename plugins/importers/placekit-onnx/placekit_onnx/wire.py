"""Reads an ONNX file without its weights, in memory that does not depend on their size.

A file is one protobuf message (https://protobuf.dev/programming-guides/encoding), which holds the graph, which holds the
weights. `without_weights` parses only large messages, skips the data of large tensors, and copies the rest. A tensor without
its data keeps the number of its bytes or elements in `external_data`, as ONNX does for data in other files. So a file may be
larger than the 2 GB that protobuf can read.
"""

from __future__ import annotations

import os
from typing import BinaryIO

KEPT = 16 * 1024
"""Messages up to this many bytes are copied as they are; in larger ones, the data of tensors is left out."""
MAX_BYTES = 256 * 2**20  # largest model without its weights
_MAX_DEPTH = 32
_MAX_UNPACKED = 1_000_000  # elements of a tensor that are separate fields; no exporter writes such elements

_INNER: dict[str, dict[int, str]] = {
    "model": {7: "graph", 25: "function"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "function": {7: "node", 11: "attribute"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {},
}
"""Fields that may hold tensors, by message; onnx.proto3 has their names."""
_DATA = {4: 4, 5: 0, 6: -1, 7: 0, 9: 1, 10: 8, 11: 0}
"""Fields with the data of a tensor, and the bytes of an element: 0 if they vary, -1 for strings."""
_TRAINING = 20  # field of a model that inference does not need
_BYTES, _FIXED = 2, {1: 8, 5: 4}  # wire types: with a length; with a fixed number of bytes


def without_weights(file: BinaryIO) -> bytes:
    """The model in `file`, without the data of large tensors. Raises ValueError."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    if not size:
        raise ValueError("it is empty")
    return bytes(_Reader(file).message(size, "model", 0))


def _varint(value: int) -> bytes:
    made = bytearray()
    while value > 127:
        made.append(value & 127 | 128)
        value >>= 7
    made.append(value)
    return bytes(made)


def _field(number: int, content: bytes | bytearray) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(content)) + content


class _Reader:
    def __init__(self, file: BinaryIO) -> None:
        self.file, self.at, self.kept = file, 0, 0

    def take(self, size: int) -> bytes:
        self.kept += size
        if self.kept > MAX_BYTES:
            raise ValueError(f"it has more than {MAX_BYTES:,} bytes besides its weights")
        data = self.file.read(size)
        if len(data) < size:
            raise ValueError("it is cut off")
        self.at += size
        return data

    def skip(self, size: int) -> None:
        self.at = self.file.seek(size, os.SEEK_CUR)

    def varint(self, end: int) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self.file.read(1) if self.at < end else b""
            if not byte:
                raise ValueError(f"a field is cut off at byte {self.at:,}")
            self.at += 1
            value |= (byte[0] & 127) << shift
            if byte[0] < 128:
                return value
        raise ValueError(f"there is no field at byte {self.at - 10:,}")

    def message(self, end: int, kind: str, depth: int) -> bytearray:
        """Read the message of this kind that ends at byte `end`; returns it without the data of large tensors."""
        if depth > _MAX_DEPTH:
            raise ValueError(f"graphs are nested more than {_MAX_DEPTH} messages deep")
        made, counts = bytearray(), _Counts()
        while self.at < end:
            begin = self.at
            key = self.varint(end)
            number, wire = key >> 3, key & 7
            size = self.varint(end) if wire == _BYTES else _FIXED.get(wire, 0)
            if wire not in (0, _BYTES, *_FIXED) or not number:
                raise ValueError(f"byte {begin:,} begins no field of a {kind}")
            if size > end - self.at:
                raise ValueError(f"the field at byte {begin:,} of a {kind} is longer than the {kind}")
            inner = _INNER[kind].get(number)
            if kind == "tensor" and number in _DATA:
                self.data(number, wire, size, end, counts)
            elif kind == "model" and number == _TRAINING and wire == _BYTES:
                self.skip(size)
            elif wire == 0:
                made += _varint(key) + _varint(self.varint(end))
            elif wire == _BYTES and inner and size > KEPT:
                made += _field(number, self.message(self.at + size, inner, depth + 1))
            elif wire == _BYTES:
                made += _field(number, self.take(size))
            else:
                made += _varint(key) + self.take(size)
            self.kept += 16  # many empty fields take memory, too
        return made + counts.fields()

    def data(self, number: int, wire: int, size: int, end: int, counts: _Counts) -> None:
        """Skip data of a tensor, and count its elements or bytes."""
        width = _DATA[number]
        if wire != _BYTES:
            counts.unpacked += 1
            if counts.unpacked > _MAX_UNPACKED:
                raise ValueError(f"a tensor has more than {_MAX_UNPACKED:,} elements that are fields of their own")
            if wire == 0:
                self.varint(end)
            else:
                self.skip(size)
            counts.elements += 1
        elif number == 9:
            self.skip(size)
            counts.bytes_ = (counts.bytes_ or 0) + size
        elif width:
            self.skip(size)
            counts.elements += size // width if width > 0 else 1
        else:
            while size:
                piece = self.file.read(min(size, 2**20))
                if not piece:
                    raise ValueError("it is cut off")
                counts.elements += len(piece.translate(None, _CONTINUED))
                size -= len(piece)
                self.at += len(piece)


_CONTINUED = bytes(range(128, 256))  # bytes that are not the last of a varint


class _Counts:
    """How much data of a tensor was left out."""

    def __init__(self) -> None:
        self.bytes_: int | None = None
        self.elements, self.unpacked = 0, 0

    def fields(self) -> bytes:
        """The fields of the tensor that record this; empty if nothing was left out."""
        entries = {"length": self.bytes_, "elements": self.elements or None}
        made = b"".join(
            _field(13, _field(1, key.encode()) + _field(2, str(value).encode()))
            for key, value in entries.items()
            if value is not None
        )
        return made and made + b"\x70\x01"  # data_location: EXTERNAL
