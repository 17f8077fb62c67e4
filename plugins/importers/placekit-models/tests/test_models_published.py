"""Importer `checkpoint` against published sizes of models, and against formulas."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from placekit_models.checkpoint.config import shape_of
from placekit_models.checkpoint.importer import CheckpointImporter
from placekit_models.checkpoint.options import CheckpointOptions
from placekit_models.checkpoint.sources import find
from placekit_models.shape import Shape, shapes
from placekit_testing.speed import mostly_slow

from placekit_core import Graph, parse_yaml, read_bytes

PUBLISHED: dict[str, Any] = parse_yaml(read_bytes(Path(__file__).with_name("published_sizes.yaml")))
WITHIN = 0.01
QUICK = [
    "Llama-3.1-8B",
    "Qwen3-30B-A3B",
    "gpt-oss-20b",
    "DeepSeek-V2-Lite",
    "Nemotron-H-8B",
    "Falcon-H1-7B",
    "AI21-Jamba-Mini-1.7",
]
CONTEXT = 10_000


def difference(row: dict[str, Any]) -> float:
    """By how much the importer's size is above that of a row, relative to it."""
    found = find(row["model"], row["weights"])
    if "numbers" in row:
        return sum(t.numbers for t in found.tensors) / float(row["numbers"]) - 1
    return found.bytes / (row.get("bytes") or row.get("gib", 0) * 2**30 or row["gb"] * 1e9) - 1


@pytest.mark.slow
def test_bytes_are_those_of_published_files() -> None:
    wrong = []
    for row in PUBLISHED["sizes"]:
        far = difference(row)
        if (abs(far) > WITHIN) != ("differs" in row):
            wrong.append(f"{row['model']} {row['weights']} ({row['source']}): {far:+.2%}")
    assert wrong == [], "beyond 1% without a reason, or within 1% with one"


def test_sizes_of_at_least_forty_models_of_ten_architectures() -> None:
    rows = [row for row in PUBLISHED["sizes"] if "differs" not in row]
    models = {row["model"] for row in rows}
    assert {row["source"] for row in PUBLISHED["sizes"]} == {*PUBLISHED["sources"]}
    assert len(models) >= 40
    assert len({shapes()[model].architecture for model in models}) >= 10


def test_every_shape_is_checked_or_said_not_to_be() -> None:
    found = shapes()
    checked = [found[name] for name in ({row["model"] for row in PUBLISHED["sizes"]} | {*PUBLISHED["transformers"]})]
    assert {name for name, shape in found.items() if shape not in checked} == {*PUBLISHED["unchecked"]}


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED["transformers"])
def test_shapes_are_those_of_transformers(name: str) -> None:
    config = getattr(transformers, PUBLISHED["transformers"][name])()
    other, own = shape_of(config.to_dict() | {"model_type": config.model_type}, name), shapes()[name]
    assert {t.name: t.shape for t in other.whole("x").tensors} == {t.name: t.shape for t in own.whole("x").tensors}
    assert other.checkpoint(lambda _: 16.0).windows == own.checkpoint(lambda _: 16.0).windows
    assert (other.heads, other.experts and other.experts.active) == (own.heads, own.experts and own.experts.active)


@cache
def decode(name: str, context: int) -> Graph:
    options = CheckpointOptions(checkpoint=name, weights="q8_0", context=context)
    return CheckpointImporter(options).load()[0].graph


def kept(name: str, context: int) -> int:
    """Bytes of caches and states."""
    graph = decode(name, context)
    return int(graph.persistent_bytes[graph.op_type.is_value("buffer")].sum())


@pytest.mark.parametrize("name", PUBLISHED["caches"])
def test_caches_are_the_published_ones(name: str) -> None:
    assert kept(name, CONTEXT + 1) - kept(name, CONTEXT) == PUBLISHED["caches"][name]


# Formulas, written from papers and model cards; `layers` counts the layers of each kind in a shape's pattern.


def layers(s: Shape, kinds: str) -> int:
    return sum(s.pattern[i % len(s.pattern)] in kinds for i in range(s.layers))


def state(s: Shape) -> tuple[int, int]:
    """Numbers of the state of a recurrent layer, and of its convolution."""
    if s.linear:  # a square per head of values; queries, keys and values go through the convolution
        return s.linear.value_heads * s.linear.head**2, 3 * (
            2 * s.linear.key_heads + s.linear.value_heads
        ) * s.linear.head
    if s.ssm:
        return s.ssm.inner * s.ssm.state, 3 * (s.ssm.inner + (2 * s.ssm.groups * s.ssm.state if s.ssm.heads else 0))
    return 0, 0


def cache_bytes(s: Shape, context: int) -> int:
    """Keys and values in 16 bits of all layers with attention, and states in 32 bits."""
    token = 2 * (s.latent.kv_rank + s.latent.rope if s.latent else 2 * s.kv_heads * s.head)
    seen = layers(s, "a*b") * context + layers(s, "w") * min(context, s.window)
    return token * seen + 4 * sum(state(s)) * layers(s, "lbM")


def attention_numbers(s: Shape) -> int:
    """Numbers of the matrices of a layer's attention."""
    if m := s.latent:
        first = (
            s.hidden * m.q_rank + m.q_rank * s.heads * (m.nope + m.rope)
            if m.q_rank
            else s.hidden * s.heads * (m.nope + m.rope)
        )
        return (
            first
            + s.hidden * (m.kv_rank + m.rope)
            + m.kv_rank * s.heads * (m.nope + m.value)
            + s.heads * m.value * s.hidden
        )
    return s.hidden * s.head * ((2 + s.gated) * s.heads + 2 * s.kv_heads)


def recurrence_numbers(s: Shape) -> int:
    """Numbers of the matrices of a layer's recurrence."""
    if n := s.linear:  # queries, keys, values, gate, two rates per head, output
        keys, values = n.key_heads * n.head, n.value_heads * n.head
        return s.hidden * (2 * keys + 3 * values + 2 * n.value_heads)
    if m := s.ssm:
        if m.heads:  # Mamba-2
            return s.hidden * (3 * m.inner + 2 * m.groups * m.state + m.heads)
        return 3 * s.hidden * m.inner + m.inner * (2 * m.rank + 2 * m.state)
    return 0


def network_numbers(s: Shape) -> int:
    """Numbers of all networks that a token multiplies with."""
    matrices = 2 if s.plain else 3
    if not s.experts:
        return layers(s, "awlb-") * matrices * s.hidden * s.ffn
    e = s.experts
    mixtures = (s.layers - e.dense) // e.every
    mixture = s.hidden * (e.count + matrices * (e.active * e.width + e.shared_width))
    return mixtures * mixture + (s.layers - mixtures) * matrices * s.hidden * e.dense_width


def active_numbers(s: Shape) -> int:
    """Numbers that a token multiplies with: all but the embedding and the experts that it does not take."""
    mixing = layers(s, "aw*b") * attention_numbers(s) + layers(s, "lbM") * recurrence_numbers(s)
    return mixing + network_numbers(s) + s.vocab * s.hidden


def flops(s: Shape, context: int) -> int:
    """Of a token: two for each number; attention over the tokens that each layer sees; three products with each state."""
    seen = layers(s, "a*b") * context + layers(s, "w") * min(context, s.window)
    head = 2 * s.latent.kv_rank + s.latent.rope if s.latent else 2 * s.head
    return 2 * active_numbers(s) + 2 * seen * s.heads * head + 6 * state(s)[0] * layers(s, "lbM")


@pytest.mark.parametrize("name", mostly_slow(shapes(), QUICK, [name for name in shapes() if name not in QUICK]))
def test_caches_and_flops_are_those_of_formulas(name: str) -> None:
    shape, graph = shapes()[name], decode(name, CONTEXT)
    assert kept(name, CONTEXT) == cache_bytes(shape, CONTEXT)
    assert graph.flops.sum() == pytest.approx(flops(shape, CONTEXT), rel=WITHIN)
    products = [kind in ("quantized_matmul", "inference_matmul") for kind in graph.op_class.tolist()]
    assert graph.flops[np.asarray(products)].sum() == pytest.approx(2 * active_numbers(shape), rel=1e-6)


@pytest.mark.parametrize("name", PUBLISHED["active"])
def test_active_numbers_are_the_published_ones(name: str) -> None:
    """Publishers round, and some count the embedding or leave out the output."""
    assert active_numbers(shapes()[name]) == pytest.approx(float(PUBLISHED["active"][name]), rel=0.06)
