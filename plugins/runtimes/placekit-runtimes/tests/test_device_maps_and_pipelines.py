"""Placements as device maps and pipelines: what is said of each module, and what torch and accelerate take."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from placekit_runtimes import device_map, pipeline
from placekit_runtimes.accelerate.hooks import locate
from placekit_runtimes.interface import DeviceName
from placekit_runtimes.layers import device_numbers
from placekit_runtimes.modules import PlacedModules

from placekit_core import (
    Cluster,
    Graph,
    GraphBuilder,
    PlacekitError,
    Placement,
    PlacementError,
    Problem,
    load_cluster,
    place,
)
from placekit_core.run.config import conf_dir

P100X4 = load_cluster(conf_dir() / "cluster" / "p100x4.yaml")
K80X2 = load_cluster(conf_dir() / "cluster" / "k80x2.yaml")


def placed(graph: Graph, where: Callable[[int], int], cluster: Cluster = P100X4) -> tuple[Problem, Placement]:
    """Operation v on device where(v); co-located operations on that of the first."""
    problem = Problem.of(graph, cluster)
    _, first = np.unique(problem.grouping.group_of, return_index=True)
    return problem, problem.placement([where(int(v)) for v in first])


def by_module(graph: Graph, devices: Mapping[str, int]) -> Callable[[int], int]:
    """The device of the longest prefix of an operation's module in `devices`."""

    def where(v: int) -> int:
        module = graph.module[v]
        inside = [p for p in devices if not p or module == p or module.startswith(f"{p}.")]
        return devices[max(inside, key=len)]

    return where


def network(layers: int = 4, skip: bool = False) -> Graph:
    """embed, `layers` blocks of two leaves with a sum around them, head; the loss; a gradient for each leaf."""
    b = GraphBuilder("net")
    t = {}

    def leaf(module: str, x: int, call: int = 0) -> int:
        weight = t.setdefault(module, b.source(f"{module}.weight", 400, module=module, colocate=len(t)))
        return b.add(f"{module}/mm{call}", inputs=[x, weight], outputs=[400], flops=1e9, module=module, call=call)[0]

    scale = b.source("layers.0.scale", 4, module="layers.0")
    x = first = leaf("embed", b.source("input.0", 400, op_type="input"))
    for i in range(layers):
        y = leaf(f"layers.{i}.b", leaf(f"layers.{i}.a", x))
        [x] = b.add(f"layers.{i}/add", inputs=[x, y, *([scale] if i == 0 else [])], outputs=[400], module=f"layers.{i}")
    if skip:
        [x] = b.add("add", inputs=[x, first], outputs=[400])
    x = leaf("head", x)
    [loss] = b.add("loss/mse", inputs=[x], outputs=[4], module="loss")
    b.add("head/mm:backward", inputs=[loss], outputs=[400], flops=2e9, module="head", phase="backward")
    return b.build()


HALVES = {"": 0, "embed": 0, "layers.0": 0, "layers.1": 0, "layers.2": 2, "layers.3": 2, "head": 2, "loss": 2}


def test_results_have_a_device_map() -> None:
    result = place(network(), cluster=P100X4, policy="etf", grouper="none", baselines=[])
    assert result.placement is not None
    assert result.device_map() == device_map(result.problem, result.placement).devices
    family = place([network(), network(5)], cluster=P100X4, policy="etf", grouper="none", baselines=[])
    with pytest.raises(PlacekitError, match="this result has 2 programs"):
        family.device_map()


class TestDeviceMap:
    def test_the_shortest_prefixes(self) -> None:
        graph = network()
        made = device_map(*placed(graph, by_module(graph, HALVES)))
        expected = {"embed": 0, "layers.0": 0, "layers.1": 0, "layers.2": 2, "layers.3": 2, "head": 2}
        assert list(made.devices.items()) == list(expected.items()), "in the order of the forward pass"
        assert (made.conflicts, made.elsewhere, made.notes) == ((), 0.0, ())

    def test_one_device(self) -> None:
        assert device_map(*placed(network(), lambda v: 3)).devices == {"": 3}

    def test_gpus_are_numbered_and_others_are_cpu(self) -> None:
        problem, placement = placed(network(), lambda v: K80X2.device_names.index("xeon:0"), K80X2)
        names = dict(zip(K80X2.device_names, device_numbers(problem), strict=True))
        assert names == {"k80:0": 0, "k80:1": 1, "xeon:0": "cpu"}
        assert device_map(problem, placement).devices == {"": "cpu"}

    def test_the_majority_decides_and_conflicts_are_listed(self) -> None:
        graph = network(1)
        problem, placement = placed(graph, lambda v: 1 if graph.op_name[v] == "head/mm:backward" else 0)
        made = device_map(problem, placement)
        assert made.devices["head"] == 1, "two thirds of its work are the gradient"
        [conflict] = made.conflicts
        seconds = dict(zip(graph.op_name, problem.op_s[:, 0], strict=True))
        lost = seconds["head/mm0"]
        assert (conflict.module, conflict.device) == ("head", 1)
        assert conflict.elsewhere == pytest.approx(lost / (lost + seconds["head/mm:backward"]))
        total = sum(s for o, s in seconds.items() if graph.kernel[graph.op_name.index(o)])
        assert made.elsewhere == pytest.approx(lost / total)

    def test_modules_with_tensors_of_their_own_stay_whole(self) -> None:
        graph = network(2)
        made = device_map(*placed(graph, by_module(graph, HALVES | {"layers.0.b": 1, "layers.1": 1})))
        assert made.devices == {"embed": 0, "layers.0": 0, "layers.1": 1, "head": 2}, (
            "`dispatch_model` moves modules only"
        )

    def test_a_layer_that_runs_nothing_stays_whole(self) -> None:
        """As the encoder of Whisper in decode: its parameters are there, and may be anywhere."""
        b = GraphBuilder("net")
        for i in range(2):
            for leaf, bytes_ in (("attention", 40), ("fc1", 100), ("fc2", 100)):
                module = f"encoder.layers.{i}.{leaf}"
                b.source(f"{module}.weight", bytes_, op_type="parameter", module=module)
        b.add("head", outputs=[4], flops=1e9, module="head")
        made = device_map(*placed(b.build(), lambda v: [1, 0, 0, 1, 1, 0, 0][v]))
        assert made.devices == {"head": 0, "encoder.layers.0": 0, "encoder.layers.1": 1}

    def test_what_a_large_module_owns_is_loose(self) -> None:
        b = GraphBuilder("net")
        w = b.source("model.scale", 4, op_type="parameter", module="model")
        [x] = b.add("a", outputs=[4], flops=1e9, module="model.a")
        [x] = b.add("mul", inputs=[x, w], outputs=[4], module="model")
        b.add("b", inputs=[x], outputs=[4], flops=1e9, module="model.b")
        made = device_map(*placed(b.build(), lambda v: int(v == 3)))
        assert made.devices == {"model.a": 0, "model.b": 1, "model.scale": 0}
        assert "does not move 'model.scale'" in made.notes[0]

    def test_a_module_that_reads_from_several_devices_stays_whole(self) -> None:
        graph = network(4)
        made = device_map(*placed(graph, by_module(graph, HALVES | {"layers.1.b": 1, "layers.3.b": 3})))
        assert made.devices == {"embed": 0, "layers.0": 0, "layers.1": 0, "layers.2": 2, "layers.3": 2, "head": 2}, (
            "x + b(a(x)), where x and b are on different devices"
        )

    def test_modules_that_the_network_adds_are_on_one_device(self) -> None:
        graph = network(2, skip=True)
        made = device_map(*placed(graph, by_module(graph, HALVES | {"layers.1": 1})))
        assert made.devices == {"embed": 1, "layers.0": 0, "layers.1": 1, "head": 2}

    def test_a_tied_head_is_with_the_embedding(self) -> None:
        b = GraphBuilder("net")
        w = b.source("embed.weight", 4, op_type="parameter", module="embed")
        [x] = b.add("embed/mm", inputs=[w], outputs=[4], flops=1e9, module="embed")
        [x] = b.add("body/mm", inputs=[x], outputs=[4], flops=1e9, module="body")
        b.add("head/mm", inputs=[x, w], outputs=[4], flops=3e9, module="head")
        assert device_map(*placed(b.build(), lambda v: max(v - 1, 0))).devices == {"embed": 2, "body": 1, "head": 2}

    def test_modules_that_the_user_wants_whole(self) -> None:
        graph = network(2)
        split = HALVES | {"layers.1.b": 1}
        made = device_map(*placed(graph, by_module(graph, split)), whole=["layers"])
        assert made.devices == {"embed": 0, "layers": 0, "head": 2}

    def test_modules_that_the_models_class_wants_whole(self) -> None:
        """As the importer of torch modules reads them in `_no_split_modules`."""
        b = GraphBuilder("net")
        x = b.source("input.0", 400, op_type="input")
        for leaf, flops in (("a", 1e9), ("b", 2e9)):
            w = b.source(f"layers.0.{leaf}.weight", 400, op_type="parameter", module=f"layers.0.{leaf}")
            [x] = b.add(f"layers.0.{leaf}/mm", inputs=[x, w], outputs=[400], flops=flops, module=f"layers.0.{leaf}")
        [x] = b.add("head/mm", inputs=[x], outputs=[400], flops=1e9, module="head")
        split = {"": 0, "layers.0.a": 1, "layers.0.b": 2, "head": 3}
        graph = b.build()
        assert device_map(*placed(graph, by_module(graph, split))).devices == {
            "layers.0.a": 1,
            "layers.0.b": 2,
            "head": 3,
        }
        graph = graph.replace(attributes={"unsplit": ["layers.0"]})
        assert device_map(*placed(graph, by_module(graph, split))).devices == {"layers": 2, "head": 3}

    def test_what_has_no_modules(self) -> None:
        b = GraphBuilder("numbers")
        b.add("a", outputs=[4])
        for form in (device_map, pipeline):
            with pytest.raises(PlacementError, match=r"'numbers' belong to no modules\n.*--format json"):
                form(*placed(b.build(), lambda v: 0))

    def test_another_problem(self) -> None:
        _, placement = placed(network(1), lambda v: 0)
        with pytest.raises(PlacementError, match="not for 'net' on 'p100x4'"):
            device_map(placed(network(2), lambda v: 0)[0], placement)


class TestPipeline:
    def test_a_chain(self) -> None:
        graph = network()
        made = pipeline(*placed(graph, by_module(graph, HALVES)))
        assert [(s.device, s.begins) for s in made.stages] == [("p100:0", "embed"), ("p100:2", "layers.2")]
        assert made.split_spec == {"layers.2": "SplitPoint.BEGINNING"}
        assert made.conflicts == ()

    @pytest.mark.parametrize(
        ("devices", "why"),
        [
            (
                {"layers.1": 2},
                r"'layers\.0\.b' is on p100:0, 'layers\.1\.b' on p100:2, and 'layers\.2\.a' on p100:0 again",
            ),
            ({"head": 0}, r"'layers\.2\.b' is on p100:0, .*, and 'head' on p100:0 again"),
        ],
    )
    def test_a_device_is_one_part_of_the_chain(self, devices: dict[str, int], why: str) -> None:
        graph = network()
        where = by_module(graph, HALVES | {"layers.2": 0, "layers.3": 2} | devices)
        with pytest.raises(PlacementError, match=rf"not a chain of modules: module {why}[^\n]*\n.*device_map"):
            pipeline(*placed(graph, where))

    def test_transfers_go_to_the_next_stage_only(self) -> None:
        graph = network(2, skip=True)
        where = by_module(graph, HALVES | {"layers.1": 1, "head": 2})
        with pytest.raises(PlacementError, match=r"module 'head' in stage 2|stage 1 reads|stage 2 reads"):
            pipeline(*placed(graph, by_module(graph, HALVES | {"layers.0": 1, "layers.1": 2, "head": 3})))
        assert len(pipeline(*placed(network(2), where)).stages) == 3

    def test_what_enters_later(self) -> None:
        b = GraphBuilder("net")
        x, mask, w = (b.source(n, 4, op_type=k) for n, k in (("x", "input"), ("mask", "input"), ("w", "parameter")))
        [y] = b.add("a", inputs=[x, w], outputs=[4], module="a")
        b.add("b", inputs=[y, mask], outputs=[4], module="b")
        with pytest.raises(PlacementError, match="module 'b' in stage 1 reads 'mask', which enters in stage 0"):
            pipeline(*placed(b.build(), lambda v: int(v == 4)))
        b.operations[-1].inputs[1] = w
        with pytest.raises(PlacementError, match="reads parameter 'w', which stage 0 reads, too"):
            pipeline(*placed(b.build(), lambda v: int(v == 4)))

    def test_a_module_that_is_called_twice_begins_no_stage(self) -> None:
        b = GraphBuilder("net")
        [x] = b.add("a", outputs=[4], module="a")
        for i in range(2):
            [x] = b.add(f"b{i}", inputs=[x], outputs=[4], module="b", call=i)
        with pytest.raises(PlacementError, match="stage on p100:1 begins with module 'b', which is called 2 times"):
            pipeline(*placed(b.build(), lambda v: min(v, 1)))


def uncovered(names: list[str], devices: Mapping[str, DeviceName]) -> list[str]:
    """What accelerate's `check_device_map` would refuse: tensors of the state_dict that no key of the map covers."""
    if "" in devices:
        return []
    return [n for n in names if not any(n == k or n.startswith(f"{k}.") for k in devices)]


def test_maps_of_a_network_cover_every_parameter() -> None:
    pytest.importorskip("placekit_zoo")
    from placekit_core import installed
    from placekit_core.cli.compose import assembled

    [program] = assembled(["workload=gpt_small"], installed()).programs
    executable: Any = program.executable
    module = executable._builder.build().module
    names = list(module.state_dict())
    known = {
        name for what in (module.named_modules, module.named_parameters, module.named_buffers) for name, _ in what()
    }
    for seed in range(3):
        devices = np.random.default_rng(seed).integers(0, 4, program.graph.n)
        made = device_map(*placed(program.graph, devices.__getitem__))
        assert uncovered(names, made.devices) == []
        assert made.devices.keys() <= known
        assert not locate(program.graph, made.devices).breaks
        assert 0 < made.elsewhere < 0.75


def test_weights_with_the_names_of_a_file_belong_to_their_modules() -> None:
    b = GraphBuilder("file")
    weight = b.source("blk.0.ffn_up.weight", 400, module="layers.0.up")
    cache = b.source("blk.0.cache", 400, op_type="buffer", module="layers.0")
    b.add("blk.0.ffn_up", inputs=[weight, cache], outputs=[4], module="layers.0.up")
    b.attributes = {"program": "decoder"}
    assert PlacedModules(*placed(b.build(), lambda v: 0), "a map").own_tensors == {"layers.0.up": [0]}
    b.attributes = {}
    assert PlacedModules(*placed(b.build(), lambda v: 0), "a map").own_tensors == {}
