"""`placekit cluster new`: the words that it takes, the files that it writes, and that the machines that ship agree with it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from placekit_inspect.cluster_file import figure, kind_lines
from placekit_inspect.data_sheets import parts
from placekit_inspect.loose_words import exact_words
from placekit_inspect.machine_file import machine_file
from placekit_inspect.machine_words import Devices, plain_words, read_machine

from placekit_core import Cluster, ClusterError, installed, load_cluster
from placekit_core.contracts.cluster import DeviceKind, Efficiency
from placekit_core.contracts.files import parse_yaml

CONF = {p.name: Path(str(p.path)) for p in installed().presets() if p.group == "cluster" and p.path}
OF_TODAY = ("a100x8", "b200x8", "edge_orin", "h100x8", "h200x8", "l40sx4", "mac_studio_pair", "rtx3090x2", "rtx4090_3090",
            "rtx5090_3080x2", "two_nodes")  # fmt: skip
WORDS = re.compile(r"^# `placekit cluster new '(.+)'`\.$", re.M)


def _cluster(text: str) -> Cluster:
    return Cluster.parse(parse_yaml(machine_file(text).encode()))


def _seconds(cluster: Cluster, a: str, b: str, size: float = 0.0) -> float:
    i, j = cluster.device_names.index(a), cluster.device_names.index(b)
    return float(cluster.routes.latency_s[i, j] + size * cluster.routes.s_per_byte[i, j])


def test_machines_that_ship_are_what_the_command_writes() -> None:
    for name in OF_TODAY:
        content = CONF[name].read_text()
        words = WORDS.search(content)
        assert words is not None
        assert content[words.start() :] == machine_file(words[1], name)
        assert all(line.startswith("# ") for line in content[: words.start()].splitlines())


def test_a_machine_of_a_paper_agrees_with_the_parts_but_gives_all_of_its_memory() -> None:
    data, own = _cluster("4x p100, pcie3 x16").model_dump(), load_cluster(CONF["p100x4"])
    data["kinds"]["p100"] |= {"reserve_bytes": 0, "headroom": 0.0}
    data["hosts"] = []
    assert Cluster.parse(data).fingerprint == own.fingerprint
    assert own.withheld_bytes == 0


def test_every_kind_that_ships_agrees_with_the_part_of_its_name() -> None:
    for name, path in CONF.items():
        all_of_it = {} if name in OF_TODAY else {"reserve_bytes": 0, "headroom": 0.0}
        for kind, own in load_cluster(path).kinds.items():
            if kind in parts().kinds:
                assert own == parts().kind(kind).model_copy(update=all_of_it), (name, kind)


def test_what_a_kind_withholds_is_written_with_its_source() -> None:
    for kind in parts().kinds:
        content, withheld = machine_file(kind), parts().withheld_of(kind)
        own = Cluster.parse(parse_yaml(content.encode())).kinds[kind]
        assert (own.reserve_bytes, own.headroom) == (withheld.reserve_bytes, withheld.headroom)
        assert own.usable_bytes < own.memory_bytes == parts().kinds[kind].memory_bytes
        assert withheld.source[:20] in content


@pytest.mark.parametrize(
    "text",
    ["2x rtx4090 + 1x rtx3090, pcie4 x8", "2 x RTX 4090 + RTX-3090, PCIe 4.0 x8", "2\u00d7rtx4090+rtx3090,pcie4x8",
     "  2 rtx4090 + 1 rtx_3090 , pcie4  x 8", "rtx4090 + rtx4090 + rtx3090, pcie4 x8"],
)  # fmt: skip
def test_ways_to_say_the_same(text: str) -> None:
    wanted = read_machine("2x rtx4090 + 1x rtx3090, pcie4 x8", parts())
    assert wanted.boxes[0][1].devices == (Devices("rtx4090", 2), Devices("rtx3090", 1))
    assert read_machine(text, parts()) == wanted


def test_each_device_has_a_slot_and_the_host_its_memory() -> None:
    cluster = _cluster("rtx4090 pcie4 x16 + rtx3060 pcie3 x4 + rtx3060 + 64GB DDR5-5600, pcie4 x8")
    rates = {c.name.split("<")[0].split("-")[0]: c.bytes_per_s for c in cluster.routes.channels}
    assert {n: rates[n] for n in ("rtx4090:0", "rtx3060:0", "rtx3060:1")} == {
        "rtx4090:0": 24e9, "rtx3060:0": 3e9, "rtx3060:1": 12e9,
    }  # fmt: skip
    cpu = cluster.kinds["cpu"]
    assert (cpu.memory_bytes, cpu.memory_bytes_per_s) == (64 * 2**30, 2 * 5600e6 * 8)
    assert "2 channels of DDR5-5600, 8 bytes each" in machine_file("rtx4090 + 64gb ddr5-5600").replace("\n  # ", " ")
    assert _cluster("l40s + 768 GB ddr4-3200 x12").kinds["cpu"].memory_bytes_per_s == 12 * 3200e6 * 8


@pytest.mark.parametrize(
    "text",
    ["rtx4090 + 2x mycard(24GB 900GB/s 80TFLOPS)", "RTX4090 + 2xMyCard (80 TFLOP/s, 24 GiB, 0.9 TB/s)",
     "rtx4090 + mycard(24gb 900gb/s 0.08pflops) + mycard"],
)  # fmt: skip
def test_a_kind_may_have_its_figures_in_the_words(text: str) -> None:
    cluster = _cluster(text)
    assert cluster.device_names == ("rtx4090:0", "mycard:0", "mycard:1")
    kind, other = cluster.kinds["mycard"], cluster.kinds["rtx4090"]
    assert (kind.memory_bytes, kind.memory_bytes_per_s, kind.flops_per_s) == (24 * 2**30, 900e9, {"float32": 80e12})
    assert (kind.reserve_bytes, kind.headroom) == (other.reserve_bytes, other.headroom)
    assert {c.name: c.bytes_per_s for c in cluster.routes.channels}["mycard:0<->host"] == 24e9


def test_the_slot_of_such_a_kind_and_boxes_of_it() -> None:
    rates = [c.bytes_per_s for c in _cluster("mycard(8GB 500GB/s 9TFLOPS pcie5) + cpu, pcie5 x8").routes.channels]
    assert rates[:2] == [24e9, 24e9]
    assert _cluster("2 nodes of (2x new-card(8GB 500GB/s 9TFLOPS), pcie4 x8), 10gbe").size == 4


def test_a_card_uses_its_own_generation_in_a_newer_slot() -> None:
    routes = _cluster("rtx5090 + 2x rtx3080, pcie5 x8").routes
    assert {c.name.split(":")[0]: c.bytes_per_s for c in routes.channels} == {"rtx5090": 24e9, "rtx3080": 12e9}


def test_a_card_has_no_more_lanes_than_its_own() -> None:
    rates = {
        c.name.split(":")[0]: c.bytes_per_s for c in _cluster("rtx4060 + rtx3090 + cpu, pcie4 x16").routes.channels
    }
    assert (rates["rtx4060"], rates["rtx3090"]) == (12e9, 24e9)


def test_cards_without_peer_to_peer_copy_through_the_host_in_one_direction_at_a_time() -> None:
    cards, server = _cluster("2x rtx4090, pcie4 x16"), _cluster("2x l40s, pcie4 x16")
    assert [c.name for c in cards.routes.channels] == ["rtx4090:0<->host", "rtx4090:1<->host"]
    assert _seconds(cards, "rtx4090:0", "rtx4090:1") == pytest.approx(20e-6 + 14e-6)  # a hand-over, and two links
    assert len(server.routes.channels) == 4
    assert _seconds(server, "l40s:0", "l40s:1") == pytest.approx(20e-6 + 10e-6)
    assert [c.name for c in _cluster("rtx4090 + cpu").routes.channels][:2] == ["rtx4090:0->pcie", "pcie->rtx4090:0"]


def test_nvlink_bridges_join_pairs_and_the_rest_takes_pcie() -> None:
    cluster = _cluster("5x rtx3090 + cpu, nvlink, pcie4 x8")
    gb = 1e-9 / np.where(
        cluster.routes.s_per_byte > 0, cluster.routes.s_per_byte, np.inf
    )  # fmt: skip
    fast = {(int(i), int(j)) for i, j in np.argwhere(np.isclose(gb, 56.25))}
    assert fast == {(0, 1), (1, 0), (2, 3), (3, 2)}
    assert np.allclose(gb[4, :4], 12)
    assert np.allclose(gb[5, :5], 12)


def test_nvlink_without_a_switch_is_divided_among_the_others() -> None:
    cluster = _cluster("4x a100, nvlink")
    assert {c.bytes_per_s for c in cluster.routes.channels} == {100e9}
    with pytest.raises(ClusterError, match="cannot be divided among 5 others") as e:
        machine_file("6x a100, nvlink")
    assert e.value.hint == "write nvswitch, or edit the file"


def test_boxes_of_one_kind_have_hubs_of_their_own() -> None:
    cluster = _cluster("2 nodes of (8x a100 + epyc, nvswitch), ib_hdr x8")
    names = cluster.device_names
    assert names[:16] == tuple(f"a100:{i}" for i in range(16))
    near, far = _seconds(cluster, "a100:0", "a100:7", 300e9), _seconds(cluster, "a100:7", "a100:8", 24e9)
    assert near == pytest.approx(1, rel=1e-4)  # 300 GB/s: NVSwitch
    assert far == pytest.approx(1, rel=1e-4)  # 24 GB/s: PCIe, before the NIC's 25 GB/s
    nic = [c for c in cluster.routes.channels if c.name == "pcie0->network"]
    assert [(c.bytes_per_s, c.capacity) for c in nic] == [(25e9, 8)]


def test_unlike_boxes_and_devices_that_are_boxes() -> None:
    cluster = _cluster("(2x rtx4090, pcie4 x8) + (m3_ultra) + (rtx4090), 10gbe")
    assert cluster.device_names == ("rtx4090:0", "rtx4090:1", "rtx4090:2", "m3_ultra:0")
    assert {c.name for c in cluster.routes.channels if c.name.endswith(">network")} == {
        "host0->network", "m3_ultra:0->network", "rtx4090:2->network"
    }  # fmt: skip
    assert (
        _cluster("3x m3_ultra, thunderbolt5").fingerprint == _cluster("3 nodes of (m3_ultra), thunderbolt5").fingerprint
    )
    assert len(_cluster("3x m3_ultra, thunderbolt5").routes.channels) == 6


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        ("2x rtx4098", "no device kind named 'rtx4098'", "did you mean 'rtx4090'?"),
        ("2x rtx4098", "no device kind named", "; or give your own figures: rtx4098(.. GB, .. GB/s, .. TFLOPS)"),
        ("mycard(24GB 80TFLOPS)", "mycard lacks its bandwidth", "its TFLOPS those of 16-bit numbers on tensor cores"),
        ("mycard(0GB 900GB/s)", "mycard lacks its memory and arithmetic", "write mycard("),
        ("mycard(24GB 32GB)", "mycard has two figures of its memory", "write mycard("),
        ("mycard(24GB fast)", "'fast' of mycard is neither a size of memory, a bandwidth nor a rate", "write mycard("),
        ("rtx4090(48GB 1TB/s 80TFLOPS)", "rtx4090 has other figures, too", "my_rtx4090(.."),
        ("c(1GB 1GB/s 1TFLOPS) + c(2GB 1GB/s 1TFLOPS)", "c has other figures, too", "my_c(.."),
        ("2x rtx4090, pcie9", "no link named 'pcie9'", "did you mean 'pcie5'? available: 100gbe, 10gbe"),
        ("", "'' is not a device", "2x rtx4090 + 1x rtx3090, pcie4 x8"),
        ("2000x h100", "2000 is not a number of devices", "a machine has 1 to 1024"),
        ("99 nodes of (99x h100, nvswitch), ib_ndr", "has more than 1024 devices", ""),
        ("2x rtx4090, pcie4 x3", "pcie4 x3: PCIe has no such width", "lanes: 1, 2, 4, 8, 16"),
        (
            "2x rtx4090, nvlink",
            "no two GPUs of one kind with NVLink",
            "with NVLink: v100, a30, a40, a100",
        ),
        ("rtx4090 pcie9 + rtx3060", "no link named 'pcie9'", "did you mean 'pcie5'?"),
        ("rtx4090 pcie4 x3", "pcie4 x3: PCIe has no such width", "lanes: 1, 2, 4, 8, 16"),
        ("rtx4090 x16 + rtx3060", "'x16' of rtx4090 are lanes of an unknown link", "rtx4090 pcie4 x16"),
        ("rtx4090 + 64gb ddr5-5600 x0", "'64gb ddr5-5600 x0' is not a memory of the host", "64gb ddr5-5600 x2"),
        ("rtx4090 + ddr5", "'ddr5' is not a memory of the host", "64gb ddr5-5600 x2"),
        ("rtx4090 + 0gb ddr5-5600", "'0gb ddr5-5600' is not a memory of the host", "64gb ddr5-5600 x2"),
        (
            "rtx4090 + 4gb ddr5-5600",
            "4 GB of DDR5-5600 (2 channels): its memory is not more than the 4 GB",
            "more memory",
        ),
        ("mycard(0.5GB 9GB/s 8TFLOPS)", "mycard 0.5 GB: its memory is not more than the 0.875 GB that", "more memory"),
        ("rtx4090 + epyc + 64gb ddr5-5600", "a CPU and memory of the host", "leave out the CPU"),
        ("32gb ddr5-5600 + 32gb ddr5-5600", "two memories of the host", "give their sum as one"),
        ("rtx4090 + 64gb ddr5-5600, 10gbe", "does not say which box has the memory", "put each box in brackets"),
        ("2x rtx3090, nvlink x4", "only PCIe has a number of lanes", "write nvlink"),
        ("2x l40s, nvswitch", "no machine has l40s on an NVSwitch", "with a switch: v100, a100, a100_40gb, h100"),
        ("2x m3_ultra", "m3_ultra has no PCIe slot", "connect it by a network"),
        ("rtx4090 + cpu, shared", "rtx4090 has a memory of its own", "on a shared memory: orin, orin_cpu"),
        ("rtx4090 + 2x cpu", "2 CPUs in a box", "give each box one CPU"),
        (
            "2 nodes of (4x h100, nvswitch)",
            "nothing connects the 2 boxes",
            "thunderbolt4, thunderbolt5, 1gbe, 2.5gbe, 10gbe",
        ),
        ("(4x h100, nvswitch), ib_ndr", "ib_ndr connects boxes, but there is only one", "leave it out"),
        (
            "2 nodes of (4x h100, ib_ndr), ib_ndr",
            "ib_ndr connects boxes, but is written inside one",
            "after the brackets",
        ),
        ("2 nodes of (h100) ib_ndr", "'ib_ndr' after the boxes: a comma is missing", "write for example"),
        ("two nodes of (h100), ib_ndr", "'two nodes of (h100)' is not a box", "write for example"),
        ("2x m3_ultra, thunderbolt5 x2", "thunderbolt5 x2: there is one cable between two boxes", "write thunderbolt5"),
        (
            "rtx3080 12gb",
            "no rtx3080 has 12 GB",
            "rtx3080 has 10 GB, rtx3080_laptop has 16 GB; or give your own figures",
        ),
        ("v100 16gb", "no v100 has 16 GB", "v100 has 32 GB, v100_pcie has 16 GB"),
        ("2x 6000", "'6000' may be a6000 or rtxpro6000", "write one of them"),
        ("4098", "'4098' is not a device", "`placekit cluster kinds` lists the kinds"),
        ("a 4090, rtx 3061", "no device kind named 'rtx 3061'", "figures: rtx_3061(.. GB"),
        ("2x m3_ultra, wifi", "no link named 'wifi'", "available: 100gbe"),
        ("2x m3_ultra, 10gbe x0", "no link named '10gbe x0'", "did you mean '10gbe'?"),
    ],
)
def test_mistakes(text: str, said: str, hint: str) -> None:
    with pytest.raises(ClusterError) as e:
        machine_file(text)
    assert said in e.value.message
    assert hint in e.value.hint


@pytest.mark.parametrize(
    ("text", "exact"),
    [
        ("a 4090, a 3060 and 64 GB", "rtx4090 + rtx3060 + 64gb ddr5-5600"),
        ("RTX 4090 24GB + 3060 12GB, 64gb ram", "rtx4090 + rtx3060 + 64gb ddr5-5600"),
        ("4090 + 3060 + 64gb", "rtx4090 + rtx3060 + 64gb ddr5-5600"),
        ("4090 (24GB) & 3060 (12 GB)", "rtx4090 + rtx3060"),
        ("2x3090", "2x rtx3090"),
        ("2 3090 ti", "2x rtx3090ti"),
        ("2x 4090, 64gb ddr4, pcie4 x8", "2x rtx4090 + 64gb ddr4-3200, pcie4 x8"),
        ("rtx3090 + rtx3090 + nvlink", "rtx3090 + rtx3090, nvlink"),
        ("2x rtx3090 nvlink, pcie4 x8", "2x rtx3090, nvlink, pcie4 x8"),
        ("a100 80gb", "a100"),
        ("A100_40GB", "a100_40gb"),
        ("4060 ti 16gb", "rtx4060ti_16gb"),
        ("H200 SXM 141GB", "h200"),
        ("rtx4090 + 64gb ddr5 6000 MHz", "rtx4090 + 64gb ddr5-6000"),
        ("rtx4090 + ddr5-6000 64gb", "rtx4090 + 64gb ddr5-6000"),
        ("rtx4090 with 2x 32GB of DDR5-5600", "rtx4090 + 64gb ddr5-5600"),
        ("l40s + 768 GB ddr4-3200 x12", "l40s + 768gb ddr4-3200 x12"),
        ("NVIDIA GeForce RTX 4090 pcie4 x8", "rtx4090 pcie4 x8"),
        ("Tesla P40", "p40"),
        ("mac mini m4", "m4"),
        ("NVIDIA DGX Spark", "gb10"),
        ("Ryzen AI Max+ 395", "strix_halo"),
        ("RTX 4060 laptop GPU", "rtx4060_laptop"),
        ("rtx4090 + cpu + 64gb ddr5-5600", "rtx4090 + 64gb ddr5-5600"),
        ("no GPU, 32gb", "32gb ddr5-5600"),
        ("MacBook Pro M3 Max with 64GB memory", "m3_max_64gb"),
        ("epyc 256gb", "epyc_256gb"),
        ("2 nodes of (2x4090 and 64gb), 10gbe", "2 nodes of (2x rtx4090 + 64gb ddr5-5600), 10gbe"),
        ("2x rtx4090, pcie9", "2x rtx4090, pcie9"),
        ("2x gpu", "2x gpu"),
    ],
)
def test_what_people_write_and_what_it_means(text: str, exact: str) -> None:
    assert exact_words(plain_words(text), parts())[0] == exact


def test_the_file_says_what_it_assumes_of_the_memory() -> None:
    said = "64 GB of memory taken as DDR5-5600 in two channels"
    with pytest.warns(UserWarning, match=said):
        content = machine_file("a 4090 and 64 GB RAM")
    assert f"# {said}.\n" in content
    assert Cluster.parse(parse_yaml(content.encode())).fingerprint == _cluster("rtx4090 + 64gb ddr5-5600").fingerprint


def test_a_processor_with_another_size_of_memory() -> None:
    cluster = _cluster("m3_max 64gb + m3_max + strix_halo 64gb, 10gbe")
    assert {k: v.memory_bytes / 2**30 for k, v in cluster.kinds.items()} == {
        "m3_max_64gb": 64, "m3_max": 128, "strix_halo_64gb": 48,
    }  # fmt: skip
    assert cluster.kinds["m3_max_64gb"].efficiency == parts().rates("m3_max").efficiency
    assert "Apple M3 Max 64 GB (40-core GPU)" in machine_file("m3_max 64gb")


def test_boxes_with_different_memory_have_cpus_of_two_kinds() -> None:
    cluster = _cluster("(rtx4090 + 64gb ddr5-5600) + (rtx3090 + 32gb ddr4-3200) + (l4 + cpu), 2.5gbe")
    cpus = {k: (v.memory_bytes / 2**30, v.memory_bytes_per_s) for k, v in cluster.kinds.items() if v.type == "cpu"}
    assert cpus == {
        "cpu_64gb_ddr5_5600x2": (64, 89.6e9), "cpu_32gb_ddr4_3200x2": (32, 51.2e9), "cpu": (64, 83.2e9),
    }  # fmt: skip


@settings(deadline=None)
@pytest.mark.filterwarnings("ignore:.* GB of memory taken as")
@given(st.text("0123456789x×.()+,_ -abcdefghlnoprtu", max_size=40) | st.text(max_size=20))
def test_any_text_is_a_machine_or_one_clear_error(text: str) -> None:
    with contextlib.suppress(ClusterError):
        assert Cluster.parse(parse_yaml(machine_file(text).encode())).size >= 1


@pytest.mark.parametrize("value", [1.0e3, 1008.0e9, 2.5e-6, 14.0625e9])
def test_figures_are_written_as_yaml_reads_them(value: float) -> None:
    assert parse_yaml(figure(value).encode()) == value


def test_whatever_else_a_part_says_is_written_too() -> None:
    part = parts().kinds["l4"]
    kind = (
        parts()
        .kind("l4")
        .model_copy(update={"streams": 2, "efficiency": {"copy": Efficiency(compute=0.9, memory=0.8)}})
    )
    lines = kind_lines("l4", kind, part.title)
    assert lines[-3:] == ["    streams: 2", "    efficiency:", "      copy: {compute: 0.9, memory: 0.8}"]
    read = parse_yaml("\n".join(lines).encode())
    assert DeviceKind.model_validate(read["l4"]) == kind


def test_it_prints_or_writes_a_file_that_a_run_takes(placekit: Callable) -> None:
    code, out, _ = placekit("cluster", "new", "2x rtx4090, pcie4 x8")
    assert code == 0
    assert "\nname: rtx4090x2\ndescription: 2 x GeForce RTX 4090 24 GB, PCIe 4.0 x8\n" in out
    code, written, _ = placekit("cluster", "new", "2x rtx4090, pcie4 x8", "mine.yaml")
    assert (code, written) == (0, "written to mine.yaml; place on it with `placekit run cluster='mine.yaml'`\n")
    assert Path("mine.yaml").read_text() == out.replace("name: rtx4090x2", "name: mine")
    assert placekit("cluster", "show", "mine.yaml").code == 0
    code, _, err = placekit("cluster", "new", "2x rtx4090", "mine.yaml")
    assert code == 1
    assert "mine.yaml exists already" in err
    assert Path("mine.yaml").read_text() == out.replace("name: rtx4090x2", "name: mine")


def test_what_is_not_a_file_is_refused(placekit: Callable) -> None:
    code, _, err = placekit("cluster", "new", "2x", "rtx4090")
    assert code == 1
    assert "rtx4090 does not end in .yaml\n  put the machine in quotes" in err
    code, _, err = placekit("cluster", "new", "rtx4090", "nowhere/mine.yaml")
    assert code == 1
    assert "cannot write nowhere/mine.yaml" in err


def test_without_a_machine_another_command_lists_the_parts(placekit: Callable) -> None:
    code, _, err = placekit("cluster", "new")
    assert code == 1
    assert "required: MACHINE" in err
    code, out, _ = placekit("cluster", "kinds")
    assert code == 0
    named = {line.split()[0] for line in out.splitlines() if line and line[0] != " "}
    assert {"kind", "link", *parts().kinds, *parts().links} <= named
    assert max(map(len, out.splitlines())) <= 80
