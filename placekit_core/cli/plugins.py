"""`placekit plugins`: what is installed, and what is broken and why."""

from __future__ import annotations

from placekit_core.errors import ConfigError
from placekit_core.registry import Choice, installed


def main(argv: list[str]) -> int:
    """List every component, broken plugin and colliding preset. Returns 1 if a plugin is broken or anything collides."""
    if argv:
        raise ConfigError(f"`placekit plugins` takes no argument {argv[0]!r}")
    registry = installed()
    duplicates = registry.duplicates()

    def state(own: Choice) -> str:
        twins = list(duplicates.get((own.group, own.name), ()))
        if not twins:
            return "ok"
        twins.remove(own)
        return f"collides: also in {', '.join(t.owner for t in twins)}"

    rows = []
    for e in registry.all():
        own = Choice(e.kind, e.component.name, e.distribution, e.version)
        rows.append([e.kind, e.component.name, e.distribution, e.version, state(own), e.component.summary])
    for (group, name), choices in duplicates.items():
        rows += [[group or "-", name, c.distribution, c.version, state(c), str(c.path)] for c in choices if c.path]
    rows += [["plugin", b.plugin, b.distribution, b.version, f"broken: {b.reason}", ""] for b in registry.broken]
    head = ["kind", "name", "distribution", "version", "state", "summary"]
    width = [max(len(r[i]) for r in [head, *rows]) for i in range(len(head))]
    for row in [head, *rows]:
        print("  ".join(cell.ljust(w) for cell, w in zip(row, width, strict=True)).rstrip())
    return int(bool(registry.broken or duplicates))
