"""Runs a user's factory without allocating memory for parameters.

Parameters are fake tensors from the start, and so are other tensors of at least `_LARGE` bytes. Smaller tensors are real, so
that constructors can compute with them: `torch.linspace(0, rate, depth).tolist()`.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any, TypeVar
from unittest import mock

import torch
import torch.utils._pytree as pytree
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from placekit_core import ImporterError
from placekit_torch.error_lines import first_line, user_line
from placekit_torch.tracing import is_fake, like

_LARGE = 64 * 2**20  # bytes
_set_data = torch.Tensor.data.__set__  # type: ignore[attr-defined]
Built = TypeVar("Built")


@contextlib.contextmanager
def converting() -> Iterator[None]:
    """Allow converting (`module.half()`) and copying modules with fake parameters."""

    def assign(old: torch.Tensor, new: torch.Tensor) -> None:
        old.data = new.data

    swap = torch.utils.swap_tensors  # `Module.to` uses it for fake parameters; it refuses tensors with weak references
    torch.utils.swap_tensors = assign
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Accessing the data pointer of FakeTensor")  # by copy.deepcopy
            yield
    finally:
        torch.utils.swap_tensors = swap


class _LargeAreFake(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Makes large results fake."""

    def __init__(self, mode: FakeTensorMode) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.mode = mode

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not self._may_be_large(op, args, kwargs):
            return op(*args, **kwargs)
        try:
            with self.mode:
                made = op(*args, **kwargs)
        except Exception:  # the shape depends on data, or the real call fails, too
            return op(*args, **kwargs)
        found = [t for t in pytree.tree_leaves(made) if isinstance(t, torch.Tensor)]
        bytes_ = sum(t.numel() * t.element_size() for t in found if t.device.type != "meta")
        return made if bytes_ >= _LARGE else op(*args, **kwargs)

    def _may_be_large(self, op: Any, args: Any, kwargs: Any) -> bool:
        if op._schema.is_mutable or op.is_view or str(kwargs.get("device")) == "meta":
            return False
        tensors = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        if not tensors:
            return torch.Tag.data_dependent_output not in op.tags
        if any(isinstance(t, FakeTensor) or t.device.type != "cpu" for t in tensors):
            return False
        return 8 * math.prod(max(t.numel(), 1) for t in tensors) >= _LARGE or op is torch.ops.aten.repeat.default


class _Data(TorchFunctionMode):
    """Lets `parameter.data = tensor` assign a real tensor to a fake parameter."""

    def __init__(self, mode: FakeTensorMode) -> None:
        super().__init__()
        self.mode = mode

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function == _set_data and isinstance(args[0], FakeTensor) and not isinstance(args[1], FakeTensor):
            args = (args[0], like(args[1].detach(), self.mode))
        return function(*args, **(kwargs or {}))


@contextlib.contextmanager
def without_weights(mode: FakeTensorMode) -> Iterator[None]:
    """Make new parameters and large tensors fake tensors of `mode`; other tensors stay real."""
    kind = torch.nn.Parameter
    original = kind.__dict__["__new__"]
    register = torch.nn.Module.register_parameter

    def made(cls: type, data: Any = None, requires_grad: bool = True) -> Any:
        if cls is kind and type(data) in (torch.Tensor, kind, FakeTensor) and data.layout is torch.strided:
            if torch.nn.Module.register_parameter is not register:
                # accelerate's init_empty_weights moves each to meta in a new Parameter; capture makes it fake later
                data = torch.empty_strided(data.shape, data.stride(), dtype=data.dtype, device="meta")
            elif not is_fake(data):
                data = like(data.detach(), mode)
        return original(cls, data, requires_grad)

    truncated = torch.nn.init._no_grad_trunc_normal_

    def initialised(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return tensor if isinstance(tensor, FakeTensor) else truncated(tensor, *args, **kwargs)  # it reads values

    kind.__new__ = staticmethod(made)  # type: ignore[method-assign]
    try:
        with mock.patch.object(torch.nn.init, "_no_grad_trunc_normal_", initialised), _Data(mode), _LargeAreFake(mode):
            yield
    finally:
        kind.__new__ = original  # type: ignore[method-assign]


def construct(build: Callable[[], Built], mode: FakeTensorMode, name: str) -> Built:
    """Call `build` with fake parameters or, if that fails, with real ones and a warning. Raises ImporterError."""
    state = torch.get_rng_state()
    try:
        with converting(), without_weights(mode):
            return build()
    except ImporterError as e:
        if not isinstance(e.__cause__, Exception) or isinstance(e.__cause__, ImportError):
            raise
        first = e
    torch.set_rng_state(state)
    made = build()
    cause = first.__cause__ or first
    warnings.warn(
        f"{name} was built with real weights, because building it without weights failed:"
        f" {type(cause).__name__}: {first_line(cause)}{user_line(cause)}",
        stacklevel=2,
    )
    return made
