"""pydantic and Hydra: what a run is configured by, and its validation.

Every component's options are a pydantic model: the core stores `Config().model_dump()` in Hydra's ConfigStore under the
group of its kind, Hydra composes, and the same model validates what was composed. `conf/` holds presets only.
"""

from __future__ import annotations

import difflib
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, get_args

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from placekit_core.errors import ConfigError
from placekit_core.registry import Entry, Registry, installed

AUTO = "auto"
NONE = "none"
GIVEN = "given"
"""Name of the importer, in configurations, where the programs were objects of a Python program."""
CHANGES_NO_RESULT = frozenset({"run_dir", "checkpoint_s", "log", "given"})
"""Options of a run that do not change what it finds: two that differ in nothing else are the same run."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class BudgetConfig(_Section):
    """What a run may use. Without a limit: 10,000 evaluations on a simulator, 600 s on a measuring backend.

    Each program of a family has a budget of its own, but for the programs that a learnable policy is trained on: they
    share one.
    """

    evaluations: Annotated[int, Field(ge=1)] | None = None
    seconds: Annotated[float, Field(gt=0)] | None = None
    proxy_evaluations: Annotated[int, Field(ge=1)] | None = None


class CostsConfig(_Section):
    """Where costs come from: the roofline, or a file of measured figures in its place where it has them."""

    file: str | None = None


class RunConfig(_Section):
    """A complete configuration. The component sections hold `name` and the component's options."""

    importer: dict[str, Any]
    grouper: dict[str, Any]
    policy: dict[str, Any]
    trainer: dict[str, Any]
    backend: dict[str, Any]
    proxy: dict[str, Any]
    cluster: dict[str, Any]
    seed: Annotated[int, Field(ge=0)] = 0
    budget: BudgetConfig = BudgetConfig()
    costs: CostsConfig = CostsConfig()
    failing_signal_s: Annotated[float, Field(gt=0)] | None = None
    checkpoint_s: Annotated[float, Field(ge=0)] = 2.0
    log: Annotated[tuple[str, ...] | None, BeforeValidator(lambda v: (v,) if isinstance(v, str) else v)] = ("csv",)
    run_dir: str = ""
    workload: str = ""
    given: tuple[str, ...] = ()
    """What a Python program gave as objects (`placekit_core.place`), which no configuration can name."""

    def component(self, section: str) -> tuple[Entry, BaseModel]:
        """The component that `section` names, and its validated options. Raises PluginError or ConfigError."""
        kind = "backend" if section == "proxy" else section
        values = dict(getattr(self, section))
        entry = installed().get(kind, str(values.pop("name", "")))
        try:
            return entry, entry.component.config.model_validate(values)
        except ValidationError as e:
            raise ConfigError(*explain(e, entry.component.config, f"{section}.")) from None

    def build(self, section: str) -> Any:
        """The component that `section` names, built."""
        entry, options = self.component(section)
        return entry.build(options)

    def distributions(self, importer: bool = True) -> list[str]:
        """The distributions that its components come from, as far as they are installed ones; maybe not the importer's."""
        kinds = {"importer": "importer", "grouper": "grouper", "policy": "policy", "trainer": "trainer",
                 "backend": "backend", "proxy": "backend"}  # fmt: skip
        names = [(k, str(getattr(self, s)["name"])) for s, k in kinds.items() if importer or s != "importer"]
        found = [entry for name in names for entry in installed().entries.get(name, [])]
        if self.trainer["name"] == AUTO:
            own = [e.component.trainer for e in found if e.kind == "policy"]
            found += [entry for name in own for entry in installed().entries.get(("trainer", name), [])]
        return sorted({entry.distribution for entry in found})


def validate(data: Mapping[str, Any]) -> RunConfig:
    """The configuration, every section checked before anything runs. Raises ConfigError or PluginError."""
    try:
        config = RunConfig.model_validate(dict(data))
    except ValidationError as e:
        raise ConfigError(*explain(e, RunConfig)) from None
    for section in ("importer", "grouper", "policy", "backend", "proxy"):
        config.component(section)
    if config.trainer.get("name") not in (AUTO, NONE):
        config.component("trainer")
    return config


def explain(error: ValidationError, model: type[BaseModel], prefix: str = "") -> tuple[str, str]:
    """Message and hint for what pydantic found: each option by name, what it got, the closest one that exists."""
    lines, hints = [], []
    for x in error.errors():
        where = (prefix + ".".join(map(str, x["loc"]))).rstrip(".")
        if x["type"] == "extra_forbidden":
            known = list(_fields(model, x["loc"][:-1]))
            close = difflib.get_close_matches(str(x["loc"][-1]), known, 1)
            lines.append(f"no option named {where!r}")
            hints.append(f"did you mean {close[0]!r}?" if close else f"options: {', '.join(known) or 'none'}")
        elif x["type"] == "model_type" and where and _fields(model, x["loc"]):
            lines.append(f"{where} is a section of options, not a value (got {x['input']!r})")
            hints.append("use " + ", ".join(f"{where}.{k}=..." for k in _fields(model, x["loc"])))
        else:
            said = x["msg"].removeprefix("Value error, ")
            got = "" if isinstance(x["input"], Mapping) else f" (got {x['input']!r})"  # of rules about several options
            lines.append(": ".join(filter(None, [where, f"{said[:1].lower()}{said[1:]}{got}"])))
    return "; ".join(lines), " ".join(dict.fromkeys(hints))


def _fields(model: type[BaseModel], path: tuple[int | str, ...]) -> Mapping[str, Any]:
    inner: Any = model
    for key in path:
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            inner = getattr(inner.model_fields.get(str(key)), "annotation", None)
        else:  # a list or dict of models, by index or key
            inner = next((a for a in get_args(inner) if isinstance(a, type) and issubclass(a, BaseModel)), None)
    return inner.model_fields if isinstance(inner, type) and issubclass(inner, BaseModel) else {}


def conf_dir() -> Path:
    """The presets: inside the package in a wheel, beside it in a checkout."""
    inner = Path(__file__).resolve().parent / "conf"
    return inner if (inner / "config.yaml").is_file() else inner.parent.parent / "conf"


def component_nodes(registry: Registry) -> list[tuple[str, str, dict[str, Any]]]:
    """(group, name, node) of every component, for Hydra's ConfigStore."""
    nodes = []
    for entry in registry.all():
        values = entry.component.config().model_dump(mode="json")
        nodes.append((entry.kind, entry.component.name, {"name": entry.component.name, **values}))
    return nodes


class Streams:
    """One seed, a generator per name: adding a component changes no other's random numbers."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._generators: dict[str, np.random.Generator] = {}

    def __call__(self, name: str) -> np.random.Generator:
        """The generator called `name`."""
        if name not in self._generators:
            sequence = np.random.SeedSequence(self.seed, spawn_key=(zlib.crc32(name.encode()),))
            self._generators[name] = np.random.Generator(np.random.PCG64(sequence))
        return self._generators[name]

    def state(self) -> dict[str, Any]:
        """States of the generators used so far."""
        return {name: dict(g.bit_generator.state) for name, g in self._generators.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state`."""
        for name, value in state.items():
            self(name).bit_generator.state = value
