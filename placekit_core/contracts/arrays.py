"""Read-only arrays, and arrays from `.npz` files, which are read within size limits and never unpickled."""

from __future__ import annotations

import io
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


def shown(array: NDArray[Any]) -> NDArray[Any]:
    """A read-only view of a read-only array: numpy refuses to make such a view writable again."""
    read_only(array)
    return array.view()


def freeze(instance: Any, *names: str) -> None:
    """Let these fields of a frozen dataclass be read-only views of their arrays."""
    for name in names:
        object.__setattr__(instance, name, shown(getattr(instance, name)))


class cached_arrays(cached_property[T]):
    """A `cached_property` whose value is a read-only array, or a tuple of them.

    All parts of a run share these arrays: code that changed one would change the results of others.
    """

    def __init__(self, function: Callable[[Any], T]) -> None:
        def frozen(instance: Any) -> Any:
            found = function(instance)
            return tuple(map(shown, found)) if isinstance(found, tuple) else shown(found)

        super().__init__(frozen)
        self.__doc__ = function.__doc__


def parse_arrays(data: bytes, limit: int) -> dict[str, NDArray[Any]]:
    """The arrays of an `.npz` file, by name. Raises ValueError if they take more than `limit` bytes, or cannot be read."""
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as file:  # unpickling would execute code from the file
            if sum(member.file_size for member in file.zip.infolist()) > limit:
                raise ValueError(f"its arrays have more than {limit:,} bytes")
            return {name: np.asarray(file[name]) for name in file.files}
    except ValueError:
        raise
    except Exception as e:  # a damaged zip fails in a dozen ways (zlib.error, NotImplementedError, BadZipFile, ...)
        raise ValueError(f"it is not a zip of arrays: {e}") from None
