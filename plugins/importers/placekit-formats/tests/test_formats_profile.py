"""Importer `profile`: what layers become, three formats, and errors that say what the profile has."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from placekit_formats.profile import ProfileImporter

from placekit_core import Cluster, ImporterError, PlacekitError, Problem, Program

SAMPLE = Path(__file__).with_name("samples") / "profile.csv"
SAILOR = Path(
    os.environ.get("PLACEKIT_SAMPLES", ""), "published/sailor/profiles_and_configs/Planner/sailor_planner/profiles"
)
needs_samples = pytest.mark.skipif("PLACEKIT_SAMPLES" not in os.environ, reason="PLACEKIT_SAMPLES is not set")
HEAD = SAMPLE.read_text().splitlines()[0]
MACHINE = {
    "kinds": {
        kind: {"flops_per_s": {"float32": 1e13}, "memory_bytes": 24 * 10**9, "memory_bytes_per_s": 1e12}
        for kind in ("rtx4090", "rtx3090")
    },
    "devices": [{"kind": "rtx4090"}, {"kind": "rtx3090"}],
    "links": [{"mesh": "*", "bytes_per_s": 6e9}],
}


def load(path: Path, **options: Any) -> Program:
    [program] = ProfileImporter(path=str(path), **options).load()
    return program


def problem(program: Program) -> Problem:
    return Problem.of(program.graph, Cluster.parse(MACHINE), costs=program.costs)


def reads(program: Program, name: str) -> list[str]:
    """What an operation reads: `PRODUCER:BYTES` of each tensor."""
    g = program.graph
    return [f"{g.op_name[g.tensor_producer[t]]}:{g.tensor_bytes[t]}" for t in g.inputs(g.op_name.index(name))]


def write(path: Path, *rows: str) -> Path:
    path.write_text("\n".join([HEAD, *rows, ""]))
    return path


def test_layers_of_the_sample() -> None:
    program = load(SAMPLE)
    g = program.graph
    assert g.name == "profile"
    assert g.attributes == {"microbatch": 2, "degree": 1}
    assert reads(program, "h.0") == ["h.0.parameter:28000000", "embedding:6000000"]
    kept = ["h.0.parameter:28000000", "h.0:90000000"]
    assert reads(program, "h.0.backward") == [*kept, "h.1.backward:6000000"]
    held = ["h.0.parameter:28000000", "h.0.state:56000000"]
    assert reads(program, "h.0.update") == [*held, "h.0.backward:28000000"]
    assert reads(program, "embedding") == ["embedding.parameter:150000000"]
    assert reads(program, "head.backward") == ["head.parameter:150000000", "head:820000000"]
    assert {g.module[v]: set(g.colocate[g.module.is_value(g.module[v])]) for v in range(g.n)} == {
        "embedding": {0}, "h.0": {1}, "h.1": {2}, "h.2": {3}, "head": {4},
    }  # fmt: skip
    assert g.persistent_bytes.sum() == 3 * (2 * 150_000_000 + 3 * 28_000_000)
    assert [g.phase[g.op_name.index(name)] for name in ("h.0", "h.0.backward", "h.0.update")] == [0, 1, 2]


def test_seconds_are_measured_for_each_kind() -> None:
    program = load(SAMPLE, kinds={"rtx3090": "mine", "rtx4090": "rtx4090"})
    assert program.costs is not None
    assert program.costs.kinds == ("rtx4090", "mine")
    v = program.graph.op_name.index("head.backward")
    assert program.costs.op_s[v].tolist() == [0.009, 0.016]
    assert (program.costs.measured == program.graph.kernel[:, None]).all()
    with pytest.raises(PlacekitError, match="the program has no costs for device kind 'rtx3090'"):
        problem(program)


def test_layers_are_blocks() -> None:
    layers = pytest.importorskip("placekit_layers")
    blocks = layers.sequence(problem(load(SAMPLE)))
    assert blocks.names == ("embedding", "h.0", "h.1", "h.2", "head")
    assert blocks.layer.tolist() == [False, True, True, True, False]
    assert blocks.parameter_bytes.tolist() == [150e6, 28e6, 28e6, 28e6, 150e6]


def test_a_pipeline_by_hand() -> None:
    """Embedding and two layers on the first device, one layer and the head on the second, two micro-batches."""
    pipeline = pytest.importorskip("placekit_pipeline.pipeline")
    of = problem(load(SAMPLE))
    session = pipeline.Pipeline(microbatches=2).open(of)
    measured = session.evaluate(of.placement([0, 0, 0, 1, 1]).batch())
    forward, backward, send = (0.0083, 0.016), (0.0167, 0.0305), 0.001
    # forward and backward of both micro-batches on the second, slower device, after the first of the other and before its last
    assert measured.value_s.tolist() == pytest.approx(
        [forward[0] + send + 2 * (forward[1] + backward[1]) + send + backward[0] + 0.007]
    )
    static = (4 * 206e6, 4 * 178e6)  # parameters, gradients, and two moments
    saved = (2 * 180_016_000, 910e6)  # the first device keeps two micro-batches
    work = (12e6, 12e6)  # besides that, a layer's backward pass reads the gradient of its output and makes another one
    assert measured.peak_bytes[0].tolist() == [s + k + w for s, k, w in zip(static, saved, work, strict=True)]


def test_bytes_are_the_most_of_any_kind_and_numbers_are_elements_of_a_list(tmp_path: Path) -> None:
    path = write(tmp_path / "x.csv", "0,a,4,1,2,3,10,10,20,5,7", "1,a,4,1,2,3,0,0,0,4,0", "1,b,4,1,2,3,0,0,0,4,9",
                 "0,b,4,1,2,3,10,10,20,6,6")  # fmt: skip
    program = load(path)
    assert [n for n in program.graph.op_name if "." not in n.removeprefix("layers.")] == ["layers.0", "layers.1"]
    assert reads(program, "layers.1.backward") == ["layers.1.parameter:0", "layers.1:9"]
    assert reads(program, "layers.0.backward") == ["layers.0.parameter:10", "layers.0:7", "layers.1.backward:6"]


def test_a_folder_has_the_files_of_several_kinds(tmp_path: Path) -> None:
    for kind in ("a", "b"):
        write(
            tmp_path / f"{kind}.csv", *(f"{layer},{kind},{size},1,1,1,1,1,1,1,1" for layer in "xy" for size in (1, 2))
        )
    program = load(tmp_path, microbatch=2)
    assert program.graph.name == tmp_path.name
    assert program.costs is not None
    assert program.costs.kinds == ("a", "b")


@pytest.mark.parametrize(
    ("options", "problem", "hint"),
    [
        ({}, "it has several values of microbatch", "importer.microbatch is one of: 1 (a, b); 2 (a)"),
        ({"microbatch": 3}, "it has no microbatch 3", "importer.microbatch is one of: 1 (a, b); 2 (a)"),
        ({"microbatch": 1, "degree": 2}, "it has no degree 2", "importer.degree is one of: 1 (a, b)"),
        ({"microbatch": 1, "kinds": {"c": "d"}}, "it has no kind 'c'", "importer.kinds names some of: a, b"),
        ({"microbatch": 1}, "layer 'y' is missing for b", "importer.kinds={KIND: NAME, ...} reads only"),
        ({"microbatch": 2}, "layer 'x' is there twice for a", ""),
    ],
)
def test_errors_say_what_there_is(options: dict[str, Any], problem: str, hint: str, tmp_path: Path) -> None:
    rows = [f"{row},1,1,1,1,1,1,1,1" for row in ("x,a,1", "y,a,1", "x,b,1", "x,a,2", "x,a,2")]
    with pytest.raises(ImporterError) as e:
        load(write(tmp_path / "x.csv", *rows), **options)
    assert problem in e.value.message
    assert hint in e.value.hint


def test_errors_name_the_line(tmp_path: Path) -> None:
    good = "x,a,1,1,1,1,1,1,1,1,1"
    for row, said in (
        ("x,a,1,1,1,-1,1,1,1,1,1", "line 3: update_s: Input should be greater than or equal to 0 (got '-1')"),
        ("x,a,1,1,1,1,1,1,1,1", "line 3: saved_bytes: Input should be a valid integer (got None)"),
        ("x,a,1,1,1,1,1,1,1,1,1,1", "line 3: "),
        ("x y,a,1,1,1,1,1,1,1,1,1", "line 3: layer: String should match pattern"),
        ("x,a,1,nan,1,1,1,1,1,1,1", "line 3: forward_s: Input should be a finite number (got 'nan')"),
    ):
        with pytest.raises(ImporterError) as e:
            load(write(tmp_path / "x.csv", good, row))
        assert said in e.value.message
    for content in (HEAD, "layer,kind", ""):
        (tmp_path / "x.csv").write_text(content)
        with pytest.raises(ImporterError, match=r"x\.csv"):
            load(tmp_path / "x.csv")
    with pytest.raises(ImporterError, match="no profile is in this folder"):
        load(SAMPLE.parent.parent)


def sailor(folder: Path, layers: int = 5) -> Path:
    """A profile in Sailor's form: layer i has (i + 1) * 1000 bytes of parameters."""
    seconds = {str(i): [0.001 * i, 0.002 * i, 0.0012] for i in range(layers)}
    sizes = {
        str(i): {"params_bytes": 1000 * (i + 1), "act_output_bytes": 10, "act_mem_bytes": 100 + i, "params_floats": 7}
        for i in range(5)
    }
    (folder / "profiles/net/RTX-1").mkdir(parents=True)
    (folder / "profiles/net/RTX-1/profile.json").write_text(json.dumps({"4": {"2": seconds}, "1": {"2": seconds}}))
    (folder / "llm_info.json").write_text(json.dumps({"net": {"2": sizes}}))
    return folder / "profiles/net"


def test_a_profile_of_sailor(tmp_path: Path) -> None:
    program = load(sailor(tmp_path), microbatch=4, degree=2, kinds={"RTX-1": "rtx1"})
    g, costs = program.graph, program.costs
    assert costs is not None
    assert (g.name, costs.kinds) == ("net", ("rtx1",))
    assert reads(program, "layers.3.backward") == ["layers.3.parameter:4000", "layers.3:412", "layers.4.backward:20"]
    assert costs.op_s[g.op_name.index("layers.3.backward")].tolist() == [0.006]
    updates = [costs.op_s[g.op_name.index(f"layers.{i}.update"), 0] for i in range(5)]
    # Sailor measured the update of layers 0, 1, 2 and the last one together
    assert updates == pytest.approx([0.0012 * size / (1 + 2 + 3 + 5) for size in (1, 2, 3, 4, 5)])


def test_a_profile_of_sailor_with_the_layers_of_another_model(tmp_path: Path) -> None:
    folder = sailor(tmp_path, layers=4)
    with pytest.raises(ImporterError, match=r"RTX-1.profile.json: it has 4 layers, but llm_info.json has 5"):
        load(folder, microbatch=4, degree=2)
    (tmp_path / "llm_info.json").write_text("{}")
    with pytest.raises(ImporterError, match=r"llm_info.json: it has nothing for 'net' and degree 2"):
        load(folder / "RTX-1/profile.json", microbatch=4, degree=2)
    (tmp_path / "llm_info.json").unlink()
    with pytest.raises(ImporterError, match=r"RTX-1.profile.json: there is no llm_info.json"):
        load(folder, microbatch=4, degree=2)


@needs_samples
def test_published_profiles_of_sailor() -> None:
    program = load(SAILOR / "OPT-350", microbatch=2, degree=8)
    assert program.costs is not None
    assert program.costs.kinds == ("RTX-2080", "RTX-3090", "Titan-RTX", "V100-16")
    assert program.graph.op_name.count("layers.25") == 1
    output = program.graph.outputs(program.graph.op_name.index("layers.3"))[0]
    assert (
        program.graph.tensor_bytes[output] == 2 * 2048 * 1024 * 4 / 8
    )  # micro-batch, sequence, hidden size, float32; of one of eight
    with pytest.raises(ImporterError, match=r"GH-96.profile.json: it has 26 layers, but llm_info.json has 34"):
        load(SAILOR / "GPT-Neo-2.7", microbatch=1)
    of_two = load(SAILOR / "GPT-Neo-2.7", microbatch=1, kinds={"V100-16": "v100", "A100-40": "a100"})
    assert of_two.graph.name == "GPT-Neo-2.7"


def metis(folder: Path, memory_mb: list[float]) -> Path:
    data = {
        "model": {"model_name": "net", "parameters": {"parameters_per_layer_bytes": [1000, 2000, 1000]}},
        "execution_time": {"forward_backward_time_ms": 10, "layer_compute_total_ms": [1, 6, 1], "optimizer_time_ms": 8},
        "execution_memory": {"layer_memory_total_mb": memory_mb},
    }
    (folder / "DeviceType.A100_tp2_bs4.json").write_text(json.dumps(data))
    return folder


def test_a_profile_of_metis(tmp_path: Path) -> None:
    program = load(metis(tmp_path, [0.001, 1, 0]), degree=2, output_bytes=50)
    g, costs = program.graph, program.costs
    assert costs is not None
    assert costs.kinds == ("A100",)
    names = ("layers.1", "layers.1.backward", "layers.1.update", "layers.2", "layers.2.backward")
    seconds = [costs.op_s[g.op_name.index(name), 0] for name in names]
    assert seconds == pytest.approx([0.002, 0.004, 0.004, 0.001, 0.002])  # the last layer has the loss, 2 ms
    kept = 2**20 - 4 * 1000  # of one device; two share the parameters
    assert reads(program, "layers.1.backward") == [
        "layers.1.parameter:1000",
        f"layers.1:{kept}",
        "layers.2.backward:100",
    ]


def test_what_a_file_of_metis_lacks(tmp_path: Path) -> None:
    with pytest.raises(ImporterError, match="lack the bytes that a layer sends"):
        load(metis(tmp_path, [1, 1, 1]), degree=2)
    with pytest.raises(ImporterError, match="3 values for parameters, 3 for times, 2 for memory"):
        load(metis(tmp_path, [1, 1]), degree=2, output_bytes=50)
    (tmp_path / "DeviceType.A100_tp2_bs4.json").write_text('{"model": []}')
    with pytest.raises(ImporterError, match="it does not have the form of the format: KeyError 'execution_time'"):
        load(tmp_path, degree=2, output_bytes=50)
