"""The blocks of programs: their order, what follows, cycles, layers."""

from __future__ import annotations

import numpy as np
import pytest
from placekit_layers import sequence
from placekit_layers.splits import as_path, even_splits, neighbours, one_block_moved, runs, shortened
from placekit_testing.evaluations import machine

from placekit_core import GraphBuilder, Grouping, Problem, load_programs


def problem_of(builder: GraphBuilder, grouping: Grouping | None = None) -> Problem:
    return Problem.of(builder.build(), machine(("gpu",), devices=2), grouping)


def test_layers_of_a_network_are_blocks_in_order() -> None:
    program = load_programs("gpt", layers=3, embedding=64, heads=2, sequence=16, vocabulary=100, batch=2)[0]
    blocks = sequence(Problem.of(program.graph, machine(("gpu",), devices=2)))
    layers = [name for name, layer in zip(blocks.names, blocks.layer, strict=True) if layer]
    assert layers == ["h.0", "h.1", "h.2"]
    assert blocks.names[0] == "wte"
    assert np.all(blocks.source < blocks.target)
    first, last = blocks.names.index("h.0"), blocks.names.index("h.2")
    assert blocks.persistent_bytes[first] == blocks.persistent_bytes[last] > 0
    assert blocks.seconds.sum() == pytest.approx(blocks.problem.op_s.sum())


def test_gradients_and_updates_are_in_the_block_of_their_parameter() -> None:
    program = load_programs("gpt", layers=2, embedding=64, heads=2, sequence=16, vocabulary=100, batch=2)[0]
    graph = program.graph
    blocks = sequence(Problem.of(graph, machine(("gpu",), devices=2)))
    for v in range(graph.n):
        if graph.module[v].startswith("h.1."):
            assert blocks.names[blocks.of_op[v]] == "h.1", graph.op_name[v]


def test_operations_without_modules_are_blocks_and_cycles_of_groups_are_one() -> None:
    b = GraphBuilder("diamond")
    [a] = b.add("a", outputs=[4], flops=1e9)
    [left] = b.add("left", inputs=[a], outputs=[8], flops=1e9)
    [right] = b.add("right", inputs=[a], outputs=[16], flops=1e9)
    b.add("end", inputs=[left, right], flops=1e9)
    blocks = sequence(problem_of(b))
    assert blocks.names == ("a", "left", "right", "end")
    assert list(zip(blocks.source.tolist(), blocks.target.tolist(), strict=True)) == [(0, 1), (0, 2), (1, 3), (2, 3)]
    assert not blocks.layer.any()
    # a and end in one group: left and right are between them, so all four are one block
    tied = sequence(problem_of(b, Grouping(np.asarray([0, 1, 2, 0], np.int32))))
    assert len(tied) == 1
    placement = blocks.placement([0, 0, 1, 1])
    assert placement.device.tolist() == [0, 0, 1, 1]


def test_weights_that_take_no_time_go_with_their_reader() -> None:
    b = GraphBuilder("file")
    [x] = b.add("x", outputs=[4], flops=1e9)
    [w] = b.add("w", outputs=[4])
    b.add("y", inputs=[x, w], flops=1e9)
    graph = b.build()
    from placekit_core import CostTable

    cluster = machine(("gpu",), devices=2)
    seconds = np.asarray([[1.0], [0.0], [2.0]])
    problem = Problem.of(graph, cluster, None, CostTable(cluster.kind_names, seconds, np.zeros((3, 1), np.bool_)))
    blocks = sequence(problem)
    assert blocks.names == ("x", "y")
    assert blocks.of_op.tolist() == [0, 1, 1]


def test_contiguous_splits_near_one() -> None:
    split = np.asarray([0, 0, 0, 2, 2])
    assert runs(split) == ([0, 2], [3, 2])
    near = {tuple(row.tolist()) for row in neighbours(split, 3)}
    assert {(0, 0, 2, 2, 2), (0, 0, 0, 0, 2), (2, 2, 2, 0, 0), (1, 1, 1, 2, 2), (0, 1, 1, 2, 2)} <= near
    assert all(len(set(runs(np.asarray(row))[0])) == len(runs(np.asarray(row))[0]) for row in near)
    moved = {tuple(row.tolist()) for row in one_block_moved(split)}
    assert moved == {(0, 0, 2, 2, 2), (0, 0, 0, 0, 2), (2, 2, 2, 0, 0)}
    assert not list(one_block_moved(np.asarray([0, 1, 0]))), "a device with two runs"


def test_even_splits_share_the_seconds() -> None:
    program = load_programs("gpt", layers=4, embedding=64, heads=2, sequence=16, vocabulary=100, batch=2)[0]
    blocks = sequence(Problem.of(program.graph, machine(("gpu",), devices=3)))
    rows = even_splits(blocks, 8)
    assert [len(set(row.tolist())) for row in rows] == [1, 2, 3]
    for row in rows:
        assert (np.diff(row[np.unique(blocks.of_group, return_index=True)[1]]) >= 0).all()


def test_blocks_are_joined_to_a_path_and_to_few() -> None:
    b = GraphBuilder("diamond")
    [a] = b.add("a", outputs=[4], flops=1e9)
    [left] = b.add("left", inputs=[a], outputs=[8], flops=1e9)
    [right] = b.add("right", inputs=[a], outputs=[16], flops=2e9)
    b.add("end", inputs=[left, right], flops=4e9)
    blocks = sequence(problem_of(b))
    assert as_path(blocks).names == ("a", "left +1", "end")
    assert shortened(blocks, 2).names == ("a +2", "end")


def test_constants_and_masks_that_layers_make_are_no_layers() -> None:
    """The positions that each router sorts read nothing, and each mask reads what the model made before its layers."""
    b = GraphBuilder("experts")
    [mask] = b.add("mask", outputs=[8], flops=1e6, module="model")
    [x] = b.add("embed", outputs=[8], flops=1e6, module="model")
    for i in range(3):
        [own] = b.add(f"where{i}", inputs=[mask], outputs=[8], flops=1e6, module=f"model.layers.{i}.attention")
        [positions] = b.add(f"arange{i}", outputs=[8], flops=1e6, module=f"model.layers.{i}.experts")
        [x] = b.add(f"attention{i}", inputs=[x, own], outputs=[8], flops=1e9, module=f"model.layers.{i}.attention")
        [x] = b.add(f"experts{i}", inputs=[x, positions], outputs=[8], flops=1e9, module=f"model.layers.{i}.experts")
    b.add("norm", inputs=[x], outputs=[8], flops=1e6, module="model")
    blocks = sequence(problem_of(b))
    assert blocks.names == ("model", "model.layers.0", "model.layers.1", "model.layers.2", "model (2)")
    assert blocks.layer.tolist() == [False, True, True, True, False]
    assert np.all(blocks.source < blocks.target)
