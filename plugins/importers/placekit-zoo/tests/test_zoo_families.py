"""Placeto's families: what is sampled, the split, steps equal to eager torch, tracing in other processes."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from placekit_testing import ImporterContract
from placekit_testing.contract import Make
from placekit_testing.sequential import run_sequential
from placekit_testing.speed import mostly_slow
from placekit_zoo import family
from placekit_zoo.enas_cnn import EnasCnn
from placekit_zoo.enas_rnn import EnasCell
from placekit_zoo.placeto import PlacetoCifar10, PlacetoNmt, PlacetoPtb

from placekit_core import ImporterError

torch.set_num_threads(1)  # the tensors are small, and tests run side by side

CNN = {"nodes": (1, 2), "cells": (1, 1), "widths": [4, 8], "batch": 2, "image_size": 8}
RNN = {"nodes": (2, 4), "steps": (2, 4), "batch": 2, "hidden": 8, "vocabulary": 20}
NMT = {
    "graphs": 2,
    "train": 1,
    "lengths": (1, 3),
    "batches": (2, 3),
    "batch_step": 1,
    "layers": 1,
    "hidden": 8,
    "vocabulary": 20,
    "dropout": 0.0,
}
FAMILIES = [(PlacetoCifar10, CNN), (PlacetoPtb, RNN), (PlacetoNmt, NMT)]


@pytest.mark.slow
class TestPlacetoPtb(ImporterContract):
    @pytest.fixture
    def make(self) -> Make:
        return partial(PlacetoPtb, **RNN, graphs=2, train=1)


@pytest.mark.parametrize(("importer", "options"), mostly_slow(FAMILIES, FAMILIES[1:2]))
def test_steps_equal_eager(importer: Any, options: dict[str, Any], steps_equal_eager: Callable[..., None]) -> None:
    def member(**seed: int) -> Any:
        made = importer(**options, only=1, **seed)
        return SimpleNamespace(load=made.load, step=lambda: made.step(made.sample(1)))

    steps_equal_eager(member, {})


@pytest.mark.parametrize("importer", [PlacetoCifar10, PlacetoPtb, PlacetoNmt])
def test_members_are_those_of_the_paper(importer: Any) -> None:
    made = importer()
    members = [made.sample(i) for i in range(32)]
    assert len({str(m) for m in members}) == 32
    assert [importer(graphs=33, family_seed=0).sample(i) for i in range(32)] == members
    assert [importer(family_seed=1).sample(i) for i in range(32)] != members
    splits = [made.split(i) for i in range(32)]
    assert splits.count("train") == splits.count("test") == 16
    assert splits != sorted(splits)
    assert splits != [importer(family_seed=1).split(i) for i in range(32)]


def test_ranges_of_what_is_sampled() -> None:
    cnn = [PlacetoCifar10().sample(i) for i in range(200)]
    assert {m["cells"] for m in cnn} == {2, 3, 4}
    assert {m["width"] for m in cnn} == {20, 28, 36, 44}
    cells = [m[kind] for m in cnn for kind in ("convolution", "reduction")]
    assert {len(cell) for cell in cells} == {5, 6, 7, 8, 9}
    for cell in cells:
        assert all(0 <= state < 2 + i for i, node in enumerate(cell) for state in (node[1], node[3]))
        assert any(1 in (node[1], node[3]) for node in cell)
    operations = {node[k] for cell in cells for node in cell for k in (0, 2)}
    assert operations == {"separable3", "separable5", "average", "maximum", "identity"}
    rnn = [PlacetoPtb().sample(i) for i in range(200)]
    assert {m["steps"] for m in rnn} == set(range(20, 41))
    assert {len(m["cell"]) for m in rnn} == {8, 9, 10, 11, 12}
    for m in rnn:
        assert m["cell"][0][0] == -1
        assert all(0 <= read < i for i, (read, _) in enumerate(m["cell"]) if i)
    assert {kind for m in rnn for _, kind in m["cell"]} == {"tanh", "relu", "sigmoid", "identity"}
    nmt = [PlacetoNmt(graphs=400).sample(i) for i in range(400)]
    assert {m["length"] for m in nmt} == set(range(16, 49))
    assert {m["batch"] for m in nmt} == set(range(32, 257, 16))


def test_recurrent_cell_by_hand() -> None:
    torch.manual_seed(0)
    cell = EnasCell([(-1, "tanh"), (0, "relu"), (0, "sigmoid"), (2, "identity")], 3)
    for w in cell.parameters():
        torch.nn.init.normal_(w)
    x, h = torch.randn(2, 3), torch.randn(2, 3)
    w = list(cell.weights)

    def node(before: torch.Tensor, products: torch.Tensor, f: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        gate = torch.sigmoid(products[:, :3])
        return gate * f(products[:, 3:]) + (1 - gate) * before

    first = node(h, torch.cat([x, h], 1) @ w[0].t(), torch.tanh)
    second = node(first, first @ w[1].t(), torch.relu)
    third = node(first, first @ w[2].t(), torch.sigmoid)
    fourth = node(third, third @ w[3].t(), lambda t: t)
    torch.testing.assert_close(cell(x, h), (second + fourth) / 2)


def test_classifier_by_hand() -> None:
    convolution = [("average", 1, "separable3", 0), ("identity", 2, "separable5", 1), ("maximum", 2, "identity", 1)]
    reduction = [("identity", 1, "average", 1), ("maximum", 2, "separable3", 0)]
    sampled: Any = {"cells": 2, "width": 4, "convolution": convolution, "reduction": reduction}
    with torch.device("meta"):
        network = EnasCnn(sampled, 32, 10)
        shapes = []
        for cell in network.cells:
            cell.register_forward_hook(lambda _module, _inputs, output: shapes.append(tuple(output.shape[1:])))
        assert network(torch.empty(2, 3, 32, 32)).shape == (2, 10)
    # two nodes of the convolution cell are read by no other, one of the reduction cell
    assert shapes == [(8, 32, 32)] * 2 + [(8, 16, 16)] + [(16, 16, 16)] * 2 + [(16, 8, 8)] + [(32, 8, 8)] * 2


@pytest.mark.slow
def test_members_are_named_and_say_what_they_are() -> None:
    programs = PlacetoPtb(**RNN, graphs=3, train=2).load()
    assert [p.graph.name for p in programs] == ["placeto_ptb-00", "placeto_ptb-01", "placeto_ptb-02"]
    assert sorted(p.split for p in programs) == ["test", "train", "train"]
    assert len({p.graph.attributes["kernels"] for p in programs}) == 3
    assert len({int(p.graph.depth.max()) for p in programs}) > 1
    for i, p in enumerate(programs):
        assert p.graph.attributes["sampled"] == PlacetoPtb(**RNN).sample(i)
    only = PlacetoPtb(**RNN, graphs=3, train=2, only=2).load()
    assert [(p.graph.name, p.split) for p in only] == [("placeto_ptb-02", programs[2].split)]
    assert only[0].graph.fingerprint == programs[2].graph.fingerprint


def apart(monkeypatch: pytest.MonkeyPatch, cores: int) -> None:
    monkeypatch.setattr(family, "LEAST_PARALLEL", 2)
    monkeypatch.setattr(family, "usable_cores", lambda: cores)


@pytest.mark.slow
@pytest.mark.long
def test_other_processes_trace_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    here = PlacetoPtb(**RNN, graphs=3, train=2).load()
    apart(monkeypatch, 2)
    there = PlacetoPtb(**RNN, graphs=3, train=2).load()
    for a, b in zip(here, there, strict=True):
        assert isinstance(b.executable, family.Deferred)
        assert not isinstance(a.executable, family.Deferred)
        assert (a.graph.name, a.graph.fingerprint, a.split) == (b.graph.name, b.graph.fingerprint, b.split)
        assert a.graph.attributes == b.graph.attributes
        assert a.executable.recipe == b.executable.recipe
    one, other = here[1].executable, there[1].executable
    assert one.updates == other.updates
    assert one.views == other.views
    assert one.random_ops == other.random_ops
    values = one.initial()
    assert all(torch.equal(v, values[t]) for t, v in other.initial().items())
    results = [run_sequential(programs[1], values)[1]["loss"] for programs in (here, there)]
    assert torch.equal(*results)


# A family without torch, so that its processes start at once; one member fails as importers do, another ends its process.
LIGHT = """
import os
from placekit_core import ImporterError
from placekit_zoo.family import FamilyImporter
from placekit_zoo.planted import PlantedImporter

class Light(FamilyImporter):
    name = "light"
    sample = step = None

    def member(self, member):
        if self.options.family_seed == 1:
            raise ImporterError(f"member {member} is wrong", "so says its hint")
        if self.options.family_seed == 2:
            os._exit(9)
        return PlantedImporter(seed=member).load()[0]

Light.options_class = __import__("placekit_zoo.family_options").family_options.FamilyOptions
Light.__abstractmethods__ = frozenset()
"""


@pytest.fixture
def light(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    (tmp_path / "light_family.py").write_text(LIGHT)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return importlib.import_module("light_family").Light


@pytest.mark.parametrize("cores", [2, 3])
def test_any_number_of_processes(light: Any, monkeypatch: pytest.MonkeyPatch, cores: int) -> None:
    apart(monkeypatch, cores)
    found = [p.graph.fingerprint for p in light(graphs=9, train=1).load()]
    assert found == [light().member(i).graph.fingerprint for i in range(9)]


def test_an_error_in_another_process_is_that_of_the_importer(light: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    apart(monkeypatch, 2)
    with pytest.raises(ImporterError, match=r"^member \d is wrong\n  so says its hint$"):
        light(graphs=5, train=1, family_seed=1).load()


def test_a_process_that_ends_is_an_error(light: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    apart(monkeypatch, 2)
    with pytest.raises(ImporterError, match="of 'light' ended with exit code 9: it printed nothing"):
        light(graphs=5, train=1, family_seed=2).load()
    light.__name__ = "Gone"
    with pytest.raises(ImporterError, match=r"ended with exit code 1: AttributeError: .*Gone"):
        light(graphs=5, train=1).load()


def test_a_script_without_a_main_guard_is_run_once(light: Any, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "numpy.py").write_text("raise SystemExit('not numpy')")  # is not imported in its place
    script = tmp_path / "script.py"
    script.write_text(
        "print('run')\nfrom placekit_zoo import family\nfamily.usable_cores = lambda: 2\n"
        "from light_family import Light\nprint(len(Light(graphs=9, train=1).load()))\n"
        "import sys\nprint('torch' in sys.modules)\n"
    )
    command = [sys.executable, str(script)]
    found = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path / "folder")
    assert found.stdout.split() == ["run", "9", "False"], found.stderr
