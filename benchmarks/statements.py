"""The figures in the summaries of docs/research, computed from the committed runs.

    python benchmarks/statements.py

A statement is a piece of a page's text whose figures are computed from the committed runs and results. This prints the
statements that a page lacks, mostly because it is older than the runs, and the figures of its summary that no statement has; a
test fails if there are any. The summary is what follows *In short*, or the whole text of pages in `WHOLE`, without code, tables,
addresses and the paper's figures: sentences that begin with "The paper has" or "In the paper", and brackets that begin with "the
paper:". Figures in words are not seen.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import exp, log

import numpy as np
from claims import LEARNED, PAGES, TF, Runs, runs
from claims_doppler import CLUSTER, LLAMA, PROGRAMS
from claims_mirhoseini2017 import MORE, PAPER, on_one_gpu
from claims_placeto import (
    ROWS as PLACETO_ROWS,
    START,
    STEP_AND_LAST,
    Family,
    fewer_evaluations,
    over_own_best,
    over_search,
    rewards,
)
from claims_post import GROUPS, INCEPTIONS, MORE as POST_MORE, NMTS, RESNETS, RNNLM, ROWS as POST_ROWS
from learning_table import CLAIM, read as read_curves
from paper_table import cell, found, judged, order_said, ratio, table
from seeds import Seed, mean_and_half, read

RESULTS = PAGES.parents[1] / "benchmarks" / "results"
NASNET_2 = ("nasnet", "k80x2")
WHOLE = ("README",)
NUMBER = re.compile(r"(?<![\w.-])\d+(?:,\d{3})*(?:\.\d+)?%?(?!\w)")
OF_THE_PAPER = re.compile(r"\(the paper(?:'s [\w ]+)?: [^()]*\)|(?:The paper has|In the paper,?) (?:[^.]|\.(?=\d))*\.")
NO_FIGURE = re.compile(r"`[^`]*`|\]\([^)]*\)")
NAMES = re.compile(
    r"\b(?:20[12]\d|[Ff]igures? \d+(?: and \d+)?|[Tt]ables? \d+|[Ss]ections? [\d.]+|[Aa]ppendix [A-Z][\d.]*)"
)
BY_HAND = {
    "README": (
        "at least 1%, and if the 95% interval of its mean over six seeds excludes 0",
        "equal within 1%",
        "up to 94,000",
        "each training took 16,000 simulated ones",
    ),
    "doppler": ("2,000 episodes of imitation", "with 4,000 episodes four of five", "After 4,000 evaluations a"),
}
"""Pieces with figures that no committed run has: our rules, and what other people or older runs found."""


def flat(text: str) -> str:
    """A text on one line, so that pieces of it can be found whatever the line breaks."""
    return " ".join(text.split())


def page_text(page: str) -> str:
    """A page, flat, without code, tables and comments; where only its summary is judged, the summary alone."""
    text = (PAGES / f"{page}.md").read_text()
    if page not in WHOLE:
        text = text.partition("In short:")[2].partition("\n## ")[0]
    text = re.sub(r"```.*?```|<!--.*?-->", "", text, flags=re.DOTALL)
    return flat(re.sub(r"^(?:\||#).*$", "", text, flags=re.MULTILINE))


def figures(text: str) -> Counter[str]:
    """The figures of a flat text: no names of figures and tables, no code, no link, nothing said of the paper."""
    return Counter(NUMBER.findall(NAMES.sub("", OF_THE_PAPER.sub("", NO_FIGURE.sub("", text)))))


def missing(page: str, text: str, pieces: Iterable[str]) -> list[str]:
    """What is wrong with the text of a page: statements that it lacks, and figures that no statement has."""
    lacks = [f"{page}.md lacks: {piece}" for piece in pieces if piece not in text]
    known = sum((figures(piece) for piece in [*pieces, *BY_HAND.get(page, ())]), Counter[str]())
    more = sorted(figures(text) - known)
    lacks += [f"{page}.md lacks: {piece}" for piece in BY_HAND.get(page, ()) if piece not in text]
    return lacks + [f"{page}.md has {n}, which is in no statement" for n in more]


def _orders(name: str, suffix: str = "", without: Sequence[str] = (), of: Sequence[str] = ()) -> tuple[int, int]:
    """How many of the orders in a paper's table hold here, and how many there are.

    Without those that have a method of `without`; only those that have one of `of`, if it names any.
    """
    methods, paper = table(PAGES / "papers" / f"{name}.txt", f"k80x{{}}{suffix}")
    rows = found(read([PAGES / "runs" / f"{name}.csv"]))
    verdicts = [
        v
        for _, order, v in judged(methods, paper, rows)
        if not set(without) & set(order.split()) and (not of or set(of) & set(order.split()))
    ]
    return verdicts.count("holds"), len(verdicts)


def _percent(of: Runs, workload: str, cluster: str, method: str, other: str) -> float:
    """By how many percent a method takes longer than another: the mean over the seeds."""
    low, high = ratio(of.of(workload, cluster, method), of.of(workload, cluster, other))
    return 100 * (exp((low + high) / 2) - 1)


def _range(values: Sequence[float], digits: int = 0) -> str:
    low, high = (f"{f(values):.{digits}f}" for f in (min, max))
    return low if low == high else f"{low} to {high}"


def _change(values: Mapping[int, float]) -> tuple[float, float]:
    """The mean of ratios as a change in percent, and half its interval."""
    mean, half = mean_and_half([log(x) for x in values.values()])
    return 100 * (exp(mean) - 1), 50 * (exp(mean + half) - exp(mean - half))


def _longer(change: tuple[float, float]) -> str:
    """By how many percent more seconds; negative if fewer, which no text has."""
    mean, half = change
    return f"{mean:.1f}" + (f" ± {half:.1f}" if half >= 0.05 else "") + "%"


def _less(change: tuple[float, float]) -> str:
    """By how many percent fewer seconds."""
    return _longer((-change[0], change[1]))


def _level(change: tuple[float, float]) -> str:
    """What is said of a change: whether its interval has 0 in it."""
    return "not distinguishable" if abs(change[0]) <= change[1] else "distinguishable"


def _better_list(family: str, method: str) -> dict[int, float]:
    """By seed, a method over the better of the two list schedulers."""
    values = Family(family)
    over = [values.over(method, m) for m in ("heft", "etf")]
    return {seed: max(o[seed] for o in over) for seed in over[0]}


def _readme() -> list[str]:
    orders: dict[tuple[str, ...], str] = {}  # runs of Post stand in two files
    for name, method in LEARNED:
        values = runs(name)
        for w, c, m in values.rows:
            if m == method and (w, c, "portfolio") in values.rows:
                orders["" if m == "post" else name, w, c, m] = values.order(w, c, "portfolio", "<", m)
    verdicts, doppler = list(orders.values()), [v for key, v in orders.items() if key[-1] == "doppler"]
    ahead, behind = verdicts.count("holds"), verdicts.count("reversed")
    slow = runs("placeto_table1")
    nmt = [cell(slow.of("nmt", "k80x2" + TF, m)) for m in ("placeto", "portfolio")]
    zero = {f: "placeto zero-shot" + (" from one GPU" if f == "ptb" else "") for f in ("cifar10", "nmt", "ptb")}
    less = [_less(_change(_better_list(f, m))) for f, m in zero.items()]
    starts = _learned_starts()
    first = {t: [_orders("mirhoseini_table2", x, **t_of) for x in (TF, "")] for t, t_of in (
        ("all", {}), ("baselines", {"without": ["seq2seq"]}), ("learned", {"of": ["seq2seq"]}),
    )}  # fmt: skip
    post, placeto = ([_orders(*t) for t in of] for of in (
        [("post_table1", x, ["policy_gradient"]) for x in (TF, "")], [("placeto_table1", x) for x in (TF, "")],
    ))  # fmt: skip
    made = [s.evaluations for name, method in LEARNED for s in _of_method(runs(name), method)]
    more = runs("mirhoseini_more")
    assert all(more.order("nmt", c, MORE, "<", "expert") == "holds" for c in ("k80x2", "k80x4"))
    [few] = {s.evaluations for s in _of_method(runs("mirhoseini_table2"), "seq2seq")}
    return [
        f"With {MORE.partition(' ')[0]} on quick links, NMT of Mirhoseini et al. is ahead of the expert, which it is not with"
        f" {few:,}",
        f"the search is ahead in {ahead} of {len(verdicts)} comparisons, and a learned method in {behind or 'none'}",
        f"where `placeto` takes {nmt[0]} s",
        f"one of its starts now has {nmt[1]}, and annealing",
        f"in {doppler.count('open')} of {len(doppler)} cases the two are not distinguishable",
        f"This placement takes {less[0]} (`cifar10`), {less[1]} (`nmt`) and {less[2]} (`ptb`) less time",
        f"With 10 evaluations its result then takes {_less(starts['cifar10', 10])} (`cifar10`), {_less(starts['nmt', 10])}"
        f" (`nmt`) and {_less(starts['ptb', 10])} (`ptb`) less time than without",
        f"with 100 evaluations {_less(starts['cifar10', 100])[:-1]} and {_less(starts['nmt', 100])} less on the first two",
        f"with 1,000 it gains nothing, and loses {_longer(starts['nmt', 1000])} on `nmt`",
        f"{first['all'][0][0]} of {first['all'][0][1]} orders of Mirhoseini et al. hold, on the one by its data sheets"
        f" {first['all'][1][0]}",
        f"orders between baselines ({first['baselines'][0][0]} and {first['baselines'][1][0]} of {first['baselines'][0][1]})",
        f"with the learned method {first['learned'][0][0]} and {first['learned'][1][0]} of {first['learned'][0][1]} hold",
        f"For Post it is {post[0][0]} and {post[1][0]} of the same {post[0][1]}, for Placeto {placeto[0][0]} and"
        f" {placeto[1][0]} of {placeto[0][1]}",
        f"The runs compared above have {min(made):,} to {max(made):,}.",
    ]


def _learned_starts() -> dict[tuple[str, int], tuple[float, float]]:
    """By family and evaluations, what a trained policy as a start changes, as in `_change`."""
    with (PAGES / "placeto_starts.csv").open(newline="") as file:
        ratios = over_search(csv.DictReader(file))
    return {(family, budget): _change(by) for (method, family, budget), by in ratios.items() if method == START}


def _of_method(of: Runs, method: str) -> list[Seed]:
    return [s for (_, _, m), rows in of.rows.items() if m == method for s in rows]


def _mirhoseini() -> list[str]:
    t2 = runs("mirhoseini_table2")
    (hold, count), (slow, _) = _orders("mirhoseini_table2"), _orders("mirhoseini_table2", TF)
    [few] = {s.evaluations for s in _of_method(t2, "seq2seq")}
    one = t2.of("rnnlm", "k80x2" + TF, "single_gpu")[0]
    there = [v == one for c in ("k80x2", "k80x4") for v in t2.of("rnnlm", c + TF, "seq2seq").values()]
    on_one = {(w, n): on_one_gpu(w, f"k80x{n}{TF}") for w in ("rnnlm", "inception_v3") for n in (2, 4)}
    paper = runs("mirhoseini_paper")
    first = [s.to_best for (w, _, m), rows in paper.rows.items() if w != "nmt" and m == PAPER for s in rows]
    nmt = [v for n in (2, 4) for v in paper.of("nmt", f"k80x{n}{TF}", PAPER).values()]
    assert min(nmt) > t2.of("nmt", "k80x2" + TF, "expert")[0], "NMT beats the expert"
    more = runs("mirhoseini_more")
    less = [-_percent(more, "nmt", c, MORE, "expert") for c in ("k80x2", "k80x4")]
    return [
        f"NMT does not beat the expert with {few:,} evaluations. With {MORE.partition(' ')[0]} and quick links it takes"
        f" {_range(less)}% less time than the expert on two and on four GPUs",
        f"with 10,000 evaluations, RNNLM ends on one GPU for {on_one['rnnlm', 2]} of 6 seeds with two GPUs and for"
        f" {on_one['rnnlm', 4]} with four, Inception-V3 for {on_one['inception_v3', 2]} and {on_one['inception_v3', 4]}",
        f"All {len(first)} runs of the two have found their result after {max(first)} evaluations",
        f"{hold} of {count} hold on the machine by its data sheets, and {slow} on one with slow links",
        f"With {few:,} evaluations `seq2seq` does",
        f"takes {-_percent(t2, 'inception_v3', 'k80x4', 'seq2seq', 'single_gpu'):.0f}% less time than on one GPU",
        f"there for {sum(there)} of {len(there)} seeds",
        f"NMT in {-_percent(t2, 'nmt', 'k80x2' + TF, 'portfolio', 'expert'):.0f}% less time than the expert's placement",
    ]


def _post() -> list[str]:
    t1 = runs("post_table1")
    gradient = [-_percent(t1, *p, "post", "policy_gradient") for p in POST_ROWS]
    faster = [t1.order(*p, "post", "<", "policy_gradient") for p in POST_ROWS].count("holds")
    orders = [t1.order(w, c + s, "portfolio", "<", "post") for s in ("", TF) for w, c in POST_ROWS]
    curves = read_curves([PAGES / f"post_{n}gpus.csv" for n in (2, 4, 8)])
    level = sum(by[CLAIM[1]][1] >= 0.99 * by[CLAIM[0]][1] for by in curves.values())
    over = {name: [_percent(t1, *p, "post", m) for p in of] for name, of, m in (
        ("inception", INCEPTIONS, "single_gpu"), ("resnet", RESNETS, "single_gpu"), ("rnnlm", RNNLM, "single_gpu"),
        ("nmt", NMTS, "expert"),
    )}  # fmt: skip
    cpu = [100 * t1.where(*p, "post")["xeon:0"] for p in NMTS]
    more = runs("post_table1", "post_more")
    two, four, eight = (_percent(more, *p, GROUPS, "expert") for p in NMTS)
    further = [_percent(more, *p, POST_MORE, "single_gpu") for p in RESNETS]
    return [
        f"with {GROUPS} instead of 321 to 801 Post takes {-two:.0f}% less time than the expert with two GPUs, and"
        f" {four:.0f} and {eight:.0f}% more with four and eight",
        f"with ten times the evaluations at most {max(further):.1f}%",
        f"in {faster} of {len(gradient)} rows of table 1, by {_range(gradient)}%",
        f"by medians Post is at most 1% behind in {level}",
        f"*Inception-V3* takes {_range([-x for x in over['inception']])}% less time than on one GPU",
        f"Post's placements take {_range(over['resnet'])}% longer",
        f"*RNNLM* takes {-over['rnnlm'][0]:.0f}% less time on two GPUs than on one",
        f"Post takes {_range(over['nmt'])}% longer than the expert",
        f"After {t1.rows[(*NMTS[0], 'post')][0].evaluations:,} evaluations the CPU still has {_range(cpu)}% of the computation",
        f"*On slow links* Post is far from any good placement after {t1.rows[(*NMTS[0], 'post')][0].evaluations:,} evaluations",
        f"is ahead of Post in {orders.count('holds')} of {len(orders)} rows",
    ]


def _placeto() -> list[str]:
    t1 = runs("placeto_table1")
    (hold, count), (slow, _) = _orders("placeto_table1"), _orders("placeto_table1", TF)
    made = t1.rows["nasnet", "k80x2", "placeto"][0].evaluations
    nasnet = [-_percent(t1, "nasnet", c, "placeto", "seq2seq") for c in ("k80x2", "k80x4")]
    behind = _percent(t1, "inception_v3", "k80x2", "placeto", "seq2seq")
    fewer = [fewer_evaluations(p) for p in PLACETO_ROWS if not p[0].startswith("inception")]
    nmt = [cell(t1.of("nmt", "k80x2" + TF, m)) for m in ("placeto", "portfolio")]
    paper = table(PAGES / "papers" / "placeto_table1.txt", "k80x{}")[1]
    there = [p for p in PLACETO_ROWS if order_said(paper[p], "placeto", "seq2seq")[:2] == ("placeto", "<")]
    rnn = [t1.order(w, c + TF, "placeto", "<", "seq2seq") for w, c in there]
    by = [
        -_percent(t1, w, c + TF, "placeto", "seq2seq")
        for w, c in PLACETO_ROWS
        if w.startswith("nmt") or (w, c) == NASNET_2
    ]
    family = {name: Family(name) for name in ("cifar10", "nmt", "ptb")}
    zero = {name: "placeto zero-shot" + (" from one GPU" if name == "ptb" else "") for name in family}
    one = {n: 100 * _mean_over(f, zero[n], "single_gpu") for n, f in family.items()}
    own = {n: _change(f.over(zero[n], "placeto optimised")) for n, f in family.items()}
    less = {n: _less(_change(_better_list(n, m))) for n, m in zero.items()}
    second = {n: _change(family[n].over("search, one second", zero[n])) for n in family}
    ablations = {n: Family(f"{n}_ablations") for n in ("cifar10", "nmt")}
    share = [100 * float(np.mean(ablations[n].shares["seq2seq"])) for n in ("cifar10", "nmt")]
    head = _change(ablations["cifar10"].over("head=paper", "placeto"))[0]
    over = {m: 100 * (float(np.mean(list(by.values()))) - 1) for m, by in over_own_best().items()}
    step, last = ({k: _column(rewards(*of), k) for k in ("evaluations", "seconds", "own_s")} for of in STEP_AND_LAST)
    times = {k: step[k] / last[k] for k in step}
    return [
        f"{hold} of the paper's {count} orders of two methods hold",
        f"With {made:,} evaluations each, `placeto` beats the RNN-based approach on NASNet, by {nasnet[0]:.0f} and"
        f" {nasnet[1]:.0f}%; it loses on Inception-V3 with two GPUs, by {behind:.0f}%",
        f"`placeto` needs {_range(fewer, 1)} times fewer evaluations than the RNN itself on NASNet and NMT",
        f"{slow} of the {count} orders hold",
        f"is ahead of the RNN-based approach in {rnn.count('holds')} of the {len(rnn)} rows in which it is ahead in the paper, by"
        f" {_range(by)}% on NMT and on NASNet with two GPUs",
        f"({nmt[0]} and {nmt[1]} s)",
        f"takes {one['cifar10']:.0f}% of the time of one GPU on unseen graphs of `cifar10`, {one['nmt']:.0f}% on `nmt`",
        f"this is {_longer(own['cifar10'])} longer on `cifar10`, {_longer(own['ptb'])} on `ptb`, and {_level(own['nmt'])}"
        " on `nmt`",
        f"the better list scheduler's by {less['cifar10']} (`cifar10`), {less['nmt']} (`nmt`) and {less['ptb']} (`ptb`)",
        f"default search takes {_less(second['cifar10'])} less than it on `cifar10`, {_less(second['ptb'])} on `ptb`, and is"
        f" {_level(second['nmt'])} on `nmt`",
        f"put {share[0]:.0f} and {share[1]:.0f}% of the computation on one device",
        f"(`head=paper`) takes {head:.0f}% longer on `cifar10`",
        f"places unseen orders {over['placeto']:.0f}% above the best that its training found, `seq2seq` {over['seq2seq']:.0f}%",
        f"takes {times['evaluations']:.1f} times the evaluations and {times['seconds']:.0f} times the seconds",
        f"the policy's own placement is {100 * (times['own_s'] - 1):.0f}% worse",
    ]


def _mean_over(family: Family, method: str, other: str) -> float:
    """The mean over graphs and seeds of a method's seconds over those of one that draws no numbers."""
    (one,) = family.found[other].values()
    return float(np.mean([x / one[g] for of in family.found[method].values() for g, x in of.items()]))


def _column(rows: list[dict[str, str]], column: str) -> float:
    """The mean over the seeds of a column; of seconds, the median."""
    return float((np.median if column == "seconds" else np.mean)([float(r[column]) for r in rows]))


def _doppler() -> list[str]:
    orders = (runs("doppler_table2"), runs("doppler_table2_fifo"))
    rest = [w for w in PROGRAMS if w != "ffnn_sharded"]
    path = [[-_percent(f, w, CLUSTER, "doppler", "critical_path") for w in rest] for f in orders]
    optimiser = [[-_percent(f, w, CLUSTER, "doppler", "enumerative") for w in PROGRAMS] for f in orders]
    ffnn = -_percent(orders[0], "ffnn_sharded", CLUSTER, "doppler", "critical_path")
    search = [(f, w, f.order(w, CLUSTER, "portfolio", "<", "doppler")) for f in orders for w in PROGRAMS]
    equal = sum(v == "open" and f.order(w, CLUSTER, "doppler", "<", "portfolio") == "open" for f, w, v in search)
    ahead = [_percent(f, w, CLUSTER, "doppler", "portfolio") for f, w, v in search if v == "holds"]
    gdp = _percent(orders[0], "chainmm", CLUSTER, "gdp", "critical_path")
    stages = runs("doppler_figure3")
    imitation, learning = (_ahead(stages, "both stages", m) for m in ("stage I", "stage II"))
    added = runs("doppler_additions")
    additions = [_percent(added, w, CLUSTER, "none", "default") for w in rest]
    own, default = ({w: added.of(w, CLUSTER, m) for w in rest} for m in ("paper", "default"))
    setting = _longer(_change({k: x / default["chainmm"][k] for k, x in own["chainmm"].items()}))
    block, layer = (_range([100 * (exp(x) - 1) for x in ratio(own[w], default[w])]) for w in LLAMA)
    naive, lock_step = _faster()
    parts, machines = runs("doppler_parts"), ("rtx4090_3090", CLUSTER)
    behind = [parts.change("inception_v3", m, "doppler", "default search").lstrip("+") for m in machines]
    took = [np.median([s.seconds for s in parts.rows["inception_v3", m, "doppler"]]) for m in machines]
    by_learning = [parts.change("inception_v3", m, "doppler", "doppler, nothing learned") for m in machines]
    return [
        f"`doppler` takes {_range(path[0])}% less time than the best of 50 critical path schedules on ChainMM and Llama, and"
        f" {_range(optimiser[0])}% less than the enumerative optimiser on all four programs",
        f"it takes {_range(path[1])}% less than the schedules and {_range(optimiser[1])}% less than the optimiser",
        f"`doppler` is ahead of critical path by {ffnn:.1f}%",
        f"in {equal} of {len(search)} cases the two are not distinguishable, in {len(ahead)} the search is"
        f" {_range(ahead, 1)}% ahead",
        f"`gdp` is behind critical path on all four, by {gdp:.0f}% on ChainMM",
        f"both stages together are ahead of imitation alone {imitation}, and of REINFORCE alone {learning}",
        f"Without the additions to the paper's algorithm, programs take {_range(additions, 1)}% longer, but FFNN does not",
        f"one episode per update, ends {setting} above the default on ChainMM, {block}% on the Llama block and {layer}% on the"
        " Llama layer",
        f"Compiled episodes are {naive[0]:.0f} and {naive[1]:.0f} times as fast as the plain loop over decisions in torch, and"
        f" {lock_step[0]:.0f} and {lock_step[1]:.0f} times as fast as episodes in lock step",
        f"`doppler` ends {behind[0]} behind the default search on the default machine, in {took[0]:.0f} s, and {behind[1]} behind"
        f" it on four P100, in {took[1]:.0f} s",
        f"No effect of learning shows there: {by_learning[0]} and {by_learning[1]}",
    ]


def _faster() -> tuple[list[float], list[float]]:
    """How many times as fast compiled episodes are as the plain loop and as those in lock step: benchmarks/results/doppler.md."""
    text = (RESULTS / "doppler.md").read_text().partition("size 128")[0]
    over = {
        way: [float(x) for x in re.findall(rf"{way} +[\d.]+ +[\d.]+ +([\d.]+)", text)]
        for way in ("lock step", "compiled")
    }
    return over["compiled"], [a / b for a, b in zip(over["compiled"], over["lock step"], strict=True)]


def _ahead(found: Runs, method: str, other: str) -> str:
    """On which of the Llama programs, and by how much, `method` takes less time than `other`, as far as it is distinguishable."""
    names = dict(zip(LLAMA, ("the block", "the layer"), strict=True))
    rows = [
        f"{-_percent(found, w, CLUSTER, method, other):.1f}% on {name}"
        for w, name in names.items()
        if found.order(w, CLUSTER, method, "<", other) == "holds"
    ]
    return f"by {' and '.join(rows)}" if rows else "on no Llama program"


STATEMENTS: Mapping[str, Callable[[], list[str]]] = {
    "README": _readme, "mirhoseini2017": _mirhoseini, "post": _post, "placeto": _placeto, "doppler": _doppler,
}  # fmt: skip


def main() -> None:
    """Print what is wrong, and end with 1 if anything is."""
    wrong, count = list[str](), 0
    for page, statements in STATEMENTS.items():
        pieces = statements()
        count += len(pieces)
        wrong += missing(page, page_text(page), pieces)
    print(
        "\n".join(wrong)
        or f"{len(STATEMENTS)} pages have all {count} statements, and no other figures in their summaries"
    )
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
