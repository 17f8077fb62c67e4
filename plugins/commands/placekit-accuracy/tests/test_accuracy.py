"""`placekit accuracy`: programs, machines and placements of published rows, their errors, and the bands of results."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from placekit_accuracy import command
from placekit_accuracy.bands import band, bands, kind_of
from placekit_accuracy.errors import Errors, bands_of, by_kind
from placekit_accuracy.predict import Prediction, machine, missing, placement, predict, program
from placekit_accuracy.rows import Row, left_out, measurements, shapes

from placekit_core import ConfigError, ErrorBand, Problem, installed

WEIGHTS = {
    "Llama-3-70B": 70.6e9, "Llama-3-8B": 8.03e9, "DeepSeek-V3": 671e9, "Qwen3-235B-A22B": 235e9, "gpt-oss-120b": 116.8e9,
    "GLM-Z1-32B": 32.6e9, "Mistral-7B": 7.24e9, "Qwen3-Next-80B-A3B": 79.7e9, "MiniMax-M2.7": 228.7e9, "Ministral-3-14B": 13.5e9,
}  # fmt: skip
"""Published numbers of weights."""


def found(**wanted: object) -> list[Row]:
    return [r for r in measurements() if all(getattr(r, k) == v for k, v in wanted.items())]


@pytest.mark.parametrize("model", WEIGHTS)
def test_shapes_have_the_published_number_of_weights(model: str) -> None:
    assert shapes()[model].weights == pytest.approx(WEIGHTS[model], rel=0.01)


def test_a_token_reads_every_weight_but_the_embedding_once() -> None:
    dense = found(model="Llama-3-70B", quantisation="F16", prompt=False)[0]
    graph = program(dense.model, dense.use)
    shape = shapes()[dense.model]
    products = graph.op_class.is_value("inference_matmul")
    read = dense.bytes * (1 - shape.vocab * shape.hidden / shape.weights)
    assert graph.bytes_accessed[products].sum() == pytest.approx(read, rel=0.01)
    assert graph.persistent_bytes.sum() == pytest.approx(dense.bytes, rel=0.01)
    assert np.asarray(graph.columns["launches"]).sum() == 24 * 80 + 3


def test_layers_are_split_as_llama_cpp_does() -> None:
    [own] = [r for r in found(devices=("rtx5090", "rtx3080")) if r.split == "-ts 26,6"]
    graph, cluster = program(own.model, own.use), machine(own)
    device = placement(own, graph, cluster)
    of_layer = {int(n.split(".")[1]): d for n, d in zip(graph.op_name, device, strict=True) if n.startswith("blk.")}
    assert [of_layer[i] for i in range(64)] == [0] * 53 + [1] * 11
    assert cluster.device_names == ("rtx5090:0", "rtx3080:0")
    assert own.unlike


def test_overrides_put_experts_on_the_cpu_and_prompts_copy_them() -> None:
    token, prompt = (
        next(r for r in found(split="exps=CPU", prompt=p) if r.devices == ("rtx4090",)) for p in (False, True)
    )
    for own, on_cpu in ((token, True), (prompt, False)):
        graph, cluster = program(own.model, own.use), machine(own)
        on = dict(zip(graph.op_name, placement(own, graph, cluster), strict=True))
        cpu = cluster.device_index("cpu:0")
        assert on["blk.5.ffn_up_exps.weight"] == cpu
        assert on["blk.5.attn_output.weight"] != cpu
        kernel = next(n for n in on if n.partition("@")[0] == "blk.5.ffn_up_exps")
        assert (on[kernel] == cpu) == on_cpu


def test_rows_that_set_figures_are_of_one_model_and_one_source() -> None:
    fit = [r for r in measurements() if r.fits_rates and not r.on_cpu]
    assert {r.model for r in fit} == {"Llama-3-8B"}
    assert all("XiongjieDai" in r.source for r in fit)
    assert {r.kind for r in fit} == {"decode, one GPU", "prompt, one GPU", "prompt, several GPUs"}
    assert len(measurements()) + sum(left_out().values()) == 1194


def test_rows_that_measured_the_same_are_one() -> None:
    rows = found(devices=("rtx3090",) * 16, tokens=512, prompt=False)
    assert len(rows) == 2
    [one] = predict(rows, installed())
    assert one.row.tokens_per_s == float(np.median([r.tokens_per_s for r in rows]))


def test_prompts_gain_from_several_gpus_until_the_queue_is_full() -> None:
    """Llama-3-8B gains 2.5 times on four GPUs, Llama-3-70B 1.1 to 1.3 times: more layers fill the queue of launches."""
    gain = {}
    for model in ("Llama-3-8B", "Llama-3-70B"):
        wanted = {"model": model, "quantisation": "Q4_K_M", "prompt": True, "tokens": 4096}
        one, four = (found(devices=("l40s",) * n, **wanted)[0] for n in (1, 4))
        slow, fast = predict([one, four], installed())
        gain[model] = fast.tokens_per_s / slow.tokens_per_s
    assert 2.0 < gain["Llama-3-8B"] < 2.7
    assert 1.0 < gain["Llama-3-70B"] < 1.4


def test_the_common_kinds_come_first() -> None:
    kinds = [e.kind for _, e in by_kind([Prediction(row, 1.0) for row in measurements() if not row.fits_rates])]
    assert kinds[:2] == ["decode, one GPU", "decode, several GPUs"]
    assert [*bands()] == [kind for kind in kinds if kind in bands()]


def test_errors() -> None:
    errors = Errors("x", np.array([-0.5, 0.1, 0.1, 0.2]))
    assert (errors.n, errors.worst) == (4, 0.5)
    assert errors.median == pytest.approx(0.15)
    assert errors.bias == pytest.approx(0.1)
    assert errors.p90 == pytest.approx(0.41)


def test_the_command_prints_kinds_and_the_worst_rows(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    picture = tmp_path / "a.svg"
    assert (
        command.main(["Llama-2-7B", "decode", "--worst", "2", "--by", "device", "--svg", str(picture)], installed())
        == 0
    )
    out = capsys.readouterr().out
    assert "rows that were held out" in out
    assert "decode, one GPU" in out
    assert "prompt" not in out
    assert "tokens/s measured" in out
    assert "mlc-ai/llm-perf-bench" in " ".join(out.split())
    circles = ElementTree.parse(picture).iterfind(".//{http://www.w3.org/2000/svg}circle")
    shown = [r for r in measurements() if "Llama-2-7B" in r.what and not r.prompt and not missing(r)]
    assert len([c for c in circles if c.get("r") == "2.5"]) == len(
        {(r.use, r.devices, r.runtime, r.split) for r in shown}
    )
    with pytest.raises(ConfigError, match="no published row"):
        command.main(["no such card"], installed())
    with pytest.raises(ConfigError, match="--worst -1 is not a number of rows"):
        command.main(["Llama-2-7B", "--worst", "-1"], installed())


def test_a_result_has_the_band_of_rows_like_it() -> None:
    own = found(devices=("rtx3090",) * 2, model="Llama-3-70B", prompt=False)[0]
    problem = Problem.of(program(own.model, own.use), machine(own))
    assert band(problem, [0, 1]).kind == "decode, several GPUs"
    assert band(problem, [0, 1]).rows == bands()["decode, several GPUs"][0]
    one = band(problem, [0])
    assert one.kind == "decode, one GPU"
    assert 0 < one.error < 1
    assert re.fullmatch(
        r"nine of ten predictions like this are within \d+% of published measurements \(decode, one GPU; \d+ rows\)",
        str(one),
    )
    assert kind_of(problem.graph, [("rtx3090", "gpu"), ("cpu", "cpu")]) == "decode, GPU with CPU"
    mixture = found(model="Qwen3-30B-A3B", prompt=False)[0]
    graph = program(mixture.model, mixture.use)
    assert kind_of(graph, [("rtx3090", "gpu"), ("cpu", "cpu")]) == "decode, experts on the CPU"
    assert str(ErrorBand(kind="another program, one GPU", rows=0)).startswith(
        "no published measurement is like this run"
    )


@pytest.mark.slow
@pytest.mark.long
def test_the_bands_are_those_of_the_predictions() -> None:
    """`placekit accuracy --write-bands` makes them again."""
    assert bands() == {kind: (n, error) for kind, (n, error) in bands_of(predict(measurements(), installed())).items()}
