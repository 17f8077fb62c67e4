"""Judges the claims of papers by the recorded runs.

Each paper has a file `papers/NAME.yaml` with its items and claims. A claim says what the paper found and which comparisons of our
runs test it; its verdict and its figures are computed from the runs. If no comparison can test a claim, the file has its
verdict.
"""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import inf, isnan, log
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import yaml
from pydantic import BaseModel, ConfigDict, Field

from placekit_core import ConfigError
from placekit_papers.paper_tables import paper_table
from placekit_papers.quantities import QUANTITIES, quantities
from placekit_papers.runs import Run, family_pair, over_best_in_training, own_placement, recorded
from placekit_papers.statistics import EQUAL, Seconds, change_text, judge, order_of_paper
from placekit_papers.texts import fill

PAPERS = Path(__file__).parent / "papers"
NAMES = ("mirhoseini2017", "post", "placeto", "doppler")
VERDICTS = ("holds", "partly", "contradicted", "open", "not done")
TF2017 = "_tf2017"
"""Suffix of machines as TensorFlow of 2017 seems to have used them: with slow links and less memory."""
MACHINES = ("data sheets", "tf2017", "")
"""A claim has a verdict for machines by their data sheets, and one for machines with suffix `TF2017`; `""`: for neither."""
_START = 1.5  # seconds that a run of a sweep takes to start
_T = TypeVar("_T")
_MANY = 6  # with more pairs, only the number that holds is shown


class _Data(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Side(_Data):
    """One side of an order: a method, and `runs`, `quantity` or `workload` if they differ from the comparison's."""

    method: str
    runs: str | None = None
    quantity: str | None = None
    over: str | None = None
    """Divide by the values of this method, seed by seed."""
    scale: float = 1.0
    workload: str | None = None


class Each(_Data):
    """Limits within which a quantity must be for every seed."""

    methods: list[str]
    quantity: str
    at_least: float = -inf
    at_most: float = inf


class Comparison(_Data):
    """A comparison in one or several rows, each a program and a machine.

    Attributes:
        runs: a CSV of `data`, or several; `families`, `orders` or `rewards` for the CSVs of those studies.
        rows: `[program, machine]` pairs, or the name of a list in the paper's `rows`.
        order: first method, sign (see `statistics.judge`; `?` for the order in the paper's table), second method. A method may
            also be a list of methods, each of which is compared, or a `Side`.
        amounts: for each row, how many percent less the paper's first method takes: the order holds if at least half of that
            is found (of the logarithm). Empty: any amount will do.
        all_of: one verdict per row: whether the order holds for all second methods.
        each: limits for every seed, instead of an order.
        table: the paper's table, for `?` and `skip_lost`.
        skip_lost: leave out rows in which a method fits in the paper but not here, for claims that are not about memory.
        tf2017: compare on the machines with suffix `TF2017`, too.
        judged: whether the comparison counts for the verdict, or is only shown.
    """

    runs: str | list[str]
    rows: str | list[tuple[str, str]]
    order: tuple[Any, str, Any] | None = None
    each: Each | None = None
    quantity: str = "value"
    table: str = ""
    label: str = ""
    amounts: list[float] = []
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
        verdict: the verdict, if no comparison decides it.
        here: additional text on our results; `{function|argument|...}` is computed, see `fill`.
        why: what differs from the paper, or the reason for the verdict.
    """

    where: str
    item: str
    paper: str
    compare: list[Comparison] = []
    verdict: Literal["", "holds", "partly", "contradicted", "open", "not done"] = ""
    here: str = ""
    why: str = ""


class Experiment(_Data):
    """A command of an item: overrides of `placekit run`, the name of the method if it is not the policy, and the CSV."""

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
        parts: shows where the parts of these workloads are computed; see the module `parts` for the expressions. The CSV of
            recorded parts is `NAME_parts`, after the first of `runs`.
        experiments: the commands that `--run` runs.
        study: a module with `show()` and `run(folder, registry)`, for an item that is not a sweep.
        minutes: duration on two CPU cores; 0: computed from the seconds of `runs`.
    """

    title: str
    runs: list[str] = []
    tables: list[str] = []
    cluster: str = "k80x{}"
    late: bool = False
    parts: Mapping[str, str] = {}
    experiments: list[Experiment] = []
    study: str = ""
    minutes: float = 0

    @property
    def recorded_runs(self) -> list[Run]:
        """The committed runs."""
        return [run for rows in recorded(*self.runs).rows.values() for run in rows]

    @property
    def expected_minutes(self) -> float:
        """Duration of the runs on two CPU cores."""
        return (
            self.minutes or sum(_START + (0 if isnan(run.seconds) else run.seconds) for run in self.recorded_runs) / 60
        )


class Paper(_Data):
    """A paper's file."""

    title: str
    cluster: str
    names: Mapping[str, str] = Field(default_factory=dict)
    rows: Mapping[str, list[tuple[str, str]]] = Field(default_factory=dict)
    items: Mapping[str, Item]
    claims: list[Claim]
    summary: str


class Verdict(NamedTuple):
    """The verdict on a claim on one machine.

    Attributes:
        verdict: one of `VERDICTS`.
        rows: in how many of several rows it holds; else empty.
        figures: our figures, a line for each comparison.
        beside: figures that were not judged.
    """

    verdict: str
    rows: str
    figures: list[str]
    beside: list[str]

    def text(self, mark: str = "") -> str:
        """The verdict, and its rows if it does not hold in all."""
        return f"{mark}{self.verdict}{mark}" + (f", {self.rows}" if self.rows and self.verdict != "holds" else "")


class Judged(NamedTuple):
    """A claim, and a verdict for each of `MACHINES` that it was tested on."""

    claim: Claim
    verdicts: Mapping[str, Verdict]


@functools.cache
def load_paper(name: str) -> Paper:
    """A paper's items and claims. Raises ConfigError for an unknown paper."""
    if name not in NAMES:
        raise ConfigError(f"there is no paper {name!r}", f"the papers are {', '.join(NAMES)}")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    paper = Paper.model_validate(yaml.load((PAPERS / f"{name}.yaml").read_text(), loader))
    if unknown := {c.item for c in paper.claims} - paper.items.keys():
        raise ConfigError(f"papers/{name}.yaml has claims of items that it lacks: {', '.join(sorted(unknown))}")
    return paper


@functools.cache
def judged(name: str) -> list[Judged]:
    """The claims of a paper with their verdicts, in the order of the paper."""
    paper = load_paper(name)
    return [_judged(paper, claim) for claim in paper.claims]


def count(name: str) -> dict[str, list[int]]:
    """How many claims of a paper have each of `VERDICTS`, for each of `MACHINES` that has any."""
    found = Counter((machine, verdict.verdict) for j in judged(name) for machine, verdict in j.verdicts.items())
    return {m: [found[m, v] for v in VERDICTS] for m in MACHINES if any(machine == m for machine, _ in found)}


def together(verdicts: list[str]) -> tuple[str, str]:
    """The verdict on a claim about several rows, and in how many rows it holds.

    The claim holds if it holds in all rows, and holds partly if in some. If it holds in none, it is contradicted if it is
    reversed in most rows, else open.
    """
    found, total = Counter(verdicts), len(verdicts)
    assert total
    some = _rows_text(verdicts) if total > 1 else ""
    if found["holds"] == total:
        return "holds", some
    if found["holds"]:
        return "partly", some
    return ("contradicted" if 2 * found["reversed"] > total else "open"), some


def _rows_text(verdicts: list[str]) -> str:
    found = Counter(verdicts)
    text = f"in {found['holds']} of {len(verdicts)} rows"
    return f"{text}, {found['reversed']} reversed" if found["reversed"] else text


def _judged(paper: Paper, claim: Claim) -> Judged:
    of, figures, beside = (defaultdict[str, list[str]](list) for _ in range(3))
    for comparison in claim.compare:
        found = _Comparing(paper, comparison)
        for machine, text in found.texts().items():
            (figures if comparison.judged else beside)[machine].append(text)
        for machine, verdict in found.verdicts() if comparison.judged else ():
            of[machine].append(verdict)
    verdicts = {"": (claim.verdict, "")} if claim.verdict else {m: together(of[m]) for m in MACHINES if m in of}
    if not verdicts:
        raise ConfigError(
            f"no run decides the claim {claim.paper!r}", "give it a verdict, or a comparison that is judged"
        )
    if claim.here:
        figures[next(iter(verdicts))].append(fill(claim.here))
    return Judged(
        claim,
        {m: Verdict(v, rows, [x for x in figures[m] if x != rows], beside[m]) for m, (v, rows) in verdicts.items()},
    )


@dataclass(frozen=True)
class _Pair:
    """Two methods in one row: the paper's order of them, and our values by seed."""

    suffix: str
    row: tuple[str, str]
    first: str
    sign: str
    second: str
    values: tuple[Seconds, Seconds]
    swapped: bool = False
    """The second method is the faster one in the paper, so the order is judged from it to the first."""
    least: float = EQUAL

    @property
    def machine(self) -> str:
        return _machine(self.row[1] + self.suffix)

    @property
    def verdict(self) -> str:
        return judge(self.sign, *(self.values[::-1] if self.swapped else self.values), self.least)


class _Comparing:
    """Compares the methods of a comparison with our values."""

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
        amounts = self.comparison.amounts
        least = -log(1 - dict(zip(self.rows, amounts, strict=True))[row] / 100) / 2 if amounts else EQUAL
        return _Pair(suffix, row, a.method, sign, b.method, values, faster != a.method, least)

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

    def verdicts(self) -> list[tuple[str, str]]:
        """The machine and a verdict for each pair of methods, or for each row with `all_of`."""
        if self.comparison.each is not None:
            return [(_machine(row[1]), _verdict_of_seeds(ok)) for row, ok, _ in self._each()]
        if not self.comparison.all_of:
            return [(pair.machine, pair.verdict) for pair in self.pairs]
        by_row: dict[tuple[str, tuple[str, str]], list[str]] = {}
        for pair in self.pairs:
            by_row.setdefault((pair.machine, pair.row), []).append(pair.verdict)
        return [
            (machine, "reversed" if "reversed" in of else "holds" if set(of) == {"holds"} else "open")
            for (machine, _), of in by_row.items()
        ]

    def _each(self) -> Iterator[tuple[tuple[str, str], list[bool], str]]:
        """For each row and method: whether the run of each seed is within the limits, and the values as text."""
        each = self.comparison.each
        assert each is not None
        names = [self.comparison.runs] if isinstance(self.comparison.runs, str) else self.comparison.runs
        quantity = QUANTITIES[each.quantity]
        for suffix in self.suffixes:
            for w, c in self.rows:
                for method in each.methods:
                    values = quantities(names, w, c + suffix, method, each.quantity).values()
                    kept = [each.at_least <= x <= each.at_most for x in values]
                    texts = ["OOM" if x == inf else quantity.text.format(quantity.scale * x) for x in values]
                    shown = ", ".join(texts if len(set(texts)) > 1 else texts[:1])
                    yield (w, c + suffix), kept, shown

    def texts(self) -> dict[str, str]:
        """Our figures on each machine."""
        of = self._seeds_texts() if self.comparison.each else self._pairs_texts()
        return {
            machine: (f"{self.comparison.label}: " if self.comparison.label else "") + x for machine, x in of.items()
        }

    def _seeds_texts(self) -> dict[str, str]:
        by_machine = _grouped(self._each(), lambda found: _machine(found[0][1]))
        return {
            machine: _rows_text([_verdict_of_seeds(kept) for _, kept, _ in found])
            if len(found) > _MANY
            else "; ".join(f"{self._name(row)} {values}" for row, _, values in found)
            for machine, found in by_machine.items()
        }

    def _pairs_texts(self) -> dict[str, str]:
        by_machine = _grouped(self.pairs, lambda pair: pair.machine)
        verdicts = _grouped(self.verdicts(), lambda of: of[0])
        several = len({pair.second for pair in self.pairs}) > 1 or len({pair.first for pair in self.pairs}) > 1
        texts = {}
        for machine, pairs in by_machine.items():
            if self.comparison.all_of or len(pairs) > _MANY:
                texts[machine] = _rows_text([verdict for _, verdict in verdicts[machine]])
            else:
                of = [f"{self._name(p.row)} {self._pair_text(p)}" for p in pairs]
                texts[machine] = ", ".join(
                    x + (f" ({p.first} over {p.second})" if several else "") for x, p in zip(of, pairs, strict=True)
                )
        return texts

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


def _grouped(found: Iterable[_T], key: Callable[[_T], str]) -> dict[str, list[_T]]:
    groups: dict[str, list[_T]] = {}
    for x in found:
        groups.setdefault(key(x), []).append(x)
    return groups


def _machine(cluster: str) -> str:
    return "tf2017" if cluster.endswith(TF2017) else "data sheets"


def _verdict_of_seeds(kept: list[bool]) -> str:
    return "holds" if all(kept) else "open" if any(kept) else "reversed"
