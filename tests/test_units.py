"""Numbers with units."""

from __future__ import annotations

import pytest

from placekit_core.contracts.units import mebibytes


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0.0 MiB"), (40, "40 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (75_000, "73.2 KiB"), (104_858, "0.1 MiB"),
        (2**30 - 1, "1024.0 MiB"), (2**30, "1.00 GiB"),
    ],
)  # fmt: skip
def test_bytes(value: float, text: str) -> None:
    assert mebibytes(value) == text
