"""Policies whose network is plain torch compute it where option `device` says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from placekit_testing import fakes
from placekit_testing.speed import mostly_slow

from placekit_core import BudgetExhausted, PlacekitError, place

torch = pytest.importorskip("torch")

from placekit_gdp.gdp import GDP  # noqa: E402
from placekit_learn.ppo import PPO  # noqa: E402
from placekit_learn.torch_policy import TorchPolicy  # noqa: E402
from placekit_placeto.placeto import Placeto  # noqa: E402
from placekit_seq2seq.hierarchical import Hierarchical  # noqa: E402
from placekit_seq2seq.seq2seq import Seq2Seq  # noqa: E402
from torch.fx.experimental import _config  # noqa: E402

PLAIN: list[tuple[type[TorchPolicy], dict[str, Any]]] = [
    (GDP, {}),
    (Seq2Seq, {"engine": "plain"}),
    (Hierarchical, {"engine": "plain", "groups": 4}),
    (Placeto, {"head": "paper", "rounds": 2}),
]
no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


@pytest.mark.parametrize(("policy", "options"), mostly_slow(PLAIN, PLAIN[:1]))
def test_an_update_leaves_no_tensor_on_the_cpu(
    policy: type[TorchPolicy], options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Device `meta` stands in for a GPU: torch refuses most operations on tensors of two devices, and computes nothing."""
    learner, task = policy(**options), fakes.fake_task(fakes.chain(), 7)
    learner.build([task.problem], np.random.default_rng(0))
    learner.options = learner.options.model_copy(update={"device": "meta"})
    learner.module.to("meta")
    monkeypatch.setattr(learner, "generator", lambda rng: None)
    monkeypatch.setattr(torch.Tensor, "cpu", lambda t: torch.zeros(t.shape, dtype=t.dtype, device="cpu"))
    monkeypatch.setattr(torch, "bincount", lambda x, minlength: torch.zeros(minlength, dtype=torch.long))
    rows: list[Any] = []
    monkeypatch.setattr(task.evaluate, "log", lambda **values: rows.append(values))
    with _config.patch(meta_nonzero_assume_all_nonzero=True), pytest.raises(BudgetExhausted):
        PPO(samples=3, epochs=2, entropy_weight=0.1).fit(learner, [task], np.random.default_rng(0))
    assert len(rows) == 2


@no_gpu
@pytest.mark.parametrize(("policy", "options"), PLAIN)
def test_without_a_gpu_cuda_is_an_error(policy: type[TorchPolicy], options: dict[str, Any]) -> None:
    with pytest.raises(PlacekitError, match=r"torch sees no CUDA device\n.*policy.device=cpu"):
        place(fakes.chain().graph, policy={"name": policy.name, "device": "cuda", **options}, budget=20)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"name": "seq2seq"}, "device=cuda needs engine=plain"),
        ({"name": "placeto"}, "device=cuda needs head=paper"),
        ({"name": "doppler"}, "no option named 'policy.device'"),
    ],
)
def test_what_is_made_for_cpus_stays_there(options: dict[str, Any], why: str) -> None:
    with pytest.raises(PlacekitError, match=why):
        place(fakes.chain().graph, policy={**options, "device": "cuda"}, budget=20)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize(("policy", "options"), PLAIN)
def test_it_learns_on_a_gpu(policy: type[TorchPolicy], options: dict[str, Any]) -> None:
    """Two updates on a GPU start from the CPU's parameters, and their result can be loaded on the CPU."""
    task, first, last = fakes.fake_task(fakes.unequal(6), 21), [], {}
    for device in ("cpu", "cuda"):
        learner = policy(**options, device=device)
        learner.build([task.problem], np.random.default_rng(0))
        first.append(learner.state_dict())
    assert all(np.array_equal(values, first[1][name]) for name, values in first[0].items())
    with pytest.raises(BudgetExhausted):
        PPO(samples=10).fit(learner, [task], np.random.default_rng(0))
    last = learner.state_dict()
    assert any(not np.array_equal(values, first[1][name]) for name, values in last.items())
    again = policy(**options)
    again.build([task.problem], np.random.default_rng(1))
    again.load_state_dict(last)
