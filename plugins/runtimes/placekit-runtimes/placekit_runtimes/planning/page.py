"""A plan as HTML: `fragment` for a notebook, `page` for a file. Both need no network, and follow a light or dark background."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from placekit_core import PlacementError, units
from placekit_runtimes.planning.command import _seconds, _speed, _use, notes
from placekit_runtimes.planning.lines import lines
from placekit_runtimes.planning.plan import Plan
from placekit_runtimes.planning.split import EMBEDDINGS, Layout, Split
from placekit_runtimes.planning.strategies import RUNNERS, Row
from placekit_runtimes.planning.words import place, ranges

GPUS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8c6d31", "#a47dc2")
"""Colours of GPUs, by Okabe and Ito (2008), *Color Universal Design*, with a brown and a violet; further GPUs repeat them."""
HOST = "#8c959f"
"""The colour of host memory."""
KINDS = ("weights", "cache", "buffers")
"""What fills a device's memory, in shades of its colour."""
STYLE = (Path(__file__).parent / "page.css").read_text(encoding="utf-8")
PAGE_STYLE = """
:root { color-scheme: light dark; }
body { margin: 0; background: #ffffff; color: #1b1f24; }
main { padding: 24px 16px 48px; margin: 0 auto; }
@media (prefers-color-scheme: dark) { body { background: #15181c; color: #e4e7eb; } }
"""
SCRIPT = """
for (const button of document.querySelectorAll("button")) {
  button.hidden = false;
  button.addEventListener("click", () => {
    getSelection().selectAllChildren(button.parentElement.nextElementSibling);
    button.textContent = document.execCommand("copy") ? "copied" : "selected: press Ctrl+C";
  });
}
"""


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


Child = str | None | Iterable["Child"]


def text(child: Child) -> str:
    """The HTML of a child. Strings are escaped, except markup; halves of characters, as in names of files, become `?`."""
    if child is None or isinstance(child, Markup):
        return child or ""
    return escape(child.encode(errors="replace").decode()) if isinstance(child, str) else "".join(map(text, child))


def tag(element: str, *children: Child, **attributes: Any) -> Markup:
    """An element. In names of attributes `_` is `-`, and one at the end is left out; True has no value, None is left out."""
    given = [(k.rstrip("_").replace("_", "-"), v) for k, v in attributes.items() if v is not None]
    words = "".join(f" {k}" if v is True else f' {k}="{text(str(v))}"' for k, v in given)
    return Markup(f"<{element}{words}>{text(children)}</{element}>")


def fragment(plan: Plan) -> str:
    """The plan for a notebook, without scripts."""
    return tag(
        "div", tag("style", Markup(STYLE)), tag("h2", _title(plan)), _sections(plan, False), class_="placekit-plan"
    )


def page(plan: Plan) -> str:
    """The plan as a whole page. Write it as UTF-8."""
    style, title = PAGE_STYLE + STYLE, _title(plan)
    rules = f"default-src 'none'; script-src '{_sha256(SCRIPT)}'; style-src '{_sha256(style)}'; base-uri 'none'"
    head = Markup(
        f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{escape(rules)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
    )
    main = tag("main", tag("h1", title), _sections(plan, True), class_="placekit-plan")
    body = tag("body", main, tag("script", Markup(SCRIPT)))
    return f"<!doctype html>\n{tag('html', tag('head', head, tag('title', title), tag('style', Markup(style))), body, lang='en')}\n"


def _sha256(code: str) -> str:
    """The hash by which a content security policy allows inline code."""
    return f"sha256-{base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()}"


def _title(plan: Plan) -> str:
    return f"{plan.question.name} on {plan.question.cluster.name}"


def _sections(plan: Plan, copies: bool) -> Iterator[Child]:
    """What is below the title; `copies`: with buttons that copy the lines."""
    size = units.mebibytes(plan.question.checkpoint.bytes)
    yield tag("p", tag("em", "simulated"), f" {size} of weights, {_use(plan)}", class_="soft")
    try:
        row = plan.best
    except PlacementError as e:
        yield [tag("p", e.message, class_="verdict"), tag("p", e.hint)]
        yield _comparison(plan, None)
        return
    yield _verdict(plan, row)
    yield tag("ul", [tag("li", note) for note in notes(plan)])
    yield [tag("h3", "Layers"), _layers(plan, row)]
    yield [tag("h3", "Memory"), _memory(plan, row), _comparison(plan, row)]
    yield tag("h3", "Lines to paste")
    for runtime, strategies in plan.strategies.items():
        best = next((r for r in plan.rows if r.runtime == runtime and r.best), None)
        if best is not None:
            slower = plan.answer_s(best) / plan.answer_s(row) - 1
            cost = f", simulated to be {slower:.0%} slower" if slower > 0.01 else ""
            button = tag("button", "copy", type="button", hidden=True, aria_live="polite") if copies else None
            yield [tag("h4", RUNNERS[runtime].title, cost, button), tag("pre", lines(best, strategies.steps))]


def _number(value: float, shown: str) -> Markup:
    """A number as people read it; the exact one is its `value`."""
    return tag("data", shown, value=repr(float(value)))


def _verdict(plan: Plan, row: Row) -> Markup:
    users, answer_s = plan.question.options.users, plan.answer_s(row)
    speed = tag("strong", _number(users / row.decode_s, _speed(users / row.decode_s)), " tokens/s")
    answer = tag(
        "strong", _number(answer_s, _seconds(answer_s)), f" for {users} answers at once" if users > 1 else " per answer"
    )
    runner = RUNNERS[row.runtime].title
    return tag(
        "p",
        f"Put {plan.verdict}: {runner} then generates ",
        speed,
        " and takes ",
        answer,
        ", simulated.",
        class_="verdict",
    )


def _colour(plan: Plan, device: int) -> str:
    gpus = sorted(plan.question.gpus)
    return GPUS[gpus.index(device) % len(GPUS)] if device in gpus else HOST


def _rect(x: float, width: float, fill: str, title: str, unit: str = "%", kind: int = 0) -> Markup:
    """A part of a bar or of a row of cells, `kind` of `KINDS`; `title` is shown to who points at it."""
    shade = (1.0, 0.65, 0.35)[kind]
    return tag(
        "rect",
        tag("title", title),
        x=f"{x:.5g}{unit}",
        width=f"{width:.5g}{unit}",
        height="100%",
        fill=fill,
        opacity=shade,
    )


def _swatch(fill: str, kind: int = 0) -> Markup:
    return tag("svg", _rect(0, 100, fill, "", kind=kind), class_="swatch", aria_hidden="true")


def _kept(layout: Layout, split: Split) -> list[int]:
    """The device that keeps most of the weights of each layer."""
    size, inside = np.zeros((layout.layers + 1, int(split.held.max()) + 1)), layout.layer >= 0
    np.add.at(size, (layout.layer[inside], split.held[inside]), layout.bytes[inside])
    found: list[int] = size.argmax(axis=1)[: layout.layers].tolist()
    return found


def _layers(plan: Plan, row: Row) -> list[Markup]:
    """A cell for each layer and the output; below, one for its routed experts, or for weights that are copied in every step."""
    split, layout, cluster = row.split, plan.strategies[row.runtime].steps.layout, plan.question.cluster
    assert split is not None
    routed = layout.routed.tolist()
    rows: dict[str, list[int | None]] = {"layers": split.home.tolist()}
    if split.streams:
        rows["weights"] = [*_kept(layout, split)]
    elif any(routed):
        rows["experts"] = [d if own else None for d, own in zip(split.away(layout).tolist(), routed, strict=True)]
    cells, held = list[Child](), {d: list[str]() for d in np.unique([*split.home, *split.held]).tolist()}
    for name, devices in rows.items():
        drawn, of = [], {d: [i for i, x in enumerate(devices[: layout.layers]) if x == d] for d in held}
        for i, d in enumerate(devices):
            if d is not None:
                what = "output" if i == layout.layers else f"layer {i}" if name == "layers" else f"{name} of layer {i}"
                x = i + 0.5 * (i == layout.layers)
                drawn.append(_rect(x, 0.88, _colour(plan, d), f"{what}: {cluster.device_names[d]}", ""))
        label = ", ".join(f"{ranges(own)} {place(cluster, d)}" for d, own in of.items() if own)
        view = {"viewBox": f"0 0 {layout.layers + 1.5} 1", "preserveAspectRatio": "none"}
        cells += [tag("span", name), tag("svg", drawn, **view, role="img", aria_label=f"{name}: {label}")]
        for d, own in of.items():
            held[d] += [f"{'layers' if name == 'layers' else f'{name} of layers'} {ranges(own)}"] if own else []
    held[int(split.home[-1])].append("output")
    for d in {int(split.held[layout.index[name]]) for name in EMBEDDINGS if name in layout.index}:
        held[d].append("embedding")
    axis = tag(
        "div", *(tag("span", x) for x in ("0", f"{layout.layers - 1} | output")), class_="axis", aria_hidden="true"
    )
    legend = [
        tag("li", _swatch(_colour(plan, d)), f"{cluster.device_names[d]}: {', '.join(x)}") for d, x in held.items() if x
    ]
    return [tag("div", cells, axis, class_="layers"), tag("ul", legend, class_="legend")]


def _memory(plan: Plan, row: Row) -> list[Markup]:
    """A bar for each device that holds something: its usable memory, and what fills it."""
    memory, figures = row.memory, []
    assert memory is not None
    for d in np.flatnonzero(memory.used > 0).tolist():
        name, fill, whole = (
            plan.question.cluster.device_names[d],
            _colour(plan, d),
            float(memory.used[d] + memory.free[d]),
        )
        parts, drawn, words, begin = (memory.weights, memory.cache, memory.compute), list[Child](), list[Child](), 0.0
        for kind, (what, part) in enumerate(zip(KINDS, parts, strict=True)):
            drawn.append(_rect(100 * begin / whole, 100 * part[d] / whole, fill, what, kind=kind))
            words += [_swatch(fill, kind), f"{what} ", _number(part[d], f"{part[d] / 2**30:.2f}"), ", "]
            begin += part[d]
        words += [
            "left ",
            _number(memory.free[d], f"{memory.free[d] / 2**30:.2f}"),
            f" of {whole / 2**30:.2f} GiB that are usable",
        ]
        bar = tag("svg", drawn, role="img", aria_label=f"{name}: {begin / whole:.0%} of the usable memory is full")
        figures.append(tag("figure", tag("div", name), bar, tag("figcaption", words)))
    return figures


def _comparison(plan: Plan, best: Row | None) -> list[Markup]:
    """A row for each strategy: its speed, or why it does not work."""
    users, prompt = plan.question.options.users, plan.question.options.prompt
    longest = max((plan.answer_s(row) for row in plan.rows if row.works), default=0.0)
    body = []
    for row in plan.rows:
        cells: list[Child] = [tag("td", _missing(plan, row), colspan=4)]
        if row.works:
            speeds, answer_s = (users / row.decode_s, prompt / row.prompt_s), plan.answer_s(row)
            drawn = _rect(0, 100 * answer_s / longest, "currentColor", _seconds(answer_s), kind=0 if row is best else 2)
            bar = tag("svg", drawn, aria_hidden="true")
            cells = [tag("td", _number(x, _speed(x)), class_="n") for x in speeds]
            cells += [tag("td", _number(answer_s, _seconds(answer_s)), class_="n"), tag("td", bar, class_="bar")]
        body.append(tag("tr", tag("th", row.name, scope="row"), cells, class_="best" if row is best else None))
    heads = [tag("th", "strategy", scope="col")]
    heads += [tag("th", head, scope="col", class_="n") for head in ("tokens/s", "prompt tokens/s", "answer")]
    caption = f"Simulated{', all users together' if users > 1 else ''}; bars show the seconds of an answer"
    table = tag("table", tag("caption", caption), tag("thead", tag("tr", heads, tag("td"))), tag("tbody", body))
    return [
        tag("h3", "Comparison"),
        tag("div", table, class_="scroll", tabindex=0, role="region", aria_label="Comparison"),
    ]


def _missing(plan: Plan, row: Row) -> str:
    """Why a row does not work: the memory that each device lacks, or another reason."""
    if row.memory is None or not row.memory.lacking:
        return row.error
    names, free = plan.question.cluster.device_names, row.memory.free
    return "lacks " + ", ".join(f"{units.mebibytes(-free[d])} on {names[d]}" for d in np.flatnonzero(free < 0).tolist())
