"""`placekit graph show`: one graph, JSON, a table of several."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from placekit_core import installed
from placekit_core.cli.compose import jobs

JSON = Path(__file__).parents[3] / "importers/placekit-formats/tests/samples/pair.json"


def test_json_has_the_numbers_that_are_shown(placekit: Callable) -> None:
    text = placekit("graph", "show", "workload=mlp").out
    shown = placekit("graph", "show", "--json", "workload=mlp")
    assert shown.code == 0
    data = json.loads(shown.out)
    (facts,) = data["programs"]
    assert f"operations          {facts['operations']} ({facts['kernels']} kernels" in text
    assert f"{facts['fingerprint']}\n" in text
    assert facts["work_s"] > facts["critical_path_s"] > 0
    assert sum(facts["phases"].values()) == facts["kernels"]
    assert data["import_s"] > 0
    assert data["peak_bytes"] > 2**20


@pytest.mark.slow
def test_table_has_a_row_per_job_and_names_what_failed(placekit: Callable) -> None:
    code, out, _ = placekit("graph", "show", "-m", "workload=mlp", "seed=1,-2", "grouper=colocation")
    assert code == 1
    tables = [table.splitlines() for table in out.split("\n\n")]
    assert [table[0].split()[0] for table in tables] == ["workload"] * len(tables)
    assert tables[0][0].split()[:3] == ["workload", "operations", "kernels"]
    assert [table[1].split()[0] for table in tables] == ["seed=1"] * len(tables)
    assert out.splitlines()[-1] == "failed: seed=-2: seed: input should be greater than or equal to 0 (got -2)"


def test_what_failed_has_its_hint_on_the_same_line(placekit: Callable) -> None:
    code, out, _ = placekit("graph", "show", "-m", "workload=rnnlm_x")
    assert code == 1
    assert out.splitlines()[-1].startswith("failed: rnnlm_x: no workload named 'rnnlm_x'; did you mean 'rnnlm'? ")


@pytest.mark.slow
def test_table_of_files(placekit: Callable) -> None:
    Path("bad.json").write_text("{}")
    Path("pair.json").write_bytes(JSON.read_bytes())
    code, out, _ = placekit("graph", "show", "pair.json", "bad.json", "-m")
    _, row, *_, failed = out.splitlines()
    assert code == 1
    assert row.split()[:3] == ["pair.json", "4", "3"]
    assert failed.startswith("failed: bad.json: bad.json fits no importer: its content is not")


def test_several_files_need_a_table(placekit: Callable) -> None:
    code, _, err = placekit("graph", "show", "a.json", "b.json")
    assert code == 1
    assert "2 files are given: a.json, b.json\n  give one, or -m for a table" in err


def test_jobs_are_those_of_a_sweep() -> None:
    assert jobs(["cluster=glob(p1*)", "+policy=etf", "policy.x=1", "seed=1,2"], installed()) == [
        ["cluster=p100x4", "policy=etf", "policy.x=1", f"seed={seed}"] for seed in (1, 2)
    ]
