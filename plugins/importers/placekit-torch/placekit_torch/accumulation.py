"""Gradient accumulation: the forward and backward pass once per micro-batch, one after another, then one update.

Each micro-batch gets its own copy of the traced operations. Its first operations also read a gradient of the micro-batch
before, as PyTorch's loop over micro-batches starts one forward pass after the other's backward pass. Without this, a graph
lets all forward passes run first, and keep their activations. The gradients are summed at their parameters.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence

import torch

from placekit_core import ImporterError
from placekit_torch.fusion import is_part, kernel_of
from placekit_torch.joint import (
    AFTER,
    ALIAS,
    GRADIENT_SUM,
    NUMBERS,
    REGION,
    REPEATS,
    TAG,
    Joint,
    Tag,
    own_name,
    with_value,
)

Node = torch.fx.Node
aten = torch.ops.aten
_SMALL = 2**20
_NUMBERS = itertools.count(-1, -1)  # traced operations have numbers from 0


def micro_batches(tensors: Sequence[torch.Tensor], parts: int, name: str) -> list[torch.Tensor]:
    """Tensors like one of `parts` equal parts of each tensor along its first dimension, if that is the batch.

    The batch is the first dimension of the first tensor that has one. Other tensors are those of every micro-batch.
    Raises ImporterError.
    """
    batch = next((t.shape[0] for t in tensors if t.dim()), 0)
    if not batch or batch % parts:
        raise ImporterError(
            f"{name} has a batch of {batch}, which cannot be split into {parts} micro-batches",
            "importer.accumulate must divide the first dimension of the first input",
        )
    return [_like_rows(t, batch // parts) if t.dim() and t.shape[0] == batch else t for t in tensors]


def _like_rows(tensor: torch.Tensor, count: int) -> torch.Tensor:
    with tensor.fake_mode, torch.no_grad():  # type: ignore[attr-defined]
        made = torch.empty_strided((count, *tensor.shape[1:]), tensor.stride(), dtype=tensor.dtype)
    return made.requires_grad_(tensor.requires_grad)


def _rows(tensor: torch.Tensor, first: int, count: int) -> torch.Tensor:
    with tensor.fake_mode, torch.no_grad():  # type: ignore[attr-defined]
        return tensor[first : first + count]


def accumulate(joint: Joint, whole: Sequence[torch.Tensor], parts: int) -> None:
    """Repeat the operations of `joint`, traced with one of `micro_batches(whole, parts)`, for all of them."""
    traced = [n for n in joint.graph.nodes if n.op == "call_function"]
    rows = _split_inputs(joint, whole, parts)
    first = _Copy({})
    first.gradients, first.outputs = dict(joint.gradients), list(joint.outputs)
    first.buffers = dict(joint.new_buffers)
    sums, copies = dict(joint.gradients), [first]
    calls: dict[str, int] = defaultdict(int)
    for node in traced:
        tag = node.meta.get("custom", {}).get(TAG, Tag())
        names = tag.module.split(".") if tag.module else []
        for i, call in enumerate(int(c) for c in tag.call_path.split(".") if c):
            path = ".".join(names[: i + 1])
            calls[path] = max(calls[path], call + 1)
    for part in range(1, parts):
        made = _copied(joint, traced, rows, copies[-1], part, calls)
        for key, gradient in made.gradients.items():
            sums[key] = _sum(joint.graph, sums[key], gradient, own_name(key))
        copies.append(made)
    joint.gradients, joint.new_buffers = sums, copies[-1].buffers
    (total, *others) = [copy.outputs[0] for copy in copies]
    assert total is not None
    for loss in others:
        with joint.graph.inserting_after(loss):
            total = joint.graph.call_function(aten.add.Tensor, (total, loss))
        total.meta = {"custom": {TAG: Tag("loss")}, GRADIENT_SUM: True}
        with_value(total)
    joint.outputs = [total]


class _Copy:
    """The nodes of one micro-batch by those of the first, and its results."""

    def __init__(self, nodes: dict[Node, Node]) -> None:
        self.nodes = nodes
        self.gradients: dict[str, Node] = {}
        self.buffers: dict[str, Node] = {}
        self.outputs: list[Node | None] = []


def _split_inputs(joint: Joint, whole: Sequence[torch.Tensor], parts: int) -> dict[Node, list[Node]]:
    """Make the inputs whole; returns, for the rows that the first micro-batch reads, those of all micro-batches."""
    found = {}
    for i, old in list(joint.inputs.items()):
        if old.meta["val"].shape == whole[i].shape:
            continue
        with joint.graph.inserting_before(old):
            new = joint.graph.placeholder(f"{old.name}_whole")
        new.meta = {**old.meta, "val": whole[i]}
        count = old.meta["val"].shape[0]
        rows: list[Node] = []
        for part in reversed(range(parts)):
            with joint.graph.inserting_before(next(n for n in joint.graph.nodes if n.op == "call_function")):
                row = joint.graph.call_function(aten.slice.Tensor, (new, 0, part * count, (part + 1) * count))
            row.meta = {"val": _rows(whole[i], part * count, count), ALIAS: 0, "custom": {TAG: Tag()}}
            rows.insert(0, row)
        old.replace_all_uses_with(rows[0])
        joint.graph.erase_node(old)
        joint.inputs[i] = new
        found[rows[0]] = rows
    return found


def _copied(
    joint: Joint, traced: Sequence[Node], rows: dict[Node, list[Node]], last: _Copy, part: int, calls: dict[str, int]
) -> _Copy:
    nodes = {first: of_part[part] for first, of_part in rows.items()}
    nodes.update((joint.buffers[key], value) for key, value in last.buffers.items())
    done = _late_gradient(last)
    regions: dict[int, int] = defaultdict(lambda: next(_NUMBERS))
    numbers: dict[int, int] = defaultdict(lambda: next(_NUMBERS))
    for node in traced:
        new = nodes[node] = joint.graph.node_copy(node, lambda n: nodes.get(n, n))
        meta = new.meta
        meta["seq_nr"] = meta.get("seq_nr", -1) + part * 10**9 if meta.get("seq_nr", -1) >= 0 else -1
        if NUMBERS in meta:
            meta[NUMBERS] = tuple(numbers[n] for n in meta[NUMBERS])
        for key, fresh in ((REPEATS, numbers), (REGION, regions)):
            if key in meta:
                meta[key] = fresh[meta[key]]
        tag = meta.get("custom", {}).get(TAG)
        if tag is not None:
            meta["custom"] = {**meta["custom"], TAG: _later(tag, part, calls)}
    for node in traced:
        inside = (nodes[i] for i in node.all_input_nodes if i.op == "call_function" and i not in rows)
        if not is_part(node) and all(kernel_of(i).op != "call_function" for i in inside):
            nodes[node].meta[AFTER] = done
    made = _Copy(nodes)
    made.gradients = {k: nodes[n] for k, n in joint.gradients.items()}
    made.buffers = {k: nodes.get(n, n) for k, n in joint.new_buffers.items()}
    made.outputs = [nodes[n] for n in joint.outputs if n is not None]
    return made


def _late_gradient(copy: _Copy) -> int:
    """The number of the last small gradient of a parameter, or of the last one; small, because it may be sent."""
    place = {n: i for i, n in enumerate(next(iter(copy.gradients.values())).graph.nodes)}
    late = sorted(copy.gradients.values(), key=place.__getitem__)
    small = [n for n in late if n.meta["val"].numel() * n.meta["val"].element_size() <= _SMALL]
    kernel = kernel_of((small or late)[-1])
    kernel.meta[NUMBERS] = (*kernel.meta.get(NUMBERS, ()), number := next(_NUMBERS))
    return number


def _later(tag: Tag, part: int, calls: dict[str, int]) -> Tag:
    """The tag of the same operation of a later micro-batch."""
    names = tag.module.split(".") if tag.module else []
    path = [int(c) for c in tag.call_path.split(".") if c]
    moved = [c + part * calls[".".join(names[: i + 1])] for i, c in enumerate(path)]
    return Tag(tag.module, moved[-1] if moved else tag.call, ".".join(map(str, moved)))


def _sum(graph: torch.fx.Graph, total: Node, gradient: Node, owner: str) -> Node:
    with graph.inserting_after(gradient):
        both = graph.call_function(aten.add.Tensor, (total, gradient))
    both.meta = {"partitioner_tag": "is_backward", "seq_nr": -1, GRADIENT_SUM: True, "owner": owner}
    return with_value(both)
