"""Memory traffic and memory of what functionalisation makes of views and of operations in place, against counts by hand.

x is [64, 64] of float32: X bytes, a row of it R. `x * 2` makes a tensor of the network's own, so it reads and writes X.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from placekit_testing.sequential import run_sequential
from placekit_torch import import_module
from torch import Tensor

from placekit_core import Graph

N = 64
R = 4 * N
X = N * R
Body = Callable[[Tensor], Tensor | tuple[Tensor, ...]]


class Net(torch.nn.Module):
    def __init__(self, body: Body) -> None:
        super().__init__()
        self.body = body
        self.register_buffer("cache", torch.zeros(N, N))

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, ...]:
        return self.body(x) if self.body is not cached else cached(x, self.cache)


def traced(body: Body, fusion: str = "none") -> Graph:
    """The graph, after comparing what its code computes with PyTorch."""
    torch.manual_seed(0)
    x, net = torch.randn(N, N), Net(body)
    program = import_module(net, x.clone(), mode="inference", fusion=fusion)
    assert program.executable is not None
    _, results = run_sequential(program, program.executable.initial())
    for value, expected in zip(results.values(), _list(net(x.clone())), strict=True):
        torch.testing.assert_close(value, expected, rtol=0, atol=0)
    return program.graph


def _list(value: Tensor | tuple[Tensor, ...]) -> list[Tensor]:
    return list(value) if isinstance(value, tuple) else [value]


def row(x: Tensor) -> Tensor:
    y = x * 2
    y[3] = x[5]
    return y


def rows_in_turn(x: Tensor) -> Tensor:
    y = x * 2
    for i in range(1, 5):
        y[i] = y[i] + y[i - 1]
    return y


def columns(x: Tensor) -> Tensor:
    y = x * 2
    y[:, 2:4] = 0.0
    return y


def zeroed(x: Tensor) -> Tensor:
    y = x * 2
    y[:8].zero_()
    return y


def scaled(x: Tensor) -> Tensor:
    y = x * 2
    y[:8].mul_(3)
    return y


def added(x: Tensor) -> Tensor:
    y = x * 2
    y[2].add_(x[3])
    return y


def nested(x: Tensor) -> Tensor:
    y = x * 2
    y[2, 8:16] = x[3, 8:16]
    return y


def other_type(x: Tensor) -> Tensor:
    y = x * 2
    y[2] = x[3].half()
    return y


def spread(x: Tensor) -> Tensor:
    y = x * 2
    y[4:8] = x[0]
    return y


def diagonal(x: Tensor) -> Tensor:
    y = x * 2
    y.diagonal().fill_(1.0)
    return y


def through_a_view(x: Tensor) -> Tensor:
    y = x * 2
    y.view(-1)[N : 2 * N] = x[0]
    return y


def through_a_transpose(x: Tensor) -> Tensor:
    y = x * 2
    y.t()[1] = x[0]
    return y


def parts_of_a_new_one(x: Tensor) -> Tensor:
    y = x.new_empty(2, N, N)
    y[0] = x
    y[1] = x * 2
    return y


def zeros_then_parts(x: Tensor) -> Tensor:
    y = x.new_zeros(N, N)
    y[:32] = x[:32]
    return y


def chunks(x: Tensor) -> Tensor:
    a, b = (x * 2).chunk(2)
    a[0] = b[0]
    return a + 1


def part_of_a_chunk_read_twice(x: Tensor) -> Tensor:
    a, b = (x * 2).chunk(2)
    a[0] = b[0]
    c = a + 1
    a[1] = b[1]
    return a + c


def copied_into_a_new_one(x: Tensor) -> Tensor:
    y = torch.empty_like(x)
    y.copy_(x)
    return y + 1


def overwritten(x: Tensor) -> Tensor:
    y = x * 2
    z = y + x
    y.copy_(z)
    return y + z


def picked_rows(x: Tensor) -> Tensor:
    y = x * 2
    y[torch.tensor([1, 5])] = x[:2]
    return y


def picked_rows_of_a_number(x: Tensor) -> Tensor:
    y = x * 2
    y[torch.tensor([1, 5])] = 0.0
    return y


def picked_rows_of_one_row(x: Tensor) -> Tensor:
    y = x * 2
    y[torch.tensor([1, 5])] = x[0]
    return y


def scattered(x: Tensor) -> Tensor:
    y = x * 2
    return y.scatter_(0, torch.tensor([[1, 5]]), x)


def scattered_number(x: Tensor) -> Tensor:
    y = x * 2
    return y.scatter_(0, torch.tensor([[1, 5]]), 3.0)


def added_rows(x: Tensor) -> Tensor:
    y = x * 2
    return y.index_add_(0, torch.tensor([1, 5]), x[:2])


def masked(x: Tensor) -> Tensor:
    y = x * 2
    y[x > 0] = 0.0
    return y


def old_value_is_read(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    return torch.select_scatter(y, x[0], 0, 3), y + 1


def out_of_place(x: Tensor) -> Tensor:
    return torch.slice_scatter(x * 2, x[:4], 0, 0, 4)


def input_is_kept(x: Tensor) -> Tensor:
    return torch.select_scatter(x, x[0], 0, 3)


def cached(x: Tensor, cache: Tensor) -> Tensor:
    cache[7:8] = x[:1]
    cache[9:10] = x[1:2]
    return cache.sum(0)


cases: list[tuple[Body, int, int]] = [
    # body, bytes read and written, bytes of memory besides sources
    (row, 2 * X + 2 * R, X),
    (rows_in_turn, 2 * X + 4 * (3 * R + 2 * R), X + 4 * R),
    (columns, 2 * X + 2 * R, X),
    (zeroed, 2 * X + 8 * R, X),
    (scaled, 2 * X + 16 * R, X),
    (added, 2 * X + 3 * R, X),
    (nested, 2 * X + 2 * 32, X),
    (other_type, 2 * X + (R + R // 2) + (R // 2 + R), X + R // 2),
    (spread, 2 * X + R + 4 * R, X),
    (diagonal, 2 * X + R, X),
    (through_a_view, 2 * X + 2 * R, X),
    (through_a_transpose, 2 * X + 2 * R, X),
    (parts_of_a_new_one, 2 * X + 2 * X + 2 * X, 3 * X),
    (zeros_then_parts, X + X, X),
    (chunks, 2 * X + 2 * R + X, X + X // 2),
    (part_of_a_chunk_read_twice, 2 * X + 2 * R + X + 2 * R + 3 * X // 2, X + X),
    (copied_into_a_new_one, 2 * X + 2 * X, 2 * X),
    (overwritten, 2 * X + 3 * X + 2 * X + 3 * X, 3 * X),
    (picked_rows, 2 * X + 2 * 8 + 4 * R, X),
    (picked_rows_of_a_number, 2 * X + 2 * 8 + 2 * R, X),
    (picked_rows_of_one_row, 2 * X + 2 * 8 + R + 2 * R, X),
    (scattered, 2 * X + 2 * 8 + 2 * 2 * 4, X),
    (scattered_number, 2 * X + 2 * 8 + 2 * 4, X),
    (added_rows, 2 * X + 2 * 8 + 6 * R, X),
    (masked, 2 * X + (X + X // 4) + X // 4 + 4 + 2 * X, X + X // 4),
    (old_value_is_read, 2 * X + (X + R + X) + 2 * X, 3 * X),
    (out_of_place, 2 * X + 2 * 4 * R, X),
    (input_is_kept, X + R + X, X),
    (cached, 2 * 2 * R + X + R, R),
]


@pytest.mark.parametrize(("body", "moved", "memory"), cases, ids=[body.__name__ for body, _, _ in cases])
def test_traffic_and_memory_are_those_counted_by_hand(body: Body, moved: int, memory: int) -> None:
    graph = traced(body)
    assert graph.bytes_accessed.sum() == pytest.approx(moved, abs=16)  # numbers that are constants
    assert graph.owned_bytes.sum() == memory


@pytest.mark.parametrize("body", [each for each, *_ in cases if each is not part_of_a_chunk_read_twice])
def test_fused_kernels_move_no_more(body: Body) -> None:
    alone, fused = traced(body), traced(body, fusion="pointwise")
    assert fused.bytes_accessed.sum() <= alone.bytes_accessed.sum()
    assert fused.owned_bytes.sum() <= alone.owned_bytes.sum()


def test_what_writes_in_place_shares_memory_and_device_and_launches_once() -> None:
    graph = traced(rows_in_turn)
    owner = graph.tensor_producer[graph.tensor_storage]
    shared = np.flatnonzero(graph.kernel[owner] & (owner != graph.tensor_producer))
    writers = np.unique(graph.tensor_producer[shared])
    assert sorted(graph.op_type[int(v)] for v in writers) == ["aten.copy"] * 4 + ["aten.select_scatter"] * 4
    assert set(graph.colocate[writers]) == set(graph.colocate[owner[shared]]) != {-1}
    free = [v for v in range(graph.n) if graph.op_type[v] == "aten.select_scatter"]
    assert len(free) == 4
    assert not graph.columns["launches"][free].any()
