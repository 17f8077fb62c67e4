"""What llama.cpp allocates besides weights, against values that it reported; `test_models_llama_cpp.py` asks llama.cpp itself."""

from __future__ import annotations

import pytest
from placekit_models.checkpoint.buffers import WHOLE, Buffers, Part
from placekit_models.checkpoint.sources import find
from placekit_models.checkpoint.values import ALIGNMENT, Values
from placekit_models.shape import shapes
from placekit_testing.speed import mostly_slow

MIB = 2**20
QUICK = ["Qwen3-Next-80B-A3B", "DeepSeek-V2-Lite", "Falcon-H1-7B", "Nemotron-H-8B", "mamba2-2.7b", "phi-4"]
MEASURED = {
    "Llama-3.1-8B": (148.0, 140.0, 64.0), "Gemma-3-4B": (113.5, 107.5, 53.5), "gpt-oss-20b": (122.8, 119.5, 55.3),
    "Qwen3-0.6B": (58.0, 58.0, 40.0),
}  # fmt: skip
"""MiB of values on the first and the second of three GPUs and in host memory, as llama.cpp of October 2026 reports them for a
context of 32,768 tokens (`load` of files with all layers)."""


@pytest.mark.parametrize("name", MEASURED)
def test_buffers_of_published_models(name: str) -> None:
    found = Buffers(find(name, "q8_0"), context=32768)
    assert [found.first / MIB, found.layers / MIB, found.host / MIB] == pytest.approx(MEASURED[name], abs=0.06)


def test_values_take_over_blocks_and_fill_gaps() -> None:
    v = Values()
    a = v.add(1000)  # 1,024 bytes with their alignment
    b = v.add(2000, a)
    v.add(1024, b)  # where a was
    assert v.peak() == 1024 + 2048
    c = v.add(3 * ALIGNMENT)
    d = v.add(3 * ALIGNMENT, c, over=True)  # nothing else reads c
    v.add(0, d)
    assert v.peak() == 1024 + 2048
    v.add(0, c)
    assert v.peak() == 1024 + 2048


@pytest.mark.parametrize("name", mostly_slow(shapes(), QUICK, [name for name in shapes() if name not in QUICK]))
def test_every_shape_has_buffers(name: str) -> None:
    checkpoint = find(name, "q4_k_m")
    few, many = (Buffers(checkpoint, context=n) for n in (1000, 32768))
    assert len(few.cache) == checkpoint.layers
    assert 0 < sum(few.cache) <= sum(many.cache)  # a state does not grow
    assert 0 < few.layers <= many.layers <= many.first * 1.25
    assert few.host < few.cpu
    assert Buffers(checkpoint, context=1000, copies=4).host > 2 * few.host
    assert Buffers(checkpoint, context=1000, outputs=512).output >= few.output


def test_users_have_caches_of_their_own() -> None:
    checkpoint = find("Llama-3.1-8B", "q8_0")
    one, three = Buffers(checkpoint, context=1024), Buffers(checkpoint, context=1024, users=3)
    assert [*three.cache] == [3 * n for n in one.cache]
    assert one.cache[0] == 1024 * 2 * 1024 * 2
    assert Buffers(checkpoint, context=1000, cache_bits=8.5).cache[0] == 1024 * 2 * 1024 * 17 // 16
    window = Buffers(find("gpt-oss-20b", "mxfp4_moe"), context=32768)
    assert window.cache[:2] == (768 * 1024 * 2, 32768 * 1024 * 2)  # 128 tokens and a micro-batch


def test_a_recurrence_alone_has_no_mask() -> None:
    few, many = (Buffers(find("mamba2-2.7b", "q8_0"), context=n) for n in (1024, 32768))
    assert (few.cache, few.only, few.host, few.cpu) == (many.cache, many.only, many.host, many.cpu)


def test_parts_of_layers() -> None:
    """Weights in host memory take room for a copy of the largest; experts of other devices' layers take less than layers."""
    checkpoint = find("Qwen3-30B-A3B", "q8_0")
    found, layers = Buffers(checkpoint, context=4096), checkpoint.layers
    largest = max(t.bytes for t in checkpoint.tensors if "_exps" in t.key)
    whole, copied = (found.values([WHOLE | p] * layers, begins=True) for p in (0, Part.COPIED_EXPERTS))
    assert whole < copied <= whole + 2 * largest
    assert copied < found.values([WHOLE | Part.COPIED | Part.COPIED_EXPERTS] * layers, begins=True) <= copied + largest
    experts, rest = (found.values([p] * layers) for p in (Part.EXPERTS, Part.LAYER | Part.ARRIVES))
    assert 0 < max(experts, rest) < whole < experts + rest
    assert found.values([0] * (layers - 1) + [Part.EXPERTS]) < experts / 20, "of one token"
