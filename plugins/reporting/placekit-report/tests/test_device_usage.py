"""How much each device computes and sends."""

from __future__ import annotations

import numpy as np
import pytest
from placekit_report.device_usage import covered, device_usage
from placekit_testing import fakes

from placekit_core import installed


def test_the_diamond_by_hand() -> None:
    """All but c on the first device. ms: a 0-2, b 2-10; a is sent 2-3, c 3-11 there, sent back 11-12, d 12-14."""
    problem = fakes.diamond()
    session = installed().get("backend", "simulator").load()().open(problem)
    used = device_usage(problem, session.schedule(problem.placement([0, 0, 0, 0, 1, 0])))
    session.close()
    assert used.busy_s == pytest.approx([0.012, 0.008])
    assert used.bytes_out.tolist() == used.bytes_in.tolist() == [1_000_000, 1_000_000]


def test_operations_side_by_side_count_once() -> None:
    assert covered(np.array([0.0, 1.0, 5.0]), np.array([2.0, 3.0, 6.0])) == 4.0
    assert covered(np.zeros(0), np.zeros(0)) == 0.0
