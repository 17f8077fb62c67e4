"""The table over runs: medians and their intervals, who is best, what cannot be read."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from placekit_core import load_programs, place
from placekit_core.cli.compare import Row, rows, show
from placekit_core.results import Summary, load_summary, write_json
from placekit_core.statistics import median_interval

Run = Callable[..., object]


@pytest.mark.parametrize(("n", "k"), [(6, 1), (8, 1), (9, 2), (10, 2), (12, 3), (20, 6), (30, 10), (50, 18)])
def test_intervals_are_those_of_the_published_tables(n: int, k: int) -> None:
    """k as in table A.3 of Conover, Practical Nonparametric Statistics: the two-sided sign test at 5 %."""
    found = median_interval([float(x) for x in np.random.default_rng(n).permutation(n) + 1])
    assert found is not None
    assert (found.low, found.high) == (k, n + 1 - k)
    outside = 2 * sum(math.comb(n, i) for i in range(k)) / 2**n
    assert found.coverage == pytest.approx(1 - outside)
    assert found.coverage >= 0.95
    assert 1 - outside - 2 * math.comb(n, k) / 2**n < 0.95, "the next narrower pair would not do"


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_few_values_give_their_range_with_its_true_coverage(n: int) -> None:
    assert median_interval([float(x) for x in range(n)]) == (0, n - 1, 1 - 2 ** (1 - n))
    assert median_interval([1.0]) is None
    assert median_interval([]) is None


def test_coverage_is_what_sampling_gives() -> None:
    rng = np.random.default_rng(0)
    for n in (3, 7, 12):
        samples = rng.exponential(size=(20_000, n))
        found = [median_interval(s.tolist()) for s in samples]
        hits = np.mean([f is not None and f.low <= math.log(2) <= f.high for f in found])
        assert found[0] is not None
        assert hits == pytest.approx(found[0].coverage, abs=0.01)


@pytest.fixture
def finished(placekit: Run, tmp_path: Path) -> Summary:
    assert placekit("run", "workload=mlp", "policy=etf", "seed=1", "run_dir=base").code == 0
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
                "config": base.config | {"seed": seed, "run_dir": f"{policy}{seed}", "policy": {"name": policy}},
                **changes,
            }
        )
        for seed, value in enumerate(values)
    ]


def shown(found: list[Summary], capsys: pytest.CaptureFixture[str]) -> list[str]:
    show(rows(found))
    return capsys.readouterr().out.splitlines()


def test_median_interval_and_best(finished: Summary, capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown([*copies(finished, "slow", [4.0, 4.0, 4.0]), *copies(finished, "quick", [3.0, 1.0, 2.0])], capsys)
    head, quick, slow, best = (" ".join(line.split()) for line in lines)
    assert head.split()[4:9] == ["median", "interval", "coverage", "bound", "gap"]
    assert "quick 2 s 1 … 3 s 75%" in quick
    assert " 100.0% " in quick, "the median of the gaps"
    assert "slow 4 s 4 … 4 s 75%" in slow
    assert best == "best on mlp, p100x4 (simulator): quick 2 s, 50.0% below slow"


@pytest.mark.parametrize(
    ("second", "ending"),
    [
        ([3.0, 3.5, 9.0], "42.9% below b (intervals overlap)"),
        ([3.1, 3.5, 9.0], "42.9% below b"),
        ([2.0, 2.0, 2.0], "as good as b (intervals overlap)"),
        ([4.0], "50.0% below b (one seed)"),
        ([None, None], None),
    ],
)
def test_who_is_best(finished: Summary, second: list[float | None], ending: str | None, capsys) -> None:
    lines = shown([*copies(finished, "a", [1.0, 2.0, 3.0]), *copies(finished, "b", second)], capsys)
    best = [line for line in lines if line.startswith("best on ")]
    assert best == ([] if ending is None else [f"best on mlp, p100x4 (simulator): a 2 s, {ending}"])
    if ending is None:
        assert "none fits" in lines[2]


def test_the_median_is_of_what_fits(finished: Summary, capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(copies(finished, "a", [1.0, None, 2.0, 6.0]), capsys)
    assert "2 s (1 do not fit)" in lines[1]
    assert lines[1].endswith(" 4")


def test_only_what_is_comparable_competes(finished: Summary, capsys: pytest.CaptureFixture[str]) -> None:
    other = [p.model_copy(update={"graph_fingerprint": "0"}) for p in finished.programs]
    partial = copies(finished, "c", [0.5], status="interrupted")
    lines = shown([*copies(finished, "a", [2.0]), *copies(finished, "b", [1.0], programs=other), *partial], capsys)
    assert not [line for line in lines if line.startswith("best on ")]
    assert any("c (interrupted)" in line for line in lines)
    lines = shown([*copies(finished, "a", [2.0]), *copies(finished, "b", [1.0])], capsys)
    assert "best on mlp, p100x4 (simulator): b 1 s, 50.0% below a (one seed)" in lines


def test_one_seed_has_no_interval(finished: Summary) -> None:
    [row] = rows([finished, finished])
    assert row == Row("etf", [finished]), "the same run twice is one"
    assert (row.interval, row.median_s) == (None, finished.value_s)


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


def test_one_method_is_one_row_however_it_was_asked_for(finished: Summary) -> None:
    """The machine by name or by `auto`, from Python or from the command line, options in another order."""
    other = json.loads(finished.model_dump_json())["config"]
    other = {**dict(reversed(other.items())), "cluster": {"name": "auto"}, "importer": {"name": "given"}, "seed": 2}
    [row] = rows([finished, finished.model_copy(update={"config": other, "seed": 2})])
    assert len(row.runs) == 2
    assert row.label == "etf"


def test_python_and_the_command_line_share_a_row(placekit: Run, finished: Summary, tmp_path: Path) -> None:
    """Also where Python gave the graph as an object, and no importer is known."""
    programs = load_programs("mlp")
    for seed, source, cluster in ((2, "mlp", "p100x4"), (3, programs, "auto")):
        place(source, cluster=cluster, policy="etf", seed=seed, run_dir=tmp_path / f"python{seed}")
    [row] = rows([finished, *(load_summary(tmp_path / f"python{seed}") for seed in (2, 3))])
    assert (row.label, row.seeds) == ("etf", [1, 2, 3])


def test_other_code_is_another_row(finished: Summary) -> None:
    edited = finished.model_copy(
        update={"code": {**finished.code, "placekit-heuristics": "0123456789abcdef"}, "seed": 2}
    )
    labels = sorted(r.label for r in rows([finished, edited]))
    assert len(labels) == 2
    assert all(label.startswith("etf code:") for label in labels)


def test_one_seed_is_one_value_of_the_interval(finished: Summary) -> None:
    """Budgets in seconds and measuring backends give several values for a seed: their median stands for it."""
    base = finished.value_s or 0.0
    again = [finished.model_copy(update={"value_s": factor * base}) for factor in (2.0, 3.0)]
    [row] = rows([finished, finished.model_copy(), *again])
    assert len(row.runs) == 3, "a copy of a run is no further one"
    assert row.values == [2.0 * base]
    assert row.interval is None
    assert row.data()["seeds"] == [finished.seed]


def test_what_always_fits_is_before_what_sometimes_does(finished: Summary, capsys: pytest.CaptureFixture[str]) -> None:
    found = copies(finished, "lucky", [1.0, None, None]) + copies(finished, "robust", [1.02, 1.02, 1.02])
    lines = shown(found, capsys)
    assert [line.split()[3] for line in lines[1:3]] == ["robust", "lucky"]
    assert lines[-1].endswith("robust 1.02 s, 2.0% above lucky (2 of 3 runs of lucky do not fit)")


def test_other_machines_and_backends_do_not_compete(finished: Summary, capsys: pytest.CaptureFixture[str]) -> None:
    faster = copies(finished, "other", [0.1, 0.1])
    config = {**finished.config, "backend": {**finished.config["backend"], "ready_order": "fifo"}}
    for changes in ({"cluster_fingerprint": "another"}, {"config": config}):
        mixed = [*copies(finished, "mine", [1.0, 1.0]), *(r.model_copy(update=changes) for r in faster)]
        assert not any(line.startswith("best on") for line in shown(mixed, capsys))


MODULE = {"name": "module", "max_groups": None, "min_share": 0.0, "repeat": False, "depth": None, "blocks": []}
NONE = {"name": "none"}


def labels(base: Summary, *sections: dict[str, object]) -> list[str]:
    """Labels of rows of one policy whose configurations have these sections."""
    return [r.label for r in rows([base.model_copy(update={"config": base.config | s}) for s in sections])]


def test_another_component_is_named_once_with_the_options_that_are_not_its_defaults(finished: Summary) -> None:
    blocks = {**MODULE, "blocks": [f"layer{i}.*" for i in range(12)]}
    assert labels(finished, {"grouper": NONE}, {"grouper": blocks}) == [
        "etf grouper=none",
        "etf grouper=module grouper.blocks=[12 values]",
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
    blocks = [{"grouper": MODULE | {"blocks": [f"{kind}{i}.block.*" for i in range(12)]}} for kind in "ab"]
    found = labels(finished, *blocks)
    assert len(set(found)) == 2
    assert all(x.startswith("etf grouper.blocks=[12 values] config:") for x in found)
    code = {**finished.code, "placekit-a": "0" * 16}
    edited = [finished.model_copy(update={"code": {**code, "placekit-a": c * 16}}) for c in "01"]
    assert len({r.label for r in rows(edited)}) == 2, "the last code in order is the same"


def test_no_column_is_dropped_however_long_a_label(finished: Summary, capsys: pytest.CaptureFixture[str]) -> None:
    name = "[bold] " + 60 * "policy "
    lines = shown([*copies(finished, name, [1.0]), *copies(finished, "b", [2.0])], capsys)
    assert lines[0].split() == [
        "workload", "cluster", "backend", "policy", "median", "interval", "coverage", "bound", "gap", "evaluations",
        "seconds", "seeds",
    ]  # fmt: skip
    assert name.strip() in lines[1]
    assert " 1 s " in lines[1]
