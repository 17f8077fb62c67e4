"""A first run says that it compiles."""

from __future__ import annotations

from typing import Any

import placekit_scheduling.jit  # noqa: F401  (it listens to numba)
from numba import njit

from placekit_core.contracts.progress import listening


def test_every_compilation_is_told_once() -> None:
    def plus_one(x: Any) -> Any:
        return x + 1

    function, heard = njit(plus_one), list[Any]()
    with listening(lambda *said: heard.append(said)):
        assert [function(1), function(2)] == [2, 3]
    assert heard == [("compiling plus_one, once on this computer", None)]
