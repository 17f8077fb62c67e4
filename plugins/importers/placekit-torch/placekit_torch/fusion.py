"""Joins kernels to one operation: the updates of fused optimisers, and chains of pointwise operations.

A `Fused` is the target of a node in place of an operator. It calls its members in their order, so results are the same to
the last bit. Its FLOPs are those of its members; its bytes are those of the tensors that enter and leave.
"""

from __future__ import annotations

import heapq
import operator
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch
from torch.fx.node import map_arg

from placekit_torch import operators
from placekit_torch.codegen import RESHAPE, Ref
from placekit_torch.joint import ALIAS, GRADIENT_SUM, NUMBERS, REGION, REPEATS, TAG, Tag

Node = torch.fx.Node
_COPIES = frozenset(["_to_copy", "clone", "copy", "scalar_tensor", "ones_like", "zeros_like", "full_like"])


class Fused:
    """Kernels and views that run as one.

    Attributes:
        members: target, arguments and keywords of each, in order. `Ref(i)` is the value number i: first come the inputs,
            then the members' results.
        outputs: numbers of the values that are returned.
    """

    namespace = "placekit"

    def __init__(self, members: Sequence[tuple[Any, Any, Any]], outputs: Sequence[int]) -> None:
        self.members, self.outputs = tuple(members), tuple(outputs)
        kernels = [t for t, *_ in members if t is not operator.getitem and not getattr(t, "is_view", False)]
        self.tags = (torch.Tag.pointwise,) if all(map(is_fusible, kernels)) else ()
        self.names = tuple(map(operators.base_name, kernels))
        self.__name__ = "_".join(["fused", *list(dict.fromkeys(name.strip("_") for name in self.names))[:3]])

    def _run(self, values: list[Any]) -> Iterator[tuple[Any, Any, Any]]:
        """Run the members on the inputs `values`, to which their results are added; yields each with its arguments."""
        device = values[0].device

        def given(argument: Any) -> Any:
            if isinstance(argument, Ref):
                return values[argument.node]
            if isinstance(argument, list | tuple):
                return type(argument)(map(given, argument))
            return device if isinstance(argument, torch.device) else argument

        for target, args, kwargs in self.members:
            own, named = given(args), {k: given(v) for k, v in kwargs.items()}
            values.append(RESHAPE.get(target, target)(*own, **named))
            yield target, own, named

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        """The results."""
        values = list(inputs)
        for _ in self._run(values):
            pass
        return tuple(values[i] for i in self.outputs)

    def flops(self, inputs: Sequence[Any]) -> float:
        """FLOPs of all members; `inputs` are fake."""
        values = list(inputs)
        with inputs[0].fake_mode, torch.no_grad():
            return sum(
                operators.flops(target, args, kwargs, values[-1])
                for target, args, kwargs in self._run(values)
                if target is not operator.getitem and not getattr(target, "is_view", False)
            )


def is_fusible(target: Any) -> bool:
    """Whether a kernel is pointwise, or a copy in another type or layout."""
    return operators.is_pointwise(target) or operators.base_name(target) in _COPIES


def is_part(node: Node) -> bool:
    """Whether a node is a view, or a part of the result of another one."""
    return node.target is operator.getitem or ALIAS in node.meta


def source(node: Node) -> Node:
    """The node that a view or part reads."""
    place: int = node.meta.get(ALIAS, 0)
    return node.all_input_nodes[place]


def kernel_of(node: Node) -> Node:
    """The kernel, or source, behind views and parts."""
    while node.op == "call_function" and is_part(node):
        node = source(node)
    return node


def fuse(graph: torch.fx.Graph, kernels: Sequence[Node], needed: Collection[Node]) -> dict[Node, Node]:
    """Replace `kernels`, in their order, by one node after the last of them.

    Its results are the values in `needed` and the values that other nodes read; returns the new node of each. Views of
    inner values are repeated inside, and stay outside where other nodes read them. Call `sort` afterwards.
    """
    group = set(kernels)
    numbers: dict[Node, int] = {}
    members: list[tuple[Any, Any, Any]] = []
    inside: list[Node] = []
    inputs = list(dict.fromkeys(i for n in kernels for i in _outside(n, group)))
    numbers.update((n, i) for i, n in enumerate(inputs))

    def reference(node: Node) -> Any:
        return Ref(numbers[node])

    def add(node: Node) -> None:
        for read in node.all_input_nodes:
            if read not in numbers:
                add(read)
        numbers[node] = len(numbers)
        inside.append(node)
        args, kwargs = map_arg((node.args, dict(node.kwargs)), reference)
        members.append((node.target, args, kwargs))

    for node in kernels:
        if node not in numbers:
            add(node)
    results = [n for n in _values(kernels) if n in needed or any(_is_read(u, group, needed) for u in n.users)]
    for node in results:
        if node not in numbers:  # a part that only others read
            add(node)
    with graph.inserting_after(kernels[-1]):
        fused = graph.call_function(Fused(members, [numbers[n] for n in results]), tuple(inputs))
    last = kernels[-1]
    fused.meta = {k: v for k, v in last.meta.items() if k in ("phase", "custom", "owner", "partitioner_tag")}
    if regions := [n.meta[REGION] for n in kernels if REGION in n.meta]:
        fused.meta[REGION] = regions[0]
    fused.meta[NUMBERS] = tuple(number for n in kernels for number in n.meta.get(NUMBERS, ()))
    if repeats := [n.meta[REPEATS] for n in kernels if REPEATS in n.meta]:
        fused.meta[REPEATS] = repeats[0]
    fused.meta["val"] = tuple(n.meta["val"] for n in results)
    fused.meta["seq_nr"] = kernels[0].meta.get("seq_nr", -1)
    fused.meta["seq_nrs"] = [n.meta.get("seq_nr", -1) for n in kernels]
    made: dict[Node, Node] = {}
    after = fused
    for i, node in enumerate(results):
        with graph.inserting_after(after):
            made[node] = after = graph.call_function(operator.getitem, (fused, i))
        after.meta = {"val": node.meta["val"], "phase": last.meta.get("phase")}
        node.replace_all_uses_with(after, lambda user: user not in group and user is not fused)
    for node in reversed(inside):
        if not node.users:
            graph.erase_node(node)
    return made


def _outside(node: Node, group: set[Node]) -> list[Node]:
    """The values that a member reads from outside: views of members count as inside."""
    return [i for i in node.all_input_nodes if kernel_of(i) not in group]


def _values(kernels: Sequence[Node]) -> list[Node]:
    """The kernels with one result, and the parts of those with several."""
    found = []
    for node in kernels:
        parts = [u for u in node.users if u.target is operator.getitem and ALIAS not in node.meta]
        found += [node] if isinstance(node.meta["val"], torch.Tensor) else parts
    return found


def _is_read(user: Node, group: set[Node], needed: Collection[Node]) -> bool:
    """Whether a reader of a member's value needs it outside."""
    if user in group:
        return False
    if user.op == "call_function" and is_part(user) and user not in needed:
        return any(_is_read(u, group, needed) for u in user.users)
    return True


def sort(graph: torch.fx.Graph) -> None:
    """Sort the nodes topologically, close to their present order."""
    nodes = list(graph.nodes)
    place = {n: i for i, n in enumerate(nodes)}
    waits = {n: len(n.all_input_nodes) for n in nodes}
    ready = [place[n] for n in nodes if not waits[n]]
    heapq.heapify(ready)
    while ready:
        node = nodes[heapq.heappop(ready)]
        graph._root.prepend(node)
        for user in node.users:
            waits[user] -= 1
            if not waits[user]:
                heapq.heappush(ready, place[user])


class _Groups:
    """Groups of pointwise kernels, grown in the order of the graph without cycles among groups."""

    def __init__(self) -> None:
        self.of: dict[Node, int] = {}
        self.members: list[list[Node]] = []
        self.keys: list[Any] = []
        self.reads: list[set[int]] = []  # groups that a group reads, through nodes that are in no group
        self.near: dict[Node, set[int]] = {}  # the same of a node that is in no group
        self.first: list[int] = []
        self.last: list[int] = []

    def _nearest(self, node: Node) -> set[int]:
        return {self.of[node]} if node in self.of else self.near.get(node, set())

    def add(self, node: Node, place: int, key: Any) -> None:
        """Add a kernel to a group with this key; a kernel with key None joins no group."""
        read = [kernel_of(i) for i in node.all_input_nodes]
        if key is None:
            self.near[node] = set().union(*map(self._nearest, read))
            return
        for g in dict.fromkeys(self.of[i] for i in read if i in self.of and self.keys[self.of[i]] == key):
            others = set().union(*(self._nearest(i) for i in read if self.of.get(i) != g))
            if not self._reaches(others, g):
                break
        else:
            g, others = len(self.members), set().union(*map(self._nearest, read))
            self.members.append([])
            self.keys.append(key)
            self.reads.append(set())
            self.first.append(place)
            self.last.append(place)
        self.members[g].append(node)
        self.of[node] = g
        self.reads[g] |= others
        self.last[g] = place

    def _reaches(self, start: set[int], target: int) -> bool:
        """Whether groups depend on the group `target`; those whose last kernel comes before its first cannot."""
        seen, todo = set(start), list(start)
        while todo:
            g = todo.pop()
            if g == target:
                return True
            new = {h for h in self.reads[g] if h not in seen and self.last[h] >= self.first[target]}
            seen |= new
            todo += new
        return False


def _key(node: Node) -> Any:
    """The key that all kernels of a group share; None if the kernel is not pointwise."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or not node.all_input_nodes or node.meta.get(GRADIENT_SUM):
        return None
    if operators.is_random(node.target) or not is_fusible(node.target):
        return None
    if any(operators.writes_part(u.target) and u.args[1] is node for u in node.users):
        return None  # it writes into a part of another tensor
    tag = node.meta.get("custom", {}).get(TAG, Tag())
    return node.meta.get("phase"), node.meta.get(REGION), tag, node.meta.get("owner"), value.numel()


def fuse_chains(captured: Any) -> None:
    """Make connected pointwise kernels of one phase, call of a module and size one node each, where no cycle results.

    `captured` is a `placekit_torch.capture.Captured`, which is changed.
    """
    graph, needed = captured.graph, {*captured.updates.values(), *captured.results.values()}
    groups = _Groups()
    for place, node in enumerate(graph.nodes):
        if node.op == "call_function" and not is_part(node):
            groups.add(node, place, _key(node))
    made: dict[Node, Node] = {}
    for members in groups.members:
        if len(members) > 1:
            made.update(fuse(graph, members, needed))
    sort(graph)
    captured.updates = {k: made.get(n, n) for k, n in captured.updates.items()}
    captured.results = {k: made.get(n, n) for k, n in captured.results.items()}
