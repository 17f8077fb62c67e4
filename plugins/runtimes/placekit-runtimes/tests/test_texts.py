"""Placements as the texts of runtimes: each text is read back by the runtime's rule, and means the same placement."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from placekit_layers import sequence
from placekit_runtimes import runtime, runtimes
from placekit_runtimes.exports import exports
from placekit_runtimes.interface import RuntimeMap
from placekit_runtimes.layers import device_numbers
from placekit_runtimes.vllm import VllmEven
from placekit_testing import fakes

from placekit_core import (
    Cluster,
    ConfigError,
    Export,
    Graph,
    GraphBuilder,
    NotApplicable,
    Placement,
    PlacementError,
    Problem,
)

LAYERS = 7
BEFORE, AFTER = 2, 2  # blocks before and after the layers


def decoder(layers: int = LAYERS, inside: str = "", tied: bool = False, train: bool = False) -> Graph:
    """Embedding, a sum that belongs to the root, layers of two products, norm, head; `inside` another module."""
    b = GraphBuilder("decoder")
    tokens = b.source("tokens", 4, op_type="input")
    weights: dict[str, int] = {}

    def product(path: str, read: int, weight: str = "") -> int:
        module = f"{inside}{path}"
        own = weight or f"{module}.weight"
        if own not in weights:
            weights[own] = b.source(own, 400, module=module, colocate=len(weights))
        return b.add(f"{module}/mm", inputs=[read, weights[own]], outputs=[40], flops=1e9, module=module)[0]

    x = product("wte", tokens)
    [x] = b.add("add", inputs=[x], outputs=[40], flops=1e3)
    for i in range(layers):
        x = product(f"h.{i}.mlp", product(f"h.{i}.attn", x))
    x = product("lm_head", product("ln_f", x), f"{inside}wte.weight" if tied else "")
    if train:
        b.add("lm_head/mm:backward", inputs=[x], outputs=[40], flops=2e9, module="lm_head", phase="backward")
    return b.build()


def machine(gpus: int = 4, cpus: int = 0) -> Cluster:
    kinds: dict[str, Any] = {
        "gpu": {"flops_per_s": {"float32": 1e13}, "memory_bytes": 10**9, "memory_bytes_per_s": 1e12}
    }
    kinds["cpu"] = {"type": "cpu", "flops_per_s": {"float32": 1e12}, "memory_bytes": 10**10, "memory_bytes_per_s": 1e11}
    devices = [{"kind": kind, "count": n} for kind, n in (("cpu", cpus), ("gpu", gpus)) if n]
    links = [{"mesh": "*", "bytes_per_s": 1e10}]
    return Cluster.parse({"name": "machine", "kinds": kinds, "devices": devices, "links": links})


GRAPH = decoder()


def placed(
    layers: Sequence[int],
    before: int | None = None,
    after: int | None = None,
    graph: Graph = GRAPH,
    cluster: Cluster | None = None,
) -> tuple[Problem, Placement]:
    """Layer i on `layers[i]`; what comes before and after on the device of the next layer if not given."""
    problem = Problem.of(graph, cluster or machine())
    before, after = layers[0] if before is None else before, layers[-1] if after is None else after
    blocks = sequence(problem)
    assert blocks.names == ("wte", "add", *(f"h.{i}" for i in range(len(layers))), "ln_f", "lm_head")
    return problem, blocks.placement([before] * BEFORE + list(layers) + [after] * AFTER)


def ranks(problem: Problem, text: str, count: int) -> list[int]:
    """The devices of the ranks: those of CUDA_VISIBLE_DEVICES, or the first GPUs."""
    found = re.search(r"CUDA_VISIBLE_DEVICES=([\d,]+)", text)
    numbers = [int(n) for n in found[1].split(",")] if found else list(range(count))
    return [device_numbers(problem).index(n) for n in numbers]


def whole(problem: Problem, layers: Sequence[int], before: int, after: int) -> Placement:
    return sequence(problem).placement([before] * BEFORE + list(layers) + [after] * AFTER)


def read_vllm(problem: Problem, made: RuntimeMap) -> Placement:
    """As `get_pp_indices` and the models of vLLM: the first rank has the embedding, the last one norm and head."""
    counts = [int(n) for n in made.text.rpartition("VLLM_PP_LAYER_PARTITION=")[2].split(",")]
    devices = ranks(problem, made.text, len(counts))
    return whole(problem, np.repeat(devices, counts).tolist(), devices[0], devices[-1])


def read_megatron(problem: Problem, made: RuntimeMap) -> Placement:
    """As `parse_str_to_list`, with stage i on rank i mod p."""
    text = re.sub(r"(.)\*(\d+)", lambda m: m[1] * int(m[2]), made.text)
    assert re.fullmatch(r"E[t|]*L", text)
    stages = text.split("|")
    devices = ranks(problem, " ".join(made.notes), len({*problem.expand(made.placement.device).tolist()}))
    of_stage = [devices[i % len(devices)] for i in range(len(stages))]
    layers = [d for stage, d in zip(stages, of_stage, strict=True) for letter in stage if letter == "t"]
    return whole(problem, layers, of_stage[0], of_stage[-1])


def torchtitan_options(text: str) -> dict[str, Any]:
    """What the lines set in `config.parallelism`, without `pipeline_parallel_`."""
    parallelism = SimpleNamespace()
    exec(text, {"config": SimpleNamespace(parallelism=parallelism)})
    return {key.removeprefix("pipeline_parallel_"): value for key, value in vars(parallelism).items()}


def read_torchtitan(problem: Problem, made: RuntimeMap) -> Placement:
    """As `pipeline_module_split` with a looped schedule: names of modules in each stage."""
    config = torchtitan_options(made.text)
    stages = config["module_fqns_per_model_part"]
    devices = ranks(problem, " ".join(made.notes), len({*problem.expand(made.placement.device).tolist()}))
    assert (config["degree"], "schedule" in config) == (len(devices), len(stages) > len(devices))
    where = {module: devices[i % len(devices)] for i, stage in enumerate(stages) for module in stage}
    assert sorted(where) == sorted(n for n in sequence(problem).names if n != "add"), "every module once"
    assert where["ln_f"] == where["lm_head"]
    return whole(problem, [where[f"h.{i}"] for i in range(len(where) - 3)], where["wte"], where["lm_head"])


def read_exo(problem: Problem, made: RuntimeMap) -> Placement:
    """As exo's shards: half-open intervals of layers."""
    layers: list[int] = []
    shards = json.loads(made.text)
    for rank, each in enumerate(shards):
        shard = each["PipelineShardMetadata"]
        assert (shard["deviceRank"], shard["worldSize"], shard["startLayer"]) == (rank, len(shards), len(layers))
        assert shard["endLayer"] > shard["startLayer"], "exo's nodes have a layer at least"
        device = problem.cluster.device_index(each["node"])
        layers += [device] * (shard["endLayer"] - shard["startLayer"])
        assert shard["nLayers"] == shards[-1]["PipelineShardMetadata"]["endLayer"]
    return whole(problem, layers, layers[0], layers[-1])


def read_llamacpp(problem: Problem, made: RuntimeMap) -> Placement:
    """As `load_tensors`: the last layers, of which the output is one, on the GPU whose share of the sum they are in."""
    words = made.text.split()
    given = dict(zip(words[::2], words[1::2], strict=True))
    names = device_numbers(problem)
    if "--device" in given:
        gpus = [names.index(int(name.removeprefix("CUDA"))) for name in given["--device"].split(",")]
    else:
        gpus = [d for d, name in enumerate(names) if name != "cpu"]
    cpu = names.index("cpu") if "cpu" in names else None
    layers = len(sequence(problem)) - BEFORE - AFTER + 1
    wanted = min(int(given["--n-gpu-layers"]), layers)
    ends = np.cumsum(np.float32([float(s) for s in given.get("--tensor-split", "1").split(",")]), dtype=np.float32)
    ends /= ends[-1]
    on: list[int] = []
    for i in range(layers):
        at = i - (layers - wanted)
        share = np.float32(at) / np.float32(max(wanted, 1))
        on.append(gpus[int(np.searchsorted(ends, share, side="right"))] if at >= 0 else names.index("cpu"))
    return whole(problem, on[:-1], on[0] if cpu is None else cpu, on[-1])


Reader = Callable[[Problem, RuntimeMap], Placement]
FORMATS: dict[str, Reader] = {
    "vllm": read_vllm,
    "megatron": read_megatron,
    "torchtitan": read_torchtitan,
    "exo": read_exo,
    "llamacpp": read_llamacpp,
}


@pytest.mark.parametrize("name", FORMATS)
def test_texts_read_back_mean_the_same_placement(name: str) -> None:
    """Contiguous splits on the devices in any order."""
    write, read = runtime(name).write, FORMATS[name]
    rng = np.random.default_rng(0)
    for gpus in [1, 2, 4] * 10:
        order = rng.permutation(4)[:gpus].tolist()
        cuts = np.sort(rng.choice(np.arange(1, LAYERS), gpus - 1, replace=False)).tolist()
        layers = np.repeat(order, np.diff([0, *cuts, LAYERS])).tolist()
        problem, placement = placed(layers)
        made = write(problem, placement)
        assert read(problem, made).device.tolist() == made.placement.device.tolist() == placement.device.tolist()
        assert (made.conflicts, made.elsewhere) == ((), 0.0)


@pytest.mark.parametrize("name", ["vllm", "megatron", "torchtitan", "llamacpp"])
def test_stages_without_layers(name: str) -> None:
    """The head on a device of its own, and, but for llama.cpp, the embedding too."""
    write, read = runtime(name).write, FORMATS[name]
    for before in (2,) if name == "llamacpp" else (2, 3):
        problem, placement = placed([2] * 3 + [0] * 4, before, after=1)
        made = write(problem, placement)
        assert read(problem, made).device.tolist() == made.placement.device.tolist() == placement.device.tolist()


def test_exo_has_a_layer_on_each_node() -> None:
    problem, placement = placed([2] * 3 + [0] * 4, 3, 1)
    made = runtime("exo").write(problem, placement)
    assert read_exo(problem, made).device.tolist() == made.placement.device.tolist()
    assert [(c.module, c.device, c.elsewhere) for c in made.conflicts] == [
        ("wte", "gpu:2", 1.0), ("ln_f", "gpu:0", 1.0), ("lm_head", "gpu:0", 1.0), ("add", "gpu:2", 1.0),
    ]  # fmt: skip
    assert made.elsewhere == pytest.approx(3 / 17, rel=1e-3)


def test_exact_texts() -> None:
    problem, placement = placed([0] * 3 + [1] * 4)
    texts = {name: runtime(name).write(problem, placement).text for name in FORMATS}
    assert texts == {
        "vllm": "VLLM_PP_LAYER_PARTITION=3,4",
        "megatron": "Et*3|t*4L",
        "torchtitan": "config.parallelism.pipeline_parallel_degree = 2\n"
        "config.parallelism.pipeline_parallel_module_fqns_per_model_part ="
        ' [["wte", "h.0", "h.1", "h.2"], ["h.3", "h.4", "h.5", "h.6", "ln_f", "lm_head"]]',
        "exo": '[\n {"node": "gpu:0", "PipelineShardMetadata": {"deviceRank": 0, "worldSize": 2, "startLayer": 0,'
        ' "endLayer": 3, "nLayers": 7}},\n {"node": "gpu:1", "PipelineShardMetadata": {"deviceRank": 1, "worldSize": 2,'
        ' "startLayer": 3, "endLayer": 7, "nLayers": 7}}\n]',
        "llamacpp": "--device CUDA0,CUDA1 --n-gpu-layers 8 --tensor-split 3,5",
    }
    problem, placement = placed([2] * 6 + [0])
    assert runtime("vllm").write(problem, placement).text == "CUDA_VISIBLE_DEVICES=2,0\nVLLM_PP_LAYER_PARTITION=6,1"
    assert (
        runtime("llamacpp").write(problem, placement).text == "--device CUDA2,CUDA0 --n-gpu-layers 8 --tensor-split 6,2"
    )
    made = runtime("megatron").write(problem, placement)
    assert made.text == "Et*6|tL"
    assert made.notes == ("the ranks use the GPUs in another order than the machine: set CUDA_VISIBLE_DEVICES=2,0",)
    problem, placement = placed([0] * 3 + [3] * 4)
    assert (
        runtime("llamacpp").write(problem, placement).text == "--device CUDA0,CUDA3 --n-gpu-layers 8 --tensor-split 3,5"
    )
    assert runtime("megatron").write(*placed([0] * 7)).text == "Et*7L"


@pytest.mark.parametrize("name", ["megatron", "torchtitan"])
def test_interleaved_stages(name: str) -> None:
    """A device with several stages, in a loop; the last chunk may be the head alone."""
    write, read = runtime(name).write, FORMATS[name]
    for layers, after in (([1, 1, 3, 3, 1, 1, 3], 3), ([1, 1, 1, 3, 3, 1, 1], 3)):
        problem, placement = placed(layers, after=after)
        made = write(problem, placement)
        assert read(problem, made).device.tolist() == made.placement.device.tolist() == placement.device.tolist()
        assert "4 stages on 2 ranks need an interleaved schedule" in made.notes
    with pytest.raises(PlacementError, match=r"layer 'h\.1' is on gpu:1, 'h\.3' on gpu:3, and 'h\.4' on gpu:1 again"):
        write(*placed([1, 1, 3, 3, 1, 1, 1]))


@pytest.mark.parametrize("name", ["vllm", "exo", "llamacpp"])
def test_a_zigzag_is_named(name: str) -> None:
    with pytest.raises(PlacementError, match=r"'h\.3' .*gpu:3.*'h\.4' .*on gpu:1 again[^\n]*\n.*device_map"):
        runtime(name).write(*placed([1, 1, 3, 3, 1, 1, 1]))


def test_networks_without_layers() -> None:
    b = GraphBuilder("flat")
    b.add("a", outputs=[4], module="a", flops=1e9)
    problem = Problem.of(b.build(), machine())
    for name in FORMATS:
        with pytest.raises(PlacementError, match=r"counts layers, but graph 'flat' has no numbered list of modules\n"):
            runtime(name).write(problem, problem.placement([0]))


class TestCpus:
    """cpu:0 is device 0, gpu:0 and gpu:1 are devices 1 and 2."""

    CLUSTER = machine(2, cpus=1)

    @pytest.mark.parametrize(
        ("layers", "after", "text"),
        [
            ([1] * 4 + [2] * 3, 2, "--n-gpu-layers 8 --tensor-split 4,4"),
            ([0, 0, 0, 2, 2, 1, 1], 1, "--device CUDA1,CUDA0 --n-gpu-layers 5 --tensor-split 2,3"),
            ([0] * 7, 2, "--device CUDA1 --n-gpu-layers 1"),
            ([0] * 7, 0, "--n-gpu-layers 0"),
            ([0] * 6 + [1], 2, "--n-gpu-layers 2 --tensor-split 1,1"),
        ],
    )
    def test_llamacpp_has_the_first_layers_on_the_cpu(self, layers: list[int], after: int, text: str) -> None:
        problem, placement = placed(layers, 0, after, cluster=self.CLUSTER)
        made = runtime("llamacpp").write(problem, placement)
        assert made.text == text
        assert (
            read_llamacpp(problem, made).device.tolist() == made.placement.device.tolist() == placement.device.tolist()
        )

    def test_what_has_no_form(self) -> None:
        with pytest.raises(
            PlacementError, match=r"first layers on the CPU, but layer 'h\.4' is on cpu:0, after 'h\.3' on"
        ):
            runtime("llamacpp").write(*placed([1] * 4 + [0] * 3, cluster=self.CLUSTER))
        with pytest.raises(
            PlacementError, match=r"vLLM has its stages on GPUs, but layer 'h\.0' is on cpu:0\n.*llamacpp"
        ):
            runtime("vllm").write(*placed([0] + [1] * 6, cluster=self.CLUSTER))


def test_a_parameter_that_two_stages_read_is_noted() -> None:
    made = runtime("torchtitan").write(*placed([0] * 3 + [1] * 4, graph=decoder(tied=True)))
    assert made.text.endswith(' = [["wte", "h.0", "h.1", "h.2"], ["h.3", "h.4", "h.5", "h.6", "ln_f", "lm_head"]]')
    assert made.notes == (
        "gpu:0 and gpu:1 read parameter 'wte.weight': torchtitan needs a copy on each, which the simulation sends in every"
        " step",
    )


@pytest.mark.parametrize(("cached", "expands"), [(1, False), (64, True)])
def test_a_step_that_expands_latents_is_not_that_of_vllm_and_llamacpp(cached: int, expands: bool) -> None:
    """As transformers runs DeepSeek's attention: `kv_b_proj` has a row for each token in the cache, in decode."""
    b = GraphBuilder("latent")
    x = b.source("tokens", 4, op_type="input")
    for i in range(4):
        for name, rows in (("kv_a_proj_with_mqa", 1), ("kv_b_proj", cached)):
            module = f"h.{i}.attn.{name}"
            weight = b.source(f"{module}.weight", 400, module=module)
            [x] = b.add(f"{module}/mm", inputs=[x, weight], outputs=[4], flops=400.0 * rows, module=module)
    problem = Problem.of(b.build(), machine(2))
    placement = problem.placement([0] * problem.g)
    said = {
        n for n in FORMATS if any("transformers' attention" in t for t in runtime(n).write(problem, placement).notes)
    }
    assert said == ({"vllm", "llamacpp"} if expands else set())
    task = fakes.fake_task(problem)
    VllmEven().place(task, np.random.default_rng(0))
    assert [n for n in task.evaluate.notes if "98% of the arithmetic here" in n] == task.evaluate.notes
    assert bool(task.evaluate.notes) == expands


def test_llamacpp_says_that_its_arguments_turn_fitting_off() -> None:
    notes = runtime("llamacpp").write(*placed([0] * 3 + [1] * 4)).notes
    assert any("no longer fits them to the memory (`--fit`)" in note for note in notes)


def test_runtimes_of_inference_say_so_for_a_training_step() -> None:
    problem, placement = placed([0] * 7, graph=decoder(train=True))
    said = {
        name for name in FORMATS if any("is for inference" in n for n in runtime(name).write(problem, placement).notes)
    }
    assert said == {"vllm", "exo", "llamacpp"}


def test_torchtitan_has_modules_that_run_nothing_in_every_stage() -> None:
    """As the importer of torch modules finds them: an idle dropout, and one that is an operation."""
    graph = decoder().replace(attributes={"stateless": ["drop", "ln_f"]})
    made = runtime("torchtitan").write(*placed([0] * 3 + [1] * 4, graph=graph))
    assert torchtitan_options(made.text)["module_fqns_per_model_part"] == [
        ["wte", "h.0", "h.1", "h.2", "drop"], ["h.3", "h.4", "h.5", "h.6", "ln_f", "lm_head", "drop"],
    ]  # fmt: skip


def test_torchtitan_cannot_divide_a_child_that_is_no_list() -> None:
    problem = Problem.of(decoder(4, inside="model."), machine())
    blocks = sequence(problem)
    device = [int(i >= 4) for i in range(len(blocks))]
    with pytest.raises(PlacementError, match=r"elements of its lists, but 'model' is in stages 0 and 1\n"):
        runtime("torchtitan").write(problem, blocks.placement(device))
    assert runtime("torchtitan").write(problem, blocks.placement([2] * len(blocks))).text.endswith(' = [["model"]]')


def test_what_a_runtime_says_of_itself() -> None:
    problem, placement = placed([0] * 3 + [1] * 4)
    assert runtimes()[0] == "device_map"
    for name in runtimes():
        found = runtime(name)
        assert found.name == name
        assert found.versions
        assert (found.default_rule is None) == (name in ("pipeline", "megatron"))
        if found.default_rule is not None:
            assert len(set(found.rule(problem).device.tolist())) > 1 or name in ("exo", "llamacpp")
        if name != "device_map":
            assert found.cost(problem, found.write(problem, placement)) is None, "as in the machine model"
            with pytest.raises(PlacementError, match="can only be written, not read"):
                found.read(problem, "", "own.json")
    with pytest.raises(NotApplicable, match=r"Megatron-LM does not divide"):
        runtime("megatron").rule(problem)
    with pytest.raises(ConfigError, match="no runtime named 'vlm'\n  did you mean 'vllm'"):
        runtime("vlm")


def exported(layers: list[int], graph: Graph, mode: str = "decode") -> list[Export]:
    """The exports of a decoder with these layers, as an importer of PyTorch modules marks it."""
    problem, placement = placed(layers, graph=graph.replace(attributes={"torch": "2", "mode": mode}))
    return exports(problem, placement, [runtime(name) for name in runtimes()])


@pytest.mark.parametrize(
    ("train", "names"),
    [(False, ["device_map", "exo", "llamacpp", "vllm"]), (True, ["device_map", "megatron", "pipeline", "torchtitan"])],
)
def test_a_step_has_the_forms_of_its_runtimes(train: bool, names: list[str]) -> None:
    problem, placement = placed([0, 0, 1, 1, 1, 2, 2])
    found = exported([0, 0, 1, 1, 1, 2, 2], decoder(train=train))
    assert [e.name for e in found] == names
    assert "run by accelerate: " in found[0].notes[0]
    if not train:
        assert found[-1].text == "VLLM_PP_LAYER_PARTITION=2,3,2"
        assert found[-1].placement.device.tolist() == placement.device.tolist()
        assert problem.graph.fingerprint == found[-1].placement.graph


def test_a_network_that_generates_no_text_has_a_device_map_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "placekit_runtimes.accelerate.fitted", lambda *_: pytest.fail("pages do not wait for a map that fits")
    )
    assert [e.name for e in exported([0, 0, 1, 1, 1, 2, 2], decoder(), "inference")] == ["device_map"]


def test_a_zigzag_is_left_to_those_that_can_express_it() -> None:
    assert [e.name for e in exported([0, 1, 0, 1, 0, 1, 0], decoder())] == ["device_map"]


def test_one_device_and_graphs_without_modules_have_no_exports() -> None:
    assert exported([1] * 7, decoder()) == []
    assert exports(*placed([0, 0, 0, 1, 1, 1, 1]), [runtime("vllm")]) == []
