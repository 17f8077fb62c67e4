"""Where the parts of a network are computed: the papers' figures of placements, as tables and as pictures.

A part is a layer or a module. An item's `parts` names it for each workload by a regular expression, which the beginning of an
operation's module, or of its name if it has no module, must match.
"""

from __future__ import annotations

import csv
import functools
import io
import itertools
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

from placekit_core import RunError, write_atomically
from placekit_core.run.run_directory import find_runs, load_summary
from placekit_papers.runs import DATA, track_names

OTHER = "other"
"""The part of all operations that the regular expression does not match."""
ALL = "all"
"""The row of a table with all parts: how the devices are loaded."""
Parts = Mapping[str, Mapping[str, float]]
"""Seconds of computation of one run, by part of the network and device."""
_HEAD = ["workload", "cluster", "method", "seed", "part", "device", "seconds"]
_ROW, _WIDTH, _LABEL = 16, 150, 170  # of a picture: height of a part, width of a placement, width of the names; pixels
_COLORS = ("#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#8c959f", "#ff8ab7", "#a463f2", "#97bbf5", "#9c6b4e")

_STYLE = (
    "<style>text{fill:#1f2328}text.b{fill:#1f2328;font-size:9px}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}text.b{fill:#1f2328}}</style>"
)
_NAMED = 34  # pixels of a bar that has room for the name of its device


class Placed(NamedTuple):
    """Where a run computes the parts of its network."""

    workload: str
    cluster: str
    method: str
    seed: int
    parts: Parts


def parts_in(folder: Path, patterns: Mapping[str, str], method: str = "") -> list[Placed]:
    """The parts of the runs of a sweep below a folder, of those workloads that `patterns` has."""
    found = []
    for run_dir in find_runs([folder]):
        run = load_summary(run_dir)
        if run.workload in patterns and (run_dir / "schedule.trace.json").is_file():
            parts = parts_of(run_dir / "schedule.trace.json", patterns[run.workload])
            found.append(Placed(run.workload, run.cluster, method or run.policy, run.seed, parts))
    return found


def parts_of(trace: Path, pattern: str) -> Parts:
    """Seconds by part and device in a trace of a schedule."""
    events = json.loads(trace.read_text())["traceEvents"]
    tracks = track_names(events)
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for e in events:
        if e["ph"] == "X" and "module" in e["args"]:
            match = re.match(pattern, e["args"]["module"] or e["name"])
            found[match[0] if match else OTHER][tracks[e["tid"]]] += e["dur"] / 1e6
    return found


def write_parts(found: Iterable[Placed], path: Path) -> None:
    """Write a CSV that `read_parts` reads."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(_HEAD)
    for run in sorted(found, key=lambda r: r[:4]):
        for part, devices in sorted(run.parts.items()):
            for device, seconds in sorted(devices.items()):
                writer.writerow([*run[:4], part, device, f"{seconds:.5g}"])
    write_atomically(path, file.getvalue().encode())


def read_parts(path: Path) -> list[Placed]:
    """The rows of a CSV. Raises RunError if there is no such file."""
    if not path.is_file():
        raise RunError(f"no file {path}", "run the item with --run")
    found: dict[tuple[str, str, str, int], dict[str, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            key = row["workload"], row["cluster"], row["method"], int(row["seed"])
            found[key][row["part"]][row["device"]] = float(row["seconds"])
    return [Placed(*key, parts) for key, parts in found.items()]


@functools.cache
def recorded_parts(name: str) -> Mapping[tuple[str, str, str], Mapping[int, Parts]]:
    """The parts in a CSV of the package's `data` folder, by (workload, cluster, method) and seed."""
    found: dict[tuple[str, str, str], dict[int, Parts]] = defaultdict(dict)
    for run in read_parts(DATA / f"{name}.csv"):
        found[run[:3]][run.seed] = run.parts
    return found


def _groups(found: Iterable[Placed]) -> dict[tuple[str, str], list[Placed]]:
    """The run with the smallest seed of each method, by workload and machine."""
    groups: dict[tuple[str, str], dict[str, Placed]] = defaultdict(dict)
    for run in sorted(found, key=lambda r: r.seed):
        groups[run[:2]].setdefault(run.method, run)
    return {place: [*methods.values()] for place, methods in groups.items()}


def parts_table(found: Iterable[Placed]) -> list[str]:
    """For each workload and machine, a line per part: by method, the devices with most of its computation and their shares."""
    text = list[str]()
    for (workload, cluster), runs in _groups(found).items():
        rows = [["part", *(f"{run.method}, seed {run.seed}" for run in runs)]]
        rows += [[part, *map(_devices, seconds)] for part, seconds in _rows(runs)]
        width = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        text += ["", f"{workload} on {cluster}: devices that compute a part, and their shares"]
        text += ["  ".join(c.ljust(w) for c, w in zip(row, width, strict=True)).rstrip() for row in rows]
    return text


def _rows(runs: Sequence[Placed]) -> Iterator[tuple[str, list[Mapping[str, float]]]]:
    """The seconds by device that each run computes, for each part in the order of names; then for `other` and for `all`."""
    parts = {part for run in runs for part in run.parts}
    for part in sorted(parts, key=lambda part: (part == OTHER, part)):
        yield part, [run.parts.get(part, {}) for run in runs]
    yield ALL, [sum((Counter(dict(seconds)) for seconds in run.parts.values()), Counter()) for run in runs]


def _devices(seconds: Mapping[str, float]) -> str:
    total = sum(seconds.values())
    shares = [
        f"{device} {100 * x / total:.0f}%" for device, x in Counter(seconds).most_common(3) if x and x >= 0.005 * total
    ]
    return ", ".join(shares) or "-"


def parts_svg(found: Sequence[Placed]) -> str:
    """A picture: a row per part, a column per method, and bars in the devices' colors as long as their shares.

    Raises RunError if no run has parts.
    """
    if not found:
        raise RunError("no run has parts to draw", "leave out --svg, or run the item's own workloads")
    devices = sorted({device for run in found for seconds in run.parts.values() for device in seconds})
    colors = dict(zip(devices, itertools.cycle(_COLORS), strict=False))
    body, y, groups = list[str](), _ROW, _groups(found)
    for i, device in enumerate(devices):
        body += [_bar(_LABEL + 80 * i, 3, 10, colors[device], device), _text(_LABEL + 80 * i + 14, 12, device)]
    for (workload, cluster), runs in groups.items():
        body += [_text(4, y + 12, f"{workload} on {cluster}", "bold")]
        body += [_text(_LABEL + i * (_WIDTH + 10), y + 12, run.method) for i, run in enumerate(runs)]
        for part, by_run in _rows(runs):
            y += _ROW
            body += [_text(4, y + 12, part)]
            for i, seconds in enumerate(by_run):
                body += _bars(_LABEL + i * (_WIDTH + 10), y, seconds, colors)
        y += 2 * _ROW
    width = _LABEL + max(80 * len(devices), max(map(len, groups.values())) * (_WIDTH + 10))
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y}" font-family="sans-serif" font-size="11">'
    return "\n".join([head, _STYLE, *body, "</svg>", ""])


def _bars(x: float, y: float, seconds: Mapping[str, float], colors: Mapping[str, str]) -> list[str]:
    total, bars = sum(seconds.values()), list[str]()
    for device, spent in sorted(seconds.items()) if total else ():
        width = _WIDTH * spent / total
        bars.append(_bar(x, y + 2, width, colors[device], f"{device} {spent / total:.0%}"))
        if width >= _NAMED:
            bars.append(f'<text class="b" x="{x + 3:.1f}" y="{y + 11}">{escape(device)}</text>')
        x += width
    return bars


def _bar(x: float, y: float, width: float, color: str, title: str) -> str:
    return f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="12" fill="{color}"><title>{escape(title)}</title></rect>'


def _text(x: float, y: float, text: str, weight: str = "normal") -> str:
    return f'<text x="{x}" y="{y}" font-weight="{weight}">{escape(text)}</text>'
