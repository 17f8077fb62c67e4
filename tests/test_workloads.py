"""Every workload preset: composes, has a small variant, and is placed by the default policy."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from placekit_testing.speed import mostly_slow

from placekit_core import installed
from placekit_core.cli.compose import compose
from placekit_core.run.assembly import component
from tests.runs import validate

PRESETS = {p.name: p.path for p in installed().presets() if p.group == "workload" and p.name != "none" and p.path}
SMALL = [n for n in PRESETS if n.endswith("_small") or n == "mlp"]
FAST = ["mlp", "chainmm_small", "planted_small", "rnnlm_small"]


def importer_of(config: dict[str, Any]) -> tuple[str, str]:
    """What decides the kind of graph: the importer, and the program of a sharded one."""
    return config["importer"]["name"], config["importer"].get("program", "")


@pytest.fixture(scope="module")
def configs() -> dict[str, dict[str, Any]]:
    return {name: compose([f"workload={name}"], installed()) for name in PRESETS}


@pytest.mark.slow
def test_options_are_valid(configs: dict[str, dict[str, Any]]) -> None:
    for name, data in configs.items():
        config = validate(data)
        assert config.workload == name
        component(config, "importer", installed())
        component(config, "grouper", installed())


OWN = {"mlp", "planted", "planted_large"}  # not from a paper


def test_every_workload_says_where_it_comes_from() -> None:
    for name, path in PRESETS.items():
        comment = " ".join(line for line in path.read_text().splitlines() if line.startswith("# "))
        if name not in OWN and not name.endswith("_small"):
            assert re.search(r"\b(20[12]\d|Doppler|Post|Placeto)\b", comment), f"{name}: which paper?"


@pytest.mark.slow
def test_every_network_has_a_small_variant(configs: dict[str, dict[str, Any]]) -> None:
    small = {importer_of(configs[name]) for name in SMALL}
    for name, config in configs.items():
        assert importer_of(config) in small, f"{name} has no small variant"


@pytest.mark.slow
def test_every_importer_with_its_own_networks_has_a_workload(configs: dict[str, dict[str, Any]]) -> None:
    used = {c["importer"]["name"] for c in configs.values()}
    for entry in installed().all():
        if entry.kind == "importer" and entry.distribution in ("placekit-zoo", "placekit-einsum"):
            assert entry.component.name in used


@pytest.mark.parametrize("name", mostly_slow(SMALL, FAST, {*SMALL} - {*FAST}))
def test_small_variants_are_placed(name: str, placekit: Callable, tmp_path: Path) -> None:
    code, _, err = placekit("run", f"workload={name}", "budget.evaluations=20", "log=csv", "run_dir=run")
    assert code == 0, err
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["workload"] == name
    assert result["fits"]
    assert result["bound_s"] <= result["value_s"]
