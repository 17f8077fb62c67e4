"""Manual groups: patterns of module paths, and the preset for the zoo's networks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from placekit_grouping import ModuleOptions
from placekit_grouping.groupers import ModuleGrouper
from placekit_layers.module_calls import block_tags
from pydantic import ValidationError

from placekit_core import Graph, GraphBuilder, GraphError, Grouping, Labels, installed
from placekit_core.cli.compose import assembled

RNG = np.random.default_rng(0)


def tags(rows: list[tuple[str, int, str]], blocks: Sequence[str] = (), depth: int | None = None) -> list[str]:
    """Blocks of operations with these modules, call numbers and call paths."""
    b = GraphBuilder("rows")
    for i, (module, call, _) in enumerate(rows):
        b.add(f"op{i}", module=module, call=call)
    if any(calls for *_, calls in rows):
        b.columns["call_path"] = Labels.of(calls for *_, calls in rows)
    return block_tags(b.build(), blocks, depth)


def test_patterns() -> None:
    for pattern, path, block in [
        ("encoder.layers.*", "encoder.layers.3.attention.q", "encoder.layers.3"),
        ("encoder.layers.*", "encoder.layers.3", "encoder.layers.3"),
        ("encoder.layers.*", "encoder.layers", None),
        ("encoder.layers.*", "my.encoder.layers.3", None),
        ("*.attention", "decoder.attention.score", "decoder.attention"),
        ("*.attention", "a.b.attention.score", None),
        ("**.attention", "a.b.attention.score", "a.b.attention"),
        ("**.attention", "attention.score", "attention"),
        ("Mixed_*.branch*", "Mixed_5b.branch_pool.conv", "Mixed_5b.branch_pool"),
        ("a.**.c", "a.b.c.c.d", "a.b.c.c"),
        ("h.[0-2]", "h.1.mlp", "h.1"),
        ("h.[0-2]", "h.5.mlp", None),
        ("**", "a.b", "a.b"),
    ]:
        assert tags([(path, 0, "")], blocks=[pattern]) == [block or path], pattern


def test_the_longest_match_counts() -> None:
    rows = [("layers.0.norm", 0, ""), ("layers.0.attention.q", 0, ""), ("head", 0, ""), ("", 0, "")]
    expected = ["layers.0", "layers.0.attention", "head", ""]
    assert tags(rows, blocks=["layers.*", "layers.*.attention"]) == expected
    assert tags(rows, blocks=["layers.*.attention", "layers.*"]) == expected


def test_depth_is_for_what_no_block_matches() -> None:
    rows = [("a.b.c", 0, ""), ("x.y.z", 0, "")]
    assert tags(rows, blocks=["a.b"], depth=1) == ["a.b", "x"]


def test_calls_are_those_of_the_block() -> None:
    """A cell that is called twice, with a linear layer inside that it calls twice each time."""
    rows = [("cell.linear", k, f"{k // 2}.{k}") for k in range(4)]
    assert tags(rows, blocks=["cell"]) == ["cell", "cell", "cell@1", "cell@1"]
    assert tags(rows, depth=1) == ["cell", "cell", "cell@1", "cell@1"]
    assert tags(rows) == ["cell.linear", "cell.linear@1", "cell.linear@2", "cell.linear@3"]
    without = [(module, call, "") for module, call, _ in rows]
    assert tags(without, blocks=["cell"]) == ["cell", "cell@1", "cell@2", "cell@3"]


def test_call_paths_that_do_not_fit_their_module() -> None:
    for calls in ("0.0", "0..1", "0.0.x"):
        with pytest.raises(GraphError, match="'op1'") as error:
            tags([("h.0", 0, "0.0"), ("h.0.a", 0, calls)])
        assert repr(calls) in error.value.message
        assert "'h.0.a'" in error.value.message


def test_paths_with_empty_parts_are_refused() -> None:
    for pattern in ("", "a.", ".a", "a..b"):
        with pytest.raises(ValidationError, match="blocks"):
            ModuleOptions(blocks=[pattern])


def test_residual_sums_go_with_what_is_added() -> None:
    """Two sums without a module: each joins the block before it, whose groups then follow one another."""
    b = GraphBuilder("residual")
    (x,) = b.add("embed", outputs=[8], module="embed")
    for i in range(2):
        (y,) = b.add(f"linear{i}", inputs=[x], outputs=[8], module=f"h.{i}.linear")
        (x,) = b.add(f"sum{i}", inputs=[x, y], outputs=[8])
    grouping = ModuleGrouper(blocks=["h.*"]).group(b.build(), RNG)
    assert grouping.names == ("embed", "h.0", "h.1")
    assert grouping.group_of.tolist() == [0, 1, 1, 2, 2]


def run(workload: str, grouper: str = "manual") -> tuple[Graph, Grouping]:
    """Groups of a workload, composed as on the command line."""
    config = assembled([f"workload={workload}", f"grouper={grouper}"], installed())
    graph = config.build("importer").load()[0].graph
    return graph, config.build("grouper").group(graph, RNG)


def kinds(grouping: Grouping) -> Counter[str]:
    """Number of groups by name, without the numbers of calls."""
    return Counter(name.partition("@")[0] for name in grouping.names)


class TestPreset:
    """conf/grouper/manual.yaml gives the papers' groups."""

    @pytest.fixture(autouse=True)
    def zoo(self) -> None:
        pytest.importorskip("placekit_zoo")
        pytest.importorskip("torch").set_num_threads(1)

    def test_rnnlm(self) -> None:
        """4 steps: each LSTM cell, embedding lookup and softmax step, with its gradients."""
        graph, grouping = run("rnnlm_small")
        assert kinds(grouping) == {"cells.0": 4, "cells.1": 4, "embedding": 4, "softmax": 4}
        forward, backward = (set(grouping.group_of[graph.kernel & (graph.phase == p)].tolist()) for p in (0, 1))
        assert forward == backward == set(range(16))

    @pytest.mark.slow
    def test_inception(self) -> None:
        """Each branch, the concatenation after them, and those that the branches of Mixed_7b and Mixed_7c fork into."""
        names = run("inception_v3_small")[1].names
        block = Counter(name.partition(".")[0] for name in names if name.startswith("Mixed_"))
        four = dict.fromkeys(["Mixed_5b", "Mixed_5c", "Mixed_5d", "Mixed_6b", "Mixed_6c", "Mixed_6d", "Mixed_6e"], 5)
        assert block == {**four, "Mixed_6a": 4, "Mixed_7a": 4, "Mixed_7b": 11, "Mixed_7c": 11}
        assert sum(name.startswith("Conv2d_") for name in names) == 5
        assert {"avgpool", "fc", "maxpool1", "maxpool2"} <= set(names), "its dropout drops nothing"
        assert len(names) == 65 + 5 + 4

    @pytest.mark.slow
    @pytest.mark.long
    def test_counts_of_the_paper(self) -> None:
        """Table 1 of Mirhoseini et al. 2017, within 15 %."""
        for workload, count, paper in [("rnnlm", 160, 188), ("nmt", 321, 280), ("inception_v3", 76, 83)]:
            assert run(workload)[1].count == count
            assert abs(count - paper) <= 0.15 * paper
