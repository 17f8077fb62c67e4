"""Composes a command line with Hydra, the components and the presets of a registry."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException
from yaml import YAMLError

from placekit_core.cli.arguments import FLAGS, normalise, preset_folders, take
from placekit_core.cli.jobs import job_name, key_of
from placekit_core.contracts.errors import ConfigError, unknown
from placekit_core.run.assembly import Assembly, assemble
from placekit_core.run.config import RunConfig, conf_dir, read_preset
from placekit_core.run.registry import BUILT_IN, LISTING, Registry
from placekit_core.run.request import SECTIONS, Request


def compose(argv: list[str], registry: Registry) -> dict[str, Any]:
    """The configuration that `argv` describes, as plain data without a run directory. Raises PlacekitError."""
    return {**own_part(compose_all(argv, registry)), "run_dir": ""}


def own_part(config: DictConfig) -> dict[str, Any]:
    """A composed configuration without Hydra's section, as plain data."""
    with open_dict(config):
        del config.hydra
    if "experiment" in config:  # the preset's options are in a section of its name
        raise ConfigError(*_NO_PACKAGE)
    return to_dict(config)


def assembled(argv: list[str], registry: Registry) -> Assembly:
    """The components that `placekit run` would use with these options, not built yet. Raises PlacekitError."""
    return assemble(Request.of(compose(argv, registry)), registry)


def compose_all(argv: list[str], registry: Registry) -> DictConfig:
    """Like `compose`, with Hydra's own section; for a sweep, the part that all jobs share. Raises PlacekitError."""
    with opened(argv, registry) as overrides:
        multirun = is_multirun(argv) or bool(swept_by_experiment(argv, registry))
        shared = [o for o in overrides if not (multirun and parse([o])[0].is_sweep_override())]
        with warnings.catch_warnings():  # a preset with the name of a component is reported by check_choices
            warnings.filterwarnings("ignore", r"\s*'.*' is validated against ConfigStore schema")
            config = hydra.compose("config", overrides=shared, return_hydra_config=True)
        registry.check_choices(config.hydra.runtime.choices)
        return config


@contextmanager
def opened(argv: Sequence[str], registry: Registry) -> Iterator[list[str]]:
    """Initialize Hydra with all presets, and yield the overrides of `argv` in Hydra's form. Hydra's errors become our own."""
    register(registry)
    folders, rest = preset_folders(argv)
    with translated(registry, folders):
        swept = swept_by_experiment(argv, registry)
        sweep = is_multirun(argv) or bool(swept)
        overrides = normalise([a for a in rest if a not in FLAGS], registry, folders, sweep)
        with hydra.initialize_config_dir(str(conf_dir()), version_base="1.3"):
            loader: Any = GlobalHydra.instance().config_loader()
            path = loader.get_search_path()
            for folder in [*folders, *(folder for _, folder in registry.conf_folders())]:
                path.prepend("placekit", f"file://{folder.resolve()}", anchor="schema")  # before the last source
            loader.repository.initialize_sources(path)
            yield [o.lstrip("+") if key_of(o) in swept else o for o in overrides]


def is_multirun(argv: Sequence[str]) -> bool:
    """Whether the arguments ask for a sweep."""
    return bool({"-m", "--multirun"} & {*argv})


def swept_by_experiment(argv: Sequence[str], registry: Registry) -> dict[str, str]:
    """The options that the experiment named in `argv` sweeps over, and their values; empty if it is not a sweep."""
    own, rest = preset_folders(argv)
    name, _ = take(rest, "experiment")
    swept: dict[str, str] = {}
    for folder in (*own, conf_dir(), *(folder for _, folder in registry.conf_folders())) if name else ():
        path = folder / "experiment" / f"{name}.yaml"
        settings = (read_preset(path) if path.is_file() else {}).get("hydra") or {}
        if settings.get("mode") == "MULTIRUN":
            swept |= {key: str(values) for key, values in ((settings.get("sweeper") or {}).get("params") or {}).items()}
    return swept


def parse(overrides: Sequence[str]) -> list[Override]:
    """Overrides, parsed."""
    parser = OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())
    return parser.parse_overrides(list(overrides))


def jobs(argv: list[str], registry: Registry) -> list[list[str]]:
    """The options of each job of the sweep that `argv` describes: `a=1,2 b=glob(*)` and the like. Raises PlacekitError."""
    with opened(["-m", *argv], registry) as found:
        return [[option.lstrip("+") for option in job] for job in split(found)]


def split(overrides: Sequence[str]) -> list[list[str]]:
    """The overrides of each job of a sweep over the product of all values; the last key varies fastest.

    If two overrides have the same key, the later one counts, as in Hydra.
    """
    parts: dict[str, list[str]] = {}
    for override in parse(overrides):
        key = override.get_key_element()
        if override.is_sweep_override():
            if not override.is_discrete_sweep():
                raise ConfigError(f"{key} is swept over an interval", "choose a sweeper that can: hydra/sweeper=optuna")
            parts[key] = [f"{key}={value}" for value in override.sweep_string_iterator()]
        else:
            parts[key] = [f"{key}={override.get_value_element_as_str()}"]
    return [list(job) for job in itertools.product(*parts.values())]


@lru_cache(maxsize=1)  # Hydra has one store in each process, which keeps what is stored
def register(registry: Registry) -> None:
    """Register with Hydra the defaults of a run and the names of all components, without their options."""
    store = ConfigStore.instance()
    unset = {*SECTIONS, "parallel", "cluster", "python_objects", "run_dir"}
    options = {k: v.get_default(call_default_factory=True) for k, v in RunConfig.model_fields.items() if k not in unset}
    plain = {k: v.model_dump(mode="json") if hasattr(v, "model_dump") else v for k, v in options.items()}
    store.store(name="run_options", node=plain, provider="placekit")
    for kind, name in (*registry.entries, *BUILT_IN):
        own = {"file": {"path": "???"}, "words": {"words": "???"}}.get(name, {}) if kind == "cluster" else {}
        node = OmegaConf.create({"name": name, **own})
        OmegaConf.set_struct(node, False)  # `assemble` refuses unknown options, with the known ones in its error
        store.store(group=kind, name=name, node=node, provider="placekit")


# at import, because the processes of launchers import this module but call none of its functions
OmegaConf.register_new_resolver("placekit_folder", job_name, replace=True)


def to_dict(config: DictConfig) -> dict[str, Any]:
    """Plain data. Raises ConfigError for a value that is missing or an interpolation that does not resolve."""
    try:
        return OmegaConf.to_container(config, resolve=True, throw_on_missing=True)  # type: ignore[return-value]
    except MissingMandatoryValue as e:
        raise ConfigError(f"option {e.full_key!r} has no value", f"give it: {e.full_key}=VALUE") from None
    except OmegaConfBaseException as e:
        raise ConfigError(f"{e.full_key}: {_first_line(e)}") from None


@contextmanager
def translated(registry: Registry, folders: Sequence[Path]) -> Iterator[None]:
    """Translate Hydra's errors: name what is wrong, and list the names that exist."""
    try:
        yield
    except MissingConfigException as e:
        group, _, name = str(e.missing_cfg_file).rpartition("/")
        if group.startswith("cluster/"):
            raise ConfigError(f"{group[8:]}/{name} is not a cluster file", "their names end in .yaml or .yml") from None
        for b in registry.broken:
            if b.may_have(name):
                registry.get(group, name)  # raises, with the reason why the plugin is broken
        known = {c.name for c in registry.choices() if c.group == group} or set(e.options or ())
        known |= {path.stem for folder in folders for path in (folder / group).glob("*.yaml")}
        known -= {"file", "words"} if group == "cluster" else set()  # which nobody writes
        error = registry.mention_broken(unknown(group, name, known, ConfigError, LISTING), group)
        if group in ("hydra/launcher", "hydra/sweeper"):  # the name of Hydra's own packages
            package = f"hydra-{name.partition('_')[0]}-{group.removeprefix('hydra/')}"
            error = ConfigError(error.message, f"{error.hint}; is {package} installed?")
        raise error from None
    except (HydraException, OmegaConfBaseException) as e:
        if "@experiment." in str(e):  # it overrides a group, which Hydra then looks for in section `experiment`
            raise ConfigError(*_NO_PACKAGE) from None
        cause = f" ({_first_line(e.__cause__)})" if isinstance(e.__cause__, OmegaConfBaseException) else ""
        sweep = "for a sweep use placekit run -m ...; otherwise " if "Ambiguous value" in str(e) else ""
        raise ConfigError(_first_line(e) + cause, f"{sweep}quote a value that has brackets, commas or spaces") from None
    except YAMLError as e:
        raise ConfigError(f"a preset is not valid YAML: {' '.join(str(e).split())}", "correct the file") from None


_NO_PACKAGE = "the experiment has no line `# @package _global_`", "make it the first line of the preset"


def _first_line(error: BaseException) -> str:
    """The first line of Hydra's message, and the next one if the first ends in a colon."""
    first, _, rest = str(error).strip().partition("\n")
    return f"{first} {rest.splitlines()[0]}" if first.endswith(":") and rest else first or type(error).__name__
