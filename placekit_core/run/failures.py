"""Exceptions that end a run and hold what it found until then; and work whose failure must not cost the result."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from placekit_core.contracts.errors import PlacekitError, RunError
from placekit_core.run.entries import reason as reason

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
        who: the component that worked, such as `policy 'etf'`; empty if unknown.
        kept: the run directory if `result` is written there.
    """

    def __init__(self, cause: BaseException, result: Result, who: str = "", kept: Path | None = None) -> None:
        self.result, self.who, self.kept = result, who, kept
        if isinstance(cause, PlacekitError):
            super().__init__(cause.message, cause.hint)
        else:
            super().__init__(f"{type(cause).__name__}: {cause}")


class _WithResult(RunError):
    def __init__(self, message: str, hint: str, result: Result) -> None:
        self.result = result
        super().__init__(message, hint)


class BoundError(_WithResult):
    """A value is below its proven bound, so one of the two is wrong; `result` has both."""


class NothingFits(_WithResult):
    """The run found no placement that fits, or could not measure any; `result` has what was tried."""


class optional(contextlib.AbstractContextManager[None]):
    """Run work that a complete result does not need, such as a logger: if it fails, `tell` gets `text` and the reason.

    Catches every exception but Ctrl-C, because plugins may raise anything.
    """

    def __init__(self, tell: Callable[[str], None], text: str) -> None:
        self.tell, self.text = tell, text

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> bool:
        if error is None or isinstance(error, KeyboardInterrupt):
            return False
        self.tell(f"{self.text}: {reason(error)}")
        return True


def warn(text: str) -> None:
    """Warn of a failure that must not cost the result: never raise, even if warnings are errors."""
    with contextlib.suppress(Warning):
        warnings.warn(text, stacklevel=3)
