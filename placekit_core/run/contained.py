"""Code of plugins and programs that does not come back as it should: it leaves Python, or goes on after its budget."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from placekit_core.contracts.errors import PluginError
from placekit_core.contracts.ledger import Ledger
from placekit_core.contracts.units import seconds

LATE_S = 60.0
"""A component may go on after its budget of seconds for as long as the budget was, and for at least these seconds."""
_EVERY_S = 0.2


class Overdue(BaseException):
    """A component goes on although its budget has ended. Not an Exception, because the component may catch those."""


def left(error: SystemExit, who: str, where: str) -> PluginError:
    """The error of code that left Python; `who` is the component that worked, `where` the file and line, or empty."""
    said = f": {error.code}" if isinstance(error.code, str) else f" with exit code {error.code or 0}"
    at = f"at {where}; " if where else ""
    worked = f" while {who} worked" if who else ""
    return PluginError(
        f"a plugin or the program ended Python{said}{worked}", f"{at}raise an exception instead of sys.exit or os._exit"
    )


@contextlib.contextmanager
def staying() -> Iterator[None]:
    """In the block, `os._exit` in the main thread raises SystemExit, because it would lose all that was found.

    In other threads, and in child processes, it still ends the process at once.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    exit_at_once, process = os._exit, os.getpid()

    def stay(status: int) -> Any:
        if os.getpid() != process or threading.current_thread() is not threading.main_thread():
            exit_at_once(status)
        raise SystemExit(status)

    os._exit = stay
    try:
        yield
    finally:
        os._exit = exit_at_once


@contextlib.contextmanager
def on_time(ledger: Ledger, measuring: Callable[[], bool]) -> Iterator[None]:
    """Raise Overdue in the block, once, when it goes on long after its budget of seconds; not while it is `measuring`.

    Only Python code in the main thread can be stopped so, and not on Windows.
    """
    alarm = getattr(signal, "SIGALRM", None)
    if ledger.limit_s is None or alarm is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    limit_s, main, done = ledger.limit_s, threading.get_ident(), threading.Event()
    last_s = max(limit_s, ledger.seconds) + max(limit_s, LATE_S)  # trainer and policy may share the ledger

    def stop(number: int, frame: FrameType | None) -> None:
        if done.is_set() or ledger.seconds < last_s:  # somebody else's alarm: its timer is not ours
            if callable(before):
                before(number, frame)
        elif not measuring():
            done.set()
            raise Overdue(f"for {seconds(ledger.seconds - limit_s)} after its budget of {seconds(limit_s)}")

    def watch() -> None:
        while not done.wait(max(_EVERY_S, min(last_s - ledger.seconds, 60.0))):
            if ledger.seconds >= last_s:
                signal.pthread_kill(main, alarm)

    before = signal.signal(alarm, stop)
    watching = threading.Thread(target=watch, name="placekit-on-time", daemon=True)
    watching.start()
    try:
        yield
    finally:
        done.set()
        watching.join()
        signal.signal(alarm, signal.SIG_DFL if before is None else before)


def end_with_threads(code: int, tell: Callable[[str], None], patience_s: float = 10.0) -> None:
    """See to it that the process ends with `code` although threads that somebody started go on."""

    def end() -> None:
        waiting = [t.name for t in threading.enumerate() if t is not threading.main_thread() and not t.daemon]
        if waiting:
            tell(f"placekit: threads of a plugin or program go on ({', '.join(waiting[:5])}); ended without them")
            os._exit(code)

    late = threading.Timer(patience_s, end)
    late.daemon = True
    late.start()
