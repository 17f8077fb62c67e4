"""The two speeds of tests: `make test` runs those that are not marked `slow`, `make test-all` runs all."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def mostly_slow(values: Iterable[Any], fast: Collection[Any]) -> list[Any]:
    """Parameters of a test, of which only those in `fast` are not marked `slow`. Raises ValueError for a name that is not there.

    For a test that says the same of many networks or machines: `make test` tries a few that take little time.
    """
    values = list(values)
    strange = [f for f in fast if f not in values]
    if strange:
        raise ValueError(f"no parameter is {strange[0]!r}; there are {', '.join(map(str, values))}")
    return [value if value in fast else pytest.param(value, marks=pytest.mark.slow) for value in values]
