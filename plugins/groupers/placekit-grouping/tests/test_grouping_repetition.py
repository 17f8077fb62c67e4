"""Repetition: one placement of a block, repeated by construction."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from placekit_grouping.groupers import (
    ChainsGrouper,
    ColocationGrouper,
    HeavyEdgeGrouper,
    MetisGrouper,
    ModuleGrouper,
)  # fmt: skip
from placekit_grouping.repetition import find_repeats, repeated
from placekit_testing.strategies import random_step

from placekit_core import Graph, GraphBuilder, GraphError, Grouping, Labels, place, quotient

RNG = np.random.default_rng(0)
GROUPERS = [ColocationGrouper, ModuleGrouper, ChainsGrouper, HeavyEdgeGrouper, MetisGrouper]
SMALL = {"batch": 2, "embedding": 16, "heads": 2, "sequence": 4, "vocabulary": 11, "dropout": 0.0}


@pytest.fixture(scope="module")
def gpt() -> dict[int, Graph]:
    """Training steps with 3 and 5 blocks."""
    pytest.importorskip("torch").set_num_threads(1)  # the tensors are small, and tests run side by side
    importer = pytest.importorskip("placekit_zoo.gpt").GptImporter
    return {n: importer(**SMALL, layers=n).load()[0].graph for n in (3, 5)}


def stack(widths: list[int], *, between: str = "", shared: bool = False) -> Graph:
    """x -> a block `up -> down` of each width, in the modules `h.0`, `h.1`, ... -> head; parameters with their updates.

    `shared`: all parameters, updates and `x` must share a device.
    """
    b = GraphBuilder("stack")
    x = b.source("x", 8, op_type="input", colocate=0 if shared else -1)
    updates = []
    for i, width in enumerate(widths):
        block = f"h.{i}"
        w = b.source(f"w{i}", 4 * width, colocate=0 if shared else i, module=f"{block}.up")
        (y,) = b.add(f"up{i}", inputs=[x, w], outputs=[width], op_type="up", flops=width, module=f"{block}.up")
        (x,) = b.add(f"down{i}", inputs=[y], outputs=[8], op_type="down", flops=width, module=f"{block}.down")
        updates.append((w, i, f"{block}.up", width))
        if between:
            (x,) = b.add(f"{between}{i}", inputs=[x], outputs=[8], op_type=between, module=between)
    b.add("head", inputs=[x], module="head")
    for w, i, module, width in updates:
        op = len(b.operations)
        b.add(f"update{i}", op_type="update", inputs=[w], phase="update", colocate=0 if shared else i, module=module)
        b.output(op, 4 * width, storage=w)
    return b.build()


def members(graph: Graph, grouping: Grouping) -> dict[str, set[str]]:
    return {
        grouping.name(g): {graph.op_name[v] for v in np.flatnonzero(grouping.group_of == g)}
        for g in range(grouping.count)
    }


def test_by_hand() -> None:
    graph = stack([100, 100, 100])
    assert members(graph, ModuleGrouper(repeat=True).group(graph, RNG)) == {
        "h.*.up": {"w0", "w1", "w2", "up0", "up1", "up2", "update0", "update1", "update2"},
        "h.*.down": {"down0", "down1", "down2"},
        "head": {"head"},
        "input": {"x"},  # it was in one group with the first block
    }


def test_blocks_of_another_width_are_not_tied() -> None:
    graph = stack([100, 100, 101, 100])
    (repeat,) = find_repeats(graph)
    assert repeat.blocks == ("h.0", "h.1", "h.3")
    grouping = ModuleGrouper(repeat=True).group(graph, RNG)
    found = members(graph, grouping)
    assert found["h.{0-1,3}.down"] == {"down0", "down1", "down3"}
    assert found["h.2.down"] == {"down2"}
    with pytest.raises(
        GraphError, match=r"'stack' has no repeated blocks(.|\n)*no two are equal(.|\n)*among h\.0 h\.1 h\.2$"
    ):
        ModuleGrouper(repeat=True).group(stack([1, 2, 3]), RNG)


def test_two_kinds_of_blocks() -> None:
    graph = stack([5, 7, 5, 7])
    assert [r.blocks for r in find_repeats(graph)] == [("h.0", "h.2"), ("h.1", "h.3")]
    assert {"h.{0,2}.up", "h.{1,3}.up"} <= set(ModuleGrouper(repeat=True).group(graph, RNG).names)


def test_the_outermost_blocks_are_tied() -> None:
    """`a.0` and `a.1` have two equal layers each: the four layers are not one set, and the two of a block are apart."""
    b = GraphBuilder("nested")
    x = [b.source("x", 8, op_type="input")]
    for i in range(2):
        for j in range(2):
            x = b.add(f"op{i}{j}", inputs=x, outputs=[8], op_type="op", module=f"a.{i}.layers.{j}")
    graph = b.build()
    assert [r.name for r in find_repeats(graph)] == ["a.*"]
    found = members(graph, ModuleGrouper(repeat=True).group(graph, RNG))
    assert found["a.*.layers.0"] == {"op00", "op10"}
    assert found["a.*.layers.1"] == {"op01", "op11"}


def test_blocks_inside_of_unequal_modules_are_found() -> None:
    b = GraphBuilder("stages")
    x = [b.source("x", 8, op_type="input")]
    for stage, count in enumerate((2, 3)):
        for i in range(count):
            x = b.add(f"op{stage}{i}", inputs=x, outputs=[8], op_type="op", module=f"stage.{stage}.{i}.conv")
    assert [r.name for r in find_repeats(b.build())] == ["stage.0.*", "stage.1.*"]


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["cell_0.a", "cell_1.a", "reduction_0.a"], ["*"]),
        (["cell_9.a", "cell_10.a", "cell_11.a", "cell_8.b"], ["cell_{9-11}"]),
        (["Mixed_6c.a", "Mixed_6d.a", "Mixed_7a.b"], ["Mixed_{6c,6d}"]),
        (["a.9.b", "a.10.b", "a.x"], ["a.*"]),
        (["h.0.a", "h.1.a", "h.2.pair.0.a", "h.2.pair.1.a"], ["h.{0-1}"]),
        (["wq", "wk", "ln_1", "ln_2", "3", "4"], []),
    ],
)
def test_names_of_blocks(names: list[str], found: list[str]) -> None:
    """Modules with parts are blocks whatever their names; those without, only with parameters and a number."""
    b = GraphBuilder("named")
    x = [b.source("x", 8, op_type="input")]
    for i, name in enumerate(names):
        x = b.add(f"op{i}", inputs=x, outputs=[8], op_type="op", module=name)
    assert [r.name for r in find_repeats(b.build())] == found


CHANGES = {
    "": {},
    "type": {"op_type": "s"},
    "class": {"op_class": "matmul"},
    "dtype": {"dtype": "float16"},
    "flops": {"flops": 3.0},
    "bytes": {"bytes_accessed": 7.0},
    "persistent bytes": {"persistent_bytes": 7},
    "phase": {"phase": "backward"},
    "allowed": {"allowed": "cpu"},
    "call": {"call": 1},
    "module": {"module": "h.1.part"},
    "tensor bytes": {"outputs": [12]},
    "shape": {"shapes": [(4, 2)]},
    "outputs": {"outputs": [8, 8], "shapes": None},
}


@pytest.mark.parametrize(
    "change", [*CHANGES, "kernel", "edge", "output index", "read bytes", "colocation", "outer colocation", "signature"]
)
def test_what_makes_blocks_unequal(change: str) -> None:
    """Of two blocks `r(p, q)` in a row, one operation of the second is changed."""
    b = GraphBuilder("pair")
    x = b.source("x", 8, op_type="input")
    for i in range(2):
        here = change if i else ""
        y = b.source(f"y{i}", 12 if here == "read bytes" else 8)
        p = b.add(f"p{i}", inputs=[x, y], outputs=[8, 8], op_type="p", module=f"h.{i}")
        q = b.add(f"q{i}", inputs=[x], outputs=[8, 8], op_type="p", module=f"h.{i}")
        r = {"op_type": "r", "flops": 2.0, "outputs": [8], "shapes": [(2, 4)], "module": f"h.{i}"}
        b.add(f"w{i}", kernel=here == "kernel", op_type="w", colocate=10 + i, module=f"h.{i}.w")
        b.add(f"r{i}", inputs=[q[0] if here == "edge" else p[here == "output index"]], **r | CHANGES.get(here, {}))
        b.operations[-1].colocate = b.operations[-3].colocate = i if here == "colocation" else -1
        x = p[1]
    b.operations[0].colocate = 11 if change == "outer colocation" else -1
    b.columns["signature"] = Labels.of(
        ["same"] * (len(b.operations) - 1) + ["other" if change == "signature" else "same"]
    )
    assert [repeat.name for repeat in find_repeats(b.build())] == ([] if change else ["h.*"])


def test_shapes_of_tensors_from_outside_do_not_matter() -> None:
    """The gradient that a linear head gives the last block has two dimensions, and those between blocks have three."""
    b = GraphBuilder("reshaped")
    x = [b.add("before", inputs=[b.source("x", 48)], outputs=[48], shapes=[(3, 4)])[0]]
    for i in range(2):
        x = b.add(f"op{i}", inputs=x, outputs=[48], shapes=[(1, 3, 4)], op_type="op", module=f"h.{i}.part")
    assert [repeat.name for repeat in find_repeats(b.build())] == ["h.*"]


def connected(*reads: str, parallel: bool = False) -> Graph:
    """Sources p and q, then blocks `h.i` with parts a and b: `reads[i]` says what each of these reads of the block before.

    `pq`: a reads what p or the a before it made, b the other; `qp`: crossed; `pp`: both read the first. `parallel`: all read
    the two sources.
    """
    b = GraphBuilder("connected")
    made = {k: b.add(k, inputs=[b.source(f"{k}.in", 8)], outputs=[8])[0] for k in "pq"}
    before = dict(made)
    for i, (first, second) in enumerate(reads):
        made = {
            k: b.add(f"{i}{k}", inputs=[before[source]], outputs=[8], op_type="op", module=f"h.{i}.{part}")[0]
            for k, source, part in (("p", first, "a"), ("q", second, "b"))
        }
        before = before if parallel else made
    b.add("sum", inputs=list(made.values()), op_type="sum")
    return b.build()


@pytest.mark.parametrize(
    ("reads", "found"),
    [
        (["pq", "pq", "pq"], [("h.0", "h.1", "h.2")]),
        (["pq", "qp"], []),
        (["pq", "qp", "pq"], []),
        (["pq", "qp", "qp"], [("h.1", "h.2")]),
        (["pq", "pp", "pp"], [("h.1", "h.2")]),
    ],
)
def test_blocks_are_connected_alike(reads: list[str], found: list[tuple[str, ...]]) -> None:
    assert [repeat.blocks for repeat in find_repeats(connected(*reads))] == found
    assert not find_repeats(connected(*reads, parallel=True))


def test_blocks_read_the_same_of_the_block_before() -> None:
    """Three operations in a line in each block; the next reads the second of them, then the third, and again the third."""
    b = GraphBuilder("taps")
    x = b.source("x", 8)
    for i, tap in enumerate((1, 2, 2, 2)):
        made = [x]
        for k in range(3):
            made += b.add(f"{i}{k}", inputs=made[-1:], outputs=[8], op_type="op", module=f"h.{i}.{k}.f")
        x = made[1 + tap]
    assert [repeat.blocks for repeat in find_repeats(b.build())] == [("h.0", "h.1"), ("h.2", "h.3")]


def experts(count: int, *, layers: int = 1) -> Graph:
    """x -> router -> `count` equal experts -> sum, in the modules `layers.i.experts.j.fc`; `experts.j.fc` for one layer."""
    b = GraphBuilder("experts")
    x = b.source("x", 8, op_type="input")
    for i in range(layers):
        layer = f"layers.{i}." if layers > 1 else ""
        (x,) = b.add(f"route{i}", inputs=[x], outputs=[8], op_type="route", module=f"{layer}route")
        out = []
        for j in range(count):
            module = f"{layer}experts.{j}.fc"
            w = b.source(f"w{i}.{j}", 8, module=module)
            out += b.add(f"fc{i}.{j}", inputs=[x, w], outputs=[8], op_type="fc", flops=1e12, module=module)
        (x,) = b.add(f"sum{i}", inputs=out, outputs=[8], op_type="sum", module=f"{layer}sum")
    return b.build()


def test_modules_side_by_side_are_not_tied() -> None:
    """Experts may be on different devices: of two layers of them, each is tied to that of the same number."""
    with pytest.raises(GraphError, match="one after the other"):
        ModuleGrouper(repeat=True).group(experts(4), RNG)
    found = members(experts(4, layers=2), ModuleGrouper(repeat=True).group(experts(4, layers=2), RNG))
    assert [found[f"layers.*.experts.{j}.fc"] for j in range(4)] == [
        {f"{kind}{i}.{j}" for kind in ("w", "fc") for i in range(2)} for j in range(4)
    ]


def test_chains_side_by_side_are_apart() -> None:
    """Two branches of one parent, each a chain of two equal blocks."""
    b = GraphBuilder("branches")
    x = b.source("x", 8)
    ends = [b.add(f"start{j}", inputs=[x], outputs=[8])[0] for j in range(2)]
    for i in range(4):
        (ends[i % 2],) = b.add(f"op{i}", inputs=[ends[i % 2]], outputs=[8], op_type="op", module=f"h.{i}.f")
    assert [repeat.blocks for repeat in find_repeats(b.build())] == [("h.0", "h.2"), ("h.1", "h.3")]


def test_blocks_are_in_the_order_of_the_data() -> None:
    b = GraphBuilder("decoder")
    x = [b.source("x", 8)]
    for i in (2, 1, 0):
        x = b.add(f"op{i}", inputs=x, outputs=[8], op_type="op", module=f"h.{i}.f")
    (repeat,) = find_repeats(b.build())
    assert (repeat.name, repeat.blocks) == ("h.*", ("h.2", "h.1", "h.0"))


@pytest.mark.parametrize("repeats", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_pairs_of_a_nasnet_cell_are_not_tied(repeats: int) -> None:
    """With 3 cells per stage or fewer no two cells are equal; the pairs of a cell are, but they are side by side."""
    pytest.importorskip("torch").set_num_threads(1)
    importer = pytest.importorskip("placekit_zoo.nasnet").NasNetImporter
    graph = importer(mode="inference", batch=2, image_size=64, repeats=repeats, width=0.05, classes=10).load()[0].graph
    assert [repeat.name for repeat in find_repeats(graph)] == []


@pytest.mark.parametrize(("which", "options"), [(ModuleGrouper, {"max_groups": 5}), (ColocationGrouper, {})])
def test_names_are_unique(which: Any, options: dict[str, Any]) -> None:
    """Modules `head` and `tail` in turn: some groups are merged under names with a number, others are cut and named anew."""
    b = GraphBuilder("names")
    x = [b.source("x", 8, op_type="input")]
    for i in range(2):
        x = b.add(f"up{i}", inputs=x, outputs=[8], op_type="up", flops=1e12, module=f"h.{i}.up")
    for i, flops in enumerate((5e12, 1e13, 1e13, 1e13, 1e13)):
        x = b.add(f"op{i}", inputs=x, outputs=[8], flops=flops, module=("head", "tail")[i % 2], call=0)
    names = which(repeat=True, **options).group(b.build(), RNG).names
    assert len(set(names)) == len(names)


@given(st.lists(st.sampled_from(["a", "a (2)", "a (3)", "b"]), min_size=2, max_size=8), st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_names_are_unique_whatever_was_there(modules: list[str], seed: int) -> None:
    """Two blocks, then operations of these modules, in random groups with some of these names."""
    b = GraphBuilder("names")
    x = [b.source("x", 8, op_type="input")]
    for i in range(2):
        x = b.add(f"up{i}", inputs=x, outputs=[8], op_type="up", module=f"h.{i}.up")
    for i, module in enumerate(modules):
        x = b.add(f"op{i}", inputs=x, outputs=[8], flops=float(i), module=module)
    graph, rng = b.build(), np.random.default_rng(seed)
    names = ("a (2)", "a", "b", "a (3)", *(f"c{i}" for i in range(graph.n)))
    tied = repeated(graph, Grouping.of(rng.integers(0, 5, graph.n), names))
    assert len(set(tied.names)) == tied.count


def test_a_group_of_a_whole_block_has_its_name() -> None:
    graph = stack([100] * 3)
    found = members(graph, ModuleGrouper(repeat=True, blocks=("h.*",)).group(graph, RNG))
    assert sorted(found) == ["h.*", "head", "input"]
    assert {"up0", "down2", "w1"} <= found["h.*"]


def test_groups_are_cut_at_the_border_of_a_block() -> None:
    """A group of the last block's end and the head, and one over the border of two blocks."""
    graph = stack([100, 100, 100], between="norm")
    name = {n: i for i, n in enumerate(graph.op_name)}
    one_each = np.arange(graph.n)
    for a, b in [("down2", "head"), ("down0", "norm0"), ("norm0", "up1"), ("update0", "w0"), ("up0", "w0"),
                 ("update1", "w1"), ("up1", "w1"), ("update2", "w2"), ("up2", "w2")]:  # fmt: skip
        one_each[one_each == one_each[name[a]]] = one_each[name[b]]
    found = members(graph, repeated(graph, Grouping.of(one_each, graph.op_name)))
    assert found["h.*.down"] == {"down0", "down1", "down2"}
    assert found["h.*.up"] == {f"{kind}{i}" for kind in ("w", "up", "update") for i in range(3)}
    assert [found[n] for n in ("norm", "norm1", "norm2", "head")] == [{"norm0"}, {"norm1"}, {"norm2"}, {"head"}]


def test_a_block_is_divided_as_most_copies_are() -> None:
    graph = stack([100] * 3)
    name = {n: i for i, n in enumerate(graph.op_name)}
    key = Grouping.colocated(graph).group_of.copy()
    key[name["down0"]] = key[name["up0"]]  # the first block alone is one group
    found = members(graph, repeated(graph, Grouping.of(key)))
    assert found["h.*.down"] == {"down0", "down1", "down2"}


def test_what_is_co_located_with_the_outside_is_left_out() -> None:
    """Parameters and updates of all blocks share a device with `x`: they stay with it, and the rest of the blocks is tied."""
    graph = stack([100] * 3, shared=True)
    found = members(graph, ModuleGrouper(repeat=True).group(graph, RNG))
    assert found["h.*.down"] == {"down0", "down1", "down2"}
    assert found["h.*.up"] == {"up0", "up1", "up2"}
    tied = {"x", "w0", "w1", "w2", "update0", "update1", "update2"}
    assert [group for group in found.values() if "w0" in group] == [tied]


@pytest.mark.parametrize("which", GROUPERS)
def test_groups_of_gpt_do_not_depend_on_the_number_of_blocks(gpt: dict[int, Graph], which: Any) -> None:
    plain = [which().group(graph, RNG).count for graph in gpt.values()]
    tied = [which(repeat=True).group(graph, RNG) for graph in gpt.values()]
    assert plain[0] < plain[1]
    if which is not HeavyEdgeGrouper:  # a group of it may not exceed a share of the whole, which depends on the depth
        assert tied[0].count == tied[1].count < plain[0]
        assert sorted(tied[0].names) == sorted(tied[1].names)
    for (depth, graph), grouping in zip(gpt.items(), tied, strict=True):
        (repeat,) = find_repeats(graph)
        assert repeat.name == "h.*"
        assert len(repeat.blocks) == repeat.operations.shape[0] == depth
        assert repeat.operations.shape[1] == sum(m.startswith("h.0") for m in graph.module)
        device = np.arange(grouping.count)[grouping.group_of]  # a placement that tells all groups apart
        assert (device[repeat.operations] == device[repeat.operations[:1]]).all()
        for name in ("attn/bmm", "mlp.c_fc/mm:backward", "attn.c_attn.weight"):
            ops = [v for v in range(graph.n) if graph.op_name[v].endswith(name)]
            assert len(ops) == depth
            assert len({int(grouping.group_of[v]) for v in ops}) == 1
        assert any(name.startswith("h.*.attn") for name in grouping.names)
        assert not any(name.startswith("h.0") for name in grouping.names)


@pytest.mark.parametrize("which", GROUPERS)
@pytest.mark.parametrize("options", [{}, {"max_groups": 12}, {"min_share": 0.02}])
def test_promises(gpt: dict[int, Graph], which: Any, options: dict[str, Any]) -> None:
    """Co-location, names, a graph of groups, and the same groups again; no order among groups is promised."""
    graph = gpt[3]
    grouper = which(repeat=True, **options)
    grouping = grouper.group(graph, RNG).check(graph)
    assert not grouper.acyclic
    assert which(**options).acyclic
    assert all(grouping.names)
    assert len(set(grouping.names)) == grouping.count
    assert quotient(graph, grouping).n == grouping.count
    again = which(repeat=True, **options).group(graph.replace(), np.random.default_rng(9))
    assert again.group_of.tobytes() == grouping.group_of.tobytes()
    assert again.names == grouping.names


def test_order_is_not_promised_because_it_cannot_be(gpt: dict[int, Graph]) -> None:
    graph = gpt[3]
    grouping = ModuleGrouper(repeat=True).group(graph, RNG)
    u, v = graph.op_edges
    forward = graph.kernel[u] & graph.kernel[v] & (graph.phase[u] == 0) & (graph.phase[v] == 0)
    pairs = set(zip(grouping.group_of[u[forward]].tolist(), grouping.group_of[v[forward]].tolist(), strict=True))
    after: dict[int, set[int]] = {}
    for a, b in pairs:
        after.setdefault(a, set()).add(b)
    first = grouping.names.index("h.*.ln_1")
    reached, waiting = set(), [first]
    while waiting:
        for g in after.get(waiting.pop(), set()) - reached:
            reached.add(g)
            waiting.append(g)
    assert first in reached


@given(
    st.integers(0, 2**32), st.integers(1, 25), st.sampled_from(GROUPERS), st.sampled_from([None, 3]), st.integers(2, 4)
)
@settings(max_examples=60, deadline=None)
def test_any_repeated_block(seed: int, n: int, which: Any, limit: int | None, copies: int) -> None:
    """Random training steps, each with a link to the one before: a partition that is the same for every copy."""
    block = random_step(np.random.default_rng(seed), n)
    b = GraphBuilder("copies")
    sets = int(block.colocate.max(initial=-1)) + 1
    link = [b.source("link", 8)]
    for i in range(copies):
        link = b.add(f"{i}/link", op_type="link", inputs=link, outputs=[8], module=f"h.{i}")
        tensors: dict[int, int] = {}
        for v in range(block.n):
            made = len(b.operations)
            tied = int(block.colocate[v])
            b.add(
                f"{i}/{block.op_name[v]}", op_type=block.op_type[v], flops=float(block.flops[v]),
                bytes_accessed=float(block.bytes_accessed[v]), persistent_bytes=int(block.persistent_bytes[v]),
                kernel=bool(block.kernel[v]), phase=("forward", "backward", "update")[int(block.phase[v])],
                inputs=[tensors[t] for t in block.inputs(v).tolist()], module=f"h.{i}.{block.module[v]}".rstrip("."),
                call=int(block.call[v]), colocate=-1 if tied < 0 else tied + i * sets, allowed=block.allowed[v],
                op_class=block.op_class[v],
            )  # fmt: skip
            for t in block.outputs(v):
                owner = int(block.tensor_storage[t])
                storage = -1 if owner == t else tensors[owner]
                tensors[t] = b.output(made, int(block.tensor_bytes[t]), block.shape(t), storage)
    graph = b.build()
    options = {} if limit is None else {"max_groups": limit}
    before = which(**options).group(graph, RNG).group_of[1:].reshape(copies, -1)
    after = which(repeat=True, **options).group(graph, RNG).check(graph).group_of[1:].reshape(copies, -1)
    assert (after == after[0]).all()
    copy = before.tolist()
    for group in np.unique(after):  # a part was together in one copy: it can run where a group of before could
        part = np.flatnonzero(after[0] == group)
        assert any(len({row[v] for v in part}) == 1 for row in copy)


def test_graphs_without_repeated_blocks_are_refused() -> None:
    for graph, why in [
        (stack([]), "this graph has no two such modules"),
        (stack([3]), "this graph has no two such modules"),
        (GraphBuilder("empty").build(), "this graph has no two such modules"),
    ]:
        with pytest.raises(GraphError) as e:
            ColocationGrouper(repeat=True).group(graph, RNG)
        assert "grouper.repeat" in e.value.message
        assert why in e.value.hint


def test_annealing_places_one_block(gpt: dict[int, Graph]) -> None:
    graph = gpt[3]
    (blocks,) = find_repeats(graph)
    for repeat in (False, True):
        grouper = {"name": "module", "repeat": repeat}
        program = place(graph, grouper=grouper, policy="annealing", budget=200, seed=0).programs[0]
        assert program.placement is not None
        device = program.problem.expand(program.placement.device)
        assert len(set(device.tolist())) > 1
        assert (device[blocks.operations] == device[blocks.operations[0]]).all() == repeat
