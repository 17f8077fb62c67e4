"""A plan as text."""

from __future__ import annotations

from collections.abc import Sequence

from placekit_inspect.what_if import Recommended

from placekit_core import PlacementError
from placekit_core.cli.console import table, wrapped
from placekit_training.plan import TrainingPlan
from placekit_training.planner import Row
from placekit_training.words import compressed


def show(plan: TrainingPlan) -> None:
    """Print the table, the verdict, and the notes."""
    names = plan.cluster.device_names
    used = [d for d in range(plan.cluster.size) if any(r.outcome and r.outcome.peak_bytes[d] for r in plan.rows)]
    print(
        wrapped(
            f"{plan.steps.model.name}: a step of {plan.batch:,} row{'s' * (plan.batch > 1)} on {plan.cluster.name}, simulated"
        )
    )
    rows = [_cells(plan, row, used) for row in plan.rows]
    title = f"GiB on {compressed([names[d] for d in used], ' + ')}"
    table(["strategy", "step", "rows/s", "gain", "GiB"], rows, title=title)
    if all(row.outcome is None for row in plan.rows):
        return
    for sentence in (f"recommended: {plan.verdict}", *plan.notes):
        print(wrapped(sentence))


def _cells(plan: TrainingPlan, row: Row, used: Sequence[int]) -> list[str]:
    if row.outcome is None:
        return [f"{row.name}: {row.reason}", "", "", "", ""]
    step_s = row.outcome.step_s
    each = [f"{x / 2**30:.1f}" if x else "0" for x in row.outcome.peak_bytes[used].tolist()]
    gain = "" if plan.one is None else f"{plan.one.step_s / step_s - 1:+.0%}"
    return [row.name, seconds(step_s), rate(plan.batch / step_s), gain, compressed(each, "+")]


def recommended(plan: TrainingPlan) -> Recommended | None:
    """The best strategy; None if nothing fits."""
    try:
        best = plan.best
    except PlacementError:
        return None
    name = next(row.name for row in plan.rows if row.outcome is best)
    return Recommended(name, [seconds(best.step_s), rate(plan.batch / best.step_s)], best.step_s)


def rate(value: float) -> str:
    """Rows per second."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def seconds(value: float) -> str:
    """Seconds of a step."""
    return f"{1e3 * value:.1f} ms" if value < 1 else f"{value:.3f} s"
