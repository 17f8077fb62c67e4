"""`placekit apply`: the placement of a run in other forms, and what is said where there is none."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import placekit_runtimes
import pytest
from numpy.random import Generator

import placekit_core
from placekit_core import GraphBuilder, Placement, Task, load_assignment, save_graph
from placekit_core.contracts.units import seconds

Run = Callable[..., Any]

MODULES = ("embed", "middle", "head")
FOUR = ("cluster=p100x4", "policy=single_gpu")
TWO_CPUS = """\
kinds: {cpu: {type: cpu, flops_per_s: {float32: 1e9}, memory_bytes: 1000000000, memory_bytes_per_s: 1e9}}
devices: [{kind: cpu, count: 2}]
links: [{mesh: "cpu:*", bytes_per_s: 1e9, latency_s: 1e-6}]
"""


def chain(work: float = 1e12) -> GraphBuilder:
    """Three modules, one after the other, with a parameter each; on four GPUs each could be anywhere."""
    b = GraphBuilder("chain")
    x = b.source("input.0", 4, op_type="input")
    for i, module in enumerate(MODULES):
        w = b.source(f"{module}.weight", 4, module=module, colocate=i)
        [x] = b.add(f"{module}/mm", inputs=[x, w], outputs=[4], flops=work, module=module, colocate=i)
    return b


@pytest.fixture
def run(placekit: Run, tmp_path: Path) -> Path:
    """A run of a graph file with modules, all on one device."""
    save_graph(chain().build(), tmp_path / "chain.graph.npz")
    options = ["importer=file", "importer.path=chain.graph.npz", *FOUR, "log=csv"]
    assert placekit("run", *options, "run_dir=run").code == 0
    return tmp_path / "run"


def move(run: Path, module: str, device: str) -> None:
    """Put the operations of a module elsewhere."""
    path = run / "placement.json"
    data = json.loads(path.read_text())
    data["assignment"] |= {o: device for o in data["assignment"] if o.startswith(module)}
    path.write_text(json.dumps(data))


def test_device_map(placekit: Run, run: Path) -> None:
    done = placekit("apply", "run")
    assert (done.code, json.loads(done.out)) == (0, {"": 0})
    assert "warning" not in done.err
    move(run, "middle", "p100:2")
    assert json.loads(placekit("apply", "run").out) == {"embed": 0, "middle": 2, "head": 0}


def test_a_map_that_one_device_beats_is_a_warning(placekit: Run, run: Path) -> None:
    path = run / "result.json"
    data = json.loads(path.read_text())
    for baseline in data["programs"][0]["baselines"]:
        baseline["value_s"] *= 0.9  # a simulator and accelerate's host thread need not agree
    path.write_text(json.dumps(data))
    done = placekit("apply", "run")
    assert (done.code, json.loads(done.out)) == (0, {"": 0})
    assert "alone" not in done.err, "the map is that device"
    move(run, "middle", "p100:2")
    done = placekit("apply", "run")
    assert re.search(
        r"warning: p100:0 alone takes \S+ m?s, less than the \S+ m?s of this map, run by accelerate\n", done.err
    )


def test_one_map_has_two_numbers_with_two_names(placekit: Run, run: Path) -> None:
    """The run has shown the map that accelerate would choose as a baseline, in the machine model."""
    summary = json.loads((run / "result.json").read_text())
    [own] = [b for b in summary["programs"][0]["baselines"] if b["policy"] == "accelerate_auto"]
    said = " ".join(placekit("apply", "run").err.split())
    model = rf"{seconds(own['value_s'])} in the machine model \(baseline accelerate_auto\)"
    assert re.search(rf"accelerate's own map: \S+ m?s run by accelerate, {model}$", said)


def test_a_format_of_layers_for_a_network_without_them(placekit: Run, run: Path) -> None:
    done = placekit("apply", "run", "--format", "vllm")
    assert "has no numbered list of modules\n  `--format device_map" in done.err
    assert done.err.endswith("can express it; decoders have such a list: `h.0`, `h.1`\n")


def test_pipeline(placekit: Run, run: Path) -> None:
    move(run, "head", "p100:1")
    done = placekit("apply", "run", "--format", "pipeline")
    assert json.loads(done.out) == {
        "stages": [{"device": "p100:0", "begins": "embed"}, {"device": "p100:1", "begins": "head"}],
        "split_spec": {"head": "SplitPoint.BEGINNING"},
    }
    move(run, "middle", "p100:1")
    move(run, "head", "p100:0")
    done = placekit("apply", "run", "--format=pipeline")
    assert (done.code, done.out) == (1, "")
    assert (
        "not a chain of modules: module 'embed' is on p100:0, 'middle' on p100:1, and 'head' on p100:0 again"
        in done.err
    )
    assert "--format device_map" in done.err


def test_json_is_a_placement_file_with_the_value(placekit: Run, run: Path) -> None:
    done = placekit("apply", "run", "--format", "json", "--out", "own.json")
    assert (done.code, done.out) == (0, "")
    data, own = (json.loads((run.parent / p).read_text()) for p in ("run/placement.json", "own.json"))
    summary = json.loads((run / "result.json").read_text())
    assert own == {**data, "objective": "makespan", "simulated": True, "value_s": summary["value_s"]}
    assert load_assignment("own.json", chain().build()).device.tolist() == [0] * 7


def test_conflicts_are_warnings(placekit: Run, tmp_path: Path) -> None:
    b = GraphBuilder("spread")
    for i in range(5):
        for j, flops in enumerate((3e12, 1e12)):
            b.add(f"m{i}/{j}", outputs=[4], flops=flops, module=f"m{i}")
    save_graph(b.build(), tmp_path / "spread.graph.npz")
    placekit("run", "importer=file", "importer.path=spread.graph.npz", *FOUR, "run_dir=run")
    path = tmp_path / "run" / "placement.json"
    data = json.loads(path.read_text())
    data["assignment"] |= {o: "p100:3" for o in data["assignment"] if o.endswith("/1")}
    path.write_text(json.dumps(data))
    done = placekit("apply", "run")
    assert json.loads(done.out) == {"": 0}
    assert done.err.startswith(
        "placekit: warning: the placement splits 5 modules, which a device_map cannot: 25.0% of the step's time moves to other"
        " devices (25.0% of 'm0' to GPU 0, 25.0% of 'm1' to GPU 0, 25.0% of 'm2' to GPU 0, and 2 more)\n"
    )


def test_several_cpus_are_one(placekit: Run, run: Path) -> None:
    (run.parent / "two.yaml").write_text(TWO_CPUS)
    options = ["importer=file", "importer.path=chain.graph.npz", "cluster=two.yaml", "policy=round_robin"]
    assert placekit("run", *options, "run_dir=two").code == 0
    done = placekit("apply", "two")
    assert json.loads(done.out) == {"": "cpu"}
    assert "a device_map has only one 'cpu', which stands for cpu:0, cpu:1" in done.err


def test_out_is_written_whole(placekit: Run, run: Path) -> None:
    (run.parent / "map.json").write_text("old")
    assert placekit("apply", "run", "--out=map.json").out == ""
    assert json.loads((run.parent / "map.json").read_text()) == {"": 0}
    done = placekit("apply", "run", "--out", "no/such/folder.json")
    assert done.code == 1
    assert "cannot write no/such/folder.json: No such file or directory" in done.err


def test_a_family_has_a_directory_per_program(placekit: Run) -> None:
    programs = [chain(work).build() for work in (1e12, 2e12)]
    placekit_core.place(programs, policy="single_gpu", budget=10, run_dir="family")
    done = placekit("apply", "family", "--format", "json")
    assert "family holds 2 programs\n  give the directory of one, e.g. family/programs/000-chain" in done.err
    done = placekit("apply", "family/programs/001-chain", "--format", "json")
    assert json.loads(done.out)["fingerprints"]["graph"] == programs[1].fingerprint
    done = placekit("apply", "family/programs", "--format", "json")
    assert "family/programs holds no program" in done.err


def test_mistakes_in_the_arguments(placekit: Run, run: Path) -> None:
    mistakes: list[tuple[list[str], str]] = [
        (["nosuch"], "nosuch is not the directory of a run: it has no result.json\n  give the run_dir of a run"),
        (["."], ". is not the directory of a run: it has no result.json\n  give one of the 1 below it, e.g. run"),
        (["run/nosuch"], "run/nosuch holds no program"),
        (["run/placement.json"], "run/placement.json is a file\n  give the directory of the run: run"),
        ([], "usage: placekit apply"),
        (["run", "--format", "jsn"], "no format named 'jsn'\n  did you mean 'json'?"),
    ]
    for arguments, message in mistakes:
        done = placekit("apply", *arguments)
        assert (done.code, done.out) == (1, "")
        assert message in done.err


def test_a_run_that_found_nothing(placekit: Run, run: Path) -> None:
    b = GraphBuilder("large")
    for i in range(3):
        b.source(f"w{i}", 13 * 2**30, colocate=0)
    save_graph(b.build(), run.parent / "large.graph.npz")
    options = ["importer=file", "importer.path=large.graph.npz", "policy=single_gpu"]
    assert placekit("run", *options, "run_dir=large").code == 1
    done = placekit("apply", "large")
    assert done.code == 1
    assert "found no placement of 'large' that fits" in done.err


def test_a_program_that_has_changed(placekit: Run, run: Path) -> None:
    save_graph(chain(2e12).build(), run.parent / "chain.graph.npz")
    done = placekit("apply", "run")
    assert done.code == 1
    assert "the program of run has changed since it was placed" in done.err
    assert placekit("apply", "run", "--format", "json").code == 0


def test_a_run_from_python_with_objects(placekit: Run, run: Path) -> None:
    def own(task: Task, rng: Generator) -> Placement:
        return task.problem.placement([1] * task.problem.g)

    placekit_core.place(chain().build(), policy=own, budget=10, run_dir="mine")
    done = placekit("apply", "mine")
    assert done.code == 1
    assert "placed from Python, and only that script has its programs" in done.err
    assert placekit("apply", "mine", "--format", "json").code == 0
    placekit_core.place("file", path="chain.graph.npz", policy=own, budget=10, run_dir="mine_three")
    assert json.loads(placekit("apply", "mine_three").out) == {"": 1}, "its policy is not needed"


def test_what_to_do_next() -> None:
    """A run of one PyTorch module on several devices says that it can be applied."""

    def steps(device: list[int], **attributes: str) -> list[str]:
        builder = chain()
        builder.add("embed/relu", outputs=[4], flops=1.0, module="embed")
        builder.attributes = attributes
        result = placekit_core.place(
            builder.build(), cluster="p100x4", policy=lambda task, rng: task.problem.placement(device), budget=1
        )
        config = {**result.summary.config, "python_objects": []}
        return placekit_runtimes.placekit_next_steps(
            Path("out"), replace(result, summary=result.summary.model_copy(update={"config": config}))
        )

    assert steps([0, 0, 1, 2, 0], torch="2.13") == ["placekit apply out # the placement as a device_map"]
    assert steps([0, 0, 1, 2, 1], torch="2.13") == ["placekit apply out # whole modules, in a device_map"]
    assert steps([0, 0, 0, 0, 0], torch="2.13") == []
    assert steps([0, 0, 1, 2, 0]) == []
