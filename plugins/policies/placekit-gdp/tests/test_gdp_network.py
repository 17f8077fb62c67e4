"""The networks of `gdp`: what a group sees of its neighbours, of other segments, and of the whole graph."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from placekit_gdp.embedding import GraphEmbedding, pooled
from placekit_gdp.inputs import SIZES, Inputs, features
from placekit_gdp.placer import Dense, Placer
from placekit_testing import fakes
from torch import Tensor
from torch.nn.functional import gelu


def placer(**values: object) -> Placer:
    """A small placement network, whose parameters are all far from zero."""
    settings = {
        "hidden": 8, "devices": 3, "layers": 1, "heads": 2, "segment": 4, "attends": True, "superposition": False
    }  # fmt: skip
    torch.manual_seed(0)
    found = Placer(**{**settings, **values})
    for p in found.parameters():
        torch.nn.init.normal_(p, std=0.5)
    return found


def embeddings(g: int) -> Tensor:
    return torch.randn(g, 8, generator=torch.Generator().manual_seed(1), requires_grad=True)


def reads(network: Placer, h: Tensor, group: int) -> list[int]:
    """The groups that the logits of `group` depend on."""
    before = network(h)[group]
    found = []
    for other in range(len(h)):
        changed = h.detach().clone()
        changed[other, 0] += 1.0  # not all of it, which layer norms would take away
        if not torch.allclose(network(changed)[group], before, atol=1e-6):
            found.append(other)
    return found


class TestGraphEmbedding:
    def test_the_maximum_over_neighbours(self) -> None:
        values = torch.tensor([[1.0, 5.0], [2.0, 4.0], [3.0, 3.0], [9.0, 9.0]])
        source, target = torch.tensor([0, 1, 2]), torch.tensor([2, 2, 0])
        assert pooled(values, source, target).tolist() == [[3.0, 3.0], [0.0, 0.0], [2.0, 5.0], [0.0, 0.0]]

    def test_it_is_graphsage(self) -> None:
        """Against the formulas, group by group: h_N(v) = max sigmoid(W h_u + b), h_v' = f(concat(h_v, h_N(v)))."""
        network = GraphEmbedding(3, 4, 2)
        x = torch.randn(5, 3)
        edges = [(0, 1), (1, 0), (1, 2), (2, 1), (0, 3), (3, 0)]
        source, target = torch.tensor(edges).T
        h = network.norm[0](gelu(network.first(x)))
        for message, update, norm in zip(network.message, network.update, network.norm[1:], strict=True):
            rows = []
            for v in range(5):
                near = [message(h[u]).sigmoid() for u, to in edges if to == v]
                most = torch.stack(near).amax(dim=0) if near else torch.zeros(4)
                rows.append(norm(gelu(update(torch.cat([h[v], most])))))
            h = torch.stack(rows)
        torch.testing.assert_close(network(x, source, target), h)

    @pytest.mark.parametrize(("rounds", "seen"), [(0, [3]), (1, [2, 3, 4]), (2, [1, 2, 3, 4, 5])])
    def test_a_group_sees_as_far_as_there_are_rounds(self, rounds: int, seen: list[int]) -> None:
        network = GraphEmbedding(2, 8, rounds)
        x = torch.randn(7, 2, requires_grad=True)
        line = torch.arange(6)
        network(x, torch.cat([line, line + 1]), torch.cat([line + 1, line]))[3].square().sum().backward()
        assert x.grad is not None
        assert set(x.grad.abs().sum(dim=1).nonzero()[:, 0].tolist()) <= set(seen)


class TestPlacer:
    def test_a_group_attends_to_its_segment_and_the_one_before(self) -> None:
        network, h = placer(), embeddings(11)
        assert reads(network, h, 1) == [0, 1, 2, 3]
        assert reads(network, h, 5) == list(range(8))
        assert reads(network, h, 10) == list(range(4, 11))

    def test_layers_reach_further(self) -> None:
        assert reads(placer(layers=2), embeddings(13), 12) == list(range(4, 13))

    def test_without_attention_only_to_itself(self) -> None:
        assert reads(placer(attends=False), embeddings(9), 5) == [5]

    def test_no_gradient_goes_back_into_the_segment_before(self) -> None:
        network, h = placer(), embeddings(8)
        network(h)[6].sum().backward()
        assert h.grad is not None
        assert h.grad.abs().sum(dim=1).nonzero()[:, 0].tolist() == [4, 5, 6, 7]

    def test_attention_knows_no_positions(self) -> None:
        """Groups of one segment in another order get the same logits."""
        network, h, order = placer(superposition=True, segment=6), embeddings(6), torch.tensor([3, 1, 5, 0, 2, 4])
        torch.testing.assert_close(network(h[order]), network(h)[order])

    def test_it_is_attention(self) -> None:
        """Two segments of one layer against the formulas, group by group."""
        network, h = placer(heads=1, segment=2), embeddings(4).detach()
        [layer] = network.layers
        rows = []
        for v in range(4):
            keys = range(max(0, v // 2 * 2 - 2), v // 2 * 2 + 2)
            normed = [layer.norm[1](x) for x in h]
            a = layer.attention
            score = torch.stack([a.query.dense(normed[v]) @ a.key.dense(normed[u]) / 8**0.5 for u in keys])
            value = torch.stack([a.value.dense(normed[u]) for u in keys])
            x = h[v] + a.output.dense(score.softmax(dim=0) @ value)
            x = x + layer.narrow.dense(gelu(layer.wide.dense(layer.norm[0](x))))
            rows.append(network.output.dense(network.norm(x)))
        torch.testing.assert_close(network(h), torch.stack(rows))

    def test_with_superposition_each_group_sees_the_whole_graph(self) -> None:
        assert reads(placer(superposition=True, attends=False), embeddings(9), 5) == list(range(9))

    def test_superposition_scales_the_inputs(self) -> None:
        layer = Dense(3, 2, 4)
        x, x0 = torch.randn(5, 3), torch.randn(4)
        assert layer.condition is not None
        torch.testing.assert_close(layer(x, x0), layer.dense(layer.condition(x0) * x))
        with torch.no_grad():
            layer.condition.weight.zero_()
        torch.testing.assert_close(layer(x, x0), layer.dense(x))


class TestInputs:
    def test_groups_are_in_topological_order_and_edges_go_both_ways(self) -> None:
        problem = fakes.diamond()  # w and x, then a -> (b, c) -> d
        found = Inputs.of(problem, 4, 16, 0)
        names = [problem.grouping.name(v) for v in found.order]
        pairs = {(names[u], names[v]) for u, v in zip(found.source.tolist(), found.target.tolist(), strict=True)}
        forward = {("x", "a"), ("a", "b"), ("w", "b"), ("a", "c"), ("b", "d"), ("c", "d")}
        assert pairs == forward | {(v, u) for u, v in forward}
        assert len(found.source) == 12

    def test_numbers(self) -> None:
        problem = fakes.mixed()
        found = Inputs.of(problem, 5, 16, 2)
        assert found.numbers.shape == (problem.g, features(5, 2)) == (problem.g, 5 + SIZES + 4)
        assert torch.isfinite(found.numbers).all()
        assert not found.numbers[:, 3:5].any(), "there is no fourth device"
        assert (found.numbers[:, :3][~found.allowed[:, :3]] == 0).all()
        assert not found.allowed[:, 3:].any()
        assert np.array_equal(found.allowed[:, :3].numpy(), problem.allowed[found.order])

    def test_sizes_are_relative_to_the_mean_of_the_graph(self) -> None:
        problem = fakes.chain(7)
        found = Inputs.of(problem, 2, 16, 0).numbers
        seconds, sizes = problem.group_s[problem.grouped.topological_order], problem.grouped.tensor_bytes
        torch.testing.assert_close(found[:, 0], torch.from_numpy(np.log1p(seconds[:, 0] / seconds.mean())).float())
        assert found[0, 3] == pytest.approx(np.log1p(sizes[0] / (sizes.sum() / problem.g)), rel=1e-5)
