"""The module tree as nested `<details>`, and which modules moved between two runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placekit_report.page.markup import Child, Markup, breakable, count, seconds, size, table, tag
from placekit_report.page.sections import Data, badge

OPEN_DEPTH = 1
MOVED = 15
ROOT = "(whole network)"


def modules(program: Data) -> Markup | None:
    """The tree: a line per module with its device, seconds, bytes and operations; scripts add bars."""
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
    told = tag(
        "p", "Bytes: what stays in memory for the whole step (parameters, optimizer state, inputs).", class_="soft"
    )
    return tag("div", legend, told, tag("div", head, branch(m, names, children, -1), class_="tree"))


def branch(m: Data, devices: Sequence[str], children: dict[int, list[int]], parent: int) -> list[Markup]:
    """The lines below a module. Python's stack is deep enough: the tree has a limit (`modules.DEEPEST`)."""
    found = []
    for i in children.get(parent, ()):
        below = children.get(i)
        line = [
            tag("span", main_device(m["device_seconds"][i], devices), breakable(label(m, i))),
            seconds(m["seconds"][i]),
            size(m["bytes"][i]),
            count(m["operations"][i]),
        ]
        if below:
            opened = m["depth"][i] < OPEN_DEPTH
            found.append(tag("details", tag("summary", line, data_m=i), branch(m, devices, children, i), open=opened))
        else:
            found.append(tag("p", line, data_m=i))
    return found


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


def shares(m: Data) -> NDArray[np.float64]:
    """[modules, devices] the share of each device in a module's seconds."""
    on = np.asarray(m["device_seconds"], np.float64).reshape(len(m["name"]), -1)
    found: NDArray[np.float64] = on / np.maximum(on.sum(axis=1, keepdims=True), 1e-300)
    return found


def moved(first: Data, second: Data) -> Child:
    """The modules that compute on other devices in the second run, most seconds first; only the outermost that moved whole.

    Devices are matched by name. None if the modules of one run are not known.
    """
    a, b = first["modules"], second["modules"]
    if not a["name"] or not b["name"]:
        return None
    where = {path: i for i, path in enumerate(b["name"])}
    if len(where) + len(a["name"]) > 2 and not {*where} & {*a["name"]} - {""}:
        return tag("p", "The networks have no module in common.", class_="soft")
    names = sorted({*first["devices"]["name"], *second["devices"]["name"]})
    share_a, share_b = by_name(first, names), by_name(second, names)
    rows: list[tuple[float, list[Any]]] = []
    covered: set[int] = set()
    for i, path in enumerate(a["name"]):
        j = where.get(path)
        if a["parent"][i] in covered or j is None:
            covered.add(i) if a["parent"][i] in covered else None
            continue
        distance = 0.5 * float(np.abs(share_a[i] - share_b[j]).sum())
        if distance > 0.5 and ((share_a[i].max() > 0.9 and share_b[j].max() > 0.9) or i not in a["parent"]):
            covered.add(i)
            to = [named(share_a[i], names), " → ", named(share_b[j], names)]
            rows.append((a["seconds"][i], [path or ROOT, to, seconds(a["seconds"][i]), seconds(b["seconds"][j])]))
    rows.sort(key=lambda r: -r[0])
    heads = ["module", "computes on", "seconds, A", "seconds, B"]
    rule = tag("p", "A module moved if more than half of its seconds are on other devices in B.", class_="soft")
    found = table(heads, [r for _, r in rows], caption=f"Modules that moved: {len(rows)}", numeric=(2, 3), keep=MOVED)
    return [rule, found]


def by_name(program: Data, names: Sequence[str]) -> NDArray[np.float64]:
    """[modules, names] shares, with the devices in the order of `names`."""
    own = shares(program["modules"])
    found = np.zeros((len(own), len(names)))
    for d, name in enumerate(program["devices"]["name"]):
        if d < own.shape[1]:
            found[:, names.index(name)] = own[:, d]
    return found


def named(share: NDArray[np.float64], names: Sequence[str]) -> str:
    """The devices of a module and their shares, the one with the most first; of a module on one device, its name alone."""
    order = [int(d) for d in np.argsort(-share, kind="stable") if share[d] >= 0.05]
    if len(order) == 1:
        return names[order[0]]
    return " + ".join(f"{share[d]:.0%} {names[d]}" for d in order) or "nothing"
