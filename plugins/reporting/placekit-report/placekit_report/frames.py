"""Tables of a result, and its display in notebooks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from placekit_core import HISTORY, PHASES, PlacekitError, ProgramResult, Result, units, unknown
from placekit_report.document import this_run

if TYPE_CHECKING:
    import pandas as pd

Columns = Mapping[str, Any]
_LEFT = "text-align:left"


def operations(p: ProgramResult) -> Columns:
    """A row per operation: its properties and, if there is a placement, its device and times.

    If operations run once for each micro-batch, the times are those of the first micro-batch, and `runs` is their number.
    """
    graph, grouping = p.problem.graph, p.problem.grouping
    columns: dict[str, Any] = {
        "operation": graph.op_name,
        "type": graph.op_type.tolist(),
        "phase": [PHASES[x] for x in graph.phase],
        "module": graph.module.tolist(),
        "kernel": graph.kernel,
        "group": grouping.group_of,
        "flops": graph.flops,
        "persistent_bytes": graph.persistent_bytes,
        "output_bytes": np.bincount(graph.tensor_producer, graph.tensor_bytes, minlength=graph.n).astype(np.int64),
    }
    if p.placement is not None and p.schedule is not None:
        names = np.asarray(p.problem.cluster.device_names, object)
        columns["device"] = names[p.problem.expand(p.placement.device)]
        if p.placement.priority is not None:
            columns["priority"] = p.problem.expand(p.placement.priority)
        columns["start_s"], columns["end_s"] = p.schedule.op_start_s, p.schedule.op_end_s
        if p.schedule.op_runs is not None:
            columns["runs"] = p.schedule.op_runs
    return columns


def transfers(p: ProgramResult) -> Columns:
    """A row per transfer of the schedule; only the first micro-batch's, if a step has several."""
    s, graph = p.schedule, p.problem.graph
    if s is None:
        return {"operation": [], "source": [], "destination": [], "bytes": [], "start_s": [], "end_s": []}
    names = np.asarray(p.problem.cluster.device_names, object)
    return {
        "operation": [graph.op_name[v] for v in graph.tensor_producer[s.transfer_tensor]],
        "source": names[s.transfer_src],
        "destination": names[s.transfer_dst],
        "bytes": graph.tensor_bytes[s.transfer_tensor],
        "start_s": s.transfer_start_s,
        "end_s": s.transfer_end_s,
    }


def devices(p: ProgramResult) -> Columns:
    """A row per device: operations and groups on it, seconds that it computes, peak memory and capacity."""
    cluster, graph = p.problem.cluster, p.problem.graph
    columns: dict[str, Any] = {"device": cluster.device_names, "kind": cluster.device_kind}
    if p.placement is not None and p.schedule is not None and p.measurements is not None:
        s, size = p.schedule, cluster.size
        columns["kernels"] = np.bincount(s.op_device[graph.kernel], minlength=size)
        columns["groups"] = np.bincount(p.placement.device, minlength=size)
        columns["compute_s"] = np.bincount(s.op_device, s.op_total_s, minlength=size)
        columns["peak_bytes"] = p.measurements.peak_bytes[0]
    columns["memory_bytes"] = cluster.memory_bytes
    return columns


def history(p: ProgramResult) -> Columns:
    """A row per evaluated batch, with the columns that a trainer logged."""
    rows = np.asarray(p.history, np.float64).reshape(-1, len(HISTORY))
    own = {name: rows[:, i].astype(np.int64) if i == 0 else rows[:, i] for i, name in enumerate(HISTORY)}
    return own | {name: np.asarray(values, np.float64) for name, values in p.logged.items()}


def programs(p: ProgramResult) -> Columns:
    """One row: the numbers of the program."""
    values = p.summary.model_dump(exclude={"peak_bytes", "notes", "directory", "layers", "baselines"})
    return {name: [value] for name, value in values.items()}


TABLES: Mapping[str, Callable[[ProgramResult], Columns]] = {
    "operations": operations,
    "transfers": transfers,
    "devices": devices,
    "history": history,
    "programs": programs,
}


def frame(result: Result, what: str = "operations") -> pd.DataFrame:
    """A pandas table: `operations`, `transfers`, `devices`, `history` or `programs`; several programs get a column `program`.

    Raises PlacekitError for another name, or if pandas is not installed.
    """
    if what not in TABLES:
        raise unknown("table", what, TABLES, PlacekitError)
    try:
        import pandas as pd
    except ImportError:
        raise PlacekitError("frame needs pandas", "pip install 'placekit-report[notebook]'") from None
    parts = [pd.DataFrame(TABLES[what](p)) for p in result.programs]
    if len(parts) == 1:
        return parts[0]
    for part, p in zip(parts, result.programs, strict=True):
        if "program" not in part:
            part.insert(0, "program", p.summary.program)
    return pd.concat(parts, ignore_index=True)


def html(result: Result) -> str:
    """HTML for a notebook: the facts of a result, its baselines, and the timeline of each program."""
    facts = "".join(f"<tr><th style='{_LEFT}'>{escape(n)}</th><td style='{_LEFT}'>{escape(v)}</td></tr>"
                    for n, v in _facts(result))  # fmt: skip
    return f"<table>{facts}</table>" + "".join(_baselines(p) + _timeline(p) for p in result.programs)


def show(result: Result) -> None:
    """Show a result in a notebook where it is not the last expression of a cell; print it elsewhere."""
    try:
        from IPython.display import display
    except ImportError:
        print(result)
    else:
        display(result)


def _baselines(p: ProgramResult) -> str:
    """A row for each baseline, compared with the result."""
    rows = []
    for b in p.summary.baselines:
        unit = p.summary.unit
        value = units.format_value(b.value_s, unit) if b.fits else "does not fit"
        value += f" ± {units.format_value(b.spread_s, unit)}" if b.spread_s is not None else ""
        rows.append([b.label, value, this_run(p.summary, b), b.note])
    if not rows:
        return ""
    body = "".join("<tr>" + "".join(f"<td style='{_LEFT}'>{escape(x)}</td>" for x in row) + "</tr>" for row in rows)
    heads = "".join(f"<th style='{_LEFT}'>{x}</th>" for x in ("baseline", p.summary.program, "this run is", ""))
    return f"<table><tr>{heads}</tr>{body}</table>"


def _timeline(p: ProgramResult) -> str:
    """The timeline of a program."""
    if p.schedule is None or p.schedule.end_s <= 0:
        return ""
    from placekit_report.svg import Panel, svg

    title = f"{p.summary.program} on {p.problem.cluster.name}"
    return f"<div>{svg([Panel(p.problem, p.schedule, title)])}</div>"


def _facts(result: Result) -> list[tuple[str, str]]:
    """The numbers of a result, by name."""
    s = result.summary
    value, kind = s.outcome, "simulated" if s.simulated else "measured"
    evaluations = f"{s.evaluations} evaluation{'' if s.evaluations == 1 else 's'}"
    facts = [
        ("program", s.workload),
        ("machine", s.cluster),
        ("policy", f"{s.policy}, seed {s.seed}, {evaluations} in {s.seconds:.1f} s"),
        (
            f"{s.objective} ({kind})",
            value if s.spread_s is None else f"{value} ± {units.format_value(s.spread_s, s.unit)}",
        ),
        ("proven bound", f"{units.format_value(s.bound_s, s.unit)}, gap {units.percent(s.gap)}"),
    ]
    if len(result.programs) == 1 and s.peak_bytes:
        facts.append(("peak memory", ", ".join(f"{d} {units.mebibytes(b)}" for d, b in s.peak_bytes.items())))
    facts += [("note", note) for note in s.notes]
    if s.status != "finished":
        facts.append(("status", s.status))
    if result.run_dir is not None:
        facts.append(("written to", str(result.run_dir)))
    return facts
