"""Progress of long work: components report it, and the command line shows it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

Listener = Callable[[str, float | None], None]
Announcer = Callable[[str], None]

_listeners: list[Listener] = []
_announcers: list[tuple[Announcer, set[str]]] = []  # each with the texts that it has already shown


def report_progress(text: str, share: float | None = None) -> None:
    """Report what is being done, in a few words, and the share that is done, in [0, 1]; None if unknown.

    For importers, groupers, policies, trainers and backends, in steps that take longer than about two seconds. It may be called
    often and from any thread, changes no result, and does nothing if nobody listens.
    """
    if _listeners:
        _listeners[-1](text, share)


def announce(text: str) -> None:
    """Explain why a run takes longer than others, in a line that stays. A text is shown once in a run."""
    if _announcers and text not in _announcers[-1][1]:
        _announcers[-1][1].add(text)
        _announcers[-1][0](text)


@contextlib.contextmanager
def listening(listener: Listener, announcer: Announcer | None = None) -> Iterator[None]:
    """Within the block, pass reports to `listener` and announcements to `announcer`; the innermost block gets them."""
    entry = (announcer or (lambda text: None), set[str]())
    _listeners.append(listener)
    _announcers.append(entry)
    try:
        yield
    finally:
        _listeners.remove(listener)
        _announcers[:] = [other for other in _announcers if other is not entry]
