"""What the formats share: a file as text, and errors that name it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from placekit_core.errors import ImporterError, PlacekitError

HINT = "docs/formats.md describes the format"
MAX_BYTES = 2**53  # of one tensor: whole numbers up to here are exact in floating point
MAX_TOTAL = 2**62  # of a graph: sums of 64-bit columns must not overflow


MAX_MESSAGE = 600  # characters: names and values in a file may have any length


def mistake(path: str, problem: str, hint: str = HINT) -> ImporterError:
    """The error for what is wrong with the file."""
    return ImporterError(_short(f"{path}: {problem}"), _short(hint))


def _short(text: str) -> str:
    return text if len(text) <= MAX_MESSAGE else f"{text[: MAX_MESSAGE // 2]} ... {text[-MAX_MESSAGE // 2 :]}"


def read_text(path: str, importer: str) -> str:
    """The text of the file of `importer`. Raises ImporterError that names it."""
    if not path:
        raise ImporterError(f"importer {importer!r} needs a file", "give importer.path=FILE")
    try:
        text = Path(path).read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as e:
        raise ImporterError(f"{path} is not text: byte {e.start} is not UTF-8", HINT) from None
    except (OSError, ValueError) as e:  # ValueError: a name that no file can have
        raise ImporterError(f"cannot read {path}: {getattr(e, 'strerror', None) or e}", HINT) from None
    if not text.strip():
        raise ImporterError(f"{path} is empty", HINT)
    return text


@contextmanager
def naming(path: str) -> Iterator[None]:
    """Whatever the core finds wrong with the program is an error that names the file."""
    try:
        yield
    except ImporterError:
        raise
    except PlacekitError as e:
        raise mistake(path, e.message, e.hint or HINT) from None
