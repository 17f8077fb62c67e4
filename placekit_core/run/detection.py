"""Finds the importer that reads a file, by the ending of its name and its first bytes."""

from __future__ import annotations

from pathlib import Path

from placekit_core.contracts.errors import GraphError
from placekit_core.contracts.files import read_head
from placekit_core.run.registry import Registry

HEAD_BYTES = 4096
"""Number of bytes of a file that `Component.detect` sees."""


def endings(registry: Registry) -> list[str]:
    """The endings of the files that importers read."""
    return sorted({ending for e in registry.all() for ending in e.component.files})


def readers_of(path: str | Path, registry: Registry) -> list[str]:
    """Names of the importers that read files with this ending."""
    return [e.component.name for e in registry.all() if str(path).endswith(e.component.files or ("\0",))]


def importer_of(path: str | Path, registry: Registry) -> str:
    """Name of the importer that reads a file.

    Among the importers for its ending, this is the one with a `detect` that says yes, or the only one without `detect`.
    If there is none for its ending, it is the only one with a `detect` that says yes. Raises GraphError otherwise.
    """
    detects = {e.component.name: e.component.detect for e in registry.all() if e.component.files}
    named = readers_of(path, registry)
    undetected = [n for n in named if detects[n] is None]
    if named == undetected and len(named) == 1:
        return named[0]
    try:
        head = read_head(Path(path), HEAD_BYTES)
    except (OSError, ValueError) as e:  # ValueError: a name that no file can have
        known = "" if named else f"files that importers know end in {', '.join(endings(registry))}"
        raise GraphError(f"cannot read {path}: {getattr(e, 'strerror', None) or e}", known) from None
    claims = [n for n, detect in detects.items() if detect is not None and detect(head)]
    fitting = ([n for n in claims if n in named] or undetected) if named else claims
    if len(fitting) == 1:
        return fitting[0]
    looks, says = (" or ".join(names) or "no importer" for names in (claims, named))
    raise GraphError(
        f"{path} is named like a file of {says}, and begins like one of {looks}",
        f"say which: importer=NAME importer.path={path}; importers of files: {', '.join(detects)}",
    )
