"""How `fuzz_files.py` damages files: famous cases, changed content, changed bytes. Gives (what was done, content)."""

from __future__ import annotations

import contextlib
import io
import json
import re
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.random import Generator

from placekit_core import Graph, Labels, save_graph

Case = tuple[str, Callable[[], bytes]]
WRONG: tuple[Any, ...] = (
    None, True, False, 0, -1, 7, 1.5, 2**31, 2**63, 10**20, 10**299, 1e308, float("nan"), float("inf"), "", "x", "\0",
    "\ud800", "x/../../y", "x" * 300, "9" * 5000, "*" * 50, "none", "file", [], {}, [[]], [None], {"": 1}, {"a": {"b": [1]}},
)  # fmt: skip
"""What a value is replaced by."""
ODD = (
    b"9" * 400,
    b'"',
    b"[",
    b"{",
    b"}",
    b"\0",
    b"\xff",
    b"\xed\xa0\x80",
    b",",
    b":",
    b"\\ud800",
    b"-",
    b"e999",
    b"\n",
)
"""What is inserted."""
LARGE = ("assignment", "kinds", "cluster", "priority", "peak_bytes", "attributes", "options", "operations", "devices")
"""Fields that are filled with many members."""
DTYPES = (
    "bool", "int8", "uint8", "int64", "uint64", "float16", "float64", "complex64", ">i4", ">f8", "S3", "U3", "V8", "M8[s]",
)  # fmt: skip
_F8 = "{'descr': '<f8', 'fortran_order': %s, 'shape': %s}"
HEADERS = (
    _F8 % (False, "(10000000000,)"), _F8 % (False, "(-1, -8)"), _F8 % (False, "(1000000000000000000000,)"),
    _F8 % (False, "(0, 1000000000000000000000)"), _F8 % (True, "(2, 2)"), _F8.replace("<f8", "|V0") % (False, "(10**12,)"),
    _F8.replace("<f8", "|V0") % (False, "(1000000000000,)"), _F8.replace("<f8", "|O") % (False, "(1,)"),
    _F8.replace("<f8", "<U99999999") % (False, "(1,)"), _F8.replace("'<f8'", "[('a', '|O')]") % (False, "(1,)"),
    _F8.replace("'<f8'", "3") % (False, "(1,)"), "{'shape': (1,)}", "[]", "__import__('os')", "(" * 5000, "{" * 90,
)  # fmt: skip
"""Headers of numpy's arrays."""


def _bomb(levels: int, width: int) -> str:
    """YAML whose aliases stand for width ** levels values."""
    lines = [f"a0: &a0 [{','.join(['x'] * width)}]"]
    return "\n".join([*lines, *(f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * width)}]" for i in range(1, levels))])


YAML = (
    "a: !!int x", "a: !!float x", "a: !!bool x", "a: !!binary x", "a: !!timestamp x", "a: !!python/name:os.system x",
    "a: !x y", "a: !!set {x, y}", "a: !!omap [x: 1]", "a: 2001-99-99", "a: 2001-01-01", "a: 0x_", "a: 0b_", "a: 1__0",
    "a: =", "<<: 1", "a: &a [*a]", "a: &a {b: *a}", "a: *b", "? [1, 2]\n: 3", "? {a: b}\n: 3", "a: 1\na: 2",
    "--- 1\n--- 2", "%YAML 9.9\n---\na", "a: .nan", "a: -.inf", 'a: "\\ud800"', 'a: "\\UFFFFFFFF"', "a: \x07", "a: [",
    "\t- x", "a: |\n x\n  y", "- " * 1100 + "x", "[" * 1100 + "]" * 1100, "a: " + "1:" * 500_000 + "1",
    _bomb(4, 10), _bomb(9, 10), _bomb(30, 2), _bomb(200, 5), "c: &c {x: 1}\nd: {<<: [*c, *c], x: 2}",
    "b0: &b0 {x: 1}\n" + "\n".join(f"b{i}: &b{i} {{<<: *b{i - 1}, y{i}: 1}}" for i in range(1, 400)),
)  # fmt: skip


def cases(form: str, good: bytes, sealed: bool, rng: Generator, count: int) -> Iterator[tuple[str, bytes]]:
    """All famous cases, and `count` others, of a file of a form: json, yaml, npz (which may be sealed), text or bytes."""
    yield from famous(form, good)
    changed: list[Case] = []
    if form == "npz":
        changed = list(_archives(good, sealed, rng))
    elif form in ("json", "yaml"):
        changed = list(_contents(form, good))
    most = count * 2 // 3
    chosen = sorted(rng.choice(len(changed), most, replace=False)) if len(changed) > most else range(len(changed))
    for i in chosen:
        what, make = changed[i]
        yield what, make()
    for _ in range(count - len(chosen)):
        yield other_bytes(good, rng)


def other_bytes(good: bytes, rng: Generator) -> tuple[str, bytes]:
    """Truncated, flipped, replaced, inserted, removed or copied bytes."""
    data, size = bytearray(good), len(good)
    at, to, length = (int(rng.integers(0, limit)) for limit in (size, size, 60))
    some = rng.integers(0, size, int(rng.integers(1, 5)))
    match int(rng.integers(0, 6)):
        case 0:
            return f"cut at {at}", bytes(data[:at])
        case 1:
            for i in some:
                data[i] ^= 1 << int(rng.integers(0, 8))
            return f"bits flipped at {some.tolist()}", bytes(data)
        case 2:
            for i in some:
                data[i] = int(rng.integers(0, 256))
            return f"bytes replaced at {some.tolist()}", bytes(data)
        case 3:
            data[at:at] = ODD[int(rng.integers(0, len(ODD)))]
            return f"inserted at {at}", bytes(data)
        case 4:
            del data[at : at + length]
            return f"{length} removed at {at}", bytes(data)
        case _:
            data[to:to] = data[at : at + length]
            return f"{length} copied from {at} to {to}", bytes(data)


def famous(form: str, good: bytes) -> Iterator[tuple[str, bytes]]:
    """What is known to break readers, whatever is in the file."""
    for text in (b"", b" ", b"\n", b"null", b"[]", b"{}", b"3", b'"x"', b"\xff\xfe", b"\0" * 100, b"PK\3\4"):
        yield f"only {text[:8]!r}", text
    yield "a mark before it", b"\xef\xbb\xbf" + good
    yield "UTF-16", good.decode("latin-1").encode("utf-16")
    for depth in (99, 101, 450, 1100, 5000, 100_000):
        for begin, end in ((b"[", b"]"), (b'{"a":', b"}"), (b"{a: ", b"}"), (b"- ", b"")):
            yield f"{depth} levels of {begin!r}", begin * depth + b"1" + end * depth
    numbers = [*re.finditer(rb"(?<=[ \[,:])\d[\d.]*(?=[,\s}\]])", good)][:5]
    for digits in (310, 5000, 1_000_000):
        nines = b"9" * digits
        for number in (nines, b"-" + nines, b"0." + nines, b"1e" + nines, b"0x" + b"f" * digits, b"1:" * digits):
            yield f"number of {digits} digits", b'{"a": ' + number + b"}"
            for at in numbers:
                yield f"number of {digits} digits at {at.start()}", good[: at.start()] + number + good[at.end() :]
    for at in [*re.finditer(rb'"[^"\\]*"', good)][:200]:
        yield f"half a character at {at.start()}", good[: at.start()] + b'"\\ud800"' + good[at.end() :]
    for text in map(str.encode, YAML):
        yield f"YAML {text[:30]!r}", text
        if form == "yaml":
            yield f"with YAML {text[:30]!r}", good + b"\n" + text
    yield from _large(good)


def _large(good: bytes) -> Iterator[tuple[str, bytes]]:
    """Too many bytes or values, and nearly too many."""
    for length in (70 * 2**20, 2 * 2**20):
        yield f"{length} bytes", good + b" " * (length - len(good))
        yield f"text of {length} bytes", b'{"a": "' + b"x" * length + b'"}'
    yield "a wide text", b'{"a": "' + "\U0001f600".encode() + b"x" * (50 * 2**20) + b'"}'
    for many in (10_000_000, 3_900_000, 450_000):
        yield f"{many} lists", b"[" + b"[]," * many + b"1]"
        yield f"{many} numbers", b'{"operations": [' + b"1," * many + b'1], "version": 1}'
        yield f"{many} lines", b"5\n" + b"\n" * many
        yield f"{many} commas", b"5\n" + b"0," * many + b"\n1,\n1,\n"
    for many in (490_000, 120_000, 20_000):
        members = b",".join(b'"x%d": "y"' % i for i in range(many))
        yield f"{many} members", b"{" + members + b"}"
        for key in (k.encode() for k in LARGE if k.encode() in good):
            yield f"{many} members in {key!r}", b'{"' + key + b'": {' + members + b"}}"
            yield f"{many} texts in {key!r}", b'{"' + key + b'": [' + b'"x",' * many + b"1]}"
            inside = b'"' + key + b'": {' + members + b'}, "z":'
            yield f"{many} texts in the {key!r} of all", good.replace(b'"' + key + b'":', inside, 1)


def _contents(form: str, good: bytes) -> Iterator[Case]:
    """Every value of a JSON or YAML file replaced; members that are missing, new, renamed or there twice."""
    data = json.loads(good) if form == "json" else yaml.safe_load(good)
    for what, changed in changes(data):
        yield what, partial(_json if form == "json" else _yaml, changed)
    for key in data if form == "json" else ():
        yield f"{key} twice", partial(_twice, data, key)


def _json(data: Any) -> bytes:
    return json.dumps(data, indent=1).encode()


def _yaml(data: Any) -> bytes:
    text: str = yaml.safe_dump(data)
    return text.encode("utf-8", "surrogatepass")


def _twice(data: Any, key: str) -> bytes:
    return f'{{"{key}": {json.dumps(data[key])}, {json.dumps(data)[1:]}'.encode()


def changes(data: Any) -> Iterator[tuple[str, Any]]:
    """Copies of plain data in which one value is another, missing, added or renamed."""
    deep: Any = 1
    for _ in range(95):
        deep = [deep]
    for path in paths(data):
        where = ".".join(map(str, path))
        for value in WRONG:
            yield f"{where} is {value!r:.30}", replaced(data, path, lambda parent, key, v=value: v)
        yield f"{where} is in a list", replaced(data, path, lambda parent, key: [parent[key]])
        yield f"{where} is text", replaced(data, path, lambda parent, key: str(parent[key]))
        yield f"{where} is nested", replaced(data, path, lambda parent, key: deep)
        if path and isinstance(path[-1], str):
            yield f"{where} is missing", replaced(data, path, lambda parent, key: parent.pop(key) and None, keep=False)
            yield (
                f"{where} is x",
                replaced(data, path, lambda parent, key: parent.update(x=parent.pop(key)), keep=False),
            )
            yield (
                f"x beside {where}",
                replaced(data, path, lambda parent, key: parent.update({"x \u2028": 1}), keep=False),
            )


def paths(data: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The places of all values; of a long list the first three."""
    yield path
    items = data.items() if isinstance(data, dict) else enumerate(data[:3]) if isinstance(data, list) else ()
    for key, value in items:
        yield from paths(value, (*path, key))


def replaced(data: Any, path: tuple[str | int, ...], change: Callable[..., Any], keep: bool = True) -> Any:
    """A copy in which the value at `path` is what `change` gives; or, without `keep`, in which that changes the parent."""
    root: Any = {"": json.loads(json.dumps(data))}
    parent, key = root, ""
    for step in path:
        parent, key = parent[key], step  # type: ignore[assignment]
    value = change(parent, key)
    if keep:
        parent[key] = value
    return root[""]


def _archives(good: bytes, sealed: bool, rng: Generator) -> Iterator[Case]:
    """Changed arrays and zips, with the right seal."""
    content = good[:-32] if sealed else good
    with np.load(io.BytesIO(content)) as archive:
        arrays: dict[str, Any] = dict(archive)

    def seal(data: bytes) -> bytes:
        return data + sha256(data).digest() if sealed else data

    def saved(changes: Mapping[str, Any], save: Callable[..., None] = np.savez) -> bytes:
        buffer = io.BytesIO()
        save(buffer, **{k: v for k, v in {**arrays, **changes}.items() if v is not None})
        return seal(buffer.getvalue())

    header = "tree.json" if sealed else "header.json"
    for what, changed in changes(json.loads(arrays[header].tobytes())):
        yield f"{header}: {what}", partial(saved, {header: np.frombuffer(_json(changed), np.uint8)})
    for text in (b"", b"\xff", b"[" * 1100, b"{", b'{"a": ' + b"9" * 10**6 + b"}"):
        yield f"{header} is {text[:9]!r}", partial(saved, {header: np.frombuffer(text, np.uint8)})
    for name, values in arrays.items():
        yield f"no {name}", partial(saved, {name: None})
        yield f"{name} has another name", partial(saved, {name: None, name + "x": values})
        for what, other in _arrays(np.array(values)):
            yield f"{name}: {what}", partial(saved, {name: other})
            if not sealed and name not in (header, "op_name"):
                yield f"{name}: {what}, with its fingerprint", partial(_graph_with, {**arrays, name: other})
    for many in (2000, 200):
        yield f"{many} more arrays", partial(saved, {f"column.x{i}": np.zeros(7) for i in range(many)})
    for size in (2**27, 14 * 2**20):
        yield f"{8 * size} bytes of zeros", lambda n=size: saved({"column.x": np.zeros(n)}, np.savez_compressed)  # type: ignore[misc]
    for method in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        yield "another compression", lambda m=method: seal(_zipped(m, HEADERS[0]))  # type: ignore[misc]
    for head in HEADERS:
        yield f"array header {head[:60]!r}", lambda h=head: seal(_zipped(zipfile.ZIP_STORED, h))  # type: ignore[misc]
    for _ in range(2000 if sealed else 0):
        what, data = other_bytes(content, rng)
        yield f"{what}, sealed", partial(seal, data)


def _graph_with(arrays: Mapping[str, Any]) -> bytes:
    """The graph file of a graph with these columns, and the fingerprint that it then has."""
    header = json.loads(arrays["header.json"].tobytes())
    columns: dict[str, Any] = {}
    for key in sorted(set(arrays) - {"header.json", "op_name"}):
        words, values = header["vocabularies"].get(key), np.array(arrays[key])
        columns[key] = values if words is None else Labels(values, tuple(words))
    extra = {k.removeprefix("column."): columns.pop(k) for k in list(columns) if k.startswith("column.")}
    names = tuple(arrays["op_name"].tobytes().decode().split("\n"))
    with tempfile.TemporaryDirectory() as folder:
        try:
            graph = Graph(header["name"], names, columns=extra, attributes=header["attributes"], **columns)
            return save_graph(graph, Path(folder) / "g.npz").read_bytes()
        except Exception:  # there is no such graph
            return b"PK"


def _arrays(values: Any) -> Iterator[tuple[str, Any]]:
    """What an array is replaced by."""
    flat = values.ravel()
    with np.errstate(all="ignore"), contextlib.suppress(TypeError, ValueError):
        for dtype in DTYPES:
            yield f"as {dtype}", values.astype(dtype)
    yield "of objects", np.array([{}] * max(len(flat), 1), dtype=object)
    yield "one number", np.asarray(1)
    yield "empty", flat[:0]
    yield "shorter", flat[:-1]
    yield "longer", np.concatenate([flat, flat[:1]])
    yield "in one row", values.reshape(1, -1)
    yield "in two columns", np.stack([flat] * 2, 1)
    yield "reversed", flat[::-1]
    wrong: dict[str, list[Any]] = {
        "f": [np.nan, np.inf, -1.0, 1e30],
        "i": [-1, 0, 1, 5, 100, 2**31 - 1],
        "u": [0, 1, 100, 255],
        "b": [False, True],
    }
    for number in wrong.get(values.dtype.kind, []):
        for row in (0, -1) if len(flat) else ():
            changed = flat.copy()
            changed[row] = np.asarray(number).astype(flat.dtype)
            yield f"[{row}] = {number}", changed


def _zipped(method: int, header: str) -> bytes:
    """A zip of arrays of this header and 32 bytes."""
    text = header.encode() + b" " * (-(len(header) + 11) % 64) + b"\n"
    array = b"\x93NUMPY\x01\x00" + (len(text) & 0xFFFF).to_bytes(2, "little") + text + b"\1" * 32
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name in ("flops.npy", "header.json.npy", "op_name.npy", "tree.json.npy"):
            archive.writestr(name, array)
    return buffer.getvalue()
