"""Makes Python code draw the same random numbers in each forward pass of a trace."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

import numpy as np
import torch


@contextlib.contextmanager
def kept_random_states() -> Iterator[None]:
    """Restore the states of the three global generators (torch on the CPU, Python, numpy) on leaving."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


def draw_again(seed: int = 0) -> None:
    """Restart the three sequences of random numbers; only inside `kept_random_states`."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)
