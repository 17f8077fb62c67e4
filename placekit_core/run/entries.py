"""The records of a registry: components, commands, broken plugins, packages of plugins, and choices of a configuration."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from placekit_core.contracts.errors import ConfigError, PlacekitError, PluginError, explain
from placekit_core.contracts.hookspecs import Command, Component
from placekit_core.run.terminal import unfiltered


@dataclass(frozen=True)
class Entry:
    """One component and where it comes from."""

    kind: str
    component: Component
    plugin: str
    distribution: str
    version: str

    def load(self) -> type[Any]:
        """Import the component's class. Raises PluginError, chained to the cause."""
        what = f"{self.kind} {self.component.name!r}"
        found: type[Any] = _imported(self.component.target, what, self.distribution, self.version)
        return found

    def options(self, values: Mapping[str, Any], prefix: str = "") -> BaseModel:
        """Check the values of the component's options. Raises ConfigError; `prefix` comes before each option's name."""
        try:
            return self.component.config.model_validate(dict(values))
        except ValidationError as e:
            message, hint = explain(e, self.component.config, prefix)
            raise ConfigError(message, hint.replace("options: ", f"options of {self.component.name}: ")) from None

    def build(self, options: BaseModel) -> Any:
        """Build the component. Raises PluginError if its class is abstract or takes no options."""
        cls = self.load()
        try:
            return cls(options)
        except TypeError as e:
            raise PluginError(
                f"{self.kind} {self.component.name!r} of {self.distribution} {self.version} cannot be built: {e}",
                f"{self.component.target} must implement placekit_core.{self.kind.capitalize()}, and take its options as one"
                " argument, `options`: a model of the class that the component names as `config`",
            ) from e


@dataclass(frozen=True)
class CommandEntry:
    """One command and where it comes from."""

    command: Command
    distribution: str
    version: str

    def load(self) -> Any:
        """Import the command's function. Raises PluginError, chained to the cause."""
        return _imported(self.command.target, f"command {self.command.name!r}", self.distribution, self.version)

    def run(self, arguments: list[str], registry: Any) -> int:
        """Run the command and return its exit code."""
        code: int = self.load()(arguments, registry)
        return code


def _imported(target: str, what: str, distribution: str, version: str) -> Any:
    """Import `module:attribute`. Raises PluginError, chained to the cause."""
    module, _, attribute = target.partition(":")
    try:
        with plugin_output():
            return getattr(importlib.import_module(module), attribute)
    except KeyboardInterrupt:
        raise
    except BaseException as e:
        raise PluginError(
            f"{what} of {distribution} {version} is broken: {reason(e)}",
            f"it is at {target}; correct {where(e, ()) or 'it'}, or reinstall {distribution}",
        ) from e


@contextlib.contextmanager
def plugin_output() -> Iterator[None]:
    """Within the block, output of plugins and programs goes to standard error, unchanged: standard output is for results."""
    with contextlib.redirect_stdout(error := unfiltered(sys.stderr)), contextlib.redirect_stderr(error):
        yield


def reason(cause: BaseException) -> str:
    """The type and the message of an exception, in one line."""
    if isinstance(cause, PlacekitError):
        return cause.message
    return ": ".join(filter(None, [type(cause).__name__, " ".join(str(cause).split())]))


@dataclass(frozen=True)
class Broken:
    """A plugin that cannot be used."""

    plugin: str
    distribution: str
    version: str
    cause: BaseException
    module: str = ""  # its top-level package

    @property
    def reason(self) -> str:
        """Why the plugin cannot be used, in one line."""
        place = "" if isinstance(self.cause, PlacekitError) else where(self.cause, ())
        return reason(self.cause) + (f" ({place})" if place else "")

    @property
    def hint(self) -> str:
        """How the user can correct it."""
        return getattr(self.cause, "hint", "") or f"correct it, or reinstall or remove {self.distribution}"

    def may_have(self, name: str) -> bool:
        """Guess whether `name` is one of its components; a broken plugin cannot list them."""
        names = {self.plugin, self.distribution.removeprefix("placekit-")}
        return name.replace("_", "-") in {n.replace("_", "-") for n in names}


@dataclass(frozen=True)
class Package:
    """The top-level package of a plugin."""

    plugin: str
    module: str
    distribution: str
    version: str

    @property
    def locations(self) -> list[Path]:
        """Its folders, or the file of a single module. Finds them without importing the package."""
        try:
            spec = importlib.util.find_spec(self.module) if self.module else None
        except ValueError:  # a module that a test built by hand
            spec = None
        folders = [Path(f) for f in (spec.submodule_search_locations or ())] if spec else []
        return folders or ([Path(spec.origin)] if spec and spec.origin else [])

    @cached_property
    def code(self) -> str:
        """Hash of its Python files. Results hold it, because an edited package keeps its version."""
        files: dict[str, Path] = {}
        for place in self.locations:
            if place.is_dir():
                own = (p for p in place.rglob("*.py") if not p.name.startswith(".") and p.is_file())
                files |= {p.relative_to(place).as_posix(): p for p in own}
            elif place.is_file():
                files[self.module] = place
        digest = hashlib.sha256()
        for name in sorted(files):
            digest.update(f"{name} {hashlib.sha256(files[name].read_bytes()).hexdigest()}\n".encode())
        return digest.hexdigest()[:16] if files else ""


@dataclass(frozen=True)
class Choice:
    """A choice `GROUP=NAME`: a component, or a preset in a `conf` folder."""

    group: str
    name: str
    distribution: str
    version: str
    path: Path | None = None  # of a preset

    @property
    def owner(self) -> str:
        """Distribution and version, and the file of a preset."""
        file = "" if self.path is None else f" (conf/{'/'.join(filter(None, (self.group, self.name)))}.yaml)"
        return f"{self.distribution} {self.version}{file}"


def where(error: BaseException, packages: Iterable[Package]) -> str:
    """`FILE, line N` where code outside the core raised `error`; empty if only the core and libraries were involved.

    A plugin installed beside the libraries counts if it is one of `packages`.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}"
    core = Path(__file__).resolve().parent.parent
    library = [core, *(Path(sysconfig.get_paths()[k]) for k in ("stdlib", "purelib"))]
    plugins = [location for package in packages for location in package.locations]
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        below = any(map(path.is_relative_to, plugins)) or not any(map(path.is_relative_to, library))
        if below and not frame.filename.startswith("<"):
            return f"{frame.filename}, line {frame.lineno}"
    return ""
