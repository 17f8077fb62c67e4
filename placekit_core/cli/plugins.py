"""`placekit plugins`: what is installed, and what is broken and why."""

from __future__ import annotations

from placekit_core.errors import ConfigError
from placekit_core.registry import installed


def main(argv: list[str]) -> int:
    """List every component and every broken plugin. Returns 1 if one is broken or two collide."""
    if argv:
        raise ConfigError(f"`placekit plugins` takes no argument {argv[0]!r}")
    registry = installed()
    rows = []
    trouble = bool(registry.broken)
    for e in registry.all():
        twins = registry.entries[e.kind, e.component.name]
        if len(twins) > 1:
            trouble = True
            state = f"collides: also in {', '.join(t.distribution for t in twins if t is not e)}"
        else:
            state = "ok"
        rows.append([e.kind, e.component.name, e.distribution, e.version, state, e.component.summary])
    rows += [["plugin", b.plugin, b.distribution, b.version, f"broken: {b.reason}", ""] for b in registry.broken]
    head = ["kind", "name", "distribution", "version", "state", "summary"]
    width = [max(len(r[i]) for r in [head, *rows]) for i in range(len(head))]
    for row in [head, *rows]:
        print("  ".join(cell.ljust(w) for cell, w in zip(row, width, strict=True)).rstrip())
    return int(trouble)
