"""The one reader of files that come from outside."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import BaseModel

from placekit_core import RunError
from placekit_core.contracts.files import (
    FileModel,
    parse_json,
    parse_yaml,
    read_bytes,
    read_json,
    reading,
)


def nested(levels: int) -> bytes:
    return b"[" * levels + b"]" * levels


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (nested(100_000), "nested more than 100 levels deep"),
        (b'{"a": 1, "b": 2, "a": 3}', "an object has the member 'a' twice"),
        (b"\xff\xfe[]", "byte 0 is not UTF-8"),
        (b"", "invalid JSON"),
        (b"{'a': 1}", "invalid JSON"),
    ],
)
def test_json_that_is_refused(data: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_json(data)


def test_json_that_is_read() -> None:
    assert parse_json(b'\xef\xbb\xbf{"a": ["\\ud83d\\ude00", 1.5, null, true]}') == {
        "a": ["\U0001f600", 1.5, None, True]
    }


DOUBLING = "\n".join(["- &a0 [x, x]", *(f"- &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 40))])
"""Forty lines that stand for a million million values."""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (DOUBLING, "it has too many values"),
        ("- &a [x, x]\n- &a [*a, *a]", "it is not YAML: found duplicate anchor"),
        ("&a [*a]", "nested more than 100 levels deep"),
        ("a: *b", "it is not YAML: found undefined alias"),
        ("[" * 102 + "]" * 102, "nested more than 100 levels deep"),
        ("a: 1\nb:\n  c: 2\na: 3", "line 1: key 'a' occurs twice"),
        ("a: !!python/object:os.system ls", "it is not YAML: could not determine a constructor for the tag"),
        ("a: 2020-01-01", "is a date: quote it"),
        ("a: [", "it is not YAML"),
        ("--- 1\n--- 2", "it is not YAML: expected a single document"),
        ("- x\n" * 50_001, "it has too many values"),
        ("#" * (2**20 + 1), "it has more than 1,048,576 bytes"),
    ],
)
def test_yaml_that_is_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_yaml(text.encode())


def test_yaml_that_is_read() -> None:
    text = "base: &b {x: 1}\nlist: [&c 2, *c]\nlast: *b\nmerged: {<<: {y: 3}, z: 4}"
    assert parse_yaml(text.encode()) == {"base": {"x": 1}, "list": [2, 2], "last": {"x": 1}, "merged": {"y": 3, "z": 4}}


class Content(FileModel):
    """What the file of these tests holds."""

    count: int
    name: str = ""


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b'{"count": "3"}', "count"),
        (b'{"count": 3.0}', "count"),
        (b'{"count": 1, "cuont": 1}', "cuont"),
        (b"[1]", "is damaged"),
    ],
)
def test_a_file_is_what_its_model_says(tmp_path: Path, data: bytes, said: str) -> None:
    path = tmp_path / "content.json"
    path.write_bytes(data)
    with pytest.raises(RunError, match=said) as e:
        read_json(path, Content, error=RunError, hint="make it anew")
    assert (str(path) in e.value.message, e.value.hint) == (True, "make it anew")
    path.write_bytes(b'{"count": 3}')
    assert read_json(path, Content, error=RunError).count == 3


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for path, said in [(tmp_path, "cannot read"), (tmp_path / "none", "cannot read content .*none: No such file")]:
        with pytest.raises(RunError, match=said):
            read_json(path, BaseModel, error=RunError, what="content")
    with pytest.raises(RunError, match="is not a readable content: it is too large"), reading("x", RunError, "content"):
        raise MemoryError


def test_files_have_a_limit(tmp_path: Path) -> None:
    path = tmp_path / "ten"
    path.write_bytes(b"0123456789")
    assert read_bytes(path, 10) == b"0123456789"
    with pytest.raises(ValueError, match="more than 9 bytes"):
        read_bytes(path, 9)
