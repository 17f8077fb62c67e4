"""Compares imported models with formulas by hand: parameters, bytes of the cache, FLOPs and memory traffic.

    python benchmarks/formulas.py [--write] [NAME ...]

Each model is built from the numbers of its published configuration, with random weights, and imported in one mode with batch 1.
The formulas do not use placekit. They leave out small terms: normalisations, biases and rotary embeddings; for a decoded token,
also the activations. Exits with 1 if a number differs by 2% or more. `--write` writes the table to
benchmarks/results/formulas.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from placekit_core import Graph, load_programs

RESULTS = Path(__file__).parent / "results" / "formulas.md"
MOST = 0.02  # largest difference


class Numbers(NamedTuple):
    """The numbers of a model that are compared; `cache_bytes` is 0 for a model without a cache."""

    parameters: float
    cache_bytes: float
    flops: float
    traffic_bytes: float


@dataclass
class Attention:
    """Attention with heads of keys and values that heads of queries share; `window` tokens are cached in `windowed` layers.

    Without a `fused` kernel, keys and values are copied for all heads of queries.
    """

    heads: int
    kv: int
    width: int
    window: int = 0
    windowed: int = 0
    fused: bool = True

    def parameters(self, hidden: int) -> int:
        return 2 * hidden * self.width * (self.heads + self.kv)

    def cached(self) -> int:
        """Numbers in the cache, for a token in a layer."""
        return 2 * self.kv * self.width

    def products(self) -> int:
        """FLOPs of a token for each token in the cache."""
        return 4 * self.heads * self.width

    def copied(self) -> int:
        """Numbers moved for each token in the cache, beside reading it: keys and values of all heads are written and read."""
        return 0 if self.fused else 4 * self.heads * self.width


@dataclass
class Latent:
    """Multi-head latent attention (DeepSeek-V2, section 2.1).

    transformers caches the latent and the shared key, and computes the keys and values of all heads for each token again.
    """

    heads: int
    query: int
    latent: int
    rope: int
    width: int
    value: int
    window = windowed = 0

    def parameters(self, hidden: int) -> int:
        keys = self.width + self.rope
        query = hidden * self.query + self.query * self.heads * keys if self.query else hidden * self.heads * keys
        shared = hidden * (self.latent + self.rope) + self.latent * self.heads * (self.width + self.value)
        return query + shared + self.heads * self.value * hidden

    def cached(self) -> int:
        return self.latent + self.rope

    def products(self) -> int:
        expanded = self.latent * self.heads * (self.width + self.value)
        return 2 * expanded + 2 * self.heads * (self.width + self.rope + self.value)

    def copied(self) -> int:
        """Numbers moved for each token in the cache, beside reading it: the expanded keys and values are written, the keys are
        copied to append the shared part, and attention reads the result."""
        made = self.heads * (self.width + self.value)
        joined = self.heads * 2 * self.width + self.heads * self.rope + self.rope
        return made + joined + self.heads * (self.width + self.rope + self.value)


@dataclass
class Decoder:
    """A decoder. A token reads every weight, except experts that its router does not choose.

    Attributes:
        matrices: matrices of a feed-forward layer: 3 with a gate, else 2.
        experts, active, expert_inner, shared: number of experts, experts per token, their inner width, and that of shared ones.
        dense: layers without experts, where others have some.
        positions: learned positions.
    """

    hidden: int
    layers: int
    inner: int
    vocabulary: int
    attention: Attention | Latent
    matrices: int = 3
    tied: bool = False
    experts: int = 0
    active: int = 0
    expert_inner: int = 0
    shared: int = 0
    dense: int = 0
    positions: int = 0
    width: int = 2

    def numbers(self, context: int) -> Numbers:
        a, n = self.attention, self.layers
        feed = self.dense if self.experts else n
        mixed = n - feed
        expert = self.matrices * self.hidden * self.expert_inner
        table = self.vocabulary * self.hidden
        read = n * a.parameters(self.hidden) + feed * self.matrices * self.hidden * self.inner + table
        read += mixed * (self.experts * self.hidden + self.matrices * self.hidden * self.shared)
        tokens = (n - a.windowed) * context + a.windowed * min(a.window, context)
        cache = self.width * a.cached() * tokens
        return Numbers(
            parameters=read
            + mixed * self.experts * expert
            + (0 if self.tied else table)
            + self.positions * self.hidden,
            cache_bytes=cache,
            flops=2 * (read + mixed * self.active * expert) + a.products() * tokens,
            traffic_bytes=self.width * (read + mixed * self.active * expert + a.copied() * tokens) + cache,
        )


def encoder(
    hidden: int, layers: int, inner: int, tokens: int, head: int, tables: int, ends: int, width: int
) -> Numbers:
    """An encoder of `tokens` tokens with fused attention.

    `head` parameters are multiplied with each token at the end, `tables` are beside the products, and `ends` numbers are moved
    for each token before and after the layers. A layer reads and writes, in numbers for each token: queries, keys and values
    6 hidden, attention 4, its output 2, two sums 6, two normalisations 4, the inner matrices 2 (hidden + inner), their
    activation 2 inner.
    """
    matrices = layers * (4 * hidden**2 + 2 * hidden * inner)
    moved = layers * tokens * (24 * hidden + 4 * inner) + tokens * ends
    return Numbers(
        parameters=matrices + head + tables,
        cache_bytes=0,
        flops=2 * tokens * (matrices + head) + layers * 4 * tokens**2 * hidden,
        traffic_bytes=width * (matrices + head + moved),
    )


def whisper(hidden: int, layers: int, vocabulary: int, heard: int, context: int, mels: int, width: int) -> Numbers:
    """A decoded token of Whisper. The decoder attends to `context` tokens and to `heard` tokens of the encoder, which is idle."""
    encoder_layer, decoder_layer = 12 * hidden**2, 16 * hidden**2
    outer = 3 * hidden * mels + 3 * hidden**2 + (heard + context) * hidden
    read = layers * (decoder_layer - 2 * hidden**2) + vocabulary * hidden  # keys and values of the encoder are cached
    cache = 2 * layers * hidden * (heard + context)
    return Numbers(
        parameters=layers * (encoder_layer + decoder_layer) + vocabulary * hidden + outer,
        cache_bytes=width * cache,
        flops=2 * read + 2 * cache,
        traffic_bytes=width * (read + cache),
    )


class Model(NamedTuple):
    """A model: its configuration, or None if placekit has it; its mode and context; and the formula's numbers."""

    config: dict[str, Any] | None
    mode: str
    context: int
    numbers: Numbers


def decoder(formula: Decoder, kind: str = "", context: int = 4096, **config: Any) -> Model:
    """A decoded token. `config` holds entries of the configuration that the formula does not have."""
    f, a = formula, formula.attention
    given: dict[str, Any] | None = None
    if kind:
        given = {
            "model_type": kind, "hidden_size": f.hidden, "num_hidden_layers": f.layers, "intermediate_size": f.inner,
            "vocab_size": f.vocabulary, "num_attention_heads": a.heads, "tie_word_embeddings": f.tied, "dtype": "bfloat16",
            "max_position_embeddings": 8192,
        }  # fmt: skip
        if isinstance(a, Attention):
            given |= {"num_key_value_heads": a.kv}
            if a.heads * a.width != f.hidden:
                given |= {"head_dim": a.width}
        given |= config
    return Model(given, "decode", context, formula.numbers(context))


MODELS: dict[str, Model] = {
    "meta-llama/Llama-3.1-8B": decoder(Decoder(4096, 32, 14336, 128256, Attention(32, 8, 128))),
    "meta-llama/Meta-Llama-3-70B": decoder(Decoder(8192, 80, 28672, 128256, Attention(64, 8, 128))),
    "Qwen/Qwen3-8B": decoder(Decoder(4096, 36, 12288, 151936, Attention(32, 8, 128))),
    "google/gemma-3-1b-it": decoder(
        Decoder(1152, 26, 6912, 262144, Attention(4, 1, 256, window=512, windowed=22), tied=True)
    ),
    "mistralai/Mixtral-8x7B-v0.1": decoder(
        Decoder(4096, 32, 0, 32000, Attention(32, 8, 128), experts=8, active=2, expert_inner=14336)
    ),
    "openai-community/gpt2": decoder(
        Decoder(768, 12, 3072, 50257, Attention(12, 12, 64), matrices=2, tied=True, positions=1024, width=4),
        context=1024,
    ),
    "mistralai/Mistral-7B-v0.1": decoder(
        Decoder(4096, 32, 14336, 32000, Attention(32, 8, 128, window=4096, windowed=32)),
        "mistral",
        8192,
        sliding_window=4096,
    ),
    "google/gemma-2-9b": decoder(
        Decoder(3584, 42, 14336, 256000, Attention(16, 8, 256, window=4096, windowed=21, fused=False), tied=True),
        "gemma2",
        8192,
        sliding_window=4096,
    ),
    "microsoft/Phi-3-mini-4k-instruct": decoder(
        Decoder(3072, 32, 8192, 32064, Attention(32, 32, 96, window=2047, windowed=32)), "phi3", sliding_window=2047
    ),
    "Qwen/Qwen2.5-7B": decoder(Decoder(3584, 28, 18944, 152064, Attention(28, 4, 128)), "qwen2"),
    "EleutherAI/gpt-neox-20b": decoder(
        Decoder(6144, 44, 24576, 50432, Attention(64, 64, 96), matrices=2), "gpt_neox", 2048
    ),
    "tiiuae/falcon-7b": decoder(
        Decoder(4544, 32, 18176, 65024, Attention(71, 1, 64), matrices=2, tied=True),
        "falcon",
        2048,
        multi_query=True,
        parallel_attn=True,
        alibi=False,
        new_decoder_architecture=False,
        bias=False,
    ),
    "facebook/opt-6.7b": decoder(
        Decoder(4096, 32, 16384, 50272, Attention(32, 32, 128), matrices=2, tied=True, positions=2050),
        "opt",
        2048,
        ffn_dim=16384,
        max_position_embeddings=2048,
        word_embed_proj_dim=4096,
    ),
    "bigcode/starcoder2-7b": decoder(
        Decoder(4608, 32, 18432, 49152, Attention(36, 4, 128, window=4096, windowed=32), matrices=2, tied=True),
        "starcoder2",
        8192,
        sliding_window=4096,
    ),
    "CohereLabs/c4ai-command-r-v01": decoder(
        Decoder(8192, 40, 22528, 256000, Attention(64, 64, 128), tied=True), "cohere"
    ),
    "allenai/OLMo-2-1124-7B": decoder(Decoder(4096, 32, 11008, 100352, Attention(32, 32, 128)), "olmo2"),
    "zai-org/GLM-4-9B-0414": decoder(Decoder(4096, 40, 13696, 151552, Attention(32, 2, 128)), "glm4"),
    "Qwen/Qwen3-30B-A3B": decoder(
        Decoder(2048, 48, 0, 151936, Attention(32, 4, 128), experts=128, active=8, expert_inner=768),
        "qwen3_moe",
        num_experts=128,
        num_experts_per_tok=8,
        moe_intermediate_size=768,
    ),
    "allenai/OLMoE-1B-7B-0924": decoder(
        Decoder(2048, 16, 1024, 50304, Attention(16, 16, 128), experts=64, active=8, expert_inner=1024),
        "olmoe",
        num_experts=64,
        num_experts_per_tok=8,
    ),
    "openai/gpt-oss-20b, bfloat16": decoder(
        Decoder(
            2880,
            24,
            2880,
            201088,
            Attention(64, 8, 64, window=128, windowed=12, fused=False),
            experts=32,
            active=4,
            expert_inner=2880,
        ),
        "gpt_oss",
        num_local_experts=32,
        num_experts_per_tok=4,
        sliding_window=128,
        layer_types=["sliding_attention", "full_attention"] * 12,
    ),
    "deepseek-ai/DeepSeek-V2-Lite": decoder(
        Decoder(
            2048,
            27,
            10944,
            102400,
            Latent(16, 0, 512, 64, 128, 128),
            experts=64,
            active=6,
            expert_inner=1408,
            shared=2 * 1408,
            dense=1,
        ),
        "deepseek_v2",
        q_lora_rank=None,
        kv_lora_rank=512,
        qk_rope_head_dim=64,
        qk_nope_head_dim=128,
        v_head_dim=128,
        n_routed_experts=64,
        num_experts_per_tok=6,
        moe_intermediate_size=1408,
        n_shared_experts=2,
        first_k_dense_replace=1,
        num_key_value_heads=16,
        topk_method="greedy",
    ),
    "deepseek-ai/DeepSeek-V3, bfloat16": decoder(
        Decoder(
            7168,
            61,
            18432,
            129280,
            Latent(128, 1536, 512, 64, 128, 128),
            experts=256,
            active=8,
            expert_inner=2048,
            shared=2048,
            dense=3,
        ),
        "deepseek_v3",
        q_lora_rank=1536,
        kv_lora_rank=512,
        qk_rope_head_dim=64,
        qk_nope_head_dim=128,
        v_head_dim=128,
        n_routed_experts=256,
        num_experts_per_tok=8,
        moe_intermediate_size=2048,
        n_shared_experts=1,
        first_k_dense_replace=3,
        num_key_value_heads=128,
        n_group=8,
        topk_group=4,
    ),
    "google-bert/bert-base-uncased": Model(
        None, "inference", 512, encoder(768, 12, 3072, 512, (30522 + 768) * 768, (512 + 2) * 768, 21 * 768 + 30522, 4)
    ),
    "google/vit-base-patch16-224": Model(
        None, "inference", 0, encoder(768, 12, 3072, 197, 0, (16 * 16 * 3 + 197 + 1000) * 768, 9 * 768, 4)
    ),
    "openai/whisper-large-v3": Model(None, "decode", 448, whisper(1280, 32, 51866, 1500, 448, 128, 2)),
}


def measured(model: Model, name: str) -> tuple[Numbers, int]:
    """The numbers of the imported graph, and its operations."""
    with tempfile.TemporaryDirectory() as folder:
        where = name
        if model.config is not None:
            Path(folder, "config.json").write_text(json.dumps(model.config))
            where = folder
        context = {"context": model.context} if model.context else {}
        [program] = load_programs(model=f"hf:{where}", mode=model.mode, **context)
    g: Graph = program.graph
    parameters = g.op_type.is_value("parameter")
    item = 4 if str(g.dtype[int(parameters.argmax())]) == "float32" else 2
    cache = sum(
        int(b) for n, b in zip(g.op_name, g.persistent_bytes, strict=True) if n.endswith(("key_cache", "value_cache"))
    )
    found = Numbers(
        float(g.persistent_bytes[parameters].sum()) / item, cache, float(g.flops.sum()), float(g.bytes_accessed.sum())
    )
    return found, g.n


def rows(names: list[str]) -> Iterator[tuple[str, str, list[float]]]:
    """For each model: its name, its row of the table, and the relative differences."""
    for name in names:
        model = MODELS[name]
        found, operations = measured(model, name)
        errors = [a / b - 1 if b else float(a != b) for a, b in zip(found, model.numbers, strict=True)]
        cells = [
            f"{found.parameters / 1e9:.3f} ({errors[0]:+.2%})",
            f"{found.cache_bytes / 2**20:.1f} ({errors[1]:+.2%})" if model.numbers.cache_bytes else "",
            f"{found.flops / 1e9:.2f} ({errors[2]:+.2%})",
            f"{found.traffic_bytes / 1e9:.3f} ({errors[3]:+.2%})",
        ]
        context = f" {model.context}" if model.context else ""
        yield name, f"| {name} | {model.mode}{context} | {operations:,} | {' | '.join(cells)} |", errors


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(MODELS))
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    lines = [
        "| model | mode, context | operations | parameters, 10⁹ | cache, MiB | GFLOP | traffic, GB |",
        "|---|---|---|---|---|---|---|",
    ]
    wrong = []
    for line in lines:
        print(line)
    for name, line, errors in rows(options.names):
        print(line, flush=True)
        lines.append(line)
        wrong += [name] * any(abs(e) >= MOST for e in errors)
    print(f"\n{len(lines) - 2 - len(wrong)} of {len(lines) - 2} models within {MOST:.0%}", *wrong)
    if options.write:
        import transformers

        head = f"`python benchmarks/formulas.py --write`, transformers {transformers.__version__}"
        about = ["# Models against formulas by hand", "", f"{head}: imported (difference from the formula).", ""]
        RESULTS.write_text("\n".join([*about, *lines, ""]), encoding="utf-8")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
