"""Errors that a user sees: one line that names the thing, one that says what exists and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class PlacekitError(Exception):
    """Base of every error that placekit raises on purpose; the command line shows it without a traceback.

    `message` names the thing that is wrong; `hint`, if given, says what exists and what to do.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        self.message, self.hint = message, hint
        super().__init__(f"{message}\n  {hint}" if hint else message)

    def __reduce__(self) -> tuple[type, tuple[str, str]]:  # crosses process boundaries with both parts
        return type(self), (self.message, self.hint)


class ConfigError(PlacekitError):
    """An option is unknown or has a wrong value."""


class PluginError(PlacekitError):
    """A plugin is unknown, broken, or collides with another one."""


class GraphError(PlacekitError):
    """A graph is not valid, or a graph file cannot be read."""


class ClusterError(PlacekitError):
    """A cluster is not valid, or too small for the program."""


class PlacementError(PlacekitError):
    """A placement does not fit its problem: wrong size, device, co-location, or fingerprint."""


class ImporterError(PlacekitError):
    """A program cannot be imported."""


class BackendError(PlacekitError):
    """A backend cannot evaluate this problem."""


class NotApplicable(PlacekitError):
    """A component says nothing about this program or machine: it is made for others, and nothing is broken."""


class RunError(PlacekitError):
    """A run directory cannot be written, read, or continued; or a run found nothing that fits."""


class BusyError(RunError):
    """Another run is writing in the run directory."""


class BudgetExhausted(Exception):
    """Control flow, not a failure: the budget of an Evaluator is used up, and what it saw is recorded.

    A policy or trainer need not catch it; the pipeline does, and takes the best placement seen. `args[0]` is the
    evaluator, for those who go on with another one.
    """

    def __str__(self) -> str:
        return " ".join(f"the budget is used up: {e.evaluations} evaluations" for e in self.args[:1])


def unknown(what: str, name: str, known: Iterable[str], error: type[PlacekitError] = PluginError) -> PlacekitError:
    """The error for a name that does not exist: says what does, the closest first."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, 1)
    guess = f"did you mean {close[0]!r}? " if close else ""
    return error(f"no {what} named {name!r}", f"{guess}available: {', '.join(names) or 'nothing'}")
