"""The sections of the page about one program, as tables without scripts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from placekit_core import LEAST_GAIN, units
from placekit_report.page.markup import (
    Child,
    Markup,
    bar,
    breakable,
    count,
    number,
    percent,
    prose,
    quantity,
    seconds,
    size,
    table,
    tag,
)
from placekit_report.page.search_chart import search_chart

Data = Mapping[str, Any]
STEPS = ("makespan", "step")
"""Objectives that measure a whole step, as the timeline shows it."""
OBJECTIVES = {**dict.fromkeys(STEPS, "step time"), "throughput": "time per micro-batch"}
LONGEST, CUTS, DEVICES = 12, 15, 16
OUTSIDE = "(outside modules)"


def value_name(program: Data) -> str:
    """The name of a program's value."""
    name = str(program["objective"])
    return OBJECTIVES.get(name, name.replace("_", " "))


def outcome(program: Data) -> Child:
    """The value, or why it is missing."""
    if program["value_s"] is None:
        return "failed" if program["error"] else "does not fit" if program["evaluations"] else "not evaluated"
    return quantity(program["value_s"], program["unit"])


def card(label: str, value: Child, below: Child) -> Markup:
    return tag("div", tag("dt", label), tag("dd", value, class_="big"), tag("dd", below, class_="below"))


def numbers(program: Data) -> Markup:
    """The three numbers: value, bound and gap, memory headroom."""
    spread, bound, gap, room = program["spread_s"], program["bound_s"], program["gap"], program["headroom"]
    unit = program["unit"]
    made = f"{program['evaluations']:,} evaluation{'s' if program['evaluations'] != 1 else ''} in {program['seconds']:.1f} s"
    first = card(
        value_name(program),
        outcome(program),
        [
            [" ± ", quantity(spread, unit), ", "] if spread is not None else "",
            program["rate"] and f"{program['rate']}, ",
            made,
        ],
    )
    if bound is None:
        second = card("proven bound", "–", "nothing is proven about this program")
    elif gap is None:
        second = card("proven bound", quantity(bound, unit), "no placement of these groups can be better")
    else:
        below = [percent(gap), " above it: at most ", percent(gap / (1 + gap)), " is left to gain with these groups"]
        if gap < 5e-4:  # would read as 0.0%
            within = f"reached within {'0.1%' if gap > 1e-6 else 'rounding'}" if gap else "reached"
            below = [
                number(gap, within),
                ": no placement of these groups is faster"
                if gap < 1e-6
                else ": nothing worth the search is left for these groups",
            ]
        second = card("proven bound", quantity(bound, unit), below)
    if room is None:
        third = card("memory headroom", "–", "no device has a limit, or no placement was measured")
    else:
        text = "of {} is free at its peak" if room["bytes"] >= 0 else "of {} is missing at its peak"
        cache = sum(x or 0 for x in program["devices"]["cache_bytes"])
        below = [percent(room["share"]), " ", text.format(room["device"])]
        below += ["; the cache of keys and values takes ", size(cache)] if cache else []
        third = card("memory headroom", size(room["bytes"]), below)
    return tag("dl", first, second, third, class_="numbers")


def baselines(program: Data) -> Markup | None:
    """The value compared with the baselines."""
    b, unit = program["baselines"], program["unit"]
    if not b["name"]:
        return None
    columns = zip(*(b[key] for key in ("name", "value_s", "spread_s", "fits", "this_run", "note")), strict=True)
    found = [("this run", program["value_s"], program["spread_s"], program["fits"], "", "", True)]
    found += [(*row, False) for row in columns]
    most = max((v for _, v, _, fits, *_ in found if v is not None and fits), default=0.0)
    rows = []
    for name, value, spread, fits, comparison, note, mine in sorted(
        found, key=lambda f: (not f[3], f[1] is None, f[1] or 0.0)
    ):
        shown: Child = [quantity(value, unit), [" ± ", quantity(spread, unit)] if spread is not None else ""]
        if not fits or value is None:
            shown = outcome(program) if mine else "–" if fits else "does not fit"
        length = bar(value / most if fits and value and most else 0.0, "own" if mine else "bar")
        rows.append([tag("strong", name) if mine else name, length, shown, comparison, note])
    heads = ["placement", "", value_name(program), "this run is", "note"]
    if not any(b["note"]):
        heads, rows = heads[:-1], [row[:-1] for row in rows]
    return table(heads, rows, caption="This run beside its baselines", numeric=(2,), class_="bars")


def devices(program: Data) -> Markup:
    """A row for each device: computing, memory, traffic."""
    d = program["devices"]
    cache = any(d["cache_bytes"])
    rows = []
    for i, name in enumerate(d["name"]):
        capacity, peak = d["memory_bytes"][i], d["peak_bytes"][i]
        share = peak / capacity if capacity and peak is not None else 0.0
        rows.append(
            [[badge(i), name], tag("span", d["kind"][i], class_="soft"), count(d["operations"][i]), seconds(d["compute_s"][i]),
             [bar(d["busy"][i] or 0.0), percent(d["busy"][i])], [bar(share, "full" if share > 1 else "bar"), size(peak)],
             *([size(d["cache_bytes"][i])] if cache else []), size(capacity), size(d["bytes_in"][i]), size(d["bytes_out"][i])]
        )  # fmt: skip
    heads = ["device", "kind", "operations", "computes", "busy", "peak memory", *(["of it cache"] if cache else []),
             "capacity", "receives", "sends"]  # fmt: skip
    return table(
        heads,
        rows,
        caption="What each device computes, holds and sends",
        numeric=range(2, len(heads)),
        class_="bars",
        keep=DEVICES,
    )


def badge(device: int, name: str = "") -> Markup:
    """The mark of a device: its colour and its number, so that nobody needs to tell colours apart.

    Pass the `name` where it does not stand beside the mark, for screen readers.
    """
    label = {"role": "img", "aria_label": name} if name else {"aria_hidden": "true"}
    return tag("i", str(device), class_=f"d c{device % 9}", **label)


def critical(program: Data) -> Markup | None:
    """Where the critical path spends its time."""
    t = program["timeline"]
    if t is None or not t["critical_parts"]["name"]:
        return None
    parts = t["critical_parts"]
    whole = sum(parts["seconds"]) or 1.0
    rows = [[n, bar(s / whole, "crit"), seconds(s), percent(s / whole)]
            for n, s in zip(parts["name"], parts["seconds"], strict=True) if s / whole >= LEAST_GAIN]  # fmt: skip
    heads = ["part", "", "seconds", "share"]
    return table(heads, rows, caption="What the critical path is made of", numeric=(2, 3), class_="bars", keep=10)


def longest(program: Data) -> Markup | None:
    """The events that take the most seconds."""
    t = program["timeline"]
    if t is None:
        return None
    e, texts, tracks = t["events"], t["texts"], t["tracks"]["name"]
    own = [i for i, track in enumerate(e["track"]) if t["tracks"]["kind"][track] != "host"]
    order = sorted(own, key=lambda i: -e["duration_s"][i])[:LONGEST]
    rows = [[texts[e["name"][i]], tracks[e["track"][i]], seconds(e["start_s"][i]), seconds(e["duration_s"][i]),
             size(e["bytes"][i])] for i in order]  # fmt: skip
    heads = ["operation or transfer", "where", "starts at", "takes", "bytes"]
    return table(heads, rows, caption=f"The longest events of {len(own):,}", numeric=(2, 3, 4))


def cut(program: Data) -> Markup | None:
    """The edges between devices, most bytes first; None without a schedule."""
    c = program["cut"]
    if c is None:
        return None
    one = "Of the first micro-batch; the table of devices has the whole step." if c["micro_batch"] else None
    most = max(c["bytes"], default=0) or 1
    columns = zip(*(c[key] for key in ("source", "destination", "from", "to", "bytes", "transfers")), strict=True)
    rows = []
    for source, destination, f, to, b, n in columns:
        arrow = tag("span", " → ", class_="soft")
        modules = [breakable(source or OUTSIDE), arrow, breakable(destination or OUTSIDE)]
        rows.append([modules, way(f, to), [bar(b / most), size(b)], count(n)])
    heads = ["from module to module", "devices", "bytes", "transfers"]
    left = c.get("left_out_bytes")
    rest = tag("p", "Other edges: ", size(left), class_="soft") if left else None
    found = table(heads, rows, caption="What crosses between devices", numeric=(2, 3), class_="bars", keep=CUTS)
    return Markup((tag("p", one, class_="soft") if one else "") + found + (rest or ""))


def search(program: Data) -> Markup | None:
    """The best value against the number of evaluations; None for a single evaluation."""
    return search_chart([program["search"]], program["bound_s"], program["unit"])


def change(program: Data) -> Markup | None:
    """What would change the value: busy links, better resources, single moves."""
    c = program["change"]
    if c is None:
        return None
    # compare simulations with the simulated value, which differs from the value of a measured run
    name, own, unit = value_name(program), c["now_s"], program["unit"]
    pairs = zip(c["utilisation"]["name"], c["utilisation"]["share"], strict=True)
    links = [[n, bar(s), percent(s)] for n, s in pairs if n not in program["devices"]["name"] and s >= LEAST_GAIN]
    parts = list[Child]()
    m, r = c["moves"], c["resources"]
    better = [[n, quantity(v, unit), changed(v, own)]
              for n, v in zip(r["name"], r["value_s"], strict=True) if matters(v, own)]  # fmt: skip
    if better:
        caption = "With more of one resource, simulated again" + (
            f" (now {units.format_value(own, unit)})" if own else ""
        )
        parts.append(table(["with", name, "change"], better, caption=caption, numeric=(1, 2), keep=10))
    elif r["name"] and own:
        parts.append(tag("p", "More of a single resource makes it no faster."))
    moves = [[g, way(f, t), quantity(v, unit), changed(v, own)]
             for g, f, t, v in zip(m["group"], m["from"], m["to"], m["value_s"], strict=True) if matters(v, own)]  # fmt: skip
    if moves:
        caption = "The best single moves"
        parts.append(table(["moved alone", "to", name, "change"], moves, caption=caption, numeric=(2, 3)))
    if m.get("text"):
        parts.append(tag("p", m["text"], class_="soft note"))
    if links:
        caption = "How much of the step each link sends"
        parts.append(table(["link", "", "in use"], links, caption=caption, numeric=(2,), class_="bars", keep=12))
    if c.get("reason"):
        parts.append(tag("p", c["reason"], class_="soft"))
    return tag("div", [tag("div", p) for p in parts], class_="columns")


def binds(program: Data) -> Markup | None:
    """What takes the time of the step, and which simulated machine helps most; that need not have more of what binds."""
    c = program["change"]
    if c is None or program["objective"] not in STEPS:
        return None
    names, values, most = c["resources"]["name"], c["resources"]["value_s"], list[Child]()
    if names and matters(values[0], c["now_s"]):
        most = [" What helps most: ", names[0], " (", changed(values[0], c["now_s"]), ")."]
    return tag("p", tag("strong", "Busiest"), ": ", c["binds"], ".", most, class_="lead")


def exports(program: Data) -> Markup | None:
    """The placement in the forms that runtimes take, as text to copy; the page's scripts show the buttons."""
    found = []
    for e in program["exports"]:
        button = tag("button", "Copy", type="button", class_="copy", hidden=True, aria_live="polite")
        text = tag("pre", e["text"], tabindex="0", role="region", aria_label=f"For {e['title']}")
        head = tag("h4", e["title"], tag("small", f"--format {e['name']}") if e["name"] else "", button)
        found.append(tag("div", head, text, tag("p", prose(e["note"]), class_="soft")))
    command = tag("code", "placekit apply RUN_DIR --format NAME")
    more = [" prints the same text; ", tag("code", "--out FILE"), " writes it to a file."]
    about = tag("p", "For runtimes that can express it. ", command, more, class_="soft lead")
    return tag("div", about, tag("div", found, class_="columns exports")) if found else None


def matters(value: float | None, own: float | None) -> bool:
    """Whether a value is better than the program's own by a change that does not read as 0.0%."""
    return value is not None and own is not None and value <= own * (1 - LEAST_GAIN)


def changed(value: float, own: float) -> Child:
    """A value that matters, as a relative change from the program's own; the sign makes the colour unnecessary."""
    return number(value / own - 1, tag("span", f"−{100 - 100 * value / own:.1f}%", class_="better"))


def way(source: str, destination: str) -> Child:
    """`SOURCE → DESTINATION`; a line may break only before the arrow."""
    return [tag("span", source, class_="whole"), " ", tag("span", "→ ", destination, class_="whole")]
