"""Renders the data of a report as one HTML file: tables without scripts, and a timeline drawn by scripts."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from placekit_report.page import sections, tree
from placekit_report.page.markup import Child, Markup, prose, quantity, table, tag, text
from placekit_report.page.sections import Data, outcome

FOLDER = Path(__file__).parent
SCRIPTS = ("base.js", "events.js", "view.js", "timeline.js", "main.js")


def render(data: Mapping[str, Any]) -> str:
    """The page of a run, from data in the form of `document.document`. Write it as UTF-8.

    Raises ValueError if a number of the data is not finite.
    """
    programs = data["run"]["programs"]
    articles = [program(p, i, data["run"]["notes"], len(programs) > 1) for i, p in enumerate(programs)]
    return html(data["title"], [header(data), articles, footer(data)], data)


def html(title: str, body: Child, data: Mapping[str, Any] | None = None) -> str:
    """A page in the look of a report. With `data`, the page's scripts draw timelines; without, it has no scripts."""
    script, style = scripts() if data is not None else "", styles()
    rules = [
        "default-src 'none'",
        f"script-src '{sha256(script)}'",
        f"style-src '{sha256(style)}'",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    embedded = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    values = {
        "title": text(title),
        "policy": text("; ".join(rules)),
        "style": style,
        "script": script,
        "data": embedded,
        "body": text(body),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda m: values[m[1]], _file("template.html"))


@cache
def scripts() -> str:
    """The page's code, in a scope of its own."""
    own = "\n".join(map(_file, SCRIPTS))
    return f'(() => {{\n"use strict";\n{own}\n}})();\n'


@cache
def styles() -> str:
    return _file("page.css")


def _file(name: str) -> str:
    """A file of the page, in UTF-8 whatever the locale."""
    return (FOLDER / name).read_text(encoding="utf-8")


def sha256(code: str) -> str:
    """The hash by which a content security policy allows inline code."""
    return "sha256-" + base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()


def header(data: Data) -> Child:
    """Title, a sentence on simulation or measurement, and the programs of a family."""
    run = data["run"]
    truth = tag("em", run["truth"], class_=run["truth"])
    return tag(
        "header",
        tag("h1", data["title"]),
        tag("p", truth, " ", run["truth_text"], class_="truth"),
        tag("p", facts(run), class_="soft"),
        families(run) if len(run["programs"]) > 1 else None,
    )


def facts(run: Data) -> str:
    """The run's folder, its components and the version of placekit."""
    s = run["summary"]
    named = [f"{kind} {s[kind]}" for kind in ("policy", "trainer", "grouper", "backend", "cluster") if s.get(kind)]
    version = s.get("versions", {}).get("placekit-core")
    words = [run["name"], *named, f"seed {s.get('seed')}", *([f"placekit {version}"] if version else [])]
    return ", ".join(words)


def families(run: Data) -> Markup:
    """A row for each program of a run with several."""
    rows = [
        [p["program"], outcome(p), quantity(p["bound_s"], p["unit"]), f"{p['evaluations']:,}"] for p in run["programs"]
    ]
    heads = ["program", sections.value_name(run["programs"][0]), "proven bound", "evaluations"]
    return table(heads, rows, caption="Programs of this run", numeric=(1, 2, 3))


def footer(data: Data) -> Markup:
    note = "This file needs no network. The numbers are in it as JSON, in the element placekit-data."
    return tag("footer", tag("p", f"placekit {data['placekit']}. {note}", class_="soft"))


def program(data: Data, number: int, run_notes: list[str], several: bool) -> Markup:
    """Everything about one program; `number` is its place in the run, by which scripts find its data."""
    notes = dict.fromkeys([*run_notes, *data["notes"]])
    titled = {
        "Baselines": sections.baselines(data),
        "Use this placement": sections.exports(data),
        "Timeline": timeline(data),
        "Devices": sections.devices(data),
        "Critical path": sections.critical(data),
        "What would change it": sections.change(data),
        "Modules": tree.modules(data),
        "Cut edges": sections.cut(data),
        "Search": sections.search(data),
    }
    parts: list[Child] = [
        tag("h2", data["program"]) if several else None,
        sections.numbers(data),
        sections.binds(data),
        tag("ul", [tag("li", prose(note)) for note in notes], class_="notes") if notes else None,
        [section(title, part) for title, part in titled.items() if part is not None],
    ]
    return tag("article", parts, data_program=data["program"], data_number=number)


def section(title: str, *children: Child) -> Markup:
    return tag("section", tag("h3", title), children)


def timeline(data: Data) -> Markup | None:
    """Where scripts draw the timeline, and the longest events as a table."""
    t = data["timeline"]
    if t is None:
        return None
    few = f"{t['left_out']:,} events that are shorter than all others are left out." if not t["complete"] else None
    drawn = tag("div", tag("p", few, class_="soft") if few else None, class_="timeline")
    longest = tag("details", tag("summary", "The longest events as a table"), sections.longest(data))
    return tag("div", drawn, longest)
