"""Ctrl-C, SIGTERM (from schedulers) and SIGHUP (a closed terminal), deferred to a point from which a run can continue exactly."""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType
from typing import Any


def ending() -> list[int]:
    """The signals that ask a process to end. SIGHUP is not among them if it is ignored, as by `nohup`, or does not exist."""
    hangup = getattr(signal, "SIGHUP", None)
    if hangup is None or signal.getsignal(hangup) == signal.SIG_IGN:
        return [signal.SIGINT, signal.SIGTERM]
    return [signal.SIGINT, signal.SIGTERM, hangup]


def tell(text: str) -> None:
    """Print to stderr. If the terminal is gone, this and all later output goes nowhere, and does not end the run."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (sys.stdout, sys.stderr):
            os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


class Interruption:
    """Inside its block, the first signal is only noted (`asked`); the second one raises KeyboardInterrupt at once.

    Once the results are being written (`writing`), one signal is noted whether another came before or not; the next one
    ends that, too.

    Attributes:
        asked: whether a signal has come.
        deferred: whether the running policy or trainer calls `checkpoint`, so that the run can stop there.
        writing: whether nothing is left but to write the results.
    """

    def __init__(self) -> None:
        self.asked = self.deferred = self.writing = self._insisted = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():
            self._before = {s: signal.signal(s, self._ask) for s in ending()}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self._insisted or (self.asked and not self.writing):
            raise KeyboardInterrupt
        self.asked, self._insisted = True, self.writing
        if self.writing:
            tell("placekit: writing what was found; once more loses it")
        else:
            tell("placekit: stopping at the next point that can be resumed; once more stops at once")
