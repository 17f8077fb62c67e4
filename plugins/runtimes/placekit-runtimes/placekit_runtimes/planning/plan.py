"""`plan`: the best split for each runtime, beside what people would try."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from placekit_inspect.described import described_machine
from placekit_models.checkpoint.names import named
from placekit_models.checkpoint.recipes import GGUF
from placekit_models.checkpoint.sources import find
from placekit_models.checkpoint.towers import check_room, with_tower
from pydantic import ValidationError

from placekit_core import Cluster, ConfigError, Registry, installed
from placekit_core.contracts.errors import explain
from placekit_runtimes.planning.page import fragment
from placekit_runtimes.planning.planned import Planned
from placekit_runtimes.planning.question import SYNONYMS, PlanOptions, Question, RuntimeName, folder_or_file
from placekit_runtimes.planning.strategies import RUNNERS, Strategies
from placekit_runtimes.planning.text import show

SIXTEEN = ("bf16", "f16", "f32")
"""Formats that all runtimes run."""
USUAL: tuple[RuntimeName, ...] = ("llamacpp", "vllm")
"""The runtimes of a plan unless the user names one."""
IN_GGUF = {"mxfp4": "mxfp4_moe"}
"""Formats that have another name in GGUF files."""


class Plan(Planned):
    """The result of `plan`. `show` prints it, and a notebook shows it as a page."""

    def show(self) -> None:
        """Print the plan."""
        show(self)

    def _repr_html_(self) -> str:
        return fragment(self)


def plan(
    model: str, machine: str | Path | Cluster = "auto", *, registry: Registry | None = None, **options: Any
) -> Plan:
    """Plan a language model on a machine.

    Args:
        model: `hf:NAME`, a folder with config.json, or a GGUF file; only headers are read.
        machine: in words (`rtx4090 + rtx3060 + 64GB ddr5-5600`), a preset, a YAML file, or a `Cluster`; `auto`: this computer.
        registry: the plugins; None: the installed ones.
        options: fields of `PlanOptions`, such as weights="q4_k_m", context=32768, prompt=2000, generate=500, users=1.

    Raises PlacekitError with a hint on what to do. If nothing fits, `best` raises, and `rows` say what is missing.
    """
    found = strategies(model, machine, registry, **options)
    question = list(found.values())[-1].question
    return Plan(model, question, found, [row for own in found.values() for row in own.rows()])


def strategies(
    model: str, machine: str | Path | Cluster = "auto", registry: Registry | None = None, *,
    named_by: Sequence[str] = (), kept: Sequence[str] = (), **options: Any,
) -> dict[RuntimeName, Strategies]:  # fmt: skip
    """The search of `plan` for each runtime, with the arguments and errors of `plan`.

    `named_by` and `kept` become fields of the `Question`.
    """
    registry = registry or installed()
    o = _checked(options)
    given, (model, weights) = model, named(model, o.weights)
    checkpoint = find(given, weights)
    types = {t.type.lower() for t in checkpoint.tensors if t.matrix}
    own = weights or (max(types, key=lambda x: sum(t.bytes for t in checkpoint.tensors if t.type.lower() == x)))
    path = folder_or_file(model)
    file = str(path) if path else model.removeprefix("hf:")
    if given != model and given.endswith(".gguf"):
        warnings.warn(f"{given} is not on this computer: {model} with weights={own} is planned instead", stacklevel=3)
        file = given
    runtimes = _runtimes(own, file, o.mmproj or o.draft)
    if o.runtime is not None and o.runtime not in runtimes:
        titles = ", ".join(RUNNERS[r].title for r in runtimes)
        raise ConfigError(f"{RUNNERS[o.runtime].title} does not run weights in {own}", f"plan {own} for {titles}")
    cluster = described_machine(machine, registry)
    found: dict[RuntimeName, Strategies] = {}
    for runtime in [o.runtime] if o.runtime else [r for r in runtimes if r in USUAL]:
        converted = runtime == "llamacpp" and not file.endswith(".gguf")
        if converted and own.lower() in IN_GGUF:
            checkpoint = find(model, IN_GGUF[own.lower()])
        name = f"{file.rpartition('/')[2]}-{own.upper()}.gguf" if converted else file
        whole = with_tower(checkpoint, model, o.mmproj, o.images, o.image)
        check_room(whole, o.images, o.prompt)
        ubatch = o.ubatch if "ubatch" in o.model_fields_set else RUNNERS[runtime].ubatch or o.prompt
        own_use = o.model_copy(update={"ubatch": ubatch})
        question = Question(whole, cluster, own_use, f"{checkpoint.name} {own}", name, named_by, kept)
        found[runtime] = Strategies(question, runtime, registry)
    return found


def _checked(options: Mapping[str, Any]) -> PlanOptions:
    try:
        o = PlanOptions.model_validate(dict(options))
    except ValidationError as e:
        for name in set(options) & set(SYNONYMS):
            raise ConfigError(f"no option named {name!r}", f"did you mean {SYNONYMS[name]}=?") from None
        raise ConfigError(*explain(e, PlanOptions, noun="option")) from None
    if o.prompt + o.generate > o.context:
        raise ConfigError(
            f"prompt={o.prompt} and generate={o.generate} are more than context={o.context}",
            f"give context={o.prompt + o.generate} or more",
        )
    return o


def _runtimes(weights: str, file: str, more: str = "") -> list[RuntimeName]:
    """The runtimes that run a format, with this file of a tower or draft model."""
    name = weights.lower().replace("-", "_")
    if more or file.endswith(".gguf"):
        return ["llamacpp"]
    if name in SIXTEEN:
        return ["llamacpp", "vllm", "accelerate", "exo"]
    if name in IN_GGUF:
        return ["llamacpp", "vllm", "accelerate"]
    return ["llamacpp"] if name in GGUF else ["vllm", "accelerate"]
