"""The placements that people make by hand: their contracts, and that they are what the papers say."""

from __future__ import annotations

import json
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
from placekit_heuristics.data_parallel import DataParallel
from placekit_heuristics.experts import Expert
from placekit_heuristics.simple import SingleCpu, SingleGpu
from placekit_testing import PolicyContract, fakes
from placekit_testing.contract import Make

from placekit_core import Cluster, ClusterError, Graph, GraphBuilder, Grouping, NotApplicable, Problem, Task, installed

GPUS = {"flops_per_s": {"float32": 1e12}, "memory_bytes": 10**9, "memory_bytes_per_s": 1e12, "launch_overhead_s": 1e-6}


class TestSingleGpu(PolicyContract):
    @pytest.fixture
    def make(self) -> Make:
        return SingleGpu


class TestSingleCpu(PolicyContract):
    short = True

    @pytest.fixture
    def make(self) -> Make:
        return partial(SingleCpu, otherwise="single_device")


class TestExpert(PolicyContract):
    @pytest.fixture
    def make(self) -> Make:
        return partial(Expert, otherwise="single_device")


class TestDataParallel(PolicyContract):
    @pytest.fixture
    def make(self) -> Make:
        return partial(DataParallel, otherwise="single_device")


def machine(gpus: int, cpus: int = 1) -> Cluster:
    """GPUs gpu:0 ..., then CPUs of a tenth of their speed."""
    return Cluster.parse({
        "name": "machine",
        "kinds": {"gpu": GPUS, "cpu": {**GPUS, "type": "cpu", "flops_per_s": {"float32": 1e11}}},
        "devices": [{"kind": "gpu", "count": gpus}] * (gpus > 0) + [{"kind": "cpu", "count": cpus}] * (cpus > 0),
        "links": [{"mesh": "*", "bytes_per_s": 1e10}] if gpus + cpus > 1 else [],
    })  # fmt: skip


def placed(policy: Any, problem: Problem) -> tuple[np.ndarray[Any, Any], Task]:
    """[n] device of each operation, and the task."""
    task = fakes.fake_task(problem)
    return problem.expand(policy.place(task, np.random.default_rng(0)).device), task


def network(importer: str, **options: Any) -> Graph:
    """A network of the zoo."""
    pytest.importorskip("placekit_zoo")
    return loaded(importer, json.dumps(options))


@cache
def loaded(importer: str, options: str) -> Graph:
    import torch

    torch.set_num_threads(1)
    entry = installed().get("importer", importer)
    graph: Graph = entry.build(entry.component.config(**json.loads(options))).load()[0].graph
    return graph


RECURRENT = {"hidden": 16, "batch": 4, "vocabulary": 50, "dropout": 0.0}
IMAGES = {"width": 0.05, "batch": 2, "classes": 10}


def devices_of_module(graph: Graph, device: np.ndarray[Any, Any], path: str) -> set[int]:
    """Where the operations of a module and below it are."""
    return {int(device[v]) for v in range(graph.n) if graph.module[v] == path or graph.module[v].startswith(f"{path}.")}


def test_single_gpu_and_single_cpu() -> None:
    b = GraphBuilder("mixed")
    for i, allowed in enumerate(("", "cpu", "gpu", "")):
        b.add(f"op{i}", outputs=[1], flops=1e9, allowed=allowed)
    problem = Problem.of(b.build(), machine(2))
    assert placed(SingleGpu(), problem)[0].tolist() == [0, 2, 0, 0]
    assert placed(SingleGpu(device="gpu:1"), problem)[0].tolist() == [1, 2, 1, 1]
    assert placed(SingleCpu(), problem)[0].tolist() == [2, 2, 0, 2]
    with pytest.raises(ClusterError, match=r"'gpu:1' is not a cpu\n.*cpu:0"):
        placed(SingleCpu(device="gpu:1"), problem)


@pytest.mark.parametrize(
    ("policy", "cluster", "lacks"), [(SingleCpu, machine(2, 0), "cpu"), (SingleGpu, machine(0, 2), "gpu")]
)
def test_no_such_device(policy: Any, cluster: Cluster, lacks: str) -> None:
    problem = Problem.of(fakes.independent_graph(3), cluster)
    with pytest.raises(NotApplicable, match=f"'machine' has no {lacks}\n.*{cluster.device_names[1]}.*k80x4"):
        placed(policy(), problem)
    device, task = placed(policy(otherwise="single_device"), problem)
    assert device.tolist() == [0, 0, 0]
    assert task.evaluate.notes == [f"cluster 'machine' has no {lacks}: everything was placed on one device"]


def test_no_expert_for_a_graph_without_structure() -> None:
    problem = Problem.of(fakes.diamond_graph(), machine(2))
    with pytest.raises(
        NotApplicable, match=r"no expert's placement[\s\S]*recurrent.*inception.*cells.*residual.*policy.otherwise="
    ):
        placed(Expert(), problem)
    device, task = placed(Expert(otherwise="single_device"), problem)
    assert set(device.tolist()) == {0}
    assert "no expert's placement" in task.evaluate.notes[0]


def test_rnnlm_has_a_layer_per_device() -> None:
    """Mirhoseini et al. 2017, section 4.2, with their gradients, updates and state; layer i is on GPU i mod D."""
    graph = network("rnnlm", steps=3, layers=3, **RECURRENT)
    for gpus in (1, 2, 4):
        device, _ = placed(Expert(), Problem.of(graph, machine(gpus)))
        assert devices_of_module(graph, device, "embedding") == {0}
        for layer in range(3):
            assert devices_of_module(graph, device, f"cells.{layer}") == {layer % gpus}
        assert devices_of_module(graph, device, "softmax") == {2 % gpus}
        assert device[graph.op_name.index("input.0")] == 0


def test_nmt_has_a_layer_of_both_sides_per_device() -> None:
    graph = network("nmt", length=3, **RECURRENT)
    device, _ = placed(Expert(), Problem.of(graph, machine(4)))
    where = {path: devices_of_module(graph, device, path) for path in (
        "source_embedding", "target_embedding", "encoder.0", "decoder.0",
        "encoder.1", "decoder.1", "memory", "attention", "softmax",
    )}  # fmt: skip
    assert list(where.values()) == [{0}] * 4 + [{1}] * 5


@pytest.mark.slow
def test_inception_in_contiguous_parts_of_equal_cost() -> None:
    graph = network("inception_v3", image_size=75, **IMAGES)
    for gpus in (1, 2, 4):
        problem = Problem.of(graph, machine(gpus))
        device, _ = placed(Expert(), problem)
        blocks = [f"Mixed_{b}" for b in ("5b", "5c", "5d", "6a", "6b", "6c", "6d", "6e", "7a", "7b", "7c")]
        order = ["Conv2d_1a_3x3", "Conv2d_2a_3x3", "Conv2d_2b_3x3", *blocks, "fc", "loss"]
        where = [devices_of_module(graph, device, path) for path in order]
        assert all(len(w) == 1 for w in where)
        parts = [next(iter(w)) for w in where]
        assert parts == sorted(parts)
        assert set(parts) == set(range(gpus))
        load = np.bincount(device, problem.op_s[:, 0], minlength=gpus)[:gpus]
        assert load.max() < 1.25 * load.mean()


def branches_of(graph: Graph, device: np.ndarray[Any, Any], block: str) -> list[set[int]]:
    """Where each submodule of a block is."""
    below = (
        m.removeprefix(f"{block}.").partition(".")[0] for m in graph.module.vocabulary if m.startswith(f"{block}.")
    )
    return [devices_of_module(graph, device, f"{block}.{name}") for name in dict.fromkeys(below)]


@pytest.mark.slow
def test_inception_with_a_branch_per_device() -> None:
    """Placeto, section 3.2: four branches, four GPUs; each branch, with its pooling, is whole."""
    graph = network("inception_v3", image_size=75, **IMAGES)
    device, _ = placed(Expert(inception="branches"), Problem.of(graph, machine(4)))
    for block in ("Mixed_5b", "Mixed_6c", "Mixed_7b"):
        assert sorted(branches_of(graph, device, block), key=str) == [{0}, {1}, {2}, {3}]
    assert devices_of_module(graph, device, "Conv2d_1a_3x3") == devices_of_module(graph, device, "fc") == {0}
    device, _ = placed(Expert(inception="branches"), Problem.of(graph, machine(2)))
    assert all(len(w) == 1 for w in branches_of(graph, device, "Mixed_6c"))
    assert set(device.tolist()) == {0, 1}
    device, _ = placed(Expert(inception="single"), Problem.of(graph, machine(4)))
    assert set(device.tolist()) == {0}


def test_branches_by_data_where_submodules_are_layers() -> None:
    """A branch may be several submodules and functions one after the other, as in other definitions of Inception."""
    torch = pytest.importorskip("torch")
    placekit_torch = pytest.importorskip("placekit_torch")

    class Mixed(torch.nn.Module):
        def __init__(self, inputs: int) -> None:
            super().__init__()
            self.branch1 = torch.nn.Conv2d(inputs, 4, 1)
            self.branch5_1, self.branch5_2 = torch.nn.Conv2d(inputs, 4, 1), torch.nn.Conv2d(4, 4, 5, padding=2)
            self.branch_pool = torch.nn.Conv2d(inputs, 4, 1)

        def forward(self, x: Any) -> Any:
            pool = self.branch_pool(torch.nn.functional.avg_pool2d(x, 3, 1, 1))
            return torch.cat([self.branch1(x), torch.relu(self.branch5_2(self.branch5_1(x))), pool], 1)

    net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), Mixed(8), Mixed(12))
    graph = placekit_torch.import_module(net, torch.zeros(2, 3, 16, 16), mode="inference").graph
    device, _ = placed(Expert(inception="branches"), Problem.of(graph, machine(3)))
    for block in ("1", "2"):
        first, second, pool, alone = (
            devices_of_module(graph, device, f"{block}.{name}")
            for name in ("branch5_1", "branch5_2", "branch_pool", "branch1")
        )
        assert first == second
        assert len(first | pool | alone) == 3
        pooling = [v for v in range(graph.n) if graph.module[v] == block and "avg_pool" in graph.op_type[v]]
        assert {int(device[v]) for v in pooling} == pool


def layered(cpu_only: bool = False) -> Graph:
    """Two recurrent layers of three steps, without torch: `cells.0` and `cells.1`, and a loss."""
    b = GraphBuilder("layered")
    x = b.source("x", 100, op_type="input")
    state: list[list[int]] = [[], []]
    for step in range(3):
        below = x
        for layer in range(2):
            [below] = b.add(
                f"cell{layer}.{step}", inputs=[below, *state[layer]], outputs=[100], flops=1e6 * (1 + layer),
                module=f"cells.{layer}", call=step,
            )  # fmt: skip
            state[layer] = [below]
    b.add("loss", inputs=state[1], outputs=[4], flops=1e3, allowed="cpu" if cpu_only else "")
    return b.build()


def test_a_group_goes_where_most_of_its_seconds_belong() -> None:
    graph = layered()
    steps = Grouping(np.array([0, 0, 0, 1, 1, 2, 2, 2]))
    device, task = placed(Expert(), Problem.of(graph, machine(2), steps))
    assert set(device.tolist()) == {1}
    assert "3 operations in 3 groups" in task.evaluate.notes[0]


def towers(count: int) -> Graph:
    """Replicas of an operation that share two parameters; averages and updates."""
    b = GraphBuilder("towers")
    w = [b.source(f"w{i}", 1000 * (i + 1), colocate=i) for i in range(2)]
    gradients: list[list[int]] = [[], []]
    for i in range(count):
        x = b.source(f"x{i}", 10, op_type="input")
        for gradient, t in zip(gradients, b.add(f"tower{i}", inputs=[x, *w], outputs=[1000, 2000]), strict=True):
            gradient.append(t)
    for i in range(2):
        mean = b.add(f"mean{i}", inputs=gradients[i], outputs=[1000 * (i + 1)])
        b.output(len(b.operations), 1000 * (i + 1), storage=w[i])
        b.add(f"update{i}", inputs=[w[i], *mean], colocate=i, phase="update")
    tower = [int(o.name[-1]) if o.name[0] in "xt" else -1 for o in b.operations]
    b.columns["tower"] = np.asarray(tower, np.int16)
    return b.build()


def by_name(graph: Graph, device: np.ndarray[Any, Any]) -> dict[str, int]:
    return dict(zip(graph.op_name, device.tolist(), strict=True))


def test_towers_and_parameters() -> None:
    """Tower i on GPU i, inputs on the CPU; averages and updates with their parameters, the larger one first."""
    graph = towers(3)
    for parameters, cpus, *holders in [("cpu", 1, 3, 3), ("gpu:1", 1, 1, 1), ("spread", 1, 1, 0), ("spread", 0, 1, 0)]:
        device, _ = placed(DataParallel(parameters=parameters), Problem.of(graph, machine(3, cpus)))
        inputs = {f"x{i}": 3 if cpus else i for i in range(3)}
        held = {f"{name}{i}": holders[i] for i in range(2) for name in ("w", "mean", "update")}
        assert by_name(graph, device) == {f"tower{i}": i for i in range(3)} | inputs | held


def test_more_towers_than_gpus() -> None:
    graph = towers(3)
    device, task = placed(DataParallel(), Problem.of(graph, machine(2)))
    assert [by_name(graph, device)[f"tower{i}"] for i in range(3)] == [0, 1, 0]
    assert task.evaluate.notes == ["3 towers share the 2 GPUs of 'machine'"]


def test_not_data_parallel() -> None:
    for graph, cluster, says in [
        (fakes.diamond_graph(), machine(2), r"no towers[\s\S]*importer=towers"),
        (towers(2), machine(2, 0), r"has no CPU[\s\S]*=spread.*policy.parameters=DEVICE: gpu:0"),
        (towers(2), machine(0, 2), "has no gpu"),
    ]:
        with pytest.raises(NotApplicable, match=says):
            placed(DataParallel(), Problem.of(graph, cluster))
