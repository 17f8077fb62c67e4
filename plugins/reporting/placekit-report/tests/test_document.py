"""The data of the page: its numbers are those of result.json, and its parts agree with each other."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from placekit_report import placekit_next_steps
from placekit_report.curves import POINTS, curve
from placekit_report.document import TIMELINES, Part, Run, Simulation, document
from placekit_report.logger import PAGE
from placekit_report.modules import OTHER, colours, cut_table, module_table
from placekit_report.timeline import HIDDEN, lanes, timeline
from placekit_testing import fakes
from placekit_testing.fakes import gpus
from report_data import check, embedded, network

from placekit_core import (
    Baseline,
    Cluster,
    Export,
    Graph,
    GraphBuilder,
    NothingFits,
    Placement,
    Problem,
    Program,
    Result,
    Task,
    installed,
    place,
)

for plugin in ("placekit_grouping", "placekit_sim"):
    pytest.importorskip(plugin, reason="a run needs a grouper and a simulator")


def spread(task: Task, rng: np.random.Generator) -> Placement:
    """A policy: the best of a few random placements."""
    g, size = task.problem.g, task.problem.cluster.size
    found = [task.problem.placement(rng.integers(0, size, g)) for _ in range(8)]
    values = [float(task.evaluate(p.batch()).value_s[0]) for p in found]
    return found[int(np.argmin(values))]


def run(folder: Path, source: Any = None, **options: Any) -> dict[str, Any]:
    """The data of the page of a run, which follows all rules."""
    options = {"cluster": gpus(), "policy": spread, "grouper": "none", **options}
    place(network() if source is None else source, run_dir=folder, **options)
    return page(folder)


def page(folder: Path) -> dict[str, Any]:
    data = embedded(folder / PAGE)
    check(data)
    assert data["run"]["summary"] == json.loads((folder / "result.json").read_text())
    return data


def test_the_page_of_a_run_has_the_numbers_of_its_result(tmp_path: Path) -> None:
    data = run(tmp_path / "r")
    only = data["run"]
    [p] = only["programs"]
    assert data["title"] == "net on fake2+0"
    assert (only["truth"], only["notes"]) == ("simulated", [])
    assert "simulated by backend 'simulator'" in only["truth_text"]
    assert sorted(p["timeline"]["colours"]["module"]) == sorted(
        [*(f"layers.{i}.{part}" for i in range(3) for part in ("attention", "mlp")), "the network itself"]
    )
    assert p["timeline"]["end_s"] == p["value_s"]
    assert p["headroom"]["device"] in p["devices"]["name"]
    assert p["search"]["best_s"][-1] == p["value_s"]
    assert (p["exports"], p["devices"]["cache_bytes"]) == ([], [None, None])
    assert p["change"]["now_s"] == p["value_s"]


def test_the_page_changes_no_result_and_is_the_same_each_time(tmp_path: Path) -> None:
    texts = []
    for name in "ab":
        data = run(tmp_path / name)["run"]
        assert data["programs"][0]["seconds"] == data["summary"]["seconds"]
        texts.append({k: v for k, v in data["programs"][0].items() if k not in ("seconds", "search")})
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    "odd", ["</script><script>alert(1)</script>", "<!--", ".x" * 1500, "日本 é \u2028 \\ \" ' &amp;"]
)
def test_any_name_is_data(tmp_path: Path, odd: str) -> None:
    data = run(tmp_path / "r", network(2, f"net {odd}", odd))
    [p] = data["run"]["programs"]
    assert any(odd in text for text in p["timeline"]["texts"])
    assert (tmp_path / "r" / PAGE).read_text().count("alert(1)</script>") == 0


def test_a_run_that_does_not_fit(tmp_path: Path) -> None:
    with pytest.raises(NothingFits):
        run(tmp_path / "r", cluster=fakes.gpus(memory_bytes=4_000_000), policy="single_gpu")
    [p] = page(tmp_path / "r")["run"]["programs"]
    assert (p["fits"], p["value_s"], p["timeline"], p["change"]) == (False, None, None, None)
    assert (p["modules"]["name"], p["cut"]) == ([], None)
    assert p["devices"]["memory_bytes"] == [4_000_000] * 2


def test_a_family_has_all_programs_and_few_timelines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert TIMELINES == 8
    for module in ("document", "logger"):
        monkeypatch.setattr(f"placekit_report.{module}.TIMELINES", 2)
    data = run(tmp_path / "r", [Program(network(1, f"n{i}")) for i in range(3)])["run"]
    assert [p["timeline"] is not None for p in data["programs"]] == [True, True, False]
    assert data["programs"][-1]["modules"]["seconds"][0] > 0
    assert data["notes"] == ["2 of 3 programs have a timeline"]


def test_a_pipeline_shows_the_tasks_of_all_micro_batches(tmp_path: Path) -> None:
    pytest.importorskip("placekit_pipeline")
    backend = {"name": "pipeline", "microbatches": 4}
    found = place(
        network(), cluster=gpus(), policy=halves, grouper="none", backend=backend, run_dir=tmp_path / "r", budget=10
    )
    [p] = page(tmp_path / "r")["run"]["programs"]
    t = p["timeline"]
    assert t["micro_batches"]
    assert set(t["colours"]["module"]) >= {"forward", "backward"}
    assert found.schedule is not None
    assert found.schedule.spans is not None
    assert len(t["events"]["name"]) == len(found.schedule.spans.name)


def halves(task: Task, rng: np.random.Generator) -> Placement:
    """A policy: what belongs to the first layer on the first device, the rest on the second."""
    graph = task.problem.graph
    first = np.array([".0." in name or name == "x" for name in graph.op_name])
    group = task.problem.grouping.group_of
    device = np.ones(task.problem.g, np.int64)
    device[group[first]] = 0
    return task.problem.placement(device)


def test_an_interrupted_run(tmp_path: Path) -> None:
    def stops(task: Task, rng: np.random.Generator) -> Placement:
        spread(task, rng)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "r", policy=stops)
    data = page(tmp_path / "r")["run"]
    assert data["summary"]["status"] == "interrupted"
    assert data["programs"][0]["timeline"] is not None


def test_a_measured_run_says_what_is_measured(tmp_path: Path) -> None:
    einsum = pytest.importorskip("placekit_einsum.importer")
    cuda = pytest.importorskip("placekit_cuda.backend")
    program = einsum.EinsumImporter(program="chainmm", sizes={"n": 16}).load()[0]
    backend = {"name": "cpu", "devices": 2, "steps": 2, "warm_up": 1}
    cluster = cuda.CPUBackend(devices=2).devices()
    data = run(tmp_path / "r", program, cluster=cluster, backend=backend, budget=4)["run"]
    [p] = data["programs"]
    assert data["truth"] == "measured"
    assert "measured by backend 'cpu'" in data["truth_text"]
    assert "one measured step" in data["truth_text"]
    assert p["spread_s"] == data["summary"]["spread_s"]
    assert p["timeline"] is not None


class TestModules:
    def test_a_parent_has_what_its_children_have(self) -> None:
        problem = Problem.of(network(), gpus())
        device = np.arange(problem.graph.n, dtype=np.int16) % 2
        seconds = problem.op_s[np.arange(problem.graph.n), device]
        m = module_table(problem, device, seconds)
        assert [m["name"][i] for i in range(3)] == ["", "layers", "layers.0"]
        row = {name: i for i, name in enumerate(m["name"])}
        below = [row[f"layers.{i}"] for i in range(3)]
        assert m["seconds"][row["layers"]] == pytest.approx(m["seconds"][below].sum())
        assert m["bytes"][row["layers.1.mlp"]] == 1_000_000
        assert m["operations"][0] == problem.graph.kernel.sum()
        assert m["device_seconds"].sum(axis=1) == pytest.approx(m["seconds"])

    @pytest.mark.parametrize(
        ("lists", "names"),
        [
            (["h"], ["h.0-1", "h.2-3", "h.4-5", "h.6-7", "h.8", "h.9", "h.10", "h.11"]),
            (
                ["model.h", "model.a", "model.b", "model.c", "d", "e"],
                [
                    "model.h.0-1",
                    "model.h.2-3",
                    "model.h.4-5",
                    "model.h.6-7",
                    "model.h.8",
                    "model.h.9",
                    "model.h.10",
                    "model.h.11",
                    "model.a",
                    OTHER,
                ],
            ),
            (["a.h", "b"], ["a.h.0-2", "a.h.3-5", "a.h.6-8", "a.h.9-11", "b.0-2", "b.3-5", "b.6-8", "b.9-11"]),
        ],
    )
    def test_layers_of_a_list_are_joined_to_runs(self, lists: list[str], names: list[str]) -> None:
        b = GraphBuilder("listed")
        for layers in lists:
            if len(lists) > 2 and layers != lists[0]:
                b.add(layers, flops=1e8, outputs=[8], module=layers)
                continue
            for i in range(12):
                for module in (
                    f"{layers}.{i}",
                    f"{layers}.{i}.attention",
                    f"{layers}.{i}.mlp.0",
                    f"{layers}.{i}.mlp.1",
                ):
                    b.add(f"{module}/op", flops=1e9, outputs=[8], module=module)
        problem = Problem.of(b.build(), gpus())
        found, colour = colours(problem, problem.op_s[:, 0])
        assert found == names
        assert found[colour[0]] == names[0]

    def test_what_crosses_by_hand(self) -> None:
        problem, schedule = split_network()
        cut = cut_table(problem, schedule)
        crossing = {(a, b): n for a, b, n in zip(cut["source"], cut["destination"], cut["bytes"].tolist(), strict=True)}
        assert crossing == {
            ("layers.0.mlp", "layers.1.attention"): 40_000,  # the output, which its gradient also needs
            ("layers.1.attention", "layers.0.mlp"): 40_000,
        }
        assert sorted(zip(cut["from"], cut["to"], strict=True)) == [("gpu:0", "gpu:1"), ("gpu:1", "gpu:0")]


def split_network(layers: int = 2, where: Any = None) -> tuple[Problem, Any]:
    """The first layer on one device and the others on the second, or operation v on `where(v)`, simulated."""
    problem = Problem.of(network(layers), gpus())
    graph = problem.graph
    device = [
        where(v) if where else int(".0." not in graph.op_name[v] and graph.op_name[v] != "x") for v in range(graph.n)
    ]
    session = installed().build("backend", "simulator", {}).open(problem)
    placed = np.zeros(problem.g, np.int64)
    placed[problem.grouping.group_of] = device
    schedule = session.schedule(problem.placement(placed))
    session.close()
    return problem, schedule


class TestTimeline:
    def test_transfers_that_overlap_have_lanes(self) -> None:
        start, end = np.array([0.0, 1.0, 2.0, 0.0]), np.array([2.0, 3.0, 4.0, 9.0])
        assert lanes(start, end, np.array([0, 0, 0, 1])).tolist() == [0, 1, 0, 0]

    def test_too_many_events(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from placekit_report.causes import WHY, explain

        problem, schedule = split_network(4, lambda v: v % 2)
        causes = explain(problem, schedule)
        whole = timeline(problem, schedule, causes, WHY)
        count = len(whole["events"]["name"])
        limit = len(whole["critical"]) + 1
        monkeypatch.setattr("placekit_report.timeline.EVENTS", limit)
        short = timeline(problem, schedule, causes, WHY)
        assert (short["complete"], short["left_out"]) == (False, count - limit)
        assert len(short["events"]["name"]) == limit
        assert len(short["critical"]) == len(whole["critical"])
        shown = {short["texts"][i] for i in short["events"]["name"]}
        assert {whole["texts"][i] for i in whole["events"]["name"]} >= shown
        short = timeline(problem, schedule, replace(causes, critical=causes.critical[-1:]), WHY)
        hidden = [c for c, w in zip(short["events"]["cause"], short["events"]["why"], strict=True)
                  if short["texts"][w] == HIDDEN]  # fmt: skip
        assert hidden
        assert set(hidden) == {-1}


class TestCurves:
    def rows(self, count: int) -> list[tuple[float, ...]]:
        best = [math.nan, *(1.0 / (1 + i // 7) for i in range(count - 1))]
        return [(i + 1, i * 0.5, 2.0, 3.0, b) for i, b in enumerate(best)]

    def test_a_long_one_keeps_its_ends_and_improvements(self) -> None:
        rows = self.rows(5_000)
        found = curve(rows, 0)
        assert len(found["best_s"]) <= POINTS
        assert found["evaluations"][[0, -1]].tolist() == [1, 5_000]
        assert found["best_s"][-1] == rows[-1][4]
        few = curve(self.rows(POINTS + 200), 0)
        assert set(few["best_s"][1:]) == {row[4] for row in self.rows(POINTS + 200)[1:]}

    def test_missing_numbers_are_null(self) -> None:
        result = short_result()
        part = Part(replace(result.programs[0], history=self.rows(3)))
        data = document(Run("r", result.summary, [part]))
        assert data["run"]["programs"][0]["search"]["best_s"] == [None, 1.0, 1.0]
        json.dumps(data, allow_nan=False)


def short_result(graph: Graph | None = None, cluster: Cluster | None = None) -> Result:
    return place(graph or network(1), cluster=cluster or gpus(), policy=spread, grouper="none", budget=20)


@pytest.mark.parametrize(
    ("alone_s", "runs", "note"),
    [
        (None, 1.5, "50.0% slower than"),
        (2, 1.5, "50.0% slower than"),
        (1.2, 1.5, ""),
        (1.2, None, "as fast as"),
        (0.5, None, ""),
    ],
)
def test_an_export_is_faster_than_one_device(alone_s: float | None, runs: float | None, note: str) -> None:
    """Seconds are multiples of the placement's."""
    [found] = short_result().programs
    assert found.placement is not None
    own_s = found.summary.value_s
    assert own_s is not None
    alone = [Baseline(policy="single_device", value_s=alone_s and alone_s * own_s, fits=True, device="gpu:0")]
    found = replace(found, summary=found.summary.model_copy(update={"baselines": alone}))
    backend = installed().build("backend", "simulator", {})
    export = Export("zzrt", "zz", "0-9:gpu0", found.placement, runs and runs * own_s, ["a note"])
    part = Part(found, Simulation(backend, backend.open(found.problem)), exports=[export])
    [program] = document(Run("r", short_result().summary, [part]))["run"]["programs"]
    row = {"title": "zzrt", "name": "zz", "text": "0-9:gpu0", "note": f"simulated {note} the placement; a note"}
    assert program["exports"] == ([row] if note else [])
    [program] = document(Run("r", short_result().summary, [replace(part, simulation=None)]))["run"]["programs"]
    assert program["exports"] == [], "nothing tells whether it fits"


@pytest.mark.parametrize("cache", [True, "x", {"a": 1}, [["a"], 3]])
def test_an_attribute_of_another_type_is_no_cache(cache: Any) -> None:
    result = short_result(fakes.chain_graph(2).replace(attributes={"cache": cache}))
    data = document(Run("r", result.summary, [Part(result.programs[0])]))
    assert data["run"]["programs"][0]["devices"]["cache_bytes"] == [None, None]


def test_the_next_step_is_to_open_the_page(tmp_path: Path) -> None:
    result: Any = None
    assert placekit_next_steps(tmp_path, result) == []
    (tmp_path / PAGE).touch()
    assert placekit_next_steps(tmp_path, result) == [f"open {tmp_path / PAGE} in a browser"]


@pytest.mark.parametrize(
    ("attributes", "rate"),
    [
        ({"work": [1, "tokens"]}, "4 tokens/s"),
        ({"work": [4096, "samples"], "context": 0}, "16,384 samples/s"),
        ({"work": [1, "tokens"], "context": 8192}, "4 tokens/s with a context of 8,192 tokens"),
        ({}, ""), ({"work": 5}, ""), ({"work": [0, "x"]}, ""),
    ],
)  # fmt: skip
def test_what_is_computed_per_second(attributes: dict[str, Any], rate: str) -> None:
    graph = fakes.chain_graph(2).replace(attributes=attributes)
    placed = place(graph, cluster=gpus(1), policy="single_device", baselines=[])
    [program] = placed.summary.programs
    found = replace(placed.programs[0], summary=program.model_copy(update={"value_s": 0.25}))
    data = document(Run("r", placed.summary, [Part(found)]))
    assert data["run"]["programs"][0]["rate"] == rate
