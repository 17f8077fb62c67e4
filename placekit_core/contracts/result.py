"""The result of a run: the numbers that result.json holds, and the objects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from placekit_core.contracts.errors import PlacekitError
from placekit_core.contracts.files import FileModel, Folder
from placekit_core.contracts.measurement import Measurements, Schedule
from placekit_core.contracts.placement import Placement
from placekit_core.contracts.problem import Problem
from placekit_core.contracts.units import percent, seconds


class Found(FileModel):
    """What a search found. Times in seconds, memory in bytes; null where there is no value.

    `error` says why the last measurement failed, if no placement has a value.
    """

    value_s: float | None
    bound_s: float | None
    gap: float | None
    spread_s: float | None = None
    fits: bool
    error: str | None = None
    evaluations: int
    proxy_evaluations: int = 0
    seconds: float
    peak_bytes: dict[str, float]
    notes: list[str] = Field(default=[])

    @property
    def outcome(self) -> str:
        """The value, or why there is none, in a few words."""
        if self.fits:
            return seconds(self.value_s)
        return "failed" if self.error else "does not fit" if self.evaluations else "not evaluated"


class ProgramSummary(Found):
    """What was found for one program.

    `layers`: which of a network's repeated layers each device runs (`h.0-19`), where every one is a group of the problem.
    """

    program: str
    split: str | None = None
    operations: int
    kernels: int
    groups: int
    graph_fingerprint: str
    problem_fingerprint: str
    costs_fingerprint: str = ""
    measured_costs: float = 0.0
    layers: dict[str, str] = Field(default={})
    directory: Folder = "."


class Summary(Found):
    """`result.json`.

    `value_s` is the objective of the best placement (null if none fits); `bound_s` is a proven lower bound, and `gap` =
    value/bound - 1; both are null if nothing is proven. Over several programs these are means, `peak_bytes` are maxima,
    and the other numbers are sums; `programs` has each program's own.
    """

    status: str
    workload: str
    objective: str
    simulated: bool
    seed: int
    importer: str
    grouper: str
    policy: str
    trainer: str | None
    backend: str
    cluster: str
    cluster_fingerprint: str
    budget: dict[str, float | None]
    programs: list[ProgramSummary]
    facts: dict[str, Any] = Field(default={})
    versions: dict[str, str]
    code: dict[str, str] = Field(default={})
    config: dict[str, Any]

    @property
    def line(self) -> str:
        """The outcome and what it took, in one line."""
        gap = "" if self.gap is None else f", gap {percent(self.gap)}"
        used = f"{self.evaluations} evaluation{'' if self.evaluations == 1 else 's'} in {self.seconds:.1f} s"
        return f"{self.outcome}{gap}, {used}" + ("" if self.status == "finished" else f" ({self.status})")


@dataclass(frozen=True, eq=False)
class ProgramResult:
    """What was found for one program.

    Attributes:
        summary: the numbers, as in result.json.
        problem: what was placed: graph, groups, cluster, costs.
        placement: the best placement that fits; None if none fits, and then the next two are None, too.
        measurements: the measurements of the placement, a batch of one.
        schedule: the timed events of the placement; also None if the backend failed to make it, and then a note says why.
        history: a row per evaluated batch, columns `HISTORY` of contracts/ledger.py.
    """

    summary: ProgramSummary
    problem: Problem
    placement: Placement | None
    measurements: Measurements | None
    schedule: Schedule | None
    history: Sequence[tuple[float, ...]]


@dataclass(frozen=True, eq=False)
class Result:
    """What a run found; times in seconds, memory in bytes.

    `problem`, `placement`, `measurements` and `schedule` are those of the only program; a family has them in `programs`.

    Attributes:
        summary: the numbers, with seed, budget, versions and configuration: the content of result.json.
        programs: each program's placement and its measurements.
        run_dir: the folder of the files; None if none were asked for.
    """

    summary: Summary
    programs: tuple[ProgramResult, ...]
    run_dir: Path | None

    @property
    def _only(self) -> ProgramResult:
        if len(self.programs) != 1:
            raise PlacekitError(f"this result has {len(self.programs)} programs", "take one: result.programs[i]")
        return self.programs[0]

    @property
    def value_s(self) -> float | None:
        """The objective of the best placement (the mean over a family), seconds; None if none fits."""
        return self.summary.value_s

    @property
    def problem(self) -> Problem:
        return self._only.problem

    @property
    def placement(self) -> Placement | None:
        return self._only.placement

    @property
    def measurements(self) -> Measurements | None:
        return self._only.measurements

    @property
    def schedule(self) -> Schedule | None:
        return self._only.schedule

    def __repr__(self) -> str:
        s = self.summary
        head = f"{s.workload} on {s.cluster}, {s.policy}, seed {s.seed}: {s.line}"
        return "\n".join([head, *(f"note: {note}" for note in s.notes)])
