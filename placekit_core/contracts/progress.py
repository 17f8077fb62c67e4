"""Progress of long work: components report it, and the run shows it on a terminal."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

Listener = Callable[[str, float | None], None]
Speaker = Callable[[str], None]

_listeners: list[Listener] = []
_speakers: list[tuple[Speaker, set[str]]] = []  # with the texts already shown


def report_progress(text: str, share: float | None = None) -> None:
    """Report what is going on, in a few words, and the share that is done, in [0, 1]; None if unknown.

    For importers, groupers, policies, trainers and backends, in steps that take longer than about two seconds. It may be called
    often and from any thread, changes no result, and does nothing if nobody listens.
    """
    if _listeners:
        _listeners[-1](text, share)


def announce(text: str) -> None:
    """Explain why a run takes longer than others, in a line that stays. A text is shown once in a run."""
    if _speakers and text not in _speakers[-1][1]:
        _speakers[-1][1].add(text)
        _speakers[-1][0](text)


@contextlib.contextmanager
def listening(listener: Listener, speaker: Speaker | None = None) -> Iterator[None]:
    """Within the block, `listener` gets what is reported, `speaker` what is announced; of several blocks, the last one."""
    spoken = (speaker or (lambda text: None), set[str]())
    _listeners.append(listener)
    _speakers.append(spoken)
    try:
        yield
    finally:
        _listeners.remove(listener)
        _speakers[:] = [other for other in _speakers if other is not spoken]
