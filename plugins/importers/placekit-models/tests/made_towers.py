"""Tensors and hyperparameters of towers, as their converted files have them: matrices in 16 bits, the rest in 32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from placekit_models.shape import Sizes

TOWERS: dict[str, dict[str, Any]] = {
    "qwen2.5vl_merger": {"width": 1280, "ffn": 3420, "layers": 32, "patch": 14, "image": 560, "hidden": 3584},
    "qwen3vl_merger": {"width": 1024, "ffn": 4096, "layers": 24, "patch": 16, "image": 768, "hidden": 2560},
    "pixtral": {"width": 1024, "ffn": 4096, "layers": 24, "patch": 14, "image": 1540, "hidden": 5120},
    "gemma3": {"width": 1152, "ffn": 4304, "layers": 27, "patch": 14, "image": 896, "hidden": 2560},
}
"""Qwen2.5-VL-7B, Qwen3.5-4B, Mistral-Small-3.2 and Gemma-3-4B."""
HALF = ("qwen2.5vl_merger", "pixtral")
"""Older files: the convolution that reads pixels is in 16 bits, too."""


def tensors_of(projector: str, width: int, ffn: int, layers: int, patch: int, image: int, hidden: int) -> Sizes:
    """All tensors, by their names in the file."""
    gated, fused = projector in HALF, "qwen3" in projector  # those with a gate have norms without biases
    sizes: Sizes = {"v.patch_embd.weight": (patch, patch, 3, width)}
    matrices = (
        {"attn_qkv": (width, 3 * width)} if fused else dict.fromkeys(("attn_q", "attn_k", "attn_v"), (width, width))
    )
    matrices |= {"attn_out": (width, width), "ffn_up": (width, ffn), "ffn_down": (ffn, width)}
    matrices |= {"ffn_gate": (width, ffn)} if gated else {}
    for i in range(layers):
        for key, size in matrices.items():
            sizes[f"v.blk.{i}.{key}.weight"] = size
            if projector != "pixtral":
                sizes[f"v.blk.{i}.{key}.bias"] = size[1:]
        for key in ("ln1", "ln2"):
            sizes |= {f"v.blk.{i}.{key}.{end}": (width,) for end in (("weight",) if gated else ("weight", "bias"))}
    four = 4 * width
    match projector:
        case "gemma3":
            sizes |= {"v.patch_embd.bias": (width,), "v.position_embd.weight": (width, (image // patch) ** 2)}
            sizes |= dict.fromkeys(("v.post_ln.weight", "v.post_ln.bias", "mm.soft_emb_norm.weight"), (width,))
            sizes["mm.input_projection.weight"] = (hidden, width)
        case "pixtral":
            sizes |= {
                "v.pre_ln.weight": (width,), "v.token_embd.img_break": (hidden,), "mm.input_norm.weight": (width,),
                "mm.patch_merger.weight": (four, width), "mm.1.weight": (width, hidden), "mm.2.weight": (hidden, hidden),
            }  # fmt: skip
        case _:
            sizes |= {"v.patch_embd.weight.1": (patch, patch, 3, width), "v.post_ln.weight": (width,)}
            sizes |= {
                "mm.0.weight": (four, four),
                "mm.0.bias": (four,),
                "mm.2.weight": (four, hidden),
                "mm.2.bias": (hidden,),
            }
            if projector == "qwen3vl_merger":
                sizes |= {
                    "v.position_embd.weight": (width, 48**2),
                    "v.patch_embd.bias": (width,),
                    "v.post_ln.bias": (width,),
                }
    return sizes


def write(path: Path, projector: str, says: dict[str, int] | None = None, **change: int) -> Path:
    """Write a file, whose weights take no room on the disk; `says`: values in the header that its tensors do not have."""
    sizes = TOWERS[projector] | change
    writer = GGUFWriter(path, "clip")
    values = {
        "embedding_length": sizes["width"], "feed_forward_length": sizes["ffn"], "block_count": sizes["layers"],
        "patch_size": sizes["patch"], "image_size": sizes["image"], "projection_dim": sizes["hidden"], "attention.head_count": 16,
    }  # fmt: skip
    values |= {"n_wa_pattern": 8} if projector == "qwen2.5vl_merger" else {}
    values |= {"spatial_merge_size": 2} if projector == "pixtral" else {}
    for key, value in (values | (says or {})).items():
        writer.add_uint32(f"clip.vision.{key}", value)
    writer.add_string("clip.projector_type", projector)
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_bool("clip.use_silu" if "qwen2.5" in projector or projector == "pixtral" else "clip.use_gelu", True)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-6)
    writer.add_array("clip.vision.image_mean", [0.5, 0.5, 0.5])
    writer.add_array("clip.vision.image_std", [0.5, 0.5, 0.5])
    total = 0
    for name, size in tensors_of(projector, **sizes).items():
        small = len(size) < 2 or "position_embd" in name or ("patch_embd" in name and projector not in HALF)
        kind = GGMLQuantizationType.F32 if small else GGMLQuantizationType.F16
        bytes_ = int(np.prod(size)) * (4 if small else 2)
        writer.add_tensor_info(name, size[::-1], np.dtype(np.float32), bytes_, kind)
        total = -(-total // 32) * 32 + bytes_
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    assert writer.fout is not None
    file = writer.fout[0]
    file.truncate(-(-file.tell() // 32) * 32 + -(-total // 32) * 32)
    writer.close()
    return path
