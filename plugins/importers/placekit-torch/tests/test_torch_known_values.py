"""Python values that depend on tensors: known ones, and those that `tracer=make_fx` takes from the example."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from placekit_testing.sequential import run_sequential
from placekit_torch import import_module
from torch import Tensor, nn

from placekit_core import ImporterError

torch.set_num_threads(1)


class Branch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            return x
        return -x


class Mask(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[x > 0]


class Nonzero(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.nonzero(x > 0).float() * x.sum()


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(8, 4)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        weight, chosen = self.router(x).softmax(-1).topk(2, -1)
        out = torch.zeros_like(x)
        for e, expert in enumerate(self.experts):
            token, slot = torch.where(chosen == e)
            if token.numel() > 0:
                out.index_add_(0, token, expert(x[token]) * weight[token, slot, None])
        return out


MODULES: list[Callable[[], nn.Module]] = [Branch, Mask, Nonzero, Experts]


@pytest.mark.parametrize("kind", MODULES)
def test_values_of_the_example(kind: Any) -> None:
    torch.manual_seed(0)
    module, x = nn.Sequential(nn.Linear(8, 8), kind()), torch.randn(16, 8)
    if kind is not Experts:
        with pytest.raises(ImporterError, match=r"importer\.tracer=make_fx"):
            import_module(module, x, mode="inference")
    for mode in ("train", "inference"):
        with pytest.warns(
            UserWarning, match=r"(?s)Sequential was traced with the values of this example.*test_torch_known_values"
        ):
            program = import_module(module, x, loss=lambda y: y.sum(), mode=mode, tracer="make_fx")  # type: ignore[arg-type]
        _, results = run_sequential(program, program.executable.initial())
        expected = module(x)
        module.zero_grad()
        expected.sum().backward()
        if mode == "inference":
            assert torch.equal(results["output.0"], expected)
        else:
            assert torch.equal(results["gradient.0.weight"], module[0].weight.grad)


def test_flops_of_experts_are_those_of_the_tokens_that_they_get() -> None:
    torch.manual_seed(0)
    with pytest.warns(UserWarning, match="values of this example"):
        graph = import_module(Experts(), torch.randn(16, 8), mode="inference", tracer="make_fx").graph
    products = sum(float(f) for v, f in enumerate(graph.flops) if graph.op_class[v] == "matmul")
    assert products == 2 * 16 * 8 * 4 + 2 * (16 * 2) * 8 * 8  # the router; and two experts for each token


def test_a_loop_over_experts_has_even_loads() -> None:
    with pytest.warns(UserWarning, match=r"(?s)every expert the same load.*torch\.where\(chosen == e\)"):
        graph = import_module(Experts(), torch.randn(16, 8), loss=lambda y: y.sum()).graph
    rows = [graph.shape(t)[0] for t, v in enumerate(graph.tensor_producer) if graph.op_name[v].endswith("/addmm")]
    assert sorted(rows) == [8, 8, 8, 8, 16]  # four experts, and the router


class Shapes(nn.Linear):
    """As detection models compute with shapes: in small tensors that hold numbers known to the code."""

    def forward(self, x: Tensor) -> Tensor:
        sizes = torch.as_tensor([[2, 2], [2, 2]])
        positions = torch.arange(int(sizes.prod(1).sum()))
        if (positions.diff() != 1).any() or x.isnan().any() or x.isinf().any() or not x.isfinite().all():
            return x
        return super().forward(x) * len(positions.tolist())


class Dropped(nn.Linear):
    rate = 0.5

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            if torch.rand([]) < self.rate:
                continue
            x = super().forward(x)
        return x


def test_values_that_depend_on_no_data_are_known() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        program = import_module(Shapes(4, 4), torch.randn(2, 4), loss=lambda y: y.sum())
    assert "aten.addmm" in program.graph.op_type.vocabulary


def test_layer_drop_keeps_every_layer() -> None:
    with pytest.warns(UserWarning, match=r"(?s)takes each as almost 1.*torch\.rand\(\[\]\) < self\.rate"):
        graph = import_module(Dropped(4, 4), torch.randn(2, 4), loss=lambda y: y.sum()).graph
    assert sum(t == "aten.addmm" for t in (graph.op_type[v] for v in range(graph.n))) == 3
    module = Dropped(4, 4)
    module.rate = 0.0  # nothing is dropped, and nothing is said
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        import_module(module, torch.randn(2, 4), loss=lambda y: y.sum())


def test_pythons_random_numbers_are_the_same_in_each_pass_and_stay_unchanged() -> None:
    class Random(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            for _ in range(random.randrange(1, 6)):
                x = super().forward(x)
            return x.repeat(random.randrange(1, 6), 1)

    random.seed(1)
    state = random.getstate()
    first, second = (import_module(Random(4, 4), torch.randn(2, 4), loss=lambda y: y.sum()).graph for _ in range(2))
    assert first.fingerprint == second.fingerprint
    assert random.getstate() == state


class Masked(nn.Linear):
    """Decides by a mask and by labels, which are whole numbers and booleans, and picks rows by the mask."""

    def forward(self, x: Tensor, mask: Tensor, labels: Tensor) -> Tensor:
        if labels.max() >= self.out_features:
            raise ValueError("a label is too large")
        return torch.nn.functional.cross_entropy(super().forward(x)[mask], labels[mask])


def test_whole_numbers_among_the_inputs_decide_and_the_lines_are_named() -> None:
    module, x = Masked(8, 8), torch.randn(4, 8)
    mask, labels = torch.tensor([True, False, True, True]), torch.tensor([1, 2, 3, 4])
    with pytest.warns(UserWarning, match=r"(?s)values of this example.*labels\.max\(\) >=.*forward\(x\)\[mask\]"):
        program = import_module(module, (x, mask, labels))
    _, results = run_sequential(program, program.executable.initial())
    expected = module(x, mask, labels)
    expected.backward()
    assert torch.equal(results["loss"], expected)
    assert module.weight.grad is not None
    assert torch.equal(results["gradient.weight"], module.weight.grad)
    with pytest.raises(ImporterError, match="a label is too large"):
        import_module(module, (x, mask, labels + 8))


class Padded(nn.Linear):
    """Numbers that follow from a mask, more than 4,096 of them, decide, and rows are picked by them."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        far = torch.where(mask[:, None, :].expand(-1, 80, -1) > 0, 0.0, -1.0)[:, 0] < 0
        seen = torch.ones_like(x, dtype=torch.long).sum()
        if far.flatten().any().item() and seen == x.numel():
            return super().forward(x)[~far]
        return x


def test_numbers_that_follow_from_inputs_are_known() -> None:
    module, x, mask = Padded(8, 8), torch.randn(2, 40, 8), torch.ones(2, 40, dtype=torch.long)
    mask[1, 30:] = 0
    with pytest.warns(UserWarning, match=r"(?s)values of this example.*any\(\)\.item\(\)"):
        program = import_module(module, (x, mask), loss=lambda y: y.square().sum())
    _, results = run_sequential(program, program.executable.initial())
    expected = module(x, mask).square().sum()
    assert torch.equal(results["loss"], expected)


def test_large_values_are_not_computed() -> None:
    class Pairs(nn.Linear):
        def forward(self, x: Tensor, part: Tensor) -> Tensor:
            same = part[:, None] == part[None, :]  # 10^12 booleans
            return super().forward(x) + same[:, 0, None]

    import_module(Pairs(8, 8), (torch.randn(10**6, 8), torch.zeros(10**6, dtype=torch.long)), mode="inference")


def test_picking_rows_at_unknown_places_gives_unknown_numbers() -> None:
    class Picked(nn.Linear):
        def forward(self, x: Tensor, labels: Tensor) -> Tensor:
            picked = labels[super().forward(x)[:, 0].long()]
            return x[: int(picked.max())]

    with pytest.raises(ImporterError, match="depends on the data"):
        import_module(Picked(8, 8), (torch.rand(7, 8), torch.arange(7)), mode="inference")


class Sparse(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return torch.sparse.mm(x.to_sparse(), self.weight)


@torch.library.custom_op("placekit_tests::block_sparse_product", mutates_args=())
def block_sparse_product(x: Tensor) -> Tensor:
    return x * 2


@block_sparse_product.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


class CalledSparse(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(block_sparse_product(x))


def test_an_operator_of_ones_own_may_be_called_sparse() -> None:
    graph = import_module(CalledSparse(), torch.randn(4, 4), mode="inference").graph
    assert any("block_sparse_product" in name for name in graph.op_type.vocabulary)


def test_sparse_tensors_are_refused() -> None:
    with pytest.raises(
        ImporterError, match=r"(?s)aten\._to_sparse.*sparse tensor.*x\.to_sparse\(\), self.*dense layer"
    ):
        import_module(Sparse(4, 4), torch.randn(4, 4), mode="inference")
    module = nn.Linear(4, 4)
    module.register_buffer("edges", torch.eye(4).to_sparse_coo())
    with pytest.raises(ImporterError, match=r"has a tensor of torch\.sparse_coo with shape \(4, 4\)"):
        import_module(module, torch.randn(2, 4), mode="inference")


def test_images_of_padding_and_numbers_in_a_list() -> None:
    """No number is exactly 0, as in the code of Idefics, and a list may hold single tensors, as in that of Qwen2-VL."""

    class Padded(nn.Module):
        def forward(self, images: Tensor, grid: Tensor) -> Tensor:
            kept = images[(images == 0.0).sum((1, 2)) != images[0].numel()]
            whole = torch.ones(kept.shape, dtype=torch.bool)
            return kept[whole] * torch.tensor([grid.max() + 1, 2]).sum()

    x, grid = torch.randn(4, 3, 3), torch.tensor([5, 6])
    with pytest.warns(UserWarning, match="was traced with the values of this example"):
        program = import_module(Padded(), (x, grid), mode="inference")
    assert program.executable is not None
    _, results = run_sequential(program, program.executable.initial())
    torch.testing.assert_close(next(iter(results.values())), x.flatten() * 9)


def test_the_loss_of_spoken_text() -> None:
    class Spoken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scores = nn.Linear(8, 10)

        def forward(self, x: Tensor, text: Tensor) -> Tensor:
            scores, real = self.scores(x).log_softmax(-1).transpose(0, 1), text >= 0
            frames = torch.full((2,), x.shape[1])
            return nn.functional.ctc_loss(scores, text.masked_select(real), frames, real.sum(-1))

    module, x, text = Spoken(), torch.randn(2, 50, 8), torch.randint(1, 10, (2, 7))
    program = import_module(module, (x, text), mode="train")
    assert program.executable is not None
    _, results = run_sequential(program, program.executable.initial())
    loss = module(x, text)
    loss.backward()
    torch.testing.assert_close(results["loss"], loss.detach())
    torch.testing.assert_close(results["gradient.scores.weight"], module.scores.weight.grad)
