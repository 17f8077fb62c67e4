"""`placekit cluster show`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from placekit_core import installed

PRESETS = sorted(p.name for p in installed().presets() if p.group == "cluster")


def test_without_a_name_it_lists_the_presets(placekit: Callable) -> None:
    code, out, _ = placekit("cluster", "show")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines() if line[0] != " "] == ["cluster", *PRESETS]


@pytest.mark.parametrize("name", ["rtx4090_3090", "doppler_sim", "two_nodes"])
def test_one_in_detail(placekit: Callable, name: str) -> None:
    code, out, _ = placekit("cluster", "show", name)
    assert code == 0
    assert "seconds for 1 MB, from (row) to (column):" in out
    assert out.splitlines()[-1].startswith("fingerprint ")


def test_a_file_of_ones_own(placekit: Callable, tmp_path: Path) -> None:
    (tmp_path / "pair.yaml").write_text(
        "kinds: {g: {flops_per_s: {float32: 1.0e12}, memory_bytes: 1048576, memory_bytes_per_s: 1.0e11,\n"
        "  reserve_bytes: 524288, headroom: 0.5}}\n"
        "devices: [{kind: g, count: 2}]\nlinks: [{mesh: 'g:*', bytes_per_s: 1.0e6}]\n"
    )
    code, out, _ = placekit("cluster", "show", "pair.yaml")
    assert code == 0
    rows = [line.split() for line in out.splitlines()]
    assert ["g:0", "-", "1", "s"] in rows
    assert ["g:0,", "g:1", "(gpu)"] in rows
    assert ["memory", "1.0", "MiB,", "100", "GB/s"] in rows
    assert "  usable   0.2 MiB: 0.5 MiB reserved, 50% headroom" in out.splitlines()


def test_hosts_and_what_they_add(placekit: Callable, tmp_path: Path) -> None:
    text = (
        "kinds: {g: {flops_per_s: {float32: 1.0e12}, memory_bytes: 1048576, memory_bytes_per_s: 1.0e11}}\n"
        "devices: [{kind: g, count: 2}]\nlinks: [{mesh: 'g:*', bytes_per_s: 1.0e6}]\n"
        "hosts: [{devices: ['g:0', 'g:1'], launch_s: 12.0e-6, handover_s: 20.0e-6, graph_handover_s: 230.0e-6}]\n"
    )
    (tmp_path / "eager.yaml").write_text(text)
    (tmp_path / "graph.yaml").write_text(f"{text}launching: graph\n")
    eager, graph = (" ".join(placekit("cluster", "show", f"{n}.yaml").out.split()) for n in ("eager", "graph"))
    assert (
        "host of g:0, g:1 (launching eager): 12 us per launch, 20 us more per transfer between GPUs, 230 us with launching=graph"
        in eager
    )
    assert "(launching graph): no time per launch, 230 us more per transfer between GPUs 2 channels" in graph
    assert "host of" not in placekit("cluster", "show", "p100x4").out


def test_a_limit_that_is_never_reached(placekit: Callable, tmp_path: Path) -> None:
    (tmp_path / "ideal.yaml").write_text(
        "kinds: {g: {flops_per_s: {float32: 1.0e12}, memory_bytes: 1000000000000000000, memory_bytes_per_s: 1.0e30}}\n"
        "devices: [{kind: g, count: 2}]\nlinks: [{mesh: 'g:*', bytes_per_s: 1.0e30}]\n"
    )
    rows = [line.split() for line in placekit("cluster", "show", "ideal.yaml").out.splitlines()]
    assert ["memory", "unlimited,", "unlimited"] in rows
    assert ["g:0->g:1", "unlimited"] in rows
    assert rows[-2][-3:] == ["slowest", "pair", "unlimited"]
    [row] = [line for line in placekit("cluster", "show").out.splitlines() if line.startswith("doppler_sim ")]
    assert row.split()[-1] == "unlimited"


def test_many_devices_of_a_kind_are_named_by_the_first_and_the_last(placekit: Callable, tmp_path: Path) -> None:
    (tmp_path / "mixed.yaml").write_text(
        "kinds:\n"
        "  g: {flops_per_s: {float32: 1.0e12}, memory_bytes: 1048576, memory_bytes_per_s: 1.0e11}\n"
        "  h: {flops_per_s: {float32: 1.0e12}, memory_bytes: 1048576, memory_bytes_per_s: 1.0e11, type: cpu}\n"
        "devices: [{kind: g, count: 4}, {kind: h, name: left}, {kind: h, name: mid}, {kind: h, name: right}]\n"
        "links: [{mesh: '*', bytes_per_s: 1.0e6}]\n"
    )
    lines = placekit("cluster", "show", "mixed.yaml").out.splitlines()
    assert "g:0 to g:3 (gpu)" in lines
    assert "left, mid, right (cpu)" in lines
    assert "42 channels, each carries 1 at a time, latency 0 us" in lines


def test_an_unknown_name(placekit: Callable) -> None:
    code, out, err = placekit("cluster", "show", "p100x5")
    assert (code, out) == (1, "")
    assert "no cluster named 'p100x5'\n  did you mean 'p100x4'?" in err
    code, _, err = placekit("cluster", "show", "nowhere.yaml")
    assert code == 1
    assert "no cluster file nowhere.yaml" in err
