"""The machine model by hand: seconds and bytes that one can follow with a pencil. Links carry 1 byte per second."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from machine_model import Rules, execute
from placekit_sim.simulator import BulkSynchronous, Simulator

from placekit_core import (
    Cluster,
    ClusterError,
    CostFile,
    CostTable,
    Graph,
    GraphBuilder,
    GraphError,
    Problem,
    Schedule,
)
from placekit_core.contracts.costs import EFFICIENCY

MESH: dict[str, Any] = {"links": [{"mesh": "*", "bytes_per_s": 1.0}]}
HUB: dict[str, Any] = {"links": [{"a": "gpu:*", "b": "switch", "bytes_per_s": 1.0}]}
FREE = {"bytes_per_s": 1e30, "concurrent": "unlimited"}
BUS: dict[str, Any] = {"links": [{"a": "gpu:*", "b": "net", "bytes_per_s": 1.0, "reverse": FREE}]}


def cluster(devices: int, layout: dict[str, Any] | None = None, **kind: Any) -> Cluster:
    gpu = {"flops_per_s": {"float32": 1.0}, "memory_bytes": 1000, "memory_bytes_per_s": 1.0, **kind}
    layout = (layout or MESH) if devices > 1 else {}
    return Cluster.parse({"kinds": {"gpu": gpu}, "devices": [{"kind": "gpu", "count": devices}], **layout})


def problem(graph: Graph, machine: Cluster, seconds: Mapping[str, float]) -> Problem:
    op_s = np.asarray([[seconds.get(name, 0.0)] for name in graph.op_name])
    return Problem.of(graph, machine, costs=CostTable(("gpu",), op_s, np.zeros(op_s.shape, np.bool_)))


def measure(
    p: Problem, device: list[int], priority: list[float] | None = None, bulk: bool = False, **options: Any
) -> tuple[float, list[float], Schedule]:
    """Makespan, peak bytes and schedule on the kernel; the second opinion must say the same."""
    session = (BulkSynchronous if bulk else Simulator)(**options).open(p)
    placement = p.placement(device, priority)
    result, schedule = session.evaluate(placement.batch()), session.schedule(placement)
    expected = execute(p, device, priority, Rules(bulk=bulk, **options))
    assert expected.value_s == result.value_s[0] == schedule.value_s
    assert expected.peak_bytes == result.peak_bytes[0].tolist()
    return float(result.value_s[0]), result.peak_bytes[0].tolist(), schedule


def sends(s: Schedule) -> list[tuple[int, int, int, float, float]]:
    """(tensor, from, to, start, end) of each transfer."""
    columns = (s.transfer_tensor, s.transfer_src, s.transfer_dst, s.transfer_start_s, s.transfer_end_s)
    return [tuple(row) for row in zip(*(c.tolist() for c in columns), strict=True)]


def chain() -> Graph:
    b = GraphBuilder("chain")
    (x,) = b.add("a", outputs=[4])
    (y,) = b.add("b", inputs=[x], outputs=[2])
    b.add("c", inputs=[y])
    return b.build()


def test_a_transfer_takes_latency_and_bytes() -> None:
    machine = cluster(2, {"links": [{"mesh": "*", "bytes_per_s": 2.0, "latency_s": 0.5}]})
    value, _, schedule = measure(problem(chain(), machine, {"a": 1, "b": 2, "c": 3}), [0, 1, 1])
    assert value == 1 + (0.5 + 4 / 2) + 2 + 3
    assert sends(schedule) == [(0, 0, 1, 1.0, 3.5)]


def row(n: int) -> Graph:
    """n operations without edges."""
    b = GraphBuilder("row")
    for i in range(n):
        b.add(f"o{i}")
    return b.build()


def hosted(devices: int, launch_s: float = 2.0, **fields: Any) -> Cluster:
    """A machine with one host, which launches in 2 s."""
    host = {"launch_s": launch_s, "handover_s": 1.0, "graph_handover_s": 10.0}
    return cluster(devices, {**MESH, "hosts": [host], **fields})


def starts(schedule: Schedule) -> list[float]:
    return [float(s) for s in schedule.op_start_s]


def test_one_host_launches_for_all_devices() -> None:
    p = problem(row(4), hosted(2), dict.fromkeys(("o0", "o1", "o2", "o3"), 1.0))
    for device in ([0, 0, 0, 0], [0, 1, 0, 1]):  # a second device is of no use: the host does not launch faster
        value, _, schedule = measure(p, device)
        assert starts(schedule) == [2, 4, 6, 8]
        assert value == 9


def test_long_operations_hide_launches() -> None:
    p = problem(row(3), hosted(2), {"o0": 5.0, "o1": 1.0, "o2": 1.0})
    value, _, schedule = measure(p, [0, 0, 0])
    assert starts(schedule) == [2, 7, 8]
    assert value == 9


def test_ways_of_launching() -> None:
    seconds = dict.fromkeys(("a", "b", "c"), 1.0)
    found = {
        how: measure(problem(chain(), hosted(2, launching=how), seconds), [0, 0, 1])
        for how in ("eager", "per_device", "graph")
    }
    assert starts(found["eager"][2]) == [2, 4, 8]  # b ends at 5; 1 to hand over and 2 for 2 bytes
    assert starts(found["per_device"][2]) == [2, 4, 8]  # c was launched at 2
    assert starts(found["graph"][2]) == [0, 1, 14]  # no launches, but a hand-over takes 10


def test_launches_of_an_operation() -> None:
    b = GraphBuilder("three")
    for i in range(3):
        b.add(f"o{i}")
    b.columns["launches"] = np.asarray([1.0, 0.25, 2.0])
    value, _, schedule = measure(problem(b.build(), hosted(2), {"o0": 0.0}), [0, 0, 1])
    assert starts(schedule) == [2, 2.5, 6.5]
    assert value == 6.5


def test_priorities_choose_among_launched_operations() -> None:
    p = problem(row(3), hosted(2, launch_s=1.0), dict.fromkeys(("o0", "o1", "o2"), 3.0))
    _, _, schedule = measure(p, [0, 0, 0], [1.0, 2.0, 3.0])
    assert starts(schedule) == [1, 7, 4]  # o0 is the only one at 1; at 4, both others are launched


def test_devices_without_a_host_launch_at_once() -> None:
    machine = cluster(2, {**MESH, "hosts": [{"devices": "gpu:1", "launch_s": 2.0}]})
    _, _, schedule = measure(problem(row(3), machine, {}), [0, 1, 0])
    assert starts(schedule) == [0, 2, 0]


def test_barriers_wait_for_launches() -> None:
    p = problem(chain(), hosted(2, launch_s=4.0), {"a": 1, "b": 1, "c": 1})
    _, _, schedule = measure(p, [0, 0, 0], bulk=True)
    assert starts(schedule) == [4, 8, 12]


def test_hosts_are_checked() -> None:
    for hosts, message in (
        ([{"devices": "gpu:7", "launch_s": 1.0}], "host of 'gpu:7' matches no device"),
        ([{"launch_s": 1.0}, {"devices": "gpu:0", "launch_s": 1.0}], "gpu:0 of 'cluster' has two hosts"),
        ([{"devices": [], "launch_s": 1.0}], "should have at least 1 item"),
    ):
        with pytest.raises(ClusterError, match=message):
            cluster(2, {**MESH, "hosts": hosts})


@pytest.mark.parametrize("wrong", [-1.0, float("nan"), float("inf")])
def test_launches_are_checked(wrong: float) -> None:
    b = GraphBuilder("two")
    b.add("o0")
    b.add("o1")
    b.columns["launches"] = np.asarray([1.0, wrong])
    with pytest.raises(GraphError, match="column 'launches' of 'two' holds no launch counts"):
        Problem.of(b.build(), hosted(2))


def fork() -> Graph:
    """a writes x (2 bytes) for b and y (3 bytes) for c."""
    b = GraphBuilder("fork")
    x, y = b.add("a", outputs=[2, 3])
    b.add("b", inputs=[x])
    b.add("c", inputs=[y])
    return b.build()


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        (MESH, 5),  # both at once
        (HUB, 7),  # x 1..3, y 3..6 over the one egress of a's device
        (BUS, 7),
        ({"links": [{"a": "gpu:*", "b": "switch", "bytes_per_s": 1.0, "concurrent": 2}]}, 5),
        ({"links": [{"a": "gpu:*", "b": "switch", "bytes_per_s": 1.0, "concurrent": "unlimited"}]}, 5),
    ],
)
def test_transfers_share_an_egress(layout: dict[str, Any], expected: float) -> None:
    p = problem(fork(), cluster(3, layout), {"a": 1, "b": 1, "c": 1})
    assert measure(p, [0, 1, 2])[0] == expected


def test_a_blocked_transfer_does_not_block_the_next() -> None:
    b = GraphBuilder("blocked")
    x, y, z = (b.source(name, size) for name, size in (("x", 4), ("y", 1), ("z", 1)))
    for name, tensor in (("rx", x), ("ry", y), ("rz", z)):
        b.add(name, inputs=[tensor])
    p = problem(b.build(), cluster(4, HUB), {})
    _, _, schedule = measure(p, [3, 0, 0, 1, 1, 2])
    # y waits for the ingress of device 1, which x holds; z, behind y, goes at once
    assert sends(schedule) == [(0, 3, 1, 0.0, 4.0), (1, 0, 1, 4.0, 5.0), (2, 0, 2, 0.0, 1.0)]


def test_half_duplex_links_carry_one_direction_at_a_time() -> None:
    b = GraphBuilder("exchange")
    x, y = b.source("x", 3), b.source("y", 2)
    b.add("rx", inputs=[x])
    b.add("ry", inputs=[y])
    for duplex, expected in (("full", 3), ("half", 5)):
        machine = cluster(2, {"links": [{"mesh": "*", "bytes_per_s": 1.0, "duplex": duplex}]})
        assert measure(problem(b.build(), machine, {}), [0, 1, 1, 0])[0] == expected


def test_a_route_over_a_device_holds_both_links() -> None:
    links = [
        {"a": "gpu:0", "b": "gpu:1", "bytes_per_s": 1.0, "latency_s": 1.0},
        {"a": "gpu:1", "b": "gpu:2", "bytes_per_s": 4.0, "latency_s": 2.0},
    ]
    b = GraphBuilder("relay")
    x, y = b.source("x", 4), b.source("y", 4)
    b.add("rx", inputs=[x])
    b.add("ry", inputs=[y])
    _, _, schedule = measure(problem(b.build(), cluster(3, {"links": links, "relay": True}), {}), [0, 1, 2, 2])
    assert sends(schedule) == [(0, 0, 2, 0.0, 7.0), (1, 1, 2, 7.0, 10.0)]  # 1 + 2 + 4/1, then 2 + 4/4


def rivals() -> Graph:
    """a and b are ready at once; what b writes is read elsewhere."""
    g = GraphBuilder("rivals")
    g.add("a")
    (y,) = g.add("b", outputs=[1])
    g.add("c", inputs=[y])
    return g.build()


def test_priority_flips_a_result() -> None:
    p = problem(rivals(), cluster(2), {"a": 1, "b": 1, "c": 5})
    assert measure(p, [0, 0, 1])[0] == 8
    assert measure(p, [0, 0, 1], [0, 1, 0])[0] == 7
    assert measure(p, [0, 0, 1], [0.0, -0.0, 0])[0] == 8  # the two zeros are one priority
    assert measure(p, [0, 0, 1], [-2, -1, 0])[0] == 7
    assert measure(p, [0, 0, 1], [0, 1, 0], ready_order="fifo")[0] == 8


def test_a_transfer_has_the_priority_of_its_most_urgent_reader() -> None:
    b = GraphBuilder("urgent")
    x, y = b.source("x", 1), b.source("y", 1)
    b.add("rx", inputs=[x])
    b.add("ry", inputs=[y])
    b.add("ry2", inputs=[y])
    p = problem(b.build(), cluster(2), {"rx": 1, "ry": 1, "ry2": 1})
    assert sends(measure(p, [0, 0, 1, 1, 1], [0, 0, 1, 0, 0])[2]) == [(0, 0, 1, 0.0, 1.0), (1, 0, 1, 1.0, 2.0)]
    assert sends(measure(p, [0, 0, 1, 1, 1], [0, 0, 1, 0, 2])[2]) == [(0, 0, 1, 1.0, 2.0), (1, 0, 1, 0.0, 1.0)]


def broadcast() -> Graph:
    b = GraphBuilder("broadcast")
    (x,) = b.add("a", outputs=[4])
    b.add("b", inputs=[x])
    b.add("c", inputs=[x])
    b.add("c2", inputs=[x])
    return b.build()


def test_one_multicast_send_serves_all_destinations() -> None:
    seconds = {"a": 1, "b": 1, "c": 1}
    one_by_one = measure(problem(broadcast(), cluster(3, BUS), seconds), [0, 1, 2, 2])
    at_once = measure(problem(broadcast(), cluster(3, {**BUS, "multicast": True}), seconds), [0, 1, 2, 2])
    assert one_by_one[0] == 10
    assert sends(one_by_one[2]) == [(0, 0, 1, 1.0, 5.0), (0, 0, 2, 5.0, 9.0)]  # device 2 has two readers, one transfer
    assert at_once[0] == 6
    assert sends(at_once[2]) == [(0, 0, 1, 1.0, 5.0), (0, 0, 2, 1.0, 5.0)]
    assert at_once[1] == [4, 4, 4]


def test_streams_run_side_by_side() -> None:
    b = GraphBuilder("three")
    for name in "abc":
        b.add(name)
    p = problem(b.build(), cluster(1, streams=2), {"a": 2, "b": 1, "c": 2})
    value, _, schedule = measure(p, [0, 0, 0])
    assert value == 3
    assert schedule.op_start_s.tolist() == [0, 0, 1]
    assert schedule.op_stream.tolist() == [0, 1, 1]
    assert measure(problem(b.build(), cluster(1, streams="unlimited"), {"a": 2, "b": 1, "c": 2}), [0, 0, 0])[0] == 2


def test_outputs_are_freed_after_their_last_reader() -> None:
    b = GraphBuilder("lifetimes")
    w = b.source("w", 7)
    (x,) = b.add("a", inputs=[w], outputs=[10])
    (y,) = b.add("b", inputs=[x], outputs=[20])
    b.add("c", inputs=[y], outputs=[25])
    p = problem(b.build(), cluster(1), {"a": 1, "b": 1, "c": 1})
    assert measure(p, [0] * 4)[1] == [7 + 20 + 25]  # x is gone when c starts


def test_an_output_that_nobody_reads_dies_with_its_operation() -> None:
    b = GraphBuilder("unread")
    b.add("a", outputs=[10])
    b.add("b", outputs=[10])
    assert measure(problem(b.build(), cluster(1), {"a": 1, "b": 1}), [0, 0])[1] == [10]
    both = cluster(1, streams=2)
    assert measure(problem(b.build(), both, {"a": 1, "b": 1}), [0, 0])[1] == [20]


def test_the_sender_holds_a_tensor_until_its_transfer_ends() -> None:
    b = GraphBuilder("sender")
    (x,) = b.add("a", outputs=[10])  # 0..1 on device 0, sent 1..11
    b.add("b", inputs=[x], outputs=[3])  # 11..13 on device 1
    (y,) = b.add("c", outputs=[5])  # 1..3 on device 0
    b.add("d", inputs=[y])  # 3..4
    p = problem(b.build(), cluster(2), {"a": 1, "b": 2, "c": 2, "d": 1})
    value, peak, _ = measure(p, [0, 1, 0, 0])
    assert value == 13
    assert peak == [15, 13]


def test_a_view_is_free_at_home_and_costs_its_own_bytes_abroad() -> None:
    b = GraphBuilder("view")
    (x,) = b.add("a", outputs=[10])
    v = b.output(0, 4, storage=x)
    b.add("b", inputs=[v])
    b.add("c", inputs=[x])
    seconds = {"a": 1, "b": 1, "c": 1}
    assert measure(problem(b.build(), cluster(2), seconds), [0, 0, 0])[1] == [10, 0]
    assert measure(problem(b.build(), cluster(2), seconds), [0, 1, 0])[1] == [10, 4]
    value, peak, schedule = measure(problem(b.build(), cluster(2), seconds), [0, 1, 1])  # two tensors, two transfers
    assert peak == [10, 14]
    assert len(sends(schedule)) == 2
    assert value == 1 + 10 + 4 + 1


def test_an_update_in_place_allocates_nothing() -> None:
    b = GraphBuilder("update")
    w = b.source("w", 8, colocate=0)
    (g,) = b.add("gradient", inputs=[w], outputs=[8])
    b.add("update", inputs=[w, g], colocate=0)
    b.output(2, 8, storage=w)
    p = problem(b.build(), cluster(1), {"gradient": 1, "update": 1})
    assert measure(p, [0, 0])[1] == [16]  # groups: w with its update, the gradient


def exchange() -> Graph:
    b = GraphBuilder("levels")
    (x,) = b.add("a", outputs=[2])
    (y,) = b.add("b", outputs=[1])
    b.add("c", inputs=[x])
    b.add("d", inputs=[y])
    b.add("e", inputs=[x])
    return b.build()


def test_bulk_synchronous_levels() -> None:
    p = problem(exchange(), cluster(2), {"a": 1, "b": 3, "c": 1, "d": 1, "e": 1})
    device = [0, 1, 1, 0, 0]
    value, _, schedule = measure(p, device, bulk=True)
    assert schedule.op_start_s.tolist() == [0, 0, 5, 5, 6]  # all of level 0, all its transfers, all of level 1
    assert sends(schedule) == [(0, 0, 1, 3.0, 5.0), (1, 1, 0, 3.0, 4.0)]
    assert value == 7
    value, _, schedule = measure(p, device)
    assert schedule.op_start_s.tolist() == [0, 0, 3, 4, 1]
    assert value == 5


DOCS = Path(__file__).parents[4] / "docs" / "machine-model.md"


def test_the_documented_cluster_is_valid() -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", DOCS.read_text(), re.DOTALL)
    machine = Cluster.parse(yaml.safe_load(text))
    assert machine.device_names == ("gpu:0", "gpu:1", "gpu:2", "gpu:3", "host0", "host1")
    route = machine.routes.latency_s[0, 2], 1 / machine.routes.s_per_byte[0, 2]
    assert route == (pytest.approx(20e-6 + 30e-6), pytest.approx(10e9))  # hand-over and latencies


def test_the_documented_efficiencies_and_cost_file_are_those_of_the_core() -> None:
    rows = re.findall(r"^\| (\w+) \| (\d\.\d+) \| (\d\.\d+) \|$", DOCS.read_text(), re.MULTILINE)
    assert {name: (float(c), float(m)) for name, c, m in rows} == {
        name: (e.compute, e.memory) for name, e in EFFICIENCY.items()
    }
    (text,) = re.findall(r"```json\n(.*?)```", DOCS.read_text(), re.DOTALL)
    assert CostFile.model_validate_json(text).kinds["gpu"].operations == {"layer1.conv": 0.00031}
