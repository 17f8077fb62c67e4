"""A plan as text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from placekit_inspect.what_if import Recommended

from placekit_core import PlacementError, units
from placekit_core.cli.console import table, wrapped
from placekit_runtimes.planning.lines import lines
from placekit_runtimes.planning.planned import Planned
from placekit_runtimes.planning.strategies import RUNNERS, Row

LONG = 2**20
"""Tokens of context that no model has; room for more is not mentioned."""
TIGHT = 0.05
"""A device with a smaller share of its usable memory left gets a warning."""


def show(plan: Planned, after: Sequence[str] = ()) -> None:
    """Print the table, sentences after it, the verdict, the memory of the best row, and the lines for each runtime."""
    q, o = plan.question, plan.question.options
    print(wrapped(f"{q.name}: {units.mebibytes(q.checkpoint.bytes)} of weights; {use(plan)}"))
    devices = " + ".join(q.cluster.device_names)
    head = ["strategy", "tokens/s", "prompt tokens/s", "answer", "GiB"]
    speeds = f"tokens/s is {'the sum over all users' if o.users > 1 else 'the speed'} halfway through the answer"
    title = f"simulated; {speeds}, at {q.depth:,} tokens; GiB is the memory on {devices} with a full context"
    table(head, [_cells(plan, row) for row in plan.rows], title=title)
    for sentence in after:
        print(wrapped(sentence))
    if not any(row.works and row.best for row in plan.rows):
        return
    print(wrapped(f"recommended: {plan.verdict}"))
    for note in notes(plan):
        print(wrapped(note))
    print()
    show_memory(plan, plan.best)
    for runtime, strategies in plan.strategies.items():
        row = next((r for r in plan.rows if r.runtime == runtime and r.best), None)
        if row is not None:
            cost = slower(plan, row)
            print(f"\n{RUNNERS[runtime].title}{cost and f', {cost}'}:\n{lines(row, strategies.steps)}")


def recommended(plan: Planned) -> Recommended | None:
    """The best row, with its runtime if the plan has several; None if nothing fits."""
    try:
        row = plan.best
    except PlacementError:
        return None
    answer_s = plan.answer_s(row)
    runtime = f"{RUNNERS[row.runtime].title}: " if len(plan.strategies) > 1 else ""
    speeds = [speed(plan.question.options.users / row.decode_s), seconds(answer_s)]
    return Recommended(runtime + plan.verdict, speeds, answer_s)


def slower(plan: Planned, row: Row) -> str:
    """How much longer an answer takes than in the recommended row: `52% slower`; empty if it is hardly longer."""
    times = plan.answer_s(row) / plan.answer_s(plan.best)
    return f"{times:.0f} times as slow" if times > 2.5 else f"{times - 1:.0%} slower" if times > 1.01 else ""


def use(plan: Planned) -> str:
    """How the model is used, in words."""
    o = plan.question.options
    users = f"{o.users} users, each with" if o.users > 1 else "one user with"
    return f"{users} a context of {o.context:,} tokens, a prompt of {o.prompt:,} and an answer of {o.generate:,}"


def _cells(plan: Planned, row: Row) -> list[str]:
    used = "" if row.memory is None else "+".join(f"{x / 2**30:.1f}" if x else "0" for x in row.memory.used.tolist())
    if row.error:
        return [f"{row.name}: {row.error}", "", "", "", used]
    o = plan.question.options
    return [
        row.name,
        speed(o.users / row.decode_s),
        speed(o.prompt / row.prompt_s),
        seconds(plan.answer_s(row)),
        used,
    ]


def speed(value: float) -> str:
    """Tokens per second."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def seconds(value: float) -> str:
    """Seconds of an answer."""
    return f"{value:,.0f} s" if value >= 100 else f"{value:.1f} s"


def notes(plan: Planned) -> list[str]:
    """Notes on the best row: the error of its speed, its distance from the bound, memory that is nearly full."""
    q, o, row, found = plan.question, plan.question.options, plan.best, []
    if o.draft:
        found.append(
            f"accuracy: unknown; {o.accepted:.0%} of the drafted tokens are assumed to be right (accepted={o.accepted:g}),"
            " measure this with your own texts"
        )
    else:
        known = [b for b in plan.error_bands if b.error is not None]
        speeds = ["prompt tokens/s" if b.kind.startswith("prompt") else "tokens/s" for b in known]
        bands = [
            f"{b.error:.0%} of published {s} ({b.kind}; {b.rows} rows)" for s, b in zip(speeds, known, strict=True)
        ]
        like = f"nine of ten predictions like this are within {' and within '.join(bands)}"
        found.append(f"accuracy: {like if bands else 'unknown; no published measurement is like this plan'}")
    assert row.split is not None
    if plan.decode_bound_s and not row.split.streams:
        most = speed(o.users / plan.decode_bound_s)
        found.append(
            f"limit: no split of whole layers and experts generates more than {most} tokens/s (proven for the simulated machine)"
        )
    assert row.memory is not None
    context = plan.strategies[row.runtime].steps.largest_context(row.split)
    if context < LONG:
        found.append(f"this split has room for {context:,} tokens of context{' for each user' if o.users > 1 else ''}")
    kinds = [q.cluster.device_kind[d] for d in q.gpus]
    if len({*kinds}) < len(kinds):
        found.append(
            "not planned: tensor parallelism, which is often faster on several equal GPUs, above all for many users"
        )
    for d in np.flatnonzero(row.memory.used > 0).tolist():
        if row.memory.free[d] < TIGHT * q.cluster.memory_bytes[d]:
            left = units.mebibytes(max(row.memory.free[d], 0))
            found.append(
                f"warning: {q.cluster.device_names[d]} has {left} left; close other programs, or plan less context"
            )
    return found


def show_memory(plan: Planned, row: Row) -> None:
    """Print what each device holds."""
    memory, cluster = row.memory, plan.question.cluster
    assert memory is not None
    whole = np.asarray([cluster.kinds[kind].memory_bytes for kind in cluster.device_kind])
    parts = (memory.weights, memory.cache, memory.compute, memory.free, whole - cluster.memory_bytes)
    cells = [
        [cluster.device_names[d], *(f"{x[d] / 2**30:.2f}" for x in parts)]
        for d in np.flatnonzero(memory.used > 0).tolist()
    ]
    table(["GiB", "weights", "cache", "buffers", "left", "reserve"], cells)
