"""Policy `given` and `placekit evaluate`: maps of the user's own, what they cost under accelerate, and what is wrong in them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from placekit_runtimes.accelerate.fitting import fitted
from placekit_runtimes.accelerate.hooks import locate
from placekit_runtimes.accelerate.reading import check_map
from placekit_runtimes.accelerate.simulation import run_by_accelerate
from placekit_runtimes.given import from_file

from placekit_core import Cluster, Graph, GraphBuilder, NotApplicable, PlacementError, Problem, place, save_graph

Run = Callable[..., Any]
LAUNCH, COPY_S, LATENCY = 1e-6, 1e-9, 1e-5


def machine(gpus: int = 2, memory_bytes: int = 10**6, cpu_bytes: int = 10**9) -> Cluster:
    kind = {"flops_per_s": {"float32": 1e9}, "memory_bytes_per_s": 1e30, "launch_overhead_s": LAUNCH}
    return Cluster.parse(
        {
            "name": "machine",
            "kinds": {
                "gpu": {**kind, "memory_bytes": memory_bytes, "efficiency": {"matmul": {"compute": 1, "memory": 1}}},
                "cpu": {
                    "type": "cpu",
                    "flops_per_s": {"float32": 1e7},
                    "memory_bytes": cpu_bytes,
                    "memory_bytes_per_s": 1e30,
                },
            },
            "devices": [{"kind": "gpu", "count": gpus}, {"kind": "cpu"}],
            "links": [{"mesh": "*", "bytes_per_s": 1 / COPY_S, "latency_s": LATENCY}],
        }
    )


def network() -> Graph:
    """Four modules with 10,000 bytes of weights each, 1 ms on a GPU; the third is called twice. A sum in the root."""
    b = GraphBuilder("net")
    weights: dict[str, int] = {}

    def product(module: str, x: int, call: int = 0) -> int:
        if module not in weights:
            weights[module] = b.source(f"{module}.weight", 10_000, op_type="parameter", module=module)
        return b.add(
            f"{module}/mm{call}", inputs=[x, weights[module]], outputs=[1000], flops=1e6, module=module, call=call,
            op_class="matmul",
        )[0]  # fmt: skip

    x = product("embed", b.source("input.0", 400, op_type="input"))
    x = product("layers.0", x)
    first = x = product("layers.1", x)
    x = product("layers.1", x, 1)
    [x] = b.add("add", inputs=[first, x], outputs=[1000])
    product("head", x)
    return b.build()


class TestOneThread:
    def seconds(self, devices: dict[str, Any], cluster: Cluster | None = None) -> Any:
        problem = Problem.of(network(), cluster or machine())
        return run_by_accelerate(problem, check_map(problem, devices, "map").located)

    def test_one_device_is_one_after_the_other(self) -> None:
        found = self.seconds({"": 0})
        problem = Problem.of(network(), machine())
        assert found.value_s == pytest.approx(float(problem.op_s[problem.graph.kernel, 0].sum()))
        assert found.moved_bytes == found.streamed_bytes == 0
        assert found.peak_bytes.tolist() == [4 * 10_000 + 400 + 3 * 1000, 0, 0], "first, x and the sum"

    def test_inputs_are_copied_at_each_call_and_both_gpus_wait(self) -> None:
        found = self.seconds({"embed": 0, "layers": 1, "head": 0})
        alone = self.seconds({"": 0}).value_s
        copy = LATENCY + 1000 * COPY_S
        assert found.moved_bytes == 2000, "to layers.0, and of the sum to head; layers.1 gets its input where it is"
        assert found.value_s == pytest.approx(alone + 2 * copy)

    def test_the_host_takes_its_time_to_launch_however_other_runtimes_launch(self) -> None:
        data = {**machine().model_dump(), "hosts": [{"launch_s": 1.0, "graph_handover_s": 9.0}], "launching": "graph"}
        last_s = float(Problem.of(network(), machine()).op_s[-1, 0])
        assert self.seconds({"": 0}, Cluster.parse(data)).value_s == pytest.approx(6 + last_s)
        found = self.seconds({"embed": 0, "layers": 1, "head": 0}, Cluster.parse(data))
        assert found.value_s == pytest.approx(6 + last_s, rel=1e-3), "copies are short, without the hand-over of graphs"

    def test_a_module_that_is_called_twice_gets_its_inputs_twice(self) -> None:
        b = GraphBuilder("net")
        x = b.source("input.0", 400, op_type="input")
        mask = b.source("input.1", 800, op_type="input")
        [x] = b.add("a", inputs=[x, mask], outputs=[4], module="a")
        for i in range(2):
            [x] = b.add(f"b{i}", inputs=[x, mask], outputs=[4], module="b", call=i)
        problem = Problem.of(b.build(), machine())
        found = run_by_accelerate(problem, check_map(problem, {"a": 0, "b": 1}, "map").located)
        assert found.moved_bytes == 4 + 2 * 800

    def test_weights_on_the_cpu_are_streamed_for_each_call(self) -> None:
        found = self.seconds({"embed": 0, "layers.0": 0, "layers.1": "cpu", "head": 0})
        assert found.streamed_bytes == 20_000
        assert found.value_s == pytest.approx(self.seconds({"": 0}).value_s + 2 * (LATENCY + 10_000 * COPY_S))
        assert found.peak_bytes[2] == 10_000
        assert found.peak_bytes[0] == 3 * 10_000 + 400 + 10_000 + 2000


class TestMaps:
    def placed(self, devices: dict[str, Any], graph: Graph | None = None) -> dict[str, str]:
        problem = Problem.of(graph or network(), machine())
        placement = check_map(problem, devices, "own.json").placement
        names = problem.cluster.device_names
        return {o: names[d] for o, d in zip(problem.graph.op_name, problem.expand(placement.device), strict=True)}

    def test_operations_are_with_their_module(self) -> None:
        found = self.placed({"embed": 0, "layers": "cuda:1", "head": "cpu"})
        assert found["embed/mm0"] == found["embed.weight"] == found["input.0"] == "gpu:0"
        assert found["layers.1/mm1"] == found["layers.1.weight"] == "gpu:1"
        assert found["add"] == "gpu:1", "where its inputs are"
        assert found["head/mm0"] == found["head.weight"] == "cpu:0"

    def test_names_of_a_device(self) -> None:
        for name in (1, "1", "gpu:1", "cuda:1"):
            assert set(self.placed({"": name}).values()) == {"gpu:1"}

    def test_mistakes_are_named(self) -> None:
        mistakes: list[tuple[dict[str, Any], str]] = [
            ({"": 2}, r"own\.json puts '' on 2, which is not a device of the machine\n  available: 0, 1, cpu"),
            ({"": True}, "puts '' on True, which is not a device"),
            ({"": "gpu1"}, r"on 'gpu1', which is not a device of the machine\n.*gpu:1"),
            (
                {"embed": 0, "layers": "disk", "head": 0},
                r"puts 'layers' on 'disk'.*have no disk\n.*put the module on 'cpu': its weights",
            ),
            (
                {"embed": 0, "layer.1": 0, "layers.0": 0, "head": 0},
                r"'layer\.1', which 'net' does not.*\n.*'layers\.1'",
            ),
            ({"": 0, "layers.2": 1}, r"names 'layers\.2', which 'net' does not have"),
            ({"h.0": 0}, r"names 'h\.0', which 'net' does not have\n  name the model of the map, e\.g\. model=hf:NAME"),
            ({"embed": 0, "head": 0}, r"gives no device to 'layers\.0', 'layers\.1' of 'net'"),
            ({}, r"own\.json is empty\n"),
        ]
        for devices, message in mistakes:
            with pytest.raises(PlacementError, match=message):
                self.placed(devices)

    def test_a_module_that_computes_nothing_is_a_note(self) -> None:
        problem = Problem.of(network(), machine())
        own = check_map(problem, {"": 0, "layers.drop": 0}, "own.json")
        assert own.notes == (
            "own.json names 'layers.drop': ignored, because no module of 'net' there holds or computes anything",
        )

    def test_what_accelerate_cannot_run(self) -> None:
        def why(graph: Graph, devices: dict[str, Any]) -> list[str]:
            return [b.why for b in locate(graph, devices).breaks]

        assert why(network(), {"embed": 0, "layers.0": 0, "layers.1": 1, "head": 0}) == []
        b = GraphBuilder("net")
        w = b.source("a.weight", 4, op_type="parameter", module="a")
        [x] = b.add("a", inputs=[w], outputs=[4], module="a")
        [y] = b.add("b", inputs=[x], outputs=[4], module="b")
        [z] = b.add("add", inputs=[x, y], outputs=[4])
        b.add("head", inputs=[z, w], outputs=[4], module="head")
        graph = b.build()
        assert why(graph, {"": 0}) == []
        assert why(graph, {"a": 0, "b": 1, "head": 1}) == [
            "the network reads 'a' on GPU 0 and 'b' on GPU 1, and accelerate moves neither",
            "module 'head' reads 'a.weight', which is on GPU 0",
        ]

    def test_training_does_not_stream(self) -> None:
        b = GraphBuilder("net")
        w = b.source("a.weight", 4, op_type="parameter", module="a")
        [x] = b.add("a", inputs=[w], outputs=[4], module="a")
        b.add("a:backward", inputs=[x], outputs=[4], module="a", phase="backward")
        b.add("b", inputs=[x], outputs=[4], module="b")
        [found] = locate(b.build(), {"a": "cpu", "b": 0}).breaks
        assert "whose weights accelerate drops after the forward pass" in found.why


def test_files_that_hold_no_map(tmp_path: Path) -> None:
    path = tmp_path / "map.json"
    problem = Problem.of(network(), machine())
    with pytest.raises(PlacementError, match=r"cannot read .*: No such file"):
        from_file(problem, path)
    for text, message in (
        ("[1]", "holds a list, not a device map\n  give a device map"),
        ("{", "is not JSON"),
        ('{"": 0, "": 1}', "the key '' occurs twice"),
        ("\udcff", "is not JSON"),
    ):
        path.write_bytes(text.encode(errors="surrogateescape"))
        with pytest.raises(PlacementError, match=message):
            from_file(problem, path)


def test_a_sweep_and_python_take_a_map() -> None:
    options = {"name": "given", "map": {"": 0}}
    result = place(network(), cluster=machine(), policy=options)
    assert result.placement is not None
    assert set(result.placement.device.tolist()) == {0}
    with pytest.raises(NotApplicable, match=r"policy given has no placement\n  give it policy.path=FILE"):
        place(network(), cluster=machine(), policy="given")


CLUSTER = """\
kinds:
  gpu: {flops_per_s: {float32: 1.0e+9}, memory_bytes: 60000, memory_bytes_per_s: 1.0e+9}
  cpu: {type: cpu, flops_per_s: {float32: 1.0e+8}, memory_bytes: 1000000, memory_bytes_per_s: 1.0e+8}
devices: [{kind: gpu, count: 2}, {kind: cpu}]
links: [{mesh: "*", bytes_per_s: 1.0e+9, latency_s: 1.0e-6}]
"""
OPTIONS = ("importer=file", "importer.path=net.graph.npz", "cluster=machine.yaml")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    save_graph(network(), tmp_path / "net.graph.npz")
    (tmp_path / "machine.yaml").write_text(CLUSTER)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_evaluate_prints_what_a_map_costs(placekit: Run, folder: Path) -> None:
    (folder / "map.json").write_text(json.dumps({"embed": 0, "layers": 1, "head": "cpu"}))
    done = placekit("evaluate", "map.json", *OPTIONS)
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert re.fullmatch(r"net on machine, simulated, proven bound \S+ \w+ for the whole graph", lines[0])
    assert lines[1].split() == ["placement", "makespan", "gap", "run", "by", "accelerate"]
    assert lines[2].startswith("map.json ")
    assert lines[3].startswith("accelerate's own map ")
    assert "peak memory: gpu:0 " in done.out
    assert "of weights from the CPU" in " ".join(done.out.split())


def test_the_placement_of_a_run_is_evaluated_as_it_was(placekit: Run, folder: Path) -> None:
    assert placekit("run", *OPTIONS, "policy=etf", "run_dir=run").code == 0
    value_s = json.loads((folder / "run" / "result.json").read_text())["value_s"]
    done = placekit("evaluate", "run/placement.json", *OPTIONS)
    assert f"{value_s * 1e3:.4g} ms" in done.out.splitlines()[2]
    (folder / "map.json").write_text(placekit("apply", "run").out)
    assert placekit("evaluate", "map.json", *OPTIONS).code == 0


def test_what_does_not_fit_is_one_error_with_bytes(placekit: Run, folder: Path) -> None:
    (folder / "map.json").write_text('{"": 0}')
    small = CLUSTER.replace("60000", "30000")
    (folder / "machine.yaml").write_text(small)
    done = placekit("evaluate", "map.json", *OPTIONS)
    assert (done.code, done.out) == (1, "")
    assert "map.json does not fit: gpu:0 needs 43,400 bytes and has 30,000\n  move modules" in done.err


def test_a_policy_places_by_the_file(placekit: Run, folder: Path) -> None:
    (folder / "map.json").write_text('{"": 1}')
    assert placekit("run", *OPTIONS, "policy=given", "policy.path=map.json", "run_dir=a").code == 0
    assert (
        placekit("run", *OPTIONS, "policy=given", "policy.map={embed:1,layers.0:0,layers.1:1,head:1}", "run_dir=b").code
        == 0
    )
    devices = [json.loads((folder / r / "placement.json").read_text())["assignment"] for r in "ab"]
    assert set(devices[0].values()) == {"gpu:1"}
    assert {o for o, d in devices[1].items() if d == "gpu:0"} == {"layers.0.weight", "layers.0/mm0"}


class TestFitting:
    def fit(self, devices: dict[str, Any], **memory: int) -> tuple[Any, Any]:
        """The map before and after, on a machine with this memory."""
        problem = Problem.of(network(), machine(**memory))
        before = check_map(problem, devices, "own.json")
        return before, fitted(problem, before)

    def test_streamed_weights_get_room_on_another_gpu(self) -> None:
        """Three modules fill the first GPU; the fourth is streamed through it, and fits on the second."""
        devices: dict[str, Any] = {"embed": 0, "layers.0": 0, "layers.1": 0, "head": "cpu"}
        _, found = self.fit(devices, memory_bytes=35_000)
        assert found.devices == {**devices, "head": 1} == json.loads(found.text)
        assert found.notes[0].endswith("streams weights through the main device: 'head' is on GPU 1 instead of cpu")
        problem = Problem.of(network(), machine(memory_bytes=35_000))
        assert (run_by_accelerate(problem, found.located).peak_bytes <= [35_000, 35_000, 1e9]).all()

    def test_what_fits_or_cannot_fit_stays(self) -> None:
        devices: dict[str, Any] = {"embed": 0, "layers.0": 0, "layers.1": 0, "head": 1}
        for memory in ({}, {"memory_bytes": 8000, "cpu_bytes": 35_000}):
            before, found = self.fit(devices, **memory)
            assert found is before
        assert self.fit(devices, memory_bytes=8000)[1].devices == dict.fromkeys(devices, "cpu")
