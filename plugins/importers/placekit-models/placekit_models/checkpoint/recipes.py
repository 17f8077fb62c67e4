"""Bytes of tensors in named formats: which type each tensor has.

Formats of GGUF files follow ggml-org/llama.cpp, src/llama-quant.cpp, `llama_tensor_get_type_impl` at 007dbbf; the code is our
own. The others follow what vLLM and transformers load: they quantise matrices of layers, without the router, the embedding and
the output. tests/published_sizes.yaml compares both with published files.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass, replace

from placekit_core import ImporterError
from placekit_models.checkpoint.gguf_header import bits_of, types
from placekit_models.shape import Checkpoint, Tensor


@dataclass(frozen=True)
class _Format:
    """A format of GGUF files: the type of most tensors, and rules for the others.

    A rule lists types with conditions: `first_8th:Q5_K Q4_K` gives Q5_K to the first eighth of layers, and Q4_K to the others. If
    no condition holds (`_Recipe.holds`), a tensor gets the type of most tensors.
    """

    most: str
    values: str = ""
    down: str = ""
    attn_output: str = ""
    attn_q_and_k: str = ""
    gate_and_up: str = ""
    embedding: str = ""
    output: str = "Q6_K"


_LOW = {"output": "Q5_K", "embedding": "Q2_K", "values": "many:Q4_K Q2_K", "down": "first_8th:Q2_K"}
_LOW_S = {
    "output": "Q5_K",
    "embedding": "IQ3_S",
    "values": "many:Q4_K IQ3_S",
    "down": "first_8th:IQ3_S",
    "attn_output": "IQ3_S",
}
GGUF = {
    **{name: _Format(name.upper()) for name in ("f32", "f16", "bf16", "q6_k", "q5_0", "q5_1", "q4_0", "q4_1")},
    "q8_0": _Format("Q8_0", output="Q8_0"),
    "q5_k_m": _Format("Q5_K", "more:Q6_K", "more:Q6_K"),
    "q5_k_s": _Format("Q5_K"),
    "q4_k_m": _Format("Q4_K", "more:Q6_K", "more:Q6_K"),
    "q4_k_s": _Format("Q4_K", "first_4:Q5_K", "first_8th:Q5_K"),
    "iq4_xs": _Format("IQ4_XS", "shared:Q5_K"),
    "iq4_nl": _Format("IQ4_NL", "shared:Q5_K"),
    "q3_k_l": _Format("Q3_K", "Q5_K", "Q5_K", "Q5_K"),
    "q3_k_m": _Format("Q3_K", "first_2:Q5_K Q4_K", "first_16th:Q5_K Q4_K", "Q4_K"),
    "q3_k_s": _Format("Q3_K"),
    "iq3_m": _Format("IQ3_S", "Q4_K", "first_8th:Q4_K mixtral:Q4_K", "Q4_K"),
    "iq3_s": _Format("IQ3_S", "shared:Q4_K"),
    "iq3_xs": _Format("IQ3_S", "shared:Q4_K", attn_q_and_k="IQ3_XXS", gate_and_up="middle:IQ3_XXS"),
    "iq3_xxs": _Format(
        "IQ3_XXS", "shared:Q4_K", attn_output="IQ3_S", attn_q_and_k="IQ2_S", embedding="IQ3_S", output="Q5_K"
    ),
    "q2_k": _Format("Q2_K", "shared:Q4_K Q3_K", "Q3_K", "Q3_K"),
    "q2_k_s": _Format("Q2_K", "shared:Q4_K", "first_8th:Q4_K"),
    "iq2_m": _Format("IQ2_S", **_LOW_S),
    "iq2_s": _Format("IQ2_XS", **_LOW_S),
    "iq2_xs": _Format("IQ2_XS", **_LOW),
    "iq2_xxs": _Format("IQ2_XXS", **_LOW),
    "iq1_m": _Format("IQ1_M", attn_output="IQ2_XXS", **_LOW),
    "iq1_s": _Format("IQ1_S", attn_output="IQ2_XXS", **_LOW),
    "mxfp4_moe": _Format("Q8_0", output="Q8_0"),
}  # fmt: skip
"""Formats of GGUF files. Those that begin with `iq` are made with an importance matrix, as published files are: without one, a
few tensors of `iq4_xs`, `iq4_nl` and `iq3_xxs` get more bits."""
PACKED = {
    "fp8": 8.002, "int8": 8.016, "awq": 4 + 20 / 128, "gptq": 4 + 20 / 128, "int4": 4 + 16 / 128, "nf4": 4.127, "mxfp4": 4.25,
    "nvfp4": 4.5,
}  # fmt: skip
"""Bits of a quantised number in other formats, scales included: one of 32 bits for 128 x 128 numbers (fp8), of 16 for a row
(int8, of 1,000 numbers), one of 16 and a zero of 4 for 128 numbers (awq, gptq), one of 8 for 32 (mxfp4) or 16 (nvfp4)."""
KEPT = ("ffn_gate_inp", "altup", "laurel", "per_layer_model_proj", "position_embd", "indexer.k_proj", "indexer.q_proj")
EIGHT_AFTER = (
    "q4_k_m", "q4_k_s", "iq4_xs", "iq4_nl", "q3_k_m", "q3_k_s", "iq3_m", "iq3_s", "iq3_xs", "iq3_xxs", "q2_k", "iq2_m", "iq2_s",
    "iq2_xs", "iq2_xxs", "iq1_m", "iq1_s",
)  # fmt: skip
"""Formats in which models with eight experts get Q5_K for `attn_output`."""
SMALLER = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0", "Q3_K": "Q4_0", "Q2_K": "Q4_0"}
"""The type for rows whose length is not a multiple of 256; for types beginning with `IQ`, it is IQ4_NL."""


def stored(checkpoint: Checkpoint, weights: str) -> Checkpoint:
    """The tensors in a format. Raises ImporterError for an unknown format."""
    name = weights.lower().replace("-", "_")
    if name in GGUF:
        choose: Callable[[Tensor], str] = _Recipe(checkpoint, name).type_of
        return replace(checkpoint, tensors=tuple(_as_type(t, choose(t)) for t in checkpoint.tensors))
    if name in PACKED:
        return replace(checkpoint, tensors=tuple(_packed(t, name) for t in checkpoint.tensors))
    if name.startswith("ud_") or name.endswith(
        "_xl"
    ):  # bits of Qwen3.5-397B-A17B and Qwen3.5-0.8B (ggml-org/Llama-macOS)
        raise ImporterError(
            f"weights={weights!r:.40} is a mix that differs from model to model: UD-Q4_K_XL takes 4.4 to 5.9 bits a number",
            "give the GGUF file itself (only its header is read), or plan with a format such as weights=q4_k_m",
        )
    close = difflib.get_close_matches(name, [*GGUF, *PACKED], 1)
    guess = f"did you mean {close[0]}? " if close else ""
    raise ImporterError(
        f"weights={weights!r:.40} is not a known format",
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
    """The type that a format of GGUF files gives each tensor."""

    def __init__(self, checkpoint: Checkpoint, name: str) -> None:
        self.name, self.format, self.layers = name, GGUF[name], checkpoint.layers
        matrices = [t for t in checkpoint.tensors if t.matrix]
        sizes = {t.key: t.shape for t in matrices}
        self.tied = "output" not in sizes
        self.experts = next((t.shape[2] for t in matrices if "exps" in t.key), 0)
        queries = sizes.get("attn_output", (1, 1))[0]
        keys = sizes["attn_k"][1] if "attn_k" in sizes else (sizes.get("attn_qkv", (0, 0))[1] - queries) // 2
        self.shared = queries // keys if keys > 0 else 1
        self.large = checkpoint.layers == 80 and self.shared == 8
        self.low = self.format.output == "Q5_K" and name != "iq3_xxs"
        self.values = [t.layer for t in matrices if _is_value(t.key)]
        self.down = [t.layer for t in matrices if t.key.startswith("ffn_down")]

    def type_of(self, tensor: Tensor) -> str:
        """The type of a tensor."""
        if not tensor.matrix or tensor.key.startswith(KEPT):
            return "F32"
        if self.format.most in ("F32", "F16", "BF16"):
            return self.format.most
        type_ = self._wanted(tensor)
        if tensor.shape[0] % types()[type_][0]:
            type_ = SMALLER.get(type_, "IQ4_NL" if type_.startswith("IQ") else "F16")
        return type_ if tensor.shape[0] % types()[type_][0] == 0 else "F16"

    def _wanted(self, tensor: Tensor) -> str:
        key, f = tensor.key, self.format
        if key == "output" or (self.tied and key in ("token_embd", "per_layer_token_embd")):
            return "Q8_0" if tensor.shape[0] % types()[f.most][0] else f.output
        if self.name == "mxfp4_moe":
            return "MXFP4" if "exps" in key else "Q8_0"
        if key in ("token_embd", "per_layer_token_embd"):
            return f.embedding or f.most
        if _is_value(key):
            return self._value(self.values.index(tensor.layer))
        if key == "attn_k" and self.experts == 8:
            return "Q4_K" if self.low else "Q8_0"
        if key == "attn_output" and self.experts == 8:
            return "Q5_K" if self.name in EIGHT_AFTER else f.most
        if key.startswith("ffn_down"):
            place = tensor.layer if self.experts else self.down.index(tensor.layer)
            return self._choose(f.down, place, self.layers)
        if key.startswith(("ffn_gate", "ffn_up")):
            return self._choose(f.gate_and_up, tensor.layer, self.layers)
        rules = {"attn_output": f.attn_output, "attn_q": f.attn_q_and_k, "attn_k": f.attn_q_and_k}
        return self._choose(rules.get(key, ""), tensor.layer, self.layers)

    def _value(self, i: int) -> str:
        """The type of the i-th matrix of values."""
        if self.experts == 8 and not self.low:
            return "Q8_0"
        type_ = self._choose(self.format.values, i, len(self.values))
        return "Q5_K" if self.large and not self.low and type_ in ("Q3_K", "Q4_K") else type_

    def _choose(self, rule: str, i: int, count: int) -> str:
        """The type that a rule gives the i-th of `count` tensors."""
        for part in rule.split():
            condition, _, type_ = part.rpartition(":")
            if not condition or self.holds(condition, i, count):
                return type_
        return self.format.most

    def holds(self, condition: str, i: int, count: int) -> bool:
        """Whether a condition of a rule holds for the i-th of `count` tensors."""
        return {
            "more": _more(i, count),
            "first_2": i < 2,
            "first_4": i < 4,
            "first_8th": i < count // 8,
            "first_16th": i < count // 16,
            "middle": count // 8 <= i < 7 * count // 8,
            "shared": self.shared >= 4,
            "many": self.shared >= 4 or self.experts >= 4,
            "mixtral": self.experts == 8 and _more(i, count),
        }[condition]


def _is_value(key: str) -> bool:
    """Whether a matrix counts as one of values. Latent attention has none: llama.cpp divides `attn_kv_b` into two matrices, which
    get the type of most tensors."""
    return key in ("attn_v", "attn_qkv")


def _more(i: int, count: int) -> bool:
    """Whether a layer gets more bits: the first and the last eighth, and every third between them."""
    return i < count // 8 or i >= 7 * count // 8 or (i - count // 8) % 3 == 2
