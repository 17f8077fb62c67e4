"""How large a report is, how long it takes to write, and how long a frame takes while zooming, in a headless Chromium.

`python benchmarks/report_page.py REPORT.html... [--events N]`: `--events` repeats the steps of the first program's timeline until
there are N events. A frame is one drawing of the timeline's canvas; Chromium draws in software (`--disable-gpu`).
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
import time
from pathlib import Path
from typing import Any

from placekit_report.page import render
from placekit_report.page.page import scripts, styles
from placekit_testing.browser import Browser

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


def main() -> None:
    """A row per report."""
    parser = argparse.ArgumentParser()
    parser.add_argument("reports", nargs="+", type=Path, metavar="REPORT.html")
    parser.add_argument("--events", type=int, default=0, help="repeat the timeline until it has so many events")
    args = parser.parse_args()
    print(f"page without data: {len((scripts() + styles()).encode()) / 1e3:.0f} kB of scripts and styles")
    print(f"{'report':30} {'events':>7} {'kB':>6} {'render s':>8} {'open s':>6} {'frame ms: median':>16} {'worst':>6}")
    with Browser() as browser, tempfile.TemporaryDirectory() as folder:
        for report in args.reports:
            found = DATA.search(report.read_text())
            if found is None:
                raise SystemExit(f"{report} is not a report of placekit")
            data = json.loads(found[1])
            timeline = data["runs"][0]["programs"][0]["timeline"]
            if args.events:
                repeated(timeline, args.events)
            began = time.perf_counter()
            page = render(data).encode()
            seconds = time.perf_counter() - began
            path = Path(folder) / "report.html"
            path.write_bytes(page)
            began = time.perf_counter()
            browser.open(path)
            browser.settle()
            opened = time.perf_counter() - began
            times = browser.evaluate(ZOOM)
            size = len(timeline["events"]["track"])
            row = f"{len(page) / 1e3:6.0f} {seconds:8.2f} {opened:6.2f} {times[len(times) // 2]:16.1f} {times[-1]:6.1f}"
            print(f"{report.parent.name or report.stem:30} {size:7d} {row}")


if __name__ == "__main__":
    main()
