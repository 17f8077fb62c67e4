"""Finds the importer that reads a file, by the ending of its name and its first bytes; or that takes an option's short form."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

from placekit_core.contracts.errors import ConfigError, GraphError
from placekit_core.contracts.files import read_head
from placekit_core.contracts.hookspecs import ImporterComponent
from placekit_core.run.registry import NO_IMPORTER, Registry

HEAD_BYTES = 4096
"""Number of bytes of a file that `ImporterComponent.detect` sees."""


def endings(registry: Registry) -> list[str]:
    """The endings of the files that importers read."""
    return sorted({ending for c in registry.importers() for ending in c.files})


def known_files(registry: Registry) -> str:
    """A hint: how the files that importers read end, or that there is no importer."""
    return f"files of programs end in {', '.join(endings(registry))}" if endings(registry) else NO_IMPORTER


def readers_of(path: str | Path, registry: Registry) -> list[str]:
    """Names of the importers that read files with this ending."""
    return [c.name for c in registry.importers() if str(path).endswith(c.files or ("\0",))]


def shorthands(registry: Registry) -> dict[str, list[ImporterComponent]]:
    """The importers that take each option without `importer.` (`ImporterComponent.shorthand`), by the option."""
    found: dict[str, list[ImporterComponent]] = {}
    for component in registry.importers():
        for key in component.shorthand:
            found.setdefault(key, []).append(component)
    return found


def chosen_by(keys: Collection[str], registry: Registry) -> ImporterComponent | None:
    """The importer that one of these options chooses, by being its first in short; None if none does. Raises ConfigError."""
    found = [(k, c) for k, owners in shorthands(registry).items() if k in keys for c in owners if c.shorthand[0] == k]
    if len(found) > 1:
        named = " and ".join(f"{key} is importer {component.name}'s" for key, component in found)
        raise ConfigError(f"more than one option says what is placed: {named}", "give one of them")
    return found[0][1] if found else None


def names_file(value: str, registry: Registry) -> bool:
    """Whether an option that chooses an importer has a file of another importer as its value; `hf:x.json` is none."""
    return not re.match(r"\w\w+:", value) and bool(readers_of(value, registry))


def importer_of(path: str | Path, registry: Registry) -> str:
    """Name of the importer that reads a file.

    Among the importers for its ending, this is the one with a `detect` that says yes, or the only one without `detect`.
    If there is none for its ending, it is the only one with a `detect` that says yes. Raises GraphError otherwise.
    """
    detects = {c.name: c.detect for c in registry.importers() if c.files}
    named = readers_of(path, registry)
    undetected = [n for n in named if detects[n] is None]
    if named == undetected and len(named) == 1:
        return named[0]
    try:
        head = read_head(Path(path), HEAD_BYTES)
    except (OSError, ValueError) as e:  # ValueError: a name that no file can have
        known = "" if named else known_files(registry)
        raise GraphError(f"cannot read {path}: {getattr(e, 'strerror', None) or e}", known) from None
    claims = [n for n, detect in detects.items() if detect is not None and detect(head)]
    fitting = ([n for n in claims if n in named] or undetected) if named else claims
    if len(fitting) == 1:
        return fitting[0]
    files = "; ".join(f"{c.name} reads {' '.join(c.files)}" for c in registry.importers() if c.files)
    hint = f"importers: {files}; to choose one: importer=NAME importer.path={path}" if files else NO_IMPORTER
    code = [c.name for c in registry.importers() if "module" in c.config.model_fields]
    if code and str(path).endswith(".py"):
        hint = f"a model in Python: importer={code[0]} importer.module={Path(path).stem}:FUNCTION"
    if fitting:
        named, claims = [], fitting
    raise GraphError(_mismatch(str(path), head, named, claims, registry), hint)


def _mismatch(path: str, head: bytes, named: list[str], claims: list[str], registry: Registry) -> str:
    """Why no importer, or more than one, reads a file: `named` have its ending only, `claims` know its content.

    Where several importers have both, they are the `claims`, and `named` is empty.
    """
    if not head:
        return f"{path} is empty"
    looks = " or ".join(claims)
    if not named:
        return (
            f"{path} can be a file of importer {looks}" if claims else f"{path} is not a graph that an importer knows"
        )
    ending = max((ending for ending in endings(registry) if path.endswith(ending)), key=len)
    instead = f": it is that of importer {looks}" if claims else ""
    return (
        f"{path} is not a graph that an importer knows: it ends in {ending}, but its content is not that of importer"
        f" {' or '.join(named)}{instead}"
    )
