"""The claims of Yao et al. 2026, "Doppler: Dual-Policy Learning for Device Assignment in Asynchronous Dataflow Graphs"."""

from __future__ import annotations

import csv
from math import exp

import numpy as np
from claims import PAGES, Claim, Runs, runs, together
from paper_table import EQUAL, change, ratio, table, verdict
from scipy import stats
from seeds import mean_and_half

PROGRAMS = ("chainmm", "ffnn_sharded", "llama_block_sharded", "llama_layer_sharded")
LLAMA = PROGRAMS[2:]
PROGRAMS_8 = ("chainmm_8", "ffnn_sharded_8", "llama_block_sharded_8", "llama_layer_sharded_8")
NAME = dict(zip(PROGRAMS, ("ChainMM", "FFNN", "block", "layer"), strict=True))
CLUSTER, EIGHT = "p100x4", "v100x8"
IMITATED = "placeto, imitation first"  # a method of the runs of table 7
METHODS, PAPER = table(PAGES / "papers" / "doppler_table2.txt", "p100x{}")


def claims() -> list[Claim]:
    """All of them, in the order of the paper."""
    orders = (runs("doppler_table2"), runs("doppler_table2_fifo"))
    return [
        *_synchronous(),
        *_table2(*orders),
        *_networks(),
        *_stages(orders[0]),
        *_transfer(),
        *_appendix(orders[0]),
    ]


def _name(workload: str) -> str:
    return NAME[workload.removesuffix("_8")]


def _changes(found: Runs, first: str, second: str, programs: tuple[str, ...] = PROGRAMS, cluster: str = CLUSTER) -> str:
    return ", ".join(f"{_name(w)} {found.change(w, cluster, first, second)}" for w in programs)


def _orders(
    found: Runs, first: str, second: str, programs: tuple[str, ...] = PROGRAMS, cluster: str = CLUSTER
) -> list[str]:
    return [found.order(w, cluster, first, "<", second) for w in programs]


def _rules(priority: str, fifo: str) -> str:
    """A cell for the two orders in which operations start."""
    return f"priorities: {priority}<br>first come: {fifo}"


def _synchronous() -> list[Claim]:
    free, barriers = runs("doppler_table1"), runs("doppler_table1_synchronous")
    pairs = [(free.of(w, CLUSTER, "enumerative"), barriers.of(w, CLUSTER, "enumerative")) for w in PROGRAMS[:2]]
    times = [exp(-sum(ratio(a, b)) / 2) for a, b in pairs]
    return [
        Claim(
            "Table 1", "a synchronous system takes 1.33 (ChainMM) and 1.53 times (FFNN) as long as a work-conserving one",
            f"{times[0]:.2f} and {times[1]:.2f} times, the enumerative optimiser's placement with barriers and without",
            together(verdict("<", *ratio(a, b)) for a, b in pairs),
            "FFNN's devices compute for almost all of the step; PyTorch Lightning's tensor parallelism is another placement, too",
        )
    ]  # fmt: skip


def _table2(priority: Runs, fifo: Runs) -> list[Claim]:
    both = (priority, fifo)
    search = [found.order(w, CLUSTER, "portfolio", "<", "doppler") for found in both for w in PROGRAMS]
    behind = [found.order(w, CLUSTER, "doppler", "<", "portfolio") for found in both for w in PROGRAMS]
    alternatives = [v for m in ("placeto", "gdp") for v in _orders(priority, "doppler", m)]
    bars = _orders(priority, "enumerative", "placeto", PROGRAMS[1:])
    return [
        Claim(
            "Table 2", "Doppler-SIM takes 47, 77, 17 and 43% less time than critical path",
            _rules(*(_changes(f, "doppler", "critical_path") for f in both)),
            together(v for f in both for v in _orders(f, "doppler", "critical_path")),
            "critical path is a stronger baseline here: see the next row but one",
        ),
        Claim(
            "Table 2", "Doppler-SIM takes 11.9, 0.6 and 4.5% less time than the enumerative optimiser (ChainMM, FFNN, layer), and"
            " 10.9% more on the block",
            _rules(*(_changes(f, "doppler", "enumerative") for f in both)),
            together(v for f in both for v in _beside_enumerative(f)),
            "0.6% counts as equal; the paper's loss on the block does not show here",
        ),
        Claim(
            "Table 2", "the enumerative optimiser is faster than critical path, by 1.66, 4.34, 1.34 and 1.67 times",
            _rules(*(_changes(f, "enumerative", "critical_path") for f in both)),
            together(v for f in both for v in _orders(f, "enumerative", "critical_path")),
            "critical path that ignores where inputs are is slower still, but not on ChainMM"
            " ([experiment](#why-critical-path-is-weak-in-the-paper))",
        ),
        Claim(
            "Table 2", "Doppler-SIM is ahead of Placeto on all programs; of GDP, too, in figures that another version of"
            " the paper has",
            f"Placeto: {_changes(priority, 'doppler', 'placeto')}<br>GDP: {_changes(priority, 'doppler', 'gdp')}",
            together(alternatives),
            "against the default search, which the paper does not have, `doppler` is ahead in"
            f" {behind.count('holds')} and behind in {search.count('holds')} of 8 cases",
        ),
        Claim(
            "Table 2", "Placeto takes 1.7 to 2.5 times as long as the enumerative optimiser on FFNN and Llama",
            _changes(priority, "placeto", "enumerative", PROGRAMS[1:]), together(bars), "on FFNN it finds the bound here",
        ),
        Claim(
            "Table 2, E.3", "Llama block: Placeto is the slowest, behind critical path and the optimiser",
            ", ".join(f"{priority.change(PROGRAMS[2], CLUSTER, 'placeto', m)} over {m}" for m in ("critical_path",
            "enumerative")),
            together(priority.order(PROGRAMS[2], CLUSTER, m, "<", "placeto") for m in ("critical_path", "enumerative")),
            "`gdp`, which the text does not have, is slower",
        ),
        Claim(
            "Abstract, table 2 (Q1)", "Doppler-SYS, with stage III: up to 78.2% less time than critical path, 62.5% than"
            " Placeto, 13.8% than the"
            " optimiser", "", "not done", "nothing of it was measured on GPUs; stage III on another simulator: the rows below",
        ),
    ]  # fmt: skip


def _beside_enumerative(found: Runs) -> list[str]:
    """Whether the paper's orders of `doppler` and the enumerative optimiser hold."""
    return [found.as_said(w, CLUSTER, PAPER[w, CLUSTER], "doppler", "enumerative") for w in PROGRAMS]


def _networks() -> list[Claim]:
    found = runs("doppler_table3")
    said = table(PAGES / "papers" / "doppler_table3.txt", "p100x{}")[1]
    alone = ("doppler_sel", "doppler_plc")
    return [
        Claim(
            "Table 3 (Q2)", "both networks together are best but on ChainMM: 6 to 25% less than one of them",
            "<br>".join(f"`{m}`: {_changes(found, 'doppler', m)}" for m in alone),
            together(found.as_said(w, CLUSTER, said[w, CLUSTER], "doppler", m) for w in PROGRAMS for m in alone),
            "`doppler_plc` learns only to place, `doppler_sel` only to select",
        )
    ]  # fmt: skip


def _stages(priority: Runs) -> list[Claim]:
    ahead, other = _copied(priority, "doppler"), _copied(priority, "placeto")
    mean, half = mean_and_half([ahead[seed] - other[seed] for seed in ahead])
    return [
        *_system(),
        Claim(
            "Figure 4, appendix E.2 (Q4)", "FFNN: Doppler's placement copies less than Placeto's",
            f"links copy for {_copies(priority, 'doppler')} against {_copies(priority, 'placeto')} ms"
            f" ({change(ahead, other)})",
            "holds" if mean + half < 0 else "contradicted" if mean - half > 0 else "open",
            "copies overlap with computation, and cost little here",
        ),
    ]  # fmt: skip


def _copied(found: Runs, method: str) -> dict[int, float]:
    return {s.seed: s.copies_s for s in found.rows["ffnn_sharded", CLUSTER, method]}


def _copies(found: Runs, method: str) -> str:
    return f"{1e3 * float(np.mean(list(_copied(found, method).values()))):.1f}"


def _busy(found: Runs) -> list[Claim]:
    """How much of the step devices compute, how even their loads are, and how much is copied."""
    methods, chain, block = ("doppler", "enumerative", "critical_path"), PROGRAMS[0], PROGRAMS[2]
    busy = {m: _utilisation(found, chain, m) for m in methods}
    even = float(np.mean(list(_busiest(found, chain, "enumerative").values())))
    uneven = {m: _busiest(found, block, m) for m in methods}
    copied = {m: {s.seed: s.copies_s for s in found.rows[block, CLUSTER, m]} for m in methods}
    share, most, copies = (
        [f"{scale * float(np.mean(list(by[m].values()))):.{digits}f}" for m in methods]
        for by, scale, digits in ((busy, 100, 1), (uneven, 1, 3), (copied, 1e3, 0))
    )
    return [
        Claim(
            "Figures 6 to 9, E.2", "ChainMM: Doppler keeps devices busier than the enumerative optimiser, which leaves two of the"
            " four idle in the end",
            f"devices compute for {share[0]}% and {share[1]}% of the step (critical path: {share[2]}%); the busiest of the"
            f" optimiser's computes {even:.3f} times the mean",
            together([verdict("<", *ratio(busy["enumerative"], busy["doppler"])), "holds" if even > 1 + EQUAL else "reversed"]),
            "on equal devices all placements have the same work, so that the shorter step is the busier one; total loads"
            " are judged, not the end of the step",
        ),
        Claim(
            "Figure 12, E.3", "Llama block: Doppler's loads are the most even",
            f"the busiest device computes {most[0]} times the mean; {most[1]} with the optimiser, {most[2]} with critical path",
            together(verdict("<", *ratio(uneven["doppler"], uneven[m])) for m in methods[1:]),
            "the optimiser deals the parts of each operation out evenly; loads of `placeto` were not kept",
        ),
        Claim(
            "Figure 12, E.3", "Llama block: critical path copies more than the two, the optimiser the least",
            f"links copy for {copies[2]} ms with critical path, {copies[0]} with `doppler`, {copies[1]} with the optimiser",
            together(
                verdict("<", *ratio(copied[a], copied[b]))
                for a, b in (("enumerative", "doppler"), ("doppler", "critical_path"), ("enumerative", "critical_path"))
            ),
        ),
    ]  # fmt: skip


def _utilisation(found: Runs, workload: str, method: str) -> dict[int, float]:
    """By seed, the share of the step for which devices compute, the mean over the devices."""
    return {s.seed: float(np.mean(list(s.busy_s.values()))) / s.value_s for s in found.rows[workload, CLUSTER, method]}


def _busiest(found: Runs, workload: str, method: str) -> dict[int, float]:
    """By seed, the seconds of the busiest device over the mean of all."""
    rows = {s.seed: list(s.busy_s.values()) for s in found.rows[workload, CLUSTER, method]}
    return {seed: max(x) / float(np.mean(x)) for seed, x in rows.items()}


def _system() -> list[Claim]:
    """Stage III on another simulator."""
    found = runs("doppler_system")
    three, two, third = "I, II, III", "I, II", "III"
    engine = table(PAGES / "papers" / "doppler_table3.txt", "p100x{}")[1]
    said = {w: {three: engine[w, CLUSTER]["doppler"], two: PAPER[w, CLUSTER]["doppler"]} for w in PROGRAMS}
    adds = [found.as_said(w, CLUSTER, said[w], three, two) for w in PROGRAMS]
    late = ", ".join(f"{NAME[w]} {found.late_change(w, CLUSTER, three, two)}" for w in PROGRAMS)
    return [
        Claim(
            "Table 2", "stage III on the engine: 5, 16 and 10% less on FFNN and Llama, 1% more on ChainMM",
            f"on a system with barriers, simulated: {_changes(found, three, two)}<br>mean of the last placements: {late}",
            together(adds),
            "that system differs from the simulator of stage II by its barriers; without stage III as many placements that the"
            " policy draws are tried there; the mean placement gets better on three, the best on the block only; on two CPU"
            " cores, measured, no difference on ChainMM ([below](#stage-iii-measured)); FFNN and Llama were not run on a real"
            " machine",
        ),
        Claim(
            "Figure 3 (Q3)", "Llama layer: stage III alone converges more slowly, is unstable, and ends with longer times"
            " than after stages I and II",
            f"I, II and III over III alone, with as many executions: {_changes(found, three, third)}<br>III alone over I and II:"
            f" {_changes(found, third, two)}",
            together(_orders(found, three, third)),
            "only the best after all executions is judged, here on all four programs",
        ),
    ]  # fmt: skip


def _transfer() -> list[Claim]:
    found = runs("doppler_table4", "doppler_table2")
    sources = ("chainmm", "ffnn_sharded")
    baselines = ("critical_path", "placeto", "enumerative")
    ahead = [
        {found.order(w, CLUSTER, f"{s}_2000", "<", b) for b in baselines} == {"holds"} for s in sources for w in LLAMA
    ]
    slower = [found.order(w, CLUSTER, "doppler", "<", f"{s}_4000") == "holds" for s in sources for w in LLAMA]
    return [
        Claim(
            "Table 4 (Q5)", "policies of ChainMM and FFNN, after 2,000 episodes on the Llama programs, are ahead of all"
            " baselines in most cases",
            "<br>".join(
                f"of {NAME[s]}, beside {b}: {_changes(found, f'{s}_2000', b, LLAMA)}"
                for s in sources for b in baselines
            ),
            ("holds" if sum(ahead) > len(ahead) / 2 else "partly" if any(ahead) else "contradicted")
            + f", in {sum(ahead)} of {len(ahead)} rows",
            "a row is a program and a policy, beside all three baselines of the paper's table",
        ),
        Claim(
            "Table 4 (Q5)", "after 4,000 episodes they are comparable to full training",
            "<br>".join(f"of {NAME[s]}: {_changes(found, f'{s}_4000', 'doppler', LLAMA)}" for s in sources),
            ("contradicted" if all(slower) else "partly" if any(slower) else "holds")
            + f", in {len(slower) - sum(slower)} of {len(slower)} rows",
            "full training has 8,000 episodes, after imitation on the program itself, in the paper also stage III; a row"
            " holds if it is not slower by 1%",
        ),
    ]  # fmt: skip


def _imitating() -> Claim:
    """Table 7: Placeto that imitates the critical path before it learns."""
    found, without = runs("doppler_table2", "doppler_table7"), runs("doppler_additions", "doppler_table7")
    return Claim(
        "Table 7, appendix H.4", "Placeto with imitation first stays behind Doppler",
        f"Doppler over it: {_changes(found, 'doppler', IMITATED)}<br>without our additions:"
        f" {_changes(without, 'none', IMITATED)}",
        together(_orders(found, "doppler", IMITATED)),
        "on FFNN Doppler is at the bound; in its paper's setting Doppler is not ahead of it"
        " ([table](#table-7-placeto-with-imitation))",
    )  # fmt: skip


def _appendix(priority: Runs) -> list[Claim]:
    spread = np.array(list(priority.of("chainmm", CLUSTER, "doppler").values()))
    eight, tight, nine = runs("doppler_table8"), runs("doppler_table8_tight"), runs("doppler_table9")
    with (PAGES / "fidelity.csv").open(newline="") as file:
        pairs = [(float(r["simulated_s"]), float(r["measured_s"])) for r in csv.DictReader(file)]
    linear, rank = (float(f(*zip(*pairs, strict=True))[0]) for f in (stats.pearsonr, stats.spearmanr))
    return [
        *_busy(priority),
        Claim(
            "Figure 18, appendix H.1", "simulated and measured times correlate: 0.79 (Pearson), 0.69 (Spearman)",
            f"{linear:.2f} and {rank:.2f}, a Llama layer on two CPU cores ([fidelity](fidelity.md))", "partly",
            "of the programs tried this is the best predicted; ChainMM, the paper's, gets 0.74 and 0.67 there",
        ),
        Claim(
            "Table 5, appendix H.2", "seeds make little difference on ChainMM",
            f"standard deviation {100 * spread.std(ddof=1) / spread.mean():.2f}% of the mean, six seeds",
            "holds" if spread.std(ddof=1) < EQUAL * spread.mean() else "contradicted",
        ),
        Claim(
            "Table 6, appendix H.3", "messages once per episode are as good (0.7% worse) as for every decision, and much"
            " cheaper: 31 times fewer in all, though for every decision 963 instead of 3,425 episodes are enough",
            "not distinguishable with three seeds, 300 times the seconds ([experiment](#messages-for-every-decision))", "open",
            "three seeds, 1,024 episodes",
        ),
        _imitating(),
        Claim(
            "Table 8, appendix I.1", "Doppler-SYS, with 8 of 16 GB: 8.2, 6.5, 18.6 and 10.9% less time than the enumerative"
            " optimiser",
            f"8 GiB: {_changes(eight, 'doppler', 'enumerative')}<br>less: {_changes(tight, 'doppler', 'enumerative')}",
            together([*_orders(eight, "doppler", "enumerative"), *_orders(tight, "doppler", "enumerative")]),
            "8 GiB bind nothing here; 1.25 GiB do (FFNN: 2.4); the paper's reductions over its best baseline are not judged",
        ),
        Claim(
            "Table 9, appendix I.2", "Doppler-SYS, eight V100: 4.1, 19.3, -0.1 and 7.1% less time than the enumerative optimiser",
            _changes(nine, "doppler", "enumerative", PROGRAMS_8, EIGHT),
            together(
                nine.order(w, EIGHT, "doppler", "=" if w == PROGRAMS_8[2] else "<", "enumerative") for w in PROGRAMS_8
            ),
            "ahead on all four, which the paper is not on the block",
        ),
    ]  # fmt: skip
