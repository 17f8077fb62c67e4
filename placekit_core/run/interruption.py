"""Ctrl-C, SIGTERM (from schedulers) and SIGHUP (a closed terminal), deferred to a point from which a run can continue exactly."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from types import FrameType
from typing import Any

_TERMINALS = [fd for fd in (1, 2) if os.isatty(fd)]


def end_signals() -> list[int]:
    """The signals that ask a process to end. SIGHUP is not among them if it is ignored, as by `nohup`, or does not exist."""
    hangup = getattr(signal, "SIGHUP", None)
    if hangup is None or signal.getsignal(hangup) == signal.SIG_IGN:
        return [signal.SIGINT, signal.SIGTERM]
    return [signal.SIGINT, signal.SIGTERM, hangup]


def tell(text: str) -> None:
    """Write a line to stderr, also from a signal handler.

    If the terminal was closed since this process began, discard all further output to it: a failed write must not end a run
    whose results are still to be written.
    """
    for gone in [fd for fd in _TERMINALS if not os.isatty(fd)]:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, gone)
        os.close(nowhere)
        _TERMINALS.remove(gone)
    with suppress(OSError):
        os.write(2, f"{text}\n".encode())


class Interruption:
    """Inside its block, the first signal is only noted (`asked`); the second one raises KeyboardInterrupt at once.

    While the results are being written (`writing`), the second signal is only noted, too; a third one raises.

    Attributes:
        asked: whether a signal has come.
        deferred: whether the running policy or trainer calls `checkpoint`, so that the run can stop there.
        writing: whether nothing is left but to write the results.
    """

    def __init__(self) -> None:
        self.asked = self.deferred = self.writing = self._asked_twice = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():
            self._before = {s: signal.signal(s, self._ask) for s in end_signals()}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self._asked_twice or (self.asked and not self.writing):
            raise KeyboardInterrupt
        self.asked, self._asked_twice = True, self.asked
        if self.writing:
            tell(f"placekit: writing what was found{'; once more loses it' if self._asked_twice else ''}")
        else:
            tell("placekit: stopping at the next point that can be resumed; once more stops at once")
