"""`placekit plugins`: what is installed, and what is broken and why."""

from __future__ import annotations

from collections.abc import Iterator

from placekit_core.cli.console import wrapped
from placekit_core.cli.parser import Parser
from placekit_core.contracts.hookspecs import KINDS, Command, Component
from placekit_core.run.registry import PLURAL, Registry

_NAME = 21  # the column in which summaries begin


def main(argv: list[str], registry: Registry) -> int:
    """List all components and commands. Returns 1 if a plugin is broken, or if two of a kind have the same name."""
    Parser("plugins", "What is installed, by kind and plugin; and what is broken and why.").read(argv)
    for kind in (*KINDS, "command"):
        for line in _kind(kind, registry):
            print(line)
    return int(any([_broken(registry), _collisions(registry)]))


def _kind(kind: str, registry: Registry) -> Iterator[str]:
    """A heading, and for each distribution its components or commands of `kind`."""
    found: list[tuple[str, str, Component | Command]]
    if kind == "command":
        found = [(c.distribution, c.version, c.command) for entries in registry.commands.values() for c in entries]
    else:
        found = [(e.distribution, e.version, e.component) for e in registry.all() if e.kind == kind]
    owner = None
    for distribution, version, one in sorted(found, key=lambda f: (f[0], f[1], f[2].name)):
        if owner is None:
            yield PLURAL.get(kind, f"{kind}s")
        if owner != (owner := f"{distribution} {version}"):
            yield f"  {owner}"
        yield wrapped(one.summary, " " * _NAME, f"    {one.name:{_NAME - 5}} ")


def _broken(registry: Registry) -> bool:
    """Print the plugins that were set aside; returns whether there are any."""
    if registry.broken:
        print("broken plugins")
    for b in registry.broken:
        print(f"  {b.distribution} {b.version}, plugin {b.plugin}:")
        print(wrapped(b.reason, "    ", "    "))
    return bool(registry.broken)


def _collisions(registry: Registry) -> bool:
    """Print names that have several owners, so that none can be used; returns whether there are any."""
    found = [
        (f"{group}={name}", [c.owner for c in choices]) for (group, name), choices in registry.duplicates().items()
    ]
    found += [
        (f"command {name}", [f"{c.distribution} {c.version}" for c in entries])
        for name, entries in registry.commands.items() if len(entries) > 1
    ]  # fmt: skip
    if found:
        print("defined several times, so that none can be used")
    for name, owners in found:
        print(f"  {name}")
        for owner in owners:
            print(f"    {owner}")
    return bool(found)
