"""Writes GGUF files that llama.cpp loads: the tensors and hyperparameters of a shape, with random weights or without any."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.constants import GGML_QUANT_SIZES
from placekit_models.shape import Experts, Latent, Linear, Shape, Sizes, Ssm

NORMS_APART = ("qwen3next", "gpt-oss", "qwen35", "qwen35moe")
"""Architectures whose norm before the network is called `post_attention_norm`."""
FAMILIES: dict[str, Shape] = {
    "dense": Shape(4, 256, 8, 2, 2048, ffn=704, head=32),
    "moe": Shape(
        4, 256, 8, 2, 2048, head=64, experts=Experts(16, 4, 256), architecture="qwen3moe",
    ),
    "mla": Shape(
        4, 512, 8, 8, 2048, latent=Latent(256, 256, 64, 128, 128), architecture="deepseek2",
        experts=Experts(16, 4, 256, shared_width=256, dense=1, dense_width=1280),
    ),
    "window": Shape(6, 256, 4, 2, 2048, ffn=1024, head=64, tied=True, window=512, pattern="wwwwwa", architecture="gemma3"),
    "window moe": Shape(
        4, 256, 8, 2, 2048, head=64, window=128, pattern="wa", experts=Experts(8, 2, 256), architecture="gpt-oss",
    ),
    "hybrid": Shape(
        4, 256, 4, 2, 2048, head=64, gated=True, pattern="llla", linear=Linear(4, 8, 32), architecture="qwen3next",
        experts=Experts(16, 4, 256, shared_width=256),
    ),
    "state space": Shape(
        4, 256, 8, 2, 2048, head=32, ffn=768, pattern="llal", ssm=Ssm(512, 64, 1, 16), architecture="granitehybrid",
    ),
    "tied": Shape(4, 256, 8, 4, 4096, ffn=768, head=64, tied=True, architecture="qwen3"),
    "draft": Shape(4, 256, 4, 2, 4096, ffn=512, head=64, tied=True, architecture="qwen3"),
}  # fmt: skip
"""Small models: few layers, and widths in the proportions of published models."""


def values_of(shape: Shape, context: int) -> dict[str, Any]:
    """The hyperparameters of a file, without the architecture before their names."""
    layers = range(shape.layers)
    values: dict[str, Any] = {
        "block_count": shape.layers, "context_length": context, "embedding_length": shape.hidden, "vocab_size": shape.vocab,
        "feed_forward_length": shape.ffn or 1, "attention.head_count": shape.heads, "attention.head_count_kv": shape.kv_heads,
        "attention.key_length": shape.head, "attention.value_length": shape.head, "rope.dimension_count": shape.head,
        "attention.layer_norm_rms_epsilon": 1e-5,
    }  # fmt: skip
    if e := shape.experts:
        values |= {
            "expert_count": e.count, "expert_used_count": e.active, "expert_feed_forward_length": e.width,
            "leading_block_count": e.dense, "leading_dense_block_count": e.dense, "feed_forward_length": e.dense_width or e.width,
            "expert_weights_scale": 1.0,
        }  # fmt: skip
        if e.shared_width:
            values |= {"expert_shared_count": 1, "expert_shared_feed_forward_length": e.shared_width}
    if m := shape.latent:
        values |= {
            "attention.key_length": m.kv_rank + m.rope, "attention.value_length": m.kv_rank, "attention.head_count_kv": 1,
            "attention.key_length_mla": m.nope + m.rope, "attention.value_length_mla": m.value,
            "attention.kv_lora_rank": m.kv_rank, "rope.dimension_count": m.rope,
        } | ({"attention.q_lora_rank": m.q_rank} if m.q_rank else {})  # fmt: skip
    if shape.window:
        values |= {"attention.sliding_window": shape.window}
    if n := shape.linear:
        values |= {
            "ssm.inner_size": n.value_heads * n.head, "ssm.state_size": n.head, "ssm.time_step_rank": n.value_heads,
            "ssm.group_count": n.key_heads, "ssm.conv_kernel": 4, "full_attention_interval": len(shape.pattern),
            "rope.dimension_sections": [16, 24, 24, 0],
        }  # fmt: skip
    if s := shape.ssm:
        attends = [shape.kv_heads if shape.kind(i) in "ab*" else 0 for i in layers]
        values |= {
            "ssm.inner_size": s.inner, "ssm.state_size": s.state, "ssm.group_count": s.groups, "ssm.conv_kernel": s.kernel,
            "ssm.time_step_rank": s.heads or s.rank, "attention.head_count_kv": attends,
        }  # fmt: skip
        if shape.architecture.startswith("nemotron_h"):
            values["feed_forward_length"] = [shape.ffn if shape.kind(i) == "-" else 0 for i in layers]
    return values


def layer(shape: Shape, i: int) -> Sizes:
    """The tensors of a layer, with the ends of their names."""
    kind, architecture = shape.kind(i), shape.architecture
    sizes = {
        f"{k}.weight": v for k, v in (shape.attention(i) | shape.network(i) | shape.routed(i) | shape.small(i)).items()
    }
    norms = [f"{k}_norm.weight" for k in ("attn_q", "attn_k")] if kind in "aw" else []
    if architecture in ("qwen3", "qwen3moe", "gemma3", "qwen3next", "qwen35", "qwen35moe"):
        sizes |= dict.fromkeys(norms, (shape.head,))
    if architecture in NORMS_APART:
        sizes["post_attention_norm.weight"] = sizes.pop("ffn_norm.weight")
    if architecture == "gemma3":
        sizes |= dict.fromkeys(("post_attention_norm.weight", "post_ffw_norm.weight"), (shape.hidden,))
    if architecture == "qwen2":
        sizes |= {f"attn_{k}.bias": (sizes[f"attn_{k}.weight"][1],) for k in "qkv"}
    if architecture == "gpt-oss":
        sizes |= {k.replace("weight", "bias"): v[1:] for k, v in sizes.items() if len(v) > 1}
        sizes["attn_sinks.weight"] = (shape.heads,)
    if m := shape.latent:
        del sizes["attn_kv_b.weight"]
        sizes |= {
            "attn_k_b.weight": (m.nope, m.kv_rank, shape.heads), "attn_v_b.weight": (m.kv_rank, m.value, shape.heads),
            "attn_kv_a_norm.weight": (m.kv_rank,),
        } | ({"attn_q_a_norm.weight": (m.q_rank,)} if m.q_rank else {})  # fmt: skip
    if shape.experts and shape.experts.shared_width and shape.linear:
        sizes["ffn_gate_inp_shexp.weight"] = (shape.hidden,)
    if (n := shape.linear) and kind == "l":
        sizes |= {"ssm_a": (n.value_heads,), "ssm_dt.bias": (n.value_heads,), "ssm_norm.weight": (n.head,)}
        if architecture != "qwen3next":
            del sizes["ssm_ba.weight"]
            sizes |= dict.fromkeys(("ssm_alpha.weight", "ssm_beta.weight"), (shape.hidden, n.value_heads))
    if (s := shape.ssm) and kind in "lbM":
        sizes |= {"ssm_conv1d.bias": sizes["ssm_conv1d.weight"][1:]}
        if s.heads:
            sizes |= {
                "ssm_a": (1, s.heads), "ssm_d": (1, s.heads), "ssm_dt.bias": (s.heads,),
                "ssm_norm.weight": (s.inner // s.groups, s.groups),
            }  # fmt: skip
        else:
            sizes |= {"ssm_a": (s.state, s.inner), "ssm_d": (s.inner,), "ssm_dt.bias": (s.inner,)}
            sizes |= {f"ssm_{k}_norm.weight": (n,) for k, n in (("dt", s.rank), ("b", s.state), ("c", s.state))}
    return sizes


def tensors_of(shape: Shape) -> Sizes:
    """All tensors, by their names in the file."""
    sizes: Sizes = {"token_embd.weight": (shape.hidden, shape.vocab), "output_norm.weight": (shape.hidden,)}
    if not shape.tied:
        sizes["output.weight"] = (shape.hidden, shape.vocab)
    return sizes | {f"blk.{i}.{k}": v for i in range(shape.layers) for k, v in layer(shape, i).items()}


def one_type(name: str, matrix: str = "F16") -> str:
    """The type of a tensor where all matrices have one: small tensors are in 32 bits, as in converted files."""
    small = name.endswith(".bias") or "norm" in name or "ssm_conv1d" in name or not name.endswith("weight")
    return "F32" if small or "ffn_gate_inp" in name or "attn_sinks" in name else matrix


def write(
    path: Path, shape: Shape, type_: Callable[[str], str] = one_type, *, context: int = 131072, fill: bool = True
) -> Path:
    """Write a file whose tensors have the types that `type_` gives for their names; without `fill`, nothing but the header
    takes room on the disk. Rows that no block divides are in 16 bits."""
    writer = GGUFWriter(path, shape.architecture)
    for key, value in values_of(shape, context).items():
        add = (
            writer.add_array
            if isinstance(value, list)
            else writer.add_float32
            if isinstance(value, float)
            else writer.add_uint32
        )
        add(f"{shape.architecture}.{key}", value)
    writer.add_tokenizer_model("none")
    random, bytes_ = np.random.default_rng(0), []
    types = []
    for name, size in tensors_of(shape).items():
        kind = type_(name)
        if size[0] % GGML_QUANT_SIZES[GGMLQuantizationType[kind]][0]:
            kind = "F16"
        block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
        count = int(np.prod(size)) // block
        types.append((kind, count))
        bytes_.append(count * block_bytes)
        writer.add_tensor_info(
            name, size[::-1], np.dtype(np.float32), bytes_[-1], GGMLQuantizationType[kind]
        )  # fmt: skip
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    assert writer.fout is not None
    file = writer.fout[0]
    file.seek(-(-file.tell() // 32) * 32)
    for (kind, count), size in zip(types, bytes_, strict=True):
        padded = -(-size // 32) * 32
        file.write(blocks(random, kind, count).tobytes().ljust(padded, b"\0")) if fill else file.seek(padded, 1)
    file.truncate()
    writer.close()
    return path


def blocks(random: np.random.Generator, kind: str, count: int) -> np.ndarray:
    """Random numbers of a type; of quantised types, random bytes with small scales. Raises KeyError for other types."""
    if kind in ("F32", "F16"):
        return (random.standard_normal(count, dtype=np.float32) * 0.02).astype(
            np.float32 if kind == "F32" else np.float16
        )
    size = GGML_QUANT_SIZES[GGMLQuantizationType[kind]][1]
    found = random.integers(0, 256, (count, size), dtype=np.uint8)
    for at in {"Q8_0": (0,), "Q4_K": (0, 2), "Q6_K": (208,)}[kind]:
        found[:, at : at + 2] = np.array([1e-4], np.float16).view(np.uint8)
    return found
