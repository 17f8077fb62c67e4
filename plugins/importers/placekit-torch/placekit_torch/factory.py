"""Where steps come from: a factory named in the options, or existing objects."""

from __future__ import annotations

import importlib
import importlib.machinery
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from placekit_core import ImporterError, unknown
from placekit_torch.error_lines import first_line, user_line
from placekit_torch.step import Step
from placekit_torch.tracing import explain, is_data_dependent
from placekit_torch.vision import declare_torchvision


class Builder(Protocol):
    """Builds a step: without weights for tracing (`fake_parameters`), with weights for execution."""

    def build(self) -> Step:
        """The step. Raises ImporterError, caused by the exception if the user's code failed."""
        ...


@dataclass(frozen=True)
class Given:
    """A step that exists already."""

    step: Step

    def build(self) -> Step:
        """The step itself."""
        return check_step(self.step, "this step")


@dataclass(frozen=True)
class Made:
    """A step that `factory` makes; the same seed gives the same step."""

    factory: Callable[[], Any]
    name: str
    path: Path | None = None

    def build(self) -> Step:
        """A new step."""
        with searched_first(self.path):
            try:
                made = self.factory()
            except ImporterError:
                raise
            except (Exception, SystemExit) as e:
                message, hint = explain(e, f"{self.name} failed")
                raise ImporterError(message, hint if is_data_dependent(e) else "") from e
        return check_step(made, self.name)


def check_step(made: Any, name: str) -> Step:
    """`made` as a Step; it may also be `(module, inputs)`. Raises ImporterError."""
    step = Step(*made) if isinstance(made, tuple) and len(made) == 2 else made
    if not isinstance(step, Step):
        raise ImporterError(
            f"{name} returned {type(made).__name__}, not a placekit_torch.Step",
            "return Step(module, inputs, loss, targets, optimizer), or (module, inputs)",
        )
    if not isinstance(step.module, torch.nn.Module):
        raise ImporterError(
            f"the module of {name} is a {type(step.module).__name__}, not a torch.nn.Module",
            "return Step(module, inputs, loss, targets, optimizer), or (module, inputs)",
        )
    for what in ("loss", "optimizer"):
        if getattr(step, what) is not None and not callable(getattr(step, what)):
            hint = (
                "give a function of the parameters, e.g. lambda p: torch.optim.Adam(p)" if what == "optimizer" else ""
            )
            raise ImporterError(f"the {what} of {name} is not callable: {type(getattr(step, what)).__name__}", hint)
    return step


def find_factory(target: str, path: Path | None) -> Callable[..., Any]:
    """The function at `package.module:attribute`. Raises ImporterError that names the missing part."""
    module_name, _, attribute = target.partition(":")
    if not module_name or not attribute:
        raise ImporterError(
            f"importer.module is {target!r}" if target else "importer.module is not set",
            "name a function that returns a placekit_torch.Step: importer.module=package.module:function",
        )
    folder = path or Path.cwd()
    with searched_first(path):
        try:
            _forget_other(module_name.partition(".")[0], folder)
            declare_torchvision()
            found: Any = importlib.import_module(module_name)
        except ModuleNotFoundError as e:
            if e.name is None or not f"{module_name}.".startswith(f"{e.name}."):
                raise ImporterError(
                    f"module {module_name!r} needs {e.name!r}, which is not installed{user_line(e)}",
                    "install it into this Python environment",
                ) from e
            without = target.replace(".py:", ":").replace("/", ".")
            guess = f"did you mean {without!r}? " if ".py:" in target else ""
            raise ImporterError(
                f"no module named {e.name!r} for importer.module={target!r}",
                f"{guess}placekit looked in {folder} and in the Python environment; importer.path=FOLDER adds another folder",
            ) from None
        except (Exception, SystemExit) as e:
            reason = f"{type(e).__name__}: {first_line(e)}"
            raise ImporterError(f"module {module_name!r} cannot be imported: {reason}{user_line(e)}") from e
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise unknown(f"attribute of {module_name!r}", part, _callables(found), ImporterError)
        found = getattr(found, part)
    if not callable(found):
        raise ImporterError(
            f"{target!r} is a {type(found).__name__}, not a function that returns a placekit_torch.Step",
            "name a function",
        )
    made: Callable[..., Any] = found
    return made


def _callables(module: Any) -> list[str]:
    return [k for k, v in vars(module).items() if callable(v) and not k.startswith("_")]


def _forget_other(name: str, folder: Path) -> None:
    """Unload a module of this name from another folder, because two files `model.py` are two modules."""
    spec = importlib.machinery.PathFinder.find_spec(name, [str(folder)])
    loaded = sys.modules.get(name)
    if spec is None or spec.origin is None or loaded is None or loaded.__spec__ is None:
        return
    if loaded.__spec__.origin != spec.origin:
        for key in [k for k in sys.modules if k == name or k.startswith(f"{name}.")]:
            del sys.modules[key]


@contextmanager
def searched_first(path: Path | None) -> Iterator[None]:
    """Look for modules first in `path` (None: the current folder)."""
    folder = str((path or Path.cwd()).resolve())
    sys.path.insert(0, folder)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        with suppress(ValueError):
            sys.path.remove(folder)


def folder_of(path: str | None) -> Path:
    """The folder of option `path`. Raises ImporterError if it is not a folder."""
    folder = Path(os.path.expanduser(path)) if path else Path.cwd()
    if not os.path.isdir(folder):
        raise ImporterError(f"importer.path={str(folder)!r} is not a folder", "name the folder of the module")
    return folder.resolve()
