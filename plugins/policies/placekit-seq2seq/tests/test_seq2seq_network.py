"""The network: drawing against replaying, and the fast twin against the plain network."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from placekit_learn.torch_features import TypeEmbedding
from placekit_seq2seq import fast
from placekit_seq2seq.fast import FastPlacer
from placekit_seq2seq.network import Memory, Placer, chosen_log_prob, entropy

T = 7
BOTH = pytest.mark.parametrize("kind", [Placer, FastPlacer])
ALIGNED = pytest.mark.parametrize("aligned", [True, False])
MEMORIES = pytest.mark.parametrize("m", [1, 3])
"""Three episodes of seven places, with one memory for all (m = 1) or one each, in which two places are empty."""


def a_placer(m: int, aligned: bool, kind: type[Placer] = Placer) -> tuple[Placer, Memory]:
    torch.manual_seed(0)
    placer = kind(5, 4, 8, 3, aligned)
    allowed = np.ones((T, 3), np.bool_)
    allowed[2] = [True, False, False]
    empty = None
    if m > 1:
        empty = torch.zeros(m, T, dtype=torch.bool)
        empty[1, 3:5] = True
    return placer, placer.encode(torch.randn(m, T, 5), allowed, empty)


@MEMORIES
@ALIGNED
class TestTwins:
    """The plain network and its twin, for the same episodes."""

    @pytest.mark.parametrize("chunk", [1, 2 * T * 3, 2**19])
    def test_distributions_and_gradients(self, m: int, aligned: bool, chunk: int, monkeypatch) -> None:
        monkeypatch.setattr(fast, "_CHUNK", chunk)
        devices, found = torch.tensor([[0, 1, 0, 2, 2, 1, 0], [1, 2, 0, 0, 1, 2, 0], [2, 0, 0, 1, 0, 1, 1]]), []
        for kind in (Placer, FastPlacer):
            placer, memory = a_placer(m, aligned, kind)
            log_p = placer.log_p(memory, devices)
            objective = (chosen_log_prob(log_p, devices) * torch.arange(3 * T).view(3, T).sin()).sum()
            found.append((log_p, *torch.autograd.grad(objective, tuple(placer.parameters()))))
        for plain, twin in zip(*found, strict=True):
            torch.testing.assert_close(plain, twin, rtol=1e-5, atol=1e-5)

    def test_most_likely_devices(self, m: int, aligned: bool) -> None:
        with torch.no_grad():
            placed = [a_placer(m, aligned, kind) for kind in (Placer, FastPlacer)]
            plain, twin = (placer.draw(memory, 3, None) for placer, memory in placed)
        assert torch.equal(plain[0], twin[0])
        torch.testing.assert_close(plain[1], twin[1], rtol=1e-5, atol=1e-5)


def test_large_queries_and_keys_are_finite() -> None:
    """The twin takes exponentials of them."""
    placer, memory = a_placer(1, True, FastPlacer)
    with torch.no_grad():
        placer.query.weight.mul_(1e3)
    large = Memory(memory.output, 1e3 * memory.key, memory.state, None, memory.forbidden)
    log_p = placer.log_p(large, torch.zeros(3, T, dtype=torch.long))
    for gradient in torch.autograd.grad(log_p[:, :, 0].sum(), tuple(placer.parameters())):
        assert torch.isfinite(gradient).all()


@BOTH
@ALIGNED
def test_empty_places_change_nothing(aligned: bool, kind: type[Placer]) -> None:
    placer, memory = a_placer(3, aligned, kind)
    devices = torch.zeros(3, T, dtype=torch.long)
    other = devices.clone()
    other[1, 3:5] = 2
    torch.testing.assert_close(placer.log_p(memory, devices), placer.log_p(memory, other))
    other[1, 2] = 1  # not empty
    assert not torch.allclose(placer.log_p(memory, devices), placer.log_p(memory, other))


@BOTH
@ALIGNED
@MEMORIES
def test_replay_gives_what_was_drawn_from(m: int, aligned: bool, kind: type[Placer]) -> None:
    placer, memory = a_placer(m, aligned, kind)
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


@BOTH
def test_drawn_devices_have_their_probabilities(kind: type[Placer]) -> None:
    torch.manual_seed(0)
    placer = kind(5, 3, 4, 2, True)
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
