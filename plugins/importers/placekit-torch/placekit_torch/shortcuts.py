"""Short paths through torch's tracing for ordinary operators; the graph is the same to the last bit.

Torch spends about half a millisecond per traced operator, in Python code of three layers: `FunctionalTensorMode` replaces
mutation, `ProxyTorchDispatchMode` records a node, `FakeTensorMode` finds shapes and strides. Here each layer gets a short
path for common operators and arguments, and handles all others as before. Only this file and tracing.py use private
interfaces of torch (2.13).
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
import torch.fx.traceback as fx_traceback
from torch._subclasses import functional_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode
from torch.fx._lazy_graph_module import _use_lazy_graph_module
from torch.fx.experimental import proxy_tensor

APPLIES = torch.__version__.startswith("2.13.")
"""Whether this is the version of torch that the short paths are written for; other versions trace without them."""

_torch: Any = torch  # for functions that torch's stubs lack
_Key = torch._C.DispatchKey
_CPU = torch.device("cpu")
_PLAIN = frozenset(
    [int, float, bool, complex, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format]
)
_BY_DATA = frozenset([torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.inplace_view])
_torch_functional = FunctionalTensorMode.__torch_dispatch__
_torch_record = proxy_tensor.proxy_call


class _Uncommon(Exception):
    """An argument for which there is no short path."""


@contextlib.contextmanager
def shortcuts() -> Iterator[None]:
    """Trace with the short paths of functionalisation and recording; `ShapeMode` has the short path of shapes."""
    if not APPLIES:
        yield
        return
    nothing = mock.Mock(return_value=False)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_use_lazy_graph_module(True))  # no Python code for graphs that never run
        # the caller removes dead code once; torch would do so, and check the whole graph, after each of its steps
        stack.enter_context(mock.patch.object(fx.Graph, "eliminate_dead_code", nothing))
        stack.enter_context(mock.patch.object(FunctionalTensorMode, "__torch_dispatch__", _functional))
        stack.enter_context(mock.patch.object(proxy_tensor, "proxy_call", _record))
        yield


def _has_kernel(op: Any, key: Any) -> bool:
    return key in op.py_kernels or bool(torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), key))


@functools.cache
def ordinary(op: Any) -> bool:
    """Whether an operator's results depend only on shapes and strides of its arguments, and no layer takes it apart."""
    return (
        isinstance(op, torch._ops.OpOverload)
        and op.namespace in ("aten", "prims")
        and not op._schema.is_mutable
        and len(op._schema.returns) > 0  # not an assertion
        and not _BY_DATA & set(op.tags)
        and not op._overloadpacket.__name__.startswith("lift")
        and not _has_kernel(op, _Key.CompositeImplicitAutograd)
    )


@functools.cache
def _is_functional(op: Any) -> bool:
    """Whether functionalisation only unwraps the operator's arguments and wraps its results."""
    return (
        ordinary(op)
        and functional_tensor._can_decompose_fast(op, False, False) is None  # other versions of torch lack it
        and not _has_kernel(op, _Key.Functionalize)
        and op not in FunctionalTensor.metadata_fns
        and not op.python_key_table
    )


def _only_first_aliased(op: Any) -> bool:
    return [bool(a.alias_info) for a in op._schema.arguments] == [i == 0 for i in range(len(op._schema.arguments))]


@functools.cache
def _out_of_place(op: Any) -> Any:
    """For an in-place operator such as `add_`, the functional operator `add`; None if there is none."""
    if not isinstance(op, torch._ops.OpOverload) or op.namespace != "aten" or torch.Tag.inplace_view in op.tags:
        return None
    name, own = op._overloadpacket.__name__, op._schema.arguments
    if not name.endswith("_") or name.endswith("__") or not _only_first_aliased(op):
        return None
    found = getattr(getattr(torch.ops.aten, name[:-1], None), op._overloadname, None)
    if found is None or not _is_functional(found):
        return None
    same = [(a.name, str(a.type)) for a in own] == [(a.name, str(a.type)) for a in found._schema.arguments]
    return found if same else None


@functools.cache
def _is_view_of_first(op: Any) -> bool:
    """Whether the operator returns one view of its first argument."""
    if not ordinary(op) or not op.is_view or op.python_key_table or _Key.Functionalize in op.py_kernels:
        return False
    returns = op._schema.returns
    return _only_first_aliased(op) and len(returns) == 1 and str(returns[0].type) == "Tensor"


def _functional(mode: Any, op: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
    """Replaces `FunctionalTensorMode.__torch_dispatch__`."""
    kwargs = kwargs or {}
    if op is torch.ops.prim.device.default and isinstance(args[0], FakeTensor):
        return args[0].device
    if types and all(t is FunctionalTensor for t in types):
        functional = op if _is_functional(op) else _out_of_place(op)
        with contextlib.suppress(_Uncommon):
            if functional is not None:
                return _functional_call(mode, op, functional, args, kwargs)
            if _is_view_of_first(op):
                return _functional_view(mode, op, args, kwargs)
    return _torch_functional(mode, op, types, args, kwargs)


def _functional_call(mode: Any, op: Any, functional: Any, args: Any, kwargs: Any) -> Any:
    inner, keywords = [_inner(x) for x in args], {k: _inner(x) for k, x in kwargs.items()}
    with torch._C._AutoDispatchBelowAutograd():
        result = functional(*inner, **keywords)
    if functional is op:
        if isinstance(result, torch.Tensor):
            return _outer(result, mode)
        return type(result)(_outer(x, mode) if isinstance(x, torch.Tensor) else x for x in result)
    if result.shape != inner[0].shape or result.dtype != inner[0].dtype:
        raise _Uncommon  # mostly an error
    changed = args[0].elem
    torch._functionalize_replace(changed, result)
    torch._functionalize_commit_update(changed)
    torch._functionalize_sync(changed)
    return args[0]


def _functional_view(mode: Any, op: Any, args: Any, kwargs: Any) -> Any:
    base = args[0]
    _inner(base)
    include = torch._C._dispatch_tls_local_include_set() | torch._C.DispatchKeySet(_Key.Functionalize)
    exclude = torch._C._dispatch_tls_local_exclude_set().remove(_Key.Functionalize)
    with torch._C._ForceDispatchKeyGuard(include, exclude - FunctionalTensor._extra_dispatch_keys):
        before = _torch._functionalize_enable_reapply_views(True)
        try:
            result = op._op_dk(_Key.Functionalize, base.elem, *args[1:], **kwargs)
        finally:
            _torch._disable_functionalization()
            _torch._functionalize_enable_reapply_views(before)
    view = FunctionalTensor(result, mode)
    torch._functionalize_unsafe_set(view, base)  # wrappers of the same memory share it
    return view


def _outer(tensor: torch.Tensor, mode: Any) -> FunctionalTensor:
    return FunctionalTensor(torch._to_functional_tensor(tensor), mode)


def _inner(value: Any) -> Any:
    """An argument without the wrapper of functionalisation, with all changes of its memory applied."""
    if type(value) is FunctionalTensor:
        tensor = value.elem
        if torch._functionalize_mutation_counter(tensor):  # counts changes of the memory, also through other views
            tracer = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY)
            node = tracer and tracer.tracer.tensor_tracker[torch._from_functional_tensor(tensor)].proxy.node
            with fx_traceback.set_current_replay_node(node):  # a view that is made anew belongs where it was first made
                torch._functionalize_sync(tensor)
        inner = torch._from_functional_tensor(tensor)
        if inner.is_conj() or inner.is_neg():  # some operators have to resolve these first
            raise _Uncommon
        return inner
    if type(value) in (list, tuple):
        return type(value)(_inner(x) for x in value)
    if isinstance(value, torch.Tensor):
        raise _Uncommon
    return value


def _record(mode: Any, op: Any, pre_dispatch: bool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Replaces `proxy_tensor.proxy_call`: a node with the operator's fake result as `meta["val"]`."""
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
    if type(value) in _PLAIN:
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
        # operator and arguments -> container and, for each result: position of the tensor that it shares memory with (None:
        # none), shape, stride, offset relative to that tensor's, type; None if the result cannot be repeated like this
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
        if kind in _PLAIN:
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
    """A recipe for a result like this one; None if it cannot be made from shapes, strides and types."""
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
