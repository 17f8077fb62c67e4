"""Texts with figures that are computed from the recorded runs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

import numpy as np
from scipy import stats

from placekit_core import ConfigError
from placekit_papers.paper_tables import by_place, orders, paper_table
from placekit_papers.quantities import QUANTITIES, quantities
from placekit_papers.runs import DATA, family_pair, over_best_in_training, own_placement, read_runs, recorded
from placekit_papers.statistics import EQUAL, change_text, judge, mean_text

LEARNED = (
    ("mirhoseini_table2", "seq2seq"), ("mirhoseini_table2", "post"), ("post_table1", "post"), ("placeto_table1", "seq2seq"),
    ("placeto_table1", "placeto"), ("doppler_table2", "doppler"), ("doppler_table2_fifo", "doppler"),
    ("doppler_table2", "placeto"), ("doppler_table2", "gdp"),
    ("doppler_system", "I, II, III"), ("doppler_table9", "doppler"), ("doppler_table9", "post"),
)  # fmt: skip
"""CSVs with runs of a learned method and of the default search, with as many evaluations."""
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")


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


_FUNCTIONS: dict[str, Callable[..., object]] = {
    "change": _change, "times": _times, "seconds": _seconds, "mean": _mean, "hours": _hours, "family": _family,
    "correlation": _correlation, "orders": _orders, "one GPU": _ended_on_one_gpu,
    "over best": lambda policy: f"{100 * (float(np.mean(list(over_best_in_training(policy).values()))) - 1):.0f}",
    "rewards": lambda first, second: change_text(own_placement(first), own_placement(second)),
    "ahead": lambda *of: str(beside_search(*of)["holds"]), "behind": lambda *of: str(beside_search(*of)["reversed"]),
    "rows": lambda *of: str(beside_search(*of).total()),
}  # fmt: skip


def beside_search(runs: str, method: str) -> Counter[str]:
    """In how many rows the default search, with as many evaluations, is ahead of a method (`holds`) or behind (`reversed`)."""
    found = recorded(runs).rows
    places = [(w, c) for w, c, m in found if m == method and (w, c, "portfolio") in found]
    return Counter(judge("<", quantities([runs], *p, "portfolio"), quantities([runs], *p, method)) for p in places)
