"""Modules that a placement streams from the CPU are `cpu` in a device_map."""

from __future__ import annotations

import numpy as np
from placekit_runtimes import device_map

from placekit_core import Cluster, Graph, GraphBuilder, Placement, Problem

GPU, OTHER, CPU = 0, 1, 2


def network(layers: int = 3) -> Graph:
    """embed, blocks of a norm, a product and a sum without weights; head."""
    b = GraphBuilder("net")

    def leaf(module: str, x: int, weighted: bool = True) -> int:
        weight = [b.source(f"{module}.weight", 4_000_000, op_type="parameter", module=module)] if weighted else []
        [y] = b.add(f"{module}/mm", op_class="matmul", inputs=[x, *weight], outputs=[400], flops=1e10, module=module)
        return y

    x = leaf("embed", b.source("input.0", 400, op_type="input"))
    for i in range(layers):
        for part in ("norm", "product", "dropout"):
            x = leaf(f"layers.{i}.{part}", x, part != "dropout")
        [x] = b.add(f"layers.{i}/add", inputs=[x], outputs=[400], module=f"layers.{i}")
    leaf("head", x)
    return b.build()


def placed(
    graph: Graph, weights_away: tuple[str, ...], computes: dict[str, int] | None = None
) -> tuple[Problem, Placement]:
    """Everything on the first GPU, but the weights below some modules on the CPU; `computes`: devices of other modules."""
    gpu = {"flops_per_s": {"float32": 1e13}, "memory_bytes": 10**9, "memory_bytes_per_s": 1e12}
    cluster = Cluster.parse(
        {
            "kinds": {"gpu": gpu, "host": {**gpu, "type": "cpu"}},
            "devices": [{"kind": "gpu", "count": 2}, {"kind": "host"}],
            "links": [{"a": "*", "b": "pcie", "bytes_per_s": 1e10}],
        }
    )
    problem = Problem.of(graph, cluster)
    device = []
    for module, kind, kernel in zip(graph.module.tolist(), graph.op_type.tolist(), graph.kernel.tolist(), strict=True):
        away = (
            not kernel and kind == "parameter" and any(module == m or module.startswith(f"{m}.") for m in weights_away)
        )
        other = [d for m, d in (computes or {}).items() if module == m or module.startswith(f"{m}.")]
        device.append(CPU if away else other[0] if other else GPU)
    return problem, problem.placement(device)


def test_a_streamed_layer_is_on_the_cpu_as_a_whole() -> None:
    """Modules without weights are in it, too; and the map means that the main device computes."""
    problem, placement = placed(network(), ("layers.1",))
    made = device_map(problem, placement)
    assert made.devices == {"embed": 0, "layers.0": 0, "layers.1": "cpu", "layers.2": 0, "head": 0}
    assert (made.conflicts, made.elsewhere) == ((), 0.0)
    assert made.placement.same_as(placement)


def test_what_the_cpu_computes_is_meant_so() -> None:
    problem, placement = placed(network(), ("layers.1", "layers.2"), {"layers.2": CPU})
    made = device_map(problem, placement)
    assert made.devices == {"embed": 0, "layers.0": 0, "layers.1": "cpu", "layers.2": "cpu", "head": 0}
    home = problem.expand(made.placement.device)
    product = [problem.graph.op_name.index(f"layers.{i}.product/mm") for i in (1, 2)]
    assert home[product].tolist() == [GPU, CPU]


def test_the_main_device_computes_what_another_gpu_streams() -> None:
    """accelerate cannot stream to another GPU: the map's placement says what it costs."""
    problem, placement = placed(network(), ("layers.1",), {"layers.1": OTHER, "layers.2": OTHER})
    made = device_map(problem, placement)
    assert made.devices["layers.1"] == "cpu"
    home = problem.expand(made.placement.device)
    assert home[problem.graph.op_name.index("layers.1.product/mm")] == GPU
    assert home[problem.graph.op_name.index("layers.2.product/mm")] == OTHER


def test_a_streamed_placement_comes_back_layer_by_layer() -> None:
    chosen = np.random.default_rng(3).random(6) < 0.5
    layers = [f"layers.{i}" for i in range(6)]
    away = tuple(m for m, c in zip(layers, chosen, strict=True) if c)
    problem, placement = placed(network(6), away)
    made = device_map(problem, placement)
    assert {m: made.devices[m] for m in layers if m in made.devices} == {m: "cpu" if m in away else 0 for m in layers}
    assert made.placement.same_as(placement)
