"""Kernels of torch that update many tensors at once, split by parameter with a share of the launch each.

On GPUs, a `foreach` or `fused` operation of `torch.optim` launches one kernel for all parameters of a device. The graph has
an operation per parameter, because each can be placed by itself; it pays its share of the launch. A launch takes at most
`TENSORS[lists - 1]` tensors of each of its lists and 320 chunks of 65,536 elements (`multi_tensor_apply` in
ATen/native/cuda/MultiTensorApply.cuh; newer GPUs take seven times as many).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from placekit_torch import operators
from placekit_torch.operators import tensors

TENSORS = (110, 64, 48, 36, 30)
_CHUNKS, _CHUNK = 320, 65536
_KERNELS = {"_fused_adam_": 1, "_fused_adamw_": 1, "_fused_adagrad_": 1, "_fused_sgd_": 0}  # lists of step numbers


@torch.library.custom_op("placekit::fused_update", mutates_args=(), tags=(torch.Tag.pointwise,))
def fused_update(
    parameter: Tensor, gradient: Tensor, state: list[Tensor], steps: list[Tensor], kernel: str, settings: str
) -> list[Tensor]:
    """New parameter and state by a fused kernel of `torch.optim`, e.g. `_fused_adam_`.

    `settings` is a JSON object: `lists`, for each list of state the number of tensors in it, 0 or 1; and the kernel's keywords.
    """
    keywords = json.loads(settings)
    new = [t.clone() for t in (parameter, *state)]
    rest = iter(new[1:])
    lists = [[next(rest) for _ in range(count)] for count in keywords.pop("lists")]
    getattr(torch, kernel)([new[0]], [gradient], *lists, *([steps] if steps else []), **keywords)
    return new


@fused_update.register_fake
def _(
    parameter: Tensor, gradient: Tensor, state: list[Tensor], steps: list[Tensor], kernel: str, settings: str
) -> list[Tensor]:
    return [torch.empty_like(t) for t in (parameter, *state)]


@contextlib.contextmanager
def traceable() -> Iterator[None]:
    """Inside, the fused kernels are operators with shapes, which torch's own lack."""

    def replacement(kernel: str) -> Any:
        def run(parameters: Any, gradients: Any, *lists: Any, **keywords: Any) -> None:
            steps = lists[-1] if _KERNELS[kernel] else []
            state = lists[: len(lists) - _KERNELS[kernel]]
            keywords = {"lists": [len(k) for k in state], **keywords}
            (parameter,), (gradient,) = parameters, gradients
            old = [t for part in state for t in part]
            new = fused_update(parameter, gradient, old, [*steps], kernel, json.dumps(keywords))
            for into, value in zip([parameter, *old], new, strict=True):
                into.copy_(value)

        return run

    with contextlib.ExitStack() as stack:
        for kernel in _KERNELS:
            stack.enter_context(mock.patch.object(torch, kernel, replacement(kernel)))
        yield


def launches(node: torch.fx.Node, together: int) -> float:
    """The launches that a node of an update costs if `together` parameters are updated at once.

    Full launches of `together` equal tensors would sum up to one launch each. A tensor with more chunks than a launch takes
    needs several.
    """
    numbers = tensors([n.meta["val"] for n in node.all_input_nodes])
    elements = max((t.numel() for t in numbers), default=1)
    lists = sum(t.numel() == elements for t in numbers)
    most = TENSORS[min(max(lists, 1), len(TENSORS)) - 1]
    return max(1 / min(most, max(together, 1)), -(-elements // _CHUNK) / _CHUNKS)


def is_multi_tensor(target: Any) -> bool:
    """Whether an operator updates many tensors at once on GPUs."""
    name = operators.base_name(target)
    return name.startswith("_foreach_") or name == "fused_update"
