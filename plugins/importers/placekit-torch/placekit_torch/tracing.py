"""The adapter to PyTorch's tracing.

Private interfaces of torch are used here, and in known_values.py, fake_parameters.py, shortcuts.py, attention.py, autocast.py
and checkpointing.py.

Written against torch 2.13. The joint graph (forward and backward, functional: nothing is mutated) comes from
`aot_export_joint_with_descriptors`; its descriptors say what each input and output is. Everything runs on fake tensors, which
have shapes, types and strides, but no memory.
"""

from __future__ import annotations

import contextlib
import logging
import operator
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import torch
import torch.fx.traceback as fx_traceback
import torch.utils._pytree as pytree
from torch._decomp import decomposition_table
from torch._functorch._aot_autograd import descriptors as aot
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)

from placekit_core import ImporterError, report_progress
from placekit_torch.autocast import autocasting
from placekit_torch.checkpointing import recorded
from placekit_torch.error_lines import first_line, user_line
from placekit_torch.joint import ALIAS, TAG, Joint, Names, Tag, merge_tied, start_backward
from placekit_torch.known_values import TraceMode, numbers_of_tensors
from placekit_torch.operators import tensors
from placekit_torch.shortcuts import shortcuts


def fake_mode(*, values: bool = False) -> TraceMode:
    """A mode under which new tensors are fake. Real tensors become constants of the trace."""
    return TraceMode(values=values)


def compiling() -> Any:
    """A context in which `torch.compiler.is_compiling()` is true, as under torch.compile."""
    return mock.patch.object(torch.compiler, "_is_compiling_flag", True)


_LOGGERS = ("torch._subclasses.fake_tensor", "torch.fx.experimental.proxy_tensor", "torch._functorch.aot_autograd")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep torch from logging errors, because each becomes an ImporterError of two lines."""

    def silent(record: logging.LogRecord) -> bool:
        return record.levelno < logging.ERROR  # keep logs that the user asked for with TORCH_LOGS

    loggers = [logging.getLogger(name) for name in _LOGGERS]
    for logger in loggers:
        logger.addFilter(silent)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(silent)


def is_fake(tensor: torch.Tensor) -> bool:
    """Whether the tensor is fake and on the CPU; not on `meta`, where some backward formulas do nothing."""
    return isinstance(tensor, FakeTensor) and tensor.device.type == "cpu"


def like(tensor: torch.Tensor, mode: FakeTensorMode) -> torch.Tensor:
    """A fake tensor, or parameter, on the CPU with the shape, type and strides of `tensor`."""
    with mode, torch.no_grad():
        made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(made, requires_grad=tensor.requires_grad)
    return made.requires_grad_(tensor.requires_grad)


class _Tagger:
    """Writes a Tag on every node that is traced inside a call of a module.

    It uses module hooks, because `nn_module_stack` stays empty outside torch.export.
    """

    def __init__(self, root: torch.nn.Module, paths: dict[torch.nn.Module, str]) -> None:
        self.root, self.paths = root, paths
        self.calls: Counter[str] = Counter()
        self.stack: list[Tag] = []

    def _enter(self, module: torch.nn.Module, arguments: Any) -> None:
        if module is self.root:  # the forward pass is traced more than once
            self.calls.clear()
            self.stack.clear()
        path = self.paths[module]
        report_progress(f"tracing {path}" if path else "tracing")
        active = {tag.module: tag.call for tag in self.stack} | {path: self.calls[path]}
        parts = path.split(".") if path else []
        prefixes = (".".join(parts[: i + 1]) for i in range(len(parts)))
        self.stack.append(Tag(path, self.calls[path], ".".join(str(active.get(p, 0)) for p in prefixes)))
        self.calls[path] += 1
        self._write()

    def _leave(self, module: torch.nn.Module, arguments: Any, output: Any) -> None:
        if self.stack:
            self.stack.pop()
        self._write()

    def _write(self) -> None:
        fx_traceback.current_meta["custom"] = {TAG: self.stack[-1] if self.stack else Tag()}

    @contextlib.contextmanager
    def hooks(self) -> Iterator[None]:
        """Hooks on all modules, removed on leaving."""
        handles: list[Any] = []
        try:
            for module in self.paths:
                handles.append(module.register_forward_pre_hook(self._enter))
                handles.append(module.register_forward_hook(self._leave, always_call=True))
            yield
        finally:
            for handle in handles:
                handle.remove()
            fx_traceback.current_meta.pop("custom", None)


_WHOLE = ("upsample_", "_upsample_", "hardshrink", "softshrink", "multi_margin_loss", "multilabel_margin_loss_forward")


def _dropout(input: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    """`aten.dropout` as eager PyTorch runs it: without a kernel where nothing is dropped. Tracing would make a copy."""
    return torch.ops.aten.native_dropout(input, p, train)[0] if train and p else input


@contextlib.contextmanager
def _kernels_of_eager_mode() -> Iterator[None]:
    """Keep operators whole that have a kernel on every device, which tracing would replace by many small ones; and `_dropout`."""
    replaced: list[tuple[Any, dict[Any, Any]]] = []
    dropout = torch.ops.aten.dropout.default
    for op in decomposition_table:
        if isinstance(op, torch._ops.OpOverload) and (op is dropout or op._overloadpacket.__name__.startswith(_WHOLE)):
            replaced.append((op, dict(op.py_kernels)))
            for key in (torch._C.DispatchKey.CompositeImplicitAutograd, torch._C.DispatchKey.Autograd):
                op.py_kernels.pop(key, None)
                if op is dropout:
                    op.py_kernels[key] = _dropout
            op._dispatch_cache.clear()
    try:
        yield
    finally:
        for op, kernels in replaced:
            op.py_kernels.update(kernels)
            op._dispatch_cache.clear()


@contextlib.contextmanager
def tracing(mode: FakeTensorMode) -> Iterator[contextlib.ExitStack]:
    """Enter all contexts that tracing needs; yields a stack for more."""
    with contextlib.ExitStack() as stack:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="TF32 acceleration")
            stack.enter_context(torch.backends.mkldnn.flags(enabled=False))  # else nn.LSTM may become one operation
        stack.enter_context(mode)
        stack.enter_context(shortcuts())
        stack.enter_context(numbers_of_tensors())
        stack.enter_context(fx_traceback.preserve_node_meta())
        stack.enter_context(_kernels_of_eager_mode())
        stack.enter_context(recorded())
        # modules skip checks of data, and optimisers skip checks of devices, as under torch.compile
        stack.enter_context(compiling())
        yield stack


def trace_joint(
    module: torch.nn.Module,
    arguments: Sequence[torch.Tensor],
    mode: FakeTensorMode,
    *,
    backward: bool,
    paths: dict[torch.nn.Module, str],
    name: str,
) -> Joint:
    """Forward and backward of `module(*arguments)`, all fake. Raises ImporterError with the line of the module.

    The module must not be used afterwards: if a tensor is registered twice, tracing leaves other tensors in its place.
    """
    names = Names(module)
    grad = contextlib.nullcontext() if backward else torch.no_grad()
    try:
        with tracing(mode) as stack, _Tagger(module, paths).hooks(), autocasting(module), grad:
            traced = aot_export_joint_with_descriptors(stack, module, tuple(arguments)).graph_module
    except ImporterError:
        raise
    except Exception as e:
        raise ImporterError(*explain(e, f"{name} cannot be traced")) from e
    return _read(traced, names, name)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def is_data_dependent(error: BaseException) -> bool:
    """Whether code asked a fake tensor for data."""
    return any(isinstance(e, DataDependentOutputException | DynamicOutputShapeException) for e in _chain(error))


_OTHERWISE = "or importer.tracer=make_fx decides it by the values of the example, with real weights"


def explain(error: BaseException, what: str) -> tuple[str, str]:
    """Message, with the user's line, and hint for an exception under fake tensors; `what` is the failed action."""
    line = user_line(error)
    if any(isinstance(e, DataDependentOutputException) for e in _chain(error)):
        why = "a Python value depends on the data of a tensor (`.item()`, `float(t)`, `if t:`)"
        hint = (
            f"a graph is the same for all data: keep the value a tensor, e.g. torch.where instead of `if`; {_OTHERWISE}"
        )
    elif is_data_dependent(error):
        why = "the shape of a result depends on data (a boolean mask, nonzero, unique)"
        hint = (
            "shapes must be fixed: multiply by the mask, use torch.where or masked_fill, or import the modules before that line,"
            f" such as a detector's backbone; {_OTHERWISE}"
        )
    elif "Expected more than 1 value per channel when training" in first_line(error):
        why = "batch normalisation has one value per channel to take the mean of"
        hint = "train with a larger batch: batch=2"
    elif ".numpy() is not supported" in first_line(error):
        why = "`.numpy()` takes a tensor out of PyTorch, where no tracer follows"
        hint = "compute it with operations of torch"
    else:
        why = f"{type(error).__name__}: {first_line(error)}"
        hint = "it must run on these inputs, without knowing the data; try `module(*inputs)` in eager mode first"
    return f"{what}: {why}{line}", hint


def _read(traced: torch.fx.GraphModule, names: Names, name: str) -> Joint:
    graph = traced.graph
    joint = Joint(graph)
    tangents = []
    for node in list(graph.nodes):
        if node.op == "placeholder":
            match node.meta["desc"]:
                case aot.ParamAOTInput(target=target):
                    joint.parameters[target] = node
                case aot.BufferAOTInput(target=target):
                    joint.buffers[target] = node
                case aot.PlainAOTInput(idx=index):
                    joint.inputs[index] = node
                case aot.TangentAOTInput(output=output):
                    tangents.append((node, 1.0 if isinstance(output, aot.PlainAOTOutput) else 0.0))
                case other:
                    raise ImporterError(f"{name} has an input that placekit does not know: {other!r}")
        elif node.op == "get_attr":
            value = getattr(traced, node.target)
            if not isinstance(value, torch.Tensor):
                raise ImporterError(
                    f"{name} uses a higher-order operator ({node.target}), which placekit does not take apart",
                    "write it with plain operations",
                )
            node.meta["val"] = value
            joint.constants[f"constant.{len(joint.constants)}"] = (node, value)
    mark_aliases(graph)  # before graphs are joined, because shared memory is visible within one trace only
    end = graph.output_node()
    outputs = list(pytree.tree_leaves(end.args[0], is_leaf=lambda x: x is None))
    for value, meaning in zip(outputs, end.meta["desc"], strict=True):
        match meaning:
            case aot.GradAOTOutput(grad_of=aot.ParamAOTInput(target=target)) if value is not None:
                joint.gradients[target] = value
            case aot.InputMutationAOTOutput(mutated_input=aot.BufferAOTInput(target=target)):
                joint.new_buffers[target] = value
            case aot.InputMutationAOTOutput(mutated_input=aot.ParamAOTInput(target=target)):
                joint.new_parameters[target] = value
            case aot.InputMutationAOTOutput(mutated_input=aot.PlainAOTInput(idx=index)):
                joint.new_inputs[index] = value
            case aot.PlainAOTOutput():
                joint.outputs.append(value)
            case _:  # gradients of inputs
                pass
    graph.erase_node(end)
    for node, value in tangents:
        start_backward(graph, node, value)
    merge_tied(joint, names)
    return joint


def storage(value: Any) -> list[int]:
    """Identities of the memory of the tensors in a node's value."""
    return [t.untyped_storage()._cdata for t in tensors(value)]


def mark_aliases(graph: torch.fx.Graph) -> None:
    """Mark the nodes that share memory with one of their inputs: views, and also `_unsafe_view` and `unsafe_split`.

    It compares memory, because the schemas of some operators do not declare aliases. `getitem` is never marked.
    """
    for node in graph.nodes:
        if node.op != "call_function" or node.target is operator.getitem:
            continue
        if node.target is torch.ops.aten.lift_fresh_copy.default:  # protects a constant, which nothing changes here
            node.meta[ALIAS] = 0
            continue
        own = set(storage(node.meta.get("val")))
        for i, source in enumerate(node.all_input_nodes if own else ()):
            if own <= set(storage(source.meta.get("val"))):
                node.meta[ALIAS] = i
                break
