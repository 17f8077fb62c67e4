"""The result of a run: the numbers that result.json holds, and the objects."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MethodType
from typing import Any

from pydantic import Field

from placekit_core.contracts.errors import PlacekitError
from placekit_core.contracts.files import FileModel, Folder
from placekit_core.contracts.measurement import Measurements, Schedule
from placekit_core.contracts.placement import Placement
from placekit_core.contracts.problem import Problem
from placekit_core.contracts.units import format_value, percent


class Found(FileModel):
    """The results of a search. Times in seconds, memory in bytes; null where there is no value.

    `value_s`, `bound_s` and `spread_s` are in `unit`, seconds for most objectives.

    `error` says why the last measurement failed, if no placement has a value.
    """

    value_s: float | None
    bound_s: float | None
    gap: float | None
    spread_s: float | None = None
    unit: str = "s"
    fits: bool
    error: str | None = None
    evaluations: int
    proxy_evaluations: int = 0
    seconds: float
    peak_bytes: dict[str, float]
    notes: list[str] = Field(default=[])

    @property
    def below_bound(self) -> bool:
        """Whether the value is below the proven bound, by more than rounding: one of the two is wrong."""
        return self.value_s is not None and self.bound_s is not None and self.value_s < self.bound_s * (1 - 1e-9)

    @property
    def outcome(self) -> str:
        """The value, or why there is none, in a few words."""
        if self.fits:
            return format_value(self.value_s, self.unit)
        return "failed" if self.error else "does not fit" if self.evaluations else "not evaluated"


LEAST_GAIN = 0.0005
"""Values that differ by less are called equal: as a percentage with one digit, the difference is 0.0%."""


def compared(value_s: float, base_s: float, spread_s: float | None = None, unit: str = "s") -> str:
    """How a value compares with another one: `1.6% faster than`, `2.3x as fast as`, `as fast as`, `4.1% slower than`.

    In another unit than seconds: `1.6% less than`, `as much as`.

    Measured values that differ by less than two of their standard deviations `spread_s` count as equal: "within the noise of".
    """
    time = unit == "s"
    equal, less, more = (
        ("as fast as", "faster than", "slower than") if time else ("as much as", "less than", "more than")
    )
    if value_s == base_s:  # also if a step takes no time
        return equal
    if spread_s and abs(value_s - base_s) < 2 * spread_s:
        return "within the noise of"
    if not value_s or not base_s:
        return less if value_s < base_s else more
    gain, loss = base_s / value_s - 1, value_s / base_s - 1
    if gain >= 1 and time:
        return f"{1 + gain:.1f}x as fast as"
    if loss >= 1 and time:
        return f"{1 + loss:.1f}x as slow as"
    if abs(gain) < LEAST_GAIN:
        return equal
    if not time:
        return f"{percent(abs(loss))} {less if loss < 0 else more}"
    return f"{percent(gain)} {less}" if gain > 0 else f"{percent(loss)} {more}"


class Baseline(FileModel):
    """The result of another policy for the same problem, on the same backend. Times in seconds, memory in bytes.

    `value_s`: null if the placement does not fit. `device`: the only device that runs kernels; empty if several do.
    `note`: the policy's notes. `own_remeasured_s`: on backends that measure, the value of the run's own placement, measured again
    right after this one, because the speed of a machine drifts. `stopped_after`: evaluations after which the policy was
    stopped; null if it ended by itself.
    """

    policy: str
    value_s: float | None
    spread_s: float | None = None
    own_remeasured_s: float | None = None
    fits: bool
    device: str = ""
    peak_bytes: dict[str, float] = Field(default={})
    stopped_after: int | None = None
    note: str = ""

    @property
    def label(self) -> str:
        """The policy; its device, if it uses only one; and where its search was cut short."""
        name = f"{self.policy} on {self.device}" if self.device else self.policy
        return name if self.stopped_after is None else f"{name} after {self.stopped_after} evaluations"

    def against(self, value_s: float, spread_s: float | None) -> tuple[float, float | None]:
        """The run's value to compare with this baseline's, and the standard deviation of the difference; None if unknown.

        `value_s` and `spread_s` belong to the run; `own_remeasured_s`, if it was measured, replaces the run's value.
        """
        deviation_s = math.hypot(spread_s or 0.0, self.spread_s or 0.0)
        return value_s if self.own_remeasured_s is None else self.own_remeasured_s, deviation_s or None


class ErrorBand(FileModel):
    """How far predictions are from published measurements of programs like a run's: the hook `placekit_error_band`.

    `kind`: what they have in common, such as `decode, one GPU`. `rows`: how many there are; 0: none is like the run. `error`:
    nine of ten predictions are at most this share of the measured value away from it; null without rows.
    """

    kind: str
    rows: int
    error: float | None = None

    def __str__(self) -> str:
        if self.error is None:
            return "no published measurement is like this run"
        band = f"within {self.error:.0%} of published measurements ({self.kind}; {self.rows} rows)"
        return f"nine of ten predictions like this are {band}"


@dataclass(frozen=True, eq=False)
class Export:
    """A placement in the form that another program takes: the hook `placekit_exports`.

    Attributes:
        title, name: the program, such as `vLLM`; and the name of its form for commands that write it, empty if there is none.
        text, placement: what a user copies; and what it describes, which can differ from the placement that was written.
        value_s: seconds of a step when the program runs it; None if that is what the run's backend computes.
        notes: sentences for the user, without a full stop.
    """

    title: str
    name: str
    text: str
    placement: Placement
    value_s: float | None = None
    notes: Sequence[str] = ()


class ProgramSummary(Found):
    """The results for one program, as in result.json.

    `error_band`: how wrong a simulated value like this is; null for measured values, and on idealized machines without hosts.
    `layers`: the repeated layers that each device runs (`h.0-19`); empty unless each layer is a group of the problem.
    `baselines`: standard placements of the same problem, for comparison.
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
    error_band: ErrorBand | None = None
    baselines: list[Baseline] = Field(default=[])
    directory: Folder = "."


class Summary(Found):
    """`result.json`.

    `value_s` is the objective of the best placement (null if none fits); `bound_s` is a proven lower bound, and `gap` =
    value/bound - 1; both are null if nothing is proven. Over several programs these are means, each null unless every
    program has one; so `gap` is the mean of the programs' gaps. `peak_bytes` are maxima, `spread_s` is null, `evaluations`
    and `proxy_evaluations` are sums, and so are `seconds`, where programs that share a budget count once. `programs` has
    each program's own.
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
        """The outcome, with its evaluations and seconds, in one line."""
        gap = "" if self.gap is None else f", gap {percent(self.gap)}"
        used = f"{self.evaluations} evaluation{'' if self.evaluations == 1 else 's'} in {self.seconds:.1f} s"
        return f"{self.outcome}{gap}, {used}" + ("" if self.status == "finished" else f" ({self.status})")

    @property
    def against_baselines(self) -> str:
        """The result beside the baselines, the fastest one first, in one sentence; empty without baselines.

        For a family of programs, it compares means over the programs to which a baseline applies.
        """
        found: dict[str, list[tuple[ProgramSummary, Baseline]]] = {}
        for program in self.programs:
            for baseline in program.baselines:
                found.setdefault(baseline.policy, []).append((program, baseline))
        rows = sorted(map(self._against, found.values()), key=lambda row: row[0])
        return ", ".join(text for _, text in rows)

    def _against(self, pairs: list[tuple[ProgramSummary, Baseline]]) -> tuple[float, str]:
        """The mean of a baseline over programs (infinite if it does not fit), and how the result compares with it."""
        first, count = pairs[0][1], len(self.programs)
        one = all(b.label == first.label for _, b in pairs)
        fitting = [(p, b) for p, b in pairs if b.value_s is not None]
        used = len(fitting or pairs)
        name = (first.label if one else first.policy) + (f" for {used} of {count}" if used < count else "")
        if not fitting:
            return math.inf, f"{name} does not fit"
        base_s = sum(b.value_s or 0.0 for _, b in fitting) / used
        if any(p.value_s is None for p, _ in fitting):
            return base_s, f"{name} takes {format_value(base_s, self.unit)}"
        ours = [b.against(p.value_s or 0.0, p.spread_s) for p, b in fitting]
        value_s, spread_s = sum(value for value, _ in ours) / used, ours[0][1] if used == 1 else None
        again = any(b.own_remeasured_s is not None for _, b in fitting)  # the run's placement, measured again
        beside = f"; this placement beside it {format_value(value_s, self.unit)}" if again else ""
        return (
            base_s,
            f"{compared(value_s, base_s, spread_s, self.unit)} {name} ({format_value(base_s, self.unit)}{beside})",
        )


@dataclass(frozen=True, eq=False)
class ProgramResult:
    """The results for one program, as objects.

    Attributes:
        summary: the numbers, as in result.json.
        problem: what was placed: graph, groups, cluster, costs.
        placement: the best placement that fits; None if none fits, and then the next two are None, too.
        measurements: the measurements of the placement, a batch of one.
        schedule: the timed events of the placement; also None if the backend could not compute it: a note then says why.
        history: a row per evaluated batch, columns `HISTORY` of contracts/ledger.py.
        logged: further columns of the history, by name: what a trainer logged, such as `loss`.
    """

    summary: ProgramSummary
    problem: Problem
    placement: Placement | None
    measurements: Measurements | None
    schedule: Schedule | None
    history: Sequence[tuple[float, ...]]
    logged: Mapping[str, Sequence[float]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Result:
    """The result of a run; times in seconds, memory in bytes.

    With one program, `problem`, `placement`, `measurements` and `schedule` belong to it; a family has them in `programs`.

    Attributes:
        summary: the numbers, with seed, budget, versions and configuration: the content of result.json.
        programs: each program's placement and its measurements.
        run_dir: the folder of the files; None if none were asked for.
        methods: further methods, from plugins, by name; `result.NAME(...)` calls `methods["NAME"](result, ...)`.
    """

    summary: Summary
    programs: tuple[ProgramResult, ...]
    run_dir: Path | None
    methods: Mapping[str, Callable[..., Any]] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        methods = self.__dict__.get("methods", {})
        if name not in methods:
            raise AttributeError(f"a Result has no {name!r}; installed plugins add {', '.join(methods) or 'nothing'}")
        return MethodType(methods[name], self)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.methods]

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
        beside = [f"baselines: {s.against_baselines}"] if s.against_baselines else []
        return "\n".join([head, *beside, *(f"note: {note}" for note in s.notes)])
