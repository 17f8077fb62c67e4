"""`placekit doctor --licences`: the licence of everything that is installed for placekit."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_LONG = 60  # characters: some packages have the whole text of their licence in the field for its name


@dataclass(frozen=True)
class Licence:
    """A distribution, its version, and its licence as its metadata name it."""

    distribution: str
    version: str
    licence: str


def licences(distributions: Iterable[str]) -> list[Licence]:
    """The distributions, what they require, and so on, by name; of optional requirements those that are installed."""
    todo, found = [(d, frozenset[str]()) for d in distributions], dict[str, Licence]()
    seen = set[tuple[str, frozenset[str]]]()
    while todo:
        name, extras = todo.pop()
        if (name.lower(), extras) in seen:
            continue
        seen.add((name.lower(), extras))
        try:
            found_one = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        own = found_one.metadata["Name"]
        found[own.lower().replace("_", "-")] = Licence(own, found_one.version, _licence(found_one.metadata))
        todo += _requirements(found_one, extras, all_extras=own.startswith("placekit"))
    return [found[name] for name in sorted(found)]


def _requirements(
    distribution: importlib.metadata.Distribution, extras: frozenset[str], all_extras: bool
) -> Iterator[tuple[str, frozenset[str]]]:
    """What it requires, with the extras that it asks for."""
    from packaging.requirements import InvalidRequirement, Requirement

    offered = distribution.metadata.get_all("Provides-Extra") or [] if all_extras else []
    for text in distribution.requires or ():
        try:
            needed = Requirement(text)
        except InvalidRequirement:  # somebody else's; it names nothing that could be looked up
            continue
        asked = ["", *extras, *offered]
        if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in asked):
            yield needed.name, frozenset(needed.extras)


def _licence(metadata: importlib.metadata.PackageMetadata) -> str:
    """The expression, else the name if it is short, else the classifiers."""
    for expression in metadata.get_all("License-Expression") or ():
        return str(expression)
    classifiers = [c.rpartition(" :: ")[2] for c in metadata.get_all("Classifier") or () if c.startswith("License ::")]
    name = " ".join("".join((metadata.get_all("License") or [""])[:1]).split())
    short = name if name and len(name) <= _LONG and name.upper() != "UNKNOWN" else ""
    return short or ", ".join(dict.fromkeys(classifiers)) or "not said"
