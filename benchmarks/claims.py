"""The papers' claims beside what placekit finds: the tables of verdicts in docs/research.

    python benchmarks/claims.py [--write]       print them, or put them into the pages
    python benchmarks/claims.py --count         how many claims of each paper hold

Each claim is in `claims_PAPER.py`. Its figures are computed from the CSVs in docs/research/runs (one row per run and seed, by
benchmarks/seeds.py), and so is its verdict where it is about an order of two methods: a test compares the pages with what this
prints. A page has its table between the lines `<!-- claims -->` and `<!-- end of claims -->`.
"""

from __future__ import annotations

import argparse
import functools
import importlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import exp, inf
from pathlib import Path

import numpy as np
from paper_table import cell, found, ratio, verdict
from seeds import Seed, read

PAGES = Path(__file__).resolve().parent.parent / "docs" / "research"
PAPERS = {"mirhoseini2017": "Mirhoseini et al. 2017"}
VERDICTS = ("holds", "partly", "contradicted", "not done")
WIDE = 20  # percent: intervals that are written by their ends
BEGIN, END = "<!-- claims -->", "<!-- end of claims -->"


@dataclass(frozen=True)
class Claim:
    """A table, a figure or a numbered statement of a paper.

    Attributes:
        item: where it is in the paper.
        said: what the paper found.
        here: what placekit finds.
        verdict: one of `VERDICTS`.
        why: the reason, with the experiment that shows it.
    """

    item: str
    said: str
    here: str
    verdict: str
    why: str = ""

    def __post_init__(self) -> None:
        assert self.verdict in VERDICTS, self.verdict


class Runs:
    """The runs of one CSV, by workload, cluster and method."""

    def __init__(self, name: str) -> None:
        self.rows: dict[tuple[str, str, str], list[Seed]] = {}
        rows = read([PAGES / "runs" / f"{name}.csv"])
        found(rows)  # checks them
        for s in rows:
            self.rows.setdefault((s.workload, s.cluster, s.method), []).append(s)

    def of(self, workload: str, cluster: str, method: str) -> dict[int, float]:
        """Seconds by seed."""
        return {s.seed: s.value_s for s in self.rows[workload, cluster, method]}

    def seconds(self, workload: str, cluster: str, method: str) -> str:
        """The mean over the seeds, with its 95% interval."""
        text = cell(self.of(workload, cluster, method))
        return text if text == "OOM" else f"{text} s"

    def change(self, workload: str, cluster: str, method: str, other: str) -> str:
        """By how much `method` differs from `other`, seed by seed, with its 95% interval."""
        low, high = ratio(self.of(workload, cluster, method), self.of(workload, cluster, other))
        if low == high == 0.0 and inf in self.of(workload, cluster, method).values():
            return "neither fits"
        if inf in (abs(low), abs(high)):
            return "not known" if low != high else "only it fits" if low < 0 else "does not fit"
        middle, least, most = (100 * (exp(x) - 1) for x in ((low + high) / 2, low, high))
        half = (most - least) / 2
        if half >= WIDE:  # and far from symmetric
            return f"{least:+.0f} to {most:+.0f}%"
        return f"{middle:+.1f}" + (f" ± {half:.1f}" if half >= 0.05 else "") + "%"

    def order(self, workload: str, cluster: str, first: str, sign: str, second: str) -> str:
        """Whether `first` `sign` `second` holds: `holds`, `open` or `reversed`."""
        return verdict(sign, *ratio(self.of(workload, cluster, first), self.of(workload, cluster, second)))

    def where(self, workload: str, cluster: str, method: str) -> Mapping[str, float]:
        """Each device's share of the seconds of computation, the mean over the seeds."""
        shares = [
            {d: x / sum(s.busy_s.values()) for d, x in s.busy_s.items()}
            for s in self.rows[workload, cluster, method]
            if s.busy_s
        ]
        return {d: float(np.mean([s[d] for s in shares])) for d in shares[0]}


@functools.cache
def runs(name: str) -> Runs:
    """The runs of docs/research/runs/NAME.csv."""
    return Runs(name)


def together(verdicts: Iterable[str]) -> str:
    """The verdict on a claim about several rows: it holds in all; is reversed in some and holds in none; or is between."""
    count = Counter(verdicts)
    if count.total() == count["holds"]:
        return "holds"
    return "contradicted" if count["reversed"] and not count["holds"] else "partly"


def table(paper: str) -> list[str]:
    """The lines of a page's table."""
    claims: list[Claim] = importlib.import_module(f"claims_{paper}").claims()
    lines = ["| where | the paper | here | verdict | why |", "| --- | --- | --- | --- | --- |"]
    return [*lines, *(f"| {c.item} | {c.said} | {c.here} | *{c.verdict}* | {c.why} |" for c in claims)]


def replaced(text: str, lines: list[str]) -> str:
    """A page with this table."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"the page lacks {BEGIN} or {END}")
    return "\n".join([before + BEGIN, "", *lines, "", END + after])


def count() -> list[str]:
    """How many claims of each paper have each verdict."""
    lines = [f"{'':24}" + "".join(f"{v:>14}" for v in VERDICTS)]
    for paper, name in PAPERS.items():
        found = Counter(c.verdict for c in importlib.import_module(f"claims_{paper}").claims())
        lines.append(f"{name:24}" + "".join(f"{found[v]:>14}" for v in VERDICTS))
    return lines


def main() -> None:
    """Print or write the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="put the tables into the pages")
    parser.add_argument("--count", action="store_true", help="only count the verdicts")
    given = parser.parse_args()
    if given.count:
        print("\n".join(count()))
        return
    for paper in PAPERS:
        lines = table(paper)
        if given.write:
            page = PAGES / f"{paper}.md"
            page.write_text(replaced(page.read_text(), lines))
        else:
            print("\n".join(lines))


if __name__ == "__main__":
    main()
