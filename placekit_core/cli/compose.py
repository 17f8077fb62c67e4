"""Composes a command line with Hydra and the components and presets of a registry; translates Hydra's errors."""

from __future__ import annotations

import difflib
import hashlib
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import hydra
from hydra.core.config_store import ConfigNode, ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Glob, Override
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, MissingMandatoryValue, OmegaConfBaseException
from yaml import YAMLError

from placekit_core.cli.arguments import chosen, normalise, quoted, swept_by_experiment, without_folders, words
from placekit_core.cli.choices import DEFAULT_GROUPS, GROUPS, choices, own_trainers
from placekit_core.cli.presets import check_presets, check_program, located, naming, naming_presets
from placekit_core.contracts.errors import ConfigError, PlacekitError, listed, unknown
from placekit_core.contracts.hookspecs import Component
from placekit_core.run.assembly import SECTIONS, Assembly, validate
from placekit_core.run.config import AUTO, RunConfig, conf_dir
from placekit_core.run.detection import shorthands
from placekit_core.run.entries import Entry
from placekit_core.run.registry import BUILT_IN, LISTING, Registry

_EXTERNAL = {
    "joblib": "'placekit-core[sweep]'",
    "submitit_local": "hydra-submitit-launcher",
    "submitit_slurm": "hydra-submitit-launcher",
    "ray": "hydra-ray-launcher",
    "optuna": "hydra-optuna-sweeper",
}
"""Hydra's launchers and sweepers that come in separate packages, by the option that chooses them."""


def compose(argv: list[str], registry: Registry) -> dict[str, Any]:
    """The configuration that `argv` describes, as plain data without a run directory. Raises PlacekitError."""
    config = compose_all(argv, registry)
    return {**own_part(config), "run_dir": ""}


def own_part(config: DictConfig) -> dict[str, Any]:
    """A composed configuration without Hydra's section, as plain data."""
    with open_dict(config):
        del config.hydra
    return to_dict(config)


def assembled(argv: list[str], registry: Registry) -> Assembly:
    """The assembly of `placekit run` with these options, checked but not built yet. Raises PlacekitError."""
    with naming_presets(argv, registry):
        return Assembly(validate(compose(argv, registry), registry), registry)


def compose_all(argv: list[str], registry: Registry) -> DictConfig:
    """Like `compose`, with Hydra's own section; for a sweep, the part that all jobs share. Raises PlacekitError."""
    with opened(argv, registry) as overrides:
        swept = "-m" in argv or "--multirun" in argv or bool(swept_by_experiment(argv, registry))
        shared = [o for o in overrides if not (swept and parse([o])[0].is_sweep_override())]
        config = hydra.compose("config", overrides=shared, return_hydra_config=True)
        registry.check_choices(config.hydra.runtime.choices)
        return config


@contextmanager
def opened(argv: Sequence[str], registry: Registry) -> Iterator[list[str]]:
    """Initialise Hydra; gives the overrides of `argv` in Hydra's form, without flags. Hydra's errors are translated."""
    argv = list(argv)
    register(registry)
    with translated(argv, registry), hydra.initialize_config_dir(str(conf_dir()), version_base="1.3"):
        yield overrides(argv, registry)


def overrides(argv: list[str], registry: Registry) -> list[str]:
    """The overrides of `argv` in Hydra's form, without flags; one of them is the search path of presets."""
    check_presets(argv, registry)
    swept = swept_by_experiment(argv, registry)
    own, argv = without_folders(argv)
    found = normalise(argv, registry, swept.keys())
    given = {key_of(option) for option in found}
    found += [f"{key}={value}" for key, value in swept.items() if _is_glob(key, value) and key not in given]
    if swept or {"-m", "--multirun"} & {*argv}:
        found = [_expanded(option, own, registry) for option in found]
    check_program(found, own, registry)
    folders = [*own, *(folder for _, folder in registry.conf_folders())]
    paths: list[Any] = [f"file://{folder.resolve()}" for folder in folders]
    for override in (o for o in found if key_of(o) == _SEARCHPATH):  # after ours, in the same option
        value = OverridesParser.create().parse_override(override).value()
        paths += value if isinstance(value, list) else [value]
    options = [o for o in found if "=" in o or o.startswith("~") if not o.startswith("-") and key_of(o) != _SEARCHPATH]
    return options + ([f"{_SEARCHPATH}=[{','.join(quoted(str(path)) for path in paths)}]"] if paths else [])


def _is_glob(key: str, value: str) -> bool:
    return key in DEFAULT_GROUPS and "glob(" in value


def _expanded(option: str, own: Sequence[Path], registry: Registry) -> str:
    """`GROUP=glob(...)` with the names that it stands for; Hydra's own `glob` does not see the presets of plugins."""
    group, _, value = option.partition("=")
    if not _is_glob(group, value):
        return option
    names = choices(group, registry, own)
    parsed: Any = OverridesParser.create().parse_override(option).value()
    found: list[str] = []
    for each in parsed.list if isinstance(parsed, ChoiceSweep) else [parsed]:  # NAME,glob(...)
        chosen = each.filter(names) if isinstance(each, Glob) else [str(each)]
        if not chosen:
            raise ConfigError(f"{option} stands for no name", f"available: {listed(names, listing=LISTING)}")
        found += chosen
    return f"{group}=choice({','.join(dict.fromkeys(found))})"


_SEARCHPATH = "hydra.searchpath"


def parse(overrides: Sequence[str]) -> list[Override]:
    """Overrides, parsed."""
    parser = OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())
    return parser.parse_overrides(list(overrides))


def jobs(argv: list[str], registry: Registry) -> list[list[str]]:
    """The options of each job of the sweep that `argv` describes: `a=1,2 b=glob(*)` and the like. Raises PlacekitError."""
    with opened(["-m", *argv], registry) as found:
        return split([o for o in found if key_of(o) != _SEARCHPATH])


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
    """Store the defaults of a run and of every component in Hydra."""
    store = ConfigStore.instance()
    unset = {*SECTIONS, "parallel", "cluster", "python_objects", "run_dir"}
    options = {k: v.get_default() for k, v in RunConfig.model_fields.items() if k not in unset}
    plain = {k: v.model_dump(mode="json") if hasattr(v, "model_dump") else v for k, v in options.items()}
    store.store(name="run_options", node=plain, provider="placekit")
    for entry in registry.all():
        store.store(group=entry.kind, name=entry.component.name, node={}, provider="placekit")
        store.repo[entry.kind][f"{entry.component.name}.yaml"] = _Defaults(entry)
    for group, name in BUILT_IN:
        choice = {"name": name, "path": "???"} if name == "file" else {"name": name}
        store.store(group=group, name=name, node=choice, provider="placekit")


class _Defaults(ConfigNode):
    """A component's defaults in Hydra's store, made when a configuration has the component: most are never asked for."""

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self.name, self.group, self.package, self.provider = entry.component.name, entry.kind, None, "placekit"

    def __getattr__(self, name: str) -> DictConfig:
        if name != "node":
            raise AttributeError(name)
        return _defaults(self.entry.component)


def _defaults(component: Component) -> DictConfig:
    """A component's defaults; its dicts accept new keys without a `+`."""
    node = {"name": component.name, **component.config().model_dump(mode="json")}
    config = OmegaConf.create(node)
    for key, value in node.items():
        if isinstance(value, dict):
            OmegaConf.set_struct(config[key], False)
    return config


def job_name(task: Sequence[str], shared: Sequence[str]) -> str:
    """The name of a job of a sweep: the overrides in which it differs from other jobs, the policy first.

    `shared` are the keys that all jobs share. The name is a valid folder name: no separators, quotes or `..`, not too
    long.
    """
    own = [o for o in task if key_of(o) not in shared] or [o for o in task if key_of(o) not in ("run_dir", "log")]
    text = ",".join(sorted(own, key=lambda o: (key_of(o) != "policy", o)))
    name = re.sub(r"[^\w.,=+@\-]+", "_", text.replace("'", "").replace('"', "")).replace("..", "_") or "defaults"
    return name if len(name) <= 150 else f"{name[:130]}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def key_of(override: str) -> str:
    """The key of `+key=value`."""
    return override.lstrip("+~").partition("=")[0]


# at import, because the processes of launchers import this module but call none of its functions
OmegaConf.register_new_resolver("placekit_folder", job_name, replace=True)


def to_dict(config: DictConfig) -> dict[str, Any]:
    """Plain data. Raises ConfigError for a value that is missing or an interpolation that does not resolve."""
    try:
        return OmegaConf.to_container(config, resolve=True, throw_on_missing=True)  # type: ignore[return-value]
    except OmegaConfBaseException as e:
        if e.full_key and isinstance(e, MissingMandatoryValue):
            raise ConfigError(f"option {e.full_key!r} has no value", f"give it: {e.full_key}=VALUE") from None
        where = f"{e.full_key}: " if e.full_key else ""
        raise ConfigError(where + _first_line(e)) from None


@contextmanager
def translated(argv: list[str], registry: Registry) -> Iterator[None]:
    """Turn Hydra's errors into one or two lines that name what is wrong and say what exists."""
    for kind, name in chosen(argv):
        if (kind, name) not in registry.entries and any(b.answers(name) for b in registry.broken):
            registry.get(kind, name)  # raises, with the reason why the plugin is broken
        registry.check_choices({kind: name})
    try:
        yield
    except PlacekitError:
        raise
    except MissingConfigException as e:
        group, _, name = str(e.missing_cfg_file).rpartition("/")
        if group.startswith("hydra/") and name in _EXTERNAL:
            raise ConfigError(f"no {group} named {name!r}", f"install it: pip install {_EXTERNAL[name]}") from None
        known = choices(group, registry) if e.options is None else e.options
        error = unknown(group, name, known, ConfigError, LISTING)
        error = type(error)(naming(group, name, argv, registry) + error.message, error.hint)
        raise registry.mention_broken(error, group) from None
    except OverrideParseException as e:
        hint = "an option is OPTION=VALUE; quote a value that has brackets, commas or spaces: run_dir=\"'a (b)'\""
        raise ConfigError(f"cannot read {e.override!r}: {_first_line(e)}", hint) from None
    except (HydraException, OmegaConfBaseException) as e:
        raise ConfigError(located(_said(e), argv, registry), _hint(str(e), argv, registry)) from None
    except YAMLError as e:
        raise ConfigError(f"a preset is not valid YAML: {' '.join(str(e).split())}", "correct the file") from None


def _said(error: Exception) -> str:
    """Hydra's message in one line; in placekit's words, if it is about a name that does not exist."""
    cause = error.__cause__
    if isinstance(cause, ConfigAttributeError | ConfigKeyError):
        return f"no option named {cause.full_key!r}"
    said = _first_line(error).replace("ValidationError raised while composing config: ", "")
    said = re.sub(r"Could not override '([^']+)'\. No match in the defaults list\.", r"no group named '\1'", said)
    return f"{said} ({_first_line(cause)})" if isinstance(cause, OmegaConfBaseException) else said


def _hint(message: str, argv: list[str], registry: Registry) -> str:
    """Advice on an error of Hydra's."""
    if "Ambiguous" in message or "Sweep parameters" in message:
        return "sweep over it with -m, or quote it"
    everything = "`placekit run --help all` lists all options"
    found = re.search(r"Could not override '([^']+)'", message)
    if not found:
        return everything
    if "No match in the defaults list" in message:
        return unknown("group", found[1], GROUPS).hint
    section, _, option = found[1].rpartition(".")
    if "." in section:
        return f"to add a new key, write +{found[1]}=..."
    owner, known = _options(section, option, argv, registry) if section else ("", list(RunConfig.model_fields))
    if owner == f"trainer={AUTO}":
        own = own_trainers([name for kind, name in chosen(argv) if kind == "policy"], registry)
        named = ", ".join(f"trainer={name}" for name in own or registry.names("trainer"))
        return f"{owner} uses the own trainer of a policy that learns, unchanged; name one to set its options: {named}"
    close = difflib.get_close_matches(option, known, 1)
    if close:
        return f"did you mean {'.'.join(filter(None, [section, close[0]]))!r}? {everything}"
    command = f"placekit run {owner} --help" if "=" in owner else "placekit run --help"
    return f"options of {owner}: {listed(known, option, command)}" if owner else everything


def _options(section: str, option: str, argv: list[str], registry: Registry) -> tuple[str, list[str]]:
    """The component in `section` and its options, for the first job of `argv` with a component that lacks `option`."""
    if section in swept_by_experiment(argv, registry):
        return "", []
    firsts = {component.shorthand[0] for owners in shorthands(registry).values() for component in owners}
    decide = {section, "importer", "workload", "experiment", *firsts}
    own = [o for o in argv if (m := re.match(r"\+*(?:\w+@)?(\w+)=", o)) and m[1] in decide] + words(argv)
    with suppress(PlacekitError):  # a second mistake is reported once this one is corrected
        for job in jobs(own, registry):
            options = compose(job, registry).get(section)
            if isinstance(options, Mapping) and option not in options:
                name = options.get("name", "")
                return f"{section}={name}" if name else section, [k for k in options if k != "name"]
    return "", []


def _first_line(error: BaseException) -> str:
    """The first line of Hydra's message, and the next if the first only announces it."""
    first, _, rest = str(error).strip().partition("\n")
    return f"{first} {rest.splitlines()[0]}" if first.endswith(":") and rest else first or type(error).__name__
