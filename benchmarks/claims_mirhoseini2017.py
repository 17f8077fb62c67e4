"""The claims of Mirhoseini et al. 2017, "Device Placement Optimization with Reinforcement Learning"."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from claims import TF, Claim, Parts, Runs, both, runs, together
from paper_table import EQUAL, change, ratio, verdict

HOURS = 200_000 / 3600  # of the steps of a training (section 4.4), per second of a step
CPU = "xeon:0"
PAPER = "10,000 evaluations"  # method of the runs in the paper's setting
MORE = "24,000 evaluations"  # method of the runs of NMT with ten times the evaluations
BASELINES = ("single_cpu", "single_gpu", "scotch", "mincut", "expert")
NMTS = [("nmt", "k80x2"), ("nmt", "k80x4")]
PLACES = [(w, f"k80x{n}") for w in ("rnnlm", "nmt", "inception_v3") for n in (2, 4)]


def on_one_gpu(workload: str, cluster: str) -> int:
    """How many seeds of the runs in the paper's setting end on one GPU, or as good as."""
    one = runs("mirhoseini_table2").of(workload, cluster, "single_gpu")[0]
    return sum(abs(v / one - 1) < EQUAL for v in runs("mirhoseini_paper").of(workload, cluster, PAPER).values())


def best_baseline(found: Runs, workload: str, cluster: str) -> str:
    """The method with the shortest step, in the mean over its seeds."""
    return min(BASELINES, key=lambda m: float(np.mean(list(found.of(workload, cluster, m).values()))))


def par(found: Runs, suffix: str, method: str = "seq2seq", places: Sequence[tuple[str, str]] = PLACES) -> str:
    """A method over the best baseline, row by row."""
    text = []
    for w, c in places:
        best = best_baseline(found, w, c + suffix)
        text.append(f"{w}({c[-1]}) {found.change(w, c + suffix, method, best)} over {best}")
    return "; ".join(text)


def on_par(found: Runs, suffix: str, method: str, places: Sequence[tuple[str, str]] = PLACES) -> list[str]:
    """Whether a method takes at most 1% more than the best baseline, row by row."""
    verdicts = []
    for w, c in places:
        best = best_baseline(found, w, c + suffix)
        _, high = ratio(found.of(w, c + suffix, method), found.of(w, c + suffix, best))
        behind = found.order(w, c + suffix, best, "<", method) == "holds"
        verdicts.append("reversed" if behind else "holds" if high <= EQUAL else "open")
    return verdicts


def busiest(found: Runs, workload: str, cluster: str, method: str) -> float:
    """Share of the computation that the busiest device does, in percent: the mean over the seeds."""
    return most(s.busy_s for s in found.rows[workload, cluster, method])


def most(seconds: Iterable[Mapping[str, float]]) -> float:
    """The share of the device with most of the seconds, in percent: the mean over the seeds that have any."""
    return 100 * float(np.mean([max(by.values()) / sum(by.values()) for by in seconds if by]))


def claims() -> list[Claim]:
    """All of them, in the order of the paper."""
    t2, large, towers = (runs(f"mirhoseini_{n}") for n in ("table2", "large", "towers"))
    return [
        *_table2(t2),
        *_learned(t2),
        _lookups(t2),
        *_large(t2, large),
        *_analysis(t2, towers),
        *_balance(t2, towers),
        *_training(),
    ]


BUDGETS = {
    "data sheets": ("", "seq2seq"), "tf2017": (TF, "seq2seq"), f"data sheets, {MORE}": ("", MORE),
    f"tf2017, the paper's setting, {PAPER}": (TF, PAPER),
}  # fmt: skip
"""The runs of the learned column: the ending of the machines' names, and the method. Not all networks have all."""


def _all() -> Runs:
    return runs("mirhoseini_table2", "mirhoseini_more", "mirhoseini_paper")


def _rows(workload: str, gpus: tuple[int, ...]) -> dict[str, list[tuple[str, str]]]:
    """For each of `BUDGETS`, the machines with these numbers of GPUs, and the method."""
    rows = {name: [(f"k80x{n}{suffix}", method) for n in gpus] for name, (suffix, method) in BUDGETS.items()}
    return {name: of for name, of in rows.items() if (workload, *of[0]) in _all().rows}


def _changes(workload: str, gpus: tuple[int, ...], other: str) -> str:
    """The learned column over another method."""
    return "<br>".join(
        f"{name}: {', '.join(_all().change(workload, c, m, other) for c, m in of)}"
        for name, of in _rows(workload, gpus).items()
    )


def _verdict(workload: str, gpus: tuple[int, ...], sign: str, other: str) -> str:
    """Whether the learned column is on that side of another method."""
    rows = [row for of in _rows(workload, gpus).values() for row in of]
    return together(_all().order(workload, c, m, sign, other) for c, m in rows)


def _table2(t2: Runs) -> list[Claim]:
    """The baselines."""
    gpu = [t2.order(w, c, "single_gpu", "<", "single_cpu") for w, c in PLACES if w != "nmt"]
    slow = [
        t2.order(w, c + s, "single_cpu", "<", p)
        for s in ("", TF)
        for w, c in PLACES
        if w != "inception_v3"
        for p in ("scotch", "mincut")
    ]
    half = len(slow) // 2
    expert = [t2.order(w, c + s, "single_gpu", "<", "expert") for s in ("", TF) for w, c in PLACES if w != "nmt"]
    parts = [
        t2.order(w, c + s, "single_gpu", "<", p)
        for s in ("", TF)
        for w, c in PLACES
        if w != "nmt"
        for p in ("scotch", "mincut")
    ]
    return [
        Claim(
            "Table 1", "8,943, 22,097 and 31,180 operations in 188, 280 and 83 groups",
            "[the same rules](../../plugins/groupers/placekit-grouping/README.md) on PyTorch's operations", "partly",
            "an operation is one of PyTorch's training step, not of TensorFlow's graph",
        ),
        Claim(
            "Table 2", "one GPU is faster than the CPU (RNNLM 1.57 against 6.89 s, Inception-V3 4.60 against 26.21)",
            f"RNNLM {t2.seconds('rnnlm', 'k80x2', 'single_gpu')} against {t2.seconds('rnnlm', 'k80x2', 'single_cpu')},"
            f" Inception-V3 {t2.seconds('inception_v3', 'k80x2', 'single_gpu')} against"
            f" {t2.seconds('inception_v3', 'k80x2', 'single_cpu')}", together(gpu),
        ),
        Claim(
            "Table 2", "NMT does not fit on one GPU, RNNLM does",
            both(f"NMT {t2.seconds('nmt', 'k80x2', 'single_gpu')}", f"NMT {t2.seconds('nmt', 'k80x2' + TF, 'single_gpu')}"),
            "partly", "NMT needs 7.88 GiB here. The 7 GiB of `tf2017` were chosen for this row; with the GPU's 12 GB it fits",
        ),
        Claim(
            "Table 2", "Scotch and MinCut are slower than the CPU on RNNLM and NMT (10.4 to 14.2 against 6.9 and 10.7 s)",
            both(f"{slow[:half].count('holds')} of {half} pairs", f"{slow[half:].count('holds')} of {half} pairs"),
            together(slow), "partitions send 0.35 to 1.1 GB a step, which hardly costs time on links by their data sheets",
        ),
        Claim(
            "Table 2", "the expert's placement is slower than one GPU (RNNLM 3.81 and 4.46 against 1.57 s, Inception-V3 11.22 and"
            " 10.65 against 4.60)",
            both(
                f"RNNLM {t2.change('rnnlm', 'k80x2', 'expert', 'single_gpu')}, Inception-V3"
                f" {t2.change('inception_v3', 'k80x2', 'expert', 'single_gpu')} (2 GPUs)",
                f"{t2.change('rnnlm', 'k80x2' + TF, 'expert', 'single_gpu')},"
                f" {t2.change('inception_v3', 'k80x2' + TF, 'expert', 'single_gpu')}",
            ),
            together(expert), "layers of RNNLM work on different steps at once, if their transfers are quick",
        ),
        Claim(
            "Table 2, section 4.3", "Scotch and MinCut are slower than one GPU: 6.6 to 8.6 times as long on RNNLM, 5.0 to 5.5 on"
            " Inception-V3", both(*(f"in {v.count('holds')} of {len(v)} pairs" for v in (parts[:8], parts[8:]))), together(parts),
            "as above: with quick links partitions of RNNLM gain from a second GPU",
        ),
    ]  # fmt: skip


def _learned(t2: Runs) -> list[Claim]:
    """The column of the learned placements."""
    level, search = ([v for s in ("", TF) for v in on_par(t2, s, m)] for m in ("seq2seq", "portfolio"))
    return [
        Claim(
            "Table 2, section 4.3", "the learned placement is on par with or better than every baseline, in all six rows",
            both(
                f"in {level[:6].count('holds')} of 6 rows ({par(t2, '')})",
                f"in {level[6:].count('holds')} of 6 ({par(t2, TF)})",
            )
            + f"<br>data sheets, {MORE}: {par(_all(), '', MORE, NMTS)}"
            f"<br>tf2017, the paper's setting, {PAPER}: {par(_all(), TF, PAPER)}",
            together(level + on_par(_all(), "", MORE, NMTS) + on_par(_all(), TF, PAPER)),
            f"the default search, with 2,400 evaluations, is on par or better in {search.count('holds')} of 12",
        ),
        Claim(
            "Table 2, section 4.3", "RNNLM is placed on one GPU (1.57 = 1.57 s)",
            _changes("rnnlm", (2, 4), "single_gpu"), _verdict("rnnlm", (2, 4), "=", "single_gpu"),
            "on quick links two GPUs are faster, and the policy finds that; on slow ones most seeds take the CPU; in [the paper's"
            f" setting](#in-the-papers-setting) {on_one_gpu('rnnlm', 'k80x2' + TF)} of 6 end on one of two GPUs there, and"
            f" {on_one_gpu('rnnlm', 'k80x4' + TF)} with four",
        ),
        Claim(
            "Section 4.3", "RNNLM: less than half the time of the expert (1.57 against 3.81 and 4.46 s)",
            _changes("rnnlm", (2, 4), "expert"), _verdict("rnnlm", (2, 4), "<", "expert"),
            "the expert gains from quick links here, and most seeds end on the CPU where they are slow",
        ),
        Claim(
            "Table 2, section 4.3", "NMT: 19 and 17% less time than the expert (2 and 4 GPUs: the expert takes 23.5 and"
            " 20.6% longer)",
            _changes("nmt", (2, 4), "expert"), _verdict("nmt", (2, 4), "<", "expert"),
            "with 2,400 evaluations NMT ends on one device, all or nearly all of it, and on slow links in [the paper's"
            " setting](#in-the-papers-setting), too; on quick links ten times as many lead [to two"
            " GPUs](#nmt-with-more-evaluations); the search, with 2,400, beats the expert on both",
        ),
        Claim(
            "Table 2, section 4.3", "Inception-V3, 2 GPUs: all on one GPU (4.60 = 4.60 s)",
            _changes("inception_v3", (2,), "single_gpu"), _verdict("inception_v3", (2,), "=", "single_gpu"),
            "on quick links two GPUs gain as much as four; on slow ones one of six seeds takes the CPU, in [the paper's"
            f" setting](#in-the-papers-setting) {6 - on_one_gpu('inception_v3', 'k80x2' + TF)}",
        ),
        Claim(
            "Table 2, section 4.3", "Inception-V3, 4 GPUs: 16% less time than one GPU (3.85 against 4.60 s: one GPU takes"
            " 19% longer)",
            _changes("inception_v3", (4,), "single_gpu"), _verdict("inception_v3", (4,), "<", "single_gpu"),
            "the gain comes with quick links only; on slow ones three of six seeds end on one GPU and three on the CPU",
        ),
    ]  # fmt: skip


def _lookups(t2: Runs) -> Claim:
    """Figure 4: where the computation of embeddings is, with few and many evaluations, and with the search."""
    parts = Parts("mirhoseini_parts")
    lookups = parts.shares("nmt", "k80x4", "seq2seq", r"\w+_embedding")
    later, searched = (
        Parts("mirhoseini_more_parts").shares("nmt", "k80x4", m, r"\w+_embedding") for m in ("seq2seq", "portfolio")
    )
    return Claim(
        "Section 4.3, figure 4", "NMT, 4 GPUs: cheap operations such as embedding lookups go to the CPU",
        f"{_percents(lookups)} of the computation of embeddings, by seed; with {MORE} {_percents(later)}",
        together([_on_cpu(lookups), _on_cpu(later)]),
        "with that of their gradients, on the machine by its data sheets; the search leaves most of them on GPUs, too"
        f" ({_percents(searched)}), and is ahead of the expert ({t2.change('nmt', 'k80x4', 'portfolio', 'expert')})",
    )  # fmt: skip


def _percents(seeds: list[dict[str, float]]) -> str:
    """The CPU's share of a part, by seed."""
    return ", ".join(f"{s.get(CPU, 0):.0f}" for s in seeds) + "%"


def _on_cpu(seeds: list[dict[str, float]]) -> str:
    """Whether the CPU has more of a part than any GPU: `holds` if in all runs."""
    most = [next(iter(shares)) == CPU for shares in seeds]
    return "holds" if all(most) else "open" if any(most) else "reversed"


def _gpus(t2: Runs, cluster: str) -> list[int]:
    """For each seed of the learned placement of Inception-V3, the GPUs that have at least 5% of the computation."""
    loads = [s.busy_s for s in sorted(t2.rows["inception_v3", cluster, "seq2seq"], key=lambda s: s.seed)]
    return [sum(x >= 0.05 * sum(load.values()) for d, x in load.items() if d.startswith("k80")) for load in loads]


def _large(t2: Runs, large: Runs) -> list[Claim]:
    """Large networks, and figure 5."""
    used = [_gpus(t2, f"k80x4{s}") for s in ("", TF)]
    names = ("rnnlm_large", "nmt_large")
    fits = [all(v < np.inf for v in large.of(w, "k80x4", "seq2seq").values()) for w in names]
    return [
        Claim(
            "Section 4.3", "large RNNLM and NMT: no layer fits on any device, which rules out the expert; after some failures a"
            " placement is found (33.46 and 35.84 s)",
            "; ".join(
                f"{w}: {large.seconds(w, 'k80x4', 'seq2seq')}, expert {large.seconds(w, 'k80x4', 'expert')}" for w in names
            ),
            "partly" if all(fits) else "contradicted", "a layer of the large RNNLM fits here, and so does the expert's placement",
        ),
        Claim(
            "Section 4.3, figure 5", "Inception-V3, 4 GPUs: the placement uses all of them",
            both(*(f"{', '.join(map(str, n))} GPUs, by seed" for n in used)),
            together("holds" if min(n) == 4 else "reversed" if max(n) < 4 else "open" for n in used),
            "GPUs with at least 5% of the computation; three are as fast as four on quick links, one is best on slow ones",
        ),
    ]  # fmt: skip


def _analysis(t2: Runs, towers: Runs) -> list[Claim]:
    """Figures 6 and 7."""
    waits = runs("mirhoseini_async")
    change = t2.change("nmt", "k80x4", "seq2seq", "expert")
    more = runs("mirhoseini_more")
    hours = [
        HOURS * float(np.mean(list(found.of("nmt", "k80x4", m).values())))
        for found, m in ((t2, "expert"), (t2, "seq2seq"), (more, MORE))
    ]
    rate = min(towers.of("inception_v3_b128", "k80x4", "portfolio").values()) / min(
        towers.of("inception_v3_towers", "k80x4", "data_parallel").values()
    )
    sync = [f"data_parallel importer.synchronous={x}" for x in (False, True)]
    return [
        Claim(
            "Section 4.4, figure 6", "NMT, 200,000 steps: 165.73 hours instead of the expert's 229.57 (-27.8%)",
            f"{hours[1]:.1f} hours instead of {hours[0]:.1f} by the simulated step ({change}, data sheets), with {MORE}"
            f" {hours[2]:.1f} ({more.change('nmt', 'k80x4', MORE, 'expert')})",
            together(
                [t2.order("nmt", "k80x4", "seq2seq", "<", "expert"), more.order("nmt", "k80x4", MORE, "<", "expert")]
            ), "as in table 2, with its expert; the expert of"
            " figure 6 has attention and softmax on GPUs of their own; perplexities are not simulated",
        ),
        Claim(
            "Section 4.4, figure 7", "Inception-V3 to 72%: a speedup of 19.7% over synchronous towers, which converge faster than"
            " asynchronous ones",
            f"a batch of 128 undivided takes {rate:.1f} times the step of the towers, by the default search",
            "not done", "hours to an accuracy are not simulated, and the batch of the paper's placement is not known",
        ),
        Claim(
            "Section 4.4", "asynchronous towers have shorter steps than synchronous ones",
            waits.change("inception_v3_towers", "k80x4", *sync),
            "open", "simulated steps of a tower all take the same time, so that none waits; the effect needs steps that vary",
        ),
    ]  # fmt: skip


def _balance(t2: Runs, towers: Runs) -> list[Claim]:
    """Figures 8 and 9."""
    balance = [busiest(t2, "nmt", "k80x4", m) for m in ("seq2seq", "expert", "portfolio")]
    more = runs("mirhoseini_more").rows["nmt", "k80x4", MORE]
    later, forward = most(s.busy_s for s in more), most(s.forward_s for s in more)
    first = runs("mirhoseini_forward").rows
    ahead = [most(s.forward_s for s in first["nmt", "k80x4", m]) for m in ("seq2seq", "expert")]
    inception = [
        busiest(t2, "inception_v3", "k80x4", "seq2seq"),
        busiest(towers, "inception_v3_towers", "k80x4", "data_parallel"),
    ]
    copies = [
        float(np.mean([s.copies_s for s in found.rows[key]]))
        for found, key in (
            (t2, ("inception_v3", "k80x4", "seq2seq")), (towers, ("inception_v3_towers", "k80x4", "data_parallel")),
        )
    ]  # fmt: skip
    return [
        Claim(
            "Section 4.5, figure 8", "NMT: the learned placement balances the load better than the expert's",
            f"on 4 GPUs the busiest device computes {balance[0]:.0f}%, with {MORE} {later:.0f}%, the expert's"
            f" {balance[1]:.0f}% (data sheets)",
            together("holds" if x < balance[1] else "reversed" for x in (balance[0], later)),
            "the policy uses [two of four GPUs](#nmt-with-more-evaluations); with the search's placements it is"
            f" {balance[2]:.0f}%",
        ),
        Claim(
            "Section 4.5", "NMT: in the forward pass alone the expert's load is more even than in all, and still less than"
            " the learned"
            " placement's", f"on 4 GPUs the busiest device has {ahead[1]:.0f}% of the forward pass, with the learned placement"
            f" {ahead[0]:.0f}%, with {MORE} {forward:.0f}% (data sheets)",
            together("holds" if x else "reversed" for x in (ahead[1] < balance[1], ahead[0] < ahead[1], forward < ahead[1])),
            "the expert's two GPUs have unequal layers' forward passes, and equal shares of the whole",
        ),
        Claim(
            "Section 4.5, figure 9", "Inception-V3: the learned placement is less balanced than towers, and copies for less time",
            f"the busiest device computes {inception[0]:.0f}% against {inception[1]:.0f}%; copies take"
            f" {1e3 * copies[0]:.0f} ms against {1e3 * copies[1]:.0f} ms for four times the images",
            "holds" if inception[0] > inception[1] and copies[0] < copies[1] / 4 else
            "partly" if inception[0] > inception[1] or copies[0] < copies[1] / 4 else "contradicted",
            "we compare copies per image; the paper does not say how many images either has",
        ),
    ]  # fmt: skip


def _training() -> list[Claim]:
    """Sections 3.1 and 3.4."""
    found, cluster, networks = runs("mirhoseini_training"), "k80x2" + TF, ("rnnlm",)

    def beside(first: str, second: str) -> tuple[str, str]:
        text = ", ".join(f"{w} {found.change(w, cluster, first, second)}" for w in networks)
        return text, together(found.order(w, cluster, first, "<", second) for w in networks)

    few = "the best placement found, on the slow machine with two GPUs, where all placements fit"
    return [
        Claim("Section 3.1", "the square root makes learning more robust", *beside("sqrt", "linear"), few),
        Claim(
            "Section 3.1", "a baseline that starts with the failing signal explores more", *beside("failing start", "sqrt"),
            f"{few}; how much is explored was not measured",
        ),
        Claim(
            "Section 3.1", "late in training, failures perturb the policy unless they are left out",
            *beside("only fitting", "sqrt"), f"{few}; after 60 of 240 updates, in the paper after 5,000, because of machines"
            " that fail now and then",
        ),
        Claim(
            "Section 3.4", "up to 20 controllers of 4 or 8 workers, 12 to 27 hours", "[distributed training](distributed.md)",
            "partly", "the arrangement is there; on one computer with two cores",
        ),
        _controllers(),
    ]  # fmt: skip


def _controllers() -> Claim:
    """Section 3.4: what controllers whose machines differ compare their rewards with.

    A baseline for each is more stable where machines that differ cost the last placements less than with one for all.
    """
    found, networks = runs("mirhoseini_controllers"), ("rnnlm", "inception_v3")

    def cost(workload: str, baseline: str, spread: str) -> dict[int, float]:
        """By seed, the last placements over those on machines that are alike."""
        rows = (found.rows[workload, "k80x4", f"{baseline}, {x}"] for x in (spread, "0%"))
        return {a.seed: a.late_s / b.late_s for a, b in zip(*rows, strict=True)}

    alike = dict.fromkeys(range(6), 1.0)
    return Claim(
        "Section 3.4", "a baseline for each controller is more stable, because machines differ",
        "what machines 30% apart cost, by the last placements: " + ", ".join(
            f"{w} {change(cost(w, 'own', '30%'), alike)} with own baselines, {change(cost(w, 'shared', '30%'), alike)} with one"
            for w in networks
        ),
        together(
            verdict("<", *ratio(cost(w, "own", d), cost(w, "shared", d))) for w in networks for d in ("10%", "30%")
        ),
        "rows are networks and discrepancies ([four controllers](#section-34-baselines-of-controllers)); at 10% none shows",
    )  # fmt: skip
