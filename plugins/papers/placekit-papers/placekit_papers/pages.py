"""The generated parts of the papers' pages, each between the lines `<!-- NAME -->` and `<!-- end of NAME -->`."""

from __future__ import annotations

import textwrap
from math import isnan
from pathlib import Path

import numpy as np

from placekit_core import ConfigError
from placekit_papers.claims import MACHINES, NAMES, VERDICTS, Verdict, count, judged, load_paper
from placekit_papers.runs import family_pair, family_seconds, recorded
from placekit_papers.statistics import change_text
from placekit_papers.texts import LEARNED, beside_search, fill


def claims_table(name: str) -> list[str]:
    """A paper's claims as a table in Markdown, with a column for each machine.

    Verdicts that no machine decides stand in the first of these columns.
    """
    found = judged(name)
    machines = [m for m in MACHINES if m and any(m in j.verdicts for j in found)]
    heads = ["where", "the paper", *(machines if len(machines) > 1 else ["here"]), "what differs"]
    lines = [f"| {' | '.join(heads)} |", "|" + " --- |" * len(heads)]
    for j in found:
        cells = [_cell(j.verdicts.get(m) or (j.verdicts.get("") if m == machines[0] else None)) for m in machines]
        lines.append(f"| {' | '.join([f'{j.claim.where} (`{j.claim.item}`)', j.claim.paper, *cells, j.claim.why])} |")
    return lines


def _cell(verdict: Verdict | None) -> str:
    return "<br>".join([verdict.text("*"), *verdict.figures]) if verdict else ""


def summary(name: str) -> list[str]:
    """A paper's summary with its figures computed."""
    return textwrap.wrap(fill(load_paper(name).summary), 130, break_long_words=False, break_on_hyphens=False)


def counts() -> list[str]:
    """How many claims of each paper have each verdict, by machine."""
    lines = [f"{'':36}" + "".join(f"{v:>14}" for v in VERDICTS)]
    for name in NAMES:
        for i, (machine, found) in enumerate(count(name).items()):
            title = "" if i else load_paper(name).title
            lines.append(f"{title:23} {machine or 'other':12}" + "".join(f"{x:>14}" for x in found))
    return lines


def search_table() -> list[str]:
    """Learned methods beside the default search with as many evaluations, as a table in Markdown."""
    lines = [
        "| runs | method | search ahead | behind | open | search, s | method, s |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for name, method in LEARNED:
        found = beside_search(name, method)
        counts = [str(found[verdict]) for verdict in ("holds", "reversed", "open")]
        seconds = ["–" if isnan(x) else f"{x:.1f}" for x in _median_seconds(name, method)]
        lines.append(f"| {' | '.join([name, method, *counts, *seconds])} |")
    return lines


def _median_seconds(name: str, method: str) -> list[float]:
    rows = recorded(name).rows
    places = [(w, c) for w, c, m in rows if m == method and (w, c, "portfolio") in rows]
    return [float(np.median([r.seconds for p in places for r in rows[(*p, m)]])) for m in ("portfolio", method)]


_RIVALS = ("single_gpu", "heft", "etf", "search, one second")


def unseen_table() -> list[str]:
    """By how much one placement of a trained `placeto` differs from other methods on unseen graphs, and how long both take."""
    families = [name for name, _ in load_paper("placeto").rows["families"]]
    names = load_paper("placeto").names
    lines = ["| beside | " + " | ".join(names[f] for f in families) + " |", "|---" + "|---:" * len(families) + "|"]
    for rival in _RIVALS:
        cells = [change_text(*family_pair(f, "placeto zero-shot", rival)) for f in families]
        lines.append(f"| {rival} | {' | '.join(cells)} |")
    for method in ("placeto zero-shot", "heft"):
        medians = [f"{np.median(family_seconds(f, method)):.2g} s" for f in families]
        lines.append(f"| median time to place a graph, {method} | {' | '.join(medians)} |")
    return lines


def parts_of(page: str) -> dict[str, list[str]]:
    """The generated parts of a page by name."""
    if page in NAMES:
        return {"summary": summary(page), "claims": claims_table(page)}
    return {"counts": ["```text", *counts(), "```"], "search": search_table(), "unseen": unseen_table()}


def updated(text: str, parts: dict[str, list[str]]) -> str:
    """A page with its generated parts replaced. Raises ConfigError if it lacks a mark."""
    for name, lines in parts.items():
        begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
        if begin not in text or end not in text:
            raise ConfigError(f"the page lacks {begin} or {end}", "put both lines where the part belongs")
        before, _, rest = text.partition(begin)
        text = "\n".join([before + begin, "", *lines, "", end + rest.partition(end)[2]])
    return text


def write_pages(folder: Path) -> list[Path]:
    """Update the generated parts of the pages in a folder. Returns those that changed."""
    changed = []
    for path in [folder / "README.md", *(folder / f"{name}.md" for name in NAMES)]:
        text = path.read_text()
        new = updated(text, parts_of(path.stem))
        if new != text:
            path.write_text(new)
            changed.append(path)
    return changed
