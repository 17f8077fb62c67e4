"""`plan`: the best split for each runtime, beside what people would try."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from placekit_inspect.machine_file import machine_file
from placekit_models.checkpoint.recipes import GGUF
from placekit_models.checkpoint.sources import find
from pydantic import ValidationError

from placekit_core import (
    Cluster,
    ClusterError,
    ConfigError,
    ErrorBand,
    PlacementError,
    Registry,
    installed,
    load_cluster,
    parse_yaml,
    units,
)
from placekit_core.contracts.errors import explain
from placekit_runtimes.interface import DeviceName
from placekit_runtimes.planning.lines import lines
from placekit_runtimes.planning.question import PlanOptions, Question, RuntimeName, folder_or_file
from placekit_runtimes.planning.strategies import RUNNERS, Row, Strategies
from placekit_runtimes.planning.words import described

EQUAL = 0.02
"""Answers that differ by less are equally quick; then the runtime that comes first is chosen."""
SMALLER = ("q8_0", "q6_k", "q5_k_m", "q4_k_m", "q3_k_m", "q2_k")
"""Formats that are tried for the hint if nothing fits, the best first."""
SIXTEEN = ("bf16", "f16", "f32")
"""Formats that all runtimes run."""


@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
    """A plan.

    Attributes:
        model: the name, folder or file of the model.
        question: what was planned.
        strategies: the search for each runtime.
        rows: what was compared, for each runtime its best split first.
    """

    model: str
    question: Question
    strategies: Mapping[RuntimeName, Strategies]
    rows: Sequence[Row]

    @cached_property
    def best(self) -> Row:
        """The row with the quickest answer. Raises PlacementError with the missing memory if nothing fits."""
        fits = [row for row in self.rows if row.works and row.best]
        if not fits:
            raise self._nothing_fits()
        quickest = min(self.answer_s(row) for row in fits)
        return next(row for row in fits if self.answer_s(row) <= quickest * (1 + EQUAL))

    def best_of(self, runtime: RuntimeName) -> Row:
        """The best row of a runtime. Raises PlacementError if the runtime is not planned for, or nothing fits there."""
        found = next((row for row in self.rows if row.runtime == runtime and row.best), None)
        if found is None:
            others = ", ".join(r.title for name, r in RUNNERS.items() if name in self.strategies)
            raise PlacementError(f"there is no plan for {RUNNERS[runtime].title}", f"this plan is for {others}")
        return found

    def answer_s(self, row: Row) -> float:
        """Seconds until all users have their answers; nan if the row does not work."""
        return float(self.question.answer_s(np.asarray(row.decode_s), np.asarray(row.prompt_s)))

    def llama_cpp(self) -> str:
        """The command line of llama-server."""
        return self._lines("llamacpp")

    def vllm(self) -> str:
        """The command line of vLLM."""
        return self._lines("vllm")

    def device_map(self) -> dict[str, DeviceName]:
        """accelerate's map, for `from_pretrained(device_map=...)`."""
        row = self.best_of("accelerate")
        assert row.map is not None
        return dict(row.map.devices)

    def exo(self) -> str:
        """exo's shards, as JSON."""
        return self._lines("exo")

    def _lines(self, runtime: RuntimeName) -> str:
        return lines(self.best_of(runtime), self.strategies[runtime].steps)

    def show(self) -> None:
        """Print the plan."""
        from placekit_runtimes.planning.command import show

        show(self)

    def _repr_html_(self) -> str:
        from placekit_runtimes.planning.page import fragment

        text: str = fragment(self)
        return text

    @cached_property
    def verdict(self) -> str:
        """What to do, in one sentence."""
        row, q = self.best, self.question
        assert row.split is not None
        return described(q.cluster, self.strategies[row.runtime].steps.layout, row.split)

    @cached_property
    def error_band(self) -> ErrorBand | None:
        """How far speeds of tokens like those of the best row are from published ones."""
        assert self.best.split is not None
        return self.strategies[self.best.runtime].steps.error_band(self.best.split)

    @cached_property
    def decode_bound_s(self) -> float | None:
        """A proven lower bound on the seconds of a token, over all placements."""
        return self.strategies[self.best.runtime].steps.decode_bound_s()

    def _nothing_fits(self) -> PlacementError:
        q, o = self.question, self.question.options
        known = [row for row in self.rows if row.memory is not None]
        refused = [row for row in self.rows if row.memory is None]
        if not known:
            return PlacementError(f"no runtime runs {q.name} there: {refused[0].error}")
        lacking = min(row.memory.lacking for row in known if row.memory is not None)
        more = "" if q.cpu is not None else "name the host's memory to use it, too: '... + 64GB ddr5-5600'; "
        size = q.checkpoint.bytes
        return PlacementError(
            f"{q.name} does not fit on {q.cluster.name}: {units.mebibytes(lacking)} are missing; its weights take"
            f" {units.mebibytes(size)}",
            f"{more}{self._smaller()}, less context (now {o.context:,} tokens) or fewer users",
        )

    def _smaller(self) -> str:
        """The formats that may fit, for a hint."""
        room = float(self.question.cluster.memory_bytes.sum())
        if self.model.endswith(".gguf"):
            return "take a file with fewer bits"
        sizes = {name: find(self.model, name).bytes for name in SMALLER}
        fits = [f"weights={name} ({units.mebibytes(size)})" for name, size in sizes.items() if size < room]
        return (
            f"plan {fits[0]}"
            if fits
            else f"weights={SMALLER[-1]} takes {units.mebibytes(sizes[SMALLER[-1]])}: plan a smaller model"
        )


def plan(
    model: str, machine: str | Path | Cluster = "auto", *, registry: Registry | None = None, **options: Any
) -> Plan:
    """Plan a language model on a machine.

    Args:
        model: `hf:NAME`, a folder with config.json, or a GGUF file; only headers are read.
        machine: in words (`rtx4090 + rtx3060 + 64GB ddr5-5600`), a preset, a YAML file, or a `Cluster`; `auto`: this computer.
        registry: the plugins; None: those that are installed.
        options: those of `PlanOptions`, such as weights="q4_k_m", context=32768, prompt=2000, generate=500, users=1.

    Raises PlacekitError with a hint on what to do. If nothing fits, `best` raises, and `rows` say what is missing.
    """
    found = strategies(model, machine, registry, **options)
    question = list(found.values())[-1].question
    return Plan(model, question, found, [row for own in found.values() for row in own.rows()])


def strategies(
    model: str, machine: str | Path | Cluster = "auto", registry: Registry | None = None, **options: Any
) -> dict[RuntimeName, Strategies]:
    """What `plan` searches in, for each runtime; the arguments and errors are those of `plan`."""
    registry = registry or installed()
    o = _checked(options)
    checkpoint = find(model, o.weights)
    types = {t.type.lower() for t in checkpoint.tensors if t.matrix}
    own = o.weights or (max(types, key=lambda x: sum(t.bytes for t in checkpoint.tensors if t.type.lower() == x)))
    path = folder_or_file(model)
    file = str(path) if path else model.removeprefix("hf:")
    runtimes = _runtimes(own, path)
    if o.runtime is not None and o.runtime not in runtimes:
        titles = ", ".join(RUNNERS[r].title for r in runtimes)
        raise ConfigError(f"{RUNNERS[o.runtime].title} does not run weights in {own}", f"planned are {titles}")
    cluster = _machine(machine, registry)
    found: dict[RuntimeName, Strategies] = {}
    boxes = len(set(cluster.launchers.host.tolist()))
    for runtime in [o.runtime] if o.runtime else runtimes:
        if runtime == "accelerate" and boxes > 1 and len(runtimes) > 1:
            continue  # it knows the devices of one box
        converted = runtime == "llamacpp" and not file.endswith(".gguf")
        name = f"{file.rpartition('/')[2]}-{own.upper()}.gguf" if converted else file
        question = Question(checkpoint, cluster, o, f"{checkpoint.name} {own}", name)
        found[runtime] = Strategies(question, runtime, registry)
    return found


def _checked(options: Mapping[str, Any]) -> PlanOptions:
    try:
        o = PlanOptions.model_validate(dict(options))
    except ValidationError as e:
        raise ConfigError(*explain(e, PlanOptions, noun="option")) from None
    if o.prompt + o.generate > o.context:
        raise ConfigError(
            f"prompt={o.prompt} and generate={o.generate} are more than context={o.context}",
            f"give context={o.prompt + o.generate} or more",
        )
    return o


def _runtimes(weights: str, path: Path | None) -> list[RuntimeName]:
    """The runtimes that run a format."""
    name = weights.lower().replace("-", "_")
    if path is not None and path.suffix == ".gguf":
        return ["llamacpp"]
    if name in SIXTEEN:
        return ["llamacpp", "vllm", "accelerate", "exo"]
    return ["llamacpp"] if name in GGUF else ["vllm", "accelerate"]


def _machine(machine: str | Path | Cluster, registry: Registry) -> Cluster:
    if isinstance(machine, Cluster):
        return machine
    text = str(machine)
    if text.endswith((".yaml", ".yml")):
        return load_cluster(text)
    presets = {p.name: p.path for p in registry.presets() if p.group == "cluster" and p.path}
    if text in presets:
        return load_cluster(presets[text])
    if text == "auto":
        found = registry.this_computer()
        if found is None:
            raise ClusterError("this computer is not described", "describe the machine: 'rtx4090 + 64GB ddr5-5600'")
        return found
    return Cluster.parse(parse_yaml(machine_file(text).encode()), text)
