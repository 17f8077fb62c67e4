"""What holds the memory of a device, by module: parameters, optimizer state, gradients, tensors saved for the backward pass."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placekit_core import PHASES, Problem, Schedule

WHAT = ("parameters", "optimizer", "gradients", "saved for backward", "other")
PARAMETERS, OPTIMIZER, GRADIENTS, SAVED, OTHER = range(5)
HOLDERS = 24
"""Rows at most; modules are named as deeply as they fit."""
OUTSIDE, REST = "(outside modules)", "(all others)"


@dataclass(frozen=True, eq=False)
class Holder:
    """Bytes that a module holds, and as what; see `WHAT`."""

    name: str
    what: str
    bytes_: float


def holders_of(
    problem: Problem,
    schedule: Schedule,
    device: int,
    tensor: NDArray[np.int64],
    copy: NDArray[np.bool_],
    bytes_: NDArray[np.float64],
) -> tuple[Holder, ...]:
    """What holds the memory of a device: its persistent bytes, and allocations of `bytes_` [a] for `tensor` [a].

    `copy` [a] is True for tensors of other devices. A tensor is saved for the backward pass if an operation of the forward pass
    wrote it and one of the backward pass reads it (a copy: on this device). A gradient was written by the backward pass, and an
    update reads it. Copies of parameters and state count as these.
    """
    graph = problem.graph
    own = np.flatnonzero((schedule.op_device == device) & (graph.persistent_bytes > 0))
    kind_of_source = np.asarray([_source(t) for t in graph.op_type.vocabulary], np.int64)[graph.op_type.codes]
    kind_of_source[graph.kernel] = OTHER
    producer = graph.tensor_producer[tensor]
    what = np.where(copy, _use(problem, schedule, device)[tensor], _use(problem, schedule, -1)[tensor])
    what = np.where(copy & ~graph.kernel[producer], kind_of_source[producer], what)
    op = np.concatenate([own, producer]).astype(np.int64)
    what = np.concatenate([kind_of_source[own], what])
    return _rows(problem, op, what, np.concatenate([graph.persistent_bytes[own], bytes_]).astype(np.float64))


def _source(op_type: str) -> int:
    return PARAMETERS if op_type in ("parameter", "buffer") else OPTIMIZER if op_type == "state" else OTHER


def _use(problem: Problem, schedule: Schedule, device: int) -> NDArray[np.int64]:
    """[t] what for tensors are kept: the memory at home, by all readers, or on `device`, by those there, if it is not -1."""
    graph = problem.graph
    found = np.full(graph.t, OTHER, np.int64)
    for writes, reads, what in (("backward", "update", GRADIENTS), ("forward", "backward", SAVED)):
        edge = graph.phase[graph.edge_op] == PHASES.index(reads)
        if device >= 0:
            edge &= schedule.op_device[graph.edge_op] == device
        tensor = graph.input_tensor[edge] if device >= 0 else graph.tensor_storage[graph.input_tensor[edge]]
        written = graph.phase[graph.tensor_producer[tensor]] == PHASES.index(writes)
        found[tensor[written]] = what
    return found


def _rows(
    problem: Problem, op: NDArray[np.int64], what: NDArray[np.int64], bytes_: NDArray[np.float64]
) -> tuple[Holder, ...]:
    """Sums by module and kind, most bytes first; the modules are cut at the deepest level that has few enough rows."""
    graph = problem.graph
    paths = [path.split(".") for path in graph.module.vocabulary]
    names = [graph.op_name[v] for v in op] if set(graph.module.vocabulary) <= {""} else None
    found: dict[tuple[str, int], float] = {}
    for depth in range(1, max(map(len, paths), default=0) + 1):
        short = [".".join(path[:depth]) or OUTSIDE for path in paths]
        deeper: dict[tuple[str, int], float] = {}
        for i, (code, kind, size) in enumerate(
            zip(graph.module.codes[op].tolist(), what.tolist(), bytes_.tolist(), strict=True)
        ):
            key = (short[code] if names is None else names[i]), kind
            deeper[key] = deeper.get(key, 0.0) + size
        if found and len(deeper) > HOLDERS:
            break
        found = deeper
    rows = [Holder(name, WHAT[kind], size) for (name, kind), size in found.items() if size > 0]
    rows.sort(key=lambda h: (-h.bytes_, h.name, h.what))
    rest = rows[HOLDERS - 1 :] if len(rows) > HOLDERS else []
    if rest:
        rows = [*rows[: HOLDERS - 1], Holder(REST, WHAT[OTHER], sum(h.bytes_ for h in rest))]
    return tuple(rows)
