"""Where the time of one step goes, device by device, as in Mirhoseini et al. 2017 (§4.5, Figures 8 and 9).

A run writes the profile of its best placement as `profile.json`; `placekit compare --profile` sets several side by side.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field, model_validator

from placekit_core import PHASES, FileModel, Labels, Problem, RunError, Schedule, read_json, write_atomically

FILE = "profile.json"
TYPES = 32
"""Operation types that a profile names: those that take most of the time."""
OTHER = "other"


class _Part(FileModel):
    model_config = ConfigDict(frozen=True, allow_inf_nan=False)


T = TypeVar("T")
Tuple = Annotated[tuple[T, ...], Field(strict=False)]  # JSON has lists


class DeviceProfile(_Part):
    """One device, in seconds.

    `forward_s`, `backward_s` and `update_s` are sums over its operations, also over those that run side by side on several
    streams; `busy_s` is the time in which at least one runs, `idle_s` the rest of the step. `copy_s` is the time in which at
    least one transfer leaves or reaches the device, whether it computes meanwhile or not.
    """

    device: str
    forward_s: float
    backward_s: float
    update_s: float
    busy_s: float
    idle_s: float
    copy_s: float

    @property
    def compute_s(self) -> float:
        """Seconds of all its operations."""
        return self.forward_s + self.backward_s + self.update_s


class TypeProfile(_Part):
    """The operations of one type: [D] seconds on each device, by phase."""

    type: str
    forward_s: Tuple[float]
    backward_s: Tuple[float]
    update_s: Tuple[float]


class TransferProfile(_Part):
    """Transfers from one device to another: their bytes, and seconds in which at least one is under way.

    `tensors` is their number; where the backend sends messages of several tensors, it is that of messages.
    """

    source: str
    destination: str
    tensors: int
    bytes: int
    busy_s: float


class Profile(_Part):
    """`profile.json`: one run of one placement on D devices. Times in seconds.

    Attributes:
        program, cluster: what was placed, and on which machine.
        makespan_s: from the start to the end of the last operation or transfer; of all micro-batches, if a step has several.
        devices: [D] in the order of the cluster.
        types: operation types by the time that they take, longest first; all beyond the first `TYPES` are `other`, last.
        transfers: pairs of devices between which something was sent, in the order of the cluster.
    """

    format: Literal["placekit-profile"] = "placekit-profile"
    version: Literal[1] = 1
    program: str
    cluster: str
    makespan_s: float = Field(ge=0)
    devices: Tuple[DeviceProfile]
    types: Tuple[TypeProfile]
    transfers: Tuple[TransferProfile]

    @model_validator(mode="after")
    def _a_figure_per_device(self) -> Profile:
        for t in self.types:
            if {len(t.forward_s), len(t.backward_s), len(t.update_s)} != {len(self.devices)}:
                raise ValueError(f"type {t.type!r} does not have one figure per device")
        return self

    def by_type(self, names: Sequence[str]) -> NDArray[np.float64]:
        """[len(names) + 1, phases, D] seconds of the types of these names; the last row has all others."""
        found = np.zeros((len(names) + 1, len(PHASES), len(self.devices)))
        rows = {name: row for row, name in enumerate(names)}
        for t in self.types:
            found[rows.get(t.type, -1)] += np.array([t.forward_s, t.backward_s, t.update_s])
        return found


def profile(problem: Problem, schedule: Schedule, program: str = "") -> Profile:
    """Profile of one run; `program` is the name that it is reported by, the graph's by default.

    Of a step of micro-batches, it is about all of them: operations count as often as they ran.
    """
    graph, names = problem.graph, problem.cluster.device_names
    op = np.flatnonzero(graph.kernel)
    device, total, makespan = schedule.op_device[op], schedule.op_total_s[op], schedule.end_s
    row, types = _by_time(graph.op_type.take(op), total)
    works, sends = _Intervals.of(schedule, op), _sends(problem, schedule)
    shape = (len(types), len(PHASES), len(names))
    cell = np.ravel_multi_index((row, graph.phase[op], device), shape) if len(op) else op
    seconds = np.bincount(cell, total, minlength=int(np.prod(shape))).reshape(shape)
    devices = []
    for d, name in enumerate(names):
        forward, backward, update = seconds[:, :, d].sum(axis=0).tolist()
        busy = works.covered(works.device == d)
        copy = sends.covered((sends.device == d) | (sends.to == d))
        devices.append(
            DeviceProfile(
                device=name, forward_s=forward, backward_s=backward, update_s=update,
                busy_s=busy, idle_s=max(0.0, makespan - busy), copy_s=copy,
            )
        )  # fmt: skip
    return Profile(
        program=program or graph.name,
        cluster=problem.cluster.name,
        makespan_s=makespan,
        devices=tuple(devices),
        types=tuple(
            TypeProfile(type=name, forward_s=tuple(f), backward_s=tuple(b), update_s=tuple(u))
            for name, (f, b, u) in zip(types, seconds.astype(object), strict=True)
        ),
        transfers=tuple(_transfers(names, sends)),
    )


def top_types(profiles: Iterable[Profile], limit: int) -> list[str]:
    """Names of the types that take most of the time over all profiles, longest first; `other` is never among them."""
    total: dict[str, float] = {}
    for p in profiles:
        for t in p.types:
            total[t.type] = total.get(t.type, 0.0) + sum(t.forward_s) + sum(t.backward_s) + sum(t.update_s)
    named = [name for name, seconds in total.items() if name != OTHER and seconds > 0]
    return sorted(named, key=lambda name: (-total[name], name))[:limit]


def write_profile(path: Path, found: Profile) -> None:
    """Write a profile as JSON, atomically."""
    write_atomically(path, (json.dumps(found.model_dump(mode="json"), indent=1) + "\n").encode())


def load_profile(directory: str | Path) -> Profile:
    """The profile in a run directory, or in that of one program of a family. Raises RunError if it has none."""
    path = Path(directory) / FILE
    if not path.is_file():
        raise RunError(
            f"no {FILE} in {directory}",
            "the run found no placement that fits, or was made by a version without profiles: run it again",
        )
    return read_json(path, Profile, error=RunError)


def _by_time(types: Labels, seconds: NDArray[np.float64]) -> tuple[NDArray[np.int64], list[str]]:
    """Names as in `Profile.types`, and [n] index of each operation's name."""
    size = len(types.vocabulary)
    total, count = (np.bincount(types.codes, w, minlength=size).tolist() for w in (seconds, None))
    present = [c for c in range(size) if count[c] and types.vocabulary[c] != OTHER]
    named = sorted(present, key=lambda c: (-total[c], types.vocabulary[c]))[:TYPES]
    row = np.full(size, len(named))
    row[named] = np.arange(len(named))
    found = row[types.codes]
    rest = [OTHER] if np.any(found == len(named)) else []
    return found, [types.vocabulary[c] for c in named] + rest


@dataclass(frozen=True, eq=False)
class _Intervals:
    """What devices are busy with: [r] device, destination and bytes of transfers, start and end."""

    device: NDArray[np.int16]
    to: NDArray[np.int16]
    bytes_: NDArray[np.float64]
    start_s: NDArray[np.float64]
    end_s: NDArray[np.float64]

    @classmethod
    def of(cls, schedule: Schedule, op: NDArray[np.intp]) -> _Intervals:
        """Tasks if there are any, else the operations `op`."""
        spans = schedule.spans
        if spans is not None:
            own = spans.is_task
            return cls(spans.device[own], spans.to[own], spans.bytes_[own], spans.start_s[own], spans.end_s[own])
        none = np.zeros(len(op))
        device, start, end = schedule.op_device[op], schedule.op_start_s[op], schedule.op_end_s[op]
        return cls(device, none.astype(np.int16), none, start, end)

    def covered(self, rows: NDArray[np.bool_] | NDArray[np.intp]) -> float:
        """Seconds in which at least one of these rows goes on."""
        return covered(self.start_s[rows], self.end_s[rows])


def _sends(problem: Problem, schedule: Schedule) -> _Intervals:
    """Messages if there are spans, else the transfers of tensors."""
    spans = schedule.spans
    if spans is not None:
        own = ~spans.is_task
        return _Intervals(spans.device[own], spans.to[own], spans.bytes_[own], spans.start_s[own], spans.end_s[own])
    bytes_ = problem.graph.tensor_bytes[schedule.transfer_tensor].astype(np.float64)
    return _Intervals(
        schedule.transfer_src, schedule.transfer_dst, bytes_, schedule.transfer_start_s, schedule.transfer_end_s
    )


def _transfers(names: Sequence[str], sends: _Intervals) -> Iterable[TransferProfile]:
    pair = sends.device.astype(np.int64) * len(names) + sends.to
    order = np.argsort(pair, kind="stable")
    keys, first = np.unique(pair[order], return_index=True)
    for key, rows in zip(keys.tolist(), np.split(order, first[1:]), strict=False):
        yield TransferProfile(
            source=names[key // len(names)],
            destination=names[key % len(names)],
            tensors=len(rows),
            bytes=int(sends.bytes_[rows].sum()),
            busy_s=sends.covered(rows),
        )


def covered(start: NDArray[np.float64], end: NDArray[np.float64]) -> float:
    """Seconds in which at least one of the intervals [start, end) goes on."""
    order = np.argsort(start, kind="stable")
    begin, until = start[order], np.maximum.accumulate(end[order])  # `until`: last end of all that began so far
    gaps = np.maximum(begin[1:] - until[:-1], 0.0)
    return float(until[-1] - begin[0] - gaps.sum()) if len(order) else 0.0
