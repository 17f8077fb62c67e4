"""Progress: a component that works for long without evaluating says how far it is; the run shows it on a terminal."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

Listener = Callable[[str, float | None], None]

_listeners: list[Listener] = []


def report_progress(text: str, share: float | None = None) -> None:
    """Say what is going on, in a few words, and the share of it that is done, in [0, 1]; None if that is not known.

    For importers, groupers, policies, trainers and backends, in steps that take longer than about two seconds. It may be called
    often and from any thread, changes no result, and does nothing if nobody listens.
    """
    if _listeners:
        _listeners[-1](text, share)


@contextlib.contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Within the block, `listener` gets what is reported; of several blocks, the one that began last."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)
