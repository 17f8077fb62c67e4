"""Files: written atomically, and read safely where they come from outside.

A file from outside may hold anything. It is read up to a size limit, then a pydantic model checks every field. Any problem
becomes the caller's error, which names the file.

`parse_json`, `parse_yaml`, `checked` and `parse_arrays` (arrays.py) raise ValueError, which says what is wrong with the
content; `read_bytes` raises OSError, too. `reading` turns both into the caller's error; `read_json` does all of this.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import reprlib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from placekit_core.contracts.errors import PlacekitError, explain, shortened

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

MAX_BYTES = 64 * 2**20
MAX_YAML_BYTES, MAX_YAML_VALUES = 2**20, 50_000
"""Limits for a YAML file; an alias counts as all the values that it stands for."""
MAX_DEPTH = 100
PARTIAL = re.compile(r"\..+\.\d+\.part")
"""Names of the temporary files of `write_atomically`."""
T = TypeVar("T")
Model = TypeVar("Model", bound=BaseModel)


class FileModel(BaseModel):
    """Base of the models of files: types are checked strictly, and unknown fields are refused."""

    model_config = ConfigDict(strict=True, extra="forbid", defer_build=True)  # a command reads few of these files


def _folder(name: str) -> str:
    if "\0" in name or len(name) > 2000 or any(len(part.encode()) > 255 for part in name.split("/")):
        raise ValueError("no folder can have this name")
    return name


Folder = Annotated[str, AfterValidator(_folder)]
"""A field that names a folder."""


class WriteError(OSError):
    """A file could not be written; `filename` is its name, also where the disk is full."""


def write_atomically(path: Path, data: bytes) -> None:
    """Write `data` to `path`: after a crash there is the old file or the new one, never a part of it.

    Raises WriteError.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with partial.open("wb") as f:
            f.write(data)
            f.flush()
            os.fsync(f.fileno())
        partial.replace(path)
    except OSError as e:
        raise WriteError(e.errno or 0, e.strerror or str(e), str(path)) from e
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def write_json(path: Path, data: Any) -> None:
    """Write JSON, atomically; NaN and infinities become null."""
    write_atomically(path, (json.dumps(finite(data), indent=1) + "\n").encode())


def finite(data: Any) -> Any:
    """`data` as JSON can hold it: NaN and infinities become None."""
    if isinstance(data, Mapping):
        return {str(k): finite(v) for k, v in data.items()}
    if isinstance(data, list | tuple):
        return [finite(v) for v in data]
    if isinstance(data, float) and not math.isfinite(data):
        return None
    return data


@contextlib.contextmanager
def reading(path: object, error: type[PlacekitError], what: str = "", hint: str = "") -> Iterator[None]:
    """Turn any problem with the file at `path` into an `error` that names the file.

    `what` is the kind of file that is expected; leave it out for a file that only placekit writes.
    """
    try:
        yield
    except OSError as e:
        raise error(" ".join(filter(None, ["cannot read", what, f"{path}: {e.strerror or e}"])), hint) from None
    except (ValueError, MemoryError) as e:
        wrong = f"is not a readable {what}" if what else "is damaged"
        raise error(f"{path} {wrong}: {shortened(str(e) or 'it is too large')}", hint) from None


def read_json(
    path: Path,
    model: type[Model],
    *,
    error: type[PlacekitError],
    what: str = "",
    hint: str = "",
    limit: int = MAX_BYTES,
) -> Model:
    """Read a JSON file of at most `limit` bytes as `model`. Raises `error`; see `reading`."""
    with reading(path, error, what, hint):
        return checked(parse_json(read_bytes(path, limit)), model)


def read_bytes(path: Path | Traversable, limit: int = MAX_BYTES) -> bytes:
    """The content of a file of at most `limit` bytes. Raises OSError, or ValueError if it has more."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        if size > limit:
            raise ValueError(f"it has more than {limit:,} bytes")
        file.seek(0)
        data: bytes = file.read(size)
    return data


def parse_text(data: bytes) -> str:
    """Text from UTF-8, with or without a byte order mark. Raises ValueError."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        raise ValueError(f"it is not text: byte {e.start} is not UTF-8") from None


def parse_json(data: bytes) -> Any:
    """Parse JSON. Raises ValueError."""
    try:
        return json.loads(parse_text(data), object_pairs_hook=_members)
    except RecursionError:
        raise ValueError(f"invalid JSON: {_TOO_DEEP}") from None
    except ValueError as e:
        raise ValueError(f"invalid JSON: {e}") from None


def parse_yaml(data: bytes) -> Any:
    """Parse one YAML document into plain data: no tags, and no key twice. Raises ValueError."""
    import yaml

    if len(data) > MAX_YAML_BYTES:
        raise ValueError(f"it has more than {MAX_YAML_BYTES:,} bytes")

    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            counts = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
            if counts and (twice := counts.most_common(1)[0])[1] > 1:
                raise ValueError(f"line {node.start_mark.line + 1}: key {twice[0]!r:.60} occurs twice")
            return super().construct_mapping(node, deep)

    try:
        return plain(yaml.load(parse_text(data), Loader), MAX_YAML_VALUES)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    except yaml.YAMLError as e:
        problem = " ".join(str(e).split()).replace(' in "<unicode string>",', " in")
        raise ValueError(f"it is not YAML: {problem}") from None


def checked(data: Any, model: type[Model]) -> Model:
    """`data` as a `model`. Raises ValueError that names the wrong fields."""
    try:
        return model.model_validate(data)
    except ValidationError as e:
        raise ValueError(" ".join(filter(None, explain(e, model, noun="field")))) from None


_TOO_DEEP = f"it is nested more than {MAX_DEPTH} levels deep"


def plain(data: T, values: float = math.inf) -> T:
    """Return `data`. Raises ValueError if it has a type that JSON lacks, more than `values` values, or too many levels.

    A part that occurs several times, by YAML aliases, counts each time.
    """
    level: list[Any] = [data]
    for _ in range(MAX_DEPTH + 1):
        inner: list[Any] = []
        for value in level:
            if isinstance(value, dict | list):
                values -= len(value)
                if values < 0:
                    raise ValueError("it has too many values")
                inner += [*value, *value.values()] if isinstance(value, dict) else value
            elif not isinstance(value, str | int | float | None):
                raise ValueError(f"{value} is a {type(value).__name__}: quote it")
        if not inner:
            return data
        level = inner
    raise ValueError(_TOO_DEEP)


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The members of a JSON object. Raises ValueError if a name occurs twice."""
    members = dict(pairs)
    if len(members) < len(pairs):
        twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise ValueError(f"an object has the member {twice!r:.60} twice: {reprlib.repr(members)}")
    return members
