"""Exceptions that end a run, and hold what the run found until then."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from placekit_core.contracts.errors import PlacekitError, RunError

if TYPE_CHECKING:
    from placekit_core.contracts.result import Result


class Interrupted(KeyboardInterrupt):
    """Ctrl-C ended the search early; everything found until then is written, and is in `result`."""

    def __init__(self, result: Result) -> None:
        self.result = result
        super().__init__("interrupted")


class RunFailed(PlacekitError):
    """A policy, trainer or backend raised the exception `__cause__`; `result` has the best so far.

    Attributes:
        who: the component that worked, such as `policy 'etf'`; empty if it is not known.
        kept: the run directory, once `result` is written there.
    """

    def __init__(self, cause: BaseException, result: Result, who: str = "", kept: Path | None = None) -> None:
        self.result, self.who, self.kept = result, who, kept
        if isinstance(cause, PlacekitError):
            super().__init__(cause.message, cause.hint)
        else:
            super().__init__(f"{type(cause).__name__}: {cause}")


class BoundError(RunError):
    """A value is below its proven bound, so one of the two is wrong; `result` has both."""

    def __init__(self, message: str, hint: str, result: Result) -> None:
        self.result = result
        super().__init__(message, hint)


class NothingFits(RunError):
    """No placement that fits was found, or none could be measured; `result` says what was tried."""

    def __init__(self, message: str, hint: str, result: Result) -> None:
        self.result = result
        super().__init__(message, hint)


@contextlib.contextmanager
def instead_of_others(error: RunError) -> Iterator[None]:
    """Raise `error` in place of any other that the block raises."""
    try:
        yield
    except Exception as e:
        if isinstance(e, RunError) and e.message == error.message:
            raise
        raise error from e
