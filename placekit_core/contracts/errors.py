"""Errors that a user sees: one line names what is wrong, a second says what exists and what to do."""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterable, Mapping
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError


class PlacekitError(Exception):
    """Base of every error that placekit raises on purpose; the command line shows it without a traceback.

    `message` names the thing that is wrong; `hint`, if given, says what exists and what to do.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        self.message, self.hint = message, hint
        super().__init__(f"{message}\n  {hint}" if hint else message)

    def __reduce__(self) -> tuple[Any, ...]:  # so that it crosses process boundaries with all its attributes
        return type(self).__new__, (type(self), *self.args), vars(self)


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
    """A component is made for other programs or machines than this one; nothing is broken."""


class RunError(PlacekitError):
    """A run directory cannot be written, read, or continued; or a run found nothing that fits."""


class BusyError(RunError):
    """Another run is writing in the run directory."""


class BudgetExhausted(Exception):
    """Control flow, not a failure: the budget of an Evaluator is used up. All evaluations until then are recorded.

    A policy or trainer need not catch it: the pipeline does, and takes the best placement seen. `args[0]` is the
    evaluator, for callers that go on with another one.
    """

    def __str__(self) -> str:
        return " ".join(f"the budget is used up: {e.evaluations} evaluations" for e in self.args[:1])


def unknown(
    what: str, name: str, known: Iterable[str], error: type[PlacekitError] = PluginError, listing: str = ""
) -> PlacekitError:
    """The error for a name that does not exist; its hint lists the existing names (`listed`)."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, 1)
    guess = f"did you mean {close[0]!r}? " if close else ""
    there = f"available: {listed(names, name, listing)}" if names else f"no {what} is installed"
    return error(f"no {what} named {name!r}", guess + there)


def listed(names: Iterable[str], near: str = "", listing: str = "") -> str:
    """Names for a hint: all if they fit two lines, else the closest ones to `near`, and the number of others.

    `listing` is the command that prints all of them.
    """
    names = list(names)
    text = ", ".join(names) or "nothing"
    if len(text) <= _TWO_LINES:
        return text
    close = difflib.get_close_matches(near, names, _CLOSEST, cutoff=0.0) if near else names[:_CLOSEST]
    return f"{', '.join(close)}, and {len(names) - len(close):,} more" + f": `{listing}` lists them" * bool(listing)


def explain(error: ValidationError, model: type[BaseModel], prefix: str = "", noun: str = "option") -> tuple[str, str]:
    """Message and hint for pydantic's error: the name of each wrong option, its value, the closest name that exists."""
    count = error.error_count()
    lines, hints = [], []
    for x in error.errors(include_url=False)[:_SHOWN]:
        where, value = shortened((prefix + ".".join(map(str, x["loc"]))).rstrip(".")), _VALUES.repr(x["input"])
        if x["type"] == "extra_forbidden":
            known = list(_fields(model, x["loc"][:-1]))
            close = difflib.get_close_matches(str(x["loc"][-1]), known, 1)
            lines.append(f"no {noun} named {where!r}")
            inside = where.rpartition(".")[0] + "." if "." in where and noun == "option" else ""
            hints.append(
                f"did you mean {inside + close[0]!r}?" if close else f"{noun}s: {listed(known, str(x['loc'][-1]))}"
            )
        elif x["type"] == "model_type" and noun == "option" and where and _fields(model, x["loc"]):
            lines.append(f"{where} is a section of options, not a value (got {value})")
            hints.append("use " + ", ".join(f"{where}.{k}=..." for k in _fields(model, x["loc"])))
        else:
            text = x["msg"].removeprefix("Value error, ").partition(" or instance of ")[0]
            got = "" if isinstance(x["input"], Mapping) else f" (got {value})"  # a rule about several options
            lines.append(": ".join(filter(None, [where, f"{text[:1].lower()}{text[1:]}{got}"])))
    if count > _SHOWN:
        lines.append(f"and {count - _SHOWN:,} more")
    return "; ".join(lines), " ".join(dict.fromkeys(hints))


_SHOWN = 8
"""How many mistakes a message names."""
_LONG = 600  # characters
_TWO_LINES, _CLOSEST = 160, 8
_VALUES = reprlib.Repr()
_VALUES.maxstring = _VALUES.maxother = _VALUES.maxlong = 200


def shortened(text: str) -> str:
    """`text`, without its middle if it is long: a name or value in a file may have any length."""
    return text if len(text) <= _LONG else f"{text[: _LONG // 2]} ... {text[-_LONG // 2 :]}"


def _fields(model: type[BaseModel], path: tuple[int | str, ...]) -> Mapping[str, Any]:
    inner: Any = model
    for key in path:
        if _is_model(inner):
            inner = getattr(inner.model_fields.get(str(key)), "annotation", None)
        else:  # a list or dict of models, by index or key
            inner = next((a for a in get_args(inner) if _is_model(a)), None)
    return inner.model_fields if _is_model(inner) else {}


def _is_model(value: Any) -> bool:
    # in Python 3.10 `list[int]` is a type, too
    return isinstance(value, type) and get_origin(value) is None and issubclass(value, BaseModel)
