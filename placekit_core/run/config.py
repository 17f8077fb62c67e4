"""The options of a run and their defaults.

These models check what Hydra composes from a command line, and what a Python program passes to `place`. A component's own
options are checked by the component's model (`Component.config`). Files in `conf/` are presets; they hold no defaults.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from placekit_core.contracts.errors import ConfigError
from placekit_core.contracts.files import parse_yaml, read_bytes, reading

if TYPE_CHECKING:
    import numpy as np

AUTO = "auto"
DEFAULT = "default"
"""The cluster of a run that names no cluster."""
NONE = "none"
PYTHON = "python"
"""The importer of a run whose programs were passed to `place` as Python objects."""
CHANGES_NO_RESULT = frozenset({"run_dir", "checkpoint_s", "log", "baselines", "parallel", "python_objects"})
"""Options that do not change a run's result."""
DEFAULT_EVALUATIONS, DEFAULT_SECONDS = 10_000, 600.0
"""The budget of a run without a limit: evaluations on a simulator, seconds on a backend that measures."""


Count = Annotated[int, Field(ge=1, lt=2**63)]
Names = Annotated[tuple[str, ...], BeforeValidator(lambda v: (v,) if isinstance(v, str) else v)]


def _share(value: Any) -> Any:
    """Read `10%`, `0.1` or 0.1 as a fraction. Raises ValueError for anything else."""
    text = str(value).strip()
    try:
        found = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        found = -1.0
    if isinstance(value, bool) or not 0 <= found < 1:
        raise ValueError("give a part of the memory below 100%, such as 10% or 0.1")
    return found


class _Section(BaseModel):
    # no infinity, which JSON would turn into null; built at first use, which listings do not need
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)


class BudgetConfig(_Section):
    """How long to search. Without a limit, the kind of backend decides.

    In a family of programs, each program has its own budget. Programs that a learnable policy trains on share one.
    """

    evaluations: Count | None = Field(
        default=None, description=f"placements to evaluate; null: {DEFAULT_EVALUATIONS:,} on a simulator"
    )
    seconds: Annotated[float, Field(gt=0)] | None = Field(
        default=None,
        description=f"wall-clock seconds of searching; one placement is evaluated in any case; null: {DEFAULT_SECONDS:g} on a"
        " measuring backend",
    )
    proxy_evaluations: Count | None = Field(
        default=None,
        description="placements to evaluate on the proxy; null: no pretraining on it, and no limit for other uses",
    )


class CostsConfig(_Section):
    """The source of the costs."""

    file: str | None = Field(default=None, description="file of measured costs; null: the roofline model alone")


class RunConfig(_Section):
    """A complete configuration. The component sections hold `name` and the component's options."""

    importer: dict[str, Any]
    grouper: dict[str, Any]
    policy: dict[str, Any]
    trainer: dict[str, Any]
    backend: dict[str, Any]
    proxy: dict[str, Any]
    cluster: dict[str, Any]
    parallel: dict[str, Any] = Field(default={"name": NONE})
    """A backend that evaluates placements on `backend`, in other processes; `name: none` evaluates in this one."""
    seed: Annotated[int, Field(ge=0)] = Field(default=0, description="random seed; equal seeds give equal results")
    budget: BudgetConfig = Field(default_factory=BudgetConfig)
    costs: CostsConfig = Field(default_factory=CostsConfig)
    headroom: Annotated[float, BeforeValidator(_share)] | None = Field(
        default=None,
        description="part of every device's memory that stays free, such as 10%; null: the `headroom` of the machine's kinds",
    )
    failing_signal_s: Annotated[float, Field(gt=0)] | None = Field(
        default=None,
        description="value that a learner gets for a placement that does not fit, seconds; null: ten times all operations"
        " in sequence, plus a second",
    )
    launching: Literal["eager", "graph", "per_device"] | None = Field(
        default=None,
        description="how the runtime launches operations, on a machine with hosts; null: as the program usually runs, or as the"
        " machine says",
    )
    checkpoint_s: Annotated[float, Field(ge=0)] | None = Field(
        default=2.0, description="minimum seconds between checkpoints; null: no checkpoints"
    )
    log: Names | None = Field(
        default=None, description="loggers to call; null: csv, and the installed ones that are on by default"
    )
    baselines: Names | None = Field(
        default=None,
        description="policies to compare the result with; null: the policies made for it; []: no comparison",
    )
    run_dir: str = Field(default="", description="folder of the run's files, or of a sweep")
    workload: str = Field(default="", description="name of the program in results; empty: its own name")
    python_objects: tuple[str, ...] = ()
    """Sections that `placekit_core.place` got as Python objects; such a run can only be resumed by its own script."""

    @property
    def without_effect(self) -> Any:
        """The options that do not change the result, as pydantic's `exclude`; see `ImporterOptions` for `cache`."""
        keeps = isinstance(self.importer.get("cache"), bool)  # another importer may have an option of this name
        return dict.fromkeys(CHANGES_NO_RESULT, True) | ({"importer": {"cache": True}} if keeps else {})


class Streams:
    """Random generators by name, all from one seed. A further component does not change the random numbers of the others."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._generators: dict[str, np.random.Generator] = {}

    def __call__(self, name: str) -> np.random.Generator:
        """The generator called `name`."""
        if name not in self._generators:
            import numpy as np

            sequence = np.random.SeedSequence(self.seed, spawn_key=(zlib.crc32(name.encode()),))
            self._generators[name] = np.random.Generator(np.random.PCG64(sequence))
        return self._generators[name]

    def state(self) -> dict[str, Any]:
        """States of the generators used so far."""
        return {name: dict(g.bit_generator.state) for name, g in self._generators.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a value of `state`."""
        for name, value in state.items():
            self(name).bit_generator.state = value


def conf_dir() -> Path:
    """The folder of presets: inside the package if installed from a wheel, beside it in a checkout."""
    package = Path(__file__).resolve().parent.parent
    inner = package / "conf"
    return inner if (inner / "config.yaml").is_file() else package.parent / "conf"


def read_preset(path: Path) -> dict[str, Any]:
    """The content of a preset. Raises ConfigError."""
    with reading(path, ConfigError, "preset", "correct the file"):
        preset = parse_yaml(read_bytes(path)) or {}
        if not isinstance(preset, dict):
            raise ValueError("it holds no options")
        return preset


def defaults_list(path: Path) -> dict[str, str]:
    """The defaults list of a preset, as group to name; the group of a bare name is ''. Raises ConfigError."""
    found = {}
    for entry in read_preset(path).get("defaults") or ():
        if isinstance(entry, dict):
            for group, name in entry.items():
                found[group.removeprefix("override ").lstrip("/")] = str(name)
        elif entry not in ("_self_", "run_options"):
            found[""] = str(entry)
    return found


@cache
def default_groups() -> dict[str, str]:
    """The groups of conf/config.yaml and the name that each takes if nothing is chosen; `null` for no default."""
    found = defaults_list(conf_dir() / "config.yaml")
    return {group: "null" if name == "None" else name for group, name in found.items() if not group.startswith("hydra")}
