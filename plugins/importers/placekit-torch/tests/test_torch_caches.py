"""Objects among the inputs: dataclasses, and caches of keys and values, which a step extends or changes in place."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from placekit_testing.sequential import run_sequential
from placekit_torch import import_module
from torch import Tensor, nn

from placekit_core import ImporterError, Program

torch.set_num_threads(1)


class GrowingCache:
    """As a `DynamicCache` of transformers: new keys are appended."""

    def __init__(self, layers: int, length: int = 4) -> None:
        self.keys = [torch.randn(1, length, 8) for _ in range(layers)]

    def update(self, layer: int, key: Tensor) -> Tensor:
        self.keys[layer] = torch.cat([self.keys[layer], key], 1)
        return self.keys[layer]


class FixedCache(GrowingCache):
    """As a `StaticCache`: new keys are written into their place, which moves on."""

    def __init__(self, layers: int, length: int = 4) -> None:
        super().__init__(layers, length)
        self.position = torch.zeros(1, dtype=torch.int64)

    def update(self, layer: int, key: Tensor) -> Tensor:
        self.keys[layer].index_copy_(1, self.position, key)
        if layer == len(self.keys) - 1:
            self.position.add_(1)
        return self.keys[layer]


@dataclass
class Output:
    logits: Tensor
    cache: Any = None
    notes: list[str] = field(default_factory=list)
    loss: Tensor | None = None


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def forward(self, x: Tensor, cache: Any = None, flag: bool = True, label: Tensor | None = None) -> Output:
        for i, layer in enumerate(self.layers):
            key = layer(x)
            keys = key if cache is None else cache.update(i, key)
            x = x + torch.softmax(x @ keys.mT, -1) @ keys
        return Output(x, cache, ["none"], None if label is None else (x - label).square().mean())


def decode(cache: Any) -> Program:
    return import_module(Decoder(), {"x": torch.randn(1, 1, 8), "cache": cache}, mode="inference")


def test_a_growing_cache_stays_on_its_device() -> None:
    cache = GrowingCache(2)
    program = decode(cache)
    g = program.graph
    assert [k.shape for k in cache.keys] == [(1, 4, 8)] * 2  # the user's object is not changed
    place = {g.op_name[v]: int(g.colocate[v]) for v in range(g.n)}
    for layer in range(2):
        assert place[f"input.cache.{layer}"] == place[cat(g, layer)] >= 0
    assert place["input.cache.0"] != place["input.cache.1"]
    values = program.executable.initial()
    _, results = run_sequential(program, values)
    assert [tuple(r.shape) for r in results.values()] == [(1, 1, 8), (1, 5, 8), (1, 5, 8)]


def test_each_tower_keeps_its_cache_on_its_device() -> None:
    cache = GrowingCache(2)
    cache.keys = [torch.randn(2, 4, 8) for _ in cache.keys]
    inputs = {"x": torch.randn(2, 1, 8), "cache": cache}
    g = import_module(Decoder(), inputs, mode="inference", towers=2).graph
    place = {g.op_name[v]: int(g.colocate[v]) for v in range(g.n)}
    found = [place[cat(g, i)] for i in range(4)]
    assert found == [place[f"tower{tower}.input.cache.{layer}"] for tower in range(2) for layer in range(2)]
    assert len(set(found)) == 4
    assert min(found) >= 0


def cat(g: Any, layer: int) -> str:
    return [g.op_name[v] for v in range(g.n) if g.op_type[v] == "aten.cat"][layer]  # type: ignore[no-any-return]


def test_a_fixed_cache_is_updated_in_its_place() -> None:
    torch.manual_seed(0)
    module, cache, x = Decoder(), FixedCache(2), torch.randn(1, 1, 8)
    program = import_module(module, {"x": x, "cache": cache}, mode="inference")
    g, values = program.graph, program.executable.initial()
    assert {g.op_name[g.tensor_producer[t]] for t in program.executable.updates} == {
        f"input.cache.{i}" for i in range(3)
    }
    for _ in range(3):
        values, results = run_sequential(program, values)
        assert torch.equal(results["output.0"], module(x, cache).logits)
    found = {g.op_name[g.tensor_producer[t]]: v for t, v in values.items()}
    assert torch.equal(found["input.cache.0"], cache.keys[0])
    assert int(found["input.cache.2"]) == 3


def test_a_cache_that_cannot_be_copied_is_named() -> None:
    cache = GrowingCache(2)
    cache.lock = threading.Lock()  # type: ignore[attr-defined]
    with pytest.raises(ImporterError, match="a GrowingCache among the inputs cannot be copied"):
        decode(cache)


def test_losses_of_outputs_and_objects_as_inputs() -> None:
    @dataclass
    class Batch:
        x: Tensor
        rate: float

    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.decoder = Decoder()

        def forward(self, batch: Batch, label: Tensor) -> Output:
            return self.decoder(batch.x * batch.rate, label=label)  # type: ignore[no-any-return]

    torch.manual_seed(0)
    module, batch, label = Wrapped(), Batch(torch.randn(1, 3, 8), 0.5), torch.randn(1, 3, 8)
    program = import_module(module, (batch, label))
    _, results = run_sequential(program, program.executable.initial())
    assert torch.equal(results["loss"], module(batch, label).loss)
    assert set(program.executable.results) >= {"loss", "gradient.decoder.layers.0.weight"}
    with pytest.raises(ImporterError, match="has no scalar loss: the module returns a Output"):
        import_module(Decoder(), {"x": torch.randn(1, 3, 8)})
