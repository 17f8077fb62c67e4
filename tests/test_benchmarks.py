"""Scripts whose output documents show: they run, and print a row for everything. Small inputs; the documents have large ones."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from placekit_core import Graph, GraphBuilder

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """The lines that a script prints, given its name, its arguments, and values of its constants."""

    def run(name: str, *arguments: str, **constants: object) -> list[str]:
        spec = importlib.util.spec_from_file_location(f"benchmark_{name}", BENCHMARKS / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        monkeypatch.syspath_prepend(str(BENCHMARKS))  # scripts import each other
        script = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(script)
        for constant, value in constants.items():
            monkeypatch.setattr(script, constant, value)
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        script.main()
        return capsys.readouterr().out.splitlines()

    return run


def test_groups_of_groupers(printed) -> None:
    head, row = printed("groupers", "--groupers", "none,colocation,metis", "planted_small")
    assert head.split() == ["none", "colocation", "metis"]
    assert row.split()[:2] == ["planted_small", "27"]
    assert len(row) == len(head)


def two_blocks() -> Graph:
    """Two equal blocks, `h.0` and `h.1`, of two modules each."""
    b = GraphBuilder("two_blocks")
    x = b.source("x", 8, op_type="input")
    for module in ("h.0.a", "h.0.b", "h.1.a", "h.1.b", "head"):
        (x,) = b.add(module, inputs=[x], outputs=[8], op_type=module[-1], module=module)
    return b.build()


def test_repetition(printed) -> None:
    row = printed("groupers", "--repeats", "any", graph_of=lambda workload: two_blocks())[1]
    assert row.split() == ["any", "5", "4", "4", "2", "x", "h.*"]  # input, a, b and head
    row = printed("groupers", "--repeats", "planted_small")[1]
    assert row.endswith("has no repeated blocks")


@pytest.mark.slow
def test_seconds_of_groupers(printed) -> None:
    rows = printed("groupers", "--seconds", "--operations", "200")
    assert [row.split()[:2] for row in rows] == [
        [graph, grouper] for graph in ("layered", "star") for grouper in ("chains", "colocation", "heavy_edge", "metis")
    ]


def test_sizes_of_families(printed) -> None:
    title, *rows = printed("family_sizes", "planted_small")
    assert title == "planted_small, 1 graphs"
    assert rows[0].split() == ["operations", "27", "27", "27"]
    assert [row.split()[0] for row in rows] == ["operations", "depth", "width", "groups", "parallelism"]


def test_planted_graphs(printed) -> None:
    _, row = printed("planted", ROWS=[{"devices": 2, "width": 5, "layers": 3}])
    operations, devices, _, _, path, etf, annealing, *options = row.split()
    assert (operations, devices, options) == ("60", "2", ["devices=2,", "width=5,", "layers=3"])
    assert float(path) <= 1 <= min(float(etf), float(annealing))


def test_failures(printed) -> None:
    rows = printed("failures", "--seeds", "1", "--evaluations", "100", WAYS=[{}, {"failing": "signal"}])
    assert [row.split()[:2] for row in rows[1:]] == [
        [room, trainer] for room in ("16", "14") for trainer in ("reinforce", "ppo") for _ in range(2)
    ]
    assert rows[2].endswith("failing=signal")


def test_the_limit_of_the_parameter_server(printed) -> None:
    _, _, row = printed("parameter_server", "--workloads", "ffnn", "--updates", "2")
    name, _, _, _, _, parameters, sent, _, received, *_ = row.split()
    assert name == "ffnn"
    assert int(parameters.replace(",", "")) * 4e-6 == pytest.approx(float(sent), abs=0.03)
    assert float(sent) >= float(received)


@pytest.mark.slow
@pytest.mark.parametrize("controllers", [1, 4])
def test_baselines_of_controllers(printed, tmp_path: Path, controllers: int) -> None:
    """A controller alone has the same baseline either way."""
    constants = {"WORKLOADS": ("rnnlm",), "SPREADS": (1.0,), "EVALUATIONS": 80, "CONTROLLERS": controllers}
    rows = printed("controller_baselines", "--seeds", "1", "--csv", str(tmp_path / "runs.csv"), **constants)
    assert [row.split(": ")[0] for row in rows] == ["rnnlm, own, 100%, seed 0", "rnnlm, shared, 100%, seed 0"]
    own, shared = (row.split(": ")[1].rpartition(",")[0] for row in rows)
    assert (own == shared) == (controllers == 1)
    assert len((tmp_path / "runs.csv").read_text().splitlines()) == 3


@pytest.mark.slow
@pytest.mark.long
def test_costs_of_ray(printed) -> None:
    pytest.importorskip("ray")
    rows = printed("ray_calls", "--calls", "3")
    assert [row.split()[0] for row in rows[-3:]] == ["here", "call", "evaluation"]
