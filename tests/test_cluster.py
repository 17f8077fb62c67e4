"""cluster.py: devices, routes and channels, and the errors of cluster descriptions."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from placekit_core import Cluster, ClusterError, GraphBuilder, Grouping, Problem, load_cluster

GPU = {"flops_per_s": {"float32": 1e12}, "memory_bytes": 1000, "memory_bytes_per_s": 1e11}
CPU = {**GPU, "type": "cpu", "memory_bytes": 5000, "streams": 2}


def cluster(*links: dict[str, Any], gpus: int = 3, cpu: bool = False, **values: Any) -> Cluster:
    devices: list[dict[str, Any]] = [{"kind": "g", "count": gpus}]
    kinds = {"g": GPU, **({"c": CPU} if cpu else {})}
    if cpu:
        devices.append({"kind": "c", "name": "host"})
    return Cluster.parse({"name": "test", "kinds": kinds, "devices": devices, "links": list(links), **values})


def route(c: Cluster, src: int, dst: int) -> list[str]:
    """Names of the channels that a transfer waits for."""
    r = src * c.size + dst
    return [c.routes.channels[i].name for i in c.routes.channel[c.routes.ptr[r] : c.routes.ptr[r + 1]]]


def test_devices() -> None:
    c = cluster({"mesh": "*", "bytes_per_s": 1}, cpu=True)
    assert c.device_names == ("g:0", "g:1", "g:2", "host")
    assert c.device_kind == ("g", "g", "g", "c")
    assert c.kind_names == ("g", "c")
    assert c.kind_of.tolist() == [0, 0, 0, 1]
    assert c.size == 4
    assert c.memory_bytes.tolist() == [1000, 1000, 1000, 5000]
    assert c.streams.tolist() == [1, 1, 1, 2]
    assert c.device_index("host") == 3
    with pytest.raises(ClusterError, match=r"no device named 'g:9'[\s\S]*available: g:0, g:1, g:2, host"):
        c.device_index("g:9")


def test_placements_get_the_memory_without_reserve_and_headroom() -> None:
    one = cluster(gpus=1)
    c = Cluster.parse({**one.model_dump(), "kinds": {"g": {**GPU, "reserve_bytes": 200, "headroom": 0.25}}})
    assert c.memory_bytes.tolist() == [600]
    assert c.withheld_bytes == 400
    assert c.fingerprint != one.fingerprint
    b = GraphBuilder("net")
    b.add("w", op_type="parameter", outputs=[700], persistent_bytes=700, kernel=False)
    assert Problem.of(b.build(), one).g == 1
    said = "take 700 B, all devices together have 600 B without 400 B of reserves and headroom"
    with pytest.raises(ClusterError, match=said):
        Problem.of(b.build(), c)


@pytest.mark.parametrize("kept", [{"reserve_bytes": 1000}, {"reserve_bytes": 999, "headroom": 0.5}])
def test_a_reserve_leaves_memory(kept: dict[str, Any]) -> None:
    data = {**cluster(gpus=1).model_dump(), "kinds": {"g": {**GPU, **kept}}}
    with pytest.raises(ClusterError, match="reserve_bytes and headroom leave nothing of memory_bytes"):
        Cluster.parse(data)


def test_mesh() -> None:
    c = cluster({"mesh": "g:*", "bytes_per_s": 10, "latency_s": 0.5})
    assert len(c.routes.channels) == 6  # one per direction of three pairs
    assert route(c, 0, 2) == ["g:0->g:2"]
    assert route(c, 2, 0) == ["g:2->g:0"]
    assert c.routes.latency_s[0, 1] == 0.5
    assert c.routes.s_per_byte[0, 1] == 0.1
    assert np.diag(c.routes.s_per_byte).tolist() == [0, 0, 0]
    listed = cluster({"mesh": ["g:0", "g:1", "g:2"], "bytes_per_s": 10, "latency_s": 0.5})
    assert [route(listed, i, j) for i in range(3) for j in range(3)] == [
        route(c, i, j) for i in range(3) for j in range(3)
    ]


def test_hub_holds_egress_and_ingress_at_the_lower_bandwidth() -> None:
    c = cluster(
        {"a": "g:0", "b": "switch", "bytes_per_s": 4, "latency_s": 1},
        {"a": "g:[12]", "b": "switch", "bytes_per_s": 2, "latency_s": 2},
    )
    assert route(c, 0, 1) == ["g:0->switch", "switch->g:1"]
    assert c.routes.latency_s[0, 1] == 3
    assert c.routes.s_per_byte[0, 1] == 0.5


def test_devices_pass_transfers_on_only_with_relay() -> None:
    chain = ({"a": "g:0", "b": "g:1", "bytes_per_s": 4}, {"a": "g:1", "b": "g:2", "bytes_per_s": 2})
    with pytest.raises(ClusterError, match=r"no route from g:0 to g:2 in 'test'[\s\S]*relay"):
        cluster(*chain)
    c = cluster(*chain, relay=True)
    assert route(c, 0, 2) == ["g:0->g:1", "g:1->g:2"]
    assert c.routes.s_per_byte[0, 2] == 0.5
    assert route(c, 0, 1) == ["g:0->g:1"]


def test_fewest_links_then_the_widest_way() -> None:
    c = cluster(
        {"a": "g:*", "b": "slow", "bytes_per_s": 1},
        {"a": "g:*", "b": "wide", "bytes_per_s": 9},
        {"a": "g:0", "b": "g:1", "bytes_per_s": 0.5},
    )
    assert route(c, 0, 1) == ["g:0->g:1"]  # one link, though the narrowest
    assert route(c, 0, 2) == ["g:0->wide", "wide->g:2"]
    equal = cluster({"a": "g:*", "b": "y", "bytes_per_s": 1}, {"a": "g:*", "b": "x", "bytes_per_s": 1})
    assert route(equal, 0, 1) == ["g:0->x", "x->g:1"]  # then first by name, whatever the order in the file


def test_multicast_needs_one_send_per_source() -> None:
    bus = {"a": "g:*", "b": "bus", "bytes_per_s": 4, "reverse": {"bytes_per_s": 4, "concurrent": "unlimited"}}
    c = cluster(bus, multicast=True)
    assert route(c, 0, 1) == route(c, 0, 2) == ["g:0->bus"]
    with pytest.raises(ClusterError, match="multicast from g:0"):
        cluster({"mesh": "g:*", "bytes_per_s": 4}, multicast=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"links": [{"mesh": "*", "bytes_per_s": -1}]}, r"links.0.bytes_per_s: .* greater than 0 \(got -1\)"),
        ({"links": [{"mesh": "*", "bytes_per_s": float("inf")}]}, r"links.0.bytes_per_s"),
        ({"links": [{"mesh": "*", "bytes_per_s": 1, "speed": 1}]}, r"no field named 'links.0.speed'"),
        ({"links": [{"mesh": "*", "a": "g:0", "bytes_per_s": 1}]}, "either `a` and `b`, or `mesh`"),
        ({"links": [{"mesh": "*", "bytes_per_s": 1, "reverse": {"bytes_per_s": 1}}]}, "`reverse` goes with"),
        ({"links": [{"a": "g:0", "b": "g:1", "bytes_per_s": 1, "duplex": "half", "reverse": {"bytes_per_s": 1}}]},
         "`reverse` goes with"),
        ({"links": [{"mesh": "q:*", "bytes_per_s": 1}]}, r"'q:\*' matches no device[\s\S]*g:0, g:1"),
        ({"links": [{"a": "g:0", "b": "g:1", "bytes_per_s": 1}] * 2}, "g:0 and g:1 of 'test' have two links"),
        ({"links": [{"a": "g:0", "b": "g:0", "bytes_per_s": 1}]}, "connects nothing"),
        ({"links": [{"a": "g:*", "b": "hub", "bytes_per_s": 1}, {"a": "g:7", "b": "hub", "bytes_per_s": 1}]},
         r"link end 'g:7' matches no device[\s\S]*devices: g:0, g:1"),
        ({"links": [{"mesh": ["g:0", "h:1"], "bytes_per_s": 1}]}, r"link end 'h:1'"),
        ({"links": [{"mesh": "*", "bytes_per_s": 1}, {"a": "g:0", "b": "gpu1", "bytes_per_s": 1}]},
         r"hub 'gpu1' of 'test' has only one link[\s\S]*devices: g:0, g:1"),
        ({"links": []}, "no route from g:0 to g:1"),
        ({"devices": [{"kind": "h"}]}, r"no device kind named 'h'[\s\S]*available: g"),
        ({"devices": [{"kind": "g", "count": 1024}, {"kind": "g"}]}, "1025 devices are more than 1024"),
        ({"devices": [{"kind": "g", "name": "x", "count": 2}]}, "a device with a name has count 1"),
        ({"devices": [{"kind": "g", "name": "x"}, {"kind": "g", "name": "x"}]}, "two devices of 'test' are called 'x'"),
        ({"kinds": {"g": {**GPU, "flops_per_s": {"float16": 1}}}}, "needs at least float32"),
        ({"kinds": {"g": {**GPU, "efficiency": {"matmul": {"compute": 2, "memory": 1}}}}}, "compute"),
        ({"kinds": {"g": {**GPU, "efficiency": {"matmull": {"compute": 1, "memory": 1}}}}},
         r"efficiency.matmull.*'matmul', .*'convolution', .*'other'"),
        ({"kinds": {"g": {**GPU, "memory_bytes": 11.5}}}, "kinds.g.memory_bytes"),
        ({"speed": 3}, "no field named 'speed'"),
    ],
)  # fmt: skip
def test_what_is_refused(change: dict[str, Any], message: str) -> None:
    good = {"name": "test", "kinds": {"g": GPU}, "devices": [{"kind": "g", "count": 2}],
            "links": [{"mesh": "*", "bytes_per_s": 1}]}  # fmt: skip
    assert Cluster.parse(good).size == 2
    with pytest.raises(ClusterError, match=message):
        Cluster.parse({**good, **change})


@pytest.mark.parametrize("value", ["24GB", "24 GiB", "24576MiB", "0.0234375 TB"])
def test_sizes_of_memory_are_powers_of_two(value: str) -> None:
    kinds = {"g": {**GPU, "memory_bytes": value}}
    c = Cluster.parse({"kinds": kinds, "devices": [{"kind": "g"}], "links": []})
    assert c.kinds["g"].memory_bytes == 24 * 2**30


@pytest.mark.parametrize("value", [11_000_000_000, 11e9, "11e9", "11000000000", "11.0e9"])
def test_memory_is_a_whole_number_however_it_is_written(value: Any) -> None:
    kinds = {"g": {**GPU, "memory_bytes": value}}
    c = Cluster.parse({"kinds": kinds, "devices": [{"kind": "g"}]})
    assert c.kinds["g"].memory_bytes == 11_000_000_000
    assert type(c.kinds["g"].memory_bytes) is int


def test_a_way_continues_the_best_way_to_the_hub_before_it() -> None:
    """Both ways have 1 byte/s, and a is before b by name, but z is reached better by way of b."""
    c = cluster(
        {"a": "g:0", "b": "a", "bytes_per_s": 5}, {"a": "a", "b": "z", "bytes_per_s": 5},
        {"a": "g:0", "b": "b", "bytes_per_s": 9}, {"a": "b", "b": "z", "bytes_per_s": 9},
        {"a": "z", "b": "g:1", "bytes_per_s": 1}, gpus=2,
    )  # fmt: skip
    assert route(c, 0, 1) == ["g:0->b", "b->z", "z->g:1"]


ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("path", sorted((ROOT / "conf" / "cluster").glob("*.yaml")), ids=lambda p: p.stem)
def test_presets(path: Path) -> None:
    assert load_cluster(path).size > 1


def test_the_example_of_the_documentation() -> None:
    import re

    import yaml

    text = (ROOT / "docs" / "machine-model.md").read_text()
    example = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)[0]
    assert Cluster.parse(yaml.safe_load(example)).device_names == ("gpu:0", "gpu:1", "gpu:2", "gpu:3", "host0", "host1")


def test_every_problem_in_one_error() -> None:
    with pytest.raises(ClusterError, match=r"machine\.yaml is not a valid cluster: .*kinds.*; .*devices"):
        Cluster.parse({}, "machine.yaml")


def test_fingerprint_and_pickle() -> None:
    link = {"mesh": "*", "bytes_per_s": 1}
    c = cluster(link)
    assert c.fingerprint == cluster(link, name="other", description="text").fingerprint
    assert c.fingerprint != cluster({"mesh": "*", "bytes_per_s": 2}).fingerprint
    again = pickle.loads(pickle.dumps(c))
    assert again == c
    assert again.fingerprint == c.fingerprint


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "pair.yaml"
    path.write_text(
        "kinds: {g: {flops_per_s: {float32: 1.0e12}, memory_bytes: 1000, memory_bytes_per_s: 1.0e11}}\n"
        "devices: [{kind: g, count: 2}]\nlinks: [{mesh: 'g:*', bytes_per_s: 8}]\n"
    )
    assert load_cluster(path).name == "pair"
    with pytest.raises(ClusterError, match="no cluster file"):
        load_cluster(tmp_path / "none.yaml")
    for text, message in ((": [", "is not YAML"), ("- 1", "holds no cluster"), ("kinds: 3", "kinds")):
        path.write_text(text)
        with pytest.raises(ClusterError, match=message):
            load_cluster(path)


@pytest.mark.parametrize(
    ("allowed", "message"),
    [
        (["cpu"], r"no device of 'test' may run 'op0' \(allowed: cpu\)$"),
        (["cpu", ""], r"may run 'op0' and the operation grouped with it \(allowed: cpu\)$"),
        (
            ["cpu", "tpu|gpu", ""],
            r"and the 2 operations grouped with it \(allowed: cpu for some, tpu or gpu for others\)$",
        ),
    ],
)
def test_an_operation_that_no_device_may_run_is_named(allowed: list[str], message: str) -> None:
    b = GraphBuilder("work")
    for i, kind in enumerate(allowed):
        b.add(f"op{i}", outputs=[1], allowed=kind)
    graph, machine = b.build(), cluster({"mesh": "*", "bytes_per_s": 1})
    with pytest.raises(ClusterError) as e:
        Problem.of(graph, machine, Grouping(np.zeros(graph.n, np.int32)))
    assert re.search(message, e.value.message), e.value.message


def test_fields_that_came_later_leave_older_fingerprints() -> None:
    """That of a machine file with `efficiency`, from before `hosts` and `compute_16bit`."""
    kind = {"type": "gpu", "flops_per_s": {"float32": 1.0}, "memory_bytes": 10**9, "memory_bytes_per_s": 1.0}
    row = {"compute": 0.5, "memory": 0.5}

    def fingerprint(**more: float) -> str:
        own = {**kind, "efficiency": {"matmul": {**row, **more}}}
        return Cluster.parse({"kinds": {"gpu": own}, "devices": [{"kind": "gpu"}]}).fingerprint

    assert fingerprint() == "311f41444580286f4d0d450189951495"
    assert fingerprint(compute_16bit=0.5) != fingerprint()
