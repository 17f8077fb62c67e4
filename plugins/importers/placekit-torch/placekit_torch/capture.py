"""Captures a step as one functional fx graph: forward and backward pass, then the optimiser's updates."""

from __future__ import annotations

import contextlib
import copy
import itertools
import operator
import warnings
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from placekit_core import ImporterError, check_weights
from placekit_torch import experts
from placekit_torch.factory import Builder, Given
from placekit_torch.fake_parameters import construct, converting
from placekit_torch.joint import ALIAS, TAG, Joint, outside_calls, own_name, with_value
from placekit_torch.known_values import SPARSE, TraceMode
from placekit_torch.nested_tensors import flat_inputs, plain_tensors, replaced, tensors_in
from placekit_torch.operators import base_name
from placekit_torch.optimizers import Optimizer, has_layout_of
from placekit_torch.options import Kernels
from placekit_torch.random_states import draw_again, kept_random_states
from placekit_torch.step import Step, refuse_keywords
from placekit_torch.tracing import explain, fake_mode, is_fake, like, quiet, trace_joint

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
        initial: for state, the value of all its elements before the first step.
    """

    name: str
    kind: str
    node: torch.fx.Node
    owner: str
    module: str = ""
    initial: float = 0.0


@dataclass
class Captured:
    """A step as a graph without dead code.

    Attributes:
        graph: fx graph; each operation has `meta["phase"]`, and operations of an update `meta["owner"]`, the parameter.
        sources: all sources, used or not.
        updates: node of the new value, by the name of the source that it replaces. Each is an output of a kernel, and
            replaces one source only.
        results: results of the step: `loss` and, without optimiser, `gradient.NAME`; or `output.N`.
        together: kernels that belong on the device of a source, by its name: they extend a cache of keys or values.
        constants: values of the sources that are constants in the module's code.
        operations: number of operations in the traced graph, without dead code.
        unsplit: paths of the modules that their authors want on one device.
        stateless: children of the model, and elements of its lists, without parameters and buffers, such as a dropout.
    """

    graph: torch.fx.Graph
    sources: list[Source] = field(default_factory=list)
    updates: dict[str, torch.fx.Node] = field(default_factory=dict)
    results: dict[str, torch.fx.Node] = field(default_factory=dict)
    together: dict[str, torch.fx.Node] = field(default_factory=dict)
    constants: dict[str, torch.Tensor] = field(default_factory=dict)
    operations: int = 0
    unsplit: list[str] = field(default_factory=list)
    stateless: list[str] = field(default_factory=list)


class _Whole(torch.nn.Module):
    """The module and its loss as one module that takes tensors only."""

    def __init__(self, step: Step, mode: Mode, name: str) -> None:
        super().__init__()
        self.module, self.mode, self.label = step.module, mode, name
        self.loss = step.loss if mode == "train" else None
        self.inputs = flat_inputs(step, mode)
        self.low: torch.dtype | None = None  # type of autocast around module and loss

    def forward(self, *tensors: torch.Tensor) -> Any:
        with contextlib.nullcontext() if self.low is None else torch.autocast("cuda", self.low):
            return self._forward(*tensors)

    def _forward(self, *tensors: torch.Tensor) -> Any:
        draw_again()  # tracing calls this more than once
        arguments, keywords, targets = self.inputs.rebuild(tensors)
        try:
            output = self.module(*arguments, **keywords)
        except TypeError as e:
            refuse_keywords(self.module, arguments, keywords, self.label, e)
            raise
        if self.mode == "inference":
            return self._tensors(output)
        loss = own_loss(output) if self.loss is None else self._loss(output, targets)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            shape = (
                f"a tensor of shape {tuple(loss.shape)}"
                if isinstance(loss, torch.Tensor)
                else f"a {type(loss).__name__}"
            )
            what = "the module returns" if self.loss is None else "the loss is"
            raise ImporterError(
                f"{self.label} has no scalar loss: {what} {shape}",
                "give a loss that returns a scalar tensor (`Step.loss`), inputs for which the module returns one (`labels` in"
                " transformers), or use mode=inference",
            )
        if not loss.requires_grad:
            raise ImporterError(
                f"the loss of {self.label} depends on no parameter that requires a gradient",
                "train some of its parameters, or use mode=inference",
            )
        return loss

    def _tensors(self, output: Any) -> Any:
        """The distinct tensors of an output. Raises ImporterError if it has no tensors."""
        found = list({id(t): t for t in tensors_in(output)}.values())
        if not found:
            raise ImporterError(
                f"{self.label} returns a {type(output).__name__} without tensors", "return the module's results"
            )
        return found

    def _loss(self, output: Any, targets: tuple[Any, ...]) -> Any:
        """The loss. Raises ImporterError if it fails because there are no targets."""
        assert self.loss is not None
        try:
            return self.loss(output, *targets)
        except TypeError as e:
            if any(t is not None for t in targets):
                raise
            message, _ = explain(e, f"{self.label} cannot be traced")
            hint = "the loss got no targets; if it takes some after the module's output, give targets=..."
            raise ImporterError(message, hint) from e

    def paths(self) -> dict[torch.nn.Module, str]:
        """Path of each module in the user's module; operations outside the user's module belong to `loss`."""
        found: dict[torch.nn.Module, str] = {m: k for k, m in self.module.named_modules()}
        if isinstance(self.loss, torch.nn.Module):
            found.update({m: f"loss.{k}".rstrip(".") for k, m in self.loss.named_modules() if m not in found})
        return {**found, self: "loss"}


def own_loss(output: Any) -> Any:
    """The entry or attribute `loss` of an output if that is a tensor, else the output itself."""
    found = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    return found if isinstance(found, torch.Tensor) else output


def to_fake(step: Step, mode: TraceMode, name: str) -> Step:
    """`step` with fake tensors. A module with a real parameter is copied, not modified. Raises ImporterError."""
    lazy = [k for k, p in step.module.named_parameters() if torch.nn.parameter.is_lazy(p)]
    if lazy:
        raise ImporterError(f"parameter {lazy[0]!r} of {name} has no shape yet", "run the lazy module once on an input")
    modules = [m for m in (step.module, step.loss) if isinstance(m, torch.nn.Module)]
    parameters = [p for m in modules for p in m.parameters()]
    tensors = [t for m in modules for t in (*m.buffers(), *(t for *_, t in plain_tensors(m)))]
    known: dict[int, Any] = {}
    for t in [*parameters, *tensors, *tensors_in((step.inputs, step.targets))]:
        if t.layout is not torch.strided:
            raise ImporterError(f"{name} has a tensor of {t.layout} with shape {tuple(t.shape)}", SPARSE)
        if id(t) not in known:
            known[id(t)] = t if is_fake(t) else like(t, mode)
            if known[id(t)] is not t and t.device.type != "meta":
                mode.know(known[id(t)], t.detach() if isinstance(t, torch.nn.Parameter) else t.detach().clone())
    module, loss = step.module, step.loss
    if parameters and all(map(is_fake, parameters)):
        _replace(modules, known)
    else:
        memo = dict(known)  # deepcopy treats these as already copied: it copies modules, but not their tensors
        try:
            module, loss = copy.deepcopy((module, loss), memo)
        except Exception as e:
            raise ImporterError(f"{name} cannot be copied for tracing: {type(e).__name__}: {e}") from e
    inputs, targets = replaced((step.inputs, step.targets), lambda t: known[id(t)])
    return Step(module, inputs, loss, targets, step.optimizer)


def _replace(modules: list[torch.nn.Module], known: dict[int, Any]) -> None:
    """Replace the modules' buffers and plain tensors by fake ones."""
    for part in {m: None for module in modules for m in module.modules()}:
        for tensors in (part._buffers, vars(part)):
            for key, value in tensors.items():
                if isinstance(value, torch.Tensor):
                    tensors[key] = known[id(value)]


def capture(builder: Builder, mode: Mode, name: str, seed: int = 0, kernels: Kernels | None = None) -> Captured:
    """Trace the step of `builder`, built with `seed`. Allocates no memory for parameters. Raises ImporterError."""
    chosen = kernels or Kernels()  # type: ignore[call-arg]
    fake = fake_mode(values=chosen.tracer == "make_fx")
    with quiet(), kept_random_states(), converting():
        torch.manual_seed(seed)
        step = to_fake(_built(builder, fake, chosen.tracer, name), fake, name)
        weights = {id(t): t for t in (*step.module.parameters(), *step.module.buffers())}.values()
        check_weights(name, sum(t.numel() * t.element_size() for t in weights))
        step.module.train(mode == "train")
        for part, key, _, tensor in list(plain_tensors(step.module)):  # otherwise constants without a value
            delattr(part, key)
            part.register_buffer(key, tensor.detach(), persistent=False)
        _warn_of_recurrent(step.module, name)
        whole = _Whole(step, mode, name)
        update = None
        if mode == "train" and step.optimizer is not None:
            update = Optimizer(step.optimizer, whole, fake, name, chosen.optimizer_kernels)
        whole.low = None if chosen.autocast == "none" else getattr(torch, chosen.autocast)
        tensors, paths = whole.inputs.tensors, whole.paths()
        joint = trace_joint(whole, tensors, fake, backward=mode == "train", paths=paths, name=name)
        fake.forget(joint.graph)
        _warn_of_specialised(fake, name)
        if any(n.op == "call_function" and base_name(n.target) in experts.NAMES for n in joint.graph.nodes):
            warnings.warn(f"{name}: {experts.NOTE}", stacklevel=2)
        captured = _assemble(joint, whole, mode, update)
        captured.unsplit, captured.stateless = _unsplit(step.module), list(_stateless(step.module))
        return captured


def _unsplit(module: torch.nn.Module) -> list[str]:
    """The modules of the classes that a model of transformers or diffusers, or a part of it, names in `_no_split_modules`."""
    classes = {c for m in module.modules() for c in (getattr(m, "_no_split_modules", None) or ())}
    return [path for path, m in module.named_modules() if type(m).__name__ in classes]


def _stateless(module: torch.nn.Module, prefix: str = "") -> Iterator[str]:
    for name, child in module.named_children():
        if isinstance(child, torch.nn.ModuleList | torch.nn.ModuleDict) and not prefix:
            yield from _stateless(child, f"{name}.")
        elif next(itertools.chain(child.parameters(), child.buffers()), None) is None:
            yield prefix + name


def _built(builder: Builder, fake: TraceMode, tracer: str, name: str) -> Step:
    if isinstance(builder, Given):
        return builder.build()
    return construct(builder.build, fake, name) if tracer == "joint" else builder.build()


def _warn_of_specialised(fake: TraceMode, name: str) -> None:
    if fake.reads:
        warnings.warn(
            f"{name} was traced with the values of this example. Its graph is right for other values only if these lines do"
            f" the same with them:{_first(fake.reads)}",
            stacklevel=2,
        )
    if fake.routed:
        warnings.warn(
            f"{name} reads positions from topk or argmax, as routers of experts do. The trace gives every expert the same load:"
            " costs are for even loads, and the program cannot be executed with other"
            f" loads:{_first(fake.routed)}",
            stacklevel=2,
        )
    if fake.drawn:
        warnings.warn(
            f"{name} draws random numbers that decide what runs. The trace takes each as almost 1 (with LayerDrop, all layers"
            f" run):{_first(fake.drawn)}",
            stacklevel=2,
        )


def _first(lines: Collection[str]) -> str:
    """At most three of the lines, and how many more there are: a library may have a dozen, which no user changes."""
    more = f"\n  and {len(lines) - 3} more lines" if len(lines) > 3 else ""
    return "".join(list(lines)[:3]) + more


def _warn_of_recurrent(module: torch.nn.Module, name: str) -> None:
    for path, part in module.named_modules():
        if isinstance(part, torch.nn.LSTM | torch.nn.GRU):
            kind = type(part).__name__
            warnings.warn(
                f"{name}: {path or 'the module'} is an nn.{kind}. Its trace has the input projection before the loop over time:"
                f" all steps wait for it and can hardly overlap. A loop of nn.{kind}Cell can be placed better.",
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
        captured.sources.append(Source(whole.inputs.names[i], "input", node, whole.inputs.names[i]))
    for node in graph.nodes:
        if node.op == "call_function":
            node.meta["phase"] = "backward" if node.meta.get("partitioner_tag") == "is_backward" else "forward"
    for buffer, node in (joint.new_buffers | joint.new_parameters).items():
        captured.updates[own_name(buffer)] = node
    _keep_caches(captured, joint, whole)
    if mode == "inference":
        captured.results = {f"output.{i}": n for i, n in enumerate(joint.outputs) if isinstance(n, torch.fx.Node)}
    else:
        (loss,) = joint.outputs
        assert loss is not None
        captured.results["loss"] = loss
        if update is None:
            captured.results |= {f"gradient.{own_name(k)}": n for k, n in joint.gradients.items()}
        else:
            for state, owner, node, initial in update.append(joint, captured.updates):
                captured.sources.append(Source(state, "state", node, owner, owner.rpartition(".")[0], initial))
    _own_new_values(captured)
    _finish(captured)
    return captured


def _keep_caches(captured: Captured, joint: Joint, whole: _Whole) -> None:
    """Keep the state of objects among the inputs, such as caches; all other inputs are new in each step.

    A step changes a cache in place (`StaticCache`), or returns a longer one computed from it (`DynamicCache`).
    """
    for i, node in joint.inputs.items():
        name = whole.inputs.names[i]
        if name not in whole.inputs.kept:
            continue
        if i in joint.new_inputs:
            captured.updates[name] = joint.new_inputs[i]
        for output in joint.outputs:
            kernel = output
            while kernel is not None and ALIAS in kernel.meta:
                kernel = kernel.all_input_nodes[kernel.meta[ALIAS]]
            if kernel is not None and kernel.op == "call_function" and node in kernel.all_input_nodes:
                captured.together[name] = kernel


def _own_new_values(captured: Captured) -> None:
    """Make every new value the output of a kernel, and of one source only, by copying where necessary."""
    graph, taken = captured.graph, set()
    old = {s.name: s.node for s in captured.sources}
    for source, node in list(captured.updates.items()):
        if node is old[source]:
            del captured.updates[source]
            continue
        if node.target is aten.copy.default:  # the old content does not matter
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
    """Remove dead code and assertions, check that no operator mutates its inputs, and count operations."""
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
