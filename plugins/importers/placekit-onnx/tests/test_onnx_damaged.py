"""Damaged ONNX files: a valid program or one error that names the file, in bounded time and memory.

A case is a good file after one to three changes: of bytes, of the whole or of one field of protobuf; or of a message, field by
field.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from numpy.random import Generator
from onnx import ModelProto
from placekit_onnx.importer import OnnxImporter
from placekit_testing.damaged import changed, check_damaged, of_bytes
from placekit_testing.speed import mostly_slow

from placekit_core import Program

NUMBERS = (0, 1, -1, 2, 7, 16, 100, 2**31 - 1, -(2**31), 2**40, 2**62, 2**63 - 1, -(2**63))
FLOATS = (0.0, -1.0, 1e30, float("nan"), float("inf"))
TEXTS = ("", "x", "image", "c", "Relu", "MatMul", "Loop", "If", "ours", "com.example", "\n", "\u2028", "x" * 3000)


def of_fields(data: bytes, rng: Generator) -> bytes:
    """A field of a message changed, removed, repeated or exchanged."""
    model = ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError:
        return of_bytes(data, rng)
    message: Message = model
    while True:
        given = [(f, v) for f, v in message.ListFields()]
        if not given:
            break
        field, value = given[int(rng.integers(0, len(given)))]
        inner = list(value) if field.is_repeated else [value]
        if field.type == FieldDescriptor.TYPE_MESSAGE and inner and rng.random() < 0.9:
            message = inner[int(rng.integers(0, len(inner)))]
            continue
        _change(message, field, value, rng)
        break
    made: bytes = model.SerializeToString()
    return made


def _change(message: Message, field: Any, value: Any, rng: Generator) -> None:
    if rng.random() < 0.2:
        message.ClearField(field.name)
    elif field.is_repeated:
        at = int(rng.integers(0, max(len(value), 1)))
        match int(rng.integers(0, 3)):
            case 0 if value:
                del value[at]
            case 1 if value:
                value.extend([value[at]] * int(rng.choice([1, 2, 50])))
            case _ if field.type != FieldDescriptor.TYPE_MESSAGE and value:
                value[at] = _odd(field, rng)
    elif field.type != FieldDescriptor.TYPE_MESSAGE:
        setattr(message, field.name, _odd(field, rng))


def _odd(field: Any, rng: Generator) -> Any:
    if field.type == FieldDescriptor.TYPE_ENUM:
        values = field.enum_type.values
        return values[int(rng.integers(0, len(values)))].number
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        text = TEXTS[int(rng.integers(0, len(TEXTS)))]
        return text.encode() if field.type == FieldDescriptor.TYPE_BYTES else text
    if field.cpp_type in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
        return FLOATS[int(rng.integers(0, len(FLOATS)))]
    number = NUMBERS[int(rng.integers(0, len(NUMBERS)))]
    small = field.cpp_type in (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_UINT32)
    unsigned = field.cpp_type in (FieldDescriptor.CPPTYPE_UINT32, FieldDescriptor.CPPTYPE_UINT64)
    return (abs(number) if unsigned else number) % 2**31 if small else abs(number) if unsigned else number


def check(good: bytes, cases: int, seed: int, folder: Path) -> None:
    def load(path: Path) -> list[Program]:
        return OnnxImporter(path=str(path), batch=2, dims={"length": 5}).load()

    def damage(data: bytes, rng: Generator) -> bytes:
        return changed(data, rng, (of_bytes, of_fields, of_fields, of_fields))

    check_damaged(load, good, folder / "damaged.onnx", damage, cases=cases, seed=seed)


@pytest.mark.parametrize("cases", mostly_slow([20, 300], [20]))
def test_some_damaged_models(rich: bytes, cases: int, tmp_path: Path) -> None:
    check(rich, cases, 1, tmp_path)
