"""Ctrl-C and SIGTERM (from schedulers), deferred to the next point from which a run can continue exactly."""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType
from typing import Any


class Interruption:
    """Inside its block, the first signal is only noted (`asked`); the second one raises KeyboardInterrupt at once.

    Attributes:
        asked: whether a signal has come.
        deferred: whether the running policy or trainer calls `checkpoint`, so that the run can stop there.
    """

    def __init__(self) -> None:
        self.asked = self.deferred = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():
            self._before = {s: signal.signal(s, self._ask) for s in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        print("placekit: stopping at the next point that can be resumed; once more stops at once", file=sys.stderr)
