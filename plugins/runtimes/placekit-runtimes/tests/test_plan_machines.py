"""`placekit plan` on machines with several boxes, equal GPUs, unlike links, or no GPU."""

from __future__ import annotations

import re

import numpy as np
import pytest
from placekit_runtimes import plan
from placekit_runtimes.evaluate_line import evaluate
from placekit_runtimes.planning.lines import llama_server
from placekit_runtimes.planning.read_lines import read
from placekit_runtimes.planning.steps import first_gpu
from placekit_runtimes.planning.strategies import Row

from placekit_core import PlacementError, installed

DENSE = "hf:Llama-3.3-70B"
EXPERTS = "hf:gpt-oss-120b"


def test_a_runtime_that_needs_gpus_and_none() -> None:
    with pytest.raises(PlacementError, match="no runtime runs Qwen3-4B fp8 on cpu: they need GPUs"):
        _ = plan("hf:Qwen3-4B", "64GB ddr5-5600", weights="fp8").best


def test_the_hint_names_a_format_that_frees_what_is_missing() -> None:
    with pytest.raises(PlacementError, match="use weights=q6_k") as caught:
        _ = plan("hf:Qwen3-32B", "rtx4090 + rtx3060", weights="q8_0").best
    assert "weights=q8_0" not in str(caught.value)


def test_host_memory_is_that_of_the_box_where_llama_server_runs() -> None:
    """The layers on the CPU are on that of the box of the command line."""
    found = plan(DENSE, "(rtx3060 + 64GB ddr5-5600) + (rtx4090 + 64GB ddr5-5600), 2.5gbe", weights="q4_k_m")
    cluster, split = found.question.cluster, found.best.split
    assert split is not None
    box = re.search(r"llama-server .* # in the box of (\S+)$", found.llama_cpp())
    assert box is not None
    host = cluster.launchers.host
    assert host[split.home[0]] == host[cluster.device_names.index(box[1])]
    assert cluster.kinds[cluster.device_kind[split.home[0]]].type == "cpu"


def test_of_equal_gpus_the_one_in_the_same_box() -> None:
    found = plan("hf:Qwen3-32B", "(rtx3060) + (rtx4090 + rtx3060), 1gbe", weights="q5_k_m")
    assert "rpc" not in found.llama_cpp()
    assert "rtx3060:1" in found.verdict


def test_servers_run_for_all_devices_that_the_names_count() -> None:
    """RPC1 is the second server."""
    found = plan("hf:Qwen3-32B", "(rtx4090) + (rtx3060 + rtx3060), 2.5gbe", weights="q5_k_m")
    steps = found.strategies["llamacpp"].steps
    split = steps.layout.split([0] * 60 + [2] * 5, 0)
    text = llama_server(Row("llamacpp", "", split), steps)
    assert text.count("rpc-server") == 2
    assert "--device CUDA0,RPC1" in text
    assert "--rpc BOX:50052,BOX:50053" in text


@pytest.mark.slow
def test_many_gpus_are_tried_if_they_have_room() -> None:
    """Two GPUs without room for a model of eight are not tried, and experts go to the CPU only."""
    found = plan(EXPERTS, "8x rtx3060 + 64GB ddr5-5600", weights="mxfp4_moe", runtime="llamacpp")
    regulars = found.strategies["llamacpp"].regulars
    assert [len(chain) - 1 for chain in regulars.chains()] == [1, 6, 7, 8]
    assert regulars.targets == [found.question.cpu]


def test_micro_batches_are_those_of_the_runtime() -> None:
    found = plan("hf:Qwen3-4B", "rtx4090", prompt=3000)
    sizes = {name: search.question.options.ubatch for name, search in found.strategies.items()}
    assert sizes == {"llamacpp": 512, "vllm": 2048}
    whole = plan("hf:Qwen3-4B", "rtx4090", prompt=3000, runtime="accelerate").strategies["accelerate"].question
    assert whole.options.ubatch == 3000
    assert "batched-tokens" not in found.vllm()
    line = "vllm serve Qwen/Qwen3-4B --max-num-batched-tokens 256"
    assert evaluate(read(line), "rtx4090", installed(), {}).question.options.ubatch == 256


def test_vllm_offloads_as_much_on_each_gpu() -> None:
    """`--cpu-offload-gb` is one number; the command line is evaluated as it was planned."""
    found = plan(DENSE, "2x rtx3090 + 64GB ddr5-5600", weights="fp8", runtime="vllm")
    row = found.best
    assert row.split is not None
    assert row.split.streams
    again = evaluate(read(found.vllm()), "2x rtx3090 + 64GB ddr5-5600", installed(), {"weights": "fp8"}).rows[0]
    assert again.decode_s == pytest.approx(row.decode_s, rel=0.02)


def test_prompts_do_not_overlap_beside_the_cpu() -> None:
    """llama.cpp computes several micro-batches at once if several GPUs have all layers, and no tensor is apart."""
    found = plan("hf:Qwen3-4B", "rtx4090 + rtx3060 + 64GB ddr5-5600", weights="q4_k_m", prompt=4000)
    steps = found.strategies["llamacpp"].steps
    cpu, layers = found.question.cpu, steps.layout.layers
    beside = steps.layout.split([cpu, *[0] * 20, *[1] * (layers - 20)], cpu)
    gpus = steps.layout.split([*[0] * 20, *[1] * (layers - 19)], cpu)
    steps.seconds([beside, gpus])
    assert {(number, overlap) for number, overlap, _ in steps.prompts} >= {(2, False), (2, True)}


@pytest.mark.slow
def test_the_first_gpu_computes_what_is_in_host_memory() -> None:
    """llama.cpp copies weights to its first device, wherever their layer is."""
    found = plan(EXPERTS, "rtx4090 + rtx3060 + 64GB ddr5-5600", weights="mxfp4_moe", runtime="llamacpp")
    steps, cpu = found.strategies["llamacpp"].steps, found.question.cpu
    layers = steps.layout.layers
    split = steps.layout.split([*[1] * 6, *[0] * (layers - 5)], cpu, [cpu] * layers)
    step, _ = steps.prompt(2, False, True)
    first = first_gpu(split, steps.layout, found.question)
    device = step.operations.devices([split], cpu, [first])[0]
    experts = step.operations.product & np.isin(step.operations.tensor, np.flatnonzero(steps.layout.expert))
    assert (device[experts] == 1).all()
