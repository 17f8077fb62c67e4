"""`placekit quickstart`: what it writes is complete, in order, and runs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from placekit_doctor.quickstart import FILES, NEXT

from placekit_core import ClusterError, load_cluster, place

computers = pytest.importorskip("placekit_inspect.computer")
Computer, Gpu, Processor = computers.Computer, computers.Gpu, computers.Processor

CPU = Processor("Fast CPU", 8, 3e9, 32, 32 * 2**30)
CARDS = [Gpu(i, f"NVIDIA GeForce RTX {n}", 24 * 2**30, 0, 4, 8) for i, n in enumerate((4090, 3090))]


@pytest.fixture(autouse=True)
def computer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A computer without a GPU."""
    monkeypatch.setattr("placekit_inspect.cluster_new.read_computer", lambda: Computer(CPU))


def test_it_writes_the_files_and_says_what_to_run(placekit, tmp_path: Path) -> None:
    done = placekit("quickstart")
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert sorted(p.name for p in (tmp_path / "quickstart").iterdir()) == sorted(FILES)
    assert lines[0] == f"quickstart: {', '.join(FILES)}"
    assert "no GPU was found here" in lines[1]
    assert lines[2:] == ["next:", "  cd quickstart", *(f"  {command}" for command in NEXT)]
    readme = (tmp_path / "quickstart" / "README.md").read_text()
    assert "\n".join(NEXT) in readme
    assert {name for name in FILES if f"`{name}`" not in readme} == {"README.md"}


@pytest.mark.parametrize("name", FILES[:1])
def test_files_of_ones_own_stay(placekit, tmp_path: Path, name: str) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / name).write_text("mine")
    done = placekit("quickstart", "mine")
    assert done.code == 1
    assert f"mine has {name} already, so nothing was written" in done.err
    assert [p.name for p in (tmp_path / "mine").iterdir()] == [name]
    assert (tmp_path / "mine" / name).read_text() == "mine"


def fields(text: str) -> set[str]:
    """The names of fields in a cluster file."""
    data = yaml.safe_load(text)
    return {"type"} | {k for part in ("kinds", "devices", "links") for x in (
        data[part].values() if isinstance(data[part], dict) else data[part]) for k in x} - {"kind", "count"}  # fmt: skip


@pytest.mark.parametrize("gpus", [[], CARDS])
def test_each_field_of_the_machine_has_a_comment(placekit, tmp_path: Path, monkeypatch, gpus: list[Gpu]) -> None:
    monkeypatch.setattr("placekit_inspect.cluster_new.read_computer", lambda: Computer(CPU, gpus))
    out = placekit("quickstart", "new").out
    assert ("this computer, 1 x GeForce RTX 4090" in out) == bool(gpus)
    text = (tmp_path / "new" / "machine.yaml").read_text()
    names = load_cluster(tmp_path / "new" / "machine.yaml").device_names
    assert names == ("rtx4090:0", "rtx3090:0", *(["cpu:0"] if gpus else []))
    legend = " ".join(re.findall(r"^#   (\w+(?:, \w+)*)  ", text, re.M)).replace(",", "").split()
    assert fields(text) <= set(legend)


def test_a_computer_that_cannot_be_read_is_said(placekit, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> Computer:
        raise ClusterError("nvidia-smi fails: no driver")

    monkeypatch.setattr("placekit_inspect.cluster_new.read_computer", fails)
    done = placekit("quickstart")
    assert done.code == 0
    assert "this computer cannot be read: nvidia-smi fails: no driver" in " ".join(done.out.split())


@pytest.mark.parametrize("width", ["88"])
def test_the_code_is_in_order(placekit, tmp_path: Path, width: str) -> None:
    placekit("quickstart", ".")
    ruff = [sys.executable, "-m", "ruff"]
    rules = ["--select", "E,F,W,I,UP,B,RUF", "--ignore", "E501"]
    for command in (["check", *rules], ["format", "--check"]):
        options = ["--isolated", "--no-cache", "--line-length", width]
        done = subprocess.run([*ruff, *command, *options, tmp_path], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_network_is_placed_on_the_machine(placekit, tmp_path: Path) -> None:
    """A small one: the whole is below."""
    placekit("quickstart", ".")
    namespace = {"__name__": "model"}
    exec((tmp_path / "model.py").read_text(), namespace)
    step = namespace["make"](batch=2, layers=1, width=16)
    result = place(step, cluster=str(tmp_path / "machine.yaml"), grouper="module", policy="etf")
    assert result.value_s > 0
    assert set(result.summary.peak_bytes) == {"rtx4090:0", "rtx3090:0"}


@pytest.mark.slow
@pytest.mark.long
def test_the_commands_run(placekit, tmp_path: Path) -> None:
    placekit("quickstart", ".")
    scripts = Path(sys.executable).parent
    printed = []
    for command in NEXT:
        words = command.split()
        done = subprocess.run(
            [scripts / words[0], *words[1:]], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        printed.append(done.stdout)
    result = json.loads((tmp_path / "mine" / "result.json").read_text())["programs"][0]
    assert result["fits"]
    assert json.loads(printed[1]) == json.loads((tmp_path / "device_map.json").read_text())
    assert f"{result['value_s'] * 1e3:.2f} ms" in printed[2]
