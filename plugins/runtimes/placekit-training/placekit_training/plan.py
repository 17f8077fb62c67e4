"""`plan`: a training step on a machine, by all families of strategies."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import numpy as np
from placekit_inspect.described import described_machine
from placekit_pipeline.nets import UPDATE
from pydantic import Field, ValidationError

from placekit_core import (
    Cluster,
    ConfigError,
    CostTable,
    ImporterError,
    Options,
    PlacekitError,
    PlacementError,
    Program,
    Registry,
    installed,
    parse_yaml,
    write_atomically,
)
from placekit_core.contracts.errors import explain
from placekit_training.model import TRACED, Model
from placekit_training.planner import Planner, Row, changed, workers
from placekit_training.scripts import script
from placekit_training.steps import Outcome, Steps
from placekit_training.strategy import Strategy
from placekit_training.words import described

PYTHON = ".py:"
WORTH = 0.05
"""A strategy on several devices is recommended if it is faster than one device by more than this share."""


class TrainingOptions(Options):
    """Options of `placekit plan` for training steps."""

    batch: int = Field(
        ge=1, le=2**20, description="rows of the global batch: all devices together process it in a step"
    )
    autocast: Literal["none", "bfloat16", "float16"] = Field(
        default="none", description="run the step inside torch.autocast in this type"
    )
    degree: int = Field(
        default=1,
        ge=1,
        description="devices of each group in a profile that split operators and count as one device",
    )
    kinds: dict[str, str] = Field(
        default={}, description="the machine's kinds by their names in a profile; empty: the same"
    )
    arguments: dict[str, Any] = Field(default={}, description="further arguments of the function: arguments.layers=12")


SECTIONS = ("arguments", "kinds")
"""Options that are tables: `arguments.layers=12` or `arguments={layers: 12}`."""
OPERATIONS_HINT = "`placekit run model=FILE.py:FUNCTION` places and saves them (docs/models.md)"
COMPARES_ROWS = "note: the step compares rows of the batch: each replica or micro-batch compares only its own rows"
PUBLISHED = (400, 0.46)
"""Published steps on several A100s (vTrain), and how far nine of ten are from predictions with the rates of data sheets:
`python benchmarks/training.py`, with its results in benchmarks/results/training.md."""


@dataclass(frozen=True, eq=False)
class TrainingPlan:
    """The result of `plan`.

    Attributes:
        steps: the model's costs on the machine.
        batch: rows of a step.
        target: the function that makes the step, `FILE.py:make`; empty for a profile.
        options: the options of the plan.
        rows: the best strategy of each family.
    """

    steps: Steps
    batch: int
    target: str
    options: TrainingOptions
    rows: list[Row]

    @property
    def cluster(self) -> Cluster:
        """The machine."""
        return self.steps.cluster

    @cached_property
    def one(self) -> Outcome | None:
        """The fastest single device; None if the step does not fit on one."""
        return next(r.outcome for r in self.rows if r.family == "one")

    @cached_property
    def best(self) -> Outcome:
        """The recommended strategy: one device unless several are faster by `WORTH`. Raises PlacementError if nothing fits."""
        found = [r.outcome for r in self.rows if r.outcome is not None]
        if not found:
            raise PlacementError(
                f"no strategy for {self.steps.model.name} with {self.batch:,} rows fits on {self.cluster.name}",
                "use a smaller batch, autocast=bfloat16, or a machine with more memory",
            )
        fastest = min(found, key=lambda outcome: outcome.step_s)
        if self.one is not None and self.one.step_s < fastest.step_s * (1 + WORTH):
            return self.one
        return fastest

    @property
    def verdict(self) -> str:
        """The recommendation, in one sentence."""
        best, row = self.best, next(r for r in self.rows if r.outcome is self.best)
        what = described(best.strategy, self.cluster) if best.strategy.replicas else OPERATIONS_HINT
        if self.one is None:
            return f"{row.name}, because no device has enough memory for the whole step: {what}"
        if len(self.rows) == 1:
            return f"{row.name}: {what}"
        if best is self.one:
            return f"{row.name}, because nothing else is faster by more than {WORTH:.0%}: {what}"
        return f"{row.name}, {self.one.step_s / best.step_s:.2f} times as fast as {self.rows[0].name}: {what}"

    @property
    def notes(self) -> list[str]:
        """Notes on where the time of the recommended step goes."""
        best = self.best
        if not best.strategy.replicas:
            return []
        busy = self.steps.busy_s(best.strategy)
        d = int(busy.argmax())
        saved = {
            "links": 1 - self.steps.on(free_links(self.cluster)).outcome(best.strategy).step_s / best.step_s,
            "launches": 1 - self.steps.on(free_launches(self.cluster)).outcome(best.strategy).step_s / best.step_s,
        }
        parts = [f"instant {what} would save {max(share, 0.0):.0%}" for what, share in saved.items()]
        return [
            f"busiest: {self.cluster.device_names[d]} computes during {busy[d] / best.step_s:.0%} of the step;"
            f" {', '.join(parts)}",
            f"accuracy: {self.accuracy}",
            *([COMPARES_ROWS] if len(self.rows) > 1 and self.steps.model.compares_rows else []),
        ]

    @property
    def accuracy(self) -> str:
        """How far published steps like the recommended one are from such predictions."""
        used = self.best.strategy.devices
        kinds = {self.cluster.device_kind[d] for d in used}
        if len(kinds) > 1 or not 2 <= len(used) <= 8 or self.steps.model.sizes:
            return "no published step is like this one"
        if self.cluster.kinds[kinds.pop()].type != "gpu":
            return "no published step is like this one"
        steps, error = PUBLISHED
        return f"nine of ten of {steps} published steps on two to eight A100s are within {error:.0%}"


def write_scripts(found: TrainingPlan, folder: Path) -> list[str]:
    """Write a script for each row of the table that has one; returns the command lines that run them. Raises PlacekitError."""
    if not found.target:
        raise PlacekitError("a profile has no modules to run", "plan FILE.py:make to get scripts")
    if found.options.autocast != "none":
        raise PlacekitError(
            f"scripts cannot run with autocast={found.options.autocast}",
            "use torch.autocast in the module's forward instead, and plan without autocast=",
        )
    if folder.is_file():
        raise PlacekitError(f"{folder} is a file", "name a folder for the scripts")
    _check_rows(found.steps.model, found.batch)
    file, _, function = found.target.partition(":")
    target = f"{Path(os.path.relpath(file, folder)).as_posix()}:{function}"
    cluster, lines = found.cluster, list[str]()
    box = cluster.launched("eager").launchers.host.tolist()
    for row in found.rows:
        if row.outcome is not None and row.outcome.strategy.replicas:
            strategy = row.outcome.strategy
            devices = _ranks(strategy, box)
            commands = _commands(devices, cluster, box)
            text = script(strategy, target, cluster.device_names, found.options.arguments, devices, commands)
            path = folder / f"{row.family.replace(' ', '_')}.py"
            folder.mkdir(parents=True, exist_ok=True)
            if path.exists() and path.read_text() != text:
                raise PlacekitError(
                    f"{path} exists, and differs", "name another folder, to keep a script that you may have edited"
                )
            write_atomically(path, text.encode())
            lines += [command.replace("SCRIPT.py", str(path)) for command in commands]
    return lines


def _check_rows(model: Model, batch: int) -> None:
    """Raise PlacekitError if scripts cannot tell from a tensor's first dimension whether micro-batches divide it."""
    few, many = (model.program(rows).graph for rows in TRACED)
    for op in np.flatnonzero(few.op_type.is_value("input")).tolist():
        shapes = [graph.shape(int(np.flatnonzero(graph.tensor_producer == op)[0])) for graph in (few, many)]
        if batch > 1 and shapes[0] == shapes[1] and shapes[0][:1] == (batch,):
            raise PlacekitError(
                f"{few.op_name[op]} always has {batch} rows, so scripts would take them for rows of the batch",
                "give it a first dimension of 1, as mask[None] does, or plan another batch",
            )
        if shapes[0] != shapes[1] and tuple(shape[:1] for shape in shapes) != tuple((rows,) for rows in TRACED):
            raise PlacekitError(
                f"{few.op_name[op]} has shape {shapes[1]} for {TRACED[1]} rows, but scripts divide a tensor's first dimension",
                "make the rows of the batch its first dimension",
            )


def _ranks(strategy: Strategy, box: Sequence[int]) -> tuple[int, ...]:
    """The device of each rank: box by box, as torchrun numbers processes, if ranks then ascend along the stages of a copy."""
    boxes = list(dict.fromkeys(box[d] for d in strategy.devices))
    devices = tuple(sorted(strategy.devices, key=lambda d: boxes.index(box[d])))
    stages = [[devices.index(d) for d in dict.fromkeys(replica.devices)] for replica in strategy.replicas]
    return devices if all(own == sorted(own) for own in stages) else strategy.devices


def _commands(devices: Sequence[int], cluster: Cluster, box: Sequence[int]) -> list[str]:
    """The line that starts `SCRIPT.py` in each box, or a comment that torchrun cannot.

    Its variables let the i-th rank of a box see its i-th GPU. `PCI_BUS_ID` numbers GPUs as nvidia-smi does, which `auto` reads;
    without it, CUDA has the fastest one first.
    """
    parts = [list(own) for _, own in groupby(devices, lambda d: box[d])]
    if len(parts) > len({box[d] for d in devices}):
        return [
            "# no line for SCRIPT.py: torchrun numbers ranks box by box, which does not fit the order of the stages"
        ]
    lines = []
    for number, own in enumerate(parts):
        gpus = [
            d
            for d in range(cluster.size)
            if box[d] == box[own[0]] and cluster.kinds[cluster.device_kind[d]].type == "gpu"
        ]
        visible = [gpus.index(d) for d in own if d in gpus]
        words = ["CUDA_DEVICE_ORDER=PCI_BUS_ID"] if len({cluster.device_kind[d] for d in gpus}) > 1 else []
        if visible != [*range(len(visible))]:
            words.append(f"CUDA_VISIBLE_DEVICES={','.join(map(str, visible))}")
        words.append(f"torchrun --nproc-per-node {len(own)}" if len(devices) > 1 else "python")
        if len(parts) > 1:
            words.append(f"--nnodes {len(parts)} --node-rank {number} --master-addr BOX")
        words.append("SCRIPT.py")
        if len({box[d] for d in workers(cluster)}) > 1:
            words.append(f" # in the box of {cluster.device_names[own[0]]}")
        lines.append(" ".join(words))
    if len(parts) > 1:
        lines[0] += ", whose address is BOX"
    return lines


def free_links(cluster: Cluster) -> Cluster:
    """The machine with transfers that take no time."""
    quick = {"bytes_per_s": 1e30, "latency_s": 0.0}
    links = [
        link.model_copy(update={**quick, "reverse": link.reverse and link.reverse.model_copy(update=quick)})
        for link in cluster.links
    ]
    return changed(cluster, links=links)


def free_launches(cluster: Cluster) -> Cluster:
    """The machine with launches of operations that take no time."""
    kinds = {name: kind.model_copy(update={"launch_overhead_s": 0.0}) for name, kind in cluster.kinds.items()}
    hosts = [host.model_copy(update={"launch_s": 0.0}) for host in cluster.hosts]
    return changed(cluster, kinds=kinds, hosts=hosts)


def plan(
    model: str, machine: str | Path | Cluster = "auto", *, registry: Registry | None = None, **options: Any
) -> TrainingPlan:
    """Plan a training step on a machine.

    Args:
        model: `FILE.py:make`, a function that takes `batch=` and returns a `placekit_torch.Step`; or a profile of layers, a CSV
            or JSON file.
        machine: in words (`rtx4090 + rtx3090`), a preset, a YAML file, or a `Cluster`; `auto`: this computer.
        registry: the plugins; None: the installed ones.
        options: fields of `TrainingOptions`, such as batch=64.

    Raises PlacekitError with a hint on what to do. If nothing fits, `best` raises.
    """
    registry = registry or installed()
    o = _checked(options)
    if model.endswith(".py"):
        raise ImporterError(f"{model} names no function", f"name the function that makes the step: {model}:make")
    _refuse_unread(model, o)
    cluster = described_machine(machine, registry)
    try:
        found = _model(model, o, cluster, registry)
    except ImporterError as e:  # hints name options of `placekit run`
        raise ImporterError(e.message, e.hint.partition("; or importer.")[0].replace("importer.", "")) from None
    steps = Steps(found, cluster)
    return TrainingPlan(steps, o.batch, model if PYTHON in model else "", o, Planner(steps, o.batch).rows())


def _checked(options: Mapping[str, Any]) -> TrainingOptions:
    values: dict[str, Any] = {}
    for name, value in options.items():
        section, _, key = name.partition(".")
        parsed = parse_yaml(value.encode()) if isinstance(value, str) and section in SECTIONS else value
        if key and section in SECTIONS:
            values[section] = {**values.get(section, {}), key: parsed}
        else:
            values[name] = parsed
    try:
        checked = TrainingOptions.model_validate(
            {"batch": 1, **values}
        )  # `batc=64` is a misspelled option, not a missing one
    except ValidationError as e:
        raise ConfigError(*explain(e, TrainingOptions, noun="option")) from None
    if "batch" not in values:
        raise ConfigError("the batch is not given", "give the rows of a step on all devices together, such as batch=64")
    return checked


def _refuse_unread(target: str, o: TrainingOptions) -> None:
    """Raise ConfigError if an option is set that such a model does not read."""
    unread = ("kinds", "degree") if PYTHON in target else ("autocast", "arguments")
    for name in sorted(o.model_fields_set.intersection(unread)):
        what = "function, but {name} is for profiles" if PYTHON in target else "profile, but {name} is for functions"
        raise ConfigError(f"{target} names a {what.format(name=name)}", f"leave out {name}")


def _model(target: str, o: TrainingOptions, cluster: Cluster, registry: Registry) -> Model:
    """The step of `FILE.py:make`, or of a profile."""
    if PYTHON in target:
        return _traced(target, o, registry)
    from placekit_formats import ProfileOptions
    from placekit_formats.profile_files import read_rows

    kinds = o.kinds or {kind: kind for kind in dict.fromkeys(cluster.device_kind[d] for d in workers(cluster))}
    unread = {cluster.device_kind[d] for d in workers(cluster)} - set(kinds.values())
    if unread:
        raise ImporterError(
            f"kinds names no measurements for {min(unread)}",
            f"add kinds.NAME={min(unread)}, with the name in the profile",
        )
    section = {"name": "profile", "path": target, "degree": o.degree, "kinds": kinds}
    rows = read_rows(ProfileOptions.model_validate({"path": target, "kinds": kinds}))
    measured = [
        {row.microbatch for row in rows if row.kind == kind and row.degree == o.degree} for kind in kinds.values()
    ]
    sizes = tuple(sorted(set.intersection(*measured)))
    if not sizes:
        raise ImporterError(
            f"{target} has no micro-batch that was measured with degree {o.degree} on all of {', '.join(kinds)}",
            "measure the same micro-batches on each kind; degree=N is for groups of devices that split operators",
        )

    def load(microbatches: Sequence[int]) -> list[Program]:
        programs = [registry.imported({**section, "microbatch": rows})[0] for rows in microbatches]
        return [Program(p.graph, costs=_for_all(p.costs, cluster)) for p in programs]

    return Model(Path(target).stem, load, sizes)


def _for_all(costs: CostTable | None, cluster: Cluster) -> CostTable:
    """The costs with a column for each kind that no plan uses, such as that of a CPU beside GPUs: it need not be measured."""
    assert costs is not None
    used = {cluster.device_kind[d] for d in workers(cluster)}
    more = tuple(kind for kind in cluster.kind_names if kind not in used and kind not in costs.kinds)
    op_s = np.hstack([costs.op_s, np.repeat(costs.op_s.max(axis=1, keepdims=True), len(more), axis=1)])
    return CostTable(costs.kinds + more, op_s, np.ones(op_s.shape, np.bool_))


def _traced(target: str, o: TrainingOptions, registry: Registry) -> Model:
    """The step that a function makes for any number of rows."""
    file, _, function = target.partition(":")
    path = Path(file)
    if not path.is_file():
        raise ImporterError(f"there is no file {file}", "name a Python file and its function: train.py:make")
    name = f"{path.stem}.{function}"

    def load(batches: Sequence[int]) -> list[Program]:
        section = {
            "name": "torch", "module": f"{path.stem}:{function}", "path": str(path.parent), "autocast": o.autocast,
            "arguments": o.arguments, "batches": list(batches), "mode": "train",
        }  # fmt: skip
        return [Program(program.graph.replace(name=name)) for program in registry.imported(section)]

    model = Model(name, load)
    few, many = (model.program(rows).graph for rows in TRACED)
    if np.array_equal(few.tensor_bytes, many.tensor_bytes):
        raise ImporterError(
            f"{name} makes the same step for {TRACED[0]} and {TRACED[1]} rows",
            "use its argument `batch` as the number of rows of the inputs: torch.randn(batch, 1024)",
        )
    if not (few.phase == UPDATE).any():
        raise ImporterError(
            f"{name} has no optimizer, so it is not a training step", "return Step(..., optimizer=torch.optim.AdamW)"
        )
    return model
