"""Turns the fx graph of a step into a placekit Graph and the Code that runs it."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch.fx.node import map_arg

from placekit_core import Graph, GraphBuilder, Labels
from placekit_torch import operators
from placekit_torch.capture import Captured, Source
from placekit_torch.checkpointing import gradients_awaited, repeated
from placekit_torch.codegen import Call, Code, Ref
from placekit_torch.in_place import InPlace
from placekit_torch.joint import GRADIENT_SUM, TAG, Tag, outside_calls
from placekit_torch.views import Node, Views

Output = tuple[Node, int | None]  # a kernel and the position in its result; or a source, or a smaller view


@dataclass(frozen=True)
class Lowered:
    """A captured step as a graph, and the data needed to run it.

    Attributes:
        graph: the Graph.
        code: how its tensors are computed.
        sources: the sources, each with its tensor.
        updates: for the tensor of each updated source, the tensor that replaces it.
        results: for each result by name, the tensor that it is computed from, and its node in `code`.
    """

    graph: Graph
    code: Code
    sources: tuple[tuple[Source, int], ...]
    updates: Mapping[int, int]
    results: Mapping[str, tuple[int, int]]


def lower(captured: Captured, name: str, attributes: Mapping[str, Any]) -> Lowered:
    """The graph of `captured`; sources first, then kernels in the order of the trace."""
    return _Lowering(captured, name).run(attributes)


class _Lowering:
    def __init__(self, captured: Captured, name: str) -> None:
        self.captured, self.views = captured, Views(captured.graph)
        self.in_place = InPlace(captured, self.views)
        self.builder = GraphBuilder(name)
        self.number: dict[Node, int] = {n: i for i, n in enumerate(captured.graph.nodes)}
        self.nodes: list[Node] = [n for n in captured.graph.nodes if n.op == "call_function"]
        self.kernels = [n for n in self.nodes if n not in self.views and n.target is not operator.getitem]
        self.op: dict[Node, int] = {s.node: i for i, s in enumerate(captured.sources)}
        self.op |= {n: len(self.op) + i for i, n in enumerate(self.kernels)}
        self.tensor: dict[Output, int] = {}
        self.replaces = {self._output(n): s.node for s in captured.sources if (n := captured.updates.get(s.name))}
        self.repeated = repeated(self.nodes)
        self.awaited = gradients_awaited(captured.graph)
        self.names: Counter[str] = Counter()
        self.signatures: list[str] = []
        self.call_paths: list[str] = []
        self.launches: list[float] = []

    def run(self, attributes: Mapping[str, Any]) -> Lowered:
        captured, builder = self.captured, self.builder
        self.forward_of = self._forward_of()
        self.tags: dict[Node, Tag] = {}
        self.small: dict[Node, list[Node]] = {}  # base -> its smaller views that are read
        for node in dict.fromkeys(self._read(n) for n in self._all_read()):
            if node in self.views:
                self.small.setdefault(self.views.base[node], []).append(node)
        colocate = self._colocation()
        for source in captured.sources:
            self._add_source(source, colocate[self.op[source.node]])
        outputs = {}
        for node in self.kernels:
            outputs[self.op[node]] = self._add_kernel(node, colocate[self.op[node]])
        updates = {self.tensor[source, None]: self.tensor[new] for new, source in self.replaces.items()}
        builder.columns = {
            "signature": Labels.of(self.signatures),
            "forward_of": self.forward_of,
            "call_path": Labels.of(self.call_paths),
        }
        if any(self.launches[self.op[n]] != 1.0 for n in self.kernels):
            builder.columns["launches"] = np.asarray(self.launches)
        builder.attributes = {
            **attributes,
            **({"unsplit": captured.unsplit} if captured.unsplit else {}),
            **({"stateless": captured.stateless} if captured.stateless else {}),
            "traced_operations": captured.operations,
            "kernels": len(self.kernels),
            "views": len(self.nodes) - len(self.kernels),
        }
        sources = tuple((s, self.tensor[s.node, None]) for s in captured.sources)
        results = {k: (self._tensor_of(self._read(n)), self.number[n]) for k, n in captured.results.items()}
        return Lowered(builder.build(), self._code(outputs), sources, updates, results)

    def _all_read(self) -> list[Node]:
        read = [a for n in self.kernels for a in n.all_input_nodes]
        return [*read, *self.awaited.values(), *self.captured.results.values()]

    def _read(self, node: Node) -> Node:
        return self.views.tensor(node)

    def _output(self, node: Node) -> Output:
        """Where the tensor of a source, of a kernel's output, or of a smaller view comes from."""
        if node not in self.views and node.target is operator.getitem:
            return node.all_input_nodes[0], cast(int, node.args[1])
        return node, None

    def _tensor_of(self, node: Node) -> int:
        return self.tensor[self._output(node)]

    def _add_tensor(self, op: int, key: Output, value: torch.Tensor, storage: int = -1) -> int:
        if key in self.replaces:
            storage = self.tensor[self.replaces[key], None]
        elif key[0] in self.in_place.memory:
            storage = self.builder.tensors[self._tensor_of(self.in_place.memory[key[0]])][2]
        self.tensor[key] = self.builder.output(op, operators.size(value), tuple(value.shape), storage)
        return self.tensor[key]

    def _add_views(self, op: int, base: Node) -> None:
        for view in self.small.get(base, ()):
            _, _, storage, _ = self.builder.tensors[self._tensor_of(base)]
            self._add_tensor(op, (view, None), view.meta["val"], storage)

    def _unique(self, name: str) -> str:
        self.names[name] += 1
        return name if self.names[name] == 1 else self._unique(f"{name}#{self.names[name]}")

    def _add_source(self, source: Source, colocate: int) -> None:
        value, op = source.node.meta["val"], self.op[source.node]
        self.builder.add(
            self._unique(source.name), op_type=source.kind, op_class="source", kernel=False, colocate=colocate,
            dtype=str(value.dtype).removeprefix("torch."), persistent_bytes=operators.size(value),
            phase="update" if source.kind == "state" else "forward",
            module=source.module,
        )  # fmt: skip
        self._add_tensor(op, (source.node, None), value)
        self._add_views(op, source.node)
        self.signatures.append("")
        self.launches.append(0.0)
        self.call_paths.append(outside_calls(source.module).call_path)

    def _add_kernel(self, node: Node, colocate: int) -> tuple[tuple[int, int | None], ...]:
        op, value, target = self.op[node], node.meta["val"], node.target
        args, kwargs = map_arg((node.args, dict(node.kwargs)), lambda n: n.meta["val"])
        inputs = list(dict.fromkeys(self._tensor_of(self._read(n)) for n in node.all_input_nodes))
        awaited = [self._tensor_of(self._read(self.awaited[node]))] if node in self.awaited else []
        taken, written = operators.tensors((args, kwargs)), operators.tensors(value)
        if node in self.in_place.free or operators.is_empty(target):
            moved = 0
        elif node in self.in_place.memory and operators.writes_part(target):
            moved = operators.part_bytes(target, args, kwargs)
        else:
            moved = operators.bytes_read(target, [self.builder.tensors[t][1] for t in inputs], written)
            moved += sum(map(operators.size, written))
        module, call, call_path = self._tag(node)
        phase = node.meta["phase"]
        place = node.meta.get("owner") or (f"{module}@{call}" if call else module)
        name = "/".join(filter(None, [place, operators.base_name(target)]))
        self.builder.add(
            self._unique(name if phase == "forward" else f"{name}:{phase}"),
            op_type=operators.op_type(target), op_class=operators.op_class(target, [*taken, *written]),
            dtype=operators.compute_dtype(taken, written), inputs=list(dict.fromkeys([*inputs, *awaited])),
            flops=operators.flops(target, args, kwargs, value),
            bytes_accessed=float(moved),
            phase=phase, module=module, call=call, colocate=colocate,
        )  # fmt: skip
        self.signatures.append(operators.signature(target, args, kwargs))
        runs = node not in self.in_place.free and not operators.is_empty(target)
        self.launches.append(node.meta.get("launches", 1.0) if runs else 0.0)
        self.call_paths.append(call_path)
        if isinstance(value, torch.Tensor):
            outputs: list[tuple[int, int | None]] = [(self._add_tensor(op, (node, None), value), None)]
        else:
            parts = [(i, v) for i, v in enumerate(value) if isinstance(v, torch.Tensor)]
            outputs = [(self._add_tensor(op, (node, i), v), i) for i, v in parts]
        self._add_views(op, node)
        for part in node.users:
            if part.target is operator.getitem:
                self._add_views(op, part)
        return tuple(outputs)

    def _tag(self, node: Node) -> Tag:
        """The tag of an operation. A gradient has its forward operation's tag, a sum of gradients the tag of its last term.

        The sum can run once its last term is there. So along a residual connection, each block has the sum at its own input.
        """
        if node not in self.tags:
            own = node.meta.get("custom", {}).get(TAG)
            forward = self.forward_of[self.op[node]]
            if forward >= 0:
                own = self.tags[self.kernels[forward - len(self.captured.sources)]]
            elif own is None or node.meta.get(GRADIENT_SUM):
                terms = sorted(
                    (k for k in map(self._kernel, node.all_input_nodes) if k in self.tags), key=self.op.__getitem__
                )
                own = self.tags[terms[-1 if node.meta.get(GRADIENT_SUM) else 0]] if terms else own or Tag()
            self.tags[node] = own
        return self.tags[node]

    def _kernel(self, node: Node) -> Node:
        """The kernel or source behind a view or a part of an output."""
        node = self.views.base.get(node, node)
        return node.all_input_nodes[0] if node.target is operator.getitem else node

    def _forward_of(self) -> np.ndarray[Any, np.dtype[np.int32]]:
        """[n] forward operation of each backward one, found by autograd's sequence number, which both share; else -1.

        The gradient of a view belongs to the operation that computed the view's base, else to the first reader of the view.
        """
        first: dict[int, Node] = {}
        reader: dict[Node, Node] = {}
        for node in self.nodes:
            if node.meta["phase"] == "forward":
                for number in node.meta.get("seq_nrs", [node.meta.get("seq_nr", -1)]):
                    first.setdefault(number, node)
                if node in self.op:
                    for read in node.all_input_nodes:
                        while read in self.views and read not in reader:
                            reader[read] = node
                            read = self.views.source(read) or read
        result = np.full(len(self.op), -1, np.int32)
        for node in self.kernels:
            number = node.meta.get("seq_nr", -1)
            if node in self.repeated:
                result[self.op[node]] = self.op[self.repeated[node]]
            elif node.meta["phase"] == "backward" and number >= 0 and not node.meta.get(GRADIENT_SUM):
                forward = first.get(number)
                if forward is not None:
                    kernel = self._kernel(forward)
                    found = kernel if kernel in self.op and kernel.op == "call_function" else reader.get(forward)
                    result[self.op[node]] = -1 if found is None else self.op[found]
        return result

    def _colocation(self) -> list[int]:
        """[n] co-location sets: a parameter, its state and its update; a buffer, or a cache, and its new value's kernel; a kernel
        and the kernels that write into its memory.
        """
        parent = list(range(len(self.op)))

        def root(v: int) -> int:
            while parent[v] != v:
                parent[v] = v = parent[parent[v]]
            return v

        home = {s.name: self.op[s.node] for s in self.captured.sources}
        for source in self.captured.sources:
            parent[root(home[source.name])] = root(home[source.owner])
        for node in self.kernels:
            if "owner" in node.meta:
                parent[root(self.op[node])] = root(home[node.meta["owner"]])
        for name, node in [*self.captured.updates.items(), *self.captured.together.items()]:
            parent[root(self.op[self._kernel(node)])] = root(home[name])
        for node, memory in self.in_place.memory.items():
            parent[root(self.op[node])] = root(self.op[self._kernel(memory)])
        roots = [root(v) for v in range(len(parent))]
        shared = {r for r, count in Counter(roots).items() if count > 1}
        order = {r: i for i, r in enumerate(dict.fromkeys(r for r in roots if r in shared))}
        return [order.get(r, -1) for r in roots]

    def _code(self, outputs: Mapping[int, tuple[tuple[int, int | None], ...]]) -> Code:
        number, views = self.number, self.views
        calls, tensor_of = {}, {}

        def reference(node: Node) -> Any:
            return Ref(number[node])

        for node in self.captured.graph.nodes:
            if node.op == "call_function" and (node in self.op or node in views):
                args, kwargs = map_arg((node.args, dict(node.kwargs)), reference)
                calls[number[node]] = Call(node.target, tuple(args), dict(kwargs))
            exact = views.exact(node)
            if exact is not None and (exact, None) in self.tensor:
                tensor_of[number[node]] = self.tensor[exact, None]
            elif node.target is operator.getitem and node not in views:
                tensor_of[number[node]] = self._tensor_of(node)
        small = [(self.tensor[v, None], v, base) for base, found in self.small.items() for v in found]
        return Code(
            calls,
            tensor_of,
            kernel={self.op[n]: number[n] for n in self.kernels},
            outputs=dict(outputs),
            views={t: self._tensor_of(base) for t, _, base in small},
            view_node={t: number[v] for t, v, _ in small},
            seeds={self.op[n]: self.op[first] for n, first in self.repeated.items() if n in self.op},
            strides={self.tensor[new]: tuple(source.meta["val"].stride()) for new, source in self.replaces.items()},
        )
