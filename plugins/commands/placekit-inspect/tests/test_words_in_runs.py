"""Machines in words where runs take a cluster, and plans with more words."""

from __future__ import annotations

import json
import sys
import types
import warnings
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from placekit_inspect.described import described_machine
from placekit_inspect.machine_file import machine_file
from placekit_inspect.what_if import Recommended, changed_machine, show_changes

from placekit_core import Cluster, ClusterError, ConfigError, hookimpl, installed, place
from placekit_core.cli.arguments import normalise
from placekit_core.cli.compose import assembled, jobs
from placekit_core.cli.jobs import job_name
from placekit_core.run.config import conf_dir
from placekit_core.run.registry import discover

Run = Callable[..., Any]
NVLINK = "2x rtx3090, nvlink"
MACHINE = described_machine(NVLINK, installed())
FAST = ["workload=mlp", "policy=etf", "baselines=[]", "log=[]"]


@pytest.mark.parametrize(
    ("value", "machines"),
    [
        ("rtx4090 + rtx3090", ["rtx4090 + rtx3090"]),
        (f"'{NVLINK}'", [NVLINK]),
        ("2 nodes of (4x l40s, pcie4 x16), ib_hdr", ["2 nodes of (4x l40s, pcie4 x16), ib_hdr"]),
        ("rtx4090,rtx3090", ["rtx4090,rtx3090"]),  # one machine with two devices
    ],
)
def test_a_run_takes_a_machine_in_words(value: str, machines: list[str]) -> None:
    words = ",".join(f"'{machine}'" for machine in machines)
    assert normalise([f"+cluster={value}"], installed()) == ["cluster=words", f"++cluster.words={words}"]


def test_in_a_sweep_commas_separate_machines_but_not_their_links(tmp_path: Path) -> None:
    (tmp_path / "box.yaml").write_text((conf_dir() / "cluster" / "p100x4.yaml").read_text())
    value = (
        f'p100x4,{NVLINK},"2x rtx4090, pcie4 x8",rtx4090,2 nodes of (l40s, pcie4 x16), ib_hdr,{tmp_path / "box.yaml"}'
    )
    kind, words = normalise([f"cluster={value}"], installed(), sweep=True)
    expected = [
        str(conf_dir() / "cluster" / "p100x4.yaml"), NVLINK, "2x rtx4090, pcie4 x8", "rtx4090",
        "2 nodes of (l40s, pcie4 x16), ib_hdr", str(tmp_path / "box.yaml"),
    ]  # fmt: skip
    assert kind == "cluster=words"
    assert words == "++cluster.words=" + ",".join(f"'{machine}'" for machine in expected)
    names = [job_name([f"++cluster.words='{machine}'"], []) for machine in expected[:2]]
    assert names == ["cluster=p100x4", "cluster=2x_rtx3090,_nvlink"]


@pytest.mark.parametrize("value", ["p100x4", "p100x4,v100x8", "choice(p100x4, v100x8)", "glob(*)", "no_such", "${x}"])
def test_hydra_finds_names(value: str) -> None:
    for sweep in (False, True):
        assert normalise([f"cluster={value}"], installed(), sweep=sweep) == [f"cluster={value}"]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("rtx4090 + rtx309", "no device kind named 'rtx309'\n  did you mean 'rtx3090'"),
        (f"p100x4,{NVLINK} x9", "nvlink x9: only PCIe has a number of lanes"),
        ("p100x4,2x rtx3090, nvlnk", "no link named 'nvlnk'\n  did you mean 'nvlink'"),
        ("p100x4,rtx4090 + rtx309", "no device kind named 'rtx309'"),
        ("rtx4090,nvlnk", "no link named 'nvlnk'\n  did you mean 'nvlink'"),
    ],
)
def test_a_mistake_is_the_error_of_a_plan(value: str, message: str) -> None:
    with pytest.raises(ClusterError) as e:
        normalise([f"cluster={value}"], installed(), sweep="," in value)
    assert str(e.value).startswith(message)
    if "," not in value:
        with pytest.raises(ClusterError) as plans:
            described_machine(value, installed())
        assert str(plans.value) == str(e.value)


def test_without_m_words_after_a_comma_belong_to_the_machine() -> None:
    with pytest.raises(ClusterError, match="no link named 'nvlnk'"):
        normalise(["cluster=rtx4090,nvlnk"], installed())
    for value in ("rtx4090,p100x4", "p100x4,rtx4090"):  # Hydra asks for -m
        assert normalise([f"cluster={value}"], installed()) == [f"cluster={value}"]


def test_a_misspelled_preset_beside_words() -> None:
    with pytest.raises(ConfigError, match="no cluster named 'p100x5'\n  did you mean 'p100x4'"):
        normalise(['cluster="2x h100",p100x5'], installed(), sweep=True)


@pytest.mark.parametrize("second", ["FILE", "2x_h100", "2x h100"])
def test_jobs_of_a_sweep_have_folders_of_their_own(second: str, tmp_path: Path) -> None:
    path = tmp_path / "2x_h100.yaml"
    path.write_text((conf_dir() / "cluster" / "p100x4.yaml").read_text())
    with pytest.raises(ConfigError, match="has two machines called '2x_h100'\n  each needs a job folder of its own"):
        normalise([f"cluster=2x h100,{second.replace('FILE', str(path))}"], installed(), sweep=True)


def test_without_a_plugin_words_are_no_machine() -> None:
    assert discover([]).machine("rtx4090 + rtx3090") is None


def test_words_of_other_plugins_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    own = types.ModuleType("madeup_machines")
    hook = hookimpl(lambda words: MACHINE if words == "our server" else None)
    monkeypatch.setattr(own, "placekit_machine", hook, raising=False)
    monkeypatch.setitem(sys.modules, own.__name__, own)
    found = [("aaa", own.__name__), ("zzz", "placekit_inspect")]  # pluggy asks the last one first
    registry = discover([EntryPoint(name=name, value=value, group="placekit") for name, value in found])
    assert registry.machine("our server") is MACHINE
    assert registry.machine("rtx4090") is not None


@pytest.mark.parametrize("machine", [NVLINK, "FILE"])
def test_options_beside_a_machine_change_it(machine: str, tmp_path: Path) -> None:
    path = tmp_path / "box.yaml"
    path.write_text(machine_file(NVLINK, "box"))
    given = ["cluster.name=mine", "cluster.launching=graph", "cluster.kinds.rtx3090.headroom=0.25"]
    own = MACHINE.model_dump(mode="json")
    own |= {"name": "mine", "launching": "graph"}
    own["kinds"]["rtx3090"]["headroom"] = 0.25
    argv = [*FAST, f"cluster={machine.replace('FILE', str(path))}", *given]
    kept = Cluster.parse(assembled(argv, installed()).config.cluster)
    assert (kept.name, kept.fingerprint) == ("mine", Cluster.parse(own).fingerprint)


def test_an_assumption_is_said_once() -> None:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        assembled([*FAST, "cluster=rtx4090 + 64gb"], installed())
    assert [str(w.message) for w in found] == ["64 GB of memory taken as DDR5-5600 in two channels"]


def test_a_configuration_has_the_whole_machine() -> None:
    own = described_machine(NVLINK, installed())
    kept = Cluster.parse(assembled([*FAST, f"cluster={NVLINK}"], installed()).config.cluster)
    assert (kept.name, kept.fingerprint) == (NVLINK, own.fingerprint)
    swept = jobs([*FAST, f"cluster=rtx4090,{NVLINK}"], installed())
    assert [job[-1] for job in swept] == ["cluster.words='rtx4090'", f"cluster.words='{NVLINK}'"]


@pytest.mark.slow
def test_runs_on_machines_in_words(placekit: Run) -> None:
    own = described_machine(NVLINK, installed())
    done = placekit("run", "-m", *FAST, f"cluster=p100x4,2x rtx3090,{NVLINK}", "run_dir=sweep")
    assert done.code == 0
    assert {p.name for p in Path("sweep").iterdir() if p.is_dir()} == {
        "cluster=p100x4", "cluster=2x_rtx3090", "cluster=2x_rtx3090,_nvlink",
    }  # fmt: skip
    kept = json.loads(Path("sweep/cluster=2x_rtx3090,_nvlink/config.json").read_text())["cluster"]
    assert Cluster.parse(kept).fingerprint == own.fingerprint
    assert [line.split("  ")[0] for line in done.out.splitlines()[-3:]] == ["2x rtx3090", NVLINK, "p100x4"]
    assert placekit("run", "resume=sweep").out.count("skipped") == 3
    result = place("mlp", cluster=NVLINK, policy="etf", baselines=[])
    assert result.summary.cluster_fingerprint == own.fingerprint
    assert f"fingerprint {own.fingerprint}" in placekit("cluster", "show", NVLINK).out
    assert f"on {NVLINK}:" in placekit("bounds", "workload=mlp", f"cluster={NVLINK}").out


@pytest.mark.parametrize(
    ("machine", "words", "same"),
    [
        ("2x rtx3090", "nvlink", NVLINK),
        ("rtx4090, pcie4 x8", "+ rtx3090", "rtx4090 + rtx3090, pcie4 x8"),
        ("rtx4090", ", pcie4 x4", "rtx4090, pcie4 x4"),
        ("(rtx4090) + (rtx3090), 10gbe", "+ (rtx3060)", "(rtx4090) + (rtx3090) + (rtx3060), 10gbe"),
        ("my(24GB 900GB/s 80TFLOPS)", "+ 64GB ddr5-5600", "my(24GB 900GB/s 80TFLOPS) + 64GB ddr5-5600"),
    ],
)
def test_more_words(machine: str, words: str, same: str) -> None:
    registry = installed()
    assert changed_machine(machine, words, registry).fingerprint == described_machine(same, registry).fingerprint


@pytest.mark.parametrize(("machine", "what"), [("auto", "this computer"), ("p100x4", "a preset"), ("a.yaml", "a file")])
def test_other_machines_take_no_words(machine: str, what: str) -> None:
    with pytest.raises(
        ClusterError, match=f"--if 'nvlink' adds words .* and {machine} is {what}\n  describe the machine"
    ):
        changed_machine(machine, "nvlink", installed())


def test_what_changes(capsys: pytest.CaptureFixture[str]) -> None:
    plan, fast = Recommended("one", ["1 s"], 1.0), Recommended("both", ["0.5 s"], 0.5)
    show_changes(["step"], plan, {"+ a": fast, "nvlink": plan, "+ b": None})
    show_changes(["step"], plan, {"+ a": plan._replace(strategy="two", seconds=1.001)})
    show_changes(["step"], None, {"+ a": fast})
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line]
    assert lines[1:4] == [["+", "a", "both", "0.5", "s", "+100%"], ["nvlink", "one", "1", "s", "nothing", "changes"],
                          ["+", "b", "nothing", "fits"]]  # fmt: skip
    assert lines[5][-2:] == ["as", "fast"]
    assert lines[-1][-2:] == ["it", "fits"]
