"""Runs compiled episodes on several threads. Results do not depend on the number of threads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from placekit_core import usable_cores

CHUNKS = 8
"""Gradients are summed in this many chunks, in a fixed order, so the result does not depend on the number of threads."""


class Threads:
    """A pool of `wanted` threads, or one per core if `wanted` is 0; at most `CHUNKS`."""

    def __init__(self, wanted: int, name: str) -> None:
        self.count = min(wanted or usable_cores(), CHUNKS)
        self._pool = ThreadPoolExecutor(self.count, name)

    def spread(self, n: int, work: Callable[[int, int, int], None]) -> None:
        """Split 0..n into one part for each thread, and run `work(thread, first, last)` for each."""
        threads = min(self.count, n)
        if threads <= 1:
            work(0, 0, n)
            return
        bounds = np.linspace(0, n, threads + 1).astype(int).tolist()
        others = self._pool.map(work, range(1, threads), bounds[1:-1], bounds[2:])
        try:
            work(0, 0, bounds[1])
        finally:
            list(others)  # wait for the other threads, which write to shared arrays
