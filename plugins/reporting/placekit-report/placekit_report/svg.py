"""A schedule as an SVG picture, for notebooks and documents: a lane per device stream and per pair of devices that send.

Colours are modules, or the kinds of tasks of a pipeline. Every block has a tooltip. Events narrower than two pixels are drawn
as one block. The picture needs no script and no font, and follows the reader's light or dark mode.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from placekit_core import Problem, Schedule, units, write_atomically
from placekit_report.modules import OTHER
from placekit_report.page.search_chart import ticks
from placekit_report.timeline import Items, tracks_of

COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8c6d31", "#7a5195", "#f0e442")
"""The palette of Okabe and Ito (2008), *Color Universal Design*, without black, with a brown and a violet before its yellow."""
GREY, TRANSFER = "#8c959f", "#6e7781"
WHITE_ON = (COLOURS[0], COLOURS[6], COLOURS[7])
"""Fills on which text is white; it is black on all others."""
WIDTH, PAD, RIGHT, LETTER = 880, 14, 78, 6.5
NARROW = 2.0
"""Pixels: narrower events are merged with their neighbours."""
_INVALID = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # in XML 1.0
STYLE = """\
#ID text{font:11px system-ui,"Segoe UI",Helvetica,Arial,sans-serif;fill:#1f2328}
#ID .h{font-weight:600;font-size:13px}#ID .s{fill:#59636e}#ID .e{text-anchor:end}#ID .m{text-anchor:middle}
#ID .n{pointer-events:none}#ID .w{fill:#fff}#ID .b{fill:#111}
#ID .card{fill:#fff;stroke:#d1d9e0}#ID .lane{fill:#eef1f4}#ID .line{stroke:#d1d9e0}
@media (prefers-color-scheme:dark){#ID text{fill:#f0f6fc}#ID .s{fill:#9198a1}#ID .w{fill:#fff}#ID .b{fill:#111}
#ID .card{fill:#0d1117;stroke:#3d444d}#ID .lane{fill:#1c2128}#ID .line{stroke:#3d444d}}
"""


@dataclass(frozen=True, eq=False)
class Panel:
    """A schedule in a picture; without a title, it has the names of program and machine."""

    problem: Problem
    schedule: Schedule
    title: str = ""

    @property
    def heading(self) -> str:
        return self.title or f"{self.problem.graph.name} on {self.problem.cluster.name}"


def write(path: Path, panels: Sequence[Panel], links: bool = True, note: str = "") -> None:
    """Write the picture, atomically; equal schedules give equal bytes."""
    write_atomically(path, (svg(panels, links, note) + "\n").encode())


def svg(panels: Sequence[Panel], links: bool = True, note: str = "") -> str:
    """The schedules one above the other, on one axis of time, and `note` below them. Without `links`, no transfers."""
    items = [Items.of(p.problem, p.schedule) for p in panels]
    names = list(dict.fromkeys(name for own in items for name in own.colours))
    end_s = max(p.schedule.end_s for p in panels)
    lanes = [_lanes(p.problem, own, links) for p, own in zip(panels, items, strict=True)]
    left = PAD + 8 + min(LETTER * max(len(name) for found in lanes for name, _ in found), 190.0)
    per_s = (WIDTH - PAD - RIGHT - left) / end_s if end_s > 0 else 0.0
    body, y = list[str](), float(PAD)
    for panel, own, found in zip(panels, items, lanes, strict=True):
        body.append(f'<text class="h" x="{PAD}" y="{_n(y + 13)}">{_safe(panel.heading)}</text>')
        value = units.seconds(panel.schedule.end_s)
        body.append(f'<text class="h e" x="{WIDTH - PAD}" y="{_n(y + 13)}">{value}</text>')
        y += 22
        for name, rows in found:
            high = 24 if name in panel.problem.cluster.device_names or " stream " in name else 13
            shown = _shortened(name, int((left - PAD - 4) / LETTER))
            body.append(f'<text x="{PAD}" y="{_n(y + high / 2 + 4)}">{_safe(shown)}</text>')
            body.append(f'<rect class="lane" x="{_n(left)}" y="{_n(y)}" width="{_n(end_s * per_s)}" height="{high}"/>')
            for block in _blocks(own, rows, NARROW / per_s if per_s else 0.0):
                body += _block(own, block, names, (left, y, high, per_s))
            y += high + 4
        y += 10
    body = [*_axis(end_s, left, per_s, y), *body]
    legend, height = _legend(names, items, links, y + 30, note)
    about = "; ".join(f"{p.heading}: {units.seconds(p.schedule.end_s)}" for p in panels)
    inside = "\n".join([*body, *legend])
    name = f"pk{hashlib.sha256((about + inside).encode()).hexdigest()[:8]}"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" id="{name}" viewBox="0 0 {WIDTH} {_n(height)}" width="{WIDTH}" '
            f'height="{_n(height)}" style="max-width:100%;height:auto" role="img" aria-label="{_safe("Timeline. " + about)}">',
            f"<style>{STYLE.replace('ID', name).strip()}</style>",
            f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{_n(height - 1)}" rx="8"/>',
            inside,
            "</svg>",
        ]
    )


def _lanes(problem: Problem, items: Items, links: bool) -> list[tuple[str, NDArray[np.int64]]]:
    """The name of each lane, and its items by their start."""
    tracks, track = tracks_of(problem, items)
    order = np.argsort(items.events.start_s, kind="stable")
    order = order[items.events.ran[order]]
    return [
        (name, order[track[order] == i])
        for i, (name, kind) in enumerate(zip(tracks["name"], tracks["kind"], strict=True))
        if links or kind != "link"
    ]


def _blocks(items: Items, rows: NDArray[np.int64], narrow_s: float) -> Iterator[list[int]]:
    """The items of a lane in blocks; items shorter than `narrow_s` are joined with neighbours."""
    block: list[int] = []
    for i in rows.tolist():
        short = items.events.end_s[i] - items.events.start_s[i] < narrow_s
        if block and not (short and items.events.end_s[i] - items.events.start_s[block[0]] < narrow_s):
            yield block
            block = []
        block.append(i)
    if block:
        yield block


def _block(
    items: Items, block: Sequence[int], names: Sequence[str], place: tuple[float, float, int, float]
) -> Iterator[str]:
    """The rectangle of a block with its tooltip, and its name where there is room.

    `place` is the left edge of the lane, its y and height, and pixels per second.
    """
    left, y, high, per_s = place
    e = items.events
    longest = max(block, key=lambda i: (e.end_s[i] - e.start_s[i], -i))
    start, end = float(e.start_s[block[0]]), float(e.end_s[block].max())
    sent, length = (
        e.to[longest] >= 0,
        units.seconds(float(e.end_s[longest] - e.start_s[longest])),
    )
    name = items.colours[items.colour[longest]] if not sent else ""
    colour = TRANSFER if sent else _colour(names, name)
    what = items.name[longest] if len(block) == 1 else f"{len(block)} events, the longest: {items.name[longest]}"
    tip = f"{what}\n{length} from {units.seconds(float(e.start_s[longest]))}"
    x, wide = left + start * per_s, max((end - start) * per_s, 0.6)
    box = f'x="{_n(x)}" y="{_n(y)}" width="{_n(wide - (0.5 if wide > 4 else 0))}" height="{high}"'
    yield f'<rect fill="{colour}" {box}><title>{_safe(tip)}</title></rect>'
    numbers = re.findall(r"\d+", items.name[longest]) if not any(items.module) else []
    label = next((c for c in (name, name.rpartition(".")[2], *numbers[-1:]) if LETTER * len(c) <= wide - 6), "")
    if label and not sent and len(block) == 1:
        ink = "w" if colour in WHITE_ON else "b"
        middle = f'x="{_n(x + wide / 2)}" y="{_n(y + high / 2 + 4)}"'
        yield f'<text class="m n {ink}" {middle}>{_safe(label)}</text>'


def _axis(end_s: float, left: float, per_s: float, bottom: float) -> Iterator[str]:
    """Lines and numbers of the axis, from 0 in round steps."""
    for value in ticks(0, end_s):
        x = _n(left + value * per_s)
        yield f'<line class="line" x1="{x}" x2="{x}" y1="{PAD + 22}" y2="{_n(bottom)}"/>'
        yield f'<text class="s m" x="{x}" y="{_n(bottom + 13)}">{units.seconds(value) if value else "0"}</text>'


def _legend(names: Sequence[str], items: Sequence[Items], links: bool, y: float, note: str) -> tuple[list[str], float]:
    """The names of the colours and `note`; and where the picture ends."""
    entries = [(_colour(names, name), _shortened(name, 34)) for name in names]
    if links and any((own.events.to >= 0).any() for own in items):
        entries.append((TRANSFER, "transfer"))
    x, found = float(PAD), []
    for colour, text in entries:
        wide = 26 + LETTER * len(text)
        if x + wide > WIDTH - PAD and x > PAD:
            x, y = float(PAD), y + 18
        found.append(f'<rect fill="{colour}" x="{_n(x)}" y="{_n(y - 9)}" width="14" height="11"/>')
        found.append(f'<text x="{_n(x + 19)}" y="{_n(y)}">{_safe(text)}</text>')
        x += wide + 6
    if note:
        y += 17
        found.append(f'<text class="s" x="{PAD}" y="{_n(y)}">{_safe(note)}</text>')
    return found, y + PAD


def _colour(names: Sequence[str], name: str) -> str:
    index = names.index(name)
    return COLOURS[index] if name != OTHER and index < len(COLOURS) else GREY


def _shortened(text: str, length: int) -> str:
    """A text, without its start if it is too long: ends tell names apart."""
    return text if len(text) <= length else f"…{text[len(text) - length + 1 :]}"


def _n(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _safe(text: str) -> str:
    return escape(_INVALID.sub("\ufffd", text))
