"""Code that all formats share: reading a file, and errors that name it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, TypeVar

from placekit_core import ImporterError, PlacekitError, read_bytes, reading, shortened

HINT = "docs/formats.md describes the format"
MAX_BYTES = 2**53  # per tensor: whole numbers up to here are exact in floating point
T = TypeVar("T")
MAX_TOTAL = 2**62  # per graph: sums of 64-bit columns must not overflow


def mistake(path: str, problem: str, hint: str = HINT) -> ImporterError:
    """The error for a problem with the file at `path`."""
    return ImporterError(shortened(f"{path}: {problem}"), shortened(hint))


def read_file(path: str, importer: str, parse: Callable[[bytes], T]) -> T:
    """Parse the importer's file, as a whole. ValueErrors of `parse` become ImporterErrors that name the file."""
    require_path(path, importer)
    with reading(path, ImporterError, "program", HINT):
        data = read_bytes(Path(path))
        if not data.strip():
            raise ValueError("it is empty")
        return parse(data)


def scan_file(path: str, importer: str, scan: Callable[[BinaryIO], T]) -> T:
    """As `read_file`, but `scan` reads the file piece by piece (scanning.py)."""
    require_path(path, importer)
    with reading(path, ImporterError, "program", HINT), Path(path).open("rb") as file:
        return scan(file)


def require_path(path: str, importer: str) -> None:
    """Raise ImporterError if the user named no file."""
    if not path:
        raise ImporterError(f"importer {importer!r} needs a file", "give importer.path=FILE")


@contextmanager
def naming(path: str) -> Iterator[None]:
    """Turn any error of the core about the program into an ImporterError that names the file."""
    try:
        yield
    except ImporterError:
        raise
    except PlacekitError as e:
        raise mistake(path, e.message, e.hint or HINT) from None
