"""The network: attention against its formula, and drawing against the replay with autograd."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from placekit_learn.torch_features import TypeEmbedding
from placekit_seq2seq import attention
from placekit_seq2seq.attention import attend, exponential, weights
from placekit_seq2seq.network import Placer, chosen_log_prob, entropy

M, S, T, A, H = 2, 5, 7, 3, 4


def tensors(dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, ...]:
    """Queries, keys, score, memory."""
    g = torch.Generator().manual_seed(0)
    shapes = (M, S, A), (M, T, A), (A,), (M, T, H)
    return tuple(torch.randn(shape, generator=g, dtype=dtype).requires_grad_() for shape in shapes)


def closed() -> torch.Tensor:
    mask = torch.zeros(M, T, dtype=torch.bool)
    mask[0, 4:] = True
    mask[1, 0] = True
    return mask


def by_formula(query, key, score, memory, mask=None):
    scores = torch.tanh(query[:, :, None] + key[:, None]) @ score
    return (scores if mask is None else scores.masked_fill(mask[:, None], -torch.inf)).softmax(2) @ memory


class TestAttention:
    def test_weights_add_up_to_one_and_ignore_padding(self) -> None:
        query, key, score, _ = tensors()
        w = weights(exponential(query), exponential(key.mT), score, closed())
        assert w.shape == (M, S, T)
        torch.testing.assert_close(w.sum(2), torch.ones(M, S, dtype=w.dtype))
        assert not w.masked_select(closed()[:, None].expand(M, S, T)).any()
        assert (w > 0).sum() == (~closed()).sum() * S

    @pytest.mark.parametrize("mask", [None, closed()])
    def test_context_is_that_of_the_formula(self, mask: torch.Tensor | None) -> None:
        query, key, score, memory = tensors()
        context = attend(exponential(query), exponential(key.mT), score, memory, mask)
        assert context.shape == (M, S, H)
        torch.testing.assert_close(context, by_formula(query, key, score, memory, mask))

    @pytest.mark.parametrize("mask", [None, closed()])
    @pytest.mark.parametrize("chunk", [1, 2 * M * T * A, 2**19])
    def test_gradients_are_those_of_the_formula(self, mask, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(attention, "_CHUNK", chunk)
        inputs = tensors()
        query, key, score, memory = inputs
        direction = torch.arange(M * S * H, dtype=torch.float64).view(M, S, H).sin()
        ours = attend(exponential(query), exponential(key.mT), score, memory, mask)
        theirs = by_formula(*inputs, mask)
        pairs = (torch.autograd.grad((c * direction).sum(), inputs) for c in (ours, theirs))
        for got, expected in zip(*pairs, strict=True):
            torch.testing.assert_close(got, expected)

    def test_large_queries_and_keys_are_finite(self) -> None:
        """They count as 20 or -20."""
        inputs = [(1e3 * t.detach()).requires_grad_() for t in tensors(torch.float32)]
        query, key, score, memory = inputs
        context = attend(exponential(query), exponential(key.mT), score, memory)
        torch.testing.assert_close(context, by_formula(query.clamp(-20, 20), key.clamp(-20, 20), score, memory))
        for gradient in torch.autograd.grad(context.sum(), inputs):
            assert torch.isfinite(gradient).all()


def a_placer(m: int, aligned: bool):
    torch.manual_seed(0)
    placer = Placer(5, 4, 8, 3, aligned)
    allowed = np.ones((T, 3), np.bool_)
    allowed[2] = [True, False, False]
    empty = None
    if m > 1:
        empty = torch.zeros(m, T, dtype=torch.bool)
        empty[1, 3:5] = True
    return placer, placer.encode(torch.randn(m, T, 5), allowed, empty)


@pytest.mark.parametrize("aligned", [True, False])
def test_empty_places_change_nothing(aligned: bool) -> None:
    placer, memory = a_placer(3, aligned)
    devices = torch.zeros(3, T, dtype=torch.long)
    other = devices.clone()
    other[1, 3:5] = 2
    torch.testing.assert_close(placer.log_p(memory, devices), placer.log_p(memory, other))
    other[1, 2] = 1  # not empty
    assert not torch.allclose(placer.log_p(memory, devices), placer.log_p(memory, other))


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("m", [1, 3])
class TestPlacer:
    """Three episodes of seven places, with one memory for all (m = 1) or one each, in which two places are empty."""

    def test_replay_gives_what_was_drawn_from(self, m: int, aligned: bool) -> None:
        placer, memory = a_placer(m, aligned)
        with torch.no_grad():
            devices, log_p = placer.draw(memory, 3, torch.Generator().manual_seed(1))
        assert devices.shape == (3, T)
        again = placer.log_p(memory, devices)
        assert again.shape == (3, T, 4)
        torch.testing.assert_close(again, log_p, rtol=1e-5, atol=1e-5)
        assert torch.isfinite(chosen_log_prob(again, devices)).all()
        assert (devices[:, 2] == 0).all()
        assert (devices < 3).all()
        assert (entropy(again)[:, 2] == 0).all()

    def test_most_likely_without_a_generator(self, m: int, aligned: bool) -> None:
        placer, memory = a_placer(m, aligned)
        with torch.no_grad():
            devices, log_p = placer.draw(memory, 3, None)
        assert torch.equal(devices, log_p.argmax(2))


def test_drawn_devices_have_their_probabilities() -> None:
    torch.manual_seed(0)
    placer = Placer(5, 3, 4, 2, True)
    with torch.no_grad():
        placer.output.bias.copy_(torch.tensor([0.0, 1.0, -1.0]))
        memory = placer.encode(torch.randn(1, 2, 5), np.ones((2, 3), np.bool_))
        devices, log_p = placer.draw(memory, 20_000, torch.Generator().manual_seed(0))
    share = torch.bincount(devices[:, 0], minlength=3) / 20_000
    torch.testing.assert_close(share, log_p[0, 0].exp(), rtol=0, atol=0.015)


def test_types_without_training_are_the_unknown_type() -> None:
    types = TypeEmbedding(8, 4)
    shared = types(torch.tensor([1, 5]), torch.tensor([[0.5, 0.5], [1.0, 0.0]]))
    torch.testing.assert_close(shared, types.unknown.expand(2, 4))
