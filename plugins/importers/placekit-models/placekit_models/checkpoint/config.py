"""The shape of a decoder from a `config.json` of transformers, whatever the model calls its fields."""

from __future__ import annotations

from typing import Any

from placekit_core import ImporterError
from placekit_models.checkpoint.metadata import CHUNK, MAX_LAYERS, PERIODS
from placekit_models.checkpoint.modules import architecture_of
from placekit_models.shape import Experts, Latent, Linear, Shape, Ssm

NESTED = ("text_config", "llm_config", "language_config")
PLAIN = (
    "gpt2",
    "starcoder2",
    "nemotron",
    "nemotron_h",
    "phi",
    "falcon",
    "gpt_neox",
    "gpt_bigcode",
    "mpt",
    "bloom",
    "opt",
)
"""Types of models whose networks have two matrices."""
TIED = (
    "gemma",
    "gemma2",
    "gemma3",
    "gemma3_text",
    "gemma3n",
    "cohere",
    "cohere2",
    "gpt2",
    "mamba2",
    "falcon",
    "starcoder2",
)
"""Types whose output is the embedding unless the configuration says otherwise."""
KINDS = {
    "full_attention": "a", "attention": "a", "sliding_attention": "w", "chunked_attention": "w", "linear_attention": "l",
    "mamba": "l", "mamba2": "l", "recurrent": "l",
}  # fmt: skip
LARGEST = 2**24


class _Fields:
    """The fields of a configuration, by any of their names."""

    def __init__(self, data: dict[str, Any], where: str) -> None:
        self.data, self.where = data, where

    def count(self, *names: str, default: int | None = None) -> int:
        """A number. Raises ImporterError if it is missing and has no default, or is not a count."""
        name = next((n for n in names if self.data.get(n) is not None), None)
        if name is None:
            if default is not None:
                return default
            raise ImporterError(
                f"{self.where} has no {names[0]}, so it is not the configuration of a decoder",
                "a folder needs the model's own config.json; a GGUF file needs none",
            )
        value = self.data[name]
        if isinstance(value, list) and value and all(isinstance(v, int) for v in value):
            value = max(value)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= LARGEST:
            raise ImporterError(f"{self.where}: {name} is {value!r:.40}, not a count", "correct it")
        return value

    def true(self, name: str, default: bool = False) -> bool:
        """A flag."""
        value = self.data.get(name)
        return value if isinstance(value, bool) else default


def shape_of(config: dict[str, Any], where: str) -> Shape:
    """The shape that a configuration describes. Raises ImporterError."""
    inner: dict[str, Any] = next((config[key] for key in NESTED if isinstance(config.get(key), dict)), {})
    data = {**config, **inner}
    type_ = data.get("model_type")
    type_ = type_ if isinstance(type_, str) else ""
    get = _Fields(data, where)
    hidden = get.count("hidden_size", "n_embd", "d_model")
    layers = get.count("num_hidden_layers", "n_layer", "n_layers", "num_layers")
    heads = get.count("num_attention_heads", "n_head", "n_heads", default=0 if "mamba" in type_ else None)
    if not 0 < layers <= MAX_LAYERS or not hidden > 0:
        raise ImporterError(f"{where}: {layers} layers of width {hidden} cannot be a decoder", "correct the file")
    ffn = get.count("intermediate_size", "n_inner", "ffn_hidden_size", "ffn_dim", default=4 * hidden)
    if inner_ := get.count("intermediate_size_mlp", default=0):  # Llama 4: the experts have the other width
        ffn = inner_
    shape = Shape(
        layers=layers, hidden=hidden, heads=heads,
        kv_heads=get.count("num_key_value_heads", "n_head_kv", "multi_query_group_num", "num_kv_heads", default=heads),
        vocab=get.count("vocab_size"), ffn=ffn, head=get.count("head_dim", default=hidden // max(heads, 1)),
        tied=get.true("tie_word_embeddings", type_ in TIED),
        gated=get.true("attn_output_gate") or type_.startswith(("qwen3_next", "qwen3_5")),
        plain=type_ in PLAIN, fused=type_ in ("phi3", "gpt2"), experts=_experts(get, type_, ffn), latent=_latent(get),
        linear=_linear(get), ssm=_ssm(get, type_, hidden), window=_window(get, type_), pattern=_pattern(get, type_, layers),
        architecture=architecture_of(type_),
    )  # fmt: skip
    if set(shape.pattern) & {*"lbM"} and shape.ssm is None and shape.linear is None:
        raise ImporterError(
            f"{where} has recurrent layers that placekit does not know ({type_})", "give a GGUF file of the model"
        )
    return shape


def _experts(get: _Fields, type_: str, ffn: int) -> Experts | None:
    count = get.count("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", default=0)
    if count < 2:
        return None
    active = get.count("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k")
    if not 0 < active <= count:
        raise ImporterError(f"{get.where}: a token uses {active} of {count} experts", "correct the file")
    width = get.count("moe_intermediate_size", "expert_ffn_hidden_size", "intermediate_size")
    shared = get.count("n_shared_experts", "num_shared_experts", default=int(type_.startswith("llama4"))) * width
    shared = get.count(
        "shared_expert_intermediate_size",
        "shared_intermediate_size",
        "moe_shared_expert_intermediate_size",
        default=shared,
    )
    every = get.count(
        "decoder_sparse_step", "interleave_moe_layer_step", "expert_layer_period", "moe_layer_freq", default=1
    )
    dense = get.count("first_k_dense_replace", "num_dense_layers", default=0)
    return Experts(count, active, width, shared, dense, ffn, max(every, 1))


def _latent(get: _Fields) -> Latent | None:
    rank = get.count("kv_lora_rank", default=0)
    if not rank:
        return None
    return Latent(
        get.count("q_lora_rank", default=0), rank, get.count("qk_rope_head_dim"), get.count("qk_nope_head_dim"),
        get.count("v_head_dim"),
    )  # fmt: skip


def _linear(get: _Fields) -> Linear | None:
    heads = get.count("linear_num_value_heads", default=0)
    return Linear(get.count("linear_num_key_heads"), heads, get.count("linear_value_head_dim")) if heads else None


def _ssm(get: _Fields, type_: str, hidden: int) -> Ssm | None:
    state = get.count("mamba_d_state", "ssm_state_size", "state_size", default=0)
    if not state:
        return None
    heads = get.count("mamba_n_heads", "mamba_num_heads", default=0)
    heads = heads or (get.count("num_heads", default=0) if type_ == "mamba2" else 0)
    width = get.count("mamba_head_dim", "mamba_d_head", "head_dim", default=0) if heads else 0
    inner = heads * width or get.count("mamba_expand", "expand", default=2) * hidden
    groups = get.count("mamba_n_groups", "n_groups", default=1)
    rank = get.count("mamba_dt_rank", "time_step_rank", default=hidden // 16)
    return Ssm(inner, state, groups, heads, rank, get.count("mamba_d_conv", "conv_kernel", default=4))


def _window(get: _Fields, type_: str) -> int:
    if not get.true("use_sliding_window", True):
        return 0
    chunk = get.count("attention_chunk_size", default=CHUNK) if type_.startswith("llama4") else 0
    return get.count("sliding_window", default=0) or chunk


def _pattern(get: _Fields, type_: str, layers: int) -> str:
    """The kinds of the layers."""
    own = get.data.get("hybrid_override_pattern")
    if isinstance(own, str) and own and set(own) <= {*"M*-E"}:
        return own
    listed = get.data.get("layer_types") or get.data.get("layers_block_type")
    if isinstance(listed, list) and len(listed) >= layers:
        unknown = next((t for t in listed if t not in KINDS), None)
        if unknown is not None:
            raise ImporterError(f"{get.where} has layers of type {unknown!r:.40}", f"known are {', '.join(KINDS)}")
        return "".join(KINDS[t] for t in listed[:layers])
    if type_ in ("mamba2", "mamba"):
        return "M"
    if type_ == "falcon_h1":
        return "b"
    if period := get.count("attn_layer_period", default=0):
        place = get.count("attn_layer_offset", default=0)
        return "".join("a" if i % period == place else "l" for i in range(min(period, layers)))
    if period := get.count("full_attention_interval", default=0):
        return "l" * (period - 1) + "a"
    if _window(get, type_):
        period = get.count(
            "sliding_window_pattern", "_sliding_window_pattern", default=PERIODS.get(architecture_of(type_), 0)
        )
        return "w" * (period - 1) + "a" if period else "w"
    return "a"
