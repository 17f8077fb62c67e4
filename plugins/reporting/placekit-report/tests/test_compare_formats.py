"""Tables for papers, and the page: their numbers are those of result.json, and they are what their formats ask for."""

from __future__ import annotations

import csv
import io
import json
import re
import statistics
from collections.abc import Callable, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from placekit_report.compare_ranking import contests, doubt, winners
from placekit_report.compare_rows import Row, rows
from placekit_report.compare_text import show
from placekit_testing.fakes import chain_graph, gpus

from placekit_core import Summary, installed, place
from placekit_core.contracts.files import write_json
from placekit_core.contracts.result import Baseline
from placekit_core.contracts.units import seconds

Run = Callable[..., Any]
NASTY = "50%_of #1 & {a}|<b>*$~^\\"
"""A name with the characters that LaTeX, Markdown and HTML read as their own."""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Summary:
    """The summary of a small run."""
    folder = tmp_path_factory.mktemp("base") / "run"
    return place(chain_graph(6), cluster=gpus(2), policy="etf", baselines=[], run_dir=folder).summary


def runs(base: Summary, policy: str, values: Sequence[float | None], **changes: Any) -> list[Summary]:
    """Runs of `policy` with these values, one seed each; None does not fit."""
    common = {"policy": policy, "bound_s": 1.0, **changes}
    return [
        base.model_copy(
            update=common
            | {"seed": seed, "value_s": value, "fits": value is not None, "gap": None if value is None else value - 1.0}
            | {"config": base.config | {"seed": seed, "policy": {"name": policy}}}
            | {"programs": [p.model_copy(update={"value_s": value}) for p in base.programs]}
        )
        for seed, value in enumerate(values)
    ]


def written(folder: Path, found: Sequence[Summary]) -> None:
    """A folder for each run, with its history: half of its evaluations until twice the value, and the rest until the value."""
    for r in found:
        where = folder / f"{r.policy}#{r.seed}"
        where.mkdir(parents=True)
        write_json(where / "result.json", r.model_dump(mode="json"))
        value = r.value_s or 1.0
        lines = [f"{50 * i},{0.1 * i},{value * (3 - i)!r},{value * 3!r},{value * (3 - i)!r}" for i in (1, 2)]
        (where / "history.csv").write_text("\n".join(["evaluations,seconds,value_s,mean_s,best_s", *lines, ""]))


@pytest.fixture
def sweep(base: Summary, tmp_path: Path) -> list[Row]:
    """Rows of runs in the folder `sweep`: `quick` is distinguishably the best of one workload, nothing is of the other."""
    rng = np.random.default_rng(0)
    quick, slow = (rng.uniform(low, low + 0.5, 6).tolist() for low in (1.2, 2.0))
    found = [*runs(base, "quick", quick), *runs(base, "slow_one", slow), *runs(base, "none", [None] * 6)]
    found += [r.model_copy(update={"workload": NASTY}) for r in found[:10]]
    written(tmp_path / "sweep", found[:18])
    written(tmp_path / "sweep" / "other", found[18:])
    return rows(found, installed())


@pytest.mark.parametrize(
    ("others", "why"),
    [
        ([2.6, 2.5, 2.4, 2.3, 2.2, 2.1], ""),
        ([2.6, 2.5, 2.4, 2.3, 2.1], "fewer than six seeds of other"),
        ([2.6, 2.5, 2.4, 2.3, 2.2, 1.9], "its interval overlaps that of other"),
        ([2.0 + 3e-15] * 6, "its interval overlaps that of other"),
    ],
)
def test_the_best_is_marked_only_where_six_seeds_tell(base: Summary, others: list[float | None], why: str) -> None:
    found = rows([*runs(base, "best", [1.5, 1.6, 1.7, 1.8, 1.9, 2.0]), *runs(base, "other", others)], installed())
    [contest] = contests(found)
    assert doubt(contest) == why
    assert winners(found) == [not why, False]


def test_csv_holds_the_numbers_of_the_results_exactly(placekit: Run, sweep: list[Row]) -> None:
    outcome = placekit("compare", "--csv", "sweep")
    assert outcome.code == 0, outcome.err
    lines = list(csv.DictReader(io.StringIO(outcome.out)))
    assert len(lines) == len(sweep) == 5
    for line, row in zip(lines, sweep, strict=True):
        values = row.values
        assert (line["workload"], line["label"], line["simulated"]) == (row.first.workload, row.label, "true")
        assert line["median_s"] == ("" if not values else repr(statistics.median(values)))
        numbers = {key: json.loads(line[key] or "null") for key in ("low_s", "high_s", "bound_s", "gap", "seconds")}
        assert numbers == {key: row.data()[key] for key in numbers}
        assert line["seeds"] == json.dumps(row.seeds), "a list also of one seed"
    assert [line["label"] for line in lines if line["best"] == "true"] == ["quick"]
    assert {line["best"] for line in lines} == {"true", "false"}


def test_markdown_has_a_table_for_each_workload(placekit: Run, sweep: list[Row]) -> None:
    text = placekit("compare", "--md", "sweep").out
    tables = [part.splitlines() for part in text.split("\n\n") if part.startswith("|")]
    assert [len(table) for table in tables] == [4, 5]
    for table in tables:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table}) == 1, "as many cells in every line"
    assert re.sub(r"\\(.)", r"\1", text).startswith(f"{NASTY}, on fake2+0, ")
    quick = sweep[2]
    assert f"| quick | **{seconds(quick.median_s)}** |" in text
    assert text.count("**") == 2
    assert "| none | none fits |" in text
    assert "- best: quick " in text
    assert "not distinguishable: fewer than six seeds of slow\\_one" in text


def baselines(found: list[Summary], *values: tuple[str, str, float | None]) -> list[Summary]:
    each = [Baseline(policy=p, device=d, value_s=v, fits=v is not None) for p, d, v in values]
    return [r.model_copy(update={"programs": [r.programs[0].model_copy(update={"baselines": each})]}) for r in found]


def test_rows_are_compared_with_the_best_single_device(base: Summary) -> None:
    known = [("single_device", "gpu:0", 1.5), ("single_gpu", "gpu:1", 1.4), ("spread", "", 1.0), ("big", "gpu:0", None)]
    found = [*baselines(runs(base, "a", [1.0, 1.25, 2.0]), *known), *runs(base, "single_device", [1.5])]
    first, second = rows(found, installed())
    assert (first.one_device_s, second.one_device_s) == (1.4, 1.4), "those that may be compared share it"
    assert (first.gain, second.gain) == (1.4 / 1.25 - 1, 1.4 / 1.5 - 1)
    assert first.data()["gain"] == first.gain
    elsewhere = [r.model_copy(update={"cluster_fingerprint": "another"}) for r in runs(base, "b", [1.0])]
    assert [row.gain for row in rows([*found, *elsewhere], installed()) if row.first.policy == "b"] == [None]


def test_the_column_of_the_single_device_is_there_if_it_fits(
    base: Summary, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for policy, beside, wide in (
        ("a", True, 80),
        ("a", False, 50),
        ("a_policy_with_a_name_of_36_characters", False, 80),
    ):
        monkeypatch.setattr("placekit_core.cli.console.columns", lambda wide=wide: wide)
        show(rows(baselines(runs(base, policy, [1.0, 1.25, 2.0]), ("single_device", "gpu:0", 1.4)), installed()))
        text = capsys.readouterr().out
        assert ("vs one" in text, "+12.0%" in text) == (beside, beside)
        assert ("one device 1.4 s (gpu:0), number of seeds 3" in " ".join(text.split())) == beside
        assert ("is 12.0% faster than the best single device, 1.4 s (gpu:0)" in " ".join(text.split())) == (not beside)


class Page(HTMLParser):
    """Reads a page: every element must be closed, in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attrs}) == len(attrs)
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "wbr"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data if self.open and self.open[-1] != "style" else ""

    def values(self, name: str) -> list[float]:
        return [float(attributes[name] or "nan") for _, attributes in self.tags if name in attributes]


@pytest.fixture
def page(placekit: Run, sweep: list[Row], tmp_path: Path) -> Page:
    (tmp_path / "sweep" / "quick#3" / "report.html").write_text("")
    (tmp_path / "pages").mkdir()
    outcome = placekit("compare", "--html", "sweep", "--out", "pages/all.html")
    assert outcome.code == 0, outcome.err
    assert outcome.out == "written to pages/all.html\n"
    return Page((tmp_path / "pages" / "all.html").read_text())


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--md", "--csv", "sweep"], "argument --csv: not allowed with argument --md\n  usage: placekit compare"),
        (
            ["--out", "x", "sweep"],
            "--out writes one format, and none is chosen\n  give --csv, --md, --html or --json",
        ),
        (
            ["--md", "--out", "sweep", "sweep"],
            "--out: sweep is a folder\n  name a file in it, such as sweep/compare.html",
        ),
        (["--md", "--out", "no/x.md", "sweep"], "cannot write no/x.md: No such file or directory"),
        (["--md", "nowhere"], "no folder nowhere\n  give folders that `placekit run` wrote"),
        (["--html", "empty"], "no run directory at or below empty"),
    ],
)
def test_mistakes(placekit: Run, sweep: list[Row], tmp_path: Path, args: list[str], message: str) -> None:
    (tmp_path / "empty").mkdir()
    outcome = placekit("compare", *args)
    assert outcome.code == 1
    assert message in outcome.err
    assert not (tmp_path / "compare.html").exists()


def test_a_format_of_failed_jobs_alone_is_an_error(placekit: Run, tmp_path: Path) -> None:
    (tmp_path / "sweep" / "job").mkdir(parents=True)
    write_json(tmp_path / "sweep" / "job" / "failed.json", {"type": "RunError", "message": "no"})
    assert "none of these runs has finished" in placekit("compare", "--md", "sweep").err


def test_a_file_is_replaced_and_holds_what_is_printed(placekit: Run, sweep: list[Row], tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("old")
    assert placekit("compare", "--csv", "--out", "t.csv", "sweep").out == "written to t.csv\n"
    assert (tmp_path / "t.csv").read_text() == placekit("compare", "--csv", "sweep").out
    assert placekit("compare", "--json", "--out", "t.json", "sweep").code == 0
    assert json.loads((tmp_path / "t.json").read_text()) == [row.data() for row in sweep]


def test_the_page_of_a_comparison(page: Page, sweep: list[Row], tmp_path: Path) -> None:
    text = (tmp_path / "pages" / "all.html").read_text()
    policy = next(str(a["content"]) for _, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    links = [attributes["href"] for name, attributes in page.tags if name == "a"]
    assert links == ["../sweep/quick%233/report.html"]
    for row in sweep:
        assert row.label in page.words
        values = [run.value_s for run in row.runs if run.value_s is not None and run.fits]
        assert all(f'value="{value!r}"' in text for value in values)


def test_a_search_is_drawn_from_its_first_placement_that_fits(placekit: Run, base: Summary, tmp_path: Path) -> None:
    written(tmp_path / "sweep", runs(base, "late", [1.5]))
    history = tmp_path / "sweep" / "late#0" / "history.csv"
    head, *lines = history.read_text().splitlines()
    history.write_text("\n".join([head, "10,0.05,,9.0,", *lines, ""]))
    assert placekit("compare", "--html", "sweep").code == 0
    page = Page((tmp_path / "compare.html").read_text())
    [points] = [str(attributes["points"]) for name, attributes in page.tags if name == "polyline"]
    assert "nan" not in points
    assert float(points.partition(",")[0]) > 400, "it begins at 50 of 100 evaluations"
