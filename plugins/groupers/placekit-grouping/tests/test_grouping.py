"""The groupers: partitions that keep what belongs together, without cycles in the forward phase."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings, strategies as st
from placekit_grouping.groupers import (
    ChainsGrouper,
    ColocationGrouper,
    HeavyEdgeGrouper,
    MetisGrouper,
    ModuleGrouper,
)
from placekit_layers.units import Units
from placekit_testing.strategies import random_step

from placekit_core import Graph, GraphBuilder, Grouping, quotient

RNG = np.random.default_rng(0)
GROUPERS = [
    (ColocationGrouper, {}),
    (ColocationGrouper, {"keep_branches": True}),
    (ModuleGrouper, {}),
    (ModuleGrouper, {"depth": 1}),
    (ModuleGrouper, {"blocks": ["a", "c.*"]}),
    (ChainsGrouper, {}),
    (HeavyEdgeGrouper, {}),
    (MetisGrouper, {}),
]


def has_cycle(graph: Graph, grouping: Grouping) -> bool:
    """Whether groups of forward kernels (those that read or feed another) wait for each other: by walking."""
    forward = graph.kernel & (graph.phase == 0)
    u, v = graph.op_edges
    keep = forward[u] & forward[v]
    pairs = set(zip(grouping.group_of[u[keep]].tolist(), grouping.group_of[v[keep]].tolist(), strict=True))
    after: dict[int, set[int]] = {}
    for x, y in pairs:
        if x != y:
            after.setdefault(x, set()).add(y)
    left = set(after) | {y for ys in after.values() for y in ys}
    while left:
        free = {x for x in left if not (after.get(x, set()) & left)}
        if not free:
            return True
        left -= free
    return False


def effective(graph: Graph, op: int) -> set[str]:
    return set(graph.allowed[op].split("|")) if graph.allowed[op] else {"cpu", "gpu"}


def common_types(graph: Graph, members: Any) -> set[str]:
    return set.intersection(*(effective(graph, int(v)) for v in members))


@given(st.integers(0, 2**32), st.integers(1, 40), st.sampled_from(GROUPERS), st.sampled_from([None, 1, 3, 8]))
@settings(max_examples=100, deadline=None)
def test_any_training_step(seed: int, n: int, which: Any, limit: int | None) -> None:
    graph = random_step(np.random.default_rng(seed), n)
    options = which[1] | ({} if limit is None else {"max_groups": limit})
    grouper = which[0](**options)
    grouping = grouper.group(graph, RNG).check(graph)
    assert not has_cycle(graph, grouping)
    assert len(grouping.names) == grouping.count
    assert all(grouping.names)
    again = which[0](**options).group(graph, np.random.default_rng(9))
    assert again.group_of.tolist() == grouping.group_of.tolist()
    assert again.names == grouping.names
    quotient(graph, grouping)
    # a group can run wherever its most limited co-location set can
    finest = Units.build(graph)
    for group in range(grouping.count):
        members = np.flatnonzero(grouping.group_of == group)
        smallest = min((common_types(graph, np.flatnonzero(finest.of == u)) for u in set(finest.of[members].tolist())),
                       key=len)  # fmt: skip
        assert common_types(graph, members) == smallest
    if limit is not None and all(effective(graph, v) == {"cpu", "gpu"} for v in range(graph.n)):
        assert grouping.count <= limit


def members(graph: Graph, grouping: Grouping) -> list[set[str]]:
    return [
        {graph.op_name[v] for v in np.flatnonzero(grouping.group_of == g)} for g in range(grouping.count)
    ]  # fmt: skip


def two_branches() -> Graph:
    """x -> stem -> (a1 -> a2, b1) -> cat -> loss, with parameters, gradients and updates."""
    b = GraphBuilder("branches")
    forward_of: dict[str, str] = {}
    x = b.source("x", 8, op_type="input")
    w = b.source("w", 99, colocate=0)
    state = b.source("w.square_avg", 99, op_type="state", colocate=0)
    (stem,) = b.add("stem", inputs=[x], outputs=[8], module="stem")
    (a1,) = b.add("a1", inputs=[stem, w], outputs=[8], module="branch_a.conv")
    (a2,) = b.add("a2", inputs=[a1], outputs=[8], module="branch_a.relu")
    (b1,) = b.add("b1", inputs=[stem], outputs=[8], module="branch_b")
    (cat,) = b.add("cat", inputs=[a2, b1], outputs=[16])
    (loss,) = b.add("loss", inputs=[cat], outputs=[4], module="head")
    (g_cat,) = b.add("g_cat", inputs=[loss], outputs=[16], phase="backward")
    (g_a2,) = b.add("g_a2", inputs=[g_cat, a2], outputs=[8], phase="backward", module="branch_a.relu")
    (g_w,) = b.add("g_w", inputs=[g_a2, stem], outputs=[99], phase="backward", module="branch_a.conv")
    update = len(b.operations)
    b.add("update", inputs=[w, state, g_w], phase="update", colocate=0)
    b.output(update, 99, storage=w)
    forward_of = {"g_cat": "cat", "g_a2": "a2", "g_w": "a1"}
    names = [o.name for o in b.operations]
    b.columns["forward_of"] = np.asarray(
        [names.index(forward_of[m]) if m in forward_of else -1 for m in names], np.int32
    )
    return b.build()


def test_colocation_by_hand() -> None:
    """The stem has two consumers; everything after it has one, so the paper's rule makes one group of it."""
    graph = two_branches()
    grouping = ColocationGrouper().group(graph, RNG)
    tail = {"a1", "a2", "b1", "cat", "loss", "g_cat", "g_a2", "g_w", "w", "w.square_avg", "update"}
    assert members(graph, grouping) == [{"x", "stem"}, tail]


def test_colocation_that_keeps_branches() -> None:
    graph = two_branches()
    grouping = ColocationGrouper(keep_branches=True).group(graph, RNG)
    assert members(graph, grouping) == [
        {"x", "stem"}, {"w", "w.square_avg", "a1", "a2", "g_a2", "g_w", "update"}, {"b1"}, {"cat", "loss", "g_cat"},
    ]  # fmt: skip


def test_modules_by_hand() -> None:
    """`cat` has no module: it goes with what it reads most bytes from (the last of equals)."""
    graph = two_branches()
    grouping = ModuleGrouper().group(graph, RNG)
    assert members(graph, grouping) == [
        {"x", "stem"}, {"w", "w.square_avg", "a1", "g_w", "update"}, {"a2", "g_a2"}, {"b1", "cat", "g_cat"}, {"loss"},
    ]  # fmt: skip
    assert grouping.names == ("stem", "branch_a.conv", "branch_a.relu", "branch_b", "head")
    shallow = ModuleGrouper(depth=1).group(graph, RNG)
    # branch_b holds cat, which waits for branch_a, which does not wait for branch_b: no cycle, nothing to split
    assert shallow.names == ("stem", "branch_a", "branch_b", "head")


def test_calls_of_a_module_are_groups_of_their_own() -> None:
    b = GraphBuilder("cells")
    w = b.source("w", 9, colocate=0)
    (h,) = b.add("c0", inputs=[w], outputs=[1], module="cell", call=0)
    (h,) = b.add("c1", inputs=[w, h], outputs=[1], module="cell", call=1)
    b.add("c2", inputs=[w, h], module="cell", call=2)
    grouping = ModuleGrouper().group(b.build(), RNG)
    assert grouping.names == ("cell", "cell@1", "cell@2")
    assert grouping.group_of.tolist() == [0, 0, 1, 2]  # the shared parameter goes with the first reader


def test_interleaved_modules_are_split() -> None:
    """m reads n reads m: one of the two must be split, and only where it has to be."""
    b = GraphBuilder("interleaved")
    tensor: list[int] = []
    for i, module in enumerate("mmnmn"):
        tensor = b.add(f"op{i}", inputs=tensor, outputs=[1], module=module)
    grouping = ModuleGrouper().group(b.build(), RNG)
    assert grouping.group_of.tolist() == [0, 0, 1, 2, 3]
    assert grouping.names == ("m", "n", "m (2)", "n (2)")


def test_cpu_operations_stay_apart() -> None:
    b = GraphBuilder("embedding")
    w = b.source("w", 9, colocate=0)
    (x,) = b.add("lookup", inputs=[w], outputs=[1], allowed="cpu", module="m")
    (y,) = b.add("dense", inputs=[x], outputs=[1], module="m")
    b.add("g_lookup", inputs=[y], outputs=[1], phase="backward", allowed="gpu", module="m")
    graph = b.build()
    for grouper in (ModuleGrouper(max_groups=1), ColocationGrouper(max_groups=1)):
        # the gradient may not follow onto the CPU, and may not take the others onto GPUs
        assert members(graph, grouper.group(graph, RNG)) == [{"w", "lookup"}, {"dense"}, {"g_lookup"}]


def test_merging_by_hand() -> None:
    """The cheapest group joins the neighbour with most bytes: `small` exchanges 90 with `right`, 10 with `left`."""
    b = GraphBuilder("line")
    (x,) = b.add("left", outputs=[10], flops=1e13, module="left")
    (y,) = b.add("small", inputs=[x], outputs=[90], flops=1e3, module="small")
    b.add("right", inputs=[y], flops=2e13, module="right")
    grouping = ModuleGrouper(max_groups=2).group(b.build(), RNG)
    assert grouping.group_of.tolist() == [0, 1, 1]
    assert grouping.names == ("left", "right +1")
    assert ModuleGrouper(max_groups=1).group(b.build(), RNG).count == 1
