"""Placements as the texts of runtimes: each text is read back by the runtime's rule, and means the same placement."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from placekit_layers import sequence
from placekit_torch import runtimes
from placekit_torch.export import device_map, device_names, pipeline
from placekit_torch.forms import Form

from placekit_core import Cluster, Graph, GraphBuilder, Placement, PlacementError, Problem

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
    return [device_names(problem).index(n) for n in numbers]


def whole(problem: Problem, layers: Sequence[int], before: int, after: int) -> Placement:
    return sequence(problem).placement([before] * BEFORE + list(layers) + [after] * AFTER)


def read_vllm(problem: Problem, form: Form) -> Placement:
    """As `get_pp_indices` and the models of vLLM: the first rank has the embedding, the last one norm and head."""
    counts = [int(n) for n in form.text.rpartition("VLLM_PP_LAYER_PARTITION=")[2].split(",")]
    devices = ranks(problem, form.text, len(counts))
    return whole(problem, np.repeat(devices, counts).tolist(), devices[0], devices[-1])


def read_megatron(problem: Problem, form: Form) -> Placement:
    """As `parse_str_to_list`, with stage i on rank i mod p."""
    text = re.sub(r"(.)\*(\d+)", lambda m: m[1] * int(m[2]), form.text)
    assert re.fullmatch(r"E[t|]*L", text)
    stages = text.split("|")
    devices = ranks(problem, " ".join(form.notes), len({*problem.expand(form.placement.device).tolist()}))
    of_stage = [devices[i % len(devices)] for i in range(len(stages))]
    layers = [d for stage, d in zip(stages, of_stage, strict=True) for letter in stage if letter == "t"]
    return whole(problem, layers, of_stage[0], of_stage[-1])


def read_torchtitan(problem: Problem, form: Form) -> Placement:
    """As `pipeline_module_split` with a looped schedule: names of modules in each stage."""
    stages = json.loads(form.text)
    devices = ranks(problem, " ".join(form.notes), len({*problem.expand(form.placement.device).tolist()}))
    where = {module: devices[i % len(devices)] for i, stage in enumerate(stages) for module in stage}
    assert sorted(where) == sorted(n for n in sequence(problem).names if n != "add"), "every module once"
    assert where["ln_f"] == where["lm_head"]
    return whole(problem, [where[f"h.{i}"] for i in range(len(where) - 3)], where["wte"], where["lm_head"])


def read_exo(problem: Problem, form: Form) -> Placement:
    """As exo's shards: half-open intervals of layers."""
    layers: list[int] = []
    shards = json.loads(form.text)
    for rank, each in enumerate(shards):
        shard = each["PipelineShardMetadata"]
        assert (shard["deviceRank"], shard["worldSize"], shard["startLayer"]) == (rank, len(shards), len(layers))
        assert shard["endLayer"] > shard["startLayer"], "exo's nodes have a layer at least"
        device = problem.cluster.device_index(each["node"])
        layers += [device] * (shard["endLayer"] - shard["startLayer"])
        assert shard["nLayers"] == shards[-1]["PipelineShardMetadata"]["endLayer"]
    return whole(problem, layers, layers[0], layers[-1])


def read_llamacpp(problem: Problem, form: Form) -> Placement:
    """As `load_tensors`: the last layers, of which the output is one, on the GPU whose share of the sum they are in."""
    words = form.text.split()
    given = dict(zip(words[::2], words[1::2], strict=True))
    names = device_names(problem)
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


Reader = Callable[[Problem, Form], Placement]
FORMATS: dict[str, tuple[Callable[[Problem, Placement], Form], Reader]] = {
    "vllm": (runtimes.vllm, read_vllm),
    "megatron": (runtimes.megatron, read_megatron),
    "torchtitan": (runtimes.torchtitan, read_torchtitan),
    "exo": (runtimes.exo, read_exo),
    "llamacpp": (runtimes.llamacpp, read_llamacpp),
}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("gpus", [1, 2, 4])
def test_texts_read_back_mean_the_same_placement(name: str, gpus: int) -> None:
    """Every contiguous split, on the devices in any order."""
    write, read = FORMATS[name]
    rng = np.random.default_rng(gpus)
    for _ in range(20):
        order = rng.permutation(4)[:gpus].tolist()
        cuts = np.sort(rng.choice(np.arange(1, LAYERS), gpus - 1, replace=False)).tolist()
        layers = np.repeat(order, np.diff([0, *cuts, LAYERS])).tolist()
        problem, placement = placed(layers)
        form = write(problem, placement)
        assert form.name == name
        assert read(problem, form).device.tolist() == form.placement.device.tolist() == placement.device.tolist()
        assert (form.conflicts, form.elsewhere) == ((), 0.0)


@pytest.mark.parametrize("name", ["vllm", "megatron", "torchtitan", "llamacpp"])
def test_stages_without_layers(name: str) -> None:
    """The head on a device of its own, and, but for llama.cpp, the embedding too."""
    write, read = FORMATS[name]
    for before in (2,) if name == "llamacpp" else (2, 3):
        problem, placement = placed([2] * 3 + [0] * 4, before, after=1)
        form = write(problem, placement)
        assert read(problem, form).device.tolist() == form.placement.device.tolist() == placement.device.tolist()


def test_exo_has_a_layer_on_each_node() -> None:
    problem, placement = placed([2] * 3 + [0] * 4, 3, 1)
    form = runtimes.exo(problem, placement)
    assert read_exo(problem, form).device.tolist() == form.placement.device.tolist()
    assert [(c.module, c.device, c.elsewhere) for c in form.conflicts] == [
        ("wte", "gpu:2", 1.0), ("ln_f", "gpu:0", 1.0), ("lm_head", "gpu:0", 1.0), ("add", "gpu:2", 1.0),
    ]  # fmt: skip
    assert form.elsewhere == pytest.approx(3 / 17, rel=1e-3)


def test_exact_texts() -> None:
    problem, placement = placed([0] * 3 + [1] * 4)
    texts = {name: write(problem, placement).text for name, (write, _) in FORMATS.items()}
    assert texts == {
        "vllm": "VLLM_PP_LAYER_PARTITION=3,4",
        "megatron": "Et*3|t*4L",
        "torchtitan": '[["wte", "h.0", "h.1", "h.2"], ["h.3", "h.4", "h.5", "h.6", "ln_f", "lm_head"]]',
        "exo": '[\n {"node": "gpu:0", "PipelineShardMetadata": {"deviceRank": 0, "worldSize": 2, "startLayer": 0,'
        ' "endLayer": 3, "nLayers": 7}},\n {"node": "gpu:1", "PipelineShardMetadata": {"deviceRank": 1, "worldSize": 2,'
        ' "startLayer": 3, "endLayer": 7, "nLayers": 7}}\n]',
        "llamacpp": "--n-gpu-layers 8 --tensor-split 3,5",
    }
    problem, placement = placed([2] * 6 + [0])
    assert runtimes.vllm(problem, placement).text == "CUDA_VISIBLE_DEVICES=2,0\nVLLM_PP_LAYER_PARTITION=6,1"
    assert runtimes.llamacpp(problem, placement).text == "--device CUDA2,CUDA0 --n-gpu-layers 8 --tensor-split 6,2"
    form = runtimes.megatron(problem, placement)
    assert form.text == "Et*6|tL"
    assert form.notes == ("the order of the ranks is another than the machine's: CUDA_VISIBLE_DEVICES=2,0",)
    problem, placement = placed([0] * 3 + [3] * 4)
    assert runtimes.llamacpp(problem, placement).text == "--n-gpu-layers 8 --tensor-split 3,0,0,5"
    assert runtimes.megatron(*placed([0] * 7)).text == "Et*7L"


@pytest.mark.parametrize("name", ["megatron", "torchtitan"])
def test_interleaved_stages(name: str) -> None:
    """A device with several stages, in a loop; the last chunk may be the head alone."""
    write, read = FORMATS[name]
    for layers, after in (([1, 1, 3, 3, 1, 1, 3], 3), ([1, 1, 1, 3, 3, 1, 1], 3)):
        problem, placement = placed(layers, after=after)
        form = write(problem, placement)
        assert read(problem, form).device.tolist() == form.placement.device.tolist() == placement.device.tolist()
        assert "4 stages on 2 ranks need an interleaved schedule" in form.notes
    with pytest.raises(
        PlacementError, match=r"layer 'h\.4' goes back to gpu:1, where 'h\.1' is, after 'h\.3' on gpu:3"
    ):
        write(*placed([1, 1, 3, 3, 1, 1, 1]))


@pytest.mark.parametrize("name", ["vllm", "exo", "llamacpp"])
def test_a_zigzag_is_named(name: str) -> None:
    with pytest.raises(
        PlacementError, match=r"layer 'h\.4' goes back to gpu:1.*after 'h\.3' on gpu:3[^\n]*\n.*device_map"
    ):
        FORMATS[name][0](*placed([1, 1, 3, 3, 1, 1, 1]))


@pytest.mark.parametrize("name", FORMATS)
def test_networks_without_layers(name: str) -> None:
    b = GraphBuilder("flat")
    b.add("a", outputs=[4], module="a", flops=1e9)
    problem = Problem.of(b.build(), machine())
    with pytest.raises(PlacementError, match=r"counts layers, and graph 'flat' has no numbered list of modules\n"):
        FORMATS[name][0](problem, problem.placement([0]))


def test_heads_where_their_runtime_puts_them() -> None:
    """The head on a GPU that has other layers already is a cycle: it goes with the last layer, and this is said."""
    problem, placement = placed([0] * 3 + [1] * 4, after=0)
    for name, (write, read) in FORMATS.items():
        if name in ("megatron", "torchtitan"):
            continue  # it could be a loop, whose last stage is on gpu:1
        form = write(problem, placement)
        assert read(problem, form).device.tolist() == form.placement.device.tolist()
        assert [(c.module, c.device) for c in form.conflicts] == [("ln_f", "gpu:1"), ("lm_head", "gpu:1")], name
    split = placement.device.copy()
    split[problem.grouping.group_of[problem.graph.op_name.index("h.1.mlp/mm")]] = 1
    form = runtimes.vllm(problem, problem.placement(split))
    assert form.placement.device.tolist() == runtimes.vllm(problem, placement).placement.device.tolist()
    assert {c.module: c.elsewhere for c in form.conflicts} == {"h.1": pytest.approx(0.5), "ln_f": 1.0, "lm_head": 1.0}


class TestCpus:
    """cpu:0 is device 0, gpu:0 and gpu:1 are devices 1 and 2."""

    CLUSTER = machine(2, cpus=1)

    @pytest.mark.parametrize(
        ("layers", "after", "text"),
        [
            ([1] * 4 + [2] * 3, 2, "--n-gpu-layers 8 --tensor-split 4,4"),
            ([0, 0, 0, 2, 2, 1, 1], 1, "--device CUDA1,CUDA0 --n-gpu-layers 5 --tensor-split 2,3"),
            ([0] * 7, 2, "--n-gpu-layers 1 --tensor-split 0,1"),
            ([0] * 7, 0, "--n-gpu-layers 0"),
            ([0] * 6 + [1], 2, "--n-gpu-layers 2 --tensor-split 1,1"),
        ],
    )
    def test_llamacpp_has_the_first_layers_on_the_cpu(self, layers: list[int], after: int, text: str) -> None:
        problem, placement = placed(layers, 0, after, cluster=self.CLUSTER)
        form = runtimes.llamacpp(problem, placement)
        assert form.text == text
        assert (
            read_llamacpp(problem, form).device.tolist() == form.placement.device.tolist() == placement.device.tolist()
        )

    def test_llamacpp_keeps_the_embedding_on_the_cpu(self) -> None:
        problem, placement = placed([1] * 4 + [2] * 3, 1, 0, cluster=self.CLUSTER)
        form = runtimes.llamacpp(problem, placement)
        assert read_llamacpp(problem, form).device.tolist() == form.placement.device.tolist()
        assert {(c.module, c.device) for c in form.conflicts} == {
            ("wte", "cpu:0"), ("add", "cpu:0"), ("ln_f", "gpu:1"), ("lm_head", "gpu:1"),
        }  # fmt: skip

    def test_what_has_no_form(self) -> None:
        with pytest.raises(
            PlacementError, match=r"first layers on the CPU, and layer 'h\.4' is on cpu:0, after 'h\.3' on"
        ):
            runtimes.llamacpp(*placed([1] * 4 + [0] * 3, cluster=self.CLUSTER))
        with pytest.raises(
            PlacementError, match=r"vLLM has its stages on GPUs, and layer 'h\.0' is on cpu:0\n.*llamacpp"
        ):
            runtimes.vllm(*placed([0] + [1] * 6, cluster=self.CLUSTER))

    def test_stages_are_on_gpus(self) -> None:
        problem, placement = placed([2] * 4 + [1] * 3, before=0, cluster=self.CLUSTER)
        form = runtimes.vllm(problem, placement)
        assert form.text == "CUDA_VISIBLE_DEVICES=1,0\nVLLM_PP_LAYER_PARTITION=4,3"
        assert read_vllm(problem, form).device.tolist() == form.placement.device.tolist()
        assert [c.module for c in form.conflicts] == ["wte", "add"]

    def test_cpus_alone_are_stages(self) -> None:
        assert runtimes.vllm(*placed([1] * 4 + [0] * 3, cluster=machine(0, 2))).text == "VLLM_PP_LAYER_PARTITION=4,3"


def test_a_parameter_that_two_stages_read_is_noted() -> None:
    form = runtimes.torchtitan(*placed([0] * 3 + [1] * 4, graph=decoder(tied=True)))
    assert form.text == '[["wte", "h.0", "h.1", "h.2"], ["h.3", "h.4", "h.5", "h.6", "ln_f", "lm_head"]]'
    assert form.notes == (
        "gpu:0 and gpu:1 read parameter 'wte.weight': torchtitan needs a copy on each, which the simulation sends in every"
        " step",
    )


def test_runtimes_of_inference_say_so_for_a_training_step() -> None:
    problem, placement = placed([0] * 7, graph=decoder(train=True))
    said = {
        name
        for name, (write, _) in FORMATS.items()
        if any("is for inference" in n for n in write(problem, placement).notes)
    }
    assert said == {"vllm", "exo", "llamacpp"}


def test_torchtitan_cannot_divide_a_child_that_is_no_list() -> None:
    problem = Problem.of(decoder(4, inside="model."), machine())
    blocks = sequence(problem)
    device = [int(i >= 4) for i in range(len(blocks))]
    with pytest.raises(PlacementError, match=r"elements of its lists, and 'model' is in stages 0 and 1\n"):
        runtimes.torchtitan(problem, blocks.placement(device))
    assert runtimes.torchtitan(problem, blocks.placement([2] * len(blocks))).text == '[["model"]]'


def test_another_problem() -> None:
    _, placement = placed([0] * 3, graph=decoder(3))
    for write, _ in FORMATS.values():
        with pytest.raises(PlacementError, match="not one of 'decoder' on 'machine'"):
            write(placed([0] * 7)[0], placement)


def test_priorities_are_kept() -> None:
    problem, placement = placed([0] * 7)
    priority = np.arange(problem.g, dtype=np.float32)
    form = runtimes.vllm(problem, problem.placement(placement.device, priority))
    assert form.placement.priority is not None
    assert form.placement.priority.tolist() == priority.tolist()


def read_device_map(problem: Problem, devices: dict[str, Any]) -> list[int]:
    """[n] device of each kernel with a module: that of the longest prefix; -1 for others."""
    graph, names = problem.graph, device_names(problem)
    found = []
    for v in range(graph.n):
        inside = [k for k in devices if not k or graph.module[v] == k or graph.module[v].startswith(f"{k}.")]
        found.append(names.index(devices[max(inside, key=len)]) if inside and graph.kernel[v] else -1)
    return found


def test_device_maps_and_pipelines_mean_the_placement() -> None:
    problem, placement = placed([2] * 3 + [0] * 4)
    made, stages = device_map(problem, placement), pipeline(problem, placement)
    assert made.placement.device.tolist() == stages.placement.device.tolist() == placement.device.tolist()
    device = problem.expand(made.placement.device).tolist()
    read = read_device_map(problem, made.devices)
    assert [d for d, r in zip(device, read, strict=True) if r >= 0] == [r for r in read if r >= 0]
    assert [(s.device, s.begins) for s in stages.stages] == [("gpu:2", "wte"), ("gpu:0", "h.3.attn")]
    forward = [v for v in problem.graph.topological_order.tolist() if problem.graph.kernel[v]]
    cut = next(i for i, v in enumerate(forward) if problem.graph.module[v] == stages.stages[1].begins)
    assert [device[v] for v in forward] == [2] * cut + [0] * (len(forward) - cut)


def test_a_device_map_moves_what_it_says() -> None:
    b = GraphBuilder("net")
    x = b.source("x", 4, op_type="input")
    for module in ("a", "b"):
        for i, flops in enumerate((3e9, 1e9)):
            [x] = b.add(f"{module}{i}", inputs=[x], outputs=[4], flops=flops, module=module)
    problem = Problem.of(b.build(), machine())
    made = device_map(problem, problem.placement([1, 0, 1, 2, 0]))
    assert made.devices == {"a": 0, "b": 2}
    assert made.placement.device.tolist() == [0, 0, 0, 2, 2], "the input goes where it is read"
    assert made.elsewhere == pytest.approx(0.25, rel=1e-3)
