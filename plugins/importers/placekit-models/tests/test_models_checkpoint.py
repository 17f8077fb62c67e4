"""Importer `checkpoint`: tensors of files and of shapes, their bytes, their modules, and bad files."""

from __future__ import annotations

import json
import math
import random
import struct
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf.constants import MODEL_ARCH_NAMES, MODEL_TENSORS, TENSOR_NAMES
from placekit_models.checkpoint.gguf_header import Header
from placekit_models.checkpoint.importer import CheckpointImporter
from placekit_models.checkpoint.metadata import from_header
from placekit_models.checkpoint.modules import architectures
from placekit_models.checkpoint.names import named
from placekit_models.checkpoint.options import CheckpointOptions
from placekit_models.checkpoint.sources import find
from placekit_models.decoder import Use, program
from placekit_models.shape import Checkpoint, Tensor, shapes
from placekit_testing import ImporterContract
from placekit_testing.contract import Make
from placekit_testing.speed import mostly_slow

from placekit_core import Graph, ImporterError, load_programs

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


def quantised(folder: Path, config: dict[str, Any], names: Mapping[str, tuple[str, tuple[int, ...]]]) -> Path:
    """A folder with tensors of the given types and sizes."""
    header, offset = {}, 0
    for name, (type_, shape) in names.items():
        end = offset + {"BF16": 2, "F16": 2, "I32": 4, "F32": 4, "U8": 1, "F8_E4M3": 1}[type_] * math.prod(shape)
        header[name] = {"dtype": type_, "shape": shape, "data_offsets": [offset, end]}
        offset = end
    data = json.dumps(header).encode()
    folder.mkdir(exist_ok=True)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(data)) + data)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


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
    return quantised(folder, config, {f"{name}.weight": ("BF16", shape) for name, shape in names.items()})


@pytest.mark.parametrize("name", mostly_slow(shapes(), QUICK, [name for name in shapes() if name not in QUICK]))
def test_every_shape_has_modules_and_a_decode_step(name: str) -> None:
    graph = load(name, weights="q4_k_m", context=1000)
    named = np.asarray([bool(m) for m in graph.module.tolist()]) | graph.op_type.is_value("input")
    assert named.all()
    assert graph.attributes["launching"] == "graph"
    read = graph.bytes_accessed[graph.op_class.is_value("quantized_matmul")].sum()
    assert 0 < read < weights_of(graph) * 1.05
    assert (graph.persistent_bytes[graph.op_type.is_value("buffer")] > 0).any()


def test_a_large_model_takes_little_memory_and_no_torch() -> None:
    code = (
        "import re, sys; from pathlib import Path\n"
        "from placekit_core import load_programs\n"
        "load_programs(checkpoint='hf:deepseek-ai/DeepSeek-V3', weights='q4_k_m', context=32768)\n"
        "assert 'torch' not in sys.modules\n"
        # not `ru_maxrss`, which begins with that of the process before `exec`
        "peak = re.search(r'VmHWM:\\s+(\\d+)', Path('/proc/self/status').read_text())\n"
        "assert int(peak[1]) < 300 * 1024"
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
    with pytest.warns(UserWarning, match="ends .* bytes early: the plan uses its header only"):
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
    with pytest.raises(ImporterError, match=r"one of 2 parts, but 1 are not beside it: x-00002-of-00002\.gguf"):
        load(first)
    second.write_bytes(gguf({"split.count": 2}, tensors))
    with pytest.warns(UserWarning, match="early"):
        assert "blk.1.ffn_down" in load(tmp_path).op_name


@pytest.mark.filterwarnings("ignore:.*early")
def test_an_unknown_architecture_is_planned_from_its_tensors(tmp_path: Path) -> None:
    path = tmp_path / "new.gguf"
    path.write_bytes(small("brandnew"))
    with pytest.warns(UserWarning, match="does not know the architecture 'brandnew'"):
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


def made_up(key: str) -> tuple[int, ...]:
    """Sizes for a tensor of any architecture, of width 64."""
    if "norm" in key or key in ("attn_sinks", "exp_probs_b", "rope_freqs", "ssm_a", "ssm_d") or "lerp" in key:
        return (64,)
    if "exps" in key:
        return (128, 64, 8) if "down" in key else (64, 128, 8)
    fixed = {
        "ssm_conv1d": (4, 128), "token_embd": (64, 500), "output": (64, 500), "attn_qkv": (64, 128), "attn_k_b": (16, 32, 4),
        "attn_v_b": (32, 16, 4), "attn_kv_b": (32, 128), "attn_kv_a_mqa": (64, 40), "ffn_gate_inp": (64, 8), "ssm_out": (128, 64),
    }  # fmt: skip
    wide = (128, 64) if "down" in key else (64, 128) if key.startswith("ffn_") else (64, 64)
    return fixed.get(key, wide)


def names_of(architecture: str) -> list[str]:
    """The tensors that the package `gguf` lists for an architecture, without those of draft models."""
    arch = next(a for a, name in MODEL_ARCH_NAMES.items() if name == architecture)
    return [TENSOR_NAMES[t] for t in MODEL_TENSORS[arch] if "nextn" not in TENSOR_NAMES[t]]


DECODERS = [
    a
    for a in sorted(architectures())
    if "token_embd" in names_of(a) and not any(name.startswith(("enc.", "convnext")) for name in names_of(a))
]


def test_nearly_all_architectures_are_decoders() -> None:
    assert len(DECODERS) >= 0.95 * len(architectures())


FEW = ["qwen3next", "deepseek2", "gemma3n", "rwkv7"]


@pytest.mark.parametrize("architecture", mostly_slow(DECODERS, FEW, [name for name in DECODERS if name not in FEW]))
def test_every_architecture_of_llama_cpp_is_planned(architecture: str) -> None:
    names = names_of(architecture)
    tensors = {name.format(bid=i): made_up(name.removeprefix("blk.{bid}.")) for name in names for i in (0, 1)}
    about = {
        "block_count": 2, "attention.head_count": 4, "expert_count": 8, "expert_used_count": 2, "ssm.inner_size": 128,
        "ssm.state_size": 16, "ssm.conv_kernel": 4, "attention.sliding_window": 50,
    }  # fmt: skip
    values = {"general.architecture": architecture} | {f"{architecture}.{key}": value for key, value in about.items()}
    header = Header(values, tuple(Tensor(f"{name}.weight", size, 8.5) for name, size in tensors.items()), 0)
    checkpoint = from_header(header, Path("made_up.gguf"))
    for use in (Use(context=99), Use("prompt", tokens=700, flash=False)):
        graph = program(architecture, checkpoint, use)
        kernels = {name.partition("@")[0] for name in graph.op_name}
        assert [
            t.name for t in checkpoint.tensors if t.layer >= 0 and t.matrix and f"blk.{t.layer}.{t.key}" not in kernels
        ] == []
        read = {*graph.tensor_producer[graph.input_tensor].tolist()}
        assert [graph.op_name[v] for v in np.flatnonzero(~graph.kernel) if v not in read] == []


def test_projections_of_latent_attention_may_be_apart() -> None:
    apart = {"attn_k_b": (16, 32, 4), "attn_v_b": (32, 16, 4)}
    common: dict[str, tuple[int, ...]] = {"attn_q": (64, 4 * 24), "attn_kv_a_mqa": (64, 40), "attn_output": (64, 64)}

    def attention(own: Mapping[str, tuple[int, ...]], use: Use) -> tuple[float, float]:
        tensors = (Tensor(f"blk.0.{k}.weight", size, 16.0) for k, size in {**common, **own}.items())
        graph = program("x", Checkpoint((Tensor("token_embd.weight", (64, 9), 16.0), *tensors), 1, heads=4), use)
        assert graph.flops.sum() > 0
        place = graph.op_name.index(f"blk.0.attn{'' if use.mode == 'decode' else '@0'}")
        return float(graph.flops[place]), float(graph.bytes_accessed[place])

    for use in (Use(context=99), Use("prompt", tokens=50)):
        assert attention(apart, use) == attention({"attn_kv_b": (32, 4 * 32)}, use)


@pytest.mark.parametrize("lacking", ["attn_output", "attn_kv_a_mqa", "attn_q", "ffn_down_exps", "ffn_gate_inp"])
def test_layers_that_lack_a_matrix_are_planned(lacking: str) -> None:
    names = [name for name in names_of("deepseek2") if not name.endswith(f".{lacking}")]
    tensors = {name.format(bid=i): made_up(name.removeprefix("blk.{bid}.")) for name in names for i in (0, 1)}
    values = {
        "general.architecture": "deepseek2",
        "deepseek2.attention.head_count": 4,
        "deepseek2.expert_used_count": 2,
    }
    header = Header(values, tuple(Tensor(f"{name}.weight", size, 8.5) for name, size in tensors.items()), 0)
    for use in (Use(context=99), Use("prompt", tokens=50)):
        assert program("x", from_header(header, Path("made_up.gguf")), use).flops.sum() > 0


def test_quantised_matrices_in_safetensors_are_one_tensor_each(tmp_path: Path) -> None:
    dense = {k: v for k, v in CONFIG.items() if "experts" not in k} | {
        "model_type": "qwen3",
        "hidden_size": 128,
        "head_dim": 32,
    }
    embedding = {"model.embed_tokens.weight": ("F16", (100, 128)), "lm_head.weight": ("F16", (100, 128))}
    awq, fp8 = dict(embedding), dict(embedding)
    for i in range(2):
        name = f"model.layers.{i}.self_attn.q_proj"
        awq |= {
            f"{name}.qweight": ("I32", (128, 16)),
            f"{name}.qzeros": ("I32", (1, 16)),
            f"{name}.scales": ("F16", (1, 128)),
        }
        fp8 |= {f"{name}.weight": ("F8_E4M3", (128, 128)), f"{name}.weight_scale_inv": ("F32", (1, 1))}
    for names, bytes_ in ((awq, 128 * 64 + 64 + 256), (fp8, 128 * 128 + 4)):
        [tensor] = [t for t in find(str(quantised(tmp_path / "m", dense, names)), None).tensors if t.layer == 1]
        assert (tensor.name, tensor.shape, tensor.bytes) == ("blk.1.attn_q.weight", (128, 128), bytes_)
    experts = CONFIG | {"model_type": "gpt_oss"}
    mxfp4: dict[str, tuple[str, tuple[int, ...]]] = {"model.embed_tokens.weight": ("BF16", (100, 64))}
    for i in range(2):
        name = f"model.layers.{i}.mlp.experts.gate_up_proj"
        mxfp4 |= {
            f"{name}_blocks": ("U8", (4, 64, 2, 16)),
            f"{name}_scales": ("U8", (4, 64, 2)),
            f"{name}_bias": ("BF16", (4, 64)),
        }
    [tensor, bias] = [t for t in find(str(quantised(tmp_path / "m", experts, mxfp4)), None).tensors if t.layer == 1]
    assert (tensor.name, tensor.shape, tensor.bits) == ("blk.1.ffn_gate_up_exps.weight", (64, 64, 4), 4.25)
    assert (tensor.module, bias.name) == ("model.layers.1.mlp.experts", "blk.1.ffn_gate_up_exps.bias")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda f: f.write_bytes(b""), "ends in its header, after 0 bytes"),
        (lambda f: f.write_bytes(b"GGML" + small()[4:]), "does not begin with GGUF"),
        (lambda f: f.write_bytes(small()[:300]), "ends in its header, after 300 bytes"),
        (lambda f: f.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 2**60, 1)), "claims to have 1,152,921,504,606,846,976 tensors"),
        (lambda f: f.write_bytes(b"GGUF" + struct.pack("<IQQ", 0x03000000, 1, 1)), "bytes in another order"),
        (lambda f: f.write_bytes(b"GGUF" + struct.pack("<IQQQ", 3, 1, 1, 2**50)), "a text of 1,125,899,906,842,624 bytes"),
        (lambda f: f.write_bytes(small(block_count=3)), "it says block_count 3, but has no tensor of layer 2"),
        (lambda f: f.write_bytes(small(block_count=1)), "it says block_count 1, but has layers up to 1"),
        (lambda f: f.write_bytes(small(embedding_length=128)), "embedding_length 128, but has token_embd.weight, as wide as 64"),
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
        ("hf:Qwen/Qwen3-30B-A4B", None, "the closest names are Qwen3-30B-A3B, .*plan --help` lists the"),
        ("Qwen3-8B", "q4km", "did you mean q4_k_m"),
        ("Qwen3-8B", "UD-Q4_K_XL", "is a mix that differs from model to model: .*\n.*give the GGUF file"),
        ("Qwen3-14B:UD-Q4_K_XL", None, "is a mix that differs from model to model"),
        ("no.gguf", None, "no file no.gguf"),
        ("a/Nothing-Q8_0.gguf", None, "no file a/Nothing-Q8_0.gguf, and no model 'Nothing'"),
        ("", None, "give checkpoint=hf:NAME"),
    ],
)
def test_unknown_names(model: str, weights: str | None, message: str) -> None:
    with pytest.raises(ImporterError, match=message):
        load(model, weights=weights)


@pytest.mark.parametrize(
    ("model", "name", "weights"),
    [
        ("qwen3:14b", "Qwen3-14B", None),
        ("gpt-oss:120b", "gpt-oss-120b", None),
        ("llama3.3:70b", "Llama-3.3-70B", None),
        ("qwen3:30b", "Qwen3-30B-A3B", None),
        ("mistral:7b", "Mistral-7B", None),
        ("llama3.1:8b-instruct-q4_K_M", "Llama-3.1-8B", "q4_k_m"),
        ("Qwen3-14B:Q4_K_M", "Qwen3-14B", "q4_k_m"),
        ("unsloth/Qwen3-14B-GGUF:q8_0", "unsloth/Qwen3-14B", "q8_0"),
        ("a/Qwen3-14B-Q4_K_M.gguf", "Qwen3-14B", "q4_k_m"),
        ("Qwen3-14B-Q4_K_M-00001-of-00003.gguf", "Qwen3-14B", "q4_k_m"),
        ("gpt-oss-20b-mxfp4.gguf", "gpt-oss-20b", "mxfp4_moe"),
        ("qwen3:latest", "qwen3:latest", None),
        ("Qwen/Qwen3-14B-AWQ", "Qwen/Qwen3-14B-AWQ", None),
    ],
)
def test_names_as_people_write_them(model: str, name: str, weights: str | None) -> None:
    assert named(model, None) == (name, weights)
    assert named(model, "q6_k")[1] == "q6_k"


@pytest.mark.parametrize(
    "model", ["Qwen3_14B", "qwen3-14b", "Qwen/Qwen3-14B-FP8", "qwen3:14b", "x/Qwen3-14B-Q4_K_M.gguf"]
)
def test_names_of_the_same_shape(model: str) -> None:
    assert {t.shape for t in find(model, "q8_0").tensors} == {t.shape for t in find("Qwen3-14B", "q8_0").tensors}


def test_a_file_that_is_here_is_itself(tmp_path: Path) -> None:
    path = tmp_path / "Qwen3-14B-Q4_K_M.gguf"
    path.touch()
    assert named(str(path), None) == (str(path), None)


def test_contradictions_of_folders(tmp_path: Path) -> None:
    for change, message in {
        ("num_hidden_layers", 3): "has no tensors of layer 2, but its configuration has 3 layers",
        ("num_experts", 8): "contradicts its configuration, which has 8 experts",
        ("num_experts_per_tok", 9): "a token uses 9 of 4 experts",
        ("hidden_size", 32): "has no embedding of words of width 32",
        ("hidden_size", "x"): "hidden_size is 'x', not a count",
        ("hidden_size", None): "has no hidden_size",
    }.items():
        with pytest.raises(ImporterError, match=message):
            load(safetensors(tmp_path / "m", CONFIG | dict([change])))


def test_importer_model_names_importer_checkpoint() -> None:
    with pytest.raises(ImporterError, match="belong to importer checkpoint: checkpoint=hf:Qwen3-8B weights=q4_k_m"):
        load_programs(model="hf:Qwen3-8B", weights="q4_k_m")


CONFIGS: list[dict[str, Any]] = [
    CONFIG,
    CONFIG | {"model_type": "deepseek_v3", "q_lora_rank": 8, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8,
              "v_head_dim": 8, "n_routed_experts": 4, "n_shared_experts": 1, "first_k_dense_replace": 1},
    CONFIG | {"model_type": "gemma3", "sliding_window": 8, "sliding_window_pattern": 2, "text_config": {"head_dim": 8}},
    CONFIG | {"model_type": "qwen3_next", "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_value_head_dim": 8,
              "full_attention_interval": 2, "shared_expert_intermediate_size": 32},
    CONFIG | {"model_type": "nemotron_h", "hybrid_override_pattern": "M*", "ssm_state_size": 4, "mamba_num_heads": 4,
              "mamba_head_dim": 8, "n_groups": 1, "conv_kernel": 4},
    CONFIG | {"model_type": "jamba", "attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 4, "mamba_dt_rank": 4},
    CONFIG | {"layer_types": ["sliding_attention", "full_attention"], "quantization_config": {"quant_method": "awq", "bits": 4}},
]  # fmt: skip
ODD = (
    None,
    True,
    -1,
    0,
    1,
    3,
    7,
    64,
    2**24,
    2**31,
    2**70,
    0.5,
    1e300,
    "",
    "x",
    "M*-E",
    [],
    [0],
    [1, 2],
    ["x"],
    {},
    {"bits": 8},
)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("count", mostly_slow([500, 100_000], [500], [100_000]))
def test_damaged_files_are_one_error_each(count: int, tmp_path: Path) -> None:
    """Damaged bytes of GGUF and safetensors headers and configurations, odd values in them, and tensors of odd sizes."""
    rng, wrong = random.Random(0), dict[str, tuple[int, bytes]]()
    whole = [safetensors(tmp_path / f"m{i}", config) for i, config in enumerate(CONFIGS[:2])]
    header = (whole[0] / "model.safetensors").read_bytes()
    alone = quantised(tmp_path / "alone", CONFIG, {})
    (alone / "model.safetensors").unlink()
    for i in range(count):
        match rng.randrange(6):
            case 0:
                model, path, data = tmp_path / "x.gguf", tmp_path / "x.gguf", damaged(small(), rng)
            case 1:
                model, path, data = tmp_path / "x.gguf", tmp_path / "x.gguf", odd_gguf(rng)
            case 2:
                model, path, data = whole[0], whole[0] / "model.safetensors", damaged(header, rng)
            case 3:
                model, path, data = whole[0], whole[0] / "model.safetensors", odd_safetensors(header, rng)
            case 4:
                model = rng.choice([*whole[1:], alone])
                path, data = model / "config.json", damaged(json.dumps(rng.choice(CONFIGS)).encode(), rng)
            case _:
                model = rng.choice([*whole[1:], alone])
                path, data = model / "config.json", odd_config(rng)
        path.write_bytes(data)
        try:
            load(model, context=64, mode=rng.choice(["decode", "prompt"]))
        except ImporterError:
            pass
        except Exception as e:
            place = traceback.extract_tb(e.__traceback__)[-1]
            wrong.setdefault(f"{type(e).__name__}: {e} ({place.filename}:{place.lineno})", (i, data))
    assert wrong == {}


def odd_config(rng: random.Random) -> bytes:
    """A configuration with one to three odd values."""
    config = dict(rng.choice(CONFIGS))
    for _ in range(rng.randrange(1, 4)):
        config[rng.choice([*config])] = rng.choice(ODD)
    return json.dumps(config).encode()


def odd_safetensors(header: bytes, rng: random.Random) -> bytes:
    """A header with one to three odd tensors."""
    tensors = json.loads(header[8:])
    for _ in range(rng.randrange(1, 4)):
        name = rng.choice([*tensors])
        tensor = tensors.pop(name)
        match rng.randrange(5):
            case 0:
                tensors[name.replace("1", "0")] = tensor
            case 1:
                tensors[name] = tensor | {"shape": [rng.choice([0, 1, 3, 64, 2**39]) for _ in range(rng.randrange(5))]}
            case 2:
                tensors[name] = tensor | {rng.choice(["dtype", "shape", "data_offsets"]): rng.choice(ODD)}
            case 3:
                tensors[f"{name}{rng.choice(['_scale_inv', '_packed', '.absmax', '_blocks', '.bias', '.'])}"] = tensor
    data = json.dumps(tensors).encode()
    return struct.pack("<Q", len(data)) + data


def odd_gguf(rng: random.Random) -> bytes:
    """A header of any architecture with an odd value, and tensors of odd sizes."""
    architecture = rng.choice(DECODERS)
    tensors = {n.format(bid=i): made_up(n.removeprefix("blk.{bid}.")) for n in names_of(architecture) for i in (0, 1)}
    about = {"block_count": 2, "embedding_length": 64, "attention.head_count": 4, "expert_count": 8, "expert_used_count": 2,
             "ssm.inner_size": 128, "ssm.state_size": 16, "ssm.conv_kernel": 4, "attention.sliding_window": 50}  # fmt: skip
    for _ in range(rng.randrange(3)):
        about[rng.choice([*about])] = rng.choice([0, 1, 3, 7, 1000, 2**31, 2**32 - 1])
    for _ in range(rng.randrange(4)):
        name = rng.choice([*tensors])
        sizes = tuple(rng.choice([1, 2, 3, 8, 32, 64, 128, 4096]) for _ in range(rng.randrange(1, 5)))
        tensors |= {name: sizes} if rng.randrange(2) else {}
        if rng.randrange(3) == 0 and len(tensors) > 1:
            del tensors[name]
    values = {"general.architecture": architecture} | {f"{architecture}.{key}": value for key, value in about.items()}
    return gguf(values, {f"{name}.weight": sizes for name, sizes in tensors.items()}, 1, 2.0)


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
