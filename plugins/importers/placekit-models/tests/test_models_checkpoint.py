"""Importer `checkpoint`: tensors of files and of shapes, their bytes, their modules, and bad files."""

from __future__ import annotations

import contextlib
import json
import math
import random
import struct
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from placekit_models.checkpoint.importer import CheckpointImporter
from placekit_models.checkpoint.options import CheckpointOptions
from placekit_models.checkpoint.sources import find
from placekit_models.shape import shapes
from placekit_testing import ImporterContract
from placekit_testing.contract import Make
from placekit_testing.speed import mostly_slow

from placekit_core import Graph, ImporterError, load_programs

PUBLISHED = {
    ("Llama-3.1-8B-Instruct", "q4_k_m"): 4.921, ("Llama-3.1-8B-Instruct", "q8_0"): 8.541, ("Qwen2.5-7B", "q4_k_m"): 4.683,
    ("Qwen3-30B-A3B", "q4_k_m"): 18.557, ("Qwen3-14B", "q4_k_m"): 9.002, ("Qwen3-235B-A22B", "q4_k_m"): 142.2,
    ("DeepSeek-V3-0324", "q4_k_m"): 404.4, ("gemma-3-27b-it", "q4_k_m"): 16.55, ("Mixtral-8x7B-Instruct-v0.1", "q4_k_m"): 28.45,
    ("phi-4", "q4_k_m"): 9.053, ("gpt-oss-20b", "mxfp4_moe"): 12.11, ("gpt-oss-120b", "mxfp4"): 65.25,
    ("Llama-3.3-70B", "q4_k_m"): 42.52, ("Qwen2.5-32B", "iq4_xs"): 17.69, ("Qwen2.5-72B", "q6_k"): 64.35,
}  # fmt: skip
"""Gigabytes of files, as their publishers state them."""
QUICK = [
    "Qwen3-Next-80B-A3B",
    "DeepSeek-V2-Lite",
    "Falcon-H1-7B",
    "Nemotron-H-8B",
    "AI21-Jamba-Mini-1.7",
    "mamba2-2.7b",
    "phi-4",
]
CONFIG = {
    "model_type": "qwen3_moe", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "vocab_size": 100, "intermediate_size": 128, "moe_intermediate_size": 32, "num_experts": 4,
    "num_experts_per_tok": 2, "tie_word_embeddings": False,
}  # fmt: skip
LAYER = {
    "attn_norm": (64,), "attn_q": (64, 64), "attn_k": (64, 32), "attn_v": (64, 32), "attn_output": (64, 64), "ffn_norm": (64,),
    "ffn_gate": (64, 128), "ffn_up": (64, 128), "ffn_down": (128, 64),
}  # fmt: skip


def load(checkpoint: object, **options: Any) -> Graph:
    [program] = CheckpointImporter(CheckpointOptions(checkpoint=str(checkpoint), **options)).load()
    return program.graph


def weights_of(graph: Graph) -> int:
    return int(graph.persistent_bytes[graph.op_type.is_value("parameter")].sum())


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def gguf(values: dict[str, Any], tensors: dict[str, tuple[int, ...]], kind: int = 8, size: float = 34 / 32) -> bytes:
    """A GGUF file's header; matrices are of type `kind` (Q8_0), with `size` bytes for a number."""
    out = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(values))
    for key, value in values.items():
        out += text(key)
        if isinstance(value, str):
            out += struct.pack("<I", 8) + text(value)
        elif isinstance(value, list):
            out += struct.pack("<IIQ", 9, 8, len(value)) + b"".join(text(v) for v in value)
        else:
            out += struct.pack("<II", 4, value)
    offset = 0
    for name, shape in tensors.items():
        flat = len(shape) == 1
        out += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0 if flat else kind, offset)
        offset += -(-round(math.prod(shape) * (4 if flat else size)) // 32) * 32
    return out


def small(architecture: str = "llama", **more: Any) -> bytes:
    about = {"block_count": 2, "embedding_length": 64, "attention.head_count": 4} | more
    values = {f"{architecture}.{key}": value for key, value in about.items() if value is not None}
    tensors = {f"blk.{i}.{key}.weight": shape for i in range(2) for key, shape in LAYER.items()}
    words = {"tokenizer.ggml.tokens": [f"word {i}" for i in range(100)]}
    outer = {"token_embd.weight": (64, 100), "output_norm.weight": (64,), "output.weight": (64, 100)}
    return gguf({"general.architecture": architecture} | values | words, outer | tensors)


def safetensors(folder: Path, config: dict[str, Any] = CONFIG) -> Path:
    """A folder with a mixture of experts: its configuration and its tensors, in 16 bits."""
    names = {"model.embed_tokens": (100, 64), "model.norm": (64,), "lm_head": (100, 64)}
    for i in range(2):
        p = f"model.layers.{i}"
        names |= {f"{p}.self_attn.{k}_proj": (n, 64) for k, n in (("q", 64), ("k", 32), ("v", 32), ("o", 64))}
        names |= {f"{p}.input_layernorm": (64,), f"{p}.self_attn.q_norm": (16,), f"{p}.mlp.gate": (4, 64)}
        for e in range(4):
            names |= {f"{p}.mlp.experts.{e}.{k}_proj": (32, 64) for k in ("gate", "up")}
            names[f"{p}.mlp.experts.{e}.down_proj"] = (64, 32)
    header, offset = {}, 0
    for name, shape in names.items():
        end = offset + 2 * math.prod(shape)
        header[f"{name}.weight"] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, end]}
        offset = end
    data = json.dumps(header).encode()
    folder.mkdir(exist_ok=True)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(data)) + data)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(("name", "weights"), PUBLISHED)
def test_bytes_are_those_of_published_files(name: str, weights: str) -> None:
    assert find(name, weights).bytes / 1e9 == pytest.approx(PUBLISHED[name, weights], rel=0.01)


@pytest.mark.parametrize("name", mostly_slow(shapes(), QUICK))
def test_every_shape_has_modules_and_a_decode_step(name: str) -> None:
    graph = load(name, weights="q4_k_m", context=1000)
    named = np.asarray([bool(m) for m in graph.module.tolist()]) | graph.op_type.is_value("input")
    assert named.all()
    assert graph.attributes["launching"] == "graph"
    read = graph.bytes_accessed[graph.op_class.is_value("quantized_matmul")].sum()
    assert 0 < read < weights_of(graph) * 1.05
    assert (graph.persistent_bytes[graph.op_type.is_value("buffer")] > 0).any()


def test_a_large_model_takes_two_seconds_and_no_torch() -> None:
    code = (
        "import resource, sys, time; begin = time.perf_counter()\n"
        "from placekit_core import load_programs\n"
        "load_programs(checkpoint='hf:deepseek-ai/DeepSeek-V3', weights='q4_k_m', context=32768)\n"
        "assert 'torch' not in sys.modules\n"
        "assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 300 * 1024"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_experts_can_be_placed_apart_and_a_batch_reads_more_of_them() -> None:
    one, four = (load("Qwen3-30B-A3B", weights="q8_0", batch=b) for b in (1, 4))
    place = one.op_name.index("blk.5.ffn_up_exps")
    assert one.module[place] == "model.layers.5.mlp.experts"
    assert "blk.5.ffn_up_exps.weight" in one.op_name
    expert = 2048 * 768 * 34 / 32
    assert one.bytes_accessed[place] == pytest.approx(8 * expert, rel=0.01)
    assert four.bytes_accessed[place] == pytest.approx(128 * (1 - (120 / 128) ** 4) * expert, rel=0.02)


def test_caches_and_states_by_hand() -> None:
    def kept(name: str, **options: Any) -> int:
        graph = load(name, weights="q8_0", **options)
        return int(graph.persistent_bytes[graph.op_type.is_value("buffer")].sum())

    assert kept("Llama-3.1-8B", context=8192) == 32 * 2 * 1024 * 8192 * 2
    assert kept("Llama-3.1-8B", context=8192, cache="q8_0", batch=2) == 32 * 2 * 1024 * 8192 * 2 * 34 // 32
    assert kept("Llama-3.1-8B", context=8192, mode="prompt", prompt=100) == 32 * 2 * 1024 * 8192 * 2
    assert kept("DeepSeek-V3", context=1000) == 61 * 576 * 1000 * 2
    assert kept("gpt-oss-20b", context=1000) == 12 * 2 * 512 * (1000 + 128) * 2
    assert kept("Nemotron-H-8B", context=1000) == 4 * 2048 * 1000 * 2 + 24 * 4 * (8192 * 128 + 3 * (8192 + 2 * 8 * 128))
    assert kept("Falcon-H1-7B", context=1000) == 44 * (512 * 2 * 1000 + 4 * (3072 * 256 + 3 * (3072 + 2 * 256)))


def test_a_gguf_file_is_read_up_to_its_weights(tmp_path: Path) -> None:
    path = tmp_path / "small.gguf"
    path.write_bytes(small())
    with pytest.warns(UserWarning, match="ends .* bytes early: it is planned from its header"):
        [program] = load_programs(str(path))
    per = 34 / 32
    matrices = 2 * 64 * 100 + 2 * (64 * 192 + 3 * 64 * 128)
    assert weights_of(program.graph) == round(matrices * per) + 5 * 64 * 4
    assert program.graph.module[program.graph.op_name.index("blk.1.attn_q")] == "model.layers.1.self_attn.q_proj"
    with path.open("r+b") as file:
        file.truncate(2**33)  # weights that nobody reads
    assert weights_of(load(path)) == weights_of(program.graph)
    with pytest.raises(ImporterError, match="has its own weights"):
        load(path, weights="q8_0")


def test_split_files_need_all_parts(tmp_path: Path) -> None:
    tensors = {f"blk.{i}.{key}.weight": shape for i in range(2) for key, shape in LAYER.items()}
    values = {"general.architecture": "llama", "llama.block_count": 2, "split.count": 2}
    first, second = (tmp_path / f"x-0000{i}-of-00002.gguf" for i in (1, 2))
    first.write_bytes(gguf(values, {"token_embd.weight": (64, 100)}))
    with pytest.raises(ImporterError, match=r"one of 2 files, and 1 are not beside it: x-00002-of-00002\.gguf"):
        load(first)
    second.write_bytes(gguf({"split.count": 2}, tensors))
    with pytest.warns(UserWarning, match="early"):
        assert "blk.1.ffn_down" in load(tmp_path).op_name


@pytest.mark.filterwarnings("ignore:.*early")
def test_an_unknown_architecture_is_planned_from_its_tensors(tmp_path: Path) -> None:
    path = tmp_path / "new.gguf"
    path.write_bytes(small("brandnew"))
    with pytest.warns(UserWarning, match="'brandnew' is unknown"):
        graph = load(path, context=100)
    assert graph.persistent_bytes[graph.op_name.index("blk.0.cache")] == 100 * 64 * 2


def test_a_folder_of_safetensors(tmp_path: Path) -> None:
    folder = safetensors(tmp_path / "m")
    graph = load(folder)
    numbers = 2 * 100 * 64 + 64 + 2 * (64 * 192 + 64 + 16 + 4 * 64 + 4 * 3 * 32 * 64)
    assert weights_of(graph) == 2 * numbers
    assert graph.persistent_bytes[graph.op_name.index("blk.1.ffn_down_exps.weight")] == 4 * 64 * 32 * 2
    assert weights_of(load(folder, weights="q8_0")) < 1.2 * numbers
    (folder / "model.safetensors").unlink()
    assert weights_of(load(folder)) == pytest.approx(2 * numbers, rel=0.02)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda f: f.write_bytes(b""), "ends in its header, after 0 bytes"),
        (lambda f: f.write_bytes(b"GGML" + small()[4:]), "does not begin with GGUF"),
        (lambda f: f.write_bytes(small()[:300]), "ends in its header, after 300 bytes"),
        (lambda f: f.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 2**60, 1)), "claims to have 1,152,921,504,606,846,976 tensors"),
        (lambda f: f.write_bytes(b"GGUF" + struct.pack("<IQQ", 0x03000000, 1, 1)), "bytes in another order"),
        (lambda f: f.write_bytes(b"GGUF" + struct.pack("<IQQQ", 3, 1, 1, 2**50)), "a text of 1,125,899,906,842,624 bytes"),
        (lambda f: f.write_bytes(small(block_count=3)), "it says block_count 3, and has no tensor of layer 2"),
        (lambda f: f.write_bytes(small(block_count=1)), "it says block_count 1, and has layers up to 1"),
        (lambda f: f.write_bytes(small(embedding_length=128)), "embedding_length 128, and has token_embd.weight, as wide as 64"),
        (lambda f: f.write_bytes(gguf({"general.architecture": "llama"}, {"a.weight": (2, 2)}, 0)), "no embedding of words"),
    ],
)  # fmt: skip
def test_bad_gguf_files(make: Callable[[Path], Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    make(path)
    with pytest.raises(ImporterError, match=message):
        load(path)


@pytest.mark.parametrize(
    ("model", "weights", "message"),
    [
        ("hf:Qwen/Qwen3-30B-A4B", None, "did you mean hf:Qwen3-30B-A3B"),
        ("Qwen3-8B", "q4km", "did you mean q4_k_m"),
        ("no.gguf", None, "no file no.gguf"),
        ("", None, "give checkpoint=hf:NAME"),
    ],
)
def test_unknown_names(model: str, weights: str | None, message: str) -> None:
    with pytest.raises(ImporterError, match=message):
        load(model, weights=weights)


def test_contradictions_of_folders(tmp_path: Path) -> None:
    for change, message in {
        ("num_hidden_layers", 3): "has no tensors of layer 2, and its configuration 3 layers",
        ("num_experts", 8): "contradicts its configuration, of 8 experts",
        ("num_experts_per_tok", 9): "a token takes 9 of 4 experts",
        ("hidden_size", 32): "has no embedding of words of width 32",
        ("hidden_size", "x"): "hidden_size is 'x', not a count",
        ("hidden_size", None): "has no hidden_size",
    }.items():
        with pytest.raises(ImporterError, match=message):
            load(safetensors(tmp_path / "m", CONFIG | dict([change])))


def test_importer_model_names_importer_checkpoint() -> None:
    with pytest.raises(ImporterError, match="belong to importer checkpoint: checkpoint=hf:Qwen3-8B weights=q4_k_m"):
        load_programs(model="hf:Qwen3-8B", weights="q4_k_m")


@pytest.mark.filterwarnings("ignore")
def test_damaged_headers_are_one_error_each(tmp_path: Path) -> None:
    rng, whole = random.Random(0), small()
    folder = safetensors(tmp_path / "m")
    header = (folder / "model.safetensors").read_bytes()
    for i in range(2000):
        path, data = (tmp_path / "x.gguf", whole) if i % 2 else (folder / "model.safetensors", header)
        path.write_bytes(damaged(data, rng))
        with contextlib.suppress(ImporterError):
            load(path if i % 2 else folder, context=64)


def damaged(data: bytes, rng: random.Random) -> bytes:
    """The data with a few bytes changed, removed, added or cut off."""
    found = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 5])):
        at = rng.randrange(max(len(found), 1))
        match rng.randrange(5):
            case 0:
                found[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                del found[at:]
            case 2:
                found[at : at + 8] = struct.pack("<Q", rng.choice([0, 1, 2**31, 2**40, 2**63, rng.randrange(1000)]))
            case 3:
                del found[at : at + rng.randrange(1, 40)]
            case _:
                found[at:at] = found[at : at + 50]
    return bytes(found)


@pytest.mark.filterwarnings("ignore:.*early")
class TestCheckpoint(ImporterContract):
    @pytest.fixture
    def make(self, tmp_path: Path) -> Make:
        path = tmp_path / "contract.gguf"
        path.write_bytes(small())
        return partial(CheckpointImporter, path=str(path))
