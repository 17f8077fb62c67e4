"""The quantities that claims compare: seconds of a step, and other numbers computed from a run."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isnan

import numpy as np

from placekit_core import RunError
from placekit_papers.parts import Parts, recorded_parts
from placekit_papers.runs import Run, recorded
from placekit_papers.statistics import Seconds

_CPU = "xeon"
_USED = 0.05  # a GPU with a smaller share of the computation does not count as used


@dataclass(frozen=True)
class Quantity:
    """A number computed from a run, or from where the parts of its network are computed.

    Attributes:
        of: computes it from a `Run`, or from `Parts` if `parts` is set.
        text: format in which a mean is shown.
        scale: factor of the mean when it is shown.
        column: a field of `Run` that it needs; runs without it are left out.
        over_mean: whether values are divided by their mean over the seeds.
        parts: whether it is computed from where the parts of the network are computed.
    """

    of: Callable[..., float]
    text: str = "{:.3g}"
    scale: float = 1.0
    column: str = ""
    over_mean: bool = False
    parts: bool = False


def _largest(seconds: Mapping[str, float]) -> float:
    return max(seconds.values()) / sum(seconds.values())


def _imbalance(run: Run) -> float:
    return max(run.busy_s.values()) / float(np.mean(list(run.busy_s.values())))


def _gpus(seconds: Mapping[str, float]) -> float:
    total = sum(seconds.values())
    return sum(x >= _USED * total for device, x in seconds.items() if not device.startswith(_CPU))


def _whole(parts: Parts, pattern: str = ".*") -> Counter[str]:
    """Seconds by device of the parts whose names match."""
    return sum((Counter(dict(devices)) for name, devices in parts.items() if re.fullmatch(pattern, name)), Counter())


def _cpu_share(parts: Parts, pattern: str) -> float:
    seconds = _whole(parts, pattern)
    return sum(x for device, x in seconds.items() if device.startswith(_CPU)) / sum(seconds.values())


def _on_separate_gpus(parts: Parts, *names: str) -> float:
    """1 if each of these parts is mostly on a GPU, and no two on the same one; else 0."""
    places = [_whole(parts, name).most_common(1)[0] for name in names]
    most = all(x > sum(parts[name].values()) / 2 for name, (_, x) in zip(names, places, strict=True))
    devices = {device for device, _ in places}
    return float(most and len(devices) == len(names) and not any(d.startswith(_CPU) for d in devices))


def _devices_of_branches(parts: Parts, *blocks: str) -> float:
    """Mean over the blocks of the number of devices that have most of a branch."""
    places = [{max(d, key=lambda x: d[x]) for name, d in parts.items() if name.startswith(block)} for block in blocks]
    return float(np.mean([len(devices) for devices in places]))


QUANTITIES = {
    "value": Quantity(lambda run: run.value_s),
    "over the mean": Quantity(lambda run: run.value_s, "{:.4f}", over_mean=True),
    "late": Quantity(lambda run: run.late_s),
    "seconds of the run": Quantity(lambda run: run.seconds, "{:.1f} s"),
    "evaluations to best": Quantity(lambda run: float(run.to_best), "{:.0f}"),
    "copies": Quantity(lambda run: run.copies_s, "{:.1f} ms", 1e3),
    "busiest share": Quantity(lambda run: _largest(run.busy_s), "{:.0f}%", 100, "busy_s"),
    "busiest forward share": Quantity(lambda run: _largest(run.forward_s), "{:.0f}%", 100, "forward_s"),
    "idle": Quantity(lambda run: run.value_s / float(np.mean(list(run.busy_s.values()))), "{:.3f}", column="busy_s"),
    "imbalance": Quantity(_imbalance, "{:.3f}", column="busy_s"),
    "GPUs": Quantity(lambda run: _gpus(run.busy_s), "{:.0f}", column="busy_s"),
    "GPUs of parts": Quantity(lambda parts: _gpus(_whole(parts)), "{:.0f}", parts=True),
    "embeddings on the CPU": Quantity(lambda parts: _cpu_share(parts, r"\w+_embedding"), "{:.0f}%", 100, parts=True),
    "encoder and decoder on GPUs of their own": Quantity(
        lambda parts: _on_separate_gpus(parts, "encoder", "decoder"), "{:.0f}", parts=True
    ),
    "devices of early branches": Quantity(
        lambda parts: _devices_of_branches(parts, *(f"Mixed_{b}." for b in ("5b", "5c", "5d"))), "{:.1f}", parts=True
    ),
    "devices of middle branches": Quantity(
        lambda parts: _devices_of_branches(parts, *(f"Mixed_{b}." for b in ("6b", "6c", "6d", "6e"))), "{:.1f}", parts=True
    ),
}  # fmt: skip
"""Quantities by their names in the papers' YAML files. `idle` is the step over the mean of the devices' computation;
`over the mean` is divided by the mean over the seeds."""


@functools.cache
def _quantities(names: tuple[str, ...], workload: str, cluster: str, method: str, quantity: str) -> Seconds:
    found = QUANTITIES[quantity]
    if found.parts:
        [name] = names
        if (workload, cluster, method) not in recorded_parts(name):
            raise RunError(f"{name}.csv has no parts of {workload} on {cluster} by {method}", "run the item with --run")
        return {
            seed: found.of(parts) for seed, parts in sorted(recorded_parts(name)[workload, cluster, method].items())
        }
    runs = sorted(recorded(*names).of(workload, cluster, method), key=lambda run: run.seed)
    values = {run.seed: found.of(run) for run in runs if not found.column or getattr(run, found.column)}
    values = {seed: x for seed, x in values.items() if not isnan(x)}
    return (
        {seed: x / float(np.mean(list(values.values()))) for seed, x in values.items()} if found.over_mean else values
    )


def quantities(names: list[str], workload: str, cluster: str, method: str, quantity: str = "value") -> Seconds:
    """By seed, a quantity of a method's runs in the CSVs `names`; runs without it are left out."""
    return _quantities(tuple(names), workload, cluster, method, quantity)
