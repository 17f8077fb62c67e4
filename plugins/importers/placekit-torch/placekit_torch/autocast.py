"""Autocast while tracing: applies CUDA's casts without CUDA, and casts each weight once.

Everything is traced on CPU tensors, for which torch applies the CPU's policy, and AOT tracing disables the cache of casts.
Inside `autocasting()`, code that enters autocast for another device type than the CPU gets CUDA's policy: the lists below,
from ATen/autocast_mode.h, and float32 for all other operators of AutocastCUDA. After that, `torch.autocast("cpu")` means the
same device, because models pass on the device type of their tensors. As in eager torch, operators in low precision take a
weight's cast from a cache, which is emptied when autocast ends.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch.utils._pytree import tree_map_only

_LOWER = (
    "_convolution conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d convolution prelu addmm addmv"
    " addr matmul einsum mm mv linalg_vecdot linear addbmm baddbmm bmm chain_matmul linalg_multi_dot lstm_cell gru_cell"
    " rnn_tanh_cell rnn_relu_cell _thnn_fused_lstm_cell _thnn_fused_gru_cell scaled_dot_product_attention"
)
_WITH_DTYPE = "prod softmax log_softmax cumprod cumsum linalg_vector_norm linalg_matrix_norm sum"
_PROMOTED = "addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add"
_OTHER = "norm binary_cross_entropy"  # with signatures of their own, or refused
_POLICY = {name: how for how, names in (("lower", _LOWER), ("dtype", _WITH_DTYPE), ("promote", _PROMOTED), ("", _OTHER))
           for name in names.split()}  # fmt: skip
_torch: Any = torch  # for functions without types
_KEY = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
_is_enabled, _dtype = torch.is_autocast_enabled, torch.get_autocast_dtype


def _has(op: Any, key: str) -> bool:
    try:
        return bool(torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), key))
    except RuntimeError:  # an operator of TorchScript only
        return False


@functools.cache
def _operators() -> dict[Any, str]:
    """CUDA's policy of each operator with an autocast kernel; empty if CUDA has none."""
    found = {}
    for schema in torch._C._jit_get_all_schemas():
        namespace, _, name = schema.name.partition("::")
        packet = getattr(torch.ops.aten, name, None) if namespace == "aten" else None
        op = getattr(packet, schema.overload_name or "default", None)
        if not isinstance(op, torch._ops.OpOverload):
            continue
        if _has(op, "AutocastCUDA"):
            found[op] = _POLICY.get(name, "float32")
        elif _has(op, "AutocastCPU"):
            found[op] = ""
    return found


class _Casts:
    """The state of autocast: the policy, and the casts of weights."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.module, self.cuda = module, False
        self.weights: set[int] = set()
        self.cache: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.libraries: list[Any] = []
        self.before: list[tuple[bool, torch.dtype]] = []

    def register(self, cuda: bool) -> None:
        """Replace torch's autocast kernels: those of products on the CPU or, with `cuda`, of CUDA's whole policy."""
        library = _torch.library.Library("aten", "IMPL")
        self.libraries.append(library)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="(?s).*Overriding a previously registered kernel")
            for op, how in _operators().items():
                if cuda != (how == "lower" and _has(op, "AutocastCPU")):
                    library.impl(op, functools.partial(self._run, op, how), "AutocastCPU")
                    op._dispatch_cache.clear()

    def leave(self) -> None:
        """Restore torch's kernels."""
        for library in self.libraries:
            library._destroy()
        for op in _operators() if self.libraries else ():
            op._dispatch_cache.clear()

    def _run(self, op: Any, how: str, *args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_KEY):
            tensors: list[torch.Tensor] = []
            tree_map_only(torch.Tensor, tensors.append, (args, kwargs))
            tensors = [t for t in tensors if _is_eligible(t)]
            if how == "dtype":
                if tensors and args[0] is tensors[0]:
                    args, kwargs = _with_dtype(op, args, kwargs)
                how = ""
            if not how or not tensors:
                return op(*args, **kwargs)
            kind = _dtype("cpu") if how == "lower" else torch.float32
            if how == "promote" and all(t.dtype != torch.float32 for t in tensors):
                kind = _dtype("cpu")
            args, kwargs = tree_map_only(torch.Tensor, lambda t: self._cast(t, kind), (args, kwargs))
            return op(*args, **kwargs)

    def _cast(self, tensor: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
        if not _is_eligible(tensor) or tensor.dtype == kind:
            return tensor
        if id(tensor) not in self.weights or kind == torch.float32 or not torch.is_grad_enabled():
            return tensor.to(kind)
        if id(tensor) not in self.cache or self.cache[id(tensor)][1].dtype != kind:
            self.cache[id(tensor)] = tensor, tensor.to(kind)
        return self.cache[id(tensor)][1]

    def enter(self, context: Any) -> Any:
        """`torch.autocast.__enter__`."""
        if context._enabled and not self.libraries:
            self.register(cuda=False)
        if context._enabled and context.device != "cpu" and not self.cuda:
            self.cuda = True
            self.register(cuda=True)
        if not self.before:  # tracing replaces the parameters in each of its runs
            self.weights = {id(p) for m in self.module.modules() for p in m._parameters.values()}
        self.before.append((_is_enabled("cpu"), _dtype("cpu")))
        torch.set_autocast_enabled("cpu", context._enabled)
        torch.set_autocast_dtype("cpu", context.fast_dtype)
        torch.autocast_increment_nesting()
        return context

    def exit(self, context: Any, *error: Any) -> bool:
        """`torch.autocast.__exit__`."""
        if torch.autocast_decrement_nesting() == 0:
            torch.clear_autocast_cache()
            self.cache.clear()
        enabled, kind = self.before.pop()
        torch.set_autocast_enabled("cpu", enabled)
        torch.set_autocast_dtype("cpu", kind)
        return False


def _is_eligible(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() and tensor.dtype != torch.float64


def _with_dtype(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with dtype float32, unless they name another."""
    place = next((i for i, a in enumerate(op._schema.arguments) if a.name == "dtype"), None)
    if place is None:
        return args, kwargs
    if place < len(args):
        return (*args[:place], args[place] or torch.float32, *args[place + 1 :]), kwargs
    return args, {**kwargs, "dtype": kwargs.get("dtype") or torch.float32}


@contextlib.contextmanager
def autocasting(module: torch.nn.Module) -> Iterator[None]:
    """Trace autocast in the code of `module` as on the device that it names; the parameters are the weights."""
    casts = _Casts(module)

    def on_cpu(real: Callable[[str], Any]) -> Any:
        return lambda device="cuda": real("cpu")

    kind = torch.amp.autocast_mode.autocast
    try:
        with (
            mock.patch.object(torch.cuda.amp.common, "amp_definitely_not_available", mock.Mock(return_value=False)),
            mock.patch.object(torch.cuda, "is_bf16_supported", mock.Mock(return_value=True)),
            mock.patch.object(torch, "is_autocast_enabled", on_cpu(_is_enabled)),
            mock.patch.object(torch, "get_autocast_dtype", lambda d: _dtype("cpu" if _is_enabled("cpu") else d)),
            mock.patch.multiple(kind, __enter__=lambda c: casts.enter(c), __exit__=lambda c, *e: casts.exit(c, *e)),
        ):
            yield
    finally:
        casts.leave()
