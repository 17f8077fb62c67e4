"""Scaled-dot-product attention as one operation forward and one backward, as the fused kernels of GPUs and CPUs are.

Inside `attention_as("fused")`, every call of `torch.nn.functional.scaled_dot_product_attention` runs the operators of this
file. They read queries, keys, values and mask, and write the output and the logarithm of each row's sum (FlashAttention-2, Dao
2023), and never an S x S tensor. The backward operator reads all of them. FLOPs follow `torch.utils.flop_counter`: the whole
S x S also under a causal mask, two products forward and five backward.

On the CPU, the operators call the kernel that eager torch calls, so results equal eager's to the last bit. Where eager torch
uses matrix products (dropout, values with another head size, a mask with a gradient), so does this file; then results differ
by rounding, and with dropout by the random numbers. On CUDA they call the memory-efficient kernel, or matrix products where
there is a mask or several query heads share a key head.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import flop_counter

aten: Any = torch.ops.aten
_torch: Any = torch  # for functions that have no type annotations
_formulas: Any = flop_counter
_FLASH = SDPBackend.FLASH_ATTENTION.value
_ALIGNED = 32  # CUDA's memory-efficient kernel pads each row of logarithms to a multiple of this
_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@torch.library.custom_op("placekit::attention", mutates_args=())
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
    bias_grad: bool,
) -> tuple[Tensor, Tensor]:
    """Output [B, H, S, Dv] and log-sum-exp [B, H, S] of queries [B, H, S, D], keys [B, Hk, T, D] and values [B, Hk, T, Dv].

    `bias` is added to the scores; Hk < H with `enable_gqa` only. `bias_grad`: the bias needs a gradient.
    """
    if query.is_cuda and bias is None and key.shape[1] == query.shape[1]:
        out, rows, *_ = aten._scaled_dot_product_efficient_attention(
            query, key, value, None, True, 0.0, is_causal, scale=scale
        )
        return out, rows[..., : query.shape[2]].contiguous()
    if not query.is_cuda and _has_cpu_kernel(query, key, value, bias, is_causal, scale, enable_gqa, bias_grad):
        return aten._scaled_dot_product_flash_attention_for_cpu(  # type: ignore[no-any-return]
            query, key, value, 0.0, is_causal, attn_mask=bias, scale=scale
        )
    return _unfused(query, key, value, bias, is_causal, scale)


@torch.library.custom_op("placekit::attention_backward", mutates_args=())
def attention_backward(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    out: Tensor,
    rows: Tensor,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
    bias_grad: bool,
) -> list[Tensor]:
    """Gradients of queries, keys, values and, with `bias_grad`, of the bias."""
    if query.is_cuda and bias is None and key.shape[1] == query.shape[1]:
        padded = torch.nn.functional.pad(rows, (0, -rows.shape[-1] % _ALIGNED), value=torch.inf)
        none = torch.empty(0, dtype=query.dtype, device=query.device)
        seed = torch.zeros((), dtype=torch.int64, device=query.device)
        *found, _ = aten._scaled_dot_product_efficient_attention_backward(
            gradient,
            query,
            key,
            value,
            none,
            out,
            padded,
            seed,
            seed,
            0.0,
            [True] * 3 + [False],
            is_causal,
            scale=scale,
        )
        return [*found]
    if not query.is_cuda and _has_cpu_kernel(query, key, value, bias, is_causal, scale, enable_gqa, bias_grad):
        return [
            *aten._scaled_dot_product_flash_attention_for_cpu_backward(
                gradient, query, key, value, out, rows, 0.0, is_causal, attn_mask=bias, scale=scale
            )
        ]
    return _unfused_backward(gradient, query, key, value, bias, is_causal, scale, bias_grad)


@torch.library.custom_op("placekit::attention_dropout", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,))
def attention_dropout(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    dropout: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
    bias_grad: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """As `attention`, with dropout of the weights; the third result, of shape [1], is the seed of the random numbers."""
    return with_generator(query, key, value, bias, dropout, is_causal, scale, enable_gqa, bias_grad, generator=None)


def with_generator(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    dropout: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
    bias_grad: bool,
    *,
    generator: torch.Generator | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """`attention_dropout`, with a seed from `generator`."""
    seed = torch.randint(2**62, (1,), generator=generator, device=query.device)
    out, rows = _unfused(query, key, value, bias, is_causal, scale, _dropout_factors(query, key, dropout, seed))
    return out, rows, seed


@torch.library.custom_op("placekit::attention_dropout_backward", mutates_args=())
def attention_dropout_backward(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    out: Tensor,
    rows: Tensor,
    seed: Tensor,
    dropout: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
    bias_grad: bool,
) -> list[Tensor]:
    """As `attention_backward`; draws the random numbers of the forward pass again from their seed."""
    kept = _dropout_factors(query, key, dropout, seed)
    return _unfused_backward(gradient, query, key, value, bias, is_causal, scale, bias_grad, kept)


def _has_cpu_kernel(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
    bias_grad: bool,
) -> bool:
    """Whether eager torch would use its fused CPU kernel."""
    choice = torch._fused_sdp_choice(query, key, value, bias, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa)
    return choice == _FLASH and not bias_grad


def _dropout_factors(query: Tensor, key: Tensor, dropout: float, seed: Tensor) -> Tensor:
    """Factors [B, H, S, T] of the weights: 0 where dropped, else 1 / (1 - dropout)."""
    generator = torch.Generator(query.device).manual_seed(int(seed))
    shape = (*query.shape[:3], key.shape[2])
    kept = torch.empty(shape, dtype=torch.float32, device=query.device).bernoulli_(1 - dropout, generator=generator)
    return kept / (1 - dropout) if dropout < 1 else kept


def _scores(
    query: Tensor, key: Tensor, bias: Tensor | None, is_causal: bool, scale: float | None
) -> tuple[Tensor, Tensor, Tensor, float]:
    """Scores [B, H, S, T]; queries and keys in at least float32, keys repeated for each query head; and the scale."""
    kind = torch.promote_types(query.dtype, torch.float32)
    q, k = query.to(kind), key.to(kind).repeat_interleave(query.shape[1] // key.shape[1], 1)
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    scores = q @ k.mT * factor
    if bias is not None:
        scores = scores + bias
    if is_causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(future, -torch.inf)
    return scores, q, k, factor


def _unfused(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    is_causal: bool,
    scale: float | None,
    kept: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    scores, q, *_ = _scores(query, key, bias, is_causal, scale)
    rows = scores.logsumexp(-1)
    weights = (scores - rows[..., None]).exp().nan_to_num(0.0)  # a row that is masked entirely gives zeros
    v = value.to(q.dtype).repeat_interleave(query.shape[1] // value.shape[1], 1)
    out, spare = _empty_results(query, value)
    return out.copy_((weights if kept is None else weights * kept) @ v), spare.copy_(rows)


def _unfused_backward(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    is_causal: bool,
    scale: float | None,
    bias_grad: bool,
    kept: Tensor | None = None,
) -> list[Tensor]:
    scores, q, k, factor = _scores(query, key, bias, is_causal, scale)
    weights = scores.softmax(-1).nan_to_num(0.0)
    g, v = gradient.to(q.dtype), value.to(q.dtype).repeat_interleave(query.shape[1] // value.shape[1], 1)
    of_weights = g @ v.mT if kept is None else g @ v.mT * kept
    of_scores = weights * (of_weights - (of_weights * weights).sum(-1, keepdim=True))
    of_value = (weights if kept is None else weights * kept).mT @ g
    found = [of_scores @ k * factor, _shared(of_scores.mT @ q * factor, key), _shared(of_value, value)]
    made = _empty_gradients(query, key, value, bias, bias_grad)
    if bias_grad and bias is not None:
        found.append(of_scores.sum_to_size(bias.shape))
    return [new.copy_(old) for new, old in zip(made, found, strict=True)]


def _shared(gradient: Tensor, like: Tensor) -> Tensor:
    """Sum the gradient over the query heads that share a head of `like`."""
    return gradient.reshape(gradient.shape[0], like.shape[1], -1, *gradient.shape[2:]).sum(2)


def _empty_results(query: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Uninitialised output and log-sum-exp, with the strides that torch's kernels give them."""
    batch, heads, length, width = query.shape
    if value.shape[-1] == width:
        out = torch.empty_like(query)
    else:
        out = query.new_empty(batch, length, heads, value.shape[-1]).transpose(1, 2)
    kind = torch.promote_types(query.dtype, torch.float32)
    rows = query.new_empty(batch, length, heads, dtype=kind).transpose(1, 2)
    return out, rows


def _empty_gradients(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, bias_grad: bool) -> list[Tensor]:
    made = [t.new_empty(t.shape[0], t.shape[2], t.shape[1], t.shape[3]).transpose(1, 2) for t in (query, key, value)]
    if bias_grad and bias is not None:
        made.append(torch.empty_like(bias, memory_format=torch.contiguous_format))
    return made


@attention.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return _empty_results(query, value)


@attention_backward.register_fake
def _(gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, *rest: Any) -> list[Tensor]:
    return _empty_gradients(query, key, value, bias, rest[-1])


@attention_dropout.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    return (*_empty_results(query, value), query.new_empty(1, dtype=torch.int64))


@attention_dropout_backward.register_fake
def _(gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, *rest: Any) -> list[Tensor]:
    return _empty_gradients(query, key, value, bias, rest[-1])


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[:4], *output)
    ctx.settings = inputs[4:]
    ctx.mark_non_differentiable(*output[1:])


def _gradient(ctx: Any, gradient: Tensor, *unused: Any) -> tuple[Tensor | None, ...]:
    found: list[Tensor | None] = [*attention_backward(gradient, *ctx.saved_tensors, *ctx.settings)]
    return (*found, *[None] * (8 - len(found)))


def _gradient_dropout(ctx: Any, gradient: Tensor, *unused: Any) -> tuple[Tensor | None, ...]:
    found: list[Tensor | None] = [*attention_dropout_backward(gradient, *ctx.saved_tensors, *ctx.settings)]
    return (*found, *[None] * (9 - len(found)))


attention.register_autograd(_gradient, setup_context=_remember)
attention_dropout.register_autograd(_gradient_dropout, setup_context=_remember)


def _flops(query: Any, key: Any, value: Any, *rest: Any, **keywords: Any) -> int:
    return int(_formulas.sdpa_flop_count(query, key, value))


def _flops_backward(gradient: Any, query: Any, key: Any, value: Any, *rest: Any, **keywords: Any) -> int:
    return int(_formulas.sdpa_backward_flop_count(gradient, query, key, value))


_operators: Any = torch.ops.placekit
_formulas.register_flop_formula([_operators.attention, _operators.attention_dropout])(_flops)
_formulas.register_flop_formula([_operators.attention_backward, _operators.attention_dropout_backward])(_flops_backward)


def _replacement(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Replaces `scaled_dot_product_attention` inside `attention_as("fused")`."""
    if not _is_fused(query, key, value, enable_gqa) or (attn_mask is not None and is_causal):
        out, _ = aten._scaled_dot_product_attention_math(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
        return out  # type: ignore[no-any-return]
    bias, bias_grad = attn_mask, False
    if bias is not None and bias.dtype == torch.bool:  # as torch does before it calls the kernel
        bias = torch.where(bias, torch.zeros((), dtype=query.dtype), -torch.inf)
    elif bias is not None:
        bias_grad = bias.requires_grad and torch.is_grad_enabled()
    settings = (is_causal, scale, enable_gqa, bias_grad)
    if dropout_p > 0:
        dropped: Tensor = attention_dropout(query, key, value, bias, dropout_p, *settings)[0]
        return dropped
    made: Tensor = attention(query, key, value, bias, *settings)[0]
    return made


def _is_fused(query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool) -> bool:
    """Whether fused kernels take these tensors, and the user's code does not forbid them (with `sdpa_kernel`)."""
    cuda = _torch.backends.cuda
    if not (cuda.flash_sdp_enabled() or cuda.mem_efficient_sdp_enabled() or cuda.cudnn_sdp_enabled()):
        return False
    if any(t.dim() != 4 or t.numel() == 0 or t.dtype != query.dtype for t in (query, key, value)):
        return False
    heads, shared = query.shape[1], key.shape[1]
    grouped = heads == shared or (enable_gqa and heads % shared == 0)
    return grouped and query.dtype in _DTYPES and query.shape[0] == key.shape[0] and key.shape[:3] == value.shape[:3]


@contextlib.contextmanager
def attention_as(kind: Literal["fused", "math"]) -> Iterator[None]:
    """Inside, attention is one operation (`fused`), or the products and the softmax that it consists of (`math`)."""
    if kind == "math":
        with sdpa_kernel(SDPBackend.MATH):
            yield
        return
    operator = aten.scaled_dot_product_attention.default
    operator._dispatch_cache.clear()
    library = _torch.library.Library("aten", "IMPL")
    library.impl("scaled_dot_product_attention", _replacement, "AutogradCPU")
    try:
        yield
    finally:
        library._destroy()
        operator._dispatch_cache.clear()
