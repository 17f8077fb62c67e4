"""Hand-written kernels of training libraries as operators: one operation where eager PyTorch has several.

`causal_softmax` is Megatron-LM's fused kernel for attention: scale, causal mask and softmax in one pass over the scores.
`FusedAdam` is Adam as in NVIDIA's Apex: one kernel per parameter updates the parameter, its float32 copy (the master
weights of mixed precision, Micikevicius et al. 2018) and both moments. Here both are computed with PyTorch's operators; their
costs follow from the tensors that they read and write.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


@torch.library.custom_op("placekit::causal_softmax", mutates_args=())
def causal_softmax(scores: Tensor, scale: float) -> Tensor:
    """Softmax of `scale * scores` over the last dimension of [..., S, S], each row up to its own position."""
    future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
    return torch.softmax((scores.float() * scale).masked_fill(future, -torch.inf), -1).to(scores.dtype)


@torch.library.custom_op("placekit::causal_softmax_backward", mutates_args=())
def causal_softmax_backward(gradient: Tensor, weights: Tensor, scale: float) -> Tensor:
    """Gradient of the scores from the gradient of the weights; masked weights are 0, and so are their gradients."""
    g, w = gradient.float(), weights.float()
    return (scale * w * (g - (g * w).sum(-1, keepdim=True))).to(weights.dtype)


@causal_softmax.register_fake
def _(scores: Tensor, scale: float) -> Tensor:
    return torch.empty_like(scores)


@causal_softmax_backward.register_fake
def _(gradient: Tensor, weights: Tensor, scale: float) -> Tensor:
    return torch.empty_like(weights)


def _remember(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
    ctx.save_for_backward(output)
    ctx.scale = inputs[1]


def _gradient(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
    (weights,) = ctx.saved_tensors
    return causal_softmax_backward(gradient, weights, ctx.scale), None


causal_softmax.register_autograd(_gradient, setup_context=_remember)


@torch.library.custom_op("placekit::fused_adam", mutates_args=(), tags=(torch.Tag.pointwise,))
def fused_adam(
    parameter: Tensor,
    gradient: Tensor,
    master: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    step: Tensor,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """New parameter, master weights, moments and step; the first step (`step` 0) takes the parameter as the master weights."""
    g, number = gradient.float(), step + 1
    old = torch.where(step == 0, parameter.float(), master)
    first = exp_avg.lerp(g, 1 - beta1)
    second = exp_avg_sq * beta2 + (1 - beta2) * g * g
    size = (second / (1 - beta2**number)).sqrt() + eps
    new = old - lr * first / (1 - beta1**number) / size
    return new.to(parameter.dtype, copy=True), new, first, second, number


@fused_adam.register_fake
def _(
    parameter: Tensor, gradient: Tensor, master: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, step: Tensor, *_: float
) -> tuple[Tensor, ...]:
    return tuple(map(torch.empty_like, (parameter, master, exp_avg, exp_avg_sq, step)))


class FusedAdam(torch.optim.Optimizer):
    """Adam (Kingma and Ba 2015) with one kernel per parameter and float32 master weights; defaults of `torch.optim.Adam`."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update all parameters that have a gradient."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    for key in ("master", "exp_avg", "exp_avg_sq"):
                        state[key] = torch.zeros_like(p, dtype=torch.float32)
                    state["step"] = torch.zeros((), dtype=torch.float32, device=p.device)
                old = [state[key] for key in ("master", "exp_avg", "exp_avg_sq", "step")]
                new, *after = fused_adam(p, p.grad, *old, group["lr"], *group["betas"], group["eps"])
                p.copy_(new)
                state.update(zip(("master", "exp_avg", "exp_avg_sq", "step"), after, strict=True))
