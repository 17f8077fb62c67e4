"""Files: written atomically, and read safely where they come from outside.

A file from outside may hold anything. It is read up to a size limit; its numbers, nesting, aliases and characters are
limited; then one pydantic model checks every field. Any problem becomes the caller's error, which names the file.

`parse_json`, `parse_yaml`, `checked` and `parse_arrays` (arrays.py) raise ValueError, which says what is wrong with the
content; `read_bytes` raises OSError, too. `reading` turns both into the caller's error; `read_json` does all of this.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import re
import reprlib
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from placekit_core.contracts.errors import PlacekitError, explain, shortened

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

MAX_BYTES = 64 * 2**20
MAX_VALUES = 500_000
"""Limit on the members and elements in a JSON file."""
MAX_YAML_BYTES, MAX_YAML_VALUES = 2**20, 50_000
"""Limits for a YAML file; an alias counts as many values as the part that it repeats."""
MAX_DEPTH = 100
MAX_DIGITS = 300  # every whole number of so many digits fits in a float
PARTIAL = re.compile(r"\..+\.\d+\.part")
"""Names of the temporary files of `write_atomically`."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_MANY_DIGITS = re.compile(rf"[0-9]{{{MAX_DIGITS}}}")
_NUMBERS = frozenset({int, float, bool, type(None)})
_LONG_NUMBER = re.compile(rf"[-+]?[0-9a-fA-FxX_:.]{{{MAX_DIGITS + 1},}}")
T = TypeVar("T")
Model = TypeVar("Model", bound=BaseModel)


class FileModel(BaseModel):
    """Base of the models of files: types are checked strictly, and unknown fields are refused."""

    model_config = ConfigDict(strict=True, extra="forbid")


def _folder(name: str) -> str:
    if "\0" in name or len(name) > 2000 or any(len(part.encode()) > 255 for part in name.split("/")):
        raise ValueError("no folder can have this name")
    return name


Folder = Annotated[str, AfterValidator(_folder)]
"""A field that names a folder."""


class WriteError(OSError):
    """A file could not be written; `filename` is its name, also where the disk is full."""


def write_atomically(path: Path, data: bytes) -> None:
    """Write `data` to `path` so that there is always the old file or the new one, never a part, even after a crash.

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
    values: int = MAX_VALUES,
    limit: int = MAX_BYTES,
) -> Model:
    """The content of a JSON file, as `model`. Raises `error`; see `reading`, and `parse_json` for the limits."""
    with reading(path, error, what, hint):
        return checked(parse_json(read_bytes(path, limit), values, limit), model)


def read_bytes(path: Path | Traversable, limit: int = MAX_BYTES) -> bytes:
    """The content of a file of at most `limit` bytes. Raises OSError, or ValueError if it has more."""
    with path.open("rb") as file:
        size = 0  # unknown, as for a pipe or a device
        if file.seekable():
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
        data: bytes = b"" if size > limit else file.read((size or limit) + 1)
    if max(size, len(data)) > limit:
        raise ValueError(f"it has more than {limit:,} bytes")
    return data


def read_head(path: Path, size: int) -> bytes:
    """The first `size` bytes of a file, or all that it has. Raises OSError, also for a pipe: its bytes come only once."""
    if not stat.S_ISREG(path.stat().st_mode) and not path.is_dir():  # opening a pipe waits for who writes to it
        raise OSError(errno.EINVAL, "it is a pipe or a device")
    with path.open("rb") as file:
        return file.read(size)


def parse_text(data: bytes) -> str:
    """Text from UTF-8, with or without a byte order mark. Raises ValueError."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        raise ValueError(f"it is not text: byte {e.start} is not UTF-8") from None


def check_json_size(data: bytes, values: int = MAX_VALUES, limit: int = MAX_BYTES) -> None:
    """Raise ValueError if this JSON has more than `limit` bytes or more than `values` values, commas in texts included."""
    if len(data) > limit:
        raise ValueError(f"it has more than {limit:,} bytes")
    if sum(map(data.count, (b",", b"[", b"{"))) > values:
        raise ValueError(f"it has more than {values:,} values")


def parse_json(data: bytes, values: int = MAX_VALUES, limit: int = MAX_BYTES) -> Any:
    """Plain data from JSON with at most `values` values, in at most `limit` bytes. Raises ValueError."""
    check_json_size(data, values, limit)  # before the values take memory
    text = parse_text(data)
    try:
        # a function for each number takes most of the time of a large file, so only where one may be too long
        parse_int = _integer if _MANY_DIGITS.search(text) else None
        return plain(json.loads(text, object_pairs_hook=_members, parse_int=parse_int))
    except RecursionError:
        raise ValueError(f"invalid JSON: {_TOO_DEEP}") from None
    except ValueError as e:
        raise ValueError(f"invalid JSON: {e}") from None


def parse_yaml(data: bytes) -> Any:
    """Plain data from one YAML document, without tags. Raises ValueError."""
    import yaml

    if len(data) > MAX_YAML_BYTES:
        raise ValueError(f"it has more than {MAX_YAML_BYTES:,} bytes")
    text = parse_text(data)
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        _check_events(yaml.parse(text, loader))
        return plain(yaml.load(text, loader))
    except RecursionError:  # mappings merged into mappings
        raise ValueError(_TOO_DEEP) from None
    except yaml.YAMLError as e:
        said = " ".join(str(e).split()).replace(' in "<unicode string>",', " in")
        raise ValueError(f"it is not YAML: {said}") from None


def checked(data: Any, model: type[Model]) -> Model:
    """`data` as a `model`. Raises ValueError that names the wrong fields."""
    try:
        return model.model_validate(data)
    except ValidationError as e:
        raise ValueError(" ".join(filter(None, explain(e, model, noun="field")))) from None


_TOO_DEEP = f"it is nested more than {MAX_DEPTH} levels deep"


def plain(data: T, values: float = math.inf) -> T:
    """`data` itself. Raises ValueError unless it has only JSON types and valid Unicode, and is not too deep or large."""
    level: list[Any] = [data]
    for _ in range(MAX_DEPTH + 1):
        inner: list[Any] = []
        lists = 0  # elements of lists
        for value in level:
            if isinstance(value, str):
                if not value.isascii() and _SURROGATE.search(value):
                    raise ValueError(f"{shortened(ascii(value))} is not valid Unicode")
            elif isinstance(value, dict):
                inner += value
                inner += value.values()
                values -= 2 * len(value)
            elif isinstance(value, list):
                inner += [part for part in value if type(part) not in _NUMBERS]
                values -= len(value)
                lists += len(value)
            elif type(value) not in _NUMBERS:
                raise ValueError(f"{value} is a {type(value).__name__}: quote it")
        if values < 0:
            raise ValueError("it has too many values")
        if not inner and not lists:
            return data
        level = inner
    raise ValueError(_TOO_DEEP)


def _integer(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise ValueError(f"a number has {len(text):,} digits")
    return int(text)


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The members of a JSON object. Raises ValueError if a name occurs twice."""
    members = dict(pairs)
    if len(members) < len(pairs):
        twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise ValueError(f"an object has the member {twice!r:.60} twice: {reprlib.repr(members)}")
    return members


@dataclass
class _Collection:
    """A list or mapping of a YAML document that has begun and not ended yet."""

    anchor: str | None
    before: int  # values before it
    keys: set[str] | None  # None for a list
    children: int = 0


def _check_events(events: Iterable[Any]) -> None:
    """Raise ValueError for YAML that has tags or a key twice, or that is too large or deep with its aliases expanded."""
    from yaml import AliasEvent, CollectionEndEvent, CollectionStartEvent, MappingStartEvent, NodeEvent, ScalarEvent

    sizes: dict[str | None, int] = {}  # values at each anchor
    count, parents = 0, list[_Collection]()
    for event in events:
        if isinstance(event, CollectionEndEvent):
            closed = parents.pop()
            sizes[closed.anchor] = count - closed.before
        if not isinstance(event, NodeEvent):
            continue
        line = f"line {event.start_mark.line + 1}: "
        if isinstance(event, AliasEvent) and event.anchor not in sizes:
            raise ValueError(f"{line}alias *{event.anchor} has no anchor before it, or is inside its own anchor")
        if getattr(event, "tag", None) is not None:
            raise ValueError(f"{line}it has the tag {event.tag}, and may hold plain data only")
        parent = parents[-1] if parents else _Collection(None, 0, None)
        parent.children += 1
        if isinstance(event, ScalarEvent):
            if event.implicit[0] and _LONG_NUMBER.fullmatch(event.value):
                raise ValueError(f"{line}a number has {len(event.value):,} digits")
            if parent.keys is not None and parent.children % 2:  # keys and values take turns
                if event.value in parent.keys:
                    raise ValueError(f"{line}key {event.value!r:.60} occurs twice")
                parent.keys.add(event.value)
        if isinstance(event, CollectionStartEvent):
            keys = set[str]() if isinstance(event, MappingStartEvent) else None
            parents.append(_Collection(event.anchor, count, keys))
        count += sizes[event.anchor] if isinstance(event, AliasEvent) else 1
        if isinstance(event, ScalarEvent):
            sizes[event.anchor] = 1
        if len(parents) > MAX_DEPTH:
            raise ValueError(_TOO_DEEP)
        if count > MAX_YAML_VALUES:
            raise ValueError(f"it has more than {MAX_YAML_VALUES:,} values, those of its aliases included")
