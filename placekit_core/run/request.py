"""What a run should do: the one form that `placekit run` and `place` turn their arguments into."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from placekit_core.contracts.interfaces import Plugin
    from placekit_core.contracts.program import Program

SECTIONS = ("importer", "grouper", "policy", "trainer", "backend", "proxy")
"""The sections of a configuration that name a component. The section `proxy` names a backend."""


@dataclass(frozen=True, eq=False)
class Request:
    """One run, not checked yet; `assembly.assemble` checks it.

    Attributes:
        components: for each of `SECTIONS`, `{"name": NAME, OPTION: VALUE}` or the component itself. The importer may also be
            the programs.
        options: the other options of `RunConfig`, such as cluster, budget and seed. An option left out has its default.
    """

    components: Mapping[str, Mapping[str, Any] | Plugin | Sequence[Program]]
    options: Mapping[str, Any]

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Request:
        """The request that a configuration in plain data describes, as Hydra composes it or config.json holds it."""
        return cls(
            {section: data[section] for section in SECTIONS if section in data},
            {key: value for key, value in data.items() if key not in SECTIONS},
        )
