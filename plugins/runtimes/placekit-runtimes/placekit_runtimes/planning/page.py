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
from placekit_runtimes.planning.lines import lines
from placekit_runtimes.planning.planned import Planned
from placekit_runtimes.planning.split import EMBEDDINGS, Layout, Split
from placekit_runtimes.planning.strategies import RUNNERS, Row
from placekit_runtimes.planning.text import notes, seconds, slower, speed as per_s, use
from placekit_runtimes.planning.words import place, ranges

GPUS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8c6d31", "#a47dc2")
"""Colours of GPUs, by Okabe and Ito (2008), *Color Universal Design*, with a brown and a violet; further GPUs repeat them."""
HOST = "#8c959f"
"""The colour of host memory."""
KINDS = {"weights": 1.0, "cache": 0.65, "buffers": 0.35}
"""The parts of a device's memory, and how opaque its colour is for each."""
STYLE, SCRIPT = ((Path(__file__).parent / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))


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


def fragment(plan: Planned) -> str:
    """The plan for a notebook, without scripts."""
    style = tag("style", Markup(STYLE))
    return tag("div", style, tag("h2", _title(plan)), _sections(plan, False), class_="placekit-plan")


def page(plan: Planned) -> str:
    """The plan as a whole page. Write it as UTF-8."""
    rules = f"default-src 'none'; script-src '{_sha256(SCRIPT)}'; style-src '{_sha256(STYLE)}'; base-uri 'none'"
    head = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{rules}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
{tag("title", _title(plan))}
{tag("style", Markup(STYLE))}
</head>
"""
    main = tag("main", tag("h1", _title(plan)), _sections(plan, True), class_="placekit-plan")
    return f"{head}{tag('body', main, tag('script', Markup(SCRIPT)))}\n</html>\n"


def _sha256(code: str) -> str:
    """The hash by which a content security policy allows inline code."""
    return f"sha256-{base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()}"


def _title(plan: Planned) -> str:
    return f"{plan.question.name} on {plan.question.cluster.name}"


def _sections(plan: Planned, copies: bool) -> Iterator[Child]:
    """The parts of the page below its title; `copies`: with buttons that copy the lines."""
    size = units.mebibytes(plan.question.checkpoint.bytes)
    yield tag("p", tag("em", "simulated"), f" {size} of weights; {use(plan)}", class_="soft")
    try:
        row = plan.best
    except PlacementError as e:
        yield [tag("p", e.message, class_="verdict"), tag("p", e.hint), _comparison(plan, None)]
        return
    yield [_verdict(plan, row), tag("ul", [tag("li", note) for note in notes(plan)])]
    yield [tag("h3", "Layers"), _layers(plan, row), tag("h3", "Memory"), _memory(plan, row)]
    yield [_comparison(plan, row), tag("h3", "Lines to paste")]
    for runtime, strategies in plan.strategies.items():
        best = next((r for r in plan.rows if r.runtime == runtime and r.best), None)
        if best is not None:
            cost = f", simulated to be {own}" if (own := slower(plan, best)) else ""
            button = tag("button", "copy", type="button", hidden=True, aria_live="polite") if copies else None
            yield [tag("h4", RUNNERS[runtime].title, cost, button), tag("pre", lines(best, strategies.steps))]


def _number(value: float, shown: str) -> Markup:
    """A number, rounded for reading; its attribute `value` is exact."""
    return tag("data", shown, value=repr(float(value)))


def _verdict(plan: Planned, row: Row) -> Markup:
    users, answer_s = plan.question.options.users, plan.answer_s(row)
    speed = tag("strong", _number(users / row.decode_s, per_s(users / row.decode_s)), " tokens/s")
    each = f"for {users} answers at once" if users > 1 else "per answer"
    answer = tag("strong", _number(answer_s, seconds(answer_s)), f" {each}")
    use = f"Put {plan.verdict}: {RUNNERS[row.runtime].title} then generates "
    return tag("p", use, speed, " and takes ", answer, ", simulated.", class_="verdict")


def _colour(plan: Planned, device: int) -> str:
    gpus = sorted(plan.question.gpus)
    return GPUS[gpus.index(device) % len(GPUS)] if device in gpus else HOST


def _rect(x: float, width: float, fill: str, title: str = "", unit: str = "%", opacity: float = 1) -> Markup:
    """A part of a bar or of a row of cells; `title` is shown under the pointer."""
    size = {"x": f"{x:.5g}{unit}", "width": f"{width:.5g}{unit}", "height": "100%"}
    return tag("rect", tag("title", title), **size, fill=fill, opacity=opacity)


def _swatch(fill: str, opacity: float = 1) -> Markup:
    return tag("svg", _rect(0, 100, fill, opacity=opacity), class_="swatch", aria_hidden="true")


def _cells(layout: Layout, split: Split) -> dict[str, list[int | None]]:
    """The devices of the layers and the output; and those of the routed experts, or of weights copied in every step."""
    found: dict[str, list[int | None]] = {"layers": split.home.tolist()}
    if split.streams:
        inside = (layout.layer >= 0) & (layout.layer < layout.layers)
        size = np.zeros((layout.layers, int(split.held.max()) + 1))
        np.add.at(size, (layout.layer[inside], split.held[inside]), layout.bytes[inside])
        found["weights"] = size.argmax(axis=1).tolist()
    elif layout.routed.any():
        devices = zip(split.away(layout).tolist(), layout.routed.tolist(), strict=True)
        found["experts"] = [d if routed else None for d, routed in devices]
    return found


def _layers(plan: Planned, row: Row) -> list[Markup]:
    """A cell for each layer, coloured by its device, and the layers of each device in words."""
    split, layout, cluster = row.split, plan.strategies[row.runtime].steps.layout, plan.question.cluster
    assert split is not None
    last, drawn = layout.layers, list[Child]()
    held = {d: list[str]() for d in np.unique([*split.home, *split.held]).tolist()}
    for name, devices in _cells(layout, split).items():
        of, parts = "layer" if name == "layers" else f"{name} of layer", []
        for i, d in ((i, d) for i, d in enumerate(devices) if d is not None):
            what = f"{'output' if i == last else f'{of} {i}'}: {cluster.device_names[d]}"
            parts.append(_rect(i + 0.5 * (i == last), 0.88, _colour(plan, d), what, ""))
        own = {d: ranges([i for i, x in enumerate(devices[:last]) if x == d]) for d in held if d in devices[:last]}
        for d, numbers in own.items():
            held[d].append(f"{of}s {numbers}")
        label = ", ".join(f"{numbers} {place(cluster, d)}" for d, numbers in own.items())
        view = {"viewBox": f"0 0 {last + 1.5} 1", "preserveAspectRatio": "none"}
        drawn += [tag("span", name), tag("svg", parts, **view, role="img", aria_label=f"{name}: {label}")]
    held[int(split.home[-1])].append("output")
    for d in {int(split.held[layout.index[name]]) for name in EMBEDDINGS if name in layout.index}:
        held[d].append("embedding")
    axis = tag("div", tag("span", "0"), tag("span", f"{last - 1} | output"), class_="axis", aria_hidden="true")
    legend = ((_swatch(_colour(plan, d)), f"{cluster.device_names[d]}: {', '.join(x)}") for d, x in held.items() if x)
    return [tag("div", drawn, axis, class_="layers"), tag("ul", (tag("li", x) for x in legend), class_="legend")]


def _memory(plan: Planned, row: Row) -> Iterator[Markup]:
    """A bar for each device that holds something: its usable memory, and the parts that fill it."""
    memory = row.memory
    assert memory is not None
    for d in np.flatnonzero(memory.used > 0).tolist():
        name, fill, begin = plan.question.cluster.device_names[d], _colour(plan, d), 0.0
        whole, drawn, words = float(memory.used[d] + memory.free[d]), list[Child](), list[Child]()
        parts = zip(KINDS.items(), (memory.weights, memory.cache, memory.compute), strict=True)
        for (what, opacity), part in parts:
            drawn.append(_rect(100 * begin / whole, 100 * part[d] / whole, fill, what, opacity=opacity))
            words += [_swatch(fill, opacity), f"{what} ", _number(part[d], f"{part[d] / 2**30:.2f}"), ", "]
            begin += part[d]
        left = _number(memory.free[d], f"{memory.free[d] / 2**30:.2f}")
        label = f"{name}: {begin / whole:.0%} of the usable memory is full"
        caption = tag("figcaption", words, "left ", left, f" of {whole / 2**30:.2f} GiB that are usable")
        yield tag("figure", tag("div", name), tag("svg", drawn, role="img", aria_label=label), caption)


def _comparison(plan: Planned, best: Row | None) -> list[Markup]:
    """A row for each strategy: its speed, or why it does not work."""
    users, prompt, body = plan.question.options.users, plan.question.options.prompt, list[Child]()
    longest = max((plan.answer_s(row) for row in plan.rows if row.works), default=0.0)
    for row in plan.rows:
        cells = [tag("td", _missing(plan, row), colspan=4)]
        if row.works:
            speeds, answer_s = (users / row.decode_s, prompt / row.prompt_s), plan.answer_s(row)
            numbers = [*((x, per_s(x)) for x in speeds), (answer_s, seconds(answer_s))]
            length = _rect(0, 100 * answer_s / longest, "currentColor", opacity=1 if row is best else 0.4)
            cells = [tag("td", _number(*x), class_="n") for x in numbers]
            cells.append(tag("td", tag("svg", length, aria_hidden="true"), class_="bar"))
        body.append(tag("tr", tag("th", row.name, scope="row"), cells, class_="best" if row is best else None))
    heads = (tag("th", x, scope="col", class_="n") for x in ("tokens/s", "prompt tokens/s", "answer"))
    head = tag("thead", tag("tr", tag("th", "strategy", scope="col"), heads, tag("td")))
    caption = f"Simulated{', all users together' if users > 1 else ''}; bars show the seconds of an answer"
    table = tag("table", tag("caption", caption), head, tag("tbody", body))
    box = tag("div", table, class_="scroll", tabindex=0, role="region", aria_label="Comparison")
    return [tag("h3", "Comparison"), box]


def _missing(plan: Planned, row: Row) -> str:
    """Why a row does not work: the memory that each device lacks, or another reason."""
    if row.memory is None or not row.memory.lacking:
        return row.error
    names, free = plan.question.cluster.device_names, row.memory.free
    missing = (f"{units.mebibytes(-free[d])} missing on {names[d]}" for d in np.flatnonzero(free < 0).tolist())
    return f"does not fit: {', '.join(missing)}"
