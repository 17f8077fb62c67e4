"""The recurrent networks: as large as they should be, a grid of steps and layers, equal to other implementations."""

from __future__ import annotations

import math
import resource
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from placekit_zoo.nmt import Attention, Nmt, NmtImporter
from placekit_zoo.rnnlm import Rnnlm, RnnlmImporter
from torch import Tensor, nn

from placekit_core import Graph

torch.set_num_threads(1)  # the tensors are small, and tests run side by side

T, B, H, V = 40, 64, 2048, 10_000  # of RNNLM: steps, batch, hidden, vocabulary


@pytest.fixture(scope="module")
def rnnlm() -> tuple[Graph, float]:
    """The training step with the paper's sizes, and by how many GiB the process grew at most."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    graph = RnnlmImporter().load()[0].graph
    return graph, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**20


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def products(graph: Graph) -> float:
    """FLOPs of matrix products."""
    return float(graph.flops[graph.op_class.is_value("matmul")].sum())


def steps_of(graph: Graph, phase: int = 0) -> dict[tuple[str, int], list[int]]:
    """Kernels of each call of each module."""
    found: dict[tuple[str, int], list[int]] = {}
    for op in np.flatnonzero(graph.kernel & (graph.phase == phase)).tolist():
        found.setdefault((graph.module[op], int(graph.call[op])), []).append(op)
    return found


def before(graph: Graph) -> dict[tuple[str, int], set[tuple[str, int]]]:
    """For each call of a module in the forward pass: all calls that it waits for, itself included."""
    own = {op: step for step, ops in steps_of(graph).items() for op in ops}
    waits: list[set[tuple[str, int]]] = [set() for _ in range(graph.n)]
    result: dict[tuple[str, int], set[tuple[str, int]]] = {step: set() for step in own.values()}
    for op in graph.topological_order.tolist():
        if op in own:
            waits[op] = {own[op]}.union(*(waits[graph.tensor_producer[t]] for t in graph.inputs(op)))
            result[own[op]] |= waits[op]
    return result


@pytest.mark.parametrize(("layers", "embedding"), [(2, 2048), (4, 2048), (2, 600)])
def test_parameters_of_rnnlm(layers: int, embedding: int) -> None:
    with torch.device("meta"):
        module = Rnnlm(V, embedding, H, layers)
    cells = 4 * H * (embedding + H + 1) + (layers - 1) * 4 * H * (2 * H + 1)
    assert count(module) == V * embedding + cells + V * (H + 1)


@pytest.mark.parametrize(("layers", "width", "embedding"), [(2, 1024, 1024), (8, 1024, 512), (2, 2048, 2048)])
def test_parameters_of_nmt(layers: int, width: int, embedding: int) -> None:
    with torch.device("meta"):
        module = Nmt(32_000, embedding, width, layers)
    later = (layers - 1) * 4 * width * (2 * width + 1)
    encoder, decoder = (4 * width * (x + width + 1) + later for x in (embedding, embedding + width))
    attention = 4 * width**2 + width  # keys, query, score, output (of twice the width)
    assert count(module) == 2 * 32_000 * embedding + encoder + decoder + attention + 32_000 * (width + 1)


@pytest.mark.slow
def test_arithmetic_of_rnnlm(rnnlm: tuple[Graph, float]) -> None:
    graph, _ = rnnlm
    forward = T * 2 * B * (2 * (2 * H) * (4 * H) + H * V)  # a multiply-add counts 2; 2 layers and the softmax
    assert products(graph) == 3 * forward  # gradients of inputs and of weights; the input of every product needs one
    assert graph.flops[graph.phase == 2].sum() < 0.01 * forward
    assert graph.flops.sum() == pytest.approx(3 * forward, rel=0.01)


@pytest.mark.slow
def test_rnnlm_is_a_grid(rnnlm: tuple[Graph, float]) -> None:
    calls = Counter(module for module, _ in steps_of(rnnlm[0]))
    assert calls == {"embedding": T, "cells.0": T, "cells.1": T, "softmax": T, "": 1}
    graph = RnnlmImporter(batch=2, layers=3, hidden=4, vocabulary=5, steps=4, mode="inference").load()[0].graph
    for (module, t), waits in before(graph).items():
        if not module:  # the loss
            continue
        name, _, layer = module.partition(".")
        depth = {"embedding": 0, "cells": int(layer or 0) + 1, "softmax": 4}[name]
        cells = {(f"cells.{i}", u) for i in range(min(depth, 3)) for u in range(t + 1)}
        lookups = {("embedding", u) for u in range(t + 1)} if depth else set()
        assert waits == cells | lookups | {(module, t)}, "other steps of the softmax or lookups, or later cells"


def test_nmt_is_a_grid_and_a_chain() -> None:
    """The encoder's cells are a grid, of which the decoder reads the last states; the decoder's steps follow each other."""
    options = {"batch": 2, "layers": 3, "hidden": 4, "vocabulary": 5, "length": 4, "mode": "inference"}
    waits = before(NmtImporter(**options).load()[0].graph)
    whole = {("memory", 0)} | {(f"encoder.{i}", t) for i in range(3) for t in range(4)}
    lookups = {("source_embedding", t) for t in range(4)}
    for t in range(4):
        earlier = {("target_embedding", t)} | (lookups | whole if t else set())
        for u in range(t):
            earlier |= {(name, u) for name in ("decoder.0", "decoder.1", "decoder.2", "attention", "target_embedding")}
        for i in range(3):
            grid = {(f"encoder.{j}", u) for j in range(i + 1) for u in range(t + 1)}
            assert waits[f"encoder.{i}", t] == grid | {("source_embedding", u) for u in range(t + 1)}
            states = lookups | {(f"encoder.{j}", u) for j in range(i + 1) for u in range(4)}
            below = {(f"decoder.{j}", t) for j in range(i + 1)}
            assert waits[f"decoder.{i}", t] - {("memory", 0)} == (below | earlier | states) - {("memory", 0)}
        assert waits["attention", t] == waits["decoder.2", t] | whole | {("attention", t)}
        assert waits["softmax", t] == waits["attention", t] | {("softmax", t)}


@pytest.mark.parametrize(
    ("importer", "options"),
    [
        (RnnlmImporter, {"steps": 4}),
        pytest.param(
            RnnlmImporter, {"steps": 2, "layers": 3, "embedding": 5, "optimizer": "rmsprop"}, marks=pytest.mark.slow
        ),
        pytest.param(NmtImporter, {"length": 3}, marks=pytest.mark.slow),
        (NmtImporter, {"length": 2, "layers": 3, "embedding": 5}),
    ],
)
def test_recurrent_steps_equal_eager(importer: Any, options: dict[str, Any], steps_equal_eager: Callable) -> None:
    steps_equal_eager(importer, {"batch": 3, "hidden": 8, "vocabulary": 11, "dropout": 0.0, **options})


def copy_layers(cells: Any, lstm: nn.LSTM) -> None:
    """Give `lstm` the weights of `cells`: torch has two matrices and two biases per layer, and the order i, f, g, o."""
    with torch.no_grad():
        for i, cell in enumerate(cells):
            inputs = cell.weight.shape[1] - cell.hidden
            (iw, fw, ow, gw), (ib, fb, ob, gb) = cell.weight.chunk(4), cell.bias.chunk(4)
            weight = torch.cat([iw, fw, gw, ow])
            getattr(lstm, f"weight_ih_l{i}").copy_(weight[:, :inputs])
            getattr(lstm, f"weight_hh_l{i}").copy_(weight[:, inputs:])
            getattr(lstm, f"bias_ih_l{i}").copy_(torch.cat([ib, fb, gb, ob]))
            getattr(lstm, f"bias_hh_l{i}").zero_()


def scaled(module: nn.Module) -> None:
    """Larger weights, so that an error shows."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(20)


def test_rnnlm_is_the_model_that_lstm_and_cross_entropy_make() -> None:
    torch.manual_seed(0)
    network, lstm, words = Rnnlm(30, 6, 8, 3), nn.LSTM(6, 8, 3, batch_first=True), torch.randint(0, 30, (4, 8))
    assert network(words).item() == pytest.approx(math.log(30), rel=0.01)
    scaled(network)
    copy_layers(network.cells, lstm)
    features, _ = lstm(network.embedding(words[:, :-1]))
    logits = F.linear(features, network.softmax.weight, network.softmax.bias)
    torch.testing.assert_close(network(words), F.cross_entropy(logits.flatten(0, 1), words[:, 1:].flatten()))


def test_encoder_of_nmt_is_an_lstm() -> None:
    torch.manual_seed(0)
    network, lstm = Nmt(30, 6, 8, 2), nn.LSTM(6, 8, 2, batch_first=True)
    source, target = torch.randint(0, 30, (4, 5)), torch.randint(0, 30, (4, 6))
    assert network(source, target).item() == pytest.approx(math.log(30), rel=0.01)
    scaled(network)
    copy_layers(network.encoder, lstm)
    seen: list[Any] = []
    network.memory.register_forward_hook(lambda module, inputs, output: seen.append(output))
    network.decoder[1].register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    network(source, target)
    outputs, (h, c) = lstm(network.source_embedding(source))
    torch.testing.assert_close(seen[0][0], outputs)
    torch.testing.assert_close(seen[1], (h[1], c[1]))  # the decoder's second layer starts from the encoder's


def test_attention_is_the_formula() -> None:
    torch.manual_seed(0)
    attention, x, memory, keys = Attention(6), torch.randn(2, 6), torch.randn(2, 5, 6), torch.randn(2, 5, 6)
    nn.init.normal_(attention.query), nn.init.normal_(attention.score), nn.init.normal_(attention.output)

    def one(b: int) -> Tensor:
        scores = torch.stack([attention.score[0] @ torch.tanh(attention.query @ x[b] + keys[b, s]) for s in range(5)])
        context = sum(w * memory[b, s] for s, w in enumerate(scores.softmax(0)))
        return torch.tanh(attention.output @ torch.cat([context, x[b]]))

    torch.testing.assert_close(attention(x, memory, keys), torch.stack([one(0), one(1)]))


def test_dropout_and_residual_connections() -> None:
    small = {"batch": 2, "hidden": 4, "vocabulary": 5}
    program = RnnlmImporter(**small, steps=3).load()[0]
    random = Counter(program.graph.module[op] for op in program.executable.random_ops)
    assert random == {"cells.0": 3, "cells.1": 3, "softmax": 3}  # not between steps
    assert not RnnlmImporter(**small, steps=3, mode="inference").load()[0].executable.random_ops
    steps = steps_of(NmtImporter(**small, length=2, layers=4, dropout=0.0, mode="inference").load()[0].graph)
    kernels = {(m, t): len(ops) for (m, t), ops in steps.items()}
    for part in ("encoder", "decoder"):
        plain = kernels[f"{part}.1", 1]
        assert [kernels[f"{part}.{i}", 1] - plain for i in range(4)] == [0, 0, 1, 1]  # from the third layer
