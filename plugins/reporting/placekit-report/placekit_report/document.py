"""The data of `report.html`: plain JSON, made from a result and shown by `page`.

Numbers that are in result.json are the same here. Times of events, and seconds of modules, are rounded to a nanosecond.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placekit_core import (
    Backend,
    Baseline,
    Export,
    Graph,
    Problem,
    ProgramResult,
    ProgramSummary,
    Session,
    Summary,
    __version__,
    compared,
    units,
)
from placekit_report.causes import WHY, explain
from placekit_report.curves import curve
from placekit_report.device_usage import device_usage
from placekit_report.modules import cut_table, module_table
from placekit_report.page.markup import duration
from placekit_report.page.sections import STEPS, value_name
from placekit_report.timeline import timeline
from placekit_report.whatif import Change, what_would_change

FORMAT, VERSION = "placekit-report", 1
TIMELINES = 8
"""Programs of a family that have a timeline: the first ones that fit."""
DIGITS = 9
"""Decimal places of seconds that are not in result.json."""


@dataclass(frozen=True, eq=False)
class Simulation:
    """A backend that simulates, and its session on one program."""

    backend: Backend
    session: Session


@dataclass(frozen=True, eq=False)
class Part:
    """A program of a run.

    Attributes:
        found: the run's result for it.
        simulation: simulates other placements and machines; None if there is no simulator.
        recorded: the schedule was measured.
        exports: the placement in the forms that other programs take.
    """

    found: ProgramResult
    simulation: Simulation | None = None
    recorded: bool = False
    exports: Sequence[Export] = ()


@dataclass(frozen=True, eq=False)
class Run:
    """One run: its name in the page, result.json and its programs."""

    name: str
    summary: Summary
    parts: Sequence[Part]


def document(run: Run) -> dict[str, Any]:
    """The data of the page of a run."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "title": f"{run.summary.workload} on {run.summary.cluster}",
        "placekit": __version__,
        "run": _run(run),
    }


def _run(run: Run) -> dict[str, Any]:
    summary, notes = run.summary, list[str]()
    if summary.status != "finished":
        notes.append(
            f"the run {'was interrupted' if summary.status == 'interrupted' else 'failed'}: it shows what was found"
        )
        if not summary.config["python_objects"]:
            notes[-1] += f"; continue it: placekit run resume={run.name}"
    programs, drawn = [], 0
    for part in run.parts:
        draws = drawn < TIMELINES and part.found.schedule is not None
        drawn += draws
        programs.append(_program(part, summary, draws, notes))
    with_timeline = sum(p.found.summary.fits for p in run.parts)
    if with_timeline > drawn == TIMELINES:
        notes.append(f"{drawn} of {with_timeline} programs have a timeline")
    return {
        "name": run.name,
        "summary": summary.model_dump(mode="json"),
        "truth": "simulated" if summary.simulated else "measured",
        "truth_text": _truth(run),
        "notes": list(dict.fromkeys(notes)),
        "programs": programs,
    }


def _truth(run: Run) -> str:
    """A sentence about what was simulated, with which costs, and what was measured."""
    s = run.summary
    costs = _costs(run)
    if s.simulated:
        bands = dict.fromkeys(str(p.error_band or "not estimated for such a run") for p in s.programs)
        accuracy = "".join(f" Accuracy: {band}." for band in bands)
        return f"Everything is simulated by backend {s.backend!r} on the machine {s.cluster!r}, with {costs}.{accuracy}"
    drawn = "there is no timeline"
    if any(p.recorded for p in run.parts):
        drawn = (
            "the timeline is one measured step, in which each operation was launched by itself, so it may take longer"
        )
    what = "step times are measured" if s.objective == "makespan" else f"values ({s.objective}) are measured"
    again = any(p.simulation is not None for p in run.parts)
    more = f"; what would change it is simulated, with {costs}" if again else ""
    return f"The {what} by backend {s.backend!r} on the machine {s.cluster!r}; {drawn}{more}."


def _costs(run: Run) -> str:
    """The source of the operations' seconds."""
    shares = [p.measured_costs for p in run.summary.programs]
    share = sum(shares) / len(shares) if shares else 0.0
    if share in (0, 1):
        return "measured costs" if share else "costs that were not measured"
    return f"measured costs for {units.percent(share)} of the kernels, and estimates for the others"


def _program(part: Part, summary: Summary, draws: bool, notes: list[str]) -> dict[str, Any]:
    found, own = part.found, part.found.summary
    data: dict[str, Any] = {
        "program": own.program,
        "objective": summary.objective,
        "unit": summary.unit,
        **{k: getattr(own, k) for k in ("value_s", "bound_s", "gap", "spread_s", "fits", "evaluations", "seconds")},
        "rate": _rate(found.problem.graph, own.value_s) if summary.objective == "makespan" else "",
        "exports": _exports(part, summary),
        "error": own.error,
        "notes": [*own.notes, *([own.error] if own.error else [])],
        "headroom": _headroom(found.problem, own),
        "baselines": _baselines(own),
        "devices": _devices(found),
        "timeline": None,
        "modules": {k: [] for k in ("name", "parent", "depth", "seconds", "bytes", "operations", "device_seconds")},
        "cut": None,
        "search": curve(found.history, summary.seed),
        "change": None,
    }
    if found.placement is not None and found.schedule is not None:
        data |= _of_schedule(part, draws, notes)
        notes += _of_another(part, summary) if draws else []
    elif found.placement is not None:
        device = found.problem.expand(found.placement.device)
        seconds = found.problem.op_s[np.arange(found.problem.graph.n), device]
        data["modules"] = module_table(found.problem, device, seconds)
    page: dict[str, Any] = rounded(data)
    return page


def _rate(graph: Graph, value_s: float | None) -> str:
    """The rate of the computation, such as `134 tokens/s`; empty if the graph does not say what a step computes."""
    match graph.attributes.get("work"):
        case [int() | float() as count, str() as what] if value_s and count > 0:
            pass
        case _:
            return ""
    per_s = count / value_s
    rate = f"{per_s:.3g} {what}/s" if per_s < 1000 else f"{per_s:,.0f} {what}/s"
    match graph.attributes.get("context"):
        case int() as context if context > 0:
            return f"{rate} with a context of {context:,} tokens"
    return rate


def _exports(part: Part, summary: Summary) -> list[dict[str, str]]:
    """The forms of the placement that run and fit when they are simulated, compared with it; none without a simulator.

    If the run itself is simulated, forms that are slower than a baseline on one device are left out, too.
    """
    own, found = part.found, list[dict[str, str]]()
    if not part.exports or part.simulation is None or own.placement is None:
        return found
    alone = [b.value_s for b in own.summary.baselines if b.device and b.value_s and not part.recorded]
    evaluate, room = part.simulation.session.evaluate, own.problem.cluster.memory_bytes
    placed_s = float(evaluate(own.placement.batch()).value_s[0])
    for export in part.exports:
        made = evaluate(export.placement.batch())
        step_s = export.value_s if summary.objective == "makespan" else None
        value_s = float(made.value_s[0]) if step_s is None else step_s
        slow = value_s > min(alone, default=math.inf)
        if not math.isfinite(made.value_s[0]) or slow or (made.peak_bytes[0] > room).any():
            continue
        note = f"simulated {compared(value_s, placed_s, None, summary.unit)} the placement"
        row = {"title": export.title, "name": export.name, "text": export.text}
        found.append(row | {"note": "; ".join([note, *export.notes])})
    return found


def _of_another(part: Part, summary: Summary) -> list[str]:
    """A note if the end of the simulated timeline is not the value."""
    assert part.found.schedule is not None
    end_s, own = duration(part.found.schedule.end_s), part.found.summary
    if summary.objective not in STEPS:
        name = value_name({"objective": summary.objective})
        return [f"the timeline is one whole step, of {end_s}; the value is the {name}, which is not its length"]
    if summary.simulated and own.spread_s is not None:
        return [f"the timeline is one simulation, of {end_s}; the value is the mean of several"]
    return []


def _of_schedule(part: Part, draws: bool, notes: list[str]) -> dict[str, Any]:
    """The parts of a program's data that need its schedule."""
    problem, schedule = part.found.problem, part.found.schedule
    assert schedule is not None
    data: dict[str, Any] = {
        "modules": module_table(problem, schedule.op_device, schedule.op_total_s),
        "cut": cut_table(problem, schedule),
    }
    if draws:
        data |= _analyses(part, notes)
    return data


def _analyses(part: Part, notes: list[str]) -> dict[str, Any]:
    """Timeline, and what would change the step."""
    found, simulation = part.found, part.simulation
    problem, schedule, placement = found.problem, found.schedule, found.placement
    assert schedule is not None
    assert placement is not None
    backend, session = (None, None) if simulation is None else (simulation.backend, simulation.session)
    own = None if part.recorded else session  # the simulator's causes do not apply to a measured step
    causes = explain(problem, schedule, placement, own, measured=part.recorded)
    data: dict[str, Any] = {"timeline": timeline(problem, schedule, causes, WHY)}
    if causes.derived:
        notes.append("the reasons why events started are inferred from their times: the backend records no causes")
    change = what_would_change(problem, schedule, placement, causes, backend, session)
    data["change"] = _change(problem, change)
    notes += [change.reason] if change.reason else []
    return data


def _change(problem: Problem, change: Change) -> dict[str, Any]:
    moves, resources, names = change.moves, change.resources, problem.cluster.device_names
    return {
        "utilisation": {"name": list(change.utilisation.name), "share": change.utilisation.share},
        "binds": change.binds,
        "moves": {
            "group": [group_name(problem, g) for g in moves.group] if moves else [],
            "from": [names[d] for d in moves.source] if moves else [],
            "to": [names[d] for d in moves.target] if moves else [],
            "value_s": list(moves.value_s) if moves else [],
            "text": moves.text if moves else "",
        },
        "resources": {
            "name": list(resources.name) if resources else [],
            "value_s": list(resources.value_s) if resources else [],
        },
        "now_s": change.value_s,
        "reason": change.reason,
    }


def group_name(problem: Problem, group: int) -> str:
    """The name of a group, marked if it is only the module's own operations and submodules are other groups."""
    grouping, graph = problem.grouping, problem.graph
    name = grouping.name(group)
    inside = any(other.startswith(f"{name}.") for other in grouping.names)
    own = {graph.module.vocabulary[code] for code in graph.module.codes[grouping.group_of == group]} == {name}
    return f"{name} (its own operations)" if inside and own else name


def _baselines(own: ProgramSummary) -> dict[str, list[Any]]:
    """The baselines of result.json as columns."""
    names = {"name": "label"} | {key: key for key in ("value_s", "spread_s", "fits", "note")}
    found = {key: [getattr(b, source) for b in own.baselines] for key, source in names.items()}
    return found | {"this_run": [this_run(own, b) for b in own.baselines]}


def this_run(own: ProgramSummary, baseline: Baseline) -> str:
    """The run compared with a baseline, in words; empty if one of them has no value."""
    if own.value_s is None or baseline.value_s is None:
        return ""
    value_s, deviation_s = baseline.against(own.value_s, own.spread_s)
    return f"{compared(value_s, baseline.value_s, deviation_s, own.unit)} it"


DEVICES = (
    "name", "kind", "memory_bytes", "peak_bytes", "cache_bytes", "compute_s", "busy", "operations", "bytes_in", "bytes_out",
)  # fmt: skip


def _devices(found: ProgramResult) -> dict[str, Any]:
    cluster, schedule, own = found.problem.cluster, found.schedule, found.summary
    names, size = cluster.device_names, cluster.size
    none: list[Any] = [None] * size
    data: dict[str, Any] = dict.fromkeys(DEVICES, none) | {
        "name": list(names),
        "kind": list(cluster.device_kind),
        "memory_bytes": cluster.memory_bytes.astype(np.int64),
        "peak_bytes": [own.peak_bytes.get(name) for name in names],
    }
    graph = found.problem.graph
    cache = graph.attributes.get("cache")
    cached = {name for name in cache if isinstance(name, str)} if isinstance(cache, list) else set()
    if found.placement is not None and cached:
        held = np.asarray([name in cached for name in graph.op_name]) * graph.persistent_bytes
        data["cache_bytes"] = np.bincount(found.problem.expand(found.placement.device), held, minlength=size)
    if schedule is None:
        return data
    used = device_usage(found.problem, schedule)
    return data | {
        "compute_s": np.bincount(schedule.op_device, schedule.op_total_s, minlength=size),
        "busy": (used.busy_s / schedule.end_s if schedule.end_s else used.busy_s).tolist(),
        "operations": np.bincount(schedule.op_device[graph.kernel], minlength=size),
        "bytes_in": used.bytes_in,
        "bytes_out": used.bytes_out,
    }


def _headroom(problem: Problem, own: ProgramSummary) -> dict[str, Any] | None:
    """The device with the smallest share of free memory at its peak."""
    capacity: NDArray[np.float64] = problem.cluster.memory_bytes
    free = {n: (c - own.peak_bytes[n], c) for n, c in zip(problem.cluster.device_names, capacity, strict=True)
            if n in own.peak_bytes and c > 0}  # fmt: skip
    if not free:
        return None
    name = min(free, key=lambda n: free[n][0] / free[n][1])
    left, size = free[name]
    return {"device": name, "bytes": int(left), "share": float(left / size)}


def rounded(data: Any) -> Any:
    """`data` for JSON: arrays as lists with rounded seconds, infinity and NaN as null. Single numbers stay exact."""
    if isinstance(data, Mapping):
        return {key: rounded(value) for key, value in data.items()}
    if isinstance(data, np.ndarray):
        if data.dtype.kind != "f":
            return data.tolist()
        values = np.round(data, DIGITS)
        return _finite(values.tolist()) if not np.isfinite(values).all() else values.tolist()
    if isinstance(data, list | tuple):
        plain = bool(data) and isinstance(data[0], str | int)  # such as the names of all operations
        return list(data) if plain else [rounded(value) for value in data]
    if isinstance(data, np.generic):
        data = data.item()
    return data if not isinstance(data, float) or math.isfinite(data) else None


def _finite(values: list[Any]) -> list[Any]:
    return [_finite(v) if isinstance(v, list) else v if math.isfinite(v) else None for v in values]


def shown(path: Path) -> str:
    """A folder as the user would write it."""
    here = Path.cwd().resolve()
    whole = path.resolve()
    return str(whole.relative_to(here)) if whole.is_relative_to(here) and whole != here else str(path)
