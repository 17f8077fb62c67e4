"""End to end: every form of the command line, and what a run leaves behind."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from placekit_testing.speed import mostly_slow

from placekit_core import Summary, installed
from placekit_core.run.run_directory import load_summary

Run = Callable[..., object]
FAST = ["workload=mlp", "budget.evaluations=60", "log=csv"]


def ok(outcome) -> str:
    assert outcome.code == 0, outcome.out + outcome.err
    assert "Traceback" not in outcome.err
    return outcome.out


def test_a_run_and_what_it_writes(placekit: Run, tmp_path: Path) -> None:
    out = ok(placekit("run", *FAST[:2], "+policy=critical_path", "+backend=simulator", "run_dir=out", "seed=5"))
    assert "critical_path on rtx4090_3090, seed 5, simulated" in out
    assert "makespan" in out
    files = {p.name for p in (tmp_path / "out").iterdir()}
    assert files == {
        "result.json", "placement.json", "history.csv", "schedule.trace.json", "config.json",
        "report.html",
    }  # fmt: skip

    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert result["objective"] == "makespan"
    assert result["simulated"] is True
    assert (result["seed"], result["policy"], result["trainer"], result["backend"]) == (
        5,
        "critical_path",
        None,
        "simulator",
    )
    assert result["fits"] is True
    assert 0 < result["bound_s"] <= result["value_s"]
    assert result["gap"] == pytest.approx(result["value_s"] / result["bound_s"] - 1)
    assert result["evaluations"] == 50, "best of 50"
    assert result["budget"] == {"evaluations": 60, "seconds": None, "proxy_evaluations": None}
    assert set(result["peak_bytes"]) == {"rtx4090:0", "rtx3090:0"}
    assert {"python", "placekit-core", "numpy", "torch", "placekit-heuristics"} <= set(result["versions"])
    assert result["config"]["policy"]["samples"] == 50
    assert load_summary(tmp_path / "out").value_s == result["value_s"]

    placement = json.loads((tmp_path / "out" / "placement.json").read_text())
    program = result["programs"][0]
    assert len(placement["assignment"]) == program["operations"]
    assert set(placement["assignment"].values()) <= set(result["peak_bytes"])
    assert placement["fingerprints"] == {
        "graph": program["graph_fingerprint"],
        "cluster": result["cluster_fingerprint"],
    }

    with (tmp_path / "out" / "history.csv").open() as f:
        rows = list(csv.DictReader(f))
    best = [float(r["best_s"]) for r in rows]
    assert best == sorted(best, reverse=True)
    assert best[-1] == result["value_s"]

    events = json.loads((tmp_path / "out" / "schedule.trace.json").read_text())["traceEvents"]
    ends = [e["ts"] + e["dur"] for e in events if e["ph"] == "X"]
    assert max(ends) == pytest.approx(result["value_s"] * 1e6)


SPECIAL = {
    "data_parallel": ["workload=inception_v3_towers_small", "cluster=k80x4"],
    "enumerative": ["workload=chainmm_small"],
    "expert": ["workload=rnnlm_small"],
    "given": ["policy.path=map.json"],
    "single_cpu": ["cluster=k80x2"],
    **{
        rule: ["workload=gpt_small"]
        for rule in ("bandwidth_share", "exo_memory", "llamacpp_layers", "torchtitan_weights", "vllm_even")
    },
}
"""What policies need that place only what they are made for."""
POLICIES = installed().names("policy")
ONE_OF_EACH = [
    "annealing",
    "etf",
    "expert",
    "heft",
    "metis",
    "portfolio",
    "post",
    "random",
    "scotch",
    "seq2seq",
    "single_device",
]


@pytest.mark.parametrize("policy", mostly_slow(POLICIES, ONE_OF_EACH, {*POLICIES} - {*ONE_OF_EACH}))
def test_every_policy_runs(placekit: Run, tmp_path: Path, policy: str) -> None:
    (tmp_path / "map.json").write_text('{"": 0}')
    ok(placekit("run", *FAST, *SPECIAL.get(policy, []), f"+policy={policy}", "run_dir=out"))
    result = load_summary(tmp_path / "out")
    assert result.fits
    assert result.value_s is not None
    assert result.bound_s is not None
    assert result.value_s >= result.bound_s


@pytest.mark.parametrize(("grouper", "backend"), [("none", "simulator"), ("module", "bulk_synchronous")])
def test_every_grouper_and_backend_runs(placekit: Run, tmp_path: Path, grouper: str, backend: str) -> None:
    ok(placekit("run", *FAST, f"+grouper={grouper}", f"+backend={backend}", "run_dir=out"))
    assert load_summary(tmp_path / "out").fits


def test_own_cluster_file(placekit: Run, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        "kinds:\n"
        "  fast: {flops_per_s: {float32: 2e13}, memory_bytes: 1000000000, memory_bytes_per_s: 1e12}\n"
        "  slow: {flops_per_s: {float32: 1e13}, memory_bytes: 1000000000, memory_bytes_per_s: 1e12}\n"
        "devices: [{kind: fast}, {kind: slow}]\n"
        "links: [{mesh: '*', bytes_per_s: 1e10}]\n"
    )
    ok(placekit("run", *FAST, "+cluster=mine.yaml", "run_dir=out"))
    result = load_summary(tmp_path / "out")
    assert result.cluster == "mine"
    assert set(result.peak_bytes) == {"fast:0", "slow:0"}
    assert "fast:0" in ok(placekit("cluster", "show", "mine.yaml"))


def test_graph_export_show_run(placekit: Run, tmp_path: Path) -> None:
    ok(placekit("graph", "export", "mlp.graph.npz", "workload=mlp"))
    ok(placekit("graph", "export", "copy.graph.npz", "mlp.graph.npz"))
    shown = ok(placekit("graph", "show", "copy.graph.npz"))
    assert shown == ok(placekit("graph", "show", "workload=mlp"))
    assert "critical path" in shown
    ok(placekit("run", "importer=file", "importer.path=copy.graph.npz", "budget.evaluations=20", "run_dir=file"))
    ok(placekit("run", "workload=mlp", "budget.evaluations=20", "run_dir=traced"))
    a, b = load_summary("file"), load_summary("traced")
    assert a.value_s == b.value_s
    assert a.programs[0].graph_fingerprint == b.programs[0].graph_fingerprint


def test_measured_costs_change_the_result(placekit: Run, tmp_path: Path) -> None:
    on = (*FAST, "policy=single_device", "cluster=p100x4")
    ok(placekit("run", *on, "run_dir=plain"))
    name = next(iter(json.loads((tmp_path / "plain" / "placement.json").read_text())["assignment"]))
    costs = {"format": "placekit-costs", "version": 1, "kinds": {"p100": {"operations": {}}}}
    plain = load_summary(tmp_path / "plain")
    graph = ok(placekit("graph", "export", "g.graph.npz", "workload=mlp"))
    assert plain.programs[0].graph_fingerprint in graph
    from placekit_core import load_graph

    kernel = next(
        n for n, k in zip(load_graph("g.graph.npz").op_name, load_graph("g.graph.npz").kernel, strict=True) if k
    )
    assert name
    costs["kinds"]["p100"]["operations"] = {kernel: 1.0}  # type: ignore[index]
    (tmp_path / "costs.json").write_text(json.dumps(costs))
    ok(placekit("run", *on, "run_dir=measured", "costs.file=costs.json"))
    measured = load_summary(tmp_path / "measured")
    assert measured.value_s is not None
    assert measured.value_s > 1.0
    assert 0 < measured.programs[0].measured_costs < 1


def test_result_schema_is_what_the_docs_list() -> None:
    text = (Path(__file__).parent.parent / "docs" / "command-line.md").read_text()
    for field in Summary.model_fields:
        assert f"`{field}`" in text, field
