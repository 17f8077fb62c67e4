"""Benchmarks whose output documents show: they run, and print a row for everything."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


@pytest.mark.slow
@pytest.mark.long
def test_costs_of_ray(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("ray")
    spec = importlib.util.spec_from_file_location("benchmark_ray_calls", BENCHMARKS / "ray_calls.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    monkeypatch.setattr(sys, "argv", ["ray_calls", "--calls", "3"])
    script.main()
    rows = capsys.readouterr().out.splitlines()
    assert [row.split()[0] for row in rows[-3:]] == ["here", "call", "evaluation"]
