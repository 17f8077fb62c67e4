"""One step as one functional fx graph: fake copies of the user's objects, the joint graph, the optimiser's update."""

from __future__ import annotations

import copy
import operator
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.utils._pytree as pytree

from placekit_core import ImporterError
from placekit_torch.factory import Builder
from placekit_torch.joint import ALIAS, TAG, Joint, outside_calls, own_name, with_value
from placekit_torch.optimizers import Optimizer, has_layout_of
from placekit_torch.step import Step
from placekit_torch.tracing import building, explain, fake_mode, is_fake, like, quiet, trace_joint

Mode = Literal["train", "inference"]
aten = torch.ops.aten


@dataclass(frozen=True)
class Source:
    """A value that exists before the step.

    Attributes:
        name: name of its operation.
        kind: `parameter`, `buffer`, `input`, or `state` (of the optimiser).
        node: placeholder or `get_attr` node.
        owner: for state, the parameter that it belongs to; for other sources, their own name.
        module: path of the module that it belongs to.
    """

    name: str
    kind: str
    node: torch.fx.Node
    owner: str
    module: str = ""


@dataclass
class Captured:
    """A step as a graph without dead code.

    Attributes:
        graph: fx graph; each operation has `meta["phase"]`, and operations of an update `meta["owner"]`, the parameter.
        sources: all sources, used or not.
        updates: node of the new value, by the name of the source that it replaces. Each is an output of a kernel, and
            replaces one source only.
        results: results of the step: `loss` and, without optimiser, `gradient.NAME`; or `output.N`.
        constants: values of the sources that are constants in the module's code.
        operations: number of operations in the traced graph, without dead code.
    """

    graph: torch.fx.Graph
    sources: list[Source] = field(default_factory=list)
    updates: dict[str, torch.fx.Node] = field(default_factory=dict)
    results: dict[str, torch.fx.Node] = field(default_factory=dict)
    constants: dict[str, torch.Tensor] = field(default_factory=dict)
    operations: int = 0


class _Whole(torch.nn.Module):
    """The module and its loss as one module of tensors only."""

    def __init__(self, step: Step, mode: Mode, name: str) -> None:
        super().__init__()
        self.module, self.mode, self.label = step.module, mode, name
        self.loss = step.loss if mode == "train" else None
        self.tensors, self.names, self.rebuild = flat_inputs(step, mode)

    def forward(self, *tensors: torch.Tensor) -> Any:
        arguments, keywords, targets = self.rebuild(tensors)
        output = self.module(*arguments, **keywords)
        if self.mode == "inference":
            return output
        loss = output if self.loss is None else self._loss(output, targets)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            shape = (
                f"a tensor of shape {tuple(loss.shape)}"
                if isinstance(loss, torch.Tensor)
                else f"a {type(loss).__name__}"
            )
            what = "the module returns" if self.loss is None else "the loss is"
            raise ImporterError(
                f"{self.label} has no scalar loss: {what} {shape}",
                "give a loss that returns a scalar tensor (`Step.loss`), or use importer.mode=inference",
            )
        if not loss.requires_grad:
            raise ImporterError(f"the loss of {self.label} depends on no parameter that requires a gradient")
        return loss

    def _loss(self, output: Any, targets: tuple[Any, ...]) -> Any:
        """The loss. Raises ImporterError if it fails for lack of targets."""
        assert self.loss is not None
        try:
            return self.loss(output, *targets)
        except TypeError as e:
            if any(t is not None for t in targets):
                raise
            message, _ = explain(e, f"{self.label} cannot be traced")
            hint = "the loss was given no targets; if it needs some, give targets=..., its arguments after the module's output"
            raise ImporterError(message, hint) from e

    def paths(self) -> dict[torch.nn.Module, str]:
        """Path of each module in the user's module; operations outside the user's module belong to `loss`."""
        found: dict[torch.nn.Module, str] = {m: k for k, m in self.module.named_modules()}
        if isinstance(self.loss, torch.nn.Module):
            found.update({m: f"loss.{k}".rstrip(".") for k, m in self.loss.named_modules() if m not in found})
        return {**found, self: "loss"}


def flat_inputs(step: Step, mode: Mode) -> tuple[list[torch.Tensor], list[str], Any]:
    """The distinct tensors among the inputs and targets, a name for each, and a function that puts them back in place."""
    arguments, keywords = step.arguments
    targets = step.loss_arguments if mode == "train" else ()
    keyed, spec = pytree.tree_flatten_with_path({"input": (arguments, keywords), "target": targets})
    tensors: list[torch.Tensor] = []
    names: list[str] = []
    where: list[Any] = []  # number of the tensor, or the plain value
    seen: dict[int, int] = {}
    for path, value in keyed:
        if not isinstance(value, torch.Tensor):
            where.append((False, value))
            continue
        if id(value) not in seen:
            keys = [str(getattr(k, "key", getattr(k, "idx", k))) for k in path]
            seen[id(value)] = len(tensors)
            tensors.append(value)
            names.append(".".join([keys[0], *keys[2 if keys[0] == "input" else 1 :]]))
        where.append((True, seen[id(value)]))

    def rebuild(given: Any) -> tuple[tuple[Any, ...], dict[str, Any], tuple[Any, ...]]:
        both = pytree.tree_unflatten([given[v] if is_tensor else v for is_tensor, v in where], spec)
        return (*both["input"], both["target"])

    return tensors, names, rebuild


def plain_tensors(module: torch.nn.Module) -> Iterator[tuple[torch.nn.Module, str, str, torch.Tensor]]:
    """Tensors that are plain attributes, not parameters or buffers: module, attribute, full name, tensor."""
    for path, part in module.named_modules():
        for key, value in list(vars(part).items()):
            if isinstance(value, torch.Tensor):
                yield part, key, f"{path}.{key}".lstrip("."), value


def to_fake(step: Step, mode: Any, name: str) -> Step:
    """A copy of `step` with fake tensors; `step` itself if all its tensors are fake. Raises ImporterError."""
    lazy = [k for k, p in step.module.named_parameters() if torch.nn.parameter.is_lazy(p)]
    if lazy:
        raise ImporterError(f"parameter {lazy[0]!r} of {name} has no shape yet", "run the lazy module once on an input")
    tensors = [t for t in pytree.tree_leaves((step.inputs, step.targets)) if isinstance(t, torch.Tensor)]
    tensors += [*step.module.parameters(), *step.module.buffers(), *(t for *_, t in plain_tensors(step.module))]
    if isinstance(step.loss, torch.nn.Module):
        tensors += [*step.loss.parameters(), *step.loss.buffers(), *(t for *_, t in plain_tensors(step.loss))]
    if all(is_fake(t) for t in tensors):
        return step
    known: dict[int, Any] = {}
    for t in tensors:
        if id(t) not in known:
            known[id(t)] = t if is_fake(t) else like(t, mode)
    memo = dict(known)  # deepcopy takes these for already copied, so it copies the modules but not their tensors
    try:
        module, loss = copy.deepcopy((step.module, step.loss), memo)
    except Exception as e:
        raise ImporterError(f"{name} cannot be copied for tracing: {type(e).__name__}: {e}") from e
    inputs, targets = pytree.tree_map_only(torch.Tensor, lambda t: known[id(t)], (step.inputs, step.targets))
    return Step(module, inputs, loss, targets, step.optimizer)


def capture(builder: Builder, mode: Mode, name: str) -> Captured:
    """Trace the step of `builder`. Allocates no memory for tensors. Raises ImporterError."""
    fake = fake_mode()
    with quiet(), torch.random.fork_rng(devices=[]):
        with building(fake):
            made = builder.build()
        step = to_fake(made, fake, name)
        step.module.train(mode == "train")
        for part, key, _, tensor in list(plain_tensors(step.module)):  # else they would be constants without a value
            delattr(part, key)
            part.register_buffer(key, tensor.detach(), persistent=False)
        _warn_of_recurrent(step.module, name)
        whole = _Whole(step, mode, name)
        update = None if mode == "inference" or step.optimizer is None else Optimizer(step.optimizer, whole, fake, name)
        joint = trace_joint(whole, whole.tensors, fake, backward=mode == "train", paths=whole.paths(), name=name)
        return _assemble(joint, whole, mode, update)


def _warn_of_recurrent(module: torch.nn.Module, name: str) -> None:
    for path, part in module.named_modules():
        if isinstance(part, torch.nn.LSTM | torch.nn.GRU):
            kind = type(part).__name__
            warnings.warn(
                f"{name}: {path or 'the module'} is an nn.{kind}, which is traced with its input projection moved out of the"
                f" loop over time: all steps wait for it and can hardly overlap. A loop of nn.{kind}Cell can be placed better.",
                stacklevel=2,
            )


def _assemble(joint: Joint, whole: _Whole, mode: Mode, update: Optimizer | None) -> Captured:
    graph = joint.graph
    captured = Captured(graph)
    for kind, nodes in (("parameter", joint.parameters), ("buffer", joint.buffers)):
        for key, node in nodes.items():
            own = own_name(key)
            captured.sources.append(Source(own, kind, node, own, own.rpartition(".")[0]))
    for constant, (node, value) in joint.constants.items():
        captured.sources.append(Source(constant, "buffer", node, constant))
        captured.constants[constant] = value
    for i, node in sorted(joint.inputs.items()):
        captured.sources.append(Source(whole.names[i], "input", node, whole.names[i]))
    for node in graph.nodes:
        if node.op == "call_function":
            node.meta["phase"] = "backward" if node.meta.get("partitioner_tag") == "is_backward" else "forward"
    for buffer, node in joint.new_buffers.items():
        captured.updates[own_name(buffer)] = node
    if mode == "inference":
        captured.results = {f"output.{i}": n for i, n in enumerate(joint.outputs) if isinstance(n, torch.fx.Node)}
    else:
        (loss,) = joint.outputs
        assert loss is not None
        captured.results["loss"] = loss
        if update is None:
            captured.results |= {f"gradient.{own_name(k)}": n for k, n in joint.gradients.items()}
        else:
            for state, owner, node in update.append(joint, captured.updates):
                captured.sources.append(Source(state, "state", node, owner, owner.rpartition(".")[0]))
    _own_new_values(captured)
    _finish(captured)
    return captured


def _own_new_values(captured: Captured) -> None:
    """Make every new value a kernel's output that replaces one source only; copy it if necessary."""
    graph, taken = captured.graph, set()
    old = {s.name: s.node for s in captured.sources}
    for source, node in list(captured.updates.items()):
        if node is old[source]:
            del captured.updates[source]
            continue
        if node.target is aten.copy.default:  # the overwritten tensor does not matter
            into, value = node.all_input_nodes if len(node.all_input_nodes) == 2 else (node, node)
            if value is not node and has_layout_of(value, into):
                node.target, node.args, node.kwargs = aten.clone.default, (value,), {}
        kernel = node.all_input_nodes[0] if node.target is operator.getitem else node
        if kernel.op != "call_function" or ALIAS in kernel.meta or node in taken:
            with graph.inserting_after(node):
                copied = graph.call_function(aten.clone.default, (node,))
            phase = node.meta.get("phase", "forward")
            copied.meta.update(phase=phase, custom={TAG: outside_calls(source.rpartition(".")[0])})
            node = with_value(copied)
        taken.add(node)
        captured.updates[source] = node


def _finish(captured: Captured) -> None:
    """Remove dead code and assertions; check that nothing is mutated; count."""
    needed = {*captured.updates.values(), *captured.results.values()}
    for node in reversed(list(captured.graph.nodes)):
        if node.op != "call_function":
            continue
        if not node.users and node not in needed:  # in a functional graph, an unread node has no effect
            captured.graph.erase_node(node)
            continue
        schema = getattr(node.target, "_schema", None)
        if schema is not None and schema.is_mutable:
            raise ImporterError(f"operator {node.target} changes its inputs and has no functional form", "")
        captured.operations += 1
