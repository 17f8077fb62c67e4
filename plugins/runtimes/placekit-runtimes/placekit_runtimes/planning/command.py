"""`placekit plan MODEL MACHINE`: prints a plan."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from placekit_core import ConfigError, Registry, units, write_atomically
from placekit_core.cli.console import table, wrapped
from placekit_core.cli.parser import Parser
from placekit_runtimes.planning.lines import lines
from placekit_runtimes.planning.plan import Plan, plan
from placekit_runtimes.planning.question import PlanOptions
from placekit_runtimes.planning.strategies import RUNNERS, Row

TIGHT = 0.05
"""A device with a smaller share of its usable memory left gets a warning."""


def main(argv: list[str], registry: Registry) -> int:
    """Print a plan. Raises PlacementError if nothing fits."""
    own = "\n".join(f"  {name:10} {field.description}" for name, field in PlanOptions.model_fields.items())
    parser = Parser(
        "plan", "Which of your devices should run which part of a language model, how fast that is, and the lines to paste.",
        options="OPTION=VALUE", epilog=f"options:\n{own}",
    )  # fmt: skip
    parser.add_argument("model", metavar="MODEL", help="hf:NAME, a folder with config.json, or a GGUF file")
    how = "in words and quotes ('rtx4090 + rtx3060 + 64GB ddr5-5600'), a preset or a YAML file; auto: this computer"
    parser.add_argument("machine", metavar="MACHINE", nargs="?", default="auto", help=how)
    parser.add_argument("--html", type=Path, metavar="FILE", help="also write the plan as a page")
    arguments = parser.read(argv)
    words = [arguments.model, arguments.machine, *arguments.options]
    options = dict(w.partition("=")[::2] for w in words if "=" in w)
    positional = [w for w in words if "=" not in w]
    if not positional:
        raise ConfigError("no model is named", "placekit plan hf:Qwen3-14B 'rtx4090 + rtx3060' weights=q4_k_m")
    if len(positional) > 3 or (len(positional) == 3 and positional[2] != "auto"):
        raise ConfigError(f"{positional[2]!r} is one word too many", "put the machine in quotes")
    found = plan(positional[0], positional[1] if len(positional) > 1 else "auto", registry=registry, **options)
    show(found)
    if arguments.html is not None:
        from placekit_runtimes.planning.page import page

        write_atomically(arguments.html, page(found).encode())
    _ = found.best  # raises if nothing fits
    return 0


def show(plan: Plan, after: str = "") -> None:
    """Print the table, a sentence after it, the verdict, the memory of the best row, and the lines for each runtime."""
    q, o = plan.question, plan.question.options
    print(wrapped(f"{q.name}: {units.mebibytes(q.checkpoint.bytes)} of weights, {use(plan)}"))
    several = "all users together: " if o.users > 1 else ""
    devices = " + ".join(q.cluster.device_names)
    table(["strategy", "tokens/s", "prompt", "answer", "GiB"], [_cells(plan, row) for row in plan.rows],
          title=f"{several}simulated tokens/s; GiB on {devices}")  # fmt: skip
    if after:
        print(wrapped(after))
    if not any(row.works and row.best for row in plan.rows):
        return
    print(wrapped(f"best: {plan.verdict}"))
    for note in notes(plan):
        print(wrapped(note))
    print()
    show_memory(plan, plan.best)
    for runtime, strategies in plan.strategies.items():
        row = next((r for r in plan.rows if r.runtime == runtime and r.best), None)
        if row is not None:
            slower = plan.answer_s(row) / plan.answer_s(plan.best) - 1
            cost = f", {slower:.0%} slower" if slower > 0.01 else ""
            print(f"\n{RUNNERS[runtime].title}{cost}:\n{lines(row, strategies.steps)}")


def use(plan: Plan) -> str:
    """How the model is used, in words."""
    o = plan.question.options
    users = f"{o.users} users" if o.users > 1 else "one user"
    return f"{users}, {o.context:,} tokens of context{' each' if o.users > 1 else ''}, {o.prompt:,} in and {o.generate:,} out"


def _cells(plan: Plan, row: Row) -> list[str]:
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


def notes(plan: Plan) -> list[str]:
    """What to know of the best row: how wrong its speed may be, its distance from the bound, memory that is nearly full."""
    q, o, row, found = plan.question, plan.question.options, plan.best, []
    if plan.error_band is not None:
        found.append(f"accuracy: {plan.error_band}")
    if plan.decode_bound_s:
        found.append(
            f"no placement generates more than {o.users / plan.decode_bound_s:.1f} tokens/s (proven in this machine model)"
        )
    assert row.memory is not None
    assert row.split is not None
    context = plan.strategies[row.runtime].steps.largest_context(row.split)
    found.append(f"this split has room for {context:,} tokens of context{' for each user' if o.users > 1 else ''}")
    for d in np.flatnonzero(row.memory.used > 0).tolist():
        if row.memory.free[d] < TIGHT * q.cluster.memory_bytes[d]:
            left = units.mebibytes(max(row.memory.free[d], 0))
            found.append(
                f"warning: {q.cluster.device_names[d]} has {left} left; close other programs, or plan less context"
            )
    return found


def show_memory(plan: Plan, row: Row) -> None:
    """Print what each device holds."""
    memory, names = row.memory, plan.question.cluster.device_names
    assert memory is not None
    cells = [
        [names[d], *(f"{x[d] / 2**30:.2f}" for x in (memory.weights, memory.cache, memory.compute, memory.free))]
        for d in np.flatnonzero(memory.used > 0).tolist()
    ]
    table(["GiB", "weights", "cache", "buffers", "left"], cells)
