"""The dense networks: as large as published, equal to eager torch, and the contract of importers."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from placekit_testing.sequential import run_sequential
from placekit_testing.speed import mostly_slow
from placekit_zoo.dense_options import GptOptions
from placekit_zoo.ffnn import FfnnImporter
from placekit_zoo.gpt import Attention as GptAttention, Gpt, GptImporter
from placekit_zoo.llama import Attention, Block, Layer, LlamaBlockImporter, LlamaLayerImporter, Rotary

from placekit_core import Graph

torch.set_num_threads(1)  # the tensors are small, and tests run side by side

FFNN = partial(FfnnImporter, batch=8, features=4, hidden=16, classes=3)
LLAMA_BLOCK = partial(LlamaBlockImporter, embedding=16, heads=2, sequence=6)
LLAMA_LAYER = partial(LlamaLayerImporter, embedding=16, heads=2, sequence=6, feed_forward=24)
GPT = partial(GptImporter, batch=2, layers=2, embedding=16, heads=2, sequence=6, vocabulary=11, dropout=0.0)
SMALL = [FFNN, LLAMA_BLOCK, LLAMA_LAYER, GPT]


def products(graph: Graph) -> float:
    """FLOPs of the matrix products."""
    return float(graph.flops[graph.op_class.is_value("matmul")].sum())


def parameters(graph: Graph) -> int:
    return int(graph.persistent_bytes[graph.op_type.is_value("parameter")].sum()) // 4


def test_gpt_has_the_published_number_of_parameters() -> None:
    o = GptOptions()
    with torch.device("meta"):
        module = Gpt(o.layers, o.embedding, o.heads, o.sequence, o.vocabulary)
    assert sum(p.numel() for p in module.parameters()) == 124_439_808


def test_llama_layer_has_the_published_number_of_parameters() -> None:
    with torch.device("meta"):
        block, layer = Block(4096, 32, 4096), Layer(4096, 32, 4096, 11008)
    assert sum(p.numel() for p in block.parameters()) == 4 * 4096**2 + 4096
    assert sum(p.numel() for p in layer.parameters()) == 202_383_360 == 4 * 4096**2 + 3 * 4096 * 11008 + 2 * 4096


@pytest.mark.parametrize("mode", ["inference", "train"])
def test_arithmetic_of_the_llama_layer(mode: str) -> None:
    """A product of [m, k] and [k, n] is 2 m k n operations; in training each has two gradients of as many."""
    s, e, f, times = 4096, 4096, 11008, 1 if mode == "inference" else 3
    attention = 4 * 2 * s * e * e + 2 * (2 * s * s * e)  # four projections; scores and weighted values, over all heads
    block = LlamaBlockImporter(mode=mode).load()[0].graph
    layer = LlamaLayerImporter(mode=mode).load()[0].graph
    assert products(block) == times * attention
    assert products(layer) == times * (attention + 3 * 2 * s * e * f)
    assert parameters(layer) == 202_383_360
    # the scores, their scaling, masking and softmax are there to be placed
    assert (
        sum(layer.shape(int(t)) in {(32, s, s), (1, 32, s, s)} for t in np.flatnonzero(layer.tensor_bytes > 2**30)) >= 4
    )
    assert not any("scaled_dot_product" in name for name in layer.op_type.vocabulary)


def test_arithmetic_of_ffnn() -> None:
    graph = FfnnImporter().load()[0].graph
    assert products(graph) == 2 * 2 * 2**15 * 2**5 * 2**16
    assert [graph.op_type[v] for v in np.flatnonzero(graph.kernel)] == [
        "aten.addmm", "aten.relu", "aten.addmm", "aten._softmax",
    ]  # fmt: skip
    assert parameters(graph) == 2 * 2**5 * 2**16 + 2**16 + 2**5


@pytest.mark.slow
def test_gpt_is_a_full_training_step() -> None:
    graph = GptImporter().load()[0].graph
    b, s, e, v, layers = 8, 1024, 768, 50257, 12
    block = 2 * b * s * (3 * e * e + e * e + 8 * e * e) + 2 * (2 * b * s * s * e)
    assert products(graph) == 3 * (layers * block + 2 * b * s * e * v)
    assert parameters(graph) == 124_439_808  # the tied embedding is one source
    assert graph.op_type.is_value("state").sum() == 3 * graph.op_type.is_value("parameter").sum()  # Adam
    assert not graph.op_class.is_value("other").any()
    assert {"h.0.attn", "h.11.mlp.c_fc"} <= set(graph.module.vocabulary)


@pytest.mark.parametrize("make", mostly_slow(SMALL, [FFNN, LLAMA_BLOCK]))
def test_two_training_steps_equal_eager(make: Any, steps_equal_eager: Any) -> None:
    for optimizer in ("sgd", "adam"):
        steps_equal_eager(make, {"mode": "train", "optimizer": optimizer})


@pytest.mark.parametrize("make", SMALL)
def test_inference_equals_eager(make: Any) -> None:
    network = make(mode="inference", seed=5)
    program = network.load()[0]
    _, results = run_sequential(program, program.executable.initial(), 0)
    torch.manual_seed(5)
    step = network.step()
    with torch.no_grad():
        expected = step.module.eval()(step.inputs)
    (found,) = results.values()
    assert torch.equal(found, expected)


def test_llama_attention_is_causal_attention_with_rotated_queries_and_keys() -> None:
    torch.manual_seed(0)
    attention, x = Attention(16, 2, 5).double(), torch.randn(3, 5, 16, dtype=torch.float64)
    q, k, v = (w(x).view(3, 5, 2, 8).transpose(1, 2) for w in (attention.wq, attention.wk, attention.wv))
    turn = torch.polar(
        torch.ones(()).double(), torch.outer(torch.arange(5.0), 10_000.0 ** (-torch.arange(4) / 4)).double()
    )
    q, k = (
        torch.view_as_real(torch.complex(t[..., :4], t[..., 4:]) * turn).transpose(-1, -2).flatten(-2) for t in (q, k)
    )
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(3, 5, 16)
    torch.testing.assert_close(
        attention(x), attention.wo(mixed), rtol=1e-5, atol=1e-6
    )  # the angles are single precision


def test_rotary_depends_on_distances_only() -> None:
    torch.manual_seed(0)
    rotary, q, k = Rotary(9, 8), torch.randn(8), torch.randn(8)
    scores = rotary(q.expand(1, 1, 9, 8)) @ rotary(k.expand(1, 1, 9, 8)).transpose(-2, -1)
    for distance in range(-8, 9):
        diagonal = scores[0, 0].diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=1e-4, atol=1e-4)


def test_gpt_attention_is_causal_attention() -> None:
    torch.manual_seed(0)
    attention, x = GptAttention(16, 2, 5, 0.0), torch.randn(3, 5, 16)
    q, k, v = (t.view(3, 5, 2, 8).transpose(1, 2) for t in attention.c_attn(x).split(16, -1))
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(3, 5, 16)
    torch.testing.assert_close(attention(x), attention.c_proj(mixed))


@pytest.mark.slow
def test_gpt_in_half_precision_with_matrices_of_its_own() -> None:
    """As a pipeline of Megatron-LM holds it: float32 in the optimiser only, the output's matrix on another stage."""
    plain, half = (GPT(optimizer=o, **more).load()[0].graph for o, more in (
        ("adam", {}), ("fused_adam", {"dtype": "float16", "fused_softmax": True, "tied": False}),
    ))  # fmt: skip
    source = half.op_type.is_value("parameter")
    assert source.sum() == plain.op_type.is_value("parameter").sum() + 1
    assert half.persistent_bytes[source].sum() == 2 * (parameters(plain) + 11 * 16)
    assert set(half.dtype.take(np.flatnonzero(half.kernel & (half.phase < 2))).tolist()) == {"float16"}
    assert half.op_type.is_value("placekit.causal_softmax").sum() == 2
    assert half.op_type.is_value("placekit.fused_adam").sum() == source.sum()
    assert not half.op_class.is_value("other").any()
