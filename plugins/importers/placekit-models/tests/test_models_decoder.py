"""Decoders as inference runtimes run them: counts by hand."""

from __future__ import annotations

import numpy as np
import pytest
from placekit_models.decoder import Use, decoder
from placekit_models.shape import Experts, Latent, Linear, Shape

from placekit_core import Graph

SMALL = Shape(layers=4, hidden=64, heads=4, kv_heads=2, head=16, ffn=128, vocab=1000)
MIXED = Shape(
    layers=3, hidden=64, heads=4, kv_heads=4, vocab=500, latent=Latent(q_rank=24, kv_rank=32, rope=8, nope=16, value=16),
    experts=Experts(count=8, active=2, width=32, shared_width=32, dense=1, dense_width=128),
)  # fmt: skip


def of(graph: Graph, name: str) -> int:
    return graph.op_name.index(name)


def test_weights_by_hand() -> None:
    attention = 64 * (64 + 32 + 32 + 64)
    assert SMALL.weights == 4 * (attention + 3 * 64 * 128) + 2 * 64 * 1000
    own = 64 * 24 + 24 * 4 * 24 + 64 * 40 + 32 * 4 * 32 + 64 * 64
    moe = 64 * 8 + 3 * 64 * 32 * 9
    assert MIXED.weights == 3 * own + 3 * 64 * 128 + 2 * moe + 2 * 64 * 500
    tied = Shape(layers=1, hidden=8, heads=1, kv_heads=1, head=8, ffn=16, vocab=10, tied=True)
    assert tied.weights == 4 * 64 + 3 * 8 * 16 + 80


def test_a_token_reads_weights_and_cache() -> None:
    graph = decoder("small", SMALL, Use(context=100, bits=4.5))
    product = of(graph, "blk.2.ffn_down")
    assert graph.op_class[product] == "quantized_matmul"
    assert graph.bytes_accessed[product] == 64 * 128 * 4.5 / 8 + (64 + 128) * 4
    assert graph.flops[product] == 2 * 64 * 128
    attention = of(graph, "blk.2.attn")
    assert graph.bytes_accessed[attention] == 101 * 2 * 32 * 2 + 6 * 64 * 4
    assert graph.persistent_bytes[of(graph, "blk.2.cache")] == 101 * 2 * 32 * 2
    assert np.asarray(graph.columns["launches"]).sum() == 4 * 24 + 3
    unfused = decoder("small", SMALL, Use(context=100, bits=4.5, flash=False))
    assert unfused.bytes_accessed[attention] == 3 * 101 * 2 * 32 * 2 + 6 * 64 * 4


def test_a_prompt_is_micro_batches_that_may_overlap() -> None:
    graph = decoder("small", SMALL, Use("prompt", tokens=1200, bits=16))
    assert [graph.op_type[v] for v in range(graph.n)].count("ffn_up") == 3 * 4
    assert graph.flops[of(graph, "blk.0.ffn_up@2")] == 2 * 64 * 128 * (1200 - 1024)
    assert graph.flops[of(graph, "output@2")] == 2 * 64 * 1000
    assert graph.op_class[of(graph, "blk.0.ffn_up@0")] == "inference_matmul"
    apart = decoder("small", SMALL, Use("prompt", tokens=1200, overlap=False))
    queued = decoder("small", SMALL, Use("prompt", tokens=1200, stage=4))
    for other, edges in ((apart, 2), (queued, 0)):  # 4 layers * 43 launches are far below the queue
        assert other.e == graph.e + edges


def test_experts_are_apart_from_attention_and_only_those_in_use_are_read() -> None:
    graph = decoder("mixed", MIXED, Use(context=10, bits=8.5, expert_bits=4.5))
    up = of(graph, "blk.2.ffn_up_exps")
    assert graph.persistent_bytes[of(graph, "blk.2.ffn_up_exps.weight")] == 8 * 64 * 32 * 4.5 / 8
    assert graph.flops[up] == 2 * 2 * 64 * 32
    assert graph.bytes_accessed[up] == pytest.approx(2 * 64 * 32 * 4.5 / 8 + 2 * (64 + 32) * 4)
    assert "blk.0.ffn_up_exps" not in graph.op_name
    batch = decoder("mixed", MIXED, Use(batch=4, bits=8.5))
    distinct = 8 * (1 - 0.75**4)
    assert batch.bytes_accessed[of(batch, "blk.2.ffn_up_exps")] == pytest.approx(
        distinct * 64 * 32 * 8.5 / 8 + 8 * 96 * 4
    )


def test_latent_attention_reads_the_compressed_cache() -> None:
    graph = decoder("mixed", MIXED, Use(context=99))
    assert graph.persistent_bytes[of(graph, "blk.1.cache")] == 100 * 40 * 2
    assert graph.flops[of(graph, "blk.1.attn")] == 2 * 99.5 * 4 * (2 * 32 + 8) + 2 * 0.5 * 4 * (2 * 32 + 8)


def test_windows_and_recurrent_layers_have_small_caches() -> None:
    window = Shape(layers=4, hidden=64, heads=4, kv_heads=2, head=16, ffn=128, vocab=100, window=10, pattern="wa")
    graph = decoder("window", window, Use(context=99))
    cached = [graph.persistent_bytes[of(graph, f"blk.{i}.cache")] for i in range(4)]
    assert cached == [10 * 64 * 2, 100 * 64 * 2] * 2
    linear = Shape(
        layers=2, hidden=64, heads=4, kv_heads=2, head=16, ffn=128, vocab=100, linear=Linear(2, 4, 16), pattern="la"
    )
    graph = decoder("linear", linear, Use(context=99))
    assert graph.persistent_bytes[of(graph, "blk.0.state")] == (4 * 16 * 16 + 3 * 128) * 4
    assert "blk.0.ssm_out" in graph.op_name
    assert "blk.1.attn_output" in graph.op_name


def test_seventy_billion_weights_take_milliseconds_and_say_what_they_are() -> None:
    shape = Shape(layers=80, hidden=8192, heads=64, kv_heads=8, ffn=28672, vocab=128256)
    graph = decoder("70b", shape, Use(context=8192, bits=4.8))
    assert graph.attributes == {
        "program": "decoder",
        "mode": "decode",
        "batch": 1,
        "context": 8192,
        "work": [1, "tokens"],
        "cache": [f"blk.{i}.cache" for i in range(80)],
    }
    assert graph.persistent_bytes.sum() == pytest.approx(70.55e9 * 4.8 / 8 + 80 * 8193 * 2048 * 2, rel=0.001)
