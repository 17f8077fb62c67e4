"""Random numbers in compiled loops: SplitMix64 (Steele, Lea and Flood 2014), whose state is one word of the checkpoint."""
# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

from typing import Any

import numpy as np
from placekit_scheduling.jit import njit


@njit(cache=True, nogil=True)
def _next(state: Any) -> Any:
    """The next random word."""
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    z = state[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@njit(cache=True, nogil=True)
def uniform(state: Any) -> Any:
    """A float in [0, 1)."""
    return (_next(state) >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@njit(cache=True, nogil=True)
def below(state: Any, n: Any) -> Any:
    """An integer in 0..n-1."""
    return np.int64(uniform(state) * n)
