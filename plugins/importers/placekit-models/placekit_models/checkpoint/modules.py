"""Names of tensors in GGUF files, and the modules of transformers that have them. The tables are those of package `gguf`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from placekit_models.shape import Checkpoint, Tensor

STEMS = {
    "mamba2": "backbone", "mamba": "backbone", "nemotron_h": "backbone", "nemotron_h_moe": "backbone",
    "gpt2": "transformer.h", "falcon": "transformer.h", "starcoder": "transformer.h", "gptneox": "gpt_neox",
    "mpt": "transformer.blocks",
}  # fmt: skip
"""Beginnings of the paths of modules, where they are not `model`."""
PARTS = {
    "jamba": ("self_attn", "feed_forward", "mamba"), "llama4": ("self_attn", "feed_forward"),
    "lfm2": ("feed_forward", "self_attn"),
    "granitehybrid": ("self_attn", "block_sparse_moe", "shared_mlp", "mamba"), "granitemoe": ("self_attn", "block_sparse_moe"),
    "falcon-h1": ("self_attn", "feed_forward", "mamba"), "minimax-m2": ("self_attn", "block_sparse_moe"),
}  # fmt: skip
"""Modules of a layer, where they are not called `self_attn` and `mlp`."""
USUAL = ("self_attn", "mlp", "linear_attn", "mixer", "mamba")
ODD = re.compile(r"query_key_value|language_|dense_h_to_4h|\.w\d$|embedding$|pre_\w*norm")
"""Names that few models have, where others are known."""
TYPES = {
    "mistral": "llama", "mixtral": "llama", "gemma3_text": "gemma3", "qwen3_next": "qwen3next", "qwen3_moe": "qwen3moe",
    "qwen2_moe": "qwen2moe", "deepseek_v2": "deepseek2", "deepseek_v3": "deepseek2", "gpt_oss": "gpt-oss", "cohere": "command-r",
    "glm4_moe": "glm4moe", "granitemoehybrid": "granitehybrid", "falcon_h1": "falcon-h1", "llama4_text": "llama4",
    "ministral": "mistral3", "minimax_m2": "minimax-m2", "phi": "phi2", "gpt_bigcode": "starcoder", "gpt_neox": "gptneox",
    "qwen3_5_text": "qwen35", "qwen3_5": "qwen35", "qwen3_5_moe": "qwen35moe", "qwen3_5_moe_text": "qwen35moe",
    "glm4_moe_lite": "deepseek2", "mistral3": "mistral3", "kimi_k2": "deepseek2", "olmo3": "olmo2",
}  # fmt: skip
"""Architectures in GGUF files, by `model_type` of a configuration, where they differ."""


@cache
def architectures() -> frozenset[str]:
    """The architectures that llama.cpp knows."""
    from gguf.constants import MODEL_ARCH_NAMES

    return frozenset(MODEL_ARCH_NAMES.values())


def architecture_of(model_type: str) -> str:
    """The architecture of a `model_type`; if it is unknown, the `model_type` itself."""
    return TYPES.get(model_type, model_type)


def with_modules(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint with the module of each tensor. A tensor of an unknown module gets a module of its own in its layer."""
    architecture = checkpoint.architecture
    stem, parts = STEMS.get(architecture, "model"), (*PARTS.get(architecture, ()), *USUAL)
    layers = stem if "." in stem else f"{stem}.layers"
    paths = {template: _path(names, stem, parts) for template, names in _names().items()}
    linear = ("linear_attn",) if any(t.key.startswith(("ssm_ba", "ssm_beta")) for t in checkpoint.tensors) else ()
    recurrent = {template: _path(names, stem, (*linear, *parts[::-1])) for template, names in _names().items()}
    attends = {t.layer for t in checkpoint.tensors if t.key == "attn_output"}
    mixed = {t.layer for t in checkpoint.tensors if t.key == "ssm_out"} - attends

    def module(tensor: Tensor) -> str:
        if tensor.module:
            return tensor.module
        key = tensor.key.removesuffix(".bias")
        own = recurrent if key.startswith("ssm") or (key.startswith("attn_") and tensor.layer in mixed) else paths
        found = own.get(f"blk.{{bid}}.{key}" if tensor.layer >= 0 else key, "").format(bid=tensor.layer)
        if not found and tensor.layer >= 0:
            return f"{layers}.{tensor.layer}.{key.replace('.', '_')}"
        # the experts of a layer are one module
        return found.rpartition(".")[0] if "exps" in key and found.rpartition(".")[0].endswith("experts") else found

    return replace(checkpoint, tensors=tuple(replace(t, module=module(t)) for t in checkpoint.tensors))


@cache
def _names() -> dict[str, tuple[str, ...]]:
    """Names of modules by the name of the tensor, both with `{bid}` for the layer."""
    from gguf.constants import TENSOR_NAMES
    from gguf.tensor_mapping import TensorNameMap

    tables = (TensorNameMap.mappings_cfg, TensorNameMap.block_mappings_cfg)
    found: dict[str, tuple[str, ...]] = {}
    for tensor, names in ((tensor, names) for table in tables for tensor, names in table.items()):
        found[TENSOR_NAMES[tensor]] = (*found.get(TENSOR_NAMES[tensor], ()), *names)
    return found


def _path(names: Sequence[str], stem: str, parts: Sequence[str]) -> str:
    """The module among `names` that begins with `stem` and is in the first of `parts`; empty if none looks like it."""
    own = [n for n in names if (n.startswith(f"{stem}.") and "layers.layers" not in n) or n == "lm_head"]

    def rank(name: str) -> tuple[bool, bool, int, int]:
        part = next((p for p in name.split(".") if p in parts), "")
        return name != "lm_head", bool(ODD.search(name)), parts.index(part) if part else len(parts), own.index(name)

    return min(own, key=rank, default="")


def tensor_names(architecture: str, layers: int) -> dict[str, str]:
    """The module of each tensor in GGUF files, for an architecture. For an unknown one, the names of all architectures."""
    from gguf.constants import MODEL_ARCH_NAMES
    from gguf.tensor_mapping import get_tensor_name_map

    arch: Any = next((a for a, name in MODEL_ARCH_NAMES.items() if name == architecture), None)
    if arch is not None:
        return {key: name for key, (_, name) in get_tensor_name_map(arch, layers).mapping.items()}
    return {
        n.format(bid=i): name.format(bid=i)
        for name, names in _names().items() for n in names for i in range(layers if "{bid}" in name else 1)
    }  # fmt: skip
