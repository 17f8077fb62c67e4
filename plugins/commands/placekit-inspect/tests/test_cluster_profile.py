"""`placekit cluster profile`: a run takes its files, and mistakes are told before anything is measured."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from placekit_inspect import fidelity
from placekit_testing.pytest_plugin import Outcome

pytest.importorskip("placekit_cuda", reason="measures on backend `cpu`")
pytest.importorskip("placekit_einsum")

SMALL = ("workload=chainmm_small", "backend=cpu", "backend.steps=1")


@pytest.mark.slow
def test_a_run_takes_the_files(placekit: Callable[..., Outcome]) -> None:
    """The command that is printed, and what it finds; then fidelity with the same files."""
    done = placekit("cluster", "profile", "out", "--repeats=1", "backend.devices=2", *SMALL)
    assert done.code == 0, done.err
    printed = done.out
    command = printed.splitlines()[-1].split()
    assert command[:2] == ["placekit", "run"]
    assert command[-2:] == ["cluster=out/cluster.yaml", "costs.file=out/costs.json"]
    assert "cpu:0->cpu:1" in printed
    assert placekit(*command[1:], "budget.evaluations=3", "run_dir=run").code == 0
    [program] = json.loads(Path("run/result.json").read_text())["programs"]
    assert program["measured_costs"] == 1.0
    assert placekit("fidelity", "agree", "--placements=6", "--passes=1", *SMALL, *command[-2:]).code == 0
    data = json.loads(Path("agree", fidelity.JSON).read_text())
    assert data["all"]["placements"] == 6
    assert data["cluster"] == "cpu2_measured"
    assert data["command"].startswith("placekit fidelity agree --placements=6 --passes=1 workload=chainmm_small")
    assert len(Path("agree", fidelity.CSV).read_text().splitlines()) == 7


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            [],
            "arguments are required: OUT_DIR\n"
            "  usage: placekit cluster profile [-h] [--repeats N] [--config-dir DIR] OUT_DIR [OPTION=VALUE ...]",
        ),
        (["out", "workload=chainmm_small"], "backend 'simulator' measures nothing\n  choose a backend that measures"),
        (["out", "--repeats=0", *SMALL], "--repeats: '0' is not a whole number of at least 1"),
        (["here", *SMALL], "here exists already\n  remove it, or choose another folder"),
        (["out", "backend=cpu", "workload=planted_small"], "there is nothing to run and measure"),
        (["file/out", *SMALL], "cannot write file/out: Not a directory"),
        (["out", "costs.file=c.json", *SMALL], "costs.file is for runs"),
    ],
)
def test_mistakes_of_the_command_line(placekit: Callable[..., Outcome], arguments: list[str], message: str) -> None:
    Path("here").mkdir()
    Path("file").touch()
    code, _, err = placekit("cluster", "profile", *arguments)
    assert code == 1
    assert message in err
    assert not Path("out").exists()
