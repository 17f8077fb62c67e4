"""`render`: the data of a report as one HTML file. Tables first; scripts, which lie in it, make timelines and curves."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from placekit_report.page import sections, tree
from placekit_report.page.differences import differences
from placekit_report.page.markup import Child, Markup, seconds, table, tag, text
from placekit_report.page.sections import Data, baselines, outcome

FOLDER = Path(__file__).parent
SCRIPTS = ("base.js", "view.js", "drawing.js", "events.js", "input.js", "timeline.js", "charts.js", "main.js")
LETTERS = "AB"
Part = Callable[[Data], Child]
Of = list[tuple[int, int]]
"""Which programs a part shows: (run, program), one for each run."""


def render(data: Mapping[str, Any]) -> str:
    """The page of a run, or of two that are compared; `data` has the form of a report. Write it as UTF-8.

    Raises ValueError if a number of the data is not finite.
    """
    return html(data["title"], [header(data), [program(data, of) for of in pairs(data)], footer(data)], data)


def html(title: str, body: Child, data: Mapping[str, Any]) -> str:
    """A page in the look of a report: its scripts draw `data` into the elements of `body` that ask for a chart."""
    script, style = scripts(), styles()
    rules = "; ".join(
        [
            "default-src 'none'",
            f"script-src '{sha256(script)}'",
            f"style-src '{sha256(style)}'",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )
    values = {
        "title": text(title),
        "policy": text(rules),
        "style": style,
        "script": script,
        "data": json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"),
        "body": text(body),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda m: values[m[1]], _file("template.html"))


@cache
def scripts() -> str:
    """The library and the page's own code. The library's first comment has an address, which its licence replaces."""
    library = _file("vendor/uPlot.iife.min.js")
    licence = _file("vendor/LICENSE")
    library = re.sub(r"\A/\*!.*?\*/", lambda _: f"/* uPlot 1.6.32\n{licence}*/", library, flags=re.S)
    own = "\n".join(map(_file, SCRIPTS))
    return f'{library}\n(() => {{\n"use strict";\n{own}\n}})();\n'


@cache
def styles() -> str:
    return _file("vendor/uPlot.min.css") + _file("page.css")


def _file(name: str) -> str:
    """A file of the page, in UTF-8 whatever the locale."""
    return (FOLDER / name).read_text(encoding="utf-8")


def sha256(code: str) -> str:
    """The hash by which a policy of contents allows inline code."""
    return "sha256-" + base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()


def pairs(data: Data) -> list[Of]:
    """The programs of one run; or those of both that have the same name, and the first of each if none has."""
    runs = [run["programs"] for run in data["runs"]]
    if len(runs) == 1:
        return [[(0, i)] for i in range(len(runs[0]))]
    where = {p["program"]: i for i, p in enumerate(runs[1])}
    both = [[(0, i), (1, where[p["program"]])] for i, p in enumerate(runs[0]) if p["program"] in where]
    return both or [[(0, 0), (1, 0)]]


def unpaired(data: Data) -> list[str]:
    """What a page of two runs does not compare: other programs, and programs of one run only."""
    of = pairs(data)
    if len(data["runs"]) == 1:
        return []
    names = [[p["program"] for p in run["programs"]] for run in data["runs"]]
    found = []
    if names[0][of[0][0][1]] != names[1][of[0][1][1]]:
        found.append(f"the runs have no program in common: {names[0][0]!r} of A stands beside {names[1][0]!r} of B")
    for letter, (r, own) in zip(LETTERS, enumerate(names), strict=True):
        left = [repr(name) for i, name in enumerate(own) if (r, i) not in [pair[r] for pair in of]]
        found += [f"only {letter} has {', '.join(left)}: not shown"] if left else []
    return found


def header(data: Data) -> Child:
    """Title, what was simulated or measured, the command, notes."""
    runs = data["runs"]
    parts: list[Child] = [tag("h1", data["title"])]
    lettered = [(tag("b", a) if len(runs) > 1 else None, run) for a, run in zip(LETTERS, runs, strict=False)]
    if len(runs) > 1:
        parts.append(tag("p", [tag("span", letter, run["name"]) for letter, run in lettered], class_="runs"))
    for letter, run in lettered:
        truth = tag("em", run["truth"], class_=run["truth"])
        parts.append(tag("p", letter, truth, " ", run["truth_text"], class_="truth"))
    parts.append(tag("p", facts(runs[0]), class_="soft") if len(runs) == 1 else None)
    for letter, run in lettered:
        code = tag("code", run.get("command", data["command"]))
        command = tag("pre", code, tabindex="0", role="region", aria_label="The command that made it")
        parts.append(tag("div", letter, command, class_="command"))
    for letter, run in lettered:
        parts += (
            [tag("p", letter, class_="runs") if letter else None, families(run)] if len(run["programs"]) > 1 else []
        )
    missing = [tag("li", note) for note in unpaired(data)]
    parts.append(tag("ul", missing, class_="notes") if missing else None)
    return tag("header", parts)


def facts(run: Data) -> str:
    """Which methods ran, on what, with which versions."""
    s = run["summary"]
    named = [f"{kind} {s[kind]}" for kind in ("policy", "trainer", "grouper", "backend", "cluster") if s.get(kind)]
    version = s.get("versions", {}).get("placekit-core")
    return ", ".join([*named, f"seed {s.get('seed')}", *([f"placekit {version}"] if version else [])])


def families(run: Data) -> Markup:
    """A row for each program of a run with several."""
    rows = [[p["program"], outcome(p), seconds(p["bound_s"]), f"{p['evaluations']:,}"] for p in run["programs"]]
    name = sections.value_name(run["programs"][0])
    return table(
        ["program", name, "proven bound", "evaluations"], rows, caption="Programs of this run", numeric=(1, 2, 3)
    )


def footer(data: Data) -> Markup:
    told = "This file needs no network. The numbers are in it as JSON, in the element placekit-data."
    return tag("footer", tag("p", f"placekit {data['placekit']}. {told}", class_="soft"))


def program(data: Data, of: Of) -> Markup:
    """Everything about one program."""
    found = [data["runs"][r]["programs"][p] for r, p in of]
    name = found[0]["program"]
    several = len(pairs(data)) > 1
    notes = notes_of(data, of)
    parts: list[Child] = [
        tag("h2", name) if several else None,
        each(data, of, lambda p, run: sections.numbers(p, run)),
        tag("ul", [tag("li", note) for note in notes], class_="notes") if notes else None,
    ]
    if len(of) == 2:
        parts.append(section("Differences", differences(*[data["runs"][r] for r, _ in of], *found)))
        moved = tree.moved(*found)
        parts.append(section("What moved", moved) if moved is not None else None)
    parts += [
        both(data, of, "Baselines", baselines),
        timelines(data, of),
        both(data, of, "Devices", sections.devices, wide=True),
        both(data, of, "Critical path", sections.critical),
        both(data, of, "What would change it", sections.change),
        both(data, of, "Memory", sections.memory),
        both(data, of, "Modules", tree.modules),
        both(data, of, "Cut edges", sections.cut, wide=True),
        both(data, of, "Search", sections.search),
    ]
    return tag("article", parts, data_program=name)


def notes_of(data: Data, of: Of) -> list[Child]:
    """What to know about the programs and their runs; a note of one of two runs has its letter."""
    found: dict[str, list[str]] = {}
    for letter, (r, p) in zip(LETTERS, of, strict=False):
        run = data["runs"][r]
        for note in dict.fromkeys([*run.get("notes", ()), *run["programs"][p]["notes"]]):
            found.setdefault(note, []).append(letter)
    return [[tag("b", by[0]) if len(by) < len(of) else None, note] for note, by in found.items()]


def section(title: str, *children: Child) -> Markup:
    return tag("section", tag("h3", title), children)


def each(data: Data, of: Of, part: Callable[[Data, Data], Child], wide: bool = False) -> Markup:
    """A part of the only run; or of both, beside each other or, if `wide`, below each other. Scripts go by `data-of`."""
    found = []
    for k, (r, p) in enumerate(of):
        run = data["runs"][r]
        head = tag("h4", tag("b", LETTERS[k]), run["name"], class_="run") if len(of) > 1 else None
        found.append(tag("div", head, part(run["programs"][p], run), data_of=f"{r}.{p}", class_="of"))
    return tag("div", found, class_="one" if len(of) == 1 else "two stacked" if wide else "two")


def both(data: Data, of: Of, title: str, part: Part, wide: bool = False) -> Markup | None:
    """A section of one part; nothing if no run has it."""
    if all(part(data["runs"][r]["programs"][p]) is None for r, p in of):
        return None
    return section(
        title, each(data, of, lambda found, _: part(found) or tag("p", "Not in this run.", class_="soft"), wide)
    )


def timelines(data: Data, of: Of) -> Markup | None:
    """The timelines below each other, on one time axis, and the longest events."""
    parts: list[Child] = []
    for k, (r, p) in enumerate(of):
        run = data["runs"][r]
        t = run["programs"][p]["timeline"]
        if t is None:
            continue
        head = tag("h4", tag("b", LETTERS[k]), run["name"], class_="run") if len(of) > 1 else None
        few = f"{t['left_out']:,} events that are shorter than all others are left out." if not t["complete"] else None
        note = tag("p", few, class_="soft") if few else None
        label = f"{LETTERS[k]}: {run['name']}" if len(of) > 1 else None
        parts.append(tag("div", head, note, data_of=f"{r}.{p}", class_="timeline", data_label=label))
    if not parts:
        return None
    tables = both_longest(data, of)
    return section("Timeline", parts, tag("details", tag("summary", "The longest events as a table"), tables))


def both_longest(data: Data, of: Of) -> Markup:
    return each(data, of, lambda found, _: sections.longest(found))
