"""`placekit cluster kinds`: the devices of `parts.yaml`, and how a machine in words finds them."""

from __future__ import annotations

import pytest
from placekit_inspect import cluster_kinds
from placekit_inspect.data_sheets import parts
from placekit_inspect.machine_file import machine_file

from placekit_core import Cluster, ClusterError, installed
from placekit_core.contracts.files import parse_yaml


def test_a_word_finds_kinds_and_shows_the_sources_of_few(capsys: pytest.CaptureFixture[str]) -> None:
    assert cluster_kinds.main(["RTX 3090"], installed()) == 0
    out = capsys.readouterr().out
    assert [line.split()[0] for line in out.splitlines() if line.startswith("rtx3090") and ":" not in line] == [
        "rtx3090",
        "rtx3090ti",
    ]
    assert "rtx3090ti: NVIDIA GeForce RTX 3090 Ti specifications: 10752 lanes" in out
    assert "pcie4" not in out
    cluster_kinds.main(["m3"], installed())
    assert "Nominal, not of a data sheet: rates." in " ".join(capsys.readouterr().out.split())


def test_without_a_word_all_kinds_and_links_without_sources(capsys: pytest.CaptureFixture[str]) -> None:
    cluster_kinds.main([], installed())
    out = capsys.readouterr().out
    words = {line.split()[0] for line in out.splitlines() if line.strip()}
    assert words >= {*parts().kinds, *parts().links}
    assert "specifications" not in out


def test_no_such_kind() -> None:
    with pytest.raises(ClusterError, match="no device kind named 'rtx4098'") as error:
        cluster_kinds.main(["rtx4098"], installed())
    assert "did you mean 'rtx4090'?" in error.value.hint


@pytest.mark.parametrize("name", parts().kinds)
def test_every_kind_is_a_machine_in_words(name: str) -> None:
    """Figures are in the range of real devices, so that a wrong exponent fails."""
    kind = Cluster.parse(parse_yaml(machine_file(f"1x {name}").encode())).kinds[name]
    rates = kind.flops_per_s
    assert 2e11 < rates["float32"] < 2e14
    assert rates.get("float64", 0.0) <= rates["float32"]
    assert 6e9 < kind.memory_bytes < 6e11
    assert 5e10 < kind.memory_bytes_per_s < 1e13


def test_names_of_drivers_belong_to_one_kind() -> None:
    names = [name for part in parts().kinds.values() for name in part.driver]
    assert len(names) == len(set(names))
