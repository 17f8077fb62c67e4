"""Weights, caches and buffers that llama.cpp itself reports, against those of importer `checkpoint`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import made_towers
import pytest
from made_gguf import FAMILIES, one_type, write
from placekit_models.checkpoint.buffers import WHOLE, Buffers, Part
from placekit_models.checkpoint.sources import find
from placekit_models.checkpoint.towers import with_tower
from placekit_models.shape import Checkpoint, Shape, Tensor, shapes
from placekit_testing.speed import mostly_slow
from real_llama import Loaded, load, parse_llama_server, tower_bytes

EXACT = 0.001
SMALL = 2**17
"""Buffers for values are equal, but for alignments and inputs of a few bytes per token."""
NEAR = {"state space": 0.015, "hybrid": 0.002}
"""Others: llama.cpp computes some small values of a recurrence with the layer before, which moves the large ones."""
ONE, TWO = ["CUDA0"], ["CUDA0", "CUDA1"]
WIDE = [
    "Llama-3.1-8B", "Qwen2.5-14B", "Qwen3-30B-A3B", "DeepSeek-V3", "GLM-4.7-Flash", "Gemma-3-4B", "gpt-oss-120b",
    "Qwen3-Next-80B-A3B", "Qwen3.5-27B", "AI21-Jamba-Mini-1.7",
]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _runtime() -> None:
    pytest.importorskip("xllamacpp", reason="the wheel of xllamacpp carries llama.cpp")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("gguf")
    return {name: write(folder / f"{name.replace(' ', '-')}.gguf", shape) for name, shape in FAMILIES.items()}


def arguments(path: Path, context: int, users: int = 1, *more: str) -> list[str]:
    """Arguments of llama-server; `context` is that of each user."""
    return ["-m", str(path), "-c", str(context * users), "-np", str(users), *more]


def weights_on(device: str, checkpoint: Checkpoint, loaded: Loaded) -> int:
    """Bytes of the file's tensors that llama.cpp put on a device."""
    return sum(t.bytes for t in checkpoint.tensors if loaded.tensors[t.name] == device)


def equal(loaded: Loaded, expected: Buffers, checkpoint: Checkpoint, values: dict[str, int], tolerance: float) -> None:
    """Compare the cache, the values by device, and the total of each device."""
    assert sum(context for _, context, _ in loaded.memory.values()) == sum(expected.cache)
    for device, bytes_ in values.items():
        weights, context, compute = loaded.memory[device]
        assert bytes_ == pytest.approx(compute, rel=tolerance, abs=SMALL), device
        own = weights_on(device, checkpoint, loaded) + context + bytes_
        assert own == pytest.approx(weights + context + compute, rel=0.02), device


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_families_load_with_the_tensors_and_bytes_that_we_see(family: str, files: dict[str, Path]) -> None:
    loaded, checkpoint = load(arguments(files[family], 4096)), find(str(files[family]), None)
    assert {t.name for t in checkpoint.tensors} == {*loaded.tensors}
    assert loaded.memory["CPU_Mapped"][0] == pytest.approx(checkpoint.bytes, rel=0.001)
    expected = Buffers(checkpoint, context=4096)
    equal(loaded, expected, checkpoint, {"CPU": expected.cpu}, NEAR.get(family, EXACT))


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("options", "flags"),
    [
        pytest.param({"context": 8192}, [], id="plain", marks=pytest.mark.long),
        pytest.param({"context": 2048, "users": 3, "ubatch": 256}, ["-ub", "256"], id="users"),
        pytest.param({"context": 3000, "flash": False}, ["-fa", "off"], id="no flash", marks=pytest.mark.long),
        pytest.param(
            {"context": 4096, "cache_bits": 8.5}, ["-ctk", "q8_0", "-ctv", "q8_0", "-fa", "on"], id="q8_0",
            marks=pytest.mark.long,
        ),
    ],
)  # fmt: skip
def test_one_gpu(family: str, options: dict[str, Any], flags: Sequence[str], files: dict[str, Path]) -> None:
    args = arguments(files[family], options["context"], options.get("users", 1), "-ngl", "99", *flags)
    loaded, checkpoint = load(args, ONE), find(str(files[family]), None)
    expected = Buffers(checkpoint, **options)
    equal(loaded, expected, checkpoint, {"CUDA0": expected.only, "CPU": expected.host}, NEAR.get(family, EXACT))


@pytest.mark.slow
def test_a_tied_embedding_is_on_the_device_of_the_output_and_in_host_memory(files: dict[str, Path]) -> None:
    checkpoint, loaded = find(str(files["tied"]), None), load(arguments(files["tied"], 2048, 1, "-ngl", "99"), ONE)
    embedding = next(t.bytes for t in checkpoint.tensors if t.key == "token_embd")
    assert loaded.memory["CUDA0"][0] == pytest.approx(checkpoint.bytes, rel=0.001)
    assert loaded.memory["CPU_Mapped"][0] == embedding


@pytest.mark.slow
@pytest.mark.parametrize("copies", [1, 4])
def test_two_gpus(copies: int, tmp_path: Path) -> None:
    path = write(tmp_path / "long.gguf", replace(FAMILIES["dense"], layers=8))
    loaded = load(arguments(path, 8192, 1, "-ngl", "99", "-ts", "1,1"), TWO, pipeline=copies > 1)
    expected, checkpoint = Buffers(find(str(path), None), context=8192, copies=copies), find(str(path), None)
    values = {"CUDA0": expected.first, "CUDA1": expected.output, "CPU": expected.host}
    equal(loaded, expected, checkpoint, values, EXACT)


@pytest.mark.slow
def test_experts_in_host_memory_are_copied_to_the_device(tmp_path: Path) -> None:
    experts = shapes()["Qwen3-30B-A3B"].experts
    assert experts is not None
    shape = replace(FAMILIES["moe"], experts=replace(experts, count=64))
    path = write(tmp_path / "experts.gguf", shape, fill=False)
    checkpoint = find(str(path), None)
    loaded = load(arguments(path, 4096, 1, "-ngl", "99", "--n-cpu-moe", "2"), ONE, hollow=True)
    expected = Buffers(checkpoint, context=4096)
    values = expected.values([WHOLE | Part.COPIED_EXPERTS] * 2 + [WHOLE] * 2, begins=True, ends=True)
    equal(loaded, expected, checkpoint, {"CUDA0": values, "CPU": expected.host}, EXACT)
    on_cpu = {name for name, buffer in loaded.tensors.items() if buffer != "CUDA0"}
    experts = {f"blk.{i}.ffn_{k}_exps.weight" for i in range(2) for k in ("gate", "up", "down")}
    assert on_cpu == experts | {"token_embd.weight"}


def narrow(shape: Shape) -> Shape:
    """A shape of the same widths with few layers, words and experts, so that it fits this computer's memory."""
    e = shape.experts
    layers = min(shape.layers, 2 * len(shape.pattern) + (e.dense if e else 0) + 1)
    few = replace(e, count=2 * e.active, dense=min(e.dense, 1)) if e else None
    return replace(shape, layers=layers, vocab=4096, experts=few)


@pytest.mark.slow
@pytest.mark.parametrize("name", mostly_slow(WIDE, WIDE[:1], WIDE[1:]))
def test_real_widths(name: str, tmp_path: Path) -> None:
    path = write(tmp_path / f"{name}.gguf", narrow(shapes()[name]), lambda t: one_type(t, "Q8_0"), fill=False)
    checkpoint = find(str(path), None)
    for context, users, ubatch in ((32768, 1, 512), (2048, 4, 2048)):
        args = arguments(path, context, users, "-ngl", "99", "-ub", str(ubatch))
        loaded = load(args, ONE, hollow=True)
        expected = Buffers(checkpoint, context=context, users=users, ubatch=ubatch)
        equal(loaded, expected, checkpoint, {"CUDA0": expected.only, "CPU": expected.host}, EXACT)


@pytest.mark.slow
def test_the_parser_of_llama_server() -> None:
    line = "-m x.gguf --device CUDA0,CUDA1 -ngl 20 -ts 3,1 -ctk q8_0 -fa on --n-cpu-moe 1"
    found = parse_llama_server([*line.split(), "-ot", r"blk\.(2|3)\.ffn_.*_exps=CUDA1,output=CPU"], TWO)
    assert (found["n_gpu_layers"], found["tensor_split"], found["cache_type_k"]) == (20, [3.0, 1.0], "q8_0")
    moe = [r"blk\.0\.ffn_(up|down|gate|gate_up)_(ch|)exps", "CPU"]
    assert found["overrides"] == [moe, [r"blk\.(2|3)\.ffn_.*_exps", "CUDA1"], ["output", "CPU"]]
    with pytest.raises(ValueError, match="does not take --tensor-splits"):
        parse_llama_server(["--tensor-splits", "1"])


@pytest.mark.parametrize("projector", made_towers.TOWERS)
def test_towers_take_the_memory_that_llama_cpp_takes(projector: str, tmp_path: Path) -> None:
    path = made_towers.write(tmp_path / "mmproj.gguf", projector)
    model = Checkpoint((Tensor("token_embd.weight", (made_towers.TOWERS[projector]["hidden"], 8), 16.0),), 1)
    # images of any size are smaller than the one that llama.cpp reserves memory for
    tower = with_tower(model, "", str(path), 1, None if projector == "gemma3" else 448).tower
    assert tower is not None
    assert tower.bytes + tower.buffer == pytest.approx(tower_bytes(str(path)), rel=0.012)
