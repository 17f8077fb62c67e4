"""`placekit plugins`: what is installed, and what is broken and why."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

from placekit_core.cli.console import wrapped
from placekit_core.cli.parser import Parser
from placekit_core.contracts.hookspecs import KINDS, Command, Component
from placekit_core.run.registry import GROUP, PLURAL, Registry

_NAME = 21  # the column in which summaries begin


def main(argv: list[str], registry: Registry) -> int:
    """List all components and commands. Returns 1 if a plugin is broken, or if two of a kind have the same name."""
    parser = Parser("plugins", "List what is installed, by kind and plugin, and what is broken and why.")
    parser.add_argument(
        "word", nargs="?", default="", metavar="WORD", help="show only lines and plugins with this word"
    )
    word = parser.read(argv).word.lower()
    found: list[tuple[str, str, Component | Command]]
    shown = 0
    for kind in (*KINDS, "command"):
        found = [(f"{e.distribution} {e.version}", e.kind, e.component) for e in registry.all() if e.kind == kind]
        if kind == "command":
            found = [
                (f"{c.distribution} {c.version}", kind, c.command) for cs in registry.commands.values() for c in cs
            ]
        found = [f for f in found if word in f"{f[0]} {kind} {f[2].name} {f[2].summary}".lower()]
        shown += len(found)
        owner = ""
        for distribution, _, one in sorted(found, key=lambda f: (f[0], f[2].name)):
            if not owner:
                print(PLURAL.get(kind, "commands"))
            if owner != distribution:
                print(f"  {(owner := distribution)}")
            print(wrapped(one.summary, " " * _NAME, f"    {one.name:{_NAME - 5}} "))
    added: dict[str, list[str]] = {}
    for point in others(word):
        owner = f"{point.dist.metadata['Name']} {point.dist.version}" if point.dist else "?"
        added.setdefault(f"{point.group.removeprefix(f'{GROUP}.').rstrip('s')} {point.name}", []).append(owner)
    for name, owners in added.items():
        print(f"{name} ({' and '.join(sorted(owners))})")
    if not (shown or added):
        print(f"nothing that is installed has {word!r} in its line or package")
    if registry.broken:
        print("broken plugins")
    for b in registry.broken:
        print(f"  {b.distribution} {b.version}, plugin {b.plugin}:")
        print(wrapped(b.reason, "    ", "    "))
    twins = {f"{group}={name}": [c.owner for c in found] for (group, name), found in registry.duplicates().items()}
    for name, commands in registry.commands.items():
        if len(commands) > 1:
            twins[f"command {name}"] = [f"{c.distribution} {c.version}" for c in commands]
    twins |= {name: sorted(owners) for name, owners in added.items() if len(owners) > 1}
    if twins:
        print("defined several times, so that none can be used")
    for text, owners in twins.items():
        print(f"  {text}")
        for owner in owners:
            print(f"    {owner}")
    return int(bool(registry.broken or twins or not (shown or added)))


def others(word: str = "") -> list[EntryPoint]:
    """Additions to plugins, such as runtimes: the entry points of groups `placekit.KINDS`, which are not loaded."""
    groups = [g for g in entry_points().groups if g.startswith(f"{GROUP}.")]
    found = [p for g in groups for p in entry_points(group=g)]
    return sorted(
        (p for p in found if word in f"{p.group} {p.name} {p.value}".lower()), key=lambda p: (p.group, p.name)
    )
