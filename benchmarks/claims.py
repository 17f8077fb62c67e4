"""The papers' claims beside what placekit finds: the tables of verdicts in docs/research.

    python benchmarks/claims.py [--write]       print them, or put them into the pages
    python benchmarks/claims.py --count         how many claims of each paper hold
    python benchmarks/claims.py --search        learned methods beside the default search, at equal evaluations

Each claim is in `claims_PAPER.py`. Its figures are computed from the CSVs in docs/research/runs (one row per run and seed, by
benchmarks/seeds.py), and so is its verdict where it is about an order of two methods: a test compares the pages with what this
prints. A page has its table between the lines `<!-- claims -->` and `<!-- end of claims -->`.
"""

from __future__ import annotations

import argparse
import csv
import functools
import importlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from paper_table import cell, change, found, order_said, ratio, verdict
from seeds import Seed, read

PAGES = Path(__file__).resolve().parent.parent / "docs" / "research"
PAPERS = {
    "mirhoseini2017": "Mirhoseini et al. 2017",
    "post": "Post, Gao et al. 2018",
    "placeto": "Placeto, Addanki et al. 2019",
    "doppler": "Doppler, Yao et al. 2026",
}
TF = "_tf2017"
"""Ending of the names of the machines as TensorFlow of 2017 seems to have used them."""
LEARNED = (
    ("mirhoseini_table2", "seq2seq"), ("mirhoseini_table2", "post"), ("post_table1", "post"), ("placeto_table1", "seq2seq"),
    ("placeto_table1", "placeto"), ("doppler_table2", "doppler"), ("doppler_table2_fifo", "doppler"),
    ("doppler_table9", "doppler"), ("doppler_table9", "post"),
)  # fmt: skip
VERDICTS = ("holds", "partly", "contradicted", "open", "not done")
BEGIN, END = "<!-- claims -->", "<!-- end of claims -->"


@dataclass(frozen=True)
class Claim:
    """A table, a figure or a numbered statement of a paper.

    Attributes:
        item: where it is in the paper.
        said: what the paper found.
        here: what placekit finds.
        verdict: one of `VERDICTS`; after it may follow in how many rows the claim holds.
        why: the reason, with the experiment that shows it.
    """

    item: str
    said: str
    here: str
    verdict: str
    why: str = ""

    def __post_init__(self) -> None:
        assert self.word in VERDICTS, self.verdict

    @property
    def word(self) -> str:
        """The verdict alone."""
        return self.verdict.partition(",")[0]


class Runs:
    """The runs of CSVs, by workload, cluster and method."""

    def __init__(self, *names: str) -> None:
        self.rows: dict[tuple[str, str, str], list[Seed]] = {}
        rows = read(PAGES / "runs" / f"{name}.csv" for name in names)
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
        """By how much `method` differs from `other`."""
        return change(*(self.of(workload, cluster, m) for m in (method, other)))

    def late_change(self, workload: str, cluster: str, method: str, other: str) -> str:
        """The same for the mean values in the last twentieth of the evaluations."""
        return change(*({r.seed: r.late_s for r in self.rows[workload, cluster, m]} for m in (method, other)))

    def order(self, workload: str, cluster: str, first: str, sign: str, second: str) -> str:
        """Whether `first` `sign` `second` holds: `holds`, `open` or `reversed`."""
        return verdict(sign, *ratio(self.of(workload, cluster, first), self.of(workload, cluster, second)))

    def as_said(self, workload: str, cluster: str, said: Mapping[str, float], a: str, b: str) -> str:
        """Whether the paper's order of two methods holds, by its seconds."""
        return self.order(workload, cluster, *order_said(said, a, b))

    def where(self, workload: str, cluster: str, method: str) -> Mapping[str, float]:
        """Each device's share of the seconds of computation, the mean over the seeds."""
        shares = [
            {d: x / sum(s.busy_s.values()) for d, x in s.busy_s.items()}
            for s in self.rows[workload, cluster, method]
            if s.busy_s
        ]
        return {d: float(np.mean([s[d] for s in shares])) for d in shares[0]}


@functools.cache
def runs(*names: str) -> Runs:
    """The runs of docs/research/runs/NAME.csv, of all of them together."""
    return Runs(*names)


class Parts:
    """Where the parts of networks are computed, in the runs of docs/research/runs/NAME.csv: see benchmarks/module_devices.py."""

    def __init__(self, name: str) -> None:
        self.rows: dict[tuple[str, str, str], dict[int, dict[str, dict[str, float]]]] = {}
        with (PAGES / "runs" / f"{name}.csv").open(newline="") as file:
            for r in csv.DictReader(file):
                run = self.rows.setdefault((r["workload"], r["cluster"], r["method"]), {}).setdefault(
                    int(r["seed"]), {}
                )
                run.setdefault(r["part"], {})[r["device"]] = float(r["seconds"])

    def shares(self, workload: str, cluster: str, method: str, part: str = ".*") -> list[dict[str, float]]:
        """By seed, the share of some parts' computation on each device, in percent; the largest share first.

        `part` is a regular expression of their names.
        """
        found = []
        for _, parts in sorted(self.rows[workload, cluster, method].items()):
            some = [Counter(devices) for name, devices in parts.items() if re.fullmatch(part, name)]
            found.append(_shares(sum(some, Counter[str]())))
        return found


def _shares(seconds: Mapping[str, float]) -> dict[str, float]:
    ordered = sorted(seconds.items(), key=lambda item: -item[1])
    return {device: 100 * x / sum(seconds.values()) for device, x in ordered}


def together(verdicts: Iterable[str]) -> str:
    """The verdict on a claim about several rows, and in how many it holds.

    It holds if it does in all of them; partly if in some; it is contradicted if it holds in none and is reversed in most;
    else it is open.
    """
    count = Counter(verdicts)
    assert count
    some = f", in {count['holds']} of {count.total()} rows" if count.total() > 1 else ""
    if count["holds"]:
        return "holds" if count.total() == count["holds"] else f"partly{some}"
    return ("contradicted" if 2 * count["reversed"] > count.total() else "open") + some


def both(sheets: str, tf: str) -> str:
    """A cell for two machines."""
    return f"data sheets: {sheets}<br>tf2017: {tf}"


def table(paper: str) -> list[str]:
    """The lines of a page's table."""
    claims: list[Claim] = importlib.import_module(f"claims_{paper}").claims()
    lines = ["| where | the paper | here | verdict | why |", "| --- | --- | --- | --- | --- |"]
    return [
        *lines,
        *(f"| {c.item} | {c.said} | {c.here} | *{c.word}*{c.verdict.removeprefix(c.word)} | {c.why} |" for c in claims),
    ]


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
        found = Counter(c.word for c in importlib.import_module(f"claims_{paper}").claims())
        lines.append(f"{name:24}" + "".join(f"{found[v]:>14}" for v in VERDICTS))
    return lines


def search() -> list[str]:
    """For each learned method, on how many programs and machines the default search is ahead of it, and the seconds of both."""
    heads = ("ahead", "behind", "open", "search s", "method s")
    lines = [f"{'runs':22}{'method':10}" + "".join(f"{h:>10}" for h in heads)]
    for name, method in LEARNED:
        found = runs(name)
        places = [(w, c) for w, c, m in found.rows if m == method and (w, c, "portfolio") in found.rows]
        ahead = Counter(found.order(*place, "portfolio", "<", method) for place in places)
        seconds = [
            float(np.median([s.seconds for p in places for s in found.rows[(*p, m)]])) for m in ("portfolio", method)
        ]
        counts = [ahead[v] for v in ("holds", "reversed", "open")]
        lines.append(
            f"{name:22}{method:10}" + "".join(f"{x:>10}" for x in counts) + "".join(f"{x:>10.1f}" for x in seconds)
        )
    return lines


def main() -> None:
    """Print or write the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="put the tables into the pages")
    parser.add_argument("--count", action="store_true", help="only count the verdicts")
    parser.add_argument("--search", action="store_true", help="only compare learned methods with the default search")
    given = parser.parse_args()
    if given.count or given.search:
        print("\n".join(count() if given.count else search()))
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
