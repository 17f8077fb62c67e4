"""HTML as text: strings are escaped, except those of type `Markup`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from placekit_core import units


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


Child = str | None | Iterable["Child"]


def text(child: Child) -> str:
    """The HTML of a child: a string, markup, nothing, or several of them."""
    if child is None:
        return ""
    if isinstance(child, Markup):
        return child
    if isinstance(child, str):
        return escape(child)
    return "".join(text(c) for c in child)


def breakable(name: str) -> Markup:
    """A name whose line may break after `_` and `.`."""
    return Markup(re.sub(r"(?<=[_.])(?=\w)", "<wbr>", escape(name)))


def prose(sentence: str) -> Markup:
    """A sentence in which `text` between backticks is code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(sentence)))


def tag(name: str, *children: Child, **attributes: Any) -> Markup:
    """An element. In names of attributes `_` is `-`, and one at the end is left out; True has no value, None is left out."""
    given = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{escape(str(value))}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    return Markup(f"<{name}{given}>{text(children)}</{name}>")


def number(value: float | None, shown: str, **attributes: Any) -> Markup:
    """A number, rounded for reading; its attribute `value` is exact."""
    return tag("data", shown, value=repr(value), **attributes) if value is not None else tag("span", "–", class_="soft")


def seconds(value: float | None) -> Markup:
    return number(value, duration(value) if value else "0")


def quantity(value: float | None, unit: str) -> Markup:
    """A value in the unit of its objective."""
    return seconds(value) if unit == "s" else number(value, units.format_value(value, unit))


def duration(value: float | None) -> str:
    """Seconds as text."""
    return units.seconds(value).replace("us", "µs")


def size(value: float | None) -> Markup:
    return number(value, "" if value is None else units.mebibytes(value) if value else "0")


def percent(value: float | None) -> Markup:
    return number(value, units.percent(value))


def count(value: float | None) -> Markup:
    return number(value, "" if value is None else f"{value:,.0f}")


def bar(share: float, colour: str = "bar") -> Markup:
    """A horizontal bar of a share of its cell, as SVG: it needs neither a script nor a style attribute."""
    width = f"{100 * min(max(share, 0.0), 1.0):.4g}%"
    return tag("svg", tag("rect", width=width, height="100%", class_=colour), class_="bar", aria_hidden="true")


def table(
    heads: Sequence[Child],
    rows: Sequence[Sequence[Child]],
    *,
    caption: str,
    numeric: Iterable[int] = (),
    class_: str = "",
    keep: int = 0,
) -> Markup:
    """A table whose first column names the row; `numeric` columns stand right. It scrolls by itself on a narrow screen.

    Of a long one, `keep` rows are shown, and the others are in a part that opens.
    """
    if keep and len(rows) > keep + 2:
        look: dict[str, Any] = {"numeric": tuple(numeric), "class_": class_}
        shown = table(heads, rows[:keep], caption=caption, **look)
        more = table(heads, rows[keep:], caption=f"{caption}, continued", **look)
        return tag("div", shown, tag("details", tag("summary", f"{len(rows) - keep} more"), more), class_="long")
    right = set(numeric)
    kinds = ["n" if i in right else None for i in range(len(heads))]
    head = tag("tr", [tag("th", h, scope="col", class_=k) for h, k in zip(heads, kinds, strict=True)])
    body = []
    for row in rows:
        first, *rest = row
        name = breakable(first) if isinstance(first, str) and not isinstance(first, Markup) else first
        cells = [tag("td", c, class_=k) for c, k in zip(rest, kinds[1:], strict=True)]
        body.append(tag("tr", tag("th", name, scope="row", class_=kinds[0]), cells))
    if not body:
        return tag("p", "None.", class_="soft")
    whole = tag("table", tag("caption", caption), tag("thead", head), tag("tbody", body), class_=class_ or None)
    return tag("div", whole, class_="scroll", tabindex="0", role="region", aria_label=caption)
