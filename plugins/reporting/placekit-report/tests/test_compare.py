"""The table over runs: medians and their intervals, who is best, what cannot be read."""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from placekit_report.compare_rows import rows
from placekit_report.compare_statistics import median_interval
from placekit_report.compare_text import show

from placekit_core import Summary, installed, load_programs, place
from placekit_core.cli.main import main
from placekit_core.contracts.files import write_json
from placekit_core.contracts.result import Baseline
from placekit_core.run.run_directory import load_summary

Run = Callable[..., object]


@pytest.mark.parametrize(("n", "k"), [(6, 1), (9, 2), (20, 6)])
def test_intervals_are_those_of_the_published_tables(n: int, k: int) -> None:
    """k as in table A.3 of Conover, Practical Nonparametric Statistics: the two-sided sign test at 5 %."""
    found = median_interval([float(x) for x in np.random.default_rng(n).permutation(n) + 1])
    assert found is not None
    assert (found.low, found.high) == (k, n + 1 - k)
    outside = 2 * sum(math.comb(n, i) for i in range(k)) / 2**n
    assert found.coverage == pytest.approx(1 - outside)
    assert found.coverage >= 0.95
    assert 1 - outside - 2 * math.comb(n, k) / 2**n < 0.95, "the next narrower pair would not do"


@pytest.mark.parametrize("n", [2, 5])
def test_few_values_give_their_range_with_its_true_coverage(n: int) -> None:
    assert median_interval([float(x) for x in range(n)]) == (0, n - 1, 1 - 2 ** (1 - n))
    assert median_interval([1.0]) is None
    assert median_interval([]) is None


@pytest.fixture(scope="module")
def one_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run."""
    run_dir = tmp_path_factory.mktemp("one") / "base"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            sys,
            "argv",
            ["placekit", "run", "workload=mlp", "policy=etf", "seed=1", "baselines=[]", f"run_dir={run_dir}"],
        )
        assert main() == 0
    return run_dir


@pytest.fixture
def finished(one_run: Path, tmp_path: Path) -> Summary:
    shutil.copytree(one_run, tmp_path / "base")
    return load_summary(tmp_path / "base")


def copies(base: Summary, policy: str, values: list[float | None], **changes: object) -> list[Summary]:
    """Runs of `policy` with these values, one seed each; None does not fit."""
    return [
        base.model_copy(
            update={
                "policy": policy,
                "seed": seed,
                "value_s": value,
                "fits": value is not None,
                "gap": None if value is None else value - 1,
                "programs": [p.model_copy(update={"value_s": value}) for p in base.programs],
                "config": base.config | {"seed": seed, "run_dir": f"{policy}{seed}", "policy": {"name": policy}},
                **changes,
            }
        )
        for seed, value in enumerate(values)
    ]


def shown(found: list[Summary], capsys: pytest.CaptureFixture[str]) -> list[str]:
    show(rows(found, installed()))
    return capsys.readouterr().out.splitlines()


def test_median_interval_and_best(finished: Summary, capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown([*copies(finished, "slow", [4.0, 4.0, 4.0]), *copies(finished, "quick", [3.0, 1.0, 2.0])], capsys)
    place, head, quick, slow, best, coverage = (" ".join(line.split()) for line in lines)
    assert place.startswith("mlp, on rtx4090_3090, backend simulator, bound ")
    assert place.endswith(", number of seeds 3")
    assert head.split() == ["policy", "median", "interval", "gap", "evals", "seconds"]
    assert "quick 2 s 1 … 3 s 100.0% " in quick, "the median of the gaps"
    assert "slow 4 s 4 … 4 s" in slow
    assert best == "best: quick 2 s, 50.0% below slow (fewer than six seeds)"
    assert coverage == "an interval holds the median with a probability of 75% with 3 seeds"


@pytest.mark.parametrize(
    ("second", "ending"),
    [
        ([3.0, 3.5, 9.0], "42.9% below b (intervals overlap)"),
        ([3.1, 3.5, 9.0], "42.9% below b (fewer than six seeds)"),
        ([2.0 + 3e-15] * 3, "as good as b (intervals overlap)"),
        ([2.0008] * 3, "less than 0.1% below b (intervals overlap)"),
        ([4.0], "50.0% below b (one seed)"),
        ([None, None], None),
    ],
)
def test_who_is_best(finished: Summary, second: list[float | None], ending: str | None, capsys) -> None:
    lines = shown([*copies(finished, "a", [1.0, 2.0, 3.0]), *copies(finished, "b", second)], capsys)
    best = [line for line in lines if line.startswith("best: ")]
    assert best == ([] if ending is None else [f"best: a 2 s, {ending}"])
    if ending is None:
        assert "none fits" in lines[3]


def test_a_best_row_without_a_note_is_distinguishable(finished: Summary, capsys: pytest.CaptureFixture[str]) -> None:
    first = copies(finished, "a", [1.0] * 6)
    for others, note in (
        ([copies(finished, "b", [2.0] * 6)], ""),
        ([copies(finished, "b", [2.0] * 5)], " (fewer than six seeds of b)"),
        ([copies(finished, "b", [2.0] * 6), copies(finished, "c", [3.0] * 2)], " (fewer than six seeds of c)"),
        (
            [copies(finished, "b", [2.0] * 6), copies(finished, "c", [0.5, *[3.0] * 5])],
            " (its interval overlaps that of c)",
        ),
    ):
        text = " ".join(shown([*first, *(r for each in others for r in each)], capsys))
        assert f"best: a 1 s, 50.0% below b{note} an interval holds" in text


def test_the_median_is_of_what_fits(finished: Summary, capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(copies(finished, "a", [1.0, None, 2.0, 6.0]), capsys)
    assert lines[0].endswith("number of seeds 4")
    assert lines[2].split()[:9] == ["a", "(1", "of", "4", "do", "not", "fit)", "2", "s"]


def test_only_what_is_comparable_competes(finished: Summary, capsys: pytest.CaptureFixture[str]) -> None:
    other = [p.model_copy(update={"graph_fingerprint": "0"}) for p in finished.programs]
    partial = copies(finished, "c", [0.5], status="interrupted")
    lines = shown([*copies(finished, "a", [2.0]), *copies(finished, "b", [1.0], programs=other), *partial], capsys)
    assert not [line for line in lines if line.startswith("best: ")]
    assert any("c (interrupted)" in line for line in lines)
    lines = shown([*copies(finished, "a", [2.0]), *copies(finished, "b", [1.0])], capsys)
    assert "best: b 1 s, 50.0% below a (one seed)" in lines


def test_json(placekit: Run, finished: Summary, tmp_path: Path) -> None:
    for r in copies(finished, "a", [1.0, 2.0, None]):
        (tmp_path / "runs" / f"{r.seed}").mkdir(parents=True)
        write_json(tmp_path / "runs" / f"{r.seed}" / "result.json", r.model_dump(mode="json"))
    outcome = placekit("compare", "--json", "runs")
    assert outcome.code == 0, outcome.err
    [row] = json.loads(outcome.out)
    assert (row["median_s"], row["low_s"], row["high_s"], row["coverage"]) == (1.5, 1.0, 2.0, 0.5)
    assert (row["policy"], row["seeds"], row["do_not_fit"]) == ("a", [0, 1, 2], 1)


def test_a_damaged_result_hides_no_other(placekit: Run, finished: Summary, tmp_path: Path) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "result.json").write_text('{"value_s": 1}')
    outcome = placekit("compare", ".")
    assert outcome.code == 1
    assert "bad/result.json is damaged" in outcome.err
    assert "etf" in outcome.out


def test_python_and_the_command_line_share_a_row(placekit: Run, finished: Summary, tmp_path: Path) -> None:
    """Also where Python gave the graph as an object, and no importer is known."""
    programs = load_programs("mlp")
    for seed, source, cluster in ((2, "mlp", "rtx4090_3090"), (3, programs, "default")):
        place(source, cluster=cluster, policy="etf", seed=seed, run_dir=tmp_path / f"python{seed}")
    [row] = rows([finished, *(load_summary(tmp_path / f"python{seed}") for seed in (2, 3))], installed())
    assert (row.label, row.seeds) == ("etf", [1, 2, 3])


def test_one_seed_is_one_value_of_the_interval(finished: Summary) -> None:
    """Budgets in seconds and measuring backends give several values for a seed: their median stands for it."""
    base = finished.value_s or 0.0
    again = [finished.model_copy(update={"value_s": factor * base}) for factor in (2.0, 3.0)]
    [row] = rows([finished, finished.model_copy(), *again], installed())
    assert len(row.runs) == 3, "a copy of a run is no further one"
    assert row.values == [2.0 * base]
    assert row.interval is None
    assert row.data()["seeds"] == [finished.seed]


def test_what_always_fits_is_before_what_sometimes_does(finished: Summary, capsys: pytest.CaptureFixture[str]) -> None:
    found = copies(finished, "lucky", [1.0, None, None]) + copies(finished, "robust", [1.02, 1.02, 1.02])
    lines = shown(found, capsys)
    assert [line.split()[0] for line in lines[2:4]] == ["robust", "lucky"]
    assert lines[4] == "best: robust 1.02 s, 2.0% above lucky (2 of 3 runs of lucky do not fit)"


def test_other_machines_and_backends_do_not_compete(finished: Summary, capsys: pytest.CaptureFixture[str]) -> None:
    faster = copies(finished, "other", [0.1, 0.1])
    config = {**finished.config, "backend": {**finished.config["backend"], "ready_order": "fifo"}}
    for changes in ({"cluster_fingerprint": "another"}, {"config": config}):
        mixed = [*copies(finished, "mine", [1.0, 1.0]), *(r.model_copy(update=changes) for r in faster)]
        assert not any(line.startswith("best: ") for line in shown(mixed, capsys))


MODULE = {"name": "module", "max_groups": None, "depth": None, "blocks": []}
NONE = {"name": "none"}


def labels(base: Summary, *sections: dict[str, dict[str, object]]) -> list[str]:
    """Labels of rows whose configurations have these sections."""
    runs = []
    for s in sections:
        policy = s.get("policy", {}).get("name", base.policy)
        runs.append(base.model_copy(update={"config": base.config | s, "policy": policy}))
    return [r.label for r in rows(runs, installed())]


def test_another_component_is_named_once_with_the_options_that_are_not_its_defaults(finished: Summary) -> None:
    blocks = {**MODULE, "blocks": [f"layer{i}.*" for i in range(12)]}
    assert labels(finished, {"grouper": NONE}, {"grouper": blocks}) == [
        "etf grouper=none",
        "etf grouper=module grouper.blocks=[layer0.*, ... 12 values]",
    ]
    assert labels(finished, {"grouper": NONE}, {"grouper": MODULE}, {"grouper": MODULE | {"depth": 2}}) == [
        "etf grouper=none",
        "etf grouper=module grouper.depth=default",
        "etf grouper=module grouper.depth=2",
    ]
    assert labels(finished, {"trainer": {"name": "auto"}}, {"trainer": {"name": "not_installed", "lr": 0.1}}) == [
        "etf trainer=auto",
        "etf trainer=not_installed",
    ]


def test_options_of_one_component_are_shown_where_they_differ(finished: Summary) -> None:
    assert labels(finished, {"grouper": MODULE | {"depth": 1}}, {"grouper": MODULE | {"depth": 2}}) == [
        "etf grouper.depth=1",
        "etf grouper.depth=2",
    ]
    long = "an/example/of/a/folder/with/a/rather/long/name"
    first, second = labels(finished, {"costs": {"file": long}}, {"costs": {"file": "b"}})
    assert (first, second) == ("etf costs.file=an/example/of/a/fo.../a/rather/long/name", "etf costs.file=b")


def test_no_two_rows_have_the_same_label(finished: Summary) -> None:
    blocks = [{"grouper": MODULE | {"blocks": ["a.*", *(f"{kind}{i}.block.*" for i in range(12))]}} for kind in "ab"]
    assert labels(finished, *blocks) == [f"etf grouper.blocks=[a.*, ... 13 values] ({i} of 2)" for i in (1, 2)]
    edited = finished.model_copy(update={"code": {**finished.code, "placekit-heuristics": "0123456789abcdef"}})
    changed = [p.model_copy(update={"graph_fingerprint": "0"}) for p in finished.programs]
    for other in (edited, finished.model_copy(update={"programs": changed})):
        assert [r.label for r in rows([finished, other], installed())] == ["etf (1 of 2)", "etf (2 of 2)"]


def test_rows_that_would_be_called_the_same_say_their_folders(
    finished: Summary, capsys: pytest.CaptureFixture[str]
) -> None:
    edited = finished.model_copy(update={"code": {**finished.code, "placekit-heuristics": "0123456789abcdef"}})
    show(rows([finished, edited], installed(), [Path("a/tiny"), Path("b/tiny")]))
    assert capsys.readouterr().out.splitlines()[-2:] == ["etf (1 of 2): a/tiny", "etf (2 of 2): b/tiny"]


def test_a_tie_with_one_device_is_no_win(finished: Summary, capsys: pytest.CaptureFixture[str]) -> None:
    one = Baseline(policy="single_device", device="gpu:0", fits=True, value_s=2.0)
    program = finished.programs[0].model_copy(update={"baselines": [one]})
    finished = finished.model_copy(update={"programs": [program]})
    for value_s, tie in ((2.0, True), (1.9, False), (2.5, True)):
        lines = shown([*copies(finished, "a", [value_s]), *copies(finished, "b", [value_s])], capsys)
        assert ("no method beats the best single device, 2 s (gpu:0)" in lines) is tie


def test_every_column_is_shown_or_said_however_long_a_label(
    finished: Summary, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "[bold] " + 60 * "policy "
    lines = shown([*copies(finished, name, [1.0]), *copies(finished, "b", [2.0])], capsys)
    assert lines[1].split() == ["policy", "median", "gap", "evals", "seconds"]
    assert max(map(len, lines)) <= 80
    row = lines[2 : next(i for i, line in enumerate(lines) if line.startswith("b "))]
    width = lines[1].index("median")
    assert row[0][width:].split()[:2] == ["1", "s"]
    assert " ".join(line[:width].strip() for line in row).startswith("[bold] policy policy"), "wrapped, and not markup"
    assert " ".join(row).count("policy") == 60
