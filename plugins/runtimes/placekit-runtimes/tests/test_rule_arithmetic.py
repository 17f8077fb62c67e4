"""The arithmetic of the rules gives the numbers of the tools' own tests and documents, or those of a calculation by hand.

Each test names where its numbers come from.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from placekit_runtimes import exo, llamacpp, rules_of_thumb, torchtitan, vllm
from placekit_runtimes.accelerate.auto_map import Modules, balanced_memory, infer_device_map

from placekit_core import ConfigError, NotApplicable


def test_vllm_even() -> None:
    """vllm-project/vllm, tests/distributed/test_pipeline_partition.py, `test_uneven_auto_partition`, commit 2758bed."""
    cases = [(2, 2, [1, 1]), (3, 2, [2, 1]), (3, 3, [1, 1, 1]), (4, 3, [1, 2, 1]), (5, 3, [2, 2, 1])]
    for layers, stages, expected in cases:
        assert vllm.stage_layers(layers, stages) == expected


def test_vllm_partition() -> None:
    """The same file, `test_custom_layer_partition`: taken as given; a wrong number of stages or layers is refused."""
    for layers, partition in ((20, [5, 5, 5, 5]), (20, [4, 6, 6, 4]), (22, [5, 6, 5, 6])):
        assert vllm.stage_layers(layers, 4, partition) == partition
    with pytest.raises(ConfigError, match=r"layer_partition has 3 stages, but there are 4 devices"):
        vllm.stage_layers(20, 4, [5, 5, 5])
    with pytest.raises(ConfigError, match=r"layer_partition places 20 layers, but the network has 21"):
        vllm.stage_layers(21, 4, [5, 5, 5, 5])


def test_exo() -> None:
    """exo-explore/exo, src/exo/master/tests/test_placement_utils.py, `test_get_shard_assignments`, commit 01a2a34."""
    for memory, expected in (
        ((500, 500, 1000), [3, 3, 6]),
        ((500, 500, 500), [4, 4, 4]),
        ((312, 518, 1024), [2, 3, 7]),
    ):
        assert exo.shard_layers(12, memory) == expected


def test_exo_gives_every_node_a_layer() -> None:
    """By hand: 10 layers over 900, 50, 50 are 9, 0.5, 0.5; the second gets the remainder, the third one from the first."""
    assert exo.shard_layers(10, [900, 50, 50]) == [8, 1, 1]
    with pytest.raises(NotApplicable, match="2 layers are too few for 3"):
        exo.shard_layers(2, [1, 1, 1])


def test_torchtitan() -> None:
    """The first two: docstring at 02ef790 and the debug model of pull request 1103; the others by hand."""
    assert torchtitan.stage_layers(3, 2, 2, 2) == [2, 1]  # 7 with weights: 4 and 3, less 2 each
    assert torchtitan.stage_layers(6, 4, 1, 1) == [1, 2, 2, 1]
    assert torchtitan.stage_layers(32, 4, 1, 1) == [8, 9, 8, 7]  # 34 with weights: 9, 9, 8, 8
    assert torchtitan.stage_layers(32, 1, 1, 1) == [32]
    assert torchtitan.stage_layers(2, 4, 1, 1) == [0, 1, 1, 0]
    with pytest.raises(NotApplicable, match=r"cannot divide 4 layers .* into 5 stages"):
        torchtitan.stage_layers(2, 5, 1, 1)
    with pytest.raises(NotApplicable, match="output_weight=4: a stage holds 3 layers"):
        torchtitan.stage_layers(8, 4, 1, 4)


def test_llamacpp() -> None:
    """docs/multi-gpu.md of ggml-org/llama.cpp at 5815cb8: `-ts 3,1` gives 75% and 25%, and is the same as `-ts 75,25`.

    The layers are by hand from `load_tensors` at a5410f0: 32 layers and the output are 33, and 25 of them are below 3/4.
    """
    on = llamacpp.gpu_of_layers(32, [3, 1], 99)
    assert on == [0] * 25 + [1] * 8
    assert llamacpp.gpu_of_layers(32, [75, 25], 33) == on
    assert llamacpp.gpu_of_layers(7, [1, 1], 8) == [0] * 4 + [1] * 4
    assert llamacpp.gpu_of_layers(7, [0, 1], 8) == [1] * 8
    assert llamacpp.gpu_of_layers(8, [1, 1], 4) == [-1] * 5 + [0, 0, 1, 1]  # the last 3 layers and the output
    assert llamacpp.gpu_of_layers(4, [], 99) == [-1] * 5
    assert llamacpp.gpu_of_layers(4, [1.0], 0) == [-1] * 5


def test_capped() -> None:
    """By hand: 24 layers over 1008 and 936 GB/s are 12.44 and 11.56; the second device has room for 4 only."""
    assert rules_of_thumb.capped(24, [1008, 936], [24, 24]) == [12, 12]
    assert rules_of_thumb.capped(24, [1008, 936], [24, 4]) == [20, 4]
    assert rules_of_thumb.capped(12, [4, 1, 1], [6, 12, 12]) == [6, 3, 3]
    with pytest.raises(NotApplicable, match="24 layers do not fit: the devices have room for 23"):
        rules_of_thumb.capped(24, [1, 1], [20, 3])


@pytest.mark.parametrize("seed", range(5))
def test_all_layers_are_placed(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(30):
        stages = int(rng.integers(1, 9))
        weight = np.ceil(10.0 ** rng.uniform(0, 12, stages)).astype(int).tolist()
        check_all_placed(
            weight, rng.integers(0, 101, stages).tolist(), int(rng.integers(1, 101)), int(rng.integers(102))
        )


def check_all_placed(weight: list[int], most: list[int], layers: int, on_gpu: int) -> None:
    stages = len(weight)
    results = [vllm.stage_layers(layers, stages)]
    if layers >= stages:
        results += [exo.shard_layers(layers, weight), torchtitan.stage_layers(layers, stages, 0, 0)]
        assert min(results[1]) >= 1
    if sum(most) >= layers:
        results.append(rules_of_thumb.capped(layers, weight, most))
        assert all(a <= b for a, b in zip(results[-1], most, strict=True))
    for result in results:
        assert sum(result) == layers
        assert len(result) == stages
        assert min(result) >= 0
    on = llamacpp.gpu_of_layers(layers, weight, on_gpu)
    assert len(on) == layers + 1
    assert sum(d >= 0 for d in on) == min(on_gpu, layers + 1)
    gpus = [d for d in on if d >= 0]
    assert gpus == sorted(gpus)
    assert max(gpus, default=0) < stages


# The network of accelerate's tests: a linear layer of 64 bytes, a batch normalisation of 72, a linear layer of 100.
MODEL = {
    "linear1.weight": 48, "linear1.bias": 16,
    "batchnorm.weight": 16, "batchnorm.bias": 16, "batchnorm.mean": 16, "batchnorm.var": 16, "batchnorm.count": 8,
    "linear2.weight": 80, "linear2.bias": 20,
}  # fmt: skip
BUFFERS = {"linear1.b": 80, "batchnorm.b": 120, "linear2.b": 120}


def several(*prefixes: str) -> dict[str, int]:
    return {f"{p}.{name}": size for p in prefixes for name, size in MODEL.items()}


def inferred(
    tensors: dict[str, int],
    *memory: int,
    cpu: int | None = None,
    whole: Sequence[str] = (),
    ties: Sequence[Sequence[str]] = (),
) -> dict[str, str]:
    """The device map, over GPUs `0`, `1`, ... with these bytes, and a CPU."""
    rooms = [(str(i), size) for i, size in enumerate(memory)] + ([("cpu", cpu)] if cpu is not None else [])
    return infer_device_map(Modules(tensors, whole), rooms, {"0", "cpu"}, [frozenset(t) for t in ties])


def test_accelerate_maps() -> None:
    """huggingface/accelerate, tests/test_modeling_utils.py, `test_infer_auto_device_map`, commit f67ac00."""
    assert inferred(MODEL, 200, 200) == {"linear1": "0", "batchnorm": "1", "linear2": "1"}
    assert inferred(MODEL, 200, 172, 200) == {"linear1": "0", "batchnorm": "1", "linear2": "1"}
    tied = {**MODEL, "linear1.weight": 80, "linear2.weight": 0}
    ties = [("linear1.weight", "linear2.weight")]
    assert inferred(tied, 200, 200, ties=ties) == {"linear1": "0", "linear2": "0", "batchnorm": "0"}
    three = several("0", "1", "2")
    split = {"0": "0", "1.linear1": "0", "1.batchnorm": "0", "1.linear2": "1", "2": "1"}
    assert inferred(three, 500, 500) == split
    assert inferred(three, 500, 500, whole=["0", "1", "2"]) == {"0": "0", "1": "1", "2": "1"}


def test_accelerate_offloads_to_the_cpu() -> None:
    """The same file, `test_infer_auto_device_map_with_buffer_check` and `..._and_multi_devices`."""
    tensors = MODEL | BUFFERS
    assert inferred(tensors, 400, cpu=10**9) == {"linear1": "0", "batchnorm": "cpu", "linear2": "cpu"}
    tensors |= {"linear3.weight": 80, "linear3.bias": 20, "linear3.b": 80}
    expected = {"linear1": "0", "batchnorm": "1", "linear2": "cpu", "linear3": "cpu"}
    assert inferred(tensors, 400, 400, cpu=10**9) == expected
    assert inferred(tensors, 400, 200, cpu=10**9) == expected


def test_accelerate_balances() -> None:
    """The same file, `test_get_balanced_memory`."""
    for memory, expected in (
        ({"0": 200, "1": 200}, {"0": 200, "1": 200}),
        ({"0": 200, "2": 200}, {"0": 200, "2": 200}),
        ({"0": 300, "1": 300}, {"0": 215, "1": 300}),
        ({"0": 300, "1": 500}, {"0": 215, "1": 500}),
        ({"0": 300, "cpu": 1000}, {"0": 300, "cpu": 1000}),
        ({"0": 0, "1": 300, "2": 300}, {"0": 0, "1": 215, "2": 300}),
        ({"0": 0, "cpu": 100}, {"0": 0, "cpu": 100}),
    ):
        assert balanced_memory(Modules(MODEL), memory, [d for d in memory if d != "cpu"]) == expected
