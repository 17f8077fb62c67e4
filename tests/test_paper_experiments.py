"""The experiments that repeat tables of the papers: they have every cell, and what runs out of memory is a row like others."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from placekit_testing.speed import mostly_slow

from placekit_core import installed
from placekit_core.cli.compose import compose, jobs
from placekit_core.run.config import conf_dir

Run = Callable[..., object]
PAPERS = Path(__file__).resolve().parent.parent / "docs" / "research" / "papers"
TABLES = {"mirhoseini2017": "mirhoseini_table2", "placeto": "placeto_table1", "post": "post_table1"}
DRAWN = {"scotch", "mincut", "metis"}  # with six seeds, by a command of their own


def cells(table: str) -> set[tuple[str, str, str]]:
    """(workload, cluster, policy) of every figure in a paper's table."""
    head, *rows = [line.split() for line in table.splitlines() if not line.startswith("#")]
    assert all(len(row) == len(head) for row in rows)
    return {(row[0], f"k80x{row[1]}", policy) for row in rows for policy in head[2:] if policy not in DRAWN}


def swept(path: Path) -> set[tuple[str, str, str]]:
    """(workload, cluster, policy) of every job of an experiment."""
    params = yaml.safe_load(path.read_text())["hydra"]["sweeper"]["params"]
    found = set()
    for job in jobs([f"{key}={value}" for key, value in params.items() if key != "seed"], installed()):
        chosen = dict(option.split("=") for option in job)
        found.add((chosen["workload"], chosen["cluster"], chosen["policy"].removeprefix(f"{path.stem.split('_')[0]}_")))
    return found


@pytest.mark.parametrize("paper", TABLES)
def test_every_figure_of_the_paper_has_a_job(paper: str) -> None:
    """On both machines."""
    names = ("baselines", "learned") if paper == "mirhoseini2017" else ("table1_?gpus", "learned_?gpus")
    experiments = [p for name in names for p in (conf_dir() / "experiment").glob(f"{paper}_{name}.yaml")]
    wanted = cells((PAPERS / f"{TABLES[paper]}.txt").read_text())
    assert len(wanted) > 20
    found = set().union(*map(swept, experiments))
    assert wanted <= found
    assert {(w, f"{c}_tf2017", p) for w, c, p in wanted} <= found


@pytest.mark.parametrize(("preset", "inception"), [("placeto_expert", "branches"), ("post_expert", "single")])
def test_experts_are_those_of_their_papers(preset: str, inception: str) -> None:
    policy = compose([f"policy={preset}"], installed())["policy"]
    assert (policy["name"], policy["inception"]) == ("expert", inception)


@pytest.mark.slow
def test_what_runs_out_of_memory_is_a_row_among_the_others(placekit: Run, tmp_path: Path) -> None:
    machine = yaml.safe_load((conf_dir() / "cluster" / "k80x2.yaml").read_text())
    machine["kinds"]["k80"]["memory_bytes"] = 100_000
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(machine))
    outcome = placekit("run", "-m", "workload=mlp", "cluster=small.yaml", "policy=single_gpu,single_cpu", "run_dir=out")
    assert outcome.code == 1
    rows = [line.split() for line in outcome.out.splitlines() if line.startswith("single_")]
    assert [row[0] for row in rows] == ["single_cpu", "single_gpu"]
    assert rows[1][1:3] == ["none", "fits"]
    assert re.search(
        r"^failed: out/.*policy=single_gpu.*the closest is over by \d+ MiB on a device$", outcome.out, re.M
    )
    [lost] = [row for row in json.loads(placekit("compare", "out", "--json").out) if row["do_not_fit"]]
    assert (lost["policy"], lost["median_s"]) == ("single_gpu", None)


@pytest.mark.slow
def test_placeto_imitates_before_it_learns(placekit: Run) -> None:
    """Table 7 of Yao et al. 2026, on a small program: without learning from rewards, imitation makes placements faster."""
    options = (
        "hydra.mode=RUN",
        "hydra.sweeper.params=null",
        "workload=chainmm_small",
        "budget.evaluations=16",
        "baselines=[]",
    )
    first = {}
    for episodes in (0, 400):
        given = (
            f"trainer.imitation_episodes={episodes}",
            "trainer.imitation_learning_rate=0.01",
            f"run_dir=with{episodes}",
        )
        assert placekit("run", "experiment=doppler_table7", *options, *given).code == 0
        first[episodes] = json.loads(Path(f"with{episodes}/result.json").read_text())["value_s"]
    assert first[400] < first[0]


@pytest.mark.parametrize("workload", mostly_slow(["rnnlm_large", "nmt_large"], [], ["nmt_large"]))
def test_what_no_gpu_can_hold_is_placed_on_four(placekit: Run, workload: str) -> None:
    """Mirhoseini et al. 2017, section 4.3: the learned placement fits, that of one GPU does not."""
    options = f"workload={workload}", "grouper=manual", "cluster=k80x4", "budget.evaluations=120"
    outcome = placekit("run", "-m", *options, "+policy=single_gpu,post", "run_dir=large")
    fits = {
        r["policy"]: r["fits"] for r in map(json.loads, (p.read_text() for p in Path("large").glob("*/result.json")))
    }
    assert fits == {"post": True, "single_gpu": False}, outcome
