"""Faster tracing of ordinary operators; the graph is the same to the last bit.

For each traced operator, torch records a node (`ProxyTorchDispatchMode`) and finds shapes and strides (`FakeTensorMode`) in
Python. Both get a short path for common operators and arguments, and handle all others as before. An import of Qwen3-8B
(decode) takes 15.3 s without the short paths and 9.9 s with them, Inception-V3 (a training step) 8.1 s and 5.7 s.

The short paths use private interfaces of torch 2.13; under other versions, torch traces as it does by itself.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import torch
import torch.fx as fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager
from torch.fx._lazy_graph_module import _use_lazy_graph_module
from torch.fx.experimental import proxy_tensor

APPLIES = torch.__version__.startswith("2.13.")
"""Whether this is the version of torch that the short paths are written for; other versions trace without them."""

_Key = torch._C.DispatchKey
_CPU = torch.device("cpu")
_CONSTANTS = frozenset(
    [int, float, bool, complex, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format]
)
_NOT_STATIC = frozenset([torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.inplace_view])
_torch_record = proxy_tensor.proxy_call


class _Uncommon(Exception):
    """An argument for which there is no short path."""


@contextlib.contextmanager
def shortcuts() -> Iterator[None]:
    """Trace with the short path of recording; `ShapeMode` has the short path of shapes."""
    if not APPLIES:
        yield
        return
    nothing = mock.Mock(return_value=False)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_use_lazy_graph_module(True))  # no Python code for graphs that never run
        # the caller removes dead code once; torch would do so, and check the whole graph, after each of its steps
        stack.enter_context(mock.patch.object(fx.Graph, "eliminate_dead_code", nothing))
        stack.enter_context(mock.patch.object(proxy_tensor, "proxy_call", _record))
        yield


def _has_kernel(op: Any, key: Any) -> bool:
    return key in op.py_kernels or bool(torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), key))


@functools.cache
def ordinary(op: Any) -> bool:
    """Whether shapes, strides and types of the results follow from those of the arguments, and torch does not decompose `op`."""
    return (
        isinstance(op, torch._ops.OpOverload)
        and op.namespace in ("aten", "prims")
        and not op._schema.is_mutable
        and len(op._schema.returns) > 0  # not an assertion
        and not _NOT_STATIC & set(op.tags)
        and not op._overloadpacket.__name__.startswith("lift")
        and not _has_kernel(op, _Key.CompositeImplicitAutograd)
    )


def _record(mode: Any, op: Any, pre_dispatch: bool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Replaces `proxy_tensor.proxy_call`: run `op` and record a node, with the fake result as `meta["val"]`."""
    if pre_dispatch or not ordinary(op) or op in mode.decomposition_table:
        return _torch_record(mode, op, pre_dispatch, args, kwargs)
    tracer = mode.tracer
    try:
        nodes = tuple([_node(x, tracer) for x in args]), {k: _node(x, tracer) for k, x in kwargs.items()}
    except _Uncommon:
        return _torch_record(mode, op, pre_dispatch, args, kwargs)
    # not the tracer's method, which looks for operators with layout rules
    create = functools.partial(fx.proxy.TracerBase.create_node, tracer, "call_function")
    node = create(op, *nodes, op._overloadpacket.__name__)
    result = node.meta["val"] = op(*args, **kwargs)
    if isinstance(result, torch.Tensor):
        _track(tracer, result, node)
    else:
        for i, part in enumerate(result):
            if isinstance(part, torch.Tensor):
                item = create(operator.getitem, (node, i), {}, "getitem")
                item.meta["val"] = part
                _track(tracer, part, item)
    return result


def _track(tracer: Any, tensor: torch.Tensor, node: fx.Node) -> None:
    tracer.tensor_tracker[tensor] = proxy_tensor._ProxyTensor(fx.Proxy(node, tracer), None)


def _node(value: Any, tracer: Any) -> Any:
    if isinstance(value, torch.Tensor):
        found = tracer.tensor_tracker.get(value)
        if found is None or found.constant is not None:
            raise _Uncommon
        return found.proxy.node
    if type(value) in _CONSTANTS:
        return value
    if type(value) in (list, tuple):
        return type(value)(_node(x, tracer) for x in value)
    raise _Uncommon


class ShapeMode(FakeTensorMode):  # type: ignore[no-untyped-call]
    """A fake mode that caches the results of operators, by the shapes, strides and types of their arguments.

    Torch has such a cache, too, but takes longer to describe the arguments than many operators take to run.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        # by operator and arguments, what `_recipe` returns: the container, and for each result the position of the argument whose
        # memory it shares (or None), shape, stride, offset from that argument's, type; or None if results cannot be cached
        self._known: dict[Any, Any] = {}

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """The same results as torch's mode."""
        if APPLIES and op is torch.ops.prim.device.default:
            return args[0].fake_device
        tensors: list[FakeTensor] = []
        key = self._key(op, args, kwargs or {}, tensors) if APPLIES and ordinary(op) else None
        if key is None or not tensors or op is torch.ops.aten.as_strided.default:  # its offset is not relative
            return super().__torch_dispatch__(op, types, args, kwargs or {})
        if self._known.get(key) is None:
            result = super().__torch_dispatch__(op, types, args, kwargs or {})
            if key not in self._known:
                self._known[key] = _recipe(tensors, result)
            return result
        kind, parts = self._known[key]
        made = [part and self._make(tensors, *part) for part in parts]
        return made[0] if kind is None else kind(made)

    def _key(self, op: Any, args: Any, kwargs: Any, tensors: list[FakeTensor]) -> Any:
        try:
            inputs = [self._described(x, tensors) for x in args]
            keywords = [(k, self._described(x, tensors)) for k, x in kwargs.items()]
        except _Uncommon:
            return None
        return (op, torch.get_default_dtype(), torch.is_inference_mode_enabled(), *inputs, *keywords)

    def _described(self, value: Any, tensors: list[FakeTensor]) -> Any:
        kind = type(value)
        if isinstance(value, FakeTensor):
            if value.fake_mode is not self or not _is_common(value):
                raise _Uncommon
            tensors.append(value)
            return value.shape, value.stride(), value.dtype, value.fake_device
        if kind in _CONSTANTS:
            return kind, value
        if kind in (list, tuple):
            return tuple([self._described(x, tensors) for x in value])
        raise _Uncommon

    def _make(
        self,
        tensors: Sequence[FakeTensor],
        shared: int | None,
        shape: Any,
        stride: Any,
        offset: int,
        dtype: torch.dtype,
    ) -> FakeTensor:
        with in_kernel_invocation_manager(self):
            if shared is None:
                made = torch.empty_strided(shape, stride, dtype=dtype, device="meta")
            else:
                made = torch.as_strided(tensors[shared], shape, stride, tensors[shared].storage_offset() + offset)
        return FakeTensor(self, made, _CPU)


def _is_common(tensor: FakeTensor) -> bool:
    plain = tensor.layout is torch.strided and not tensor.is_conj() and not tensor.is_neg()
    return tensor.constant is None and plain


def _recipe(tensors: Sequence[FakeTensor], result: Any) -> Any:
    """How to make this result again (see `_known`); None if shapes, strides and types are not enough."""
    kind = next((t for t in (list, tuple) if isinstance(result, t)), None)
    if kind is None and not isinstance(result, torch.Tensor):
        return None
    owners: dict[int, int | None] = {t.untyped_storage()._cdata: i for i, t in enumerate(tensors)}
    parts: list[Any] = []
    for part in [result] if kind is None else result:
        if part is None:
            parts.append(None)
            continue
        if type(part) is not FakeTensor or not _is_common(part) or part.requires_grad or part.fake_device != _CPU:
            return None
        storage, layout = part.untyped_storage(), (tuple(part.shape), part.stride())
        shared = owners.get(storage._cdata)
        if shared is None:
            fresh = torch.empty_strided(*layout, dtype=part.dtype, device="meta").untyped_storage()
            if storage._cdata in owners or part.storage_offset() or fresh.nbytes() != storage.nbytes():
                return None
            owners[storage._cdata] = None
            parts.append((None, *layout, 0, part.dtype))
        elif part.dtype != tensors[shared].dtype or any(part is t for t in tensors):
            return None
        else:
            parts.append((shared, *layout, part.storage_offset() - tensors[shared].storage_offset(), part.dtype))
    return kind, parts
