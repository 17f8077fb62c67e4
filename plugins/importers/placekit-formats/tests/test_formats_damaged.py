"""Damaged files of every format: always a valid program or one error of ours that names the file, in bounded time and memory.

Each format has a good file; a case is the file after one to three random changes: of bytes, lines, words and, where the format
has them, values and columns. The cases run in a process of their own, so that a crash or a hang is a failure, too.
"""

from __future__ import annotations

import json
import multiprocessing
import re
import signal
import time
from collections.abc import Callable
from dataclasses import fields
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.random import Generator
from placekit_formats.doppler import DopplerImporter
from placekit_formats.file_importer import FileImporter
from placekit_formats.json_program import JsonImporter
from placekit_formats.msr import MsrImporter, placed_devices
from placekit_formats.pipedream import PipeDreamImporter
from placekit_testing.strategies import random_step

from placekit_core import Graph, Importer, Labels, PlacekitError, save_graph, validate_graph

SAMPLES = Path(__file__).with_name("samples")
MAX_S, MAX_MIB, HANGS_S = 10.0, 1024.0, 60
NUMBERS = (
    "0", "-1", "1", "7", "1.5", "1e308", "1e999", "-0.0", "1e-400", "2147483648", "9223372036854775808", "9" * 400,
    "9" * 5000, "0x10", "1_0", "NaN", "Infinity", "null", "true", '"3"', "[]", "{}", "", "[1; 2]", "\u0663",
)  # fmt: skip
WORDS = ("", "x", "node1", "op0", "a b", "cpu", "\\ud800", "\\u0000", "\u2028", "x" * 300, " -- ", ",", "=", "\t")
BYTES = (
    b"\0",
    b"\xff",
    b"\xed\xa0\x80",
    b'"',
    b"[",
    b"]",
    b"{",
    b"}",
    b",",
    b":",
    b"\n",
    b"\r",
    b"\t",
    b" -- ",
    b"[" * 200,
)
VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 1.5, 2**31, 2**63, 1e308, float("nan"), "", "x", "\0", "x" * 300, [], {}, [[]], {"": 1}, [1, "a"],
)  # fmt: skip


def of_bytes(data: bytes, rng: Generator) -> bytes:
    """Bytes cut off, flipped, replaced, inserted, removed or copied."""
    changed, size = bytearray(data), max(len(data), 1)
    at, to, length = (int(rng.integers(0, limit)) for limit in (size, size, 60))
    match int(rng.integers(0, 6)):
        case 0:
            return bytes(changed[:at])
        case 1 if data:
            changed[at] ^= 1 << int(rng.integers(0, 8))
        case 2 if data:
            changed[at] = int(rng.integers(0, 256))
        case 3:
            changed[at:at] = BYTES[int(rng.integers(0, len(BYTES)))]
        case 4:
            del changed[at : at + length]
        case _:
            changed[to:to] = changed[at : at + length]
    return bytes(changed)


def of_words(data: bytes, rng: Generator) -> bytes:
    """A number or a word replaced by an odd one, or by another one of the file."""
    pattern, odd = ((rb"-?\d[\d.]*", NUMBERS), (rb"[A-Za-z_][\w.:]*", WORDS))[int(rng.integers(0, 2))]
    found = list(re.finditer(pattern, data))
    if not found:
        return of_bytes(data, rng)
    at, other = (found[int(rng.integers(0, len(found)))] for _ in range(2))
    new = other[0] if rng.random() < 0.3 else odd[int(rng.integers(0, len(odd)))].encode()
    return data[: at.start()] + new + data[at.end() :]


def of_lines(data: bytes, rng: Generator) -> bytes:
    """A line removed, repeated, exchanged with another, or put elsewhere."""
    lines = data.split(b"\n")
    a, b = (int(rng.integers(0, len(lines))) for _ in range(2))
    match int(rng.integers(0, 4)):
        case 0:
            del lines[a]
        case 1:
            lines[a:a] = [lines[a]] * int(rng.choice([1, 2, 50]))
        case 2:
            lines[a], lines[b] = lines[b], lines[a]
        case _:
            lines.insert(b, lines.pop(a))
    return b"\n".join(lines)


def of_values(data: bytes, rng: Generator) -> bytes:
    """A value of JSON replaced, removed, renamed or repeated."""
    try:
        root: Any = [json.loads(data)]
    except (ValueError, RecursionError):
        return of_bytes(data, rng)
    parent, key = root, 0
    while isinstance(parent[key], dict | list) and parent[key] and rng.random() < 0.85:
        parent = parent[key]
        keys = list(parent) if isinstance(parent, dict) else range(len(parent))
        key = keys[int(rng.integers(0, len(keys)))]
    match int(rng.integers(0, 4)):
        case 0 if parent is not root:
            del parent[key]
        case 1 if isinstance(parent, dict):
            parent["x"] = parent.pop(key)
        case 2 if isinstance(parent, list) and parent is not root:
            parent[key:key] = [parent[key]] * int(rng.choice([1, 2, 50]))
        case _:
            parent[key] = VALUES[int(rng.integers(0, len(VALUES)))]
    return json.dumps(root[0]).encode()


TEXT = (of_bytes, of_words, of_lines)
Damage = Callable[[bytes, Generator], bytes]


def changed(data: bytes, rng: Generator, damages: tuple[Damage, ...]) -> bytes:
    """The file after one to three changes."""
    for _ in range(int(rng.choice([1, 1, 2, 3]))):
        data = damages[int(rng.integers(0, len(damages)))](data, rng)
    return data


def changed_graph(graph: Graph, path: Path, rng: Generator) -> None:
    """Write a graph file in which a column is wrong, with the fingerprint that it then has."""
    columns = [f.name for f in fields(graph) if isinstance(getattr(graph, f.name), np.ndarray | Labels)]
    key = columns[int(rng.integers(0, len(columns)))]
    column: Any = getattr(graph, key)
    values = np.array(column.codes if isinstance(column, Labels) else column)
    match int(rng.integers(0, 4)):
        case 0:
            values = values[: int(rng.integers(0, len(values) + 1))]
        case 1:
            values = values.astype(str(rng.choice(["int8", "uint64", "float16", "float64", "bool", "complex64", "U3"])))
        case 2:
            values = rng.permutation(values)
        case _ if len(values):
            number = (
                rng.choice([-1, 0, 1, 2, 5, 100, 127])
                if values.dtype.kind in "iu"
                else rng.choice([-1.0, np.nan, np.inf])
            )
            with np.errstate(invalid="ignore"):
                values[int(rng.integers(0, len(values)))] = np.asarray(number).astype(values.dtype)
    save_graph(
        graph.replace(**{key: Labels(values, column.vocabulary) if isinstance(column, Labels) else values}), path
    )


def graph_of_file() -> Graph:
    """The graph of the good graph file."""
    return random_step(np.random.default_rng(0), 12)


def write_case(name: str, good: bytes, path: Path, rng: Generator) -> None:
    """Write one damaged file."""
    if name == "file" and rng.random() < 0.1:  # which takes longer
        changed_graph(graph_of_file(), path, rng)
        return
    damages = (of_bytes,) if name == "file" else (*TEXT, of_values, of_values) if name in ("json", "msr") else TEXT
    with path.open("r+b") as file:  # much faster than making the file empty first
        file.write(changed(good, rng, damages))
        file.truncate()


IMPORTERS: dict[str, tuple[type[Importer], str]] = {
    "json": (JsonImporter, "pair.json"),
    "doppler": (DopplerImporter, "triangle.txt"),
    "msr": (MsrImporter, "training.json"),
    "pipedream": (PipeDreamImporter, "tower.txt"),
    "file": (FileImporter, ""),
}


def try_cases(name: str, cases: int, seed: int, folder: Path, out: Connection) -> None:
    """Load damaged files, and send (accepted, refused, longest seconds, MiB above the start, complaints)."""
    importer, sample = IMPORTERS[name]
    path, rng = folder / f"damaged{Path(sample).suffix}", np.random.default_rng(seed)
    good = (SAMPLES / sample if sample else save_graph(graph_of_file(), path)).read_bytes()
    path.write_bytes(good)
    importer(path=str(path)).load()  # imports what is imported late
    Path("/proc/self/clear_refs").write_text("5")  # the peak is what it is now
    accepted, refused, longest, before, complaints = 0, 0, 0.0, mib("VmRSS"), []
    for i in range(cases):
        write_case(name, good, path, rng)
        signal.alarm(HANGS_S)
        start = time.process_time()
        try:
            [program] = importer(path=str(path)).load()
            longest = max(longest, time.process_time() - start)
            validate_graph(program.graph.replace())
            if name == "msr":
                placed_devices(path)
            accepted += 1
        except PlacekitError as e:
            refused += 1
            if path.name not in e.message:
                complaints.append(f"case {i}: {e.message:.200} does not name the file")
        except Exception as e:
            complaints.append(f"case {i}: {type(e).__name__}: {e!s:.200}")
        longest = max(longest, time.process_time() - start)
        signal.alarm(0)
    out.send((accepted, refused, longest, mib("VmHWM") - before, complaints[:10]))


def mib(key: str) -> float:
    return int(Path("/proc/self/status").read_text().partition(f"{key}:")[2].split()[0]) / 1024


def check(name: str, cases: int, seed: int, folder: Path) -> None:
    """Run cases in a process of their own, and check how they ended."""
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(duplex=False)
    child = context.Process(target=try_cases, args=(name, cases, seed, folder, send))
    child.start()
    send.close()
    try:
        accepted, refused, longest, more, complaints = receive.recv()
    except EOFError:
        child.join()
        pytest.fail(f"the process ended with {child.exitcode}: a case crashed, or took more than {HANGS_S} s")
    child.join()
    print(f"{name}: {accepted} accepted, {refused} refused, longest {longest:.2f} s, {more:.0f} MiB")
    assert complaints == []
    assert accepted + refused == cases
    assert accepted > cases / 50, "most cases should reach the reader's last checks"
    assert refused > cases / 10
    assert longest < MAX_S
    assert more < MAX_MIB


@pytest.mark.parametrize("name", IMPORTERS)
def test_some_damaged_files(name: str, tmp_path: Path) -> None:
    check(name, 300, 1, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", IMPORTERS)
def test_many_damaged_files(name: str, tmp_path: Path) -> None:
    check(name, 20_000, 2, tmp_path)
