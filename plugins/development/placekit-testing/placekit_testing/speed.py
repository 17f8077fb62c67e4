"""The two speeds of tests: `make test` leaves out tests with the mark `slow`, and `make test-all` runs them, too."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def mostly_slow(values: Iterable[Any], fast: Collection[Any]) -> list[Any]:
    """Parameters for `pytest.mark.parametrize`: all of `values`, marked `slow` except those in `fast`.

    Use it for a test that makes the same check for many networks or machines: `make test` then runs it for a few. A tuple
    holds the values of several parameters. Raises ValueError if an element of `fast` is not among `values`.
    """
    values = list(values)
    for wanted in fast:
        if wanted not in values:
            raise ValueError(f"{wanted!r} is not a parameter of this test; parameters: {', '.join(map(str, values))}")
    return [value if value in fast else _slow(value) for value in values]


def _slow(value: Any) -> Any:
    return pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.slow)
