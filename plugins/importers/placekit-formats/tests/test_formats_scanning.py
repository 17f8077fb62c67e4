"""Scanning of large files: pieces may end anywhere, and every limit is an error."""

from __future__ import annotations

import io
import json

import pytest
from placekit_formats import scanning
from placekit_formats.scanning import JsonScanner, lines


def scanned(data: bytes) -> dict[str, object]:
    """The whole object; the member `list` element by element."""
    scanner = JsonScanner(io.BytesIO(data))
    return {key: list(scanner.elements(key)) if key == "list" else scanner.value() for key in scanner.members()}


@pytest.mark.parametrize("chunk", [1, 3, 64])
def test_pieces_may_end_anywhere(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    data = {"a": 12345.75, "list": [1, 23, '\u20ac"x', {"b": [1, 2]}, -4e-5, None, []], "\U0001f600": {}, "z": 17}
    for text in (json.dumps(data, ensure_ascii=False), json.dumps(data, indent=2), json.dumps({"list": []})):
        monkeypatch.setattr(scanning, "_CHUNK", chunk)
        assert scanned(text.encode()) == json.loads(text)
        assert scanned(b"\xef\xbb\xbf \n" + text.encode() + b" \r\n") == json.loads(text)


@pytest.mark.parametrize("chunk", [1, 64])
def test_the_place_of_a_mistake_does_not_depend_on_the_pieces(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanning, "_CHUNK", chunk)
    text = '{"list": [1,\n  {"b": 2},\n  {"b" 3}]}'
    with pytest.raises(ValueError, match="line 3, column 8: expecting ':' delimiter"):
        scanned(text.encode())


def test_mistakes() -> None:
    for text, said in [
        ('{"a": 1,}', "column 9: expecting"),
        ('{"a": 1 "b": 2}', "column 9: `,` is missing after the member 'a'"),
        ('{"a" 1}', "column 6: `:` is missing after the name 'a'"),
        ('{1: 1}', "a member begins with its name"),
        ('{"a": 1, "a": 2}', "the file has the member 'a' twice"),
        ('{"list": [1 2]}', "`,` is missing between the elements of list"),
        ('{"list": [1,]}', "expecting value"),
        ('{"list": {}}', "list must be a list"),
        ('{"a": "x', "column 7: unterminated string"),
        ('{"a": 1', "`,` is missing"),
        ('{"a": 1} 2', "the file goes on"),
        ('{"a": Infinity}', "Infinity is not a number"),
        ("{" + ",".join(f'"{i}": 0' for i in range(101)) + "}", "more than 100 members"),
    ]:  # fmt: skip
        with pytest.raises(ValueError) as error:  # noqa: PT011
            scanned(text.encode())
        assert said in str(error.value)


def test_a_large_value_is_an_error_and_a_large_list_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanning, "MAX_PIECE", 100)
    monkeypatch.setattr(scanning, "_CHUNK", 50)
    assert scanned(b'{"list": [' + b"12, " * 500 + b"3]}") == {"list": [12] * 500 + [3]}
    for value in (b'"' + b"x" * 300 + b'"', b"0." + b"1" * 300, b"[" + b"1, " * 300 + b"1]"):
        with pytest.raises(ValueError, match=r"(more than 100 characters|unterminated string)"):
            scanned(b'{"list": [' + value + b"]}")


def test_a_large_file_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanning, "MAX_FILE_BYTES", 100)
    with pytest.raises(ValueError, match="more than 100 bytes"):
        scanned(b'{"list": [' + b"1, " * 40 + b"1]}")
    with pytest.raises(ValueError, match="more than 100 bytes"):
        list(lines(io.BytesIO(b"1234567\n" * 13)))


def test_lines() -> None:
    assert list(lines(io.BytesIO(b"\xef\xbb\xbfa\r\n\n\tb -- \xc3\xa9"))) == ["a", "", "\tb -- \u00e9"]
    with pytest.raises(ValueError, match="line 2 is not text: its byte 1 is not UTF-8"):
        list(lines(io.BytesIO(b"a\nb\xff\n")))
