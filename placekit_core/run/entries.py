"""The records of a registry: components, commands, broken plugins, packages, and choices of a configuration."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sysconfig
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from placekit_core.contracts.errors import ConfigError, PlacekitError, PluginError, explain
from placekit_core.contracts.hookspecs import Command, Component


@dataclass(frozen=True)
class Entry:
    """One component and where it comes from."""

    kind: str
    component: Component
    plugin: str
    distribution: str
    version: str

    def load(self) -> type[Any]:
        """The component's class. Raises PluginError, chained to the cause, if its module cannot be imported."""
        what = f"{self.kind} {self.component.name!r}"
        found: type[Any] = _imported(self.component.target, what, self.distribution, self.version)
        return found

    def options(self, values: Mapping[str, Any], prefix: str = "") -> BaseModel:
        """The component's options, checked. Raises ConfigError, with `prefix` before the names of options."""
        try:
            return self.component.config.model_validate(dict(values))
        except ValidationError as e:
            raise ConfigError(*explain(e, self.component.config, prefix)) from None

    def build(self, options: BaseModel) -> Any:
        """The component, built from its options. Raises PluginError if its class is abstract or takes no options."""
        cls = self.load()
        try:
            return cls(options)
        except TypeError as e:
            raise PluginError(
                f"{self.kind} {self.component.name!r} of {self.distribution} {self.version} cannot be built: {e}",
                f"{self.component.target} must implement placekit_core.{self.kind.capitalize()}",
            ) from e


@dataclass(frozen=True)
class CommandEntry:
    """One command and where it comes from."""

    command: Command
    distribution: str
    version: str

    def load(self, target: str) -> Any:
        """The function at `target`, one of the command's. Raises PluginError, chained to the cause."""
        return _imported(target, f"command {self.command.name!r}", self.distribution, self.version)

    def run(self, arguments: list[str], registry: Any) -> int:
        """Run the command; returns its exit code. Raises PluginError if it returns something else."""
        code = self.load(self.command.target)(arguments, registry)
        if not isinstance(code, int):
            owner = f"command {self.command.name!r} of {self.distribution} {self.version}"
            said = f"{owner} returned {type(code).__name__}, not an exit code"
            raise PluginError(said, f"end {self.command.target} with `return 0`")
        return int(code)


def _imported(target: str, what: str, distribution: str, version: str) -> Any:
    """The object at `target`, `module:attribute`. Raises PluginError, chained to the cause."""
    module, _, attribute = target.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except Exception as e:
        raise PluginError(
            f"{what} of {distribution} {version} is broken: {type(e).__name__}: {e}",
            f"it is at {target}; {remedy(e, module, distribution)}",
        ) from e


@dataclass(frozen=True)
class Broken:
    """A plugin that was set aside."""

    plugin: str
    distribution: str
    version: str
    cause: BaseException
    module: str = ""  # its top-level package

    @property
    def reason(self) -> str:
        """Why the plugin was set aside, in one line."""
        if isinstance(self.cause, PlacekitError):
            return self.cause.message
        place = where(self.cause, [Package(self.plugin, self.module, self.distribution, self.version)])
        said = self.cause.msg if isinstance(self.cause, SyntaxError) else str(self.cause)  # without its own place
        return f"{type(self.cause).__name__}: {' '.join(said.split())}" + (f" ({place})" if place else "")

    @property
    def hint(self) -> str:
        """What to do about it."""
        return getattr(self.cause, "hint", "") or remedy(self.cause, self.module, self.distribution)

    def answers(self, name: str) -> bool:
        """Whether `name` is probably one of its components; a guess, because they are not known."""
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
        """Its folders, or the file of a single module; found without importing it, and none if there is no such module."""
        try:
            spec = importlib.util.find_spec(self.module) if self.module else None
        except ValueError:  # a module made by hand, not imported
            spec = None
        folders = [Path(f) for f in (spec.submodule_search_locations or ())] if spec else []
        return folders or ([Path(spec.origin)] if spec and spec.origin else [])

    @cached_property
    def code(self) -> str:
        """Hash of its Python sources, kept in results: an edited package keeps its version, but not its hash."""
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
    """The choice that `GROUP=NAME` makes: a component, or a preset in a `conf` folder."""

    group: str
    name: str
    distribution: str
    version: str
    path: Path | None = None  # for a preset

    @property
    def owner(self) -> str:
        """The origin of the choice: distribution and version, and for a preset its file."""
        file = "" if self.path is None else f" (conf/{'/'.join(filter(None, (self.group, self.name)))}.yaml)"
        return f"{self.distribution} {self.version}{file}"


def where(error: BaseException, packages: Iterable[Package]) -> str:
    """`FILE, line N` where `error` was raised outside the core, or of a syntax error; empty if there is no such place.

    Of Python's own library and what is installed beside it, only the plugins' `packages` count.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}"
    core = Path(__file__).resolve().parent.parent
    library = [sysconfig.get_paths()[k] for k in ("stdlib", "purelib")]
    plugins = [location for package in packages for location in package.locations]
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith("<")]
    own = [
        f for f in frames
        if _below(f.filename, plugins) or not _below(f.filename, [core, *library])
    ]  # fmt: skip
    return f"{own[-1].filename}, line {own[-1].lineno}" if own else ""


def remedy(error: BaseException, module: str, distribution: str) -> str:
    """What to do about a plugin, or its `module`, that fails at import: correct the user's own file, or install it again."""
    package = Package("", module.partition(".")[0], distribution, "")
    sites = [sysconfig.get_paths()[k] for k in ("purelib", "platlib")]
    own = [
        place for place in package.locations if not _below(str(place), sites)
    ]  # a local file, or installed with `pip -e`
    if not own:
        return f"reinstall or remove {distribution}"
    place = where(error, [package]) or str(own[0])
    missing = isinstance(error, ImportError) and (error.name or "").partition(".")[0] != package.module
    return f"install what it needs, or correct {place}" if missing else f"correct {place}"


def _below(file: str, folders: Iterable[Path | str]) -> bool:
    return any(Path(file).is_relative_to(folder) for folder in folders)
