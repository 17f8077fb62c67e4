"""Bytes of tensors in named formats: which type each tensor has.

Formats of GGUF files follow ggml-org/llama.cpp, src/llama-quant.cpp, `llama_tensor_get_type_impl` at 007dbbf, for a model
without an importance matrix; the code is our own. The others follow what vLLM and transformers load: they quantise matrices of
layers, without the router, the embedding and the output.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import replace

from placekit_core import ImporterError
from placekit_models.checkpoint.gguf_header import bits_of, types
from placekit_models.shape import Checkpoint, Tensor

GGUF = {
    "f32": "F32", "f16": "F16", "bf16": "BF16", "q8_0": "Q8_0", "q6_k": "Q6_K", "q5_k_m": "Q5_K", "q5_k_s": "Q5_K",
    "q5_0": "Q5_0", "q5_1": "Q5_1", "q4_k_m": "Q4_K", "q4_k_s": "Q4_K", "q4_0": "Q4_0", "q4_1": "Q4_1", "iq4_xs": "IQ4_XS",
    "iq4_nl": "IQ4_NL", "q3_k_l": "Q3_K", "q3_k_m": "Q3_K", "q3_k_s": "Q3_K", "q2_k": "Q2_K", "mxfp4_moe": "MXFP4",
}  # fmt: skip
"""The type of most tensors in each format of GGUF files."""
PACKED = {
    "fp8": 8.002, "int8": 8.016, "awq": 4 + 20 / 128, "gptq": 4 + 20 / 128, "int4": 4 + 16 / 128, "nf4": 4.127, "mxfp4": 4.25,
    "nvfp4": 4.5,
}  # fmt: skip
"""Bits of a quantised number in other formats, scales included: one of 32 bits for 128 x 128 numbers (fp8), of 16 for a row
(int8, of 1,000 numbers), one of 16 and a zero of 4 for 128 numbers (awq, gptq), one of 8 for 32 (mxfp4) or 16 (nvfp4)."""
KEPT = ("ffn_gate_inp", "altup", "laurel", "per_layer_model_proj", "position_embd", "indexer.k_proj", "indexer.q_proj")
SMALLER = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0", "Q3_K": "Q4_0", "Q2_K": "Q4_0", "IQ4_XS": "IQ4_NL"}
"""The type for rows that are no multiple of 256."""


def stored(checkpoint: Checkpoint, weights: str) -> Checkpoint:
    """The tensors in a format. Raises ImporterError for an unknown format."""
    name = weights.lower().replace("-", "_")
    if name in GGUF:
        choose: Callable[[Tensor], str] = _Recipe(checkpoint, name).type_of
        return replace(checkpoint, tensors=tuple(_as_type(t, choose(t)) for t in checkpoint.tensors))
    if name in PACKED:
        return replace(checkpoint, tensors=tuple(_packed(t, name) for t in checkpoint.tensors))
    close = difflib.get_close_matches(name, [*GGUF, *PACKED], 1)
    guess = f"did you mean {close[0]}? " if close else ""
    raise ImporterError(
        f"weights={weights!r:.40} is no format that is known",
        f"{guess}one of {', '.join([*GGUF, *PACKED])}; or give the file",
    )


def _packed(tensor: Tensor, name: str) -> Tensor:
    own = tensor.matrix and tensor.layer >= 0 and not tensor.key.startswith(KEPT)
    if own and (name != "mxfp4" or "exps" in tensor.key):
        return replace(tensor, bits=PACKED[name], type=name)
    return replace(tensor, bits=16.0, type="BF16") if tensor.matrix else tensor


def _as_type(tensor: Tensor, type_: str) -> Tensor:
    return replace(tensor, bits=bits_of(type_), type=type_)


class _Recipe:
    """Which type a format of GGUF files gives each tensor."""

    def __init__(self, checkpoint: Checkpoint, name: str) -> None:
        self.name, self.base = name, GGUF[name]
        matrices = [t for t in checkpoint.tensors if t.matrix]
        sizes = {t.key: t.shape for t in matrices}
        self.tied = "output" not in sizes
        self.experts = next((t.shape[2] for t in matrices if "exps" in t.key), 0)
        queries, keys = sizes.get("attn_output", (1, 1))[0], sizes.get("attn_k", (1, 1))[1]
        self.shared = max(queries // keys, 1) if keys > 1 else 1
        self.large = checkpoint.layers == 80 and self.shared == 8
        self.values = [t.layer for t in matrices if self._is_value(t.key)]
        self.down = [t.layer for t in matrices if t.key.startswith("ffn_down")] if not self.experts else []
        self.layers = checkpoint.layers

    def type_of(self, tensor: Tensor) -> str:
        """The type of a tensor."""
        if not tensor.matrix or tensor.key.startswith(KEPT):
            return "F32"
        if self.base in ("F32", "F16", "BF16"):
            return self.base
        type_ = self._wanted(tensor)
        if tensor.shape[0] % types()[type_][0]:
            type_ = SMALLER.get(type_, "F16")
        return type_ if tensor.shape[0] % types()[type_][0] == 0 else "F16"

    def _wanted(self, tensor: Tensor) -> str:
        key, name = tensor.key, self.name
        if key == "output" or (self.tied and key in ("token_embd", "per_layer_token_embd")):
            narrow = tensor.shape[0] % types()[self.base][0]
            return "Q8_0" if narrow or name in ("mxfp4_moe", "q8_0") else "Q6_K"
        if name == "mxfp4_moe":
            return "MXFP4" if "exps" in key else "Q8_0"
        if self._is_value(key):
            return self._values(self.values.index(tensor.layer))
        if key == "attn_k":
            return "Q8_0" if self.experts == 8 else self.base
        if key.startswith("ffn_down"):
            count = self.layers if self.experts else len(self.down)
            return self._downs(tensor.layer if self.experts else self.down.index(tensor.layer), count)
        if key == "attn_output":
            if self.experts == 8:
                return (
                    "Q5_K"
                    if name in ("q2_k", "q3_k_s", "q3_k_m", "iq4_nl", "q4_k_s", "q4_k_m", "iq4_xs")
                    else self.base
                )
            return {"q2_k": "Q3_K", "q3_k_m": "Q4_K", "q3_k_l": "Q5_K"}.get(name, self.base)
        return self.base

    def _values(self, i: int) -> str:
        """The type of the i-th matrix of values."""
        if self.experts == 8:
            return "Q8_0"
        name, many = self.name, self.shared >= 4
        type_ = self.base
        if name in ("q4_k_m", "q5_k_m") and _more(i, len(self.values)):
            type_ = "Q6_K"
        elif name == "q2_k":
            type_ = "Q4_K" if many else "Q3_K"
        elif name in ("q3_k_l", "iq4_xs", "iq4_nl"):
            type_ = "Q5_K" if many or name == "q3_k_l" else self.base
        elif name == "q3_k_m":
            type_ = "Q5_K" if i < 2 else "Q4_K"
        elif name == "q4_k_s" and i < 4:
            type_ = "Q5_K"
        return "Q5_K" if self.large and type_ in ("Q3_K", "Q4_K") else type_

    def _downs(self, i: int, count: int) -> str:
        """The type of the i-th of `count` matrices back from a network."""
        name = self.name
        if name in ("q4_k_m", "q5_k_m"):
            return "Q6_K" if _more(i, count) else self.base
        if name in ("q4_k_s", "iq4_xs", "iq4_nl"):
            return "Q5_K" if i < count // 8 else self.base
        if name == "q3_k_m":
            return "Q5_K" if i < count // 16 else "Q4_K"
        return {"q2_k": "Q3_K", "q3_k_l": "Q5_K"}.get(name, self.base)

    @staticmethod
    def _is_value(key: str) -> bool:
        return key in ("attn_v", "attn_qkv", "attn_kv_b")


def _more(i: int, count: int) -> bool:
    """Whether a layer gets more bits: the first and the last eighth, and every third between them."""
    return i < count // 8 or i >= 7 * count // 8 or (i - count // 8) % 3 == 2
