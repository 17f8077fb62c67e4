"""Timelines as SVG, which need no script, font or address from outside: a lane per device stream and per pair that sends.

Blocks are coloured by module, or by the kind of task of a pipeline; backward and update are hatched, wide blocks have names,
and every block has a tooltip. Idle time is the empty lane. Where events are too short to be seen, a block holds several, and
is as high as the share of its time that something goes on: areas are seconds. Light and dark follow the reader's system.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path

import numpy as np

from placekit_core import PHASES, Problem, Schedule, units, write_atomically
from placekit_report.blocks import Block, Lane, blocks, lanes
from placekit_report.modules import OTHER
from placekit_report.style import COLOURS, GREY, on
from placekit_report.timeline import Items

BLOCKS, LETTERS = 600, 60
"""Blocks of a picture, and letters of a name in a tooltip, at most: with these, it stays below 200 kB."""
WIDTH, PAD, RIGHT = 880, 14, 78
DEVICE, LINK, GAP = 24, 13, 4  # heights of lanes, and what is between them
LETTER = 6.5  # width at 11 px, a little more than that of common fonts
SMALLEST = 0.6  # pixels, even of the shortest block
_INVALID = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # in XML 1.0

STYLE = """\
#ID text{font:11px system-ui,"Segoe UI",Helvetica,Arial,sans-serif;fill:#1f2328}
#ID .h{font-weight:600;font-size:13px}#ID .s{fill:#59636e}#ID .e{text-anchor:end}#ID .m{text-anchor:middle}
#ID .n{pointer-events:none}#ID .w{fill:#fff}#ID .b{fill:#111}
#ID .card{fill:#fff;stroke:#d1d9e0}#ID .lane{fill:#eef1f4}#ID .line{stroke:#d1d9e0}#ID .end{stroke:#1f2328;stroke-dasharray:2 2}
#ID .t{fill:#6e7781}
@media (prefers-color-scheme:dark){#ID text{fill:#f0f6fc}#ID .s{fill:#9198a1}#ID .w{fill:#fff}#ID .b{fill:#111}
#ID .card{fill:#0d1117;stroke:#3d444d}#ID .lane{fill:#1c2128}#ID .line{stroke:#3d444d}#ID .end{stroke:#f0f6fc}
#ID .t{fill:#9198a1}}
"""


@dataclass(frozen=True, eq=False)
class Panel:
    """One schedule of a picture, with the title above it; an empty title is that of the program and its machine."""

    problem: Problem
    schedule: Schedule
    title: str = ""


@dataclass(frozen=True, eq=False)
class _Drawn:
    """A panel with what is drawn of it."""

    panel: Panel
    items: Items
    lanes: list[Lane]
    blocks: list[list[Block]]


@dataclass(frozen=True)
class _Scale:
    """Where times are: x = `left` + seconds * `per_s`."""

    left: float
    per_s: float

    def __call__(self, seconds: float) -> float:
        return self.left + seconds * self.per_s


def write(path: Path, panels: Sequence[Panel], links: bool = True, note: str = "") -> None:
    """Write the picture, atomically; equal schedules give equal bytes."""
    write_atomically(path, (svg(panels, links, note) + "\n").encode())


def svg(panels: Sequence[Panel], links: bool = True, note: str = "") -> str:
    """The schedules one above the other, on one axis of time, and a line of text below them.

    Without `links`, transfers have no lanes.
    """
    drawn, colours, end_s, scale = _drawn(panels, links)
    body, y = [], float(PAD)
    for d in drawn:
        part, y = _panel(d, y, scale, end_s)
        body += part
    ticks = _ticks(end_s, scale, PAD + 22, y)
    entries, height = _legend(drawn, colours, y + 30, note)
    about = "; ".join(f"{_title(p)}: {units.seconds(p.schedule.end_s)}" for p in panels)
    inside = "\n".join([*ticks, *body, *entries])
    name = f"pk{hashlib.sha256((about + inside).encode()).hexdigest()[:8]}"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" id="{name}" viewBox="0 0 {WIDTH} {_n(height)}" width="{WIDTH}" '
            f'height="{_n(height)}" style="max-width:100%;height:auto" role="img" aria-label="{_safe("Timeline. " + about)}">',
            f"<style>{(STYLE + _fills(drawn, len(colours))).replace('ID', name).strip()}</style>",
            *_patterns(drawn, name),
            f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{_n(height - 1)}" rx="8"/>',
            inside,
            "</svg>",
        ]
    )


def _title(panel: Panel) -> str:
    return panel.title or f"{panel.problem.graph.name} on {panel.problem.cluster.name}"


def _drawn(panels: Sequence[Panel], links: bool) -> tuple[list[_Drawn], list[str], float, _Scale]:
    """What is drawn of each panel, in common colours; the names of the colours; the end of the axis, and its scale."""
    items = [Items.of(p.problem, p.schedule) for p in panels]
    n = panels[0].problem.graph.n
    for i, (p, own) in enumerate(zip(panels, items, strict=True)):  # panels of one program have the first one's colours
        if p.problem.graph is panels[0].problem.graph and p.schedule.spans is panels[0].schedule.spans is None:
            colour = np.r_[items[0].colour[:n], np.full(len(own.shown) - n, -1)]
            items[i] = replace(own, colour=colour, colours=items[0].colours)
    colours = list(dict.fromkeys(name for own in items for name in own.colours if name != OTHER))
    colours += [OTHER] * any(OTHER in own.colours for own in items)
    for i, own in enumerate(items):
        index = np.asarray([*(colours.index(name) for name in own.colours), -1])
        items[i] = replace(own, colour=index[own.colour], colours=colours)
    end_s = max(p.schedule.end_s for p in panels)
    found = [
        [lane for lane in lanes(p.problem, own) if links or not lane.link] for p, own in zip(panels, items, strict=True)
    ]
    left = PAD + 8 + min(LETTER * max(len(lane.name) for part in found for lane in part), 190.0)
    scale = _Scale(left, (WIDTH - PAD - RIGHT - left) / end_s if end_s > 0 else 0.0)
    tolerance = 1.5 / scale.per_s if end_s > 0 else 0.0
    limit = BLOCKS // len(panels)
    drawn = [
        _Drawn(p, own, part, blocks(own, part, tolerance, limit))
        for p, own, part in zip(panels, items, found, strict=True)
    ]
    return drawn, colours, end_s, scale


def _panel(d: _Drawn, y: float, scale: _Scale, end_s: float) -> tuple[list[str], float]:
    """The title and lanes of one schedule, and where they end."""
    s = d.panel.schedule
    body = [
        f'<text class="h" x="{PAD}" y="{_n(y + 13)}">{_safe(_title(d.panel))}</text>',
        f'<text class="h e" x="{WIDTH - PAD}" y="{_n(y + 13)}">{units.seconds(s.end_s)}</text>',
    ]
    y += 22
    top = y
    for lane, row in zip(d.lanes, d.blocks, strict=True):
        high = LINK if lane.link else DEVICE
        text = y + high / 2 + 4
        body.append(
            f'<text x="{PAD}" y="{_n(text)}">{_safe(_cut(lane.name, int((scale.left - PAD - 4) / LETTER)))}</text>'
        )
        body.append(
            f'<rect class="lane" x="{_n(scale(0))}" y="{_n(y)}" width="{_n(end_s * scale.per_s)}" height="{high}"/>'
        )
        for block in row:
            body += _rectangle(d, lane, block, y, high, scale)
        busy = _busy(row)
        share = f"{_share(busy / s.end_s)} busy" if s.end_s > 0 else "idle"
        sent = units.mebibytes(float(d.items.bytes_[lane.items].sum()))
        about = f"<title>busy {units.seconds(busy)} of {units.seconds(s.end_s)}</title>"
        body.append(
            f'<text class="s e" x="{WIDTH - PAD}" y="{_n(text)}">{sent if lane.link else _safe(share)}{about}</text>'
        )
        y += high + GAP
    x = _n(scale(s.end_s))
    body.append(f'<line class="end" x1="{x}" x2="{x}" y1="{_n(top - 3)}" y2="{_n(y - 1)}"/>')
    return body, y + 10


def _busy(row: Sequence[Block]) -> float:
    """Seconds in which a lane is busy."""
    return math.fsum(block.busy_s for block in row)


def _rectangle(d: _Drawn, lane: Lane, block: Block, y: float, high: int, scale: _Scale) -> Iterator[str]:
    """A block, as high as it is busy, with its tooltip; and its name, where there is room."""
    length = block.end_s - block.start_s
    x, wide = scale(block.start_s), max(length * scale.per_s, SMALLEST)
    tall = high * min(block.busy_s / length, 1.0) if length > 0 else high
    kind = "t" if block.colour < 0 else f"c{block.colour}p{block.phase}"
    space = 0.5 if wide > 4 else 0.0  # neighbours of one colour stay apart
    yield (
        f'<rect class="{kind}" x="{_n(x)}" y="{_n(y + high - tall)}" width="{_n(wide - space)}" height="{_n(tall)}">'
        f"<title>{_safe(_tooltip(d, lane, block))}</title></rect>"
    )
    label = _label(d, block, wide - 6)
    if label and not lane.link and tall > 0.7 * high:
        ink = "w" if on(_colour(block.colour, d.items.colours)) == "#ffffff" else "b"
        middle = f'x="{_n(x + wide / 2)}" y="{_n(y + high / 2 + 4)}"'
        yield f'<text class="m n {ink}" {middle}>{_safe(label)}</text>'


def _label(d: _Drawn, block: Block, wide: float) -> str:
    """What stands on a block: its name or its number if it is a task of a pipeline, else its module."""
    if block.colour < 0:
        return ""
    name = d.items.colours[block.colour]
    choices = [name, name.rpartition(".")[2]]
    if d.panel.schedule.spans is not None and len(block.items) == 1:
        name = d.items.name[block.items[0]]
        choices = [name, *re.findall(r"\d+", name)[-1:]]
    return next((c for c in choices if LETTER * len(c) <= wide), "")


def _tooltip(d: _Drawn, lane: Lane, block: Block) -> str:
    """Operation, seconds and bytes; of several, how many, and the longest."""
    items, rows = d.items, block.items
    longest = max(rows, key=lambda i: (items.end_s[i] - items.start_s[i], -i))
    seconds, start = units.seconds(block.busy_s), units.seconds(block.start_s)
    bytes_ = units.mebibytes(float(items.bytes_[rows].sum()))
    phase, module, name = PHASES[block.phase], _cut(items.module[longest], LETTERS), _cut(items.name[longest], LETTERS)
    if len(rows) == 1 and lane.link:
        return f"{name}\n{lane.name}\n{seconds} from {start}, {bytes_}"
    if len(rows) == 1:
        of = ", ".join(x for x in (module, items.kind[longest], phase) if x and x not in items.name[longest])
        return f"{name}\n{of or phase}\n{seconds} from {start}" + (
            f", output {bytes_}" if items.bytes_[longest] else ""
        )
    what = "transfers" if lane.link else f"operations, most in {_cut(items.colours[block.colour], LETTERS)}, {phase}"
    of = units.seconds(block.end_s - block.start_s)
    length = units.seconds(float(items.end_s[longest] - items.start_s[longest]))
    return f"{len(rows)} {what}\n{seconds} of {of} from {start}, {bytes_}\nlongest: {name}, {length}"


def _ticks(end_s: float, scale: _Scale, top: float, bottom: float) -> list[str]:
    """Lines and numbers of the axis, from 0 in round steps."""
    if end_s <= 0:
        return []
    step = 10 ** math.floor(math.log10(end_s / 5))
    step *= next(f for f in (1, 2, 5, 10) if step * f >= end_s / 7)
    unit, per_s = ("s", 1.0) if end_s >= 1 else ("ms", 1e3) if end_s >= 1e-3 else ("us", 1e6)
    found = []
    for i in range(int(end_s / step + 1e-9) + 1):
        x, text = _n(scale(i * step)), f"{i * step * per_s:.6g}" + f" {unit}"
        found.append(f'<line class="line" x1="{x}" x2="{x}" y1="{_n(top)}" y2="{_n(bottom)}"/>')
        found.append(f'<text class="s m" x="{x}" y="{_n(bottom + 13)}">{text}</text>')
    return found


def _legend(drawn: Sequence[_Drawn], colours: Sequence[str], y: float, note: str) -> tuple[list[str], float]:
    """Colours with their share of the computation, hatches, transfers; and where the picture ends."""
    seconds, phases = np.zeros((len(colours), len(PHASES))), set[int]()
    for d in drawn:
        rows = np.flatnonzero(d.items.shown & (d.items.to < 0))
        cell = d.items.colour[rows], d.items.phase[rows]
        np.add.at(seconds, cell, (d.items.end_s - d.items.start_s)[rows])
        phases |= set(d.items.phase[rows].tolist())
    total, tasks = float(seconds.sum()) or 1.0, any(d.panel.schedule.spans is not None for d in drawn)
    entries = [
        (f"c{i}p{seconds[i].argmax() if tasks else 0}", f"{_cut(name, 34)} {_share(seconds[i].sum() / total)}")
        for i, name in enumerate(colours)
    ]
    entries += [(f"p{p}", PHASES[p]) for p in sorted(phases - {0}) if not tasks]
    entries += [("t", "transfer")] * any(lane.link for d in drawn for lane in d.lanes) + [("lane", "idle")]
    x, found = float(PAD), []
    for kind, text in entries:
        wide = 26 + LETTER * len(text)
        if x + wide > WIDTH - PAD and x > PAD:
            x, y = float(PAD), y + 18
        fill = f'<rect class="{kind}" x="{_n(x)}" y="{_n(y - 9)}" width="14" height="11"/>'
        found.append(f'{fill}<text x="{_n(x + 19)}" y="{_n(y)}">{_safe(text)}</text>')
        x += wide + 6
    notes = ["Numbers are micro-batches."] * tasks
    if any(len(block.items) > 1 for d in drawn for row in d.blocks for block in row):
        notes.append("Short events are merged; a block is as high as the share of its time that is busy.")
    for line in filter(None, (note, " ".join(notes))):
        y += 17
        found.append(f'<text class="s" x="{PAD}" y="{_n(y)}">{_safe(line)}</text>')
    return found, y + PAD


def _share(share: float) -> str:
    return "<1%" if 0 < share < 0.01 else f"{share:.0%}"


def _colour(index: int, colours: Sequence[str]) -> str:
    return COLOURS[index] if colours[index] != OTHER and index < len(COLOURS) else GREY


def _used(drawn: Sequence[_Drawn]) -> list[tuple[int, int]]:
    """The pairs of colour and phase that blocks have, and every colour by itself for the legend."""
    found = {(b.colour, b.phase) for d in drawn for row in d.blocks for b in row if b.colour >= 0}
    return sorted(found | {(i, 0) for i in range(len(drawn[0].items.colours))})


def _fills(drawn: Sequence[_Drawn], count: int) -> str:
    """CSS: how blocks are filled."""
    colours = drawn[0].items.colours
    rules = [f"#ID .c{c}p{p}{{fill:{_colour(c, colours) if p == 0 else f'url(#ID-{c}-{p})'}}}" for c, p in _used(drawn)]
    return "".join([*rules, *(f"#ID .p{p}{{fill:url(#ID-{p})}}" for p in range(1, len(PHASES)))])


def _patterns(drawn: Sequence[_Drawn], name: str) -> Iterator[str]:
    """Hatches: lines for backward, dots for update, on each colour that has them, and on grey for the legend."""
    colours = drawn[0].items.colours
    yield "<defs>"
    fills = [(f"{c}-{p}", _colour(c, colours), p) for c, p in _used(drawn) if p]
    for key, fill, phase in [*fills, *((f"{p}", GREY, p) for p in range(1, len(PHASES)))]:
        ink = on(fill)
        line = f'<path d="M-1 1l2-2M0 6l6-6M5 7l2-2" stroke="{ink}" stroke-opacity=".38"/>'
        dots = f'<circle cx="1.5" cy="1.5" r="1.1" fill="{ink}" fill-opacity=".55"/>'
        size = 6 if phase == 1 else 4
        shape = line if phase == 1 else dots
        yield (
            f'<pattern id="{name}-{key}" width="{size}" height="{size}" patternUnits="userSpaceOnUse">'
            f'<rect width="{size}" height="{size}" fill="{fill}"/>{shape}</pattern>'
        )
    yield "</defs>"


def _n(value: float) -> str:
    """A length in pixels, to a hundredth."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _cut(text: str, length: int) -> str:
    """`text`, cut to its last `length` characters."""
    return text if len(text) <= length else f"…{text[1 - length :]}"


def _safe(text: str) -> str:
    """Text as XML holds it."""
    return escape(_INVALID.sub("�", text))
