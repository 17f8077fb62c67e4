"""Finds the importer of a file, or of an option in its short form (`ImporterComponent.shorthand`)."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

from placekit_core.contracts.errors import ConfigError, GraphError
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
    """The importer whose first shorthand, such as `model`, is one of `keys`; None without one. Raises ConfigError for several."""
    found = [(k, c) for k, owners in shorthands(registry).items() if k in keys for c in owners if c.shorthand[0] == k]
    if len(found) > 1:
        named = " and ".join(f"{key} is importer {component.name}'s" for key, component in found)
        raise ConfigError(f"more than one option says what to place: {named}", "give only one of them")
    return found[0][1] if found else None


def names_file(value: str, registry: Registry) -> bool:
    """Whether the value of a shorthand is a file that an importer reads (`model=net.onnx`) and not a name (`hf:x.json`)."""
    return not re.match(r"\w\w+:", value) and bool(readers_of(value, registry))


def importer_of(path: str | Path, registry: Registry) -> str:
    """Name of the importer that reads a file.

    If importers read this ending: the one whose `detect` accepts the first bytes, or else the only one without `detect`. If
    none does: the only importer whose `detect` accepts the first bytes. Raises GraphError otherwise.
    """
    importers = {c.name: c for c in registry.importers() if c.files}
    named = readers_of(path, registry)
    undetected = [n for n in named if importers[n].detect is None]
    if named == undetected and len(named) == 1:
        return named[0]
    try:
        if Path(path).is_fifo():  # opening one waits for a writer
            raise OSError("it is a pipe")
        with Path(path).open("rb") as file:
            head = file.read(HEAD_BYTES)
    except (OSError, ValueError) as e:  # ValueError: a name that no file can have
        known = "" if named else known_files(registry)
        raise GraphError(f"cannot read {path}: {getattr(e, 'strerror', None) or e}", known) from None
    claims = [n for n, c in importers.items() if c.detect is not None and c.detect(head)]
    fitting = ([n for n in claims if n in named] or undetected) if named else claims
    if len(fitting) == 1:
        return fitting[0]
    files = "; ".join(f"{n} reads {' '.join(c.files)}" for n, c in importers.items())
    hint = f"importers: {files}; to choose one: importer=NAME importer.path={path}" if files else NO_IMPORTER
    if not head:
        raise GraphError(f"{path} is empty", hint)
    if fitting:
        raise GraphError(f"{path} can be a file of importer {' or '.join(fitting)}", hint)
    others = f": its content is not that of importer {' or '.join(named)}" if named else ""
    others += f", but of {' or '.join(claims)}" if claims else ""
    raise GraphError(f"{path} fits no importer{others}", hint)
