"""The script that runs a strategy with `torchrun`: one device, replicas, a pipeline, or several pipelines.

A script is filled in from `templates/`. A line there that ends in `#? words` is in the scripts for which every word holds, and
so are the lines between `#: words` and the next `#:`. `not` negates the word after it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import PurePosixPath
from string import Template
from textwrap import fill
from typing import Any

from placekit_core import PlacekitError
from placekit_training.strategy import Replica, Strategy

SCHEDULES = {
    "gpipe": "ScheduleGPipe",
    "1f1b": "Schedule1F1B",
    "interleaved": "ScheduleInterleaved1F1B",
    "zero_bubble": "ScheduleInterleavedZeroBubble",
}
"""The class in `torch.distributed.pipelining` that runs each schedule."""


def script(
    strategy: Strategy,
    target: str,
    device_names: Sequence[str],
    arguments: Mapping[str, Any] | None = None,
    devices: Sequence[int] = (),
    commands: Sequence[str] = (),
) -> str:
    """A Python script that runs `strategy` with a process for each device.

    It needs torch 2.13 and the user's file. A step equals that of one process with the whole batch if the loss is a mean over
    rows, and if no row's output depends on other rows, as it does with batch normalization.

    Args:
        strategy: a way to run the step.
        target: `FILE.py:FUNCTION`; the path is relative to the script. `FUNCTION(batch=...)` returns a `placekit_torch.Step`
            or `(module, inputs)`, with as many rows as the global batch.
        device_names: the name of each device of the machine.
        arguments: keyword arguments of the function besides `batch`.
        devices: the device of each rank, ascending along the stages of a copy; empty: in the order of the strategy.
        commands: the lines that start `SCRIPT.py`; empty: one for a machine where rank i has the i-th GPU.

    Raises:
        PlacekitError: the target is not a function in a file, or torch has no such schedule for these devices and micro-batches.
    """
    file, _, function = target.partition(":")
    path, folder = PurePosixPath(file), PurePosixPath(file).parent.as_posix()
    if not (path.suffix == ".py" and path.stem.isidentifier() and function.isidentifier()):
        raise PlacekitError(f"{target!r} is not FILE.py:FUNCTION", "name a file and a function in it: model.py:make")
    check(strategy)
    devices = devices or strategy.devices
    ranks = {device: rank for rank, device in enumerate(devices)}
    replicas = sorted(strategy.replicas, key=lambda replica: ranks[replica.devices[0]])
    flags = {"folder": folder != ".", **_flags(strategy)}
    schedule = "gpipe" if strategy.schedule == "1f1b" and all(_few(strategy)) else strategy.schedule
    keywords = [f"{key}={_literal(value)}" for key, value in (arguments or {}).items() if key != "batch"]
    values = {
        "file": path.name,
        "folder": _literal(folder),
        "module": path.stem,
        "function": function,
        "arguments": ", ".join(["batch=BATCH", *keywords]),
        "strategy": _in_words(strategy),
        **_start(len(ranks), commands),
        "names": _names(devices, device_names),
        "batch": strategy.batch,
        "rows": _by_rank([replica.rows for replica in replicas]),
        "microbatches": _by_rank([replica.microbatches for replica in replicas]),
        "replicas": "\n".join(_rows(replicas, ranks)),
        "schedule": SCHEDULES.get(schedule, ""),
        "schedules": "Schedule1F1B, ScheduleGPipe" if flags["mixed"] else SCHEDULES.get(schedule, ""),
    }
    return "".join(
        _filled(name, flags, values) for name in ("head", "pipelines" if strategy.pipelined else "one_stage")
    )


def _few(strategy: Strategy) -> list[bool]:
    """Whether each copy has fewer micro-batches than stages: torch's 1F1B refuses them."""
    return [replica.microbatches < len(replica.devices) for replica in strategy.replicas]


def _flags(strategy: Strategy) -> dict[str, bool]:
    """Which lines of the templates a script has."""
    few, replicas = _few(strategy), strategy.replicas
    return {
        "distributed": len(strategy.devices) > 1,
        "several": len(replicas) > 1,
        "pipelines": strategy.pipelined,
        "accumulate": any(replica.microbatches > 1 for replica in replicas),
        "recompute": strategy.recompute,
        "zero": strategy.shard_optimizer and len(replicas) > 1,
        "split_backward": strategy.schedule == "zero_bubble",
        "multi": strategy.schedule in ("interleaved", "zero_bubble"),
        "mixed": strategy.schedule == "1f1b" and any(few) and not all(few),
    }


def _start(count: int, commands: Sequence[str]) -> dict[str, Any]:
    """How `count` processes are started."""
    one = f"torchrun --nproc-per-node {count} SCRIPT.py" if count > 1 else "python SCRIPT.py"
    commands = commands or [one]
    start = commands[0].partition("  #")[0] if len(commands) == 1 else "torchrun in each box, as its first lines say"
    processes = f"{count} processes" if count > 1 else "one process"
    return {"count": count, "processes": processes, "commands": "\n    ".join(commands), "start": start}


def check(strategy: Strategy) -> None:
    """Raise PlacekitError if torch has no such schedule for these stages and micro-batches."""
    for replica in strategy.replicas:
        _check(strategy.schedule, replica)


def _check(schedule: str, replica: Replica) -> None:
    stages, devices = [*replica.devices], list(dict.fromkeys(replica.devices))
    if len(stages) == 1:
        return
    if schedule not in SCHEDULES:
        raise PlacekitError(f"there is no script for schedule {schedule!r}", f"schedules: {', '.join(SCHEDULES)}")
    if schedule != "interleaved" and len(stages) > len(devices):
        raise PlacekitError(
            f"schedule {schedule!r} runs one stage on each device, but the stages are on devices {stages}",
            "several stages on a device need schedule 'interleaved'",
        )
    if stages != devices * (len(stages) // len(devices)):
        raise PlacekitError(
            f"torch interleaves stages on devices in turn, as in [0, 1, 0, 1], but the stages are on devices {stages}",
            "give every device the same number of stages, in turn",
        )
    rounds = max(1, replica.microbatches // len(devices))
    if schedule in ("interleaved", "zero_bubble") and replica.microbatches % rounds:
        raise PlacekitError(
            f"torch runs schedule {schedule!r} on {len(devices)} devices in {rounds} equal rounds, but there are"
            f" {replica.microbatches} micro-batches",
            f"use {rounds * len(devices)} micro-batches, or schedule '1f1b'",
        )


def _in_words(strategy: Strategy) -> str:
    count, stages = len(strategy.replicas), sorted({len(replica.devices) for replica in strategy.replicas})
    if stages == [1]:
        words = "one device" if count == 1 else f"{count} replicas"
    else:
        words = f"{' or '.join(map(str, stages))} stages, schedule {strategy.schedule}"
        words = words if count == 1 else f"{count} replicas of {words}"
    words += ", recomputed layers" if strategy.recompute else ""
    return words + (", sharded optimizer state" if strategy.shard_optimizer and count > 1 else "")


def _names(devices: Sequence[int], device_names: Sequence[str]) -> str:
    """The device of each rank."""
    names = ", ".join(f"{device_names[device]} (rank {rank})" for rank, device in enumerate(devices))
    text = f"Devices: {names}. Each rank prints the name of its GPU; on a machine without GPUs, it takes a CPU."
    return fill(text, 116)


def _literal(value: Any) -> str:
    """As formatters write it: text in double quotes."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def _by_rank(values: Sequence[int]) -> str:
    """One value if there is one rank; else a list."""
    if len(values) == 1:
        return str(values[0])
    return f"[{values[0]}] * {len(values)}" if len({*values}) == 1 else repr([*values])


def _rows(replicas: Sequence[Replica], ranks: Mapping[int, int]) -> list[str]:
    """A line of the table of replicas for each."""
    lines, first = [], 0
    for replica in replicas:
        begins = ", ".join(map(_literal, replica.begins))
        stages = [ranks[device] for device in replica.devices]
        lines.append(f"    ({stages}, [{begins}], {first}, {replica.rows}, {replica.microbatches}),")
        first += replica.batch
    return lines


def _filled(name: str, flags: Mapping[str, bool], values: Mapping[str, Any]) -> str:
    """A template's lines for which the words hold, with `$name` replaced by values."""
    lines, here = [], True
    for line in (files(__package__) / "templates" / f"{name}.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("#:"):
            here = _holds(line[2:], flags)
            continue
        code, _, words = line.partition("  #? ")
        if here and _holds(words, flags):
            lines.append(f"{code}\n")
    return Template("".join(lines)).substitute(values)


def _holds(words: str, flags: Mapping[str, bool]) -> bool:
    """Whether every word holds: `several not pipelines`."""
    terms = words.replace("not ", "!").split()
    return all(not flags[term[1:]] if term[0] == "!" else flags[term] for term in terms)
