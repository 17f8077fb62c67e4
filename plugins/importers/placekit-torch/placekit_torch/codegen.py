"""Generates Python functions that run kernels: a line per kernel, views recomputed from their base, dead values deleted."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from placekit_core import ImporterError
from placekit_torch.attention import with_generator
from placekit_torch.operators import is_random


@dataclass(frozen=True)
class Ref:
    """Stands for the value of a node in the arguments of a Call."""

    node: int


@dataclass(frozen=True)
class Call:
    """A call of an operator (or of `operator.getitem`, on a list of views)."""

    target: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


@dataclass(frozen=True)
class Code:
    """How the tensors of a graph are computed. Node numbers are local; tensor numbers are the graph's.

    Attributes:
        calls: call of each kernel and each view.
        tensor_of: the tensor of each node; views that are folded into their base are missing.
        kernel: node of each kernel operation.
        outputs: for each kernel operation, its tensors without views, each with its position in the result (None: the result
            itself).
        views: for each view tensor, its base, which is not a view.
        view_node: node that computes a view tensor.
        seeds: for an operation that draws the same random numbers as another operation, the other operation.
        strides: for each new value, the strides of the source that it replaces; in-place updates would keep them.
    """

    calls: Mapping[int, Call]
    tensor_of: Mapping[int, int]
    kernel: Mapping[int, int]
    outputs: Mapping[int, tuple[tuple[int, int | None], ...]]
    views: Mapping[int, int]
    view_node: Mapping[int, int]
    seeds: Mapping[int, int]
    strides: Mapping[int, tuple[int, ...]]


def operation_seed(step: int, op: int) -> int:
    """Seed of an operation in a step: splitmix64 of the two numbers, so independent of schedule and placement."""
    mask = (1 << 64) - 1
    z = (step * 0x9E3779B97F4A7C15 + (op + 1) * 0xD1B54A32D192ED03) & mask
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        z = ((z ^ (z >> shift)) * factor) & mask
    return (z ^ (z >> 31)) >> 1


def _dropout(x: torch.Tensor, p: float, train: bool | None, *, generator: torch.Generator) -> Any:
    """aten.native_dropout with a generator, which the operator does not take."""
    if train is False or p == 0:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    mask = torch.empty_like(x, dtype=torch.bool).bernoulli_(1 - p, generator=generator)
    return x.mul(mask).mul_(1 / (1 - p) if p < 1 else 0.0), mask


def with_strides(value: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """`value`, copied if its strides differ: kernels choose algorithms by strides."""
    if value.stride() == strides:
        return value
    return torch.empty_strided(value.shape, strides, dtype=value.dtype, device=value.device).copy_(value)


def seeded(target: Any) -> Callable[..., Any]:
    """The operator as a function with the keyword `generator`. Raises ImporterError if it cannot take one."""
    if target is torch.ops.aten.native_dropout.default:
        return _dropout
    if target is torch.ops.placekit.attention_dropout.default:
        return with_generator
    names = {a.name for a in target._schema.arguments}
    if "generator" in names:
        return target  # type: ignore[no-any-return]
    packet = target._overloadpacket
    for overload in (getattr(packet, o) for o in packet.overloads()):
        arguments = overload._schema.arguments
        if {a.name for a in arguments} == names | {"generator"} and not any(a.is_out for a in arguments):
            return overload  # type: ignore[no-any-return]
    raise ImporterError(
        f"operator {target} draws random numbers and takes no generator, so its result would depend on the schedule",
        "use torch.bernoulli, torch.rand and the like, or nn.Dropout",
    )


RESHAPE = dict.fromkeys([torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default], torch.reshape)
"""Kernels may return other strides than the traced ones, for which a view fails and a reshape copies."""


class Writer:
    """Writes one function. Lines are (variables assigned, text); a variable is dropped after the last line that reads it."""

    def __init__(self, code: Code, device: Any) -> None:
        self.code, self.device = code, device
        self.globals: dict[str, Any] = {"inf": math.inf, "nan": math.nan}
        self.lines: list[tuple[list[str], str, list[str]]] = []
        self.defined: set[str] = set()

    def line(self, names: Sequence[str], text: str, reads: Sequence[str] = ()) -> None:
        """Add a line that assigns `names` and reads the variables `reads`."""
        self.lines.append((list(names), text, list(reads)))
        self.defined.update(names)

    def constant(self, value: Any, stem: str) -> str:
        """A global name for `value`."""
        name = f"{stem}{len(self.globals)}"
        self.globals[name] = value
        return name

    def literal(self, value: Any, reads: list[str]) -> str:
        """Source text for an argument."""
        if isinstance(value, Ref):
            reads.append(self.value(value.node))
            return reads[-1]
        if isinstance(value, list | tuple):
            inner = ", ".join(self.literal(v, reads) for v in value)
            return f"[{inner}]" if isinstance(value, list) else f"({inner}{',' if len(value) == 1 else ''})"
        if isinstance(value, torch.device) and self.device is not None:
            value = torch.device(self.device)
        if value is None or isinstance(value, bool | int | float | str):
            return repr(value)
        return self.constant(value, "c")

    def call(self, node: int, target: Any = None, extra: str = "") -> tuple[str, list[str]]:
        """Source text of the call of a node, and the variables that it reads."""
        call, reads = self.code.calls[node], list[str]()
        parts = [self.literal(a, reads) for a in call.args]
        parts += [f"{k}={self.literal(v, reads)}" for k, v in call.kwargs.items() if not (extra and k == "generator")]
        function = target or RESHAPE.get(call.target, call.target)
        return f"{self.constant(function, 'f')}({', '.join([*parts, extra] if extra else parts)})", reads

    def value(self, node: int) -> str:
        """Variable that holds the value of a node."""
        tensor = self.code.tensor_of.get(node)
        if tensor is not None:
            return self.tensor(tensor)
        name = f"n{node}"
        if name not in self.defined:
            text, reads = self.call(node)
            self.line([name], f"{name} = {text}", reads)
        return name

    def tensor(self, tensor: int) -> str:
        """Variable that holds a tensor: computed before, recomputed from its base, or read from `values`."""
        name = f"t{tensor}"
        if name in self.defined:
            return name
        base = self.code.views.get(tensor)
        if base is None:
            self.line([name], f"{name} = values[{tensor}]")
        elif f"t{base}" in self.defined:
            text, reads = self.call(self.code.view_node[tensor])
            self.line([name], f"{name} = {text}", reads)
        else:
            view = self.constant(view_function(self.code, tensor), "view")
            self.line([name], f"{name} = values[{tensor}] if {tensor} in values else {view}(values[{base}])")
        return name

    def function(self, arguments: str, result: str, keep: Collection[str]) -> Callable[..., Any]:
        """Compile the lines to a function that returns `result`, an expression of the variables `keep`."""
        seen, text = set(keep), list[str]()
        for names, line, reads in reversed(self.lines):
            dead = [v for v in dict.fromkeys([*reads, *names]) if v not in seen]
            seen.update(dead)
            if dead:
                text.append(f"    del {', '.join(dead)}")
            text.append(f"    {line}")
        source = "\n".join([f"def run({arguments}):", *reversed(text), f"    return {result}"])
        exec(compile(source, "<placekit kernels>", "exec"), self.globals)
        made: Callable[..., Any] = self.globals["run"]
        return made


def view_function(code: Code, tensor: int, device: Any = None) -> Callable[[Any], Any]:
    """Function from the base of a view tensor to the view."""
    writer = Writer(code, device)
    writer.defined.add(f"t{code.views[tensor]}")
    return writer.function(f"t{code.views[tensor]}", writer.tensor(tensor), [f"t{tensor}"])


def kernels_function(
    code: Code, ops: Sequence[int], device: Any = None, keep: Collection[int] | None = None
) -> Callable[..., dict[int, Any]]:
    """`run(values, step=0)`: see `Executable.compile`."""
    writer = Writer(code, device)
    produced: list[int] = []
    for op in ops:
        node, outputs = code.kernel[op], code.outputs[op]
        target, extra = code.calls[node].target, ""
        if is_random(target):
            generator = writer.constant(torch.Generator(device or "cpu"), "generator")
            seed = writer.constant(operation_seed, "seed")
            writer.line([], f"{generator}.manual_seed({seed}(step, {code.seeds.get(op, op)}))")
            target, extra = seeded(target), f"generator={generator}"
        text, reads = writer.call(node, target, extra)
        names = [f"t{t}" for t, _ in outputs]
        if len(outputs) == 1 and outputs[0][1] is None:
            writer.line(names, f"{names[0]} = {text}", reads)
        else:
            writer.line([f"r{node}"], f"r{node} = {text}", reads)
            for name, (_, position) in zip(names, outputs, strict=True):
                writer.line([name], f"{name} = r{node}[{position}]", [f"r{node}"])
        for tensor, _ in outputs:
            if (strides := code.strides.get(tensor)) is not None:
                writer.line(
                    [f"t{tensor}"],
                    f"t{tensor} = {writer.constant(with_strides, 'f')}(t{tensor}, {strides})",
                    [f"t{tensor}"],
                )
            produced.append(tensor)
    wanted = produced if keep is None else [t for t in produced if t in set(keep)]
    result = "{" + ", ".join(f"{t}: t{t}" for t in wanted) + "}"
    return writer.function("values, step=0", result, [f"t{t}" for t in wanted])
