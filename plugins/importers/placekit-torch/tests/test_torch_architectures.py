"""The forty architectures of `architectures.py`: imported, placed, and counted as torch counts them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
from placekit_testing.speed import mostly_slow

FILE = Path(__file__).parent / "architectures.py"


def loaded() -> Any:
    spec = importlib.util.spec_from_file_location("torch_architectures", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["torch_architectures"] = module
    spec.loader.exec_module(module)
    return module


MODELS = loaded()
NAMES = list(MODELS.ARCHITECTURES)
LONG = [n for n in NAMES if n not in [*MODELS.SHORT, *MODELS.SLOW]]


@pytest.mark.parametrize("name", mostly_slow(NAMES, MODELS.SHORT, LONG))
def test_architecture(name: str) -> None:
    library = MODELS.ARCHITECTURES[name].library
    if importlib.util.find_spec(library.replace("-", "_")) is None:
        pytest.skip(f"{library} is not installed")
    row = MODELS.imported(name)
    assert not row.reason
    assert row.parameters == row.expected
    assert row.flops == pytest.approx(row.counted, rel=0.02)
    assert row.kernels > 20
    assert row.makespan_s > 0


def test_there_are_forty_of_five_libraries() -> None:
    assert len(NAMES) == 40
    assert len({a.library for a in MODELS.ARCHITECTURES.values()}) == 5
    assert set(MODELS.SHORT) <= set(NAMES)


@pytest.mark.slow
@pytest.mark.long
def test_a_decoder_of_70_gb_takes_little_memory() -> None:
    if importlib.util.find_spec("transformers") is None:
        pytest.skip("transformers is not installed")
    for line in MODELS.llama().splitlines():
        assert "70.6 G parameters" in line
        assert float(line.rsplit("peak ", 1)[1].split()[0].replace(",", "")) < 1024
