"""Rewards of placements, and their advantages over a baseline. Each problem has its own reward function."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placekit_core import Measurements
from placekit_learn.options import LearningOptions, PolicyGradientOptions

Floats = NDArray[np.float64]
EQUAL = 1e-9  # largest relative standard deviation of rewards that count as equal
FAILING = 2.0  # a failure counts as this many times the slowest placement that fitted


class RewardFunction:
    """Computes rewards of one problem's placements; higher is better.

    Attributes:
        scale_s: mean value of the placements of the first batch in which some fitted.
        worst_s: slowest value so far of a placement that fitted.
    """

    def __init__(self, options: LearningOptions, failing_signal_s: float) -> None:
        self.learning, self.failing_signal_s = options, failing_signal_s
        self.counted: NDArray[np.bool_] | None = None
        self.scale_s: float | None = None
        self.worst_s: float | None = None

    def rewards(self, value_s: Floats) -> Floats:
        """The rewards of values in seconds."""
        if self.learning.reward == "sqrt":  # Mirhoseini et al. 2017, section 3.1
            return np.asarray(-np.sqrt(value_s))
        return -value_s / (self.scale_s or 1.0) if self.learning.reward == "scaled" else -value_s

    @property
    def failing_s(self) -> float:
        """Seconds that count for a placement that failed or did not fit."""
        if self.learning.failing == "signal" or self.worst_s is None:
            return self.failing_signal_s
        return FAILING * self.worst_s

    def record(self, value_s: Floats) -> None:
        """Update the attributes by the values of placements that fit."""
        if self.scale_s is None:
            self.scale_s = float(value_s.mean())
        self.worst_s = max(self.worst_s or 0.0, float(value_s.max()))

    def state(self) -> dict[str, Any]:
        """The state that `restore` takes."""
        return {"scale_s": self.scale_s, "worst_s": self.worst_s}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state`."""
        self.scale_s, self.worst_s = state["scale_s"], state["worst_s"]


class Advantages(RewardFunction):
    """Computes rewards of one problem's placements, and their advantages over a baseline.

    The baseline is the moving average of the batches' means. With `baseline=mean`, it is the mean of all earlier rewards (Yao et
    al. 2026, section 5.1); with `baseline=batch`, the batch's own mean, because the problems of a family take turns, and the
    policy changes much between two turns of a problem. Until a placement fits, all are equal and there is nothing to learn.
    Baseline and scale start with the first batch in which one fits.

    Attributes:
        baseline: moving average of the batches' mean rewards, or the mean of all rewards so far.
        seen: with `baseline=mean`, the number of rewards in it; its start counts as one of them.
        at_most: cap on the value of a placement, as a multiple of the median of its batch; None: no cap.
    """

    def __init__(self, options: PolicyGradientOptions, failing_signal_s: float) -> None:
        super().__init__(options, failing_signal_s)
        self.options = options
        self.baseline: float | None = None
        self.seen = 0
        self.at_most: float | None = None

    def weights(self, m: Measurements, only_fitting: bool = False) -> Floats:
        """[b] advantages, divided by the number of placements that count; 0 for the others. Updates the baseline."""
        fits = m.fits & np.isfinite(m.value_s)
        value_s = m.value_s
        if fits.any():
            if self.at_most is not None:
                value_s = np.minimum(value_s, self.at_most * float(np.median(value_s[fits])))
            self.record(value_s[fits])
        self.counted = used = fits if only_fitting else np.full(len(m), self.scale_s is not None)
        if not used.any():
            return np.zeros(len(m))
        reward = self.rewards(np.where(fits, value_s, self.failing_s))
        mean = float(reward[used].mean())
        if self.baseline is None:
            failing = self.options.baseline_start == "failing"
            self.baseline = float(self.rewards(np.array(self.failing_s))) if failing else mean
        advantage = np.where(used, reward - (mean if self.options.baseline == "batch" else self.baseline), 0.0)
        self._average(mean, int(used.sum()))
        deviation = float(reward[used].std()) if self.options.normalise else 1.0
        if deviation <= EQUAL * abs(mean):  # all rewards are equal, up to rounding errors
            deviation = 1.0
        return advantage / int(used.sum()) / deviation

    def _average(self, mean: float, count: int) -> None:
        """Update the baseline by `count` rewards with this mean."""
        assert self.baseline is not None
        decay = self.options.baseline_decay
        if self.options.baseline == "mean":
            failing = self.options.baseline_start == "failing"
            self.seen = max(self.seen, int(failing))  # the start counts as one reward, if it is not this batch's own
            decay = self.seen / (self.seen + count)
            self.seen += count
        self.baseline = decay * self.baseline + (1 - decay) * mean

    def state(self) -> dict[str, Any]:
        return {**super().state(), "baseline": self.baseline, "seen": self.seen}

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self.baseline, self.seen = state["baseline"], int(state["seen"])
