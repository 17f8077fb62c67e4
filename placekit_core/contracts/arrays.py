"""Read-only arrays; and arrays in `.npz` files, which are read within size limits and never unpickled."""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Callable
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T", bound=NDArray[Any] | tuple[NDArray[Any], ...])


def read_only(*arrays: NDArray[Any]) -> None:
    """Make arrays read-only."""
    for array in arrays:
        array.setflags(write=False)


class cached_arrays(cached_property[T]):
    """A `cached_property` that is an array, or a tuple of arrays, which cannot be written to.

    All parts of a run share them: code that changes one would change what others compute.
    """

    def __init__(self, function: Callable[[Any], T]) -> None:
        def made(instance: Any) -> T:
            found = function(instance)
            read_only(*(found if isinstance(found, tuple) else (found,)))
            return found

        super().__init__(made)
        self.__doc__ = function.__doc__


MAX_ARRAYS, MAX_ARRAY_BYTES = 1000, 128 * 2**20
"""Limits for one file: the number of arrays, and their total size without compression."""


def parse_arrays(data: bytes, arrays: int = MAX_ARRAYS, limit: int = MAX_ARRAY_BYTES) -> dict[str, NDArray[Any]]:
    """The arrays of a `.npz` by name, at most `limit` bytes in total. Raises ValueError."""
    if data.count(b"PK\1\2") > arrays:  # each entry of a zip's directory begins with these bytes
        raise ValueError(f"it has more than {arrays:,} arrays")
    found: dict[str, NDArray[Any]] = {}
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = archive.infolist()
            if sum(m.file_size for m in members) > limit:
                raise ValueError(f"its arrays have more than {limit:,} bytes")
            for m in members:
                name = m.filename.removesuffix(".npy")
                if name in found:
                    raise ValueError(f"it has member {name!r} twice")
                if m.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # others inflate without a limit
                    raise ValueError(f"member {name!r} uses a compression that numpy does not write")
                found[name] = _array(archive, m, name)
    except ValueError:
        raise
    except Exception as e:  # a damaged zip fails in a dozen ways (zlib.error, NotImplementedError, BadZipFile, ...)
        raise ValueError(f"it is not a zip of arrays: {e}") from None
    return found


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo, name: str) -> NDArray[Any]:
    """The array in one member; the size in its header must agree with the member's size."""
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        if version not in header:
            raise ValueError(f"array {name!r} is of numpy's format {version[0]}.{version[1]}")
        shape, _, dtype = header[version](file)
        if dtype.hasobject:  # numpy would unpickle them, which executes what the file says
            raise ValueError(f"array {name!r} holds pickled objects")
        if not dtype.itemsize or math.prod(shape) * dtype.itemsize != member.file_size - file.tell():
            raise ValueError(f"array {name!r} does not have as many bytes as its shape {shape} says")
        file.seek(0)
        return np.lib.format.read_array(file, allow_pickle=False)
