"""`placekit apply`: what it says of the seconds and the memory of a form, simulated again."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from placekit_runtimes import apply, runtimes
from placekit_runtimes.interface import Conflict, RuntimeMap, warn_of
from placekit_testing.fakes import FakeBackend

import placekit_core
from placekit_core import GraphBuilder, Placement, save_graph
from placekit_core.contracts.units import seconds

Run = Callable[..., Any]

LAYERS = 6
MACHINE = """\
kinds: {gpu: {flops_per_s: {float32: 1e12}, memory_bytes: MEMORY, memory_bytes_per_s: 1e11}}
devices: [{kind: gpu, count: 2}]
links: [{mesh: "gpu:*", bytes_per_s: 1e9, latency_s: 1e-6}]
"""


def decoder() -> GraphBuilder:
    """Embedding, layers of two products with 1 MB of weights each, head."""
    b = GraphBuilder("decoder")
    x = b.source("tokens", 4, op_type="input")
    modules = ["wte", *(f"h.{i}.{part}" for i in range(LAYERS) for part in ("attn", "mlp")), "lm_head"]
    for i, module in enumerate(modules):
        weight = b.source(f"{module}.weight", 1_000_000, module=module, colocate=i)
        [x] = b.add(f"{module}/mm", inputs=[x, weight], outputs=[4000], flops=1e9, module=module, colocate=i)
    return b


@pytest.fixture
def run(placekit: Run, tmp_path: Path) -> Path:
    """All of it on gpu:0, under the simulator; `move` changes that."""
    save_graph(decoder().build(), tmp_path / "decoder.graph.npz")
    (tmp_path / "two.yaml").write_text(MACHINE.replace("MEMORY", "40000000"))
    options = ["importer=file", "importer.path=decoder.graph.npz", "cluster=two.yaml", "policy=single_gpu"]
    assert placekit("run", *options, "run_dir=run").code == 0
    return tmp_path / "run"


def move(run: Path, pattern: str, device: str) -> None:
    path = run / "placement.json"
    data = json.loads(path.read_text())
    data["assignment"] |= {o: device for o in data["assignment"] if re.match(pattern, o)}
    path.write_text(json.dumps(data))


def test_value_and_memory_are_said_beside_the_text(placekit: Run, run: Path) -> None:
    result = json.loads((run / "result.json").read_text())
    done = placekit("apply", "run", "--format", "vllm")
    value, bound = seconds(result["value_s"]), seconds(result["bound_s"])
    assert (done.code, done.out) == (0, "VLLM_PP_LAYER_PARTITION=6\n")
    assert done.err == (
        f"makespan: {value} as vllm, {value} as placed, proven bound {bound}\npeak memory: gpu:0 13.4 MiB of 38.1 MiB\n"
    )
    assert placekit("apply", "run", "--format", "vllm", "--out", "env").err == done.err
    assert (run.parent / "env").read_text() == done.out


def test_a_head_that_moves_is_said(placekit: Run, run: Path) -> None:
    move(run, r"h\.[3-5]|lm_head", "gpu:1")
    assert "warning" not in placekit("apply", "run", "--format", "vllm").err
    move(run, r"lm_head", "gpu:0")
    done = placekit("apply", "run", "--format", "vllm")
    assert done.out == "VLLM_PP_LAYER_PARTITION=3,3\n"
    assert "vllm moves a module: 7.1% of the step's time moves to other devices" in done.err
    assert "(100.0% of 'lm_head' to gpu:1)" in done.err
    assert "slower" not in done.err, "it saves a transfer"


def test_a_form_that_is_slower_is_warned_of(placekit: Run, run: Path) -> None:
    b = GraphBuilder("wide")
    for i in range(2):
        b.add(f"half{i}", outputs=[4], flops=1e12, module="wide")
    save_graph(b.build(), run.parent / "wide.graph.npz")
    options = ["importer=file", "importer.path=wide.graph.npz", "cluster=two.yaml", "policy=single_gpu"]
    assert placekit("run", *options, "run_dir=wide").code == 0
    move(run.parent / "wide", "half1", "gpu:1")
    done = placekit("apply", "wide")
    assert json.loads(done.out) == {"": 0}
    assert re.search(
        r"warning: device_map is 100\.0% slower than the placement: (\S+ s) instead of (\S+ s);"
        r" grouper=module places whole modules, and placekit_cuda\.PlacedStep runs this placement as it is\n",
        done.err,
    )


def test_a_share_that_prints_as_nothing_is_no_warning(recwarn: pytest.WarningsRecorder) -> None:
    placement = Placement(np.zeros(1, np.int16), None, "", "")
    warn_of("vllm", RuntimeMap("", placement, (Conflict("h.0", "gpu:1", 0.5),), elsewhere=1e-4))
    warn_of("vllm", RuntimeMap("", placement, (Conflict("h.0", "gpu:1", 1e-4),), elsewhere=1e-3))
    assert not recwarn
    warn_of("vllm", RuntimeMap("", placement, (Conflict("h.0", "gpu:1", 0.5),), elsewhere=1e-3))
    assert len(recwarn) == 1


@pytest.mark.parametrize("conflict", [Conflict("wte", "gpu:1", 1.0), Conflict("wte", "gpu:1", 0.5, bytes=2e9)])
def test_a_module_that_moves_with_hardly_any_time_is_a_warning(conflict: Conflict) -> None:
    placement = Placement(np.zeros(1, np.int16), None, "", "")
    with pytest.warns(UserWarning, match="a module.*: less than 0.1% of the step's time moves .*% of 'wte' to gpu:1"):
        warn_of("vllm", RuntimeMap("", placement, (conflict,), elsewhere=1e-6))


def test_what_does_not_fit_is_an_error_with_bytes(placekit: Run, run: Path) -> None:
    """Half of each layer on each GPU fits; whole layers do not."""
    (run.parent / "small.yaml").write_text(MACHINE.replace("MEMORY", "7500000"))
    options = ["importer=file", "importer.path=decoder.graph.npz", "cluster=small.yaml", "policy=round_robin"]
    assert placekit("run", *options, "run_dir=small").code == 0
    move(run.parent / "small", r".", "gpu:1")
    move(run.parent / "small", r".*attn|wte", "gpu:0")
    done = placekit("apply", "small", "--format", "megatron")
    assert (done.code, done.out) == (1, "")
    assert re.search(
        r"as megatron this placement does not fit: gpu:\d needs 1\d,\d+,\d+ bytes and has 7,500,000\n  \S",
        done.err,
    )


@pytest.mark.slow
def test_the_way_out_of_a_format_is_another_one_that_works(
    placekit: Run, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lacking = ["gpu:0 needs 2 bytes and has 1"]
    monkeypatch.setattr(apply, "lacking_memory", lambda *_: lacking.pop() if lacking else "")
    done = placekit("apply", "run", "--format", "llamacpp")
    works = ", ".join(r for r in runtimes() if r not in ("llamacpp", "vllm"))
    assert f"gpu:0 needs 2 bytes and has 1\n  `--format {works} or vllm` can express it; `--format json`" in done.err

    monkeypatch.setattr(apply, "lacking_memory", lambda *_: "gpu:0 needs 2 bytes and has 1")
    assert "policy=chain" in placekit("apply", "run", "--format", "llamacpp").err
    path = run / "result.json"
    path.write_text(path.read_text().replace('"single_gpu"', '"chain"'))
    assert "policy=chain" not in placekit("apply", "run", "--format", "llamacpp").err


def test_a_run_that_measured_is_simulated_by_its_proxy(placekit: Run, run: Path) -> None:
    class Measuring(FakeBackend):
        simulated = False

    placekit_core.place(
        "file",
        path="decoder.graph.npz",
        cluster="two.yaml",
        policy="single_gpu",
        backend=Measuring(),
        budget=10,
        run_dir="own",
    )
    done = placekit("apply", "own", "--format", "exo")
    assert done.code == 0
    assert "simulated by 'simulator': backend 'fake' was an object of a Python program\nmakespan: " in done.err
    value = json.loads((run / "result.json").read_text())["value_s"]
    assert f"makespan: {seconds(value)} as exo, {seconds(value)} as placed, proven bound " in done.err


def test_a_run_that_cannot_be_simulated(placekit: Run, run: Path) -> None:
    path = run / "result.json"
    data = json.loads(path.read_text())
    data["config"]["backend"] = data["config"]["proxy"] = {"name": "gone"}
    path.write_text(json.dumps(data))
    done = placekit("apply", "run", "--format", "megatron")
    assert (done.code, done.out) == (0, "Et*6L\n")
    assert "warning: the map is not simulated: no backend named 'gone'; no backend named 'gone'" in done.err


def test_a_map_without_a_value(placekit: Run, run: Path) -> None:
    """A zigzag cannot be pipelined, and a device map holds it."""
    pytest.importorskip("placekit_pipeline")
    move(run, r"h\.3", "gpu:1")
    path = run / "result.json"
    data = json.loads(path.read_text())
    data["config"]["backend"] = {"name": "pipeline"}
    path.write_text(json.dumps(data))
    done = placekit("apply", "run")
    assert done.code == 1
    assert "as device_map this placement does not run: stages wait for each other" in done.err
    done = placekit("apply", "run", "--format", "pipeline")
    assert "the placement is not a chain of modules" in done.err
    assert "device_map` " not in done.err, "which does not run either"


def test_msr_is_read_again_with_the_devices(placekit: Run, run: Path) -> None:
    pytest.importorskip("placekit_formats")
    from placekit_formats.msr import placed_devices

    move(run, r"h\.[3-5]|lm_head", "gpu:1")
    done = placekit("apply", "run", "--format", "msr", "--out", "placed.msr.json")
    assert (done.code, done.out) == (0, "")
    assert "as msr" in done.err
    assignment = json.loads((run / "placement.json").read_text())["assignment"]
    assert placed_devices("placed.msr.json") == [assignment[o.name] for o in decoder().operations]
    assert placekit("run", "placed.msr.json", "policy=single_gpu", "run_dir=again").code == 0
    again = placekit("apply", "again", "--format", "msr")
    nodes = json.loads(again.out)["nodes"]
    assert {node["device"] for node in nodes} == {"accelerator:0"}


def check_every_format(placekit: Run, options: list[str]) -> None:
    """A decoder split over two GPUs: each form costs what the placement costs, under the run's own backend."""
    assert placekit("run", *options, "+policy=chain", "+backend=pipeline", "run_dir=chain").code == 0
    result = json.loads(Path("chain/result.json").read_text())
    value, bound = seconds(result["value_s"]), seconds(result["bound_s"])
    assert len(set(json.loads(Path("chain/placement.json").read_text())["assignment"].values())) == 2
    for name in runtimes():
        done = placekit("apply", "chain", "--format", name)
        assert done.code == 0, done.err
        said = " ".join(done.err.split())
        assert f"{result['objective']}: {value} as {name}, {value} as placed, proven bound {bound} peak" in said
        assert re.search(r"peak memory: \S+:0 [\d.]+ \wiB of [\d.]+ \wiB, \S+:[01] [\d.]+ \wiB of [\d.]+ \wiB", said)
        assert "slower" not in said


def test_every_format_of_a_chain_is_the_placement(placekit: Run, run: Path) -> None:
    pytest.importorskip("placekit_pipeline")
    check_every_format(placekit, ["importer=file", "importer.path=decoder.graph.npz", "cluster=two.yaml"])


def test_a_runtime_of_another_package(
    placekit: Run, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The example of the README, installed: `apply` finds it by its entry point."""
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    [code] = re.findall(r"```python\n# zzrt\.py\n(.*?)```", readme, re.DOTALL)
    [entry] = re.findall(r"```toml\n# in its pyproject\.toml\n.*?\n(zzrt = .*?)```", readme, re.DOTALL)
    site = tmp_path / "site"
    info = site / "placekit_zzrt-1.0.dist-info"
    info.mkdir(parents=True)
    says = "class Says(Zzrt):\n    def write(self, problem, placement):\n        return 'text'\n\n\nSAYS = Says()\n"
    (site / "zzrt.py").write_text(f"{code}\n\n{says}")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: placekit-zzrt\nVersion: 1.0\n")
    more = "broken = zzrt:NOTHING\nclass = zzrt:Zzrt\nsays = zzrt:SAYS\n"
    (info / "entry_points.txt").write_text("[placekit.runtimes]\n" + entry.replace('"', "") + more)
    monkeypatch.syspath_prepend(site)
    move(run, r"(wte|h\.[012])", "gpu:0")
    move(run, r"(h\.[345]|lm_head)", "gpu:1")
    assert placekit("apply", "run", "--format", "zzrt").out == "0-2:gpu0,3-5:gpu1\n"
    assert "runtime 'broken' of placekit-zzrt is broken" in placekit("apply", "run", "--format", "broken").err
    wrong = (
        "runtime 'class' of placekit-zzrt is broken: zzrt:Zzrt is the class Zzrt\n  its entry point names an instance"
    )
    assert wrong in placekit("apply", "run", "--format", "class").err
    wrong = "placekit: runtime 'says' is broken: Says.write returned a str, not a RuntimeMap"
    assert wrong in placekit("apply", "run", "--format", "says").err
    assert "zzrt" in placekit("apply", "--help").out
    move(run, r"h\.1", "gpu:1")
    done = placekit("apply", "run", "--format", "vllm")
    assert re.search(r"consecutive layers on each device.*\n  `--format device_map", done.err), (
        "broken ones are not in the way"
    )
