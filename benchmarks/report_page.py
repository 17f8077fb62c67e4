"""How large a report is, how long it takes to write, and how long a frame takes while zooming, in a headless Chromium.

`python benchmarks/report_page.py REPORT.html... [--events N] [--write]`: `--events` adds a row for each report in which the
step of the first program's timeline is repeated until there are N events; `--write` keeps the table in
benchmarks/results/report_page.md. `python benchmarks/report.py --keep DIR` makes reports. A frame is one drawing of the
timeline's canvas; Chromium draws in software (`--disable-gpu`).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from placekit_report.page import render
from placekit_report.page.page import scripts, styles
from placekit_testing.browser import Browser, chromium

RESULT = Path(__file__).parent / "results" / "report_page.md"
DATA = re.compile(r'<script type="application/json" id="placekit-data">(.*?)</script>', re.S)
ZOOM = """(() => {
  const t = placekit.timelines[0], v = t.view, times = [];
  const draw = () => { const began = performance.now(); t.draw(); t.context.getImageData(0, 0, 1, 1);
    times.push(performance.now() - began); };
  for (let i = 0; i < 30; i++) { v.zoom(0.8, v.end * 0.4); draw(); }
  for (let i = 0; i < 30; i++) { v.zoom(1.25, v.end * 0.4); draw(); }
  return times.sort((a, b) => a - b);
})()"""
"""Zoom in 30 times and out again; reading a pixel waits until all is drawn."""


def repeated(timeline: dict[str, Any], events: int) -> None:
    """Repeat a timeline's step, one after the other, until it has at least this many events."""
    columns, end = timeline["events"], timeline["end_s"]
    size = len(columns["track"])
    times = -(-events // size)
    order = sorted(range(size * times), key=lambda i: (columns["track"][i % size], i // size, i % size))
    place = {i: k for k, i in enumerate(order)}
    made = {key: [column[i % size] for i in order] for key, column in columns.items()}
    made["start_s"] = [columns["start_s"][i % size] + (i // size) * end for i in order]
    causes = [(columns["cause"][i % size], i // size) for i in order]
    made["cause"] = [place[cause + step * size] if cause >= 0 else -1 for cause, step in causes]
    timeline["events"], timeline["end_s"] = made, end * times
    timeline["critical"] = [place[e + step * size] for step in range(times) for e in timeline["critical"]]


def row(browser: Browser, name: str, data: dict[str, Any], path: Path) -> str:
    """Make the page, open it, zoom."""
    began = time.perf_counter()
    page = render(data).encode()
    seconds = time.perf_counter() - began
    path.write_bytes(page)
    began = time.perf_counter()
    browser.open(path)
    browser.settle()
    opened = time.perf_counter() - began
    times = browser.evaluate(ZOOM)
    size = len(data["runs"][0]["programs"][0]["timeline"]["events"]["track"])
    median = times[len(times) // 2]
    return f"| {name} | {size:,} | {len(page) / 1e3:,.0f} | {seconds:.2f} | {opened:.2f} | {median:.1f} | {times[-1]:.1f} |"


def main() -> None:
    """A row per report, and one with its step repeated."""
    parser = argparse.ArgumentParser()
    parser.add_argument("reports", nargs="+", type=Path, metavar="REPORT.html")
    parser.add_argument("--events", type=int, default=0, help="repeat the timeline until it has so many events")
    parser.add_argument("--write", action="store_true", help="keep the table in benchmarks/results")
    args = parser.parse_args()
    own = len((scripts() + styles()).encode()) / 1e3
    lines = [
        "# The page of a report in a browser",
        "",
        "`python benchmarks/report_page.py REPORT.html... --events 50000 --write`, with the reports of",
        f"`python benchmarks/report.py --keep DIR`. Scripts and styles, without data: {own:.0f} kB. A frame draws the canvas",
        "of the timeline, about 1,100 pixels wide, in software; 60 frames zoom in and out.",
        "",
        "| report | events | kB | render, s | open, s | frame: median, ms | worst, ms |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    with Browser() as browser, tempfile.TemporaryDirectory() as folder:
        for report in args.reports:
            found = DATA.search(report.read_text())
            if found is None:
                raise SystemExit(f"{report} is not a report of placekit")
            name, path = report.parent.name or report.stem, Path(folder) / "report.html"
            data = json.loads(found[1])
            lines.append(row(browser, name, data, path))
            if args.events:
                repeated(data["runs"][0]["programs"][0]["timeline"], args.events)
                lines.append(row(browser, f"{name}, step repeated", data, path))
    lines += [
        "",
        f"machine: {os.cpu_count()} cores, Python {platform.python_version()}, {version()}; load {os.getloadavg()[0]:.1f}",
    ]
    print("\n".join(lines))
    if args.write:
        RESULT.write_text("\n".join(lines) + "\n")


def version() -> str:
    """Name and version of the browser."""
    program = chromium()
    assert program is not None
    found = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    return " ".join(found.split()[:2])


if __name__ == "__main__":
    main()
