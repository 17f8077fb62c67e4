"""What the completers of commands get: candidates for the arguments of their command.

A candidate that is a whole word ends with a space; one that goes on (`policy=`, `folder/`) does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from placekit_core.run.registry import Registry


class Completion(Protocol):
    """Candidates of several kinds. The plugin with the command `completion` implements it, and calls completers.

    Attributes:
        registry: the registry of what is installed.
    """

    registry: Registry

    def options(self, given: list[str], word: str) -> Iterator[str]:
        """Options of `placekit run`, or after `=` the values of an option; `given` are the arguments before `word`."""

    def paths(self, prefix: str, endings: tuple[str, ...] = ()) -> Iterator[str]:
        """Folders, and files with one of `endings`, that begin with `prefix`."""

    def whole(self, words: Iterable[str]) -> Iterator[str]:
        """`words` as candidates that are whole words."""
