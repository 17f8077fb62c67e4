"""Damaged files: an importer must end with a valid program or with one error that names the file, in bounded time and memory.

A case is a good file after one to three random changes. The cases run in a process of their own, so that a crash or a hang is a
failure, too. Needs Linux.
"""

from __future__ import annotations

import json
import multiprocessing
import re
import signal
import time
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from numpy.random import Generator, default_rng

from placekit_core import PlacekitError, Program, validate_graph

MAX_S, MAX_MIB, HANGS_S = 10.0, 1024.0, 60
ACCEPTED, REFUSED = 0.02, 0.1  # least shares of the cases, so that some reach the importer's last checks
NUMBERS = (
    "0", "-1", "1", "7", "1.5", "1e308", "1e999", "-0.0", "1e-400", "2147483648", "9223372036854775808", "9" * 400,
    "9" * 5000, "0x10", "1_0", "NaN", "Infinity", "null", "true", '"3"', "[]", "{}", "", "[1; 2]", "\u0663",
)  # fmt: skip
WORDS = ("", "x", "node1", "op0", "a b", "cpu", "\\ud800", "\\u0000", "\u2028", "x" * 300, " -- ", ",", "=", "\t")
BYTES = (
    b"\0", b"\xff", b"\xed\xa0\x80", b'"', b"[", b"]", b"{", b"}", b",", b":", b"\n", b"\r", b"\t", b" -- ", b"[" * 200,
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 1.5, 2**31, 2**63, 1e308, float("nan"), "", "x", "\0", "x" * 300, [], {}, [[]], {"": 1}, [1, "a"],
)  # fmt: skip
Damage = Callable[[bytes, Generator], bytes]


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


def changed(data: bytes, rng: Generator, damages: tuple[Damage, ...]) -> bytes:
    """The file after one to three changes."""
    for _ in range(int(rng.choice([1, 1, 2, 3]))):
        data = damages[int(rng.integers(0, len(damages)))](data, rng)
    return data


def check_damaged(
    load: Callable[[Path], list[Program]],
    good: bytes,
    path: Path,
    damage: Callable[[bytes, Generator], bytes | None],
    *,
    cases: int,
    seed: int,
) -> None:
    """Load damaged copies of the file `good`, one after the other at `path`, and check how they ended.

    `damage` returns the content of a damaged file, or None if it has written `path` itself.
    """
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(duplex=False)
    child = context.Process(target=_try_cases, args=(load, good, path, damage, cases, seed, send))
    child.start()
    send.close()
    try:
        accepted, refused, longest, more, complaints = receive.recv()
    except EOFError:
        child.join()
        pytest.fail(f"the process ended with {child.exitcode}: a case crashed, or took more than {HANGS_S} s")
    child.join()
    print(f"{path.name}: {accepted} accepted, {refused} refused, longest {longest:.2f} s, {more:.0f} MiB")
    assert complaints == []
    assert accepted + refused == cases
    assert accepted > cases * ACCEPTED
    assert refused > cases * REFUSED
    assert longest < MAX_S
    assert more < MAX_MIB


def _try_cases(
    load: Callable[[Path], list[Program]],
    good: bytes,
    path: Path,
    damage: Callable[[bytes, Generator], bytes | None],
    cases: int,
    seed: int,
    out: Connection,
) -> None:
    """Load damaged files, and send (accepted, refused, longest seconds, MiB above the start, complaints)."""
    rng = default_rng(seed)
    path.write_bytes(good)
    warnings.simplefilter("ignore")
    load(path)  # imports modules that are imported late
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak of memory
    accepted, refused, longest, before, complaints = 0, 0, 0.0, _mib("VmRSS"), []
    for i in range(cases):
        data = damage(good, rng)
        if data is not None:
            path.write_bytes(data)
        signal.alarm(HANGS_S)
        start = time.process_time()
        try:
            [program] = load(path)
            validate_graph(program.graph.replace())
            accepted += 1
        except PlacekitError as e:
            refused += 1
            if path.name not in e.message:
                complaints.append(f"case {i}: {e.message:.200} does not name the file")
        except Exception as e:
            complaints.append(f"case {i}: {type(e).__name__}: {e!s:.200}")
        longest = max(longest, time.process_time() - start)
        signal.alarm(0)
    out.send((accepted, refused, longest, _mib("VmHWM") - before, complaints[:10]))


def _mib(key: str) -> float:
    return int(Path("/proc/self/status").read_text().partition(f"{key}:")[2].split()[0]) / 1024
