"""The values of a model: their types and sizes, and the data of small constants."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, TypeProto, helper, numpy_helper

MAX_BYTES, MAX_TOTAL = 2**53, 2**62  # largest bytes of a tensor and of a model: sums must stay exact
MAX_RANK = 64
KNOWN = 1024
"""Constants with at most this many elements keep their data, because shapes are computed from such constants."""

_DTYPES: dict[int, tuple[str, int, str]] = {
    TensorProto.FLOAT: ("float32", 32, "f32"),
    TensorProto.UINT8: ("uint8", 8, "u8"),
    TensorProto.INT8: ("int8", 8, "i8"),
    TensorProto.UINT16: ("uint16", 16, "u16"),
    TensorProto.INT16: ("int16", 16, "i16"),
    TensorProto.INT32: ("int32", 32, "i32"),
    TensorProto.INT64: ("int64", 64, "i64"),
    TensorProto.BOOL: ("bool", 8, "b8"),
    TensorProto.FLOAT16: ("float16", 16, "f16"),
    TensorProto.DOUBLE: ("float64", 64, "f64"),
    TensorProto.UINT32: ("uint32", 32, "u32"),
    TensorProto.UINT64: ("uint64", 64, "u64"),
    TensorProto.COMPLEX64: ("complex64", 64, "c64"),
    TensorProto.COMPLEX128: ("complex128", 128, "c128"),
    TensorProto.BFLOAT16: ("bfloat16", 16, "bf16"),
    TensorProto.FLOAT8E4M3FN: ("float8_e4m3fn", 8, "f8e4m3"),
    TensorProto.FLOAT8E4M3FNUZ: ("float8_e4m3fnuz", 8, "f8e4m3z"),
    TensorProto.FLOAT8E5M2: ("float8_e5m2", 8, "f8e5m2"),
    TensorProto.FLOAT8E5M2FNUZ: ("float8_e5m2fnuz", 8, "f8e5m2z"),
    TensorProto.UINT4: ("uint4", 4, "u4"),
    TensorProto.INT4: ("int4", 4, "i4"),
    TensorProto.FLOAT4E2M1: ("float4_e2m1", 4, "f4"),
}
"""By `DataType`: name, bits, short name for signatures."""
_LATER = {"FLOAT8E8M0": ("float8_e8m0", 8, "f8e8m0"), "UINT2": ("uint2", 2, "u2"), "INT2": ("int2", 2, "i2")}
_DTYPES |= {getattr(TensorProto, name): row for name, row in _LATER.items() if hasattr(TensorProto, name)}


@dataclass(frozen=True)
class Type:
    """Type and shape of a tensor; `dtype` is a number of `onnx.TensorProto.DataType`."""

    dtype: int
    shape: tuple[int, ...]

    @property
    def name(self) -> str:
        """Type of its elements, e.g. `float32`."""
        return _DTYPES[self.dtype][0]

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def bytes_(self) -> int:
        """Bytes; two elements of 4 bits share one."""
        return (self.elements * _DTYPES[self.dtype][1] + 7) // 8

    @property
    def is_floating(self) -> bool:
        """Whether elements are floating-point or complex numbers."""
        return self.name.startswith(("float", "bfloat", "complex"))

    def proto(self) -> TypeProto:
        """The type as ONNX has it."""
        return helper.make_tensor_type_proto(self.dtype, self.shape)

    def __str__(self) -> str:
        return f"{_DTYPES[self.dtype][2]}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class Value:
    """One value of a model. A view has the `tensor`, `name` and `kind` of the value that it is a view of.

    Attributes:
        tensor: number of the tensor.
        name: its name.
        kind: where the tensor comes from: an `input`, a `constant`, or the `result` of a node.
        type: type and shape of this value.
        data: elements of a small constant, else None.
    """

    tensor: int
    name: str
    kind: Literal["input", "constant", "result"]
    type: Type
    data: NDArray[Any] | None = None


def checked_type(dtype: int, shape: tuple[int, ...], what: str) -> Type:
    """Check a type and a shape. Raises ValueError, whose message begins with `what`."""
    if dtype not in _DTYPES:
        known = TensorProto.DataType.items()
        named = next((k.lower() for k, v in known if v == dtype), str(dtype))
        raise ValueError(f"{what} has elements of type {named}, which have no size")
    if len(shape) > MAX_RANK:
        raise ValueError(f"{what} has {len(shape):,} dimensions")
    if any(d < 0 for d in shape):
        raise ValueError(f"{what} has the shape {list(shape)}")
    made = Type(dtype, shape)
    if made.bytes_ > MAX_BYTES:
        raise ValueError(f"{what} has the shape {list(shape)}, {made.bytes_:.3g} bytes")
    return made


def type_of(proto: TypeProto, sizes: Mapping[str, int]) -> tuple[int, tuple[int | None, ...] | None]:
    """Element type and shape of a tensor's type; open sizes are None. Raises ValueError for the type of anything else."""
    if not proto.HasField("tensor_type"):
        kind = proto.WhichOneof("value")
        if kind is None:
            return 0, None
        raise ValueError(f"is a {kind.removesuffix('_type').replace('_', ' ')}, not a tensor")
    tensor = proto.tensor_type
    if not tensor.HasField("shape"):
        return tensor.elem_type, None
    if len(tensor.shape.dim) > MAX_RANK:
        raise ValueError(f"has {len(tensor.shape.dim):,} dimensions")
    return tensor.elem_type, tuple(
        d.dim_value if d.dim_value > 0 or (d.HasField("dim_value") and d.dim_value == 0) else sizes.get(d.dim_param)
        for d in tensor.shape.dim
    )


def constant(tensor: TensorProto, what: str) -> tuple[Type, NDArray[Any] | None]:
    """Type of a tensor in the file, and its elements if there are at most `KNOWN`. Raises ValueError if its data does not fit."""
    if tensor.HasField("segment"):
        raise ValueError(f"{what} is a segment of a tensor")
    made = checked_type(tensor.data_type, tuple(tensor.dims), what)
    if tensor.data_location == TensorProto.EXTERNAL:
        _check_external(tensor, made, what)
        return made, None
    if tensor.HasField("raw_data") and len(tensor.raw_data) != made.bytes_:
        raise ValueError(
            f"{what} has {len(tensor.raw_data):,} bytes, but its shape {list(made.shape)} needs {made.bytes_:,}"
        )
    if made.elements > KNOWN:
        return made, None
    try:
        return made, np.asarray(numpy_helper.to_array(tensor))
    except (ValueError, TypeError) as e:
        raise ValueError(f"{what} has data that does not fit its shape {list(made.shape)}: {e}") from None


def _check_external(tensor: TensorProto, made: Type, what: str) -> None:
    """Compare the shape with the length that the file gives for data outside it. Raises ValueError."""
    given = {entry.key: entry.value for entry in tensor.external_data}
    for key, needed in (("length", made.bytes_), ("elements", made.elements)):
        if key in given:
            stated = given[key]
            fits = stated.isascii() and stated.isdigit() and len(stated) < 20 and int(stated) == needed
            if not fits and not (key == "elements" and made.name.startswith(("complex", "uint4", "int4", "float4"))):
                raise ValueError(f"{what} has {stated:.40} {key.replace('length', 'bytes')}, but its shape {list(made.shape)}"
                                 f" needs {needed:,}")  # fmt: skip
