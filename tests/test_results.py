"""The run directory: atomic writes, checkpoints without pickle, placements."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from placekit_core import (
    PlacementError,
    Placements,
    Problem,
    RunError,
    load_placement,
    save_placement,
    write_atomically,
)
from placekit_core.contracts.files import write_json
from placekit_core.run.checkpoint import CHECKPOINT, load_checkpoint, save_checkpoint
from placekit_core.run.run_directory import prepare


def test_checkpoint_round_trip_to_the_bit(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    state = {
        "array": rng.random((3, 4)),
        "nested": {"ints": np.arange(5, dtype=np.int16), "text": "x", "none": None, "list": [1, 2.5, np.arange(2)]},
        "generator": rng.bit_generator.state,
        "inf": float("inf"),
        "scalar": np.float64(0.1),
    }
    save_checkpoint(tmp_path, state)
    back = load_checkpoint(tmp_path)
    assert back is not None
    assert back["array"].tobytes() == state["array"].tobytes()
    assert back["nested"]["ints"].dtype == np.int16
    assert back["nested"]["list"][:2] == [1, 2.5]
    assert back["nested"]["list"][2].tolist() == [0, 1]
    assert back["generator"] == state["generator"]
    assert back["inf"] == float("inf")
    assert back["scalar"] == 0.1


def test_no_checkpoint_is_none_and_a_damaged_one_is_an_error(tmp_path: Path) -> None:
    assert load_checkpoint(tmp_path) is None
    save_checkpoint(tmp_path, {"a": np.arange(100)})
    path = tmp_path / CHECKPOINT
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(RunError, match="is damaged"):
        load_checkpoint(tmp_path)


def test_checkpoints_never_unpickle(tmp_path: Path) -> None:
    evil = np.array([{"a": 1}], dtype=object)
    np.savez(tmp_path / CHECKPOINT, **{"tree.json": evil})
    with pytest.raises(RunError, match="is damaged"):
        load_checkpoint(tmp_path)


def test_write_atomically_leaves_the_old_file_when_it_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f"
    write_atomically(path, b"old")

    def full(_: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="no space left"):
        write_atomically(path, b"new, and then the disk is full")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_json_has_no_nan(tmp_path: Path) -> None:
    write_json(tmp_path / "x.json", {"a": float("nan"), "b": [float("inf"), 1.5]})
    assert json.loads((tmp_path / "x.json").read_text()) == {"a": None, "b": [None, 1.5]}


def test_unwritable_run_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"cannot write to run directory .*file.*\n  choose another: run_dir=PATH"):
        prepare(tmp_path / "file" / "run")


def test_placement_round_trip(tmp_path: Path, problem: Problem) -> None:
    placement = problem.placement([0, 1, 0, 1, 0, 1], np.arange(6))
    path = save_placement(placement, problem, tmp_path / "placement.json")
    data = json.loads(path.read_text())
    assert data["assignment"] == {"w": "gpu:0", "x": "gpu:1", "a": "gpu:0", "b": "gpu:1", "c": "gpu:0", "d": "gpu:1"}
    assert data["fingerprints"] == {"graph": problem.graph.fingerprint, "cluster": problem.cluster.fingerprint}
    assert load_placement(path, problem).same_as(placement)


def test_placement_of_another_graph_or_cluster_is_refused(tmp_path: Path, problem: Problem) -> None:
    from placekit_testing.fakes import chain_graph, gpus

    path = save_placement(problem.placement([0] * 6), problem, tmp_path / "placement.json")
    with pytest.raises(PlacementError, match="was made for another graph"):
        load_placement(path, Problem.of(chain_graph(5), problem.cluster))
    with pytest.raises(PlacementError, match="was made for another cluster"):
        load_placement(path, Problem.of(problem.graph, gpus(3)))
    path.write_text("{")
    with pytest.raises(PlacementError, match="not a readable placement"):
        load_placement(path, problem)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fingerprints": "abc"}, "not a readable placement: fingerprints"),
        ({"fingerprints": None}, "not a readable placement: fingerprints"),
        ({"assignment": ["gpu:0"] * 6}, "not a readable placement: assignment"),
        ({"assignment": None}, "not a readable placement: assignment"),
        ({"assignment": {}}, "does not place operation 'w' .and 5 more"),
        ({"assignment": dict.fromkeys("wxabcd", 0)}, "not a readable placement: assignment.w"),
        ({"assignment": dict.fromkeys("wxabcd", "gpu:9")}, r"no device named 'gpu:9'[\s\S]*gpu:0, gpu:1"),
        ({"priority": {"w": 1.0}}, "does not give the priority of operation 'x'"),
        ({"priority": dict.fromkeys("wxabcd", "1")}, "not a readable placement: priority.w"),
        ({"priority": [1.0] * 6}, "not a readable placement: priority"),
        ({"priority": dict.fromkeys("wxabcd", float("nan"))}, "not a number"),
        ({"version": 2}, "not a readable placement: version: .* 1"),
        ({"devices": [f"gpu:{i}" for i in range(40_000)]}, "not a readable placement: devices: .* 1024 items"),
        ({"devices": ["gpu:0", "gpu:1", "gpu:0"]}, "not a readable placement: devices: device 'gpu:0' occurs twice"),
        ({"format": None}, "not a readable placement: format: .*'placekit-placement'"),
    ],
)
def test_malformed_placements(tmp_path: Path, problem: Problem, change: dict[str, object], message: str) -> None:
    path = save_placement(problem.placement([0] * 6, [1] * 6), problem, tmp_path / "placement.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(PlacementError, match=message):
        load_placement(path, problem)


@pytest.mark.parametrize("data", [b"[]", b"null", b"3", b"\xff", b"", b"[" * 100_000])
def test_what_is_no_placement(tmp_path: Path, problem: Problem, data: bytes) -> None:
    (tmp_path / "p.json").write_bytes(data)
    with pytest.raises(PlacementError, match="not a readable placement"):
        load_placement(tmp_path / "p.json", problem)


def test_devices_do_not_wrap() -> None:
    for device in (65536, -40000, 2**40):
        with pytest.raises(PlacementError, match=f"no device {device}"):
            Placements.of([[0, device]])
    with pytest.raises(PlacementError, match="2 dimensions"):
        Placements.of(np.zeros((1, 1, 1), int))


def test_a_placement_keeps_its_own_arrays(problem: Problem) -> None:
    device, priority = np.zeros(6, np.int16), np.zeros(6, np.float32)
    placement = problem.placement(device, priority)
    device[:], priority[:] = 1, 1
    assert placement.device.tolist() == [0] * 6
    assert placement.priority is not None
    assert placement.priority.tolist() == [0] * 6
