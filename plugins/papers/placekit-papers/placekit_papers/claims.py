"""Judge the claims of papers by the recorded runs.

Each paper has a file `papers/NAME.yaml` with its items and claims. A claim says what the paper found and which comparisons of our
runs test it; its verdict and its figures are computed. A claim that no order of methods can test has its verdict written down.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf, isnan
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import yaml
from placekit_papers.paper_tables import by_place, orders, paper_table
from placekit_papers.quantities import QUANTITIES, recorded_parts
from placekit_papers.runs import DATA, Run, family_pair, over_best_in_training, own_placement, read_runs, recorded
from placekit_papers.statistics import EQUAL, Seconds, change_text, judge, mean_text, order_of_paper
from pydantic import BaseModel, ConfigDict, Field
from scipy import stats

from placekit_core import ConfigError

PAPERS = Path(__file__).parent / "papers"
NAMES = ("mirhoseini2017", "post", "placeto", "doppler")
LEARNED = (
    ("mirhoseini_table2", "seq2seq"), ("mirhoseini_table2", "post"), ("post_table1", "post"), ("placeto_table1", "seq2seq"),
    ("placeto_table1", "placeto"), ("doppler_table2", "doppler"), ("doppler_table2_fifo", "doppler"),
    ("doppler_table9", "doppler"), ("doppler_table9", "post"),
)  # fmt: skip
"""CSVs with runs of a learned method and of the default search, with as many evaluations."""
VERDICTS = ("holds", "partly", "contradicted", "open", "not done")
TF2017 = "_tf2017"
"""Ending of the names of the machines as TensorFlow of 2017 seems to have used them: slow links, less memory."""
_START = 1.5  # seconds until a run of a sweep starts to search
_MANY = 6  # pairs; with more, only how many hold is shown
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")


class _Data(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Side(_Data):
    """One side of an order: a method, and what differs from the comparison's own runs, quantity and program."""

    method: str
    runs: str | None = None
    quantity: str | None = None
    over: str | None = None
    """Divide by this method, seed by seed."""
    scale: float = 1.0
    workload: str | None = None


class Each(_Data):
    """What must hold in the run of every seed: a quantity is within these limits."""

    methods: list[str]
    quantity: str
    at_least: float = -inf
    at_most: float = inf


class Comparison(_Data):
    """A comparison in one or several rows, each a program and a machine.

    Attributes:
        runs: a CSV of `data`, or several; `families`, `orders` or `rewards` for the CSVs of those studies.
        rows: `[program, machine]` pairs, or the name of a list in the paper's `rows`.
        order: first method, sign (see `statistics.judge`; `?` for the order in the paper's table), second method. Instead of
            a method there may be a list, of which each is compared, or a `Side`.
        all_of: the order must hold for all second methods, in one verdict per row.
        each: instead of an order, a limit that every seed keeps.
        table: the paper's table, for `?` and `skip_lost`.
        skip_lost: leave out rows in which a baseline fits in the paper and not here: the claim is not about memory.
        tf2017: also on the machines with that ending.
        judged: whether it counts for the verdict, or is only shown.
    """

    runs: str | list[str]
    rows: str | list[tuple[str, str]]
    order: tuple[Any, str, Any] | None = None
    each: Each | None = None
    quantity: str = "value"
    table: str = ""
    label: str = ""
    all_of: bool = False
    skip_lost: bool = False
    tf2017: bool = False
    judged: bool = True


class Claim(_Data):
    """A table, a figure or a numbered statement of a paper.

    Attributes:
        where: the place in the paper.
        item: the item of the paper's file whose runs test it.
        paper: what the paper found.
        compare: the comparisons that test it.
        verdict: the verdict, where no comparison decides it.
        here: further text on what we find; `{function|argument|...}` is computed, see `fill`.
        why: what differs from the paper, or why the verdict is what it is.
    """

    where: str
    item: str
    paper: str
    compare: list[Comparison] = []
    verdict: Literal["", "holds", "partly", "contradicted", "open", "not done"] = ""
    here: str = ""
    why: str = ""


class Experiment(_Data):
    """A command that makes runs of an item: overrides of `placekit run`, the runs' method if not the policy, and the CSV."""

    options: list[str]
    method: str = ""
    runs: str = ""


class Item(_Data):
    """A table or figure that can be shown and run.

    Attributes:
        title: one line.
        runs: the CSVs of `data` with its runs.
        tables: the paper's tables, in the same order as `runs`; empty where the paper has no table of seconds.
        cluster: the machines of the paper's table; `{}` is the number of GPUs.
        late: show the mean of the last placements.
        experiments: what `--run` runs.
        study: a module with `show()` and `run(folder, registry)` that is used instead.
        minutes: how long it takes on two CPU cores; if not given, the seconds of `runs`.
    """

    title: str
    runs: list[str] = []
    tables: list[str] = []
    cluster: str = "k80x{}"
    late: bool = False
    experiments: list[Experiment] = []
    study: str = ""
    minutes: float = 0

    @property
    def recorded_runs(self) -> list[Run]:
        """The committed runs."""
        return [run for rows in recorded(*self.runs).rows.values() for run in rows]

    @property
    def expected_minutes(self) -> float:
        """How long the runs take."""
        return self.minutes or sum(_START + (0 if isnan(run.seconds) else run.seconds) for run in self.recorded_runs) / 60


class Paper(_Data):
    """A paper's file."""

    title: str
    cluster: str
    names: Mapping[str, str] = Field(default_factory=dict)
    rows: Mapping[str, list[tuple[str, str]]] = Field(default_factory=dict)
    items: Mapping[str, Item]
    claims: list[Claim]
    summary: str


class Judged(NamedTuple):
    """A claim with its verdict, one of `VERDICTS`; in how many rows it holds, if it has several; and our figures."""

    claim: Claim
    verdict: str
    rows: str
    here: str


@functools.cache
def load_paper(name: str) -> Paper:
    """A paper's items and claims. Raises ConfigError for an unknown paper."""
    if name not in NAMES:
        raise ConfigError(f"there is no paper {name!r}", f"the papers are {', '.join(NAMES)}")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    paper = Paper.model_validate(yaml.load((PAPERS / f"{name}.yaml").read_text(), loader))  # noqa: S506
    if unknown := {c.item for c in paper.claims} - paper.items.keys():
        raise ConfigError(f"papers/{name}.yaml has claims of items that it lacks: {', '.join(sorted(unknown))}")
    return paper


@functools.cache
def judged(name: str) -> list[Judged]:
    """The claims of a paper with their verdicts, in the order of the paper."""
    paper = load_paper(name)
    return [_judged(paper, claim) for claim in paper.claims]


def count(name: str) -> list[int]:
    """How many claims of a paper have each of `VERDICTS`."""
    found = Counter(j.verdict for j in judged(name))
    return [found[v] for v in VERDICTS]


def together(verdicts: list[str]) -> tuple[str, str]:
    """The verdict on a claim about several rows, and in how many rows it holds.

    It holds if it does in all rows, and partly if in some. It is contradicted if it holds in none and is reversed in most, and
    open otherwise.
    """
    found, total = Counter(verdicts), len(verdicts)
    assert total
    some = f"in {found['holds']} of {total} rows" if total > 1 else ""
    if found["holds"] == total:
        return "holds", ""
    if found["holds"]:
        return "partly", some
    return ("contradicted" if 2 * found["reversed"] > total else "open"), some


def _judged(paper: Paper, claim: Claim) -> Judged:
    verdicts, texts = [], []
    for comparison in claim.compare:
        found = _Comparing(paper, comparison)
        texts.append(found.text())
        if comparison.judged:
            verdicts += found.verdicts()
    if claim.here:
        texts.append(fill(claim.here))
    verdict, rows = (claim.verdict, "") if claim.verdict else together(verdicts)
    return Judged(claim, verdict, rows, "<br>".join(texts))


@dataclass(frozen=True)
class _Pair:
    """Two methods in one row: what the paper's order is, and our values by seed."""

    suffix: str
    row: tuple[str, str]
    first: str
    sign: str
    second: str
    values: tuple[Seconds, Seconds]
    swapped: bool = False
    """The paper has the second method ahead: the order is judged from there."""

    @property
    def verdict(self) -> str:
        return judge(self.sign, *(self.values[::-1] if self.swapped else self.values))


class _Comparing:
    """A comparison with our values."""

    def __init__(self, paper: Paper, comparison: Comparison) -> None:
        self.paper, self.comparison = paper, comparison
        rows = comparison.rows
        self.rows = list(paper.rows[rows]) if isinstance(rows, str) else rows
        self.suffixes = ("", TF2017) if comparison.tf2017 else ("",)
        self.table = paper_table(comparison.table, paper.cluster)[1] if comparison.table else {}
        self.pairs = list(self._pairs())

    def _pairs(self) -> Iterator[_Pair]:
        if self.comparison.order is None:
            return
        first, sign, second = self.comparison.order
        for suffix in self.suffixes:
            for row in self.rows:
                for a in first if isinstance(first, list) else [first]:
                    for b in second if isinstance(second, list) else [second]:
                        sides = [Side(method=x) if isinstance(x, str) else Side.model_validate(x) for x in (a, b)]
                        if not (self.comparison.skip_lost and any(self._lost(row, suffix, s) for s in sides)):
                            yield self._pair(row, suffix, sign, *sides)

    def _pair(self, row: tuple[str, str], suffix: str, sign: str, a: Side, b: Side) -> _Pair:
        faster = a.method
        if sign == "?":
            faster, sign, _ = order_of_paper(self.table[row], a.method, b.method)
        if self.comparison.runs == "families":
            values = family_pair(row[0], a.method, b.method)
        else:
            values = self._values(row, suffix, a), self._values(row, suffix, b)
        return _Pair(suffix, row, a.method, sign, b.method, values, faster != a.method)

    def _lost(self, row: tuple[str, str], suffix: str, side: Side) -> bool:
        """Whether a method of the paper's table fits in the paper and not here."""
        paper = self.table[row].get(side.method, inf)
        return paper < inf and min(self._values(row, suffix, side).values()) == inf

    def _values(self, row: tuple[str, str], suffix: str, side: Side) -> Seconds:
        source = side.runs or self.comparison.runs
        if source in ("orders", "rewards"):
            return (over_best_in_training if source == "orders" else own_placement)(side.method)
        names = [source] if isinstance(source, str) else source
        place = side.workload or row[0], row[1] + suffix
        values = quantities(names, *place, side.method, side.quantity or self.comparison.quantity)
        base = quantities(names, *place, side.over, side.quantity or self.comparison.quantity) if side.over else {}
        return {seed: side.scale * x / base.get(seed, 1.0) for seed, x in values.items()}

    def verdicts(self) -> list[str]:
        """One for each pair, or each row."""
        if self.comparison.each is not None:
            return [_in_all(ok) for _, ok, _ in self._each()]
        if not self.comparison.all_of:
            return [pair.verdict for pair in self.pairs]
        by_row: dict[tuple[str, tuple[str, str]], list[str]] = {}
        for pair in self.pairs:
            by_row.setdefault((pair.suffix, pair.row), []).append(pair.verdict)
        return [
            "reversed" if "reversed" in of else "holds" if set(of) == {"holds"} else "open" for of in by_row.values()
        ]

    def _each(self) -> Iterator[tuple[tuple[str, str], list[bool], str]]:
        """For each row and method: whether the runs of all seeds keep the limits, and their values as text."""
        each = self.comparison.each
        assert each is not None
        names = [self.comparison.runs] if isinstance(self.comparison.runs, str) else self.comparison.runs
        quantity = QUANTITIES[each.quantity]
        for suffix in self.suffixes:
            for w, c in self.rows:
                for method in each.methods:
                    values = quantities(names, w, c + suffix, method, each.quantity).values()
                    kept = [each.at_least <= x <= each.at_most for x in values]
                    shown = ", ".join("OOM" if x == inf else quantity.text.format(quantity.scale * x) for x in values)
                    yield (w, c + suffix), kept, shown

    def text(self) -> str:
        """Our figures in one cell, a line for each machine."""
        label = self.comparison.label
        if self.comparison.each is not None:
            found = list(self._each())
            if len(found) > _MANY:
                shown = f"in {sum(all(kept) for _, kept, _ in found)} of {len(found)} rows"
            else:
                shown = "; ".join(f"{self._name(row)} {values}" for row, _, values in found)
            return f"{label}: {shown}" if label else shown
        texts = []
        for suffix in self.suffixes:
            pairs = [pair for pair in self.pairs if pair.suffix == suffix]
            machine = ("tf2017" if suffix else "data sheets") if self.comparison.tf2017 else ""
            heads = ", ".join(filter(None, [label, machine]))
            texts.append((f"{heads}: " if heads else "") + self._pairs_text(pairs))
        return "<br>".join(texts)

    def _pairs_text(self, pairs: list[_Pair]) -> str:
        if self.comparison.all_of or len(pairs) > _MANY:
            own = self.verdicts()
            half = own if len(self.suffixes) == 1 else own[: len(own) // 2] if not pairs[0].suffix else own[len(own) // 2 :]
            of = half if self.comparison.all_of else [pair.verdict for pair in pairs]
            return f"in {of.count('holds')} of {len(of)} rows"
        several = len({pair.second for pair in pairs}) > 1 or len({pair.first for pair in pairs}) > 1
        return ", ".join(
            f"{self._name(p.row)} {self._pair_text(p)}" + (f" ({p.first} over {p.second})" if several else "") for p in pairs
        )

    def _pair_text(self, pair: _Pair) -> str:
        quantity = QUANTITIES[self.comparison.quantity]
        if self.comparison.quantity in ("value", "late"):
            return change_text(*pair.values)
        one, two = (quantity.text.format(quantity.scale * float(np.mean(list(v.values())))) for v in pair.values)
        return f"{one} against {two}"

    def _name(self, row: tuple[str, str]) -> str:
        name = self.paper.names.get(row[0], row[0])
        several = len({c for _, c in self.rows}) > 1
        return f"{name}({row[1].removesuffix(TF2017)[-1]})" if several else name


def _in_all(kept: list[bool]) -> str:
    return "holds" if all(kept) else "open" if any(kept) else "reversed"


@functools.cache
def _quantities(names: tuple[str, ...], workload: str, cluster: str, method: str, quantity: str) -> Seconds:
    found = QUANTITIES[quantity]
    if found.parts:
        [name] = names
        return {seed: found.of(parts) for seed, parts in sorted(recorded_parts(name)[workload, cluster, method].items())}
    runs = sorted(recorded(*names).of(workload, cluster, method), key=lambda run: run.seed)
    values = {run.seed: found.of(run) for run in runs if not found.column or getattr(run, found.column)}
    values = {seed: x for seed, x in values.items() if not isnan(x)}
    return {seed: x / float(np.mean(list(values.values()))) for seed, x in values.items()} if found.over_mean else values


def quantities(names: list[str], workload: str, cluster: str, method: str, quantity: str = "value") -> Seconds:
    """By seed, a quantity of a method's runs in some CSVs; runs without it are left out."""
    return _quantities(tuple(names), workload, cluster, method, quantity)


def fill(text: str) -> str:
    """A text with its placeholders computed, such as `{seconds|mirhoseini_table2|nmt|k80x2|single_gpu}`."""
    return _PLACEHOLDER.sub(lambda match: _computed(*match[1].split("|")), text)


def _computed(function: str, *arguments: str) -> str:
    if function not in _FUNCTIONS:
        raise ConfigError(f"no function {function!r} for texts", f"there are {', '.join(_FUNCTIONS)}")
    return str(_FUNCTIONS[function](*arguments))


def _change(runs: str, workload: str, cluster: str, first: str, second: str) -> str:
    names = runs.split("+")
    return change_text(*(quantities(names, workload, cluster, m) for m in (first, second)))


def _times(runs: str, workload: str, cluster: str, first: str, second: str) -> str:
    one, two = (np.mean(list(quantities(runs.split("+"), workload, cluster, m).values())) for m in (first, second))
    return f"{one / two:.2f}"


def _seconds(runs: str, workload: str, cluster: str, method: str) -> str:
    text = mean_text(quantities([runs], workload, cluster, method))
    return text if text == "OOM" else f"{text} s"


def _mean(runs: str, workload: str, cluster: str, method: str, quantity: str) -> str:
    found, values = QUANTITIES[quantity], quantities([runs], workload, cluster, method, quantity)
    return found.text.format(found.scale * float(np.mean(list(values.values()))))


def _hours(steps: str, runs: str, workload: str, cluster: str, method: str) -> str:
    return f"{int(steps) / 3600 * float(np.mean(list(quantities([runs], workload, cluster, method).values()))):.1f}"


def _family(name: str, first: str, second: str) -> str:
    return change_text(*family_pair(name, first, second))


def _correlation(kind: str) -> str:
    """Of simulated and measured seconds of a Llama layer on two CPU cores, in `data/fidelity.csv`."""
    rows = np.genfromtxt(DATA / "fidelity.csv", delimiter=",", names=True, dtype=None, encoding="utf-8")
    of = {"pearson": stats.pearsonr, "spearman": stats.spearmanr}[kind]
    return f"{of(rows['simulated_s'], rows['measured_s'])[0]:.2f}"


def _orders(runs: str, table: str, cluster: str) -> str:
    """How many of the orders of two methods in a paper's table hold: `45 of 90`. N in `cluster` is the number of GPUs."""
    found = orders(*paper_table(table, cluster.replace("N", "{}")), by_place(read_runs(DATA / f"{runs}.csv")))
    return f"{found.count('holds')} of {len(found)}"


def _ended_on_one_gpu(runs: str, workload: str, cluster: str, method: str, baselines: str) -> str:
    """How many seeds end within 1% of the time of one GPU."""
    [one] = quantities([baselines], workload, cluster, "single_gpu").values()
    return str(sum(abs(x / one - 1) < EQUAL for x in quantities([runs], workload, cluster, method).values()))


_FUNCTIONS = {
    "change": _change, "times": _times, "seconds": _seconds, "mean": _mean, "hours": _hours, "family": _family,
    "correlation": _correlation, "orders": _orders, "one GPU": _ended_on_one_gpu,
    "over best": lambda policy: f"{100 * (float(np.mean(list(over_best_in_training(policy).values()))) - 1):.0f}",
    "rewards": lambda first, second: change_text(own_placement(first), own_placement(second)),
    "ahead": lambda *of: str(beside_search(*of)["holds"]), "behind": lambda *of: str(beside_search(*of)["reversed"]),
    "rows": lambda *of: str(beside_search(*of).total()),
    "count": lambda paper, verdict: str(count(paper)[VERDICTS.index(verdict)]),
}  # fmt: skip


def beside_search(runs: str, method: str) -> Counter[str]:
    """In how many rows the default search, with as many evaluations, is ahead of a method (`holds`) or behind (`reversed`)."""
    found = recorded(runs).rows
    places = [(w, c) for w, c, m in found if m == method and (w, c, "portfolio") in found]
    return Counter(judge("<", *(quantities([runs], *place, m) for m in ("portfolio", method))) for place in places)
