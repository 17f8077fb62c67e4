"""The module tree as nested `<details>`."""

from __future__ import annotations

from collections.abc import Sequence

from placekit_report.page.markup import Child, Markup, breakable, count, seconds, size, tag
from placekit_report.page.sections import Data, badge

OPEN_DEPTH = 1
ROOT = "(whole network)"


def modules(program: Data) -> Markup | None:
    """The tree: a line per module with its device, seconds, bytes and operations."""
    m = program["modules"]
    if not m["name"]:
        return None
    children: dict[int, list[int]] = {}
    for i, parent in enumerate(m["parent"]):
        children.setdefault(parent, []).append(i)
    names = program["devices"]["name"]
    legend = tag("p", [tag("span", badge(i), n) for i, n in enumerate(names)], class_="legend")
    head = tag(
        "p",
        tag("span", "module"),
        tag("span", "seconds"),
        tag("span", "bytes"),
        tag("span", "operations"),
        class_="head",
    )
    note = tag(
        "p", "Bytes: what stays in memory for the whole step (parameters, optimizer state, inputs).", class_="soft"
    )
    return tag("div", legend, note, tag("div", head, branch(m, names, children, -1), class_="tree"))


def branch(m: Data, devices: Sequence[str], children: dict[int, list[int]], parent: int) -> list[Markup]:
    """The lines below a module; recursion is limited by `modules.DEEPEST`."""
    found = []
    longest = max((s for s, d in zip(m["seconds"], m["depth"], strict=True) if d), default=0.0)
    for i in children.get(parent, ()):
        below = children.get(i)
        line: list[Child] = [
            tag("span", main_device(m["device_seconds"][i], devices), breakable(label(m, i))),
            seconds(m["seconds"][i]),
            size(m["bytes"][i]),
            count(m["operations"][i]),
            share(m["device_seconds"][i], longest if m["depth"][i] else m["seconds"][0]),
        ]
        if below:
            opened = m["depth"][i] < OPEN_DEPTH
            found.append(tag("details", tag("summary", line), branch(m, devices, children, i), open=opened))
        else:
            found.append(tag("p", line))
    return found


def share(on: Sequence[float], whole: float) -> Markup:
    """A bar of the seconds on each device, as long as the module's share of `whole` seconds."""
    parts, x = [], 0.0
    for device, seconds_there in enumerate(on):
        width = 100 * seconds_there / whole if whole else 0.0
        if width > 0:
            parts.append(tag("rect", x=f"{x:.4g}%", width=f"{width:.4g}%", height="100%", class_=f"c{device % 9}"))
        x += width
    return tag("svg", parts, class_="bar", aria_hidden="true")


def label(m: Data, module: int) -> str:
    """The name of a module below its parent."""
    name, parent = str(m["name"][module]), m["parent"][module]
    above = f"{m['name'][parent]}." if parent >= 0 else ""
    return name.removeprefix(above) or ROOT


def main_device(seconds_on: Sequence[float], devices: Sequence[str]) -> Markup | None:
    """The badge of the device that computes the most of a module."""
    most = max(seconds_on, default=0.0)
    device = list(seconds_on).index(most) if most > 0 else -1
    return badge(device, devices[device]) if device >= 0 else None
