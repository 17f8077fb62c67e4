"""`placekit cluster kinds`: the devices of `parts.yaml`, and how a machine in words finds them."""

from __future__ import annotations

import re
import statistics

import pytest
from placekit_inspect import cluster_kinds
from placekit_inspect.data_sheets import parts
from placekit_inspect.machine_file import machine_file

from placekit_core import EFFICIENCY, Cluster, ClusterError, installed
from placekit_core.contracts.files import parse_yaml
from tests.repo import ROOT


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


def test_rates_are_measured_or_medians_of_the_generation_or_nominal() -> None:
    known = parts()
    measured, alike, other = known.rates("l40s"), known.rates("l4"), known.rates("p100")
    assert "matmul.compute" in measured.measured
    assert measured.efficiency["matmul"].memory == known.kinds["l40s"].measured["matmul"].memory
    assert alike.measured == ()
    assert "matmul.memory" in alike.median
    ada = [
        p.measured["matmul"].memory for p in known.kinds.values() if p.generation == "ada" and "matmul" in p.measured
    ]
    assert alike.efficiency["matmul"].memory == pytest.approx(statistics.median(m for m in ada if m), abs=0.005)
    assert (other.efficiency, other.measured, other.median) == ({}, (), ())
    assert other.launch_s == known.kinds["p100"].launch_overhead_s


@pytest.mark.parametrize("name", parts().kinds)
def test_what_is_not_known_of_a_kind_is_nominal(name: str) -> None:
    rates = parts().rates(name)
    assert 1e-6 < rates.launch_s < 1e-5
    known = {*rates.measured, *rates.median}
    for op_class, row in rates.efficiency.items():
        for half in ("compute", "memory"):
            assert 0 < getattr(row, half) <= 1
            if f"{op_class}.{half}" not in known:
                assert getattr(row, half) == getattr(EFFICIENCY[op_class], half)
    part = parts().kinds[name]
    assert bool(part.measured_by) == bool(part.measured or part.measured_launch_s)


def test_a_generation_without_measurements_has_those_of_another() -> None:
    known = parts()
    assert known.rates("rtx5070").efficiency == known.rates("rtx4070").efficiency
    assert "Medians of geforce_ada: launch_overhead_s, matmul, " in known.origin("rtx5070")
    assert known.origin("mi50") == "Efficiencies and launch overhead are nominal."
    assert {*known.stand_in} <= {p.generation for p in known.kinds.values()} >= {*known.stand_in.values()}


def test_the_parts_have_the_fractions_that_were_derived() -> None:
    text = (ROOT / "benchmarks" / "results" / "rates.md").read_text()
    derived: dict[str, dict[str, tuple[str, str]]] = {}
    for kind, op_class, compute, memory in re.findall(
        r"^\| (\w+) \| (\w+) \| ([\d.]*)(?: us)? \| ([\d.]*) \| \w* \|$", text, re.M
    ):
        derived.setdefault(kind, {})[op_class] = (compute, memory)
    gpus = {name: part for name, part in parts().kinds.items() if part.type == "gpu" and part.measured_by}
    assert derived.keys() == gpus.keys()
    for name, part in gpus.items():
        found = {c: tuple(f"{v:.2f}" if v else "" for v in (f.compute, f.memory)) for c, f in part.measured.items()}
        launch = {"launch_overhead_s": (f"{part.measured_launch_s * 1e6:.1f}", "")} if part.measured_launch_s else {}
        assert found | launch == derived[name], name
    channels = dict(re.findall(r"^\| (\d+) \| \d+ \| ([\d.]+) \|", text, re.M))
    assert channels == {str(n): f"{v:.2f}" for n, v in parts().host_memory.items()}


def test_the_kinds_say_which_rates_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    cluster_kinds.main(["l40s"], installed())
    out = " ".join(capsys.readouterr().out.split())
    assert "Measured (ai-dynamo/aiconfigurator, commit 095f58a, kernel tables; " in out
    assert "launch_overhead_s, matmul, quantized_matmul, inference_matmul.memory, attention." in out


def test_a_file_has_the_rates_and_says_where_they_are_from() -> None:
    text = machine_file("2x l4 + 64gb ddr5-4800 x12")
    kinds = Cluster.parse(parse_yaml(text.encode())).kinds
    assert kinds["l4"].efficiency == parts().rates("l4").efficiency
    assert kinds["l4"].launch_overhead_s == parts().rates("l4").launch_s
    assert "# Medians of ada: launch_overhead_s, matmul, " in text
    assert kinds["cpu"].efficiency["quantized_matmul"].memory == parts().host_memory[12]
