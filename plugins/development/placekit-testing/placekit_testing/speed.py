"""The speeds of tests: `make test` leaves out tests marked `slow`; `make test-all` leaves out only those marked `long`."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest

_SLOW = (pytest.mark.slow,)
_LONG = (pytest.mark.slow, pytest.mark.long)


def mostly_slow(values: Iterable[Any], fast: Collection[Any], long: Collection[Any] = ()) -> list[Any]:
    """Parameters for `pytest.mark.parametrize`: all of `values`, marked `slow` except those in `fast`.

    Use it for a test that makes the same check for many networks or machines: `make test` then runs it for a few, `make test-all`
    for all but those in `long`, and `pytest -m long` for these. A tuple holds the values of several parameters. Raises
    ValueError if an element of `fast` or `long` is not among `values`.
    """
    values = list(values)
    for wanted in (*fast, *long):
        if wanted not in values:
            raise ValueError(f"{wanted!r} is not a parameter of this test; parameters: {', '.join(map(str, values))}")
    return [value if value in fast else _marked(value, _LONG if value in long else _SLOW) for value in values]


def _marked(value: Any, marks: Collection[pytest.MarkDecorator]) -> Any:
    return pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=marks)
