"""How two runs differ: their numbers and their settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from placekit_report.page.markup import Child, Markup, count, number, percent, seconds, size, table, tag
from placekit_report.page.sections import Data, value_name

SETTINGS = ("workload", "objective", "importer", "grouper", "policy", "trainer", "backend", "cluster", "seed", "budget")


def differences(run_a: Data, run_b: Data, a: Data, b: Data) -> Markup:
    """The numbers of two programs beside each other, then the settings that are not the same."""
    rows: list[list[Child]] = []

    def row(name: str, x: float | None, y: float | None, show: Callable[[float | None], Child]) -> None:
        rows.append([name, show(x), show(y), between(x, y, show)])

    row(value_name(a), a["value_s"], b["value_s"], seconds)
    row("proven bound", a["bound_s"], b["bound_s"], seconds)
    row("gap", a["gap"], b["gap"], percent)
    row("memory headroom", room(a), room(b), size)
    row("evaluations", a["evaluations"], b["evaluations"], count)
    row("search", a["seconds"], b["seconds"], seconds)
    row("sent between devices", sent(a), sent(b), size)
    for name in dict.fromkeys([*a["devices"]["name"], *b["devices"]["name"]]):
        row(f"{name} computes", of_device(a, name, "compute_s"), of_device(b, name, "compute_s"), seconds)
    for name in dict.fromkeys([*a["devices"]["name"], *b["devices"]["name"]]):
        row(f"{name} at its peak", of_device(a, name, "peak_bytes"), of_device(b, name, "peak_bytes"), size)
    numbers = table(["number", "A", "B", "B − A"], rows, caption="The numbers of both runs", numeric=(1, 2, 3), keep=16)
    one, two = run_a["summary"], run_b["summary"]
    settings = [[k, shown(one.get(k)), shown(two.get(k))] for k in SETTINGS if one.get(k) != two.get(k)]
    return tag("div", numbers, table(["setting", "A", "B"], settings, caption="Settings that differ"), class_="grid")


def between(x: float | None, y: float | None, show: Callable[[float | None], Child]) -> Child:
    """The second number less the first, with its share of the first."""
    if x is None or y is None:
        return "–"
    if x == y:
        return tag("span", "same", class_="soft")
    sign = "+" if y > x else "−"
    if show is percent:
        return number(y - x, f"{sign}{100 * abs(y - x):.1f} points")
    share = f" ({sign}{100 * abs(y / x - 1):.1f}%)" if x and abs(y / x) < 10 else f" ({y / x:,.0f}×)" if x else ""
    return tag("span", sign, show(abs(y - x)), share)


def room(program: Data) -> float | None:
    return program["headroom"]["bytes"] if program["headroom"] else None


def sent(program: Data) -> float | None:
    found = [b for b in program["devices"]["bytes_out"] if b is not None]
    return sum(found) if found else None


def of_device(program: Data, name: str, key: str) -> float | None:
    d = program["devices"]
    return d[key][d["name"].index(name)] if name in d["name"] else None


def shown(value: Any) -> str:
    """A setting in a table."""
    if isinstance(value, dict):
        return ", ".join(f"{k} {v:g}" for k, v in value.items() if v is not None) or "none"
    return "none" if value is None else str(value)
