"""What a type checker sees of placekit from outside: the packages say that they are typed, and the API has types."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
from typing import assert_type

import numpy as np
from numpy.random import Generator

from placekit_core import GraphBuilder, Placement, Result, Task, place, search
from placekit_core import Schedule

b = GraphBuilder("one")
b.add("a", outputs=[8], flops=1e9)


def mine(task: Task, rng: Generator) -> Placement:
    return task.problem.placement(np.zeros(task.problem.g, np.int16))


result = place(b.build(), cluster="p100x4", policy=mine, budget=10)
assert_type(result, Result)
assert_type(result.placement, Placement | None)
assert_type(result.schedule, Schedule | None)
assert_type(result.value_s, float | None)
with search(b.build(), budget=10) as s:
    s.evaluate(s.rng.integers(0, 2, (4, s.problem.g)))
assert_type(s.result, Result | None)
place(b.build(), budgets=10)
place(b.build(), seed="1")
"""


@pytest.mark.slow
def test_a_users_script_is_checked(tmp_path: Path) -> None:
    """All types of the script are right, but for the one wrong argument; a misspelt keyword belongs to the source."""
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "mypy", "--strict", "--python-version", "3.11", "--config-file=", "script.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("script.py")]
    assert len(lines) == 1, done.stdout
    assert 'Argument "seed" to "place" has incompatible type "str"' in lines[0]
