"""The rules on networks and machines: which block is where, and what the tools refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from placekit_layers import sequence
from placekit_runtimes.accelerate.rule import AccelerateAuto, AccelerateSequential
from placekit_runtimes.exo import ExoMemory
from placekit_runtimes.interface import Rule
from placekit_runtimes.llamacpp import LlamaCppLayers
from placekit_runtimes.options import AccelerateOptions
from placekit_runtimes.rules_of_thumb import BandwidthShare, FastestFirst
from placekit_runtimes.torchtitan import TorchtitanWeights
from placekit_runtimes.vllm import VllmEven
from placekit_testing import fakes
from pydantic import ValidationError

from placekit_core import (
    Cluster,
    ClusterError,
    ConfigError,
    Graph,
    GraphBuilder,
    NotApplicable,
    Problem,
    Task,
)


def decoder(layers: int = 8, embedding: int = 100, tied: bool = False, only_cpu: str = "") -> Graph:
    """Embedding, layers of two products each, norm, head; `tied`: the head reads the embedding's weights."""
    b = GraphBuilder("decoder")

    def product(module: str, read: int, size: int, weight: int | None = None) -> int:
        if weight is None:
            weight = source(module, size)
        return b.add(f"{module}/mm", inputs=[read, weight], outputs=[4], flops=1e6, module=module)[0]

    def source(module: str, size: int) -> int:
        name = f"{module}.weight"
        return b.add(name, op_type="parameter", outputs=[size], persistent_bytes=size, kernel=False, module=module)[0]

    tokens = b.add("tokens", op_type="input", outputs=[4], persistent_bytes=4, kernel=False)[0]
    table = source("wte", embedding)
    at = b.add("wte/embedding", inputs=[tokens, table], outputs=[4], flops=1e3, module="wte", allowed=only_cpu)[0]
    for i in range(layers):
        at = product(f"h.{i}.attn", at, 40)
        at = product(f"h.{i}.mlp", at, 60)
    at = product("ln_f", at, 4)
    product("lm_head", at, embedding, table if tied else None)
    return b.build()


def machine(*memory: int, bandwidth: tuple[float, ...] = (), cpu: int = 0) -> Cluster:
    """GPUs gpu0, gpu1, ... with these bytes (and bandwidths, 1e11 bytes/s if not given), and a CPU if it has bytes."""
    kinds: dict[str, Any] = {}
    for i, size in enumerate(memory):
        speed = bandwidth[i] if bandwidth else 1e11
        kinds[f"gpu{i}"] = {"flops_per_s": {"float32": 10 * speed}, "memory_bytes": size, "memory_bytes_per_s": speed}
    if cpu:
        kinds["cpu"] = {"type": "cpu", "flops_per_s": {"float32": 1e10}, "memory_bytes": cpu, "memory_bytes_per_s": 1e9}
    devices = [{"kind": kind, "name": kind} for kind in kinds]
    links = [{"mesh": "*", "bytes_per_s": 1e10}] if len(kinds) > 1 else []
    return Cluster.parse({"name": "machine", "kinds": kinds, "devices": devices, "links": links})


def placed(rule: Rule, graph: Graph, cluster: Cluster) -> tuple[str, Task]:
    """The index of the device of each block, one digit each: embedding, layers, norm, head; and the task."""
    problem = Problem.of(graph, cluster)
    task = fakes.fake_task(problem)
    device = rule.place(task, np.random.default_rng(0)).device
    blocks = sequence(problem)
    found = ["".join(map(str, sorted(set(device[blocks.of_group == b].tolist())))) for b in range(len(blocks))]
    assert blocks.names == ("wte", *(f"h.{i}" for i in range(len(blocks) - 3)), "ln_f", "lm_head")
    return " ".join([found[0], "".join(found[1:-2]), found[-2], found[-1]]), task


def where(rule: Rule, graph: Graph, cluster: Cluster) -> str:
    return placed(rule, graph, cluster)[0]


BIG = machine(10_000, 10_000, 10_000)


def test_stages_hold_embedding_and_head() -> None:
    assert where(VllmEven(), decoder(), BIG) == "0 00011122 2 2"
    assert where(VllmEven(devices=["gpu0", "gpu1"]), decoder(), BIG) == "0 00001111 1 1"
    assert where(VllmEven(layer_partition=[1, 2, 5]), decoder(), BIG) == "0 01122222 2 2"
    assert where(VllmEven(layer_partition="0,4,4"), decoder(), BIG) == "0 11112222 2 2"
    assert where(TorchtitanWeights(), decoder(), BIG) == "0 00011122 2 2"
    two = machine(10_000, 10_000)
    assert where(TorchtitanWeights(input_weight=3, output_weight=2), decoder(9), two) == "0 000011111 1 1"


def test_ranks_are_the_devices_in_the_order_given() -> None:
    assert where(VllmEven(devices=["gpu2", "gpu0"]), decoder(), BIG) == "2 22220000 0 0"
    with pytest.raises(ClusterError, match="no device named 'gpu7'"):
        where(VllmEven(devices=["gpu7"]), decoder(), BIG)
    with pytest.raises(ClusterError, match="names 'gpu1' twice"):
        where(VllmEven(devices=["gpu1", "gpu0", "gpu1"]), decoder(), BIG)
    assert where(VllmEven(), decoder(), machine(10_000, 10_000, cpu=10_000)) == "0 00001111 1 1", "the CPU is no rank"
    assert where(VllmEven(), decoder(), machine(cpu=10_000)) == "0 00000000 0 0"


def test_exo_takes_the_fewest_nodes() -> None:
    graph = decoder()  # 800 bytes in layers, 204 in the rest
    assert where(ExoMemory(), graph, machine(900, 2000, 1500)) == "1 11111111 1 1"
    assert where(ExoMemory(), graph, machine(500, 900, 700)) == "1 11111222 2 2"
    with pytest.raises(NotApplicable, match=r"exo finds no devices that hold .* of weights: gpu0, gpu2 have"):
        where(ExoMemory(devices=["gpu0", "gpu2"]), graph, machine(500, 900, 500))
    with pytest.raises(NotApplicable, match=r"exo refuses 1 of 8 layers on gpu2: they need 126 B of 100 B"):
        where(ExoMemory(), graph, machine(502, 501, 100))


def test_bandwidth_share_and_fastest_first() -> None:
    fast, slow = machine(670, 2300, bandwidth=(3e11, 1e11)), machine(2300, 2300, bandwidth=(3e11, 1e11))
    assert where(BandwidthShare(), decoder(), slow) == "0 00000011 1 1"
    assert where(BandwidthShare(), decoder(), fast) == "0 00001111 1 1"
    assert where(FastestFirst(), decoder(), slow) == "0 00000000 0 0"
    assert where(FastestFirst(), decoder(), fast) == "0 00001111 1 1", "0.9 * 670 is 603: the embedding and four layers"
    turned = machine(2000, 600, bandwidth=(1e11, 3e11))
    assert where(FastestFirst(), decoder(), turned) == "1 11110000 0 0"
    for rule, text in (
        (BandwidthShare(), "8 layers do not fit"),
        (FastestFirst(), "'h.7' and what follows it, 204 B, do"),
    ):
        with pytest.raises(NotApplicable, match=text):
            where(rule, decoder(), machine(500, 510))


def test_llamacpp() -> None:
    with_cpu = machine(3000, 1000, cpu=10_000)
    assert where(LlamaCppLayers(), decoder(), with_cpu) == "2 00000001 1 1"  # 9 with the output: 7 are below 3/4
    assert where(LlamaCppLayers(tensor_split="1,1"), decoder(), with_cpu) == "2 00000111 1 1"
    assert where(LlamaCppLayers(tensor_split=[1]), decoder(), with_cpu) == "2 00000000 0 0"
    assert where(LlamaCppLayers(n_gpu_layers=4, tensor_split=[1, 1]), decoder(), with_cpu) == "2 22222001 1 1"
    assert where(LlamaCppLayers(), decoder(), machine(cpu=10_000)) == "0 00000000 0 0"
    assert where(LlamaCppLayers(), decoder(), machine(3000, 1000)) == "0 00000001 1 1"
    with pytest.raises(NotApplicable, match="5 of 9 layers are for the CPU, but 'machine' has no CPU"):
        where(LlamaCppLayers(n_gpu_layers=4), decoder(), BIG)
    with pytest.raises(ConfigError, match="tensor_split has 4 shares, but there are 3 GPUs"):
        where(LlamaCppLayers(tensor_split=[1, 1, 1, 1]), decoder(), BIG)


def test_accelerate_fills_or_balances() -> None:
    # 1004 bytes of weights: 502 and a margin of 125 for each, less 100 on the first for the largest layer
    two = machine(2000, 2000)
    assert where(AccelerateAuto(), decoder(), two) == "0 00001111 1 1"
    assert where(AccelerateSequential(), decoder(), two) == "0 00000000 0 0"
    assert where(AccelerateSequential(max_memory={"gpu0": 450, "gpu1": "1KB"}), decoder(), two) == "0 00111111 1 1"
    by_index = AccelerateSequential(max_memory={0: 450, 1: "1KB"})
    assert where(by_index, decoder(), two) == "0 00111111 1 1"
    assert (
        where(AccelerateSequential(max_memory={"0": 450, "cpu": 3000}), decoder(), machine(500, cpu=9000))
        == "0 00111111 1 1"
    )


def test_accelerate_puts_tied_weights_together() -> None:
    """transformers keeps `lm_head` with the embedding, on the first GPU; so the last activations go back there."""
    graph, two = decoder(tied=True), machine(2000, 2000)
    # 904 bytes: 452 and a margin of 125, less 100; the embedding and three layers are 400
    assert where(AccelerateAuto(), graph, two) == "0 00011111 1 0"
    assert where(VllmEven(), graph, two) == "0 00001111 1 1"


def test_accelerate_offloads() -> None:
    small = machine(500, 300, cpu=2000)
    found, task = placed(AccelerateAuto(), decoder(), small)
    assert found == "0 00011122 2 2"
    assert task.evaluate.notes == [
        "4 modules, 304 B, do not fit on the GPUs: accelerate would keep them in host memory and compute them on the first"
        " GPU; in this placement the CPU computes them"
    ]
    limits = {"gpu0": 500, "gpu1": 300}
    assert where(AccelerateAuto(max_memory=limits), decoder(), small) == found, "the CPU has 80% of its memory"
    with pytest.raises(NotApplicable, match=r"would leave 4 modules, 304 B, on disk, beginning with 'h.6'.*and on cpu"):
        where(AccelerateAuto(max_memory=limits | {"cpu": 0}), decoder(), small)
    with pytest.raises(NotApplicable, match=r"would leave \d modules, \d+ B, on disk"):
        where(AccelerateAuto(max_memory=limits), decoder(), machine(500, 300, cpu=300))
    with pytest.raises(
        NotApplicable, match=r"would keep 3 modules, 204 B, in host memory and copy.* no simulated time\n.*ddr5"
    ):
        where(AccelerateAuto(), decoder(), machine(700, 350))
    with pytest.raises(ConfigError, match="max_memory names 'gpu5', which accelerate would not use here"):
        where(AccelerateAuto(max_memory={"gpu5": 1}), decoder(), small)


def test_sizes() -> None:
    for text, size in (
        (7, 7),
        ("7", 7),
        ("2GiB", 2**31),
        ("1.5 GB", 15 * 10**8),
        ("512KiB", 2**19),
        ("3gib", 3 * 2**30),
    ):
        assert AccelerateOptions.model_validate({"max_memory": {"0": text}}).max_memory == {"0": size}
    for text in ("5MBB", "5k0MB", "-1GB", "", -1):  # accelerate refuses the first three, too
        with pytest.raises(ValidationError, match=r"number of bytes, or one with a unit|greater than or equal to 0"):
            AccelerateOptions.model_validate({"max_memory": {"0": text}})


def test_networks_without_layers() -> None:
    problem = fakes.chain()
    for rule in (VllmEven, TorchtitanWeights, ExoMemory, LlamaCppLayers, BandwidthShare):
        with pytest.raises(
            NotApplicable, match=f"{rule.name} counts layers, but graph .* has no numbered list of modules"
        ):
            rule().place(fakes.fake_task(problem), np.random.default_rng(0))
        task = fakes.fake_task(problem)
        device = rule(otherwise="single_device").place(task, np.random.default_rng(0)).device
        assert len(set(device.tolist())) == 1
        assert "everything was placed on one device" in task.evaluate.notes[0]
