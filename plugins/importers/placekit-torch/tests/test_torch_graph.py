"""The graph of an imported step: costs, views, co-location, phases, modules, determinism, memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from placekit_testing.sequential import run_sequential
from placekit_torch import import_module
from torch import Tensor, nn

from placekit_core import PHASES, Graph, Grouping, Program

torch.set_num_threads(1)  # the tensors are small, and tests run side by side


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters)


def imported(module: nn.Module, *inputs: Tensor, **options: Any) -> Program:
    options.setdefault("loss", lambda y: y.sum())
    return import_module(module, inputs, **options)


def ops(graph: Graph, op_type: str, phase: str | None = None) -> list[int]:
    found = np.flatnonzero(graph.op_type.is_value(op_type)).tolist()
    return [v for v in found if phase is None or PHASES[graph.phase[v]] == phase]


def named(graph: Graph, name: str) -> int:
    return graph.op_name.index(name)


def test_flops_and_bytes_of_a_perceptron_by_hand() -> None:
    module = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 5))
    g = imported(module, torch.randn(8, 12), optimizer=lambda p: torch.optim.SGD(p, lr=0.1)).graph
    product = g.op_class.is_value("matmul")
    assert g.flops[product & (g.phase == 0)].sum() == 2 * 8 * (12 * 16 + 16 * 5)
    # gradients of both weights, and of the input of the second layer only
    assert g.flops[product & (g.phase == 1)].sum() == 2 * 8 * (12 * 16 + 16 * 5) + 2 * 8 * 16 * 5
    relu = named(g, "1/relu")
    assert (g.flops[relu], g.bytes_accessed[relu]) == (8 * 16, 2 * 8 * 16 * 4)
    first = named(g, "0/addmm")
    assert g.bytes_accessed[first] == 4 * (16 + 8 * 12 + 12 * 16 + 8 * 16)
    assert g.flops[g.phase == 2].sum() == sum(p.numel() for p in module.parameters())  # one subtraction per parameter
    assert g.persistent_bytes.sum() == 4 * (8 * 12 + sum(p.numel() for p in module.parameters()))


def test_flops_of_a_convolution_by_hand() -> None:
    g = imported(
        nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.Conv2d(8, 4, (1, 5), stride=2)), torch.randn(2, 3, 12, 12)
    ).graph
    one = 2 * 2 * 8 * 10 * 10 * 3 * 9
    two = 2 * 2 * 4 * 5 * 3 * 8 * 5
    assert [g.flops[v] for v in ops(g, "aten.convolution")] == [one, two]
    assert [g.flops[v] for v in ops(g, "aten.convolution_backward")] == [2 * two, one]
    assert {g.op_class[v] for v in ops(g, "aten.convolution_backward")} == {"convolution"}


def test_views_cost_nothing_and_chunks_are_tensors() -> None:
    class Gates(nn.Module):
        def forward(self, x: Tensor, w: Tensor) -> Tensor:
            a, b = (x @ w.t()).chunk(2, 1)
            c = (x @ w.t()).unsafe_chunk(2, 1)[1]  # aliases without saying so in its schema
            return a.sigmoid() * b.tanh() + (x @ w.t())[:, :3].exp() * c.view(2, 2, 3).flatten(0, 1)

    g = imported(Gates(), torch.randn(4, 5), torch.randn(6, 5), mode="inference").graph
    assert sorted(g.op_type[v] for v in np.flatnonzero(g.kernel)) == sorted(
        ["aten.mm"] * 3 + [f"aten.{k}" for k in ("sigmoid", "tanh", "exp", "mul", "mul", "add")]
    )
    one, two, three = ops(g, "aten.mm")
    assert [g.shape(t) for t in g.outputs(one)] == [(4, 6), (4, 3), (4, 3)]
    assert [g.tensor_bytes[t] for t in g.outputs(one)] == [96, 48, 48]
    assert len({g.tensor_storage[t] for t in g.outputs(one)}) == 1
    # the last 3 columns, of which readers see a reshaped 4x3; and of that nothing smaller
    assert [g.shape(t) for t in g.outputs(two)] == [(4, 6), (4, 3)]
    assert [g.shape(t) for t in g.outputs(three)] == [(4, 6), (4, 3)]
    exp = ops(g, "aten.exp")[0]
    assert g.bytes_accessed[exp] == 2 * 48


def test_equal_views_are_one_tensor() -> None:
    class Twice(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = x.exp()
            return y[:, :2].sin() + y[:, 0:2].cos() + y[:, 1:3].sin()

    g = imported(Twice(), torch.randn(4, 4), mode="inference").graph
    assert len(g.outputs(ops(g, "aten.exp")[0])) == 3


def test_as_strided_of_a_view_is_a_view_of_the_base() -> None:
    class Strided(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.exp()[1:].as_strided((2, 2), (4, 1), 5).sin()

    x = torch.randn(4, 4)
    program = imported(Strided(), x, mode="inference")
    _, results = run_sequential(program, program.executable.initial())
    assert torch.equal(results["output.0"], Strided()(x))


def test_views_of_parameters_belong_to_the_source() -> None:
    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Parameter(torch.randn(12, 4))

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.qkv.chunk(3)
            return ((x @ q.t()) * (x @ k.t()) + x @ v.t()).sum()

    program = imported(Packed(), torch.randn(2, 4), loss=None, optimizer=adam)
    g = program.graph
    source = named(g, "qkv")
    assert [g.shape(t) for t in g.outputs(source)] == [(12, 4), (4, 4), (4, 4), (4, 4)]
    assert g.persistent_bytes[source] == 12 * 4 * 4
    values, _ = run_sequential(program, program.executable.initial())
    assert set(values) == set(program.executable.initial())


def test_parameters_share_a_device_and_memory_with_their_update() -> None:
    program = imported(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), torch.randn(5, 3), optimizer=adam)
    g = program.graph
    for parameter in ("0.weight", "0.bias", "1.weight", "1.bias"):
        together = set(np.flatnonzero(g.colocate == g.colocate[named(g, parameter)]).tolist())
        states = {named(g, f"{parameter}/{k}") for k in ("step", "exp_avg", "exp_avg_sq")}
        updates = {v for v in range(g.n) if g.op_name[v].startswith(f"{parameter}/") and g.kernel[v]}
        assert together == {named(g, parameter)} | states | updates
        assert len(updates) > 10
        assert {PHASES[g.phase[v]] for v in updates} == {"update"}
    norm = ops(g, "aten._native_batch_norm_legit_functional")[0]
    for buffer in ("1.running_mean", "1.running_var"):
        assert g.colocate[named(g, buffer)] == g.colocate[norm] >= 0
    assert len(program.executable.updates) == 4 * 4 + 3
    for old, new in program.executable.updates.items():
        assert g.tensor_storage[new] == old
        assert not g.kernel[g.tensor_producer[old]]
    free = g.kernel & (g.phase < 2) & ~g.op_type.is_value("aten._native_batch_norm_legit_functional")
    assert [g.op_name[v] for v in np.flatnonzero(free & (g.colocate >= 0))] == ["1/add"]  # num_batches_tracked
    Grouping.colocated(g).check(g)


def test_a_buffer_whose_new_value_is_not_its_own_gets_a_copy() -> None:
    class Keeps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 3)
            self.register_buffer("last", torch.zeros(2, 3))
            self.register_buffer("part", torch.zeros(3))

        def forward(self, x: Tensor) -> Tensor:
            y = self.linear(x)
            self.last.copy_(x)
            self.part.copy_(y.detach()[0])
            return y.sum()

    module = Keeps()
    program = imported(module, x := torch.randn(2, 3), loss=None, optimizer=adam)
    g = program.graph
    values, _ = run_sequential(program, program.executable.initial())
    found = {g.op_name[g.tensor_producer[t]]: v for t, v in values.items()}
    assert torch.equal(found["last"], x)
    assert torch.equal(found["part"], module.linear(x).detach()[0])
    assert {g.tensor_storage[new] for new in program.executable.updates.values()} >= {
        g.outputs(named(g, k))[0] for k in ("last", "part")
    }


def test_module_call_and_forward_of() -> None:
    class Repeats(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.ModuleDict({"cell": nn.Linear(4, 4)})

        def forward(self, x: Tensor) -> Tensor:
            for _ in range(3):
                x = torch.tanh(self.inner["cell"](x))
            return x

    g = imported(Repeats(), torch.randn(2, 4), loss=nn.MSELoss(), targets=torch.randn(2, 4), optimizer=adam).graph
    forward = ops(g, "aten.addmm")
    assert [g.module[v] for v in forward] == ["inner.cell"] * 3
    assert [g.call[v] for v in forward] == [0, 1, 2]
    assert [g.op_name[v] for v in forward] == ["inner.cell/addmm", "inner.cell@1/addmm", "inner.cell@2/addmm"]
    of = g.columns["forward_of"]
    for product in ops(g, "aten.mm", "backward"):
        assert of[product] in forward
        assert (g.module[product], g.call[product]) == ("inner.cell", g.call[of[product]])
        assert g.op_name[product].startswith("inner.cell")
    assert [g.op_type[of[v]] for v in ops(g, "aten.tanh_backward")] == ["aten.tanh"] * 3
    assert g.module[ops(g, "aten.mse_loss")[0]] == "loss"
    assert all(of[v] == -1 for v in range(g.n) if g.phase[v] != 1)
    assert all(g.phase[of[v]] == 0 and g.kernel[of[v]] for v in range(g.n) if of[v] >= 0)
    sums = ops(g, "aten.add", "backward")
    assert sums
    assert all(of[v] == -1 and g.module[v] == "inner.cell" for v in sums)


def test_sums_of_gradients_belong_where_their_last_term_is_made() -> None:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.h = nn.ModuleList([nn.Linear(4, 4) for _ in range(4)])

        def forward(self, x: Tensor) -> Tensor:
            for block in self.h:
                x = x + block(x).tanh()
            return x

    g = imported(Residual(), torch.randn(2, 4), loss=nn.MSELoss(), targets=torch.randn(2, 4)).graph
    sums = ops(g, "aten.add", "backward")
    assert [g.module[v] for v in sums] == ["h.3", "h.2", "h.1"]  # all would be in h.3 where their first term is
    assert all(g.op_class[v] == "elementwise" for v in ops(g, "aten.mse_loss_backward"))


def test_call_path_numbers_the_call_of_each_part_of_the_path() -> None:
    class Stack(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cells = nn.ModuleList([nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)])

        def forward(self, x: Tensor) -> Tensor:
            for cell in (*self.cells, *self.cells):
                x = cell(x).tanh()
            return x

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stack = Stack()

        def forward(self, x: Tensor) -> Tensor:
            outside = self.stack.cells[0](self.stack(self.stack(x)))
            return (outside + x).exp()

    g = imported(Twice(), torch.randn(2, 4), optimizer=adam).graph
    path = g.columns["call_path"]
    forward = ops(g, "aten.mm", "forward")
    found = [(g.module[v], path[v]) for v in forward]
    first, second = "stack.cells.0", "stack.cells.1"
    assert found == [
        (first, "0.0.0"), (second, "0.0.0"), (first, "0.0.1"), (second, "0.0.1"),  # calls of the whole run are counted
        (first, "1.0.2"), (second, "1.0.2"), (first, "1.0.3"), (second, "1.0.3"),
        (first, "0.0.4"),  # the stack is not being called
    ]  # fmt: skip
    assert [path[v] for v in ops(g, "aten.tanh")] == ["0"] * 4 + ["1"] * 4
    assert [(g.module[v], path[v]) for v in ops(g, "aten.exp")] == [("", "")]
    assert [(g.module[v], path[v]) for v in ops(g, "aten.sum", "forward")] == [("loss", "0")]
    of = g.columns["forward_of"]
    assert all(path[v] == path[of[v]] for v in range(g.n) if of[v] >= 0)
    sums = [v for v in ops(g, "aten.add", "backward") if g.module[v] == first]
    assert sums
    assert all(path[v] in dict.fromkeys(p for m, p in found if m == first) for v in sums)
    outside_calls = {
        path[v] for v in range(g.n) if g.module[v] == first and (not g.kernel[v] or PHASES[g.phase[v]] == "update")
    }
    assert outside_calls == {"0.0.0"}
    for v in range(g.n):  # as many numbers as the path has parts, the last one is the column `call`
        parts = [p for p in g.module[v].split(".") if p]
        numbers = [p for p in path[v].split(".") if p]
        assert len(numbers) == len(parts)
        assert int((numbers or [0])[-1]) == g.call[v] or not parts


def test_signature_and_classes() -> None:
    module = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Softmax(-1), nn.Dropout(0.5))
    g = imported(module, torch.randn(4, 8), optimizer=adam).graph
    signature = g.columns["signature"]
    one, two = ops(g, "aten.addmm")
    assert signature[one] == signature[two] == "aten.addmm(f32[8], f32[4,8], f32[8,8]{1,8})"
    assert signature[named(g, "0.weight")] == ""
    assert signature[ops(g, "aten._softmax")[0]] == "aten._softmax(f32[4,8], -1, False)"
    classes = {g.op_type[v]: g.op_class[v] for v in range(g.n)}
    assert classes["aten._softmax"] == "normalization"
    assert classes["aten.sum"] == "reduction"
    assert classes["aten._foreach_addcdiv"] == classes["aten.native_dropout"] == "elementwise"
    assert set(g.dtype.tolist()) == {"float32"}


def test_embedding_reads_rows_not_the_table() -> None:
    g = imported(nn.Embedding(1000, 16), torch.randint(0, 1000, (5,)), mode="inference").graph
    look_up = ops(g, "aten.embedding")[0]
    assert g.bytes_accessed[look_up] == 5 * 8 + 2 * 5 * 16 * 4
    assert (g.op_class[look_up], g.flops[look_up]) == ("embedding", 0)


@pytest.mark.parametrize(
    ("mode", "probability", "kernels"), [("train", 0.0, 0), ("train", 0.5, 1), ("inference", 0.5, 0)]
)
def test_a_dropout_that_drops_nothing_is_no_kernel(mode: str, probability: float, kernels: int) -> None:
    class Net(torch.nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            total: torch.Tensor = super().forward(x).sum()
            return total

    net = Net(torch.nn.Linear(4, 4), torch.nn.Dropout(probability), torch.nn.Linear(4, 4))
    graph = import_module(net, torch.randn(2, 4), mode=mode).graph
    types = [graph.op_type[v] for v in np.flatnonzero(graph.kernel)]
    assert types.count("aten.native_dropout") == kernels
    assert "aten.clone" not in types


def test_tied_parameters_and_repeated_inputs_are_one_source() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(10, 4)
            self.head = nn.Linear(4, 10, bias=False)
            self.head.weight = self.table.weight

        def forward(self, tokens: Tensor) -> Tensor:
            return self.head(self.table(tokens))

    tokens = torch.randint(0, 10, (6,))
    g = imported(Tied(), tokens, loss=F.cross_entropy, targets=tokens, optimizer=adam).graph
    assert [g.op_name[v] for v in range(g.n) if g.op_type[v] in ("parameter", "input")] == ["table.weight", "input.0"]


def test_module_on_the_meta_device() -> None:
    """On `meta`, the backward pass of the cross-entropy would silently be missing."""
    with torch.device("meta"):
        module, x = nn.Linear(4, 3), torch.empty(2, 4)
    program = imported(module, x, loss=F.cross_entropy, targets=torch.tensor([0, 1]), optimizer=adam)
    assert len(ops(program.graph, "aten.nll_loss_backward")) == 1
    assert module.weight.device.type == "meta"


def test_keyword_inputs_and_several_outputs() -> None:
    class Named(nn.Module):
        def forward(self, *, first: Tensor, rest: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
            return first.t(), first + rest["second"] * rest["times"], first

    first, second = torch.randn(2, 3), torch.randn(2, 3)
    inputs = {"first": first, "rest": {"second": second, "times": 3}}
    program = import_module(Named(), inputs, mode="inference")
    assert program.graph.op_name[:2] == ("input.first", "input.rest.second")
    _, results = run_sequential(program, program.executable.initial())
    assert torch.equal(results["output.0"], first.t())
    assert torch.equal(results["output.1"], first + second * 3)
    assert torch.equal(results["output.2"], first)


def test_recurrent_layers_warn() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.LSTM(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.rnn(x)[0]

    module, x = Recurrent(), torch.randn(3, 2, 4)
    with pytest.warns(UserWarning, match=r"rnn is an nn\.LSTM.*nn\.LSTMCell"):
        program = imported(module, x, mode="inference")
    assert len(ops(program.graph, "aten.sigmoid")) == 9  # unrolled
    _, results = run_sequential(program, program.executable.initial())
    torch.testing.assert_close(results["output.0"], module(x).detach())


def test_frozen_parameters_and_groups_of_parameters() -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3))
    module[0].requires_grad_(False)

    def optimizer(parameters: list[Tensor]) -> torch.optim.Optimizer:
        groups = [{"params": parameters[:2], "lr": 0.5}, {"params": parameters[2:], "momentum": 0.9}]
        return torch.optim.SGD(groups, lr=0.1)

    program = imported(module, torch.randn(2, 3), optimizer=optimizer)
    g = program.graph
    assert [g.op_name[v] for v in range(g.n) if g.op_type[v] == "state"] == [
        "2.weight/momentum_buffer",
        "2.bias/momentum_buffer",
    ]
    old = {g.op_name[g.tensor_producer[t]] for t in program.executable.updates}
    assert old & set(dict(module.named_parameters())) == {"1.weight", "1.bias", "2.weight", "2.bias"}
    text = [g.columns["signature"][v] for v in range(g.n) if g.op_name[v].startswith("1.") and g.phase[v] == 2]
    assert text == [
        "aten._foreach_add([f32[3,3]], [f32[3,3]], alpha=-0.5)",
        "aten._foreach_add([f32[3]], [f32[3]], alpha=-0.5)",
    ]
