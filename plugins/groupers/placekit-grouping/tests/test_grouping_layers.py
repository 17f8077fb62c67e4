"""Grouper `auto`: which graphs have layers, what is grouped, and what the user is told."""

from __future__ import annotations

import numpy as np
from placekit_grouping.auto import AutoGrouper

from placekit_core import Graph, GraphBuilder, Grouping

RNG = np.random.default_rng(0)
KERNELS = 20


def decoder(layers: int, kernels: int = KERNELS, width: int = 1, parent: str = "model.layers", calls: int = 1) -> Graph:
    """A list of layers, each of `width` equal chains side by side, between an embedding and a head."""
    b = GraphBuilder("decoder")
    [x] = b.add("embed", outputs=[4], module="embed", flops=1e9)
    for call in range(calls):
        for i in range(layers):
            ends = []
            for w in range(width):
                [y] = [x]
                for k in range(kernels // width):
                    weight = b.source(f"w{call}.{i}.{w}.{k}", 4, module=f"{parent}.{i}.m{k}") if not call else y
                    [y] = b.add(
                        f"{call}.{i}.{w}.{k}", inputs=[y, weight] if not call else [y], outputs=[4],
                        module=f"{parent}.{i}.m{k}", call=call, flops=1e9,
                    )  # fmt: skip
                ends.append(y)
            [x] = b.add(f"{call}.{i}.sum", inputs=ends, outputs=[4], module=f"{parent}.{i}", call=call, flops=1e6)
    b.add("head", inputs=[x], outputs=[4], module="head", flops=1e9)
    return b.build()


def grouped(graph: Graph) -> Grouping:
    return AutoGrouper().group(graph, RNG)


def test_layers_are_groups() -> None:
    grouping = grouped(decoder(8))
    names = [grouping.name(i) for i in range(grouping.count)]
    assert sorted(names) == ["embed", "head", *(f"model.layers.{i}" for i in range(8))]
    assert grouping.note.startswith("layers are placed whole: the 8 layers in model.layers do")
    assert grouping.note.endswith("takes longer to search")


def test_other_graphs_are_placed_one_by_one() -> None:
    for graph, why in (
        (decoder(5), "no long run of similar layers"),
        (decoder(8, width=4), "on average 3."),
        (decoder(8, calls=3), "more than once"),
    ):
        grouping = grouped(graph)
        assert why in grouping.note
        assert grouping.group_of.tolist() == Grouping.colocated(graph).group_of.tolist()


def test_nothing_is_said_about_small_graphs() -> None:
    graph = decoder(6, 10)
    grouping = grouped(graph)
    assert grouping.note == ""
    assert grouping.count == graph.n


def test_lists_inside_of_short_lists_count() -> None:
    assert "8 layers in stages.0.blocks" in grouped(decoder(8, parent="stages.0.blocks")).note


def training_step() -> Graph:
    """Six layers of 20 kernels, forward and back; gradients of weights, and updates that share a device with their weights."""
    b = GraphBuilder("step")
    [x] = b.add("embed", outputs=[4], module="embed", flops=1e9)
    weights = []
    for i in range(120):
        where = {"module": f"h.{i // 20}.m{i % 20}", "flops": 1e9}
        weights.append((b.source(f"w{i}", 4, module=where["module"], colocate=i), where, x))
        [x] = b.add(f"f{i}", inputs=[x, weights[-1][0]], outputs=[4], **where)
    for i, (weight, where, activation) in reversed(list(enumerate(weights))):
        [slope] = b.add(f"g{i}", inputs=[x, activation], outputs=[4], phase="backward", **where)
        [x] = b.add(f"b{i}", inputs=[x, weight], outputs=[4], phase="backward", **where)
        b.add(f"u{i}", inputs=[slope, weight], phase="update", colocate=i, **where)
    b.add("slope of embed", inputs=[x], outputs=[4], phase="backward", module="embed")
    return b.build()


def test_weights_of_a_training_step_stay_free() -> None:
    graph = training_step()
    grouping = grouped(graph)
    group = dict(zip(graph.op_name, grouping.group_of.tolist(), strict=True))
    assert all(group[f"f{i}"] == group[f"b{i}"] == group[f"f{i // 20 * 20}"] for i in range(120))
    assert all(group[f"w{i}"] == group[f"u{i}"] for i in range(120))
    assert len({group[f"{kind}{i}"] for kind in "gw" for i in range(120)}) == 240
    assert group["slope of embed"] != group["embed"], "what is in no layer is placed one by one"
    assert "gradients of weights and updates are placed one by one. grouper=none" in grouping.note
