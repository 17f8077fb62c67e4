"""Reads large files piece by piece: JSON value by value, text line by line.

`reading.read_file` reads whole files, up to 64 MiB. Here only one piece of the file is in memory at a time, so the file may
have up to `MAX_FILE_BYTES`; a reader itself limits how much it keeps. Both scanners raise ValueError.
"""

from __future__ import annotations

import codecs
import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, BinaryIO

MAX_FILE_BYTES = 2**30
MAX_PIECE = 2**20  # characters of one value of a list in JSON, bytes of one line of text
MAX_MEMBERS = 100  # at the top level of JSON; the formats have fewer than ten
MAX_OPERATIONS, MAX_EDGES = 2**22, 2**24  # a graph file holds as many
_CHUNK = 2**20
_SPACE = re.compile(r"[ \t\n\r]*")


class JsonScanner:
    """Reads one JSON object member by member, and its lists element by element.

    >>> import io
    >>> scanner = JsonScanner(io.BytesIO(b'{"nodes": [{"id": 1}, {"id": 2}], "most": 3}'))
    >>> for key in scanner.members():
    ...     print(key, list(scanner.elements(key)) if key == "nodes" else scanner.value())
    nodes [{'id': 1}, {'id': 2}]
    most 3
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self._decode = json.JSONDecoder(object_pairs_hook=_members, parse_constant=_no_constant).raw_decode
        self._text, self._at, self._ended = (
            "",
            0,
            False,
        )  # characters in memory, how many of them are consumed, end of file
        self._size = 0  # bytes read so far
        self._line = self._column = 1  # line and column of the first character in memory

    def members(self) -> Iterator[str]:
        """Names of the members of the file's object; call `value` or `elements` after each to read its value."""
        if not self._peek():
            raise ValueError("it is empty")
        if self._peek() != "{":
            raise ValueError(self._wrong("it must begin with an object, `{`"))
        self._at += 1
        found: set[str] = set()
        while self._peek() != "}" or found:
            key = self.value()
            if not isinstance(key, str):
                raise ValueError(self._wrong("a member begins with its name, in quotes"))
            if key in found:
                raise ValueError(self._wrong(f"the file has the member {key!r:.60} twice"))
            found.add(key)
            if len(found) > MAX_MEMBERS:
                raise ValueError(f"its object has more than {MAX_MEMBERS} members")
            self._expect(":", f"after the name {key!r:.60}")
            yield key
            if self._peek() == "}":
                break
            self._expect(",", f"after the member {key!r:.60}")
        self._at += 1
        if self._peek():
            raise ValueError(self._wrong("the file goes on after its object"))

    def elements(self, name: str) -> Iterator[Any]:
        """The elements of a list, which is the value of the member `name`."""
        if self._peek() != "[":
            raise ValueError(self._wrong(f"{name} must be a list, `[`"))
        self._at += 1
        if self._peek() == "]":
            self._at += 1
            return
        while True:
            yield self.value()
            if self._peek() == "]":
                self._at += 1
                return
            self._expect(",", f"between the elements of {name}")

    def value(self) -> Any:
        """The next value, whole."""
        self._peek()
        while True:
            try:
                value, end = self._decode(self._text, self._at)
            except RecursionError:
                raise ValueError(self._wrong("a value is nested too deep")) from None
            except json.JSONDecodeError as e:
                problem, behind = e.msg.removesuffix(" starting at"), e.pos - self._at
                if not self._grow(behind):
                    self._at += behind
                    raise ValueError(self._wrong(problem[:1].lower() + problem[1:])) from None
            except _WrongError as e:
                raise ValueError(self._wrong(str(e))) from None
            except ValueError:  # Python converts only shorter ones
                raise ValueError(self._wrong("a number has more than 4300 digits")) from None
            else:
                # a number at the end of the characters in memory (`1`, `1.`, `1e` or `1e-`) may go on in the file
                used = end - self._at
                if end + 2 < len(self._text) or not self._grow(used):
                    self._at += used
                    return value

    def _grow(self, used: int) -> bool:
        """Read more of the file because the value that begins here may go on; returns whether there was more.

        Raises ValueError if its first `used` characters are too many for a value already.
        """
        if used > MAX_PIECE:
            raise ValueError(self._wrong(f"a value has more than {MAX_PIECE:,} characters"))
        return len(self._text) - self._at <= MAX_PIECE and self._read()

    def _read(self) -> bool:
        """Read the next piece into memory; returns whether there was one."""
        if self._ended:
            return False
        data = self._file.read(_CHUNK)
        self._size += len(data)
        if self._size > MAX_FILE_BYTES:
            raise ValueError(f"it has more than {MAX_FILE_BYTES:,} bytes")
        self._ended = not data
        try:
            new = self._decoder.decode(data, final=self._ended)
        except UnicodeDecodeError as e:
            raise ValueError(f"it is not text: byte {self._size - len(e.object) + e.start} is not UTF-8") from None
        self._line, self._column = self._place()
        self._text, self._at = self._text[self._at :] + new, 0
        return not self._ended

    def _peek(self) -> str:
        """The next character that is not a space; "" at the end of the file."""
        while True:
            match = _SPACE.match(self._text, self._at)
            assert match is not None
            self._at = match.end()
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._read() and self._at == len(self._text):
                return ""

    def _expect(self, character: str, where: str) -> None:
        if self._peek() != character:
            raise ValueError(self._wrong(f"`{character}` is missing {where}"))
        self._at += 1

    def _place(self) -> tuple[int, int]:
        """Line and column of the next character."""
        lines = self._text.count("\n", 0, self._at)
        if not lines:
            return self._line, self._column + self._at
        return self._line + lines, self._at - self._text.rindex("\n", 0, self._at)

    def _wrong(self, problem: str) -> str:
        line, column = self._place()
        return f"line {line}, column {column}: {problem}"


def lines(file: BinaryIO) -> Iterator[str]:
    """The lines of a UTF-8 file, without their line ends."""
    size, number = 0, 0
    while data := file.readline(MAX_PIECE + 1):
        number += 1
        size += len(data)
        if size > MAX_FILE_BYTES:
            raise ValueError(f"it has more than {MAX_FILE_BYTES:,} bytes")
        if len(data) > MAX_PIECE:
            raise ValueError(f"line {number} has more than {MAX_PIECE:,} bytes")
        try:
            text = data.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as e:
            raise ValueError(f"line {number} is not text: its byte {e.start} is not UTF-8") from None
        yield text.rstrip("\r\n")


class _WrongError(ValueError):
    """Valid syntax with a mistake: a repeated member or a constant that JSON lacks."""


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise _WrongError(f"an object has the member {twice!r:.60} twice")
    return members


def _no_constant(name: str) -> None:
    raise _WrongError(f"{name} is not a number in JSON")
