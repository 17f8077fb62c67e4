"""`placekit evaluate "llama-server ..." MACHINE`: what a command line of llama.cpp or vLLM costs, and what would be better."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from placekit_core import ConfigError, PlacementError, Registry, units
from placekit_core.cli.console import wrapped
from placekit_core.cli.parser import Parser
from placekit_runtimes.planning.command import (
    MACHINE,
    announcing,
    divided,
    machine_of,
    option_help,
    refuse_flags,
    show_machine,
    write_page,
)
from placekit_runtimes.planning.plan import Plan, strategies
from placekit_runtimes.planning.question import PlanOptions
from placekit_runtimes.planning.read_lines import Line, is_line, read
from placekit_runtimes.planning.read_splits import split_of
from placekit_runtimes.planning.regular import SIMPLER
from placekit_runtimes.planning.strategies import RUNNERS, Row, Strategies
from placekit_runtimes.planning.text import show
from placekit_runtimes.planning.words import described

EXAMPLE = "placekit evaluate 'llama-server -m Qwen3-14B-Q8_0.gguf -ngl 30' 'rtx3060 + 64GB ddr5-5600'"
COMMAND = "in quotes: 'llama-server ...', 'llama-cli ...', 'llama-bench ...' or 'vllm serve ...'"


def main(argv: list[str], registry: Registry) -> int:
    """Print what a command line costs beside a plan. Raises PlacementError, with devices and bytes, if it does not fit."""
    text = next(word for word in argv if is_line(word))
    if len(text.split()) == 1 and len(argv) > 1:
        raise ConfigError(f"{text} and its arguments are several words", f"put the command line in quotes: {EXAMPLE}")
    parser = Parser("evaluate", "", usage="placekit evaluate COMMAND [MACHINE] [OPTION=VALUE ...] [--html FILE]")
    parser.description = f"example:\n  {EXAMPLE}\n\nPrints what a command line costs, and what would be better."
    model = "the model, instead of the one in the command line"
    parser.epilog = f"{option_help()}\n{wrapped(model, ' ' * 16, '  model         ')}"
    parser.add_argument("words", metavar="COMMAND", nargs="*", help=COMMAND)
    parser.add_argument("unused", metavar="MACHINE", nargs="*", help=MACHINE)
    parser.add_argument("--html", type=Path, metavar="FILE", help="also write the plan as a page")
    arguments = parser.read(refuse_flags(argv))
    words, options = divided(arguments.words)
    machine = machine_of(words[1:], options)
    line = read(words[0])
    with announcing():
        found = evaluate(line, machine, registry, options)
    for note in line.notes:
        print(wrapped(f"note: {note}"), file=sys.stderr)
    yours = found.rows[0]
    show_machine(machine, found)
    show(found, [where(found, yours), *([compared(found, yours)] if yours.works else [])])
    write_page(arguments.html, found)
    if not yours.works:
        raise PlacementError(
            f"your command line does not fit: {_lacking(found, yours)}",
            "use one of the lines above"
            if any(row.best for row in found.rows)
            else "use a smaller format, or less context",
        )
    return 0


def evaluate(line: Line, machine: str, registry: Registry, options: Mapping[str, Any]) -> Plan:
    """A plan with the command line as its first row; rows that equal it are left out. Raises PlacekitError."""
    given = dict(options)
    weights = given.pop("weights", None)
    model = given.pop("model", None)
    model, weights = (model, weights) if model else line.model(weights)
    own = line.options()
    if "context" not in own and "context" not in given:
        context = PlanOptions.model_fields["context"].default
        line.notes.append(f"the command line gives no context: evaluated with context={context}")
    given |= {"weights": weights} if weights else {}
    ours = line.runtime == "llamacpp"
    searches = strategies(
        model, machine, registry, named_by=line.named_by() if ours else (), kept=line.kept, **own | given
    )
    if line.runtime not in searches:
        titles = ", ".join(RUNNERS[r].title for r in searches)
        raise ConfigError(f"{RUNNERS[line.runtime].title} does not run {model} in this format", f"{titles} does")
    yours = _row(line, searches[line.runtime])
    rows = [row for search in searches.values() for row in search.rows() if row.best or not _equal(row, yours)]
    return Plan(model, searches[line.runtime].question, searches, [yours, *rows])


def _equal(row: Row, other: Row) -> bool:
    if row.runtime != other.runtime or row.split is None or other.split is None:
        return False
    return row.split.key == other.split.key


def _row(line: Line, search: Strategies) -> Row:
    """The row of a command line; vLLM uses no more than its share of the memory."""
    row = search.row("yours", split_of(line, search))
    share = line.number("--gpu-memory-utilization", float)
    if share is None or row.memory is None:
        return row
    q, memory = search.question, row.memory
    limit = np.full(q.cluster.size, np.inf)
    for d in q.gpus:
        limit[d] = share * q.cluster.kinds[q.cluster.device_kind[d]].memory_bytes
    memory = replace(memory, free=np.minimum(memory.free, limit - memory.used))
    error = f"does not fit, {units.mebibytes(memory.lacking)} missing" if memory.lacking else ""
    return replace(row, memory=memory, error=error)


def where(plan: Plan, yours: Row) -> str:
    """Where the layers of the command line are."""
    assert yours.split is not None
    layout = plan.strategies[yours.runtime].steps.layout
    return f"yours: {described(plan.question.cluster, layout, yours.split)}"


def compared(plan: Plan, yours: Row) -> str:
    """How much better the best is, in a sentence."""
    own, best = plan.answer_s(yours), plan.answer_s(plan.best)
    if own <= best * (1 + SIMPLER):
        return f"yours is as good as the recommended split: {own:.1f} s for an answer"
    faster = f"{own / best:.1f} times as fast as" if own > 1.2 * best else f"{own / best - 1:.0%} faster than"
    return f"the recommended split is {faster} yours: {best:.1f} s instead of {own:.1f} s for an answer"


def _lacking(plan: Plan, row: Row) -> str:
    assert row.memory is not None
    names, free = plan.question.cluster.device_names, row.memory.free
    return ", ".join(f"{names[d]} lacks {units.mebibytes(-free[d])}" for d in np.flatnonzero(free < 0).tolist())
