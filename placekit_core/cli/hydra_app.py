"""The one place that talks to Hydra: registers components and presets, composes, turns its errors into ours."""

from __future__ import annotations

import copy
import difflib
import hashlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

import hydra
from hydra._internal.config_loader_impl import get_overrides_dirname
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.errors import HydraException, MissingConfigException
from hydra.experimental.callback import Callback
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from placekit_core.cli import sweep
from placekit_core.cli.arguments import chosen, normalise, swept_by_experiment
from placekit_core.config import AUTO, NONE, RunConfig, component_nodes, conf_dir
from placekit_core.errors import ConfigError, PlacekitError, unknown
from placekit_core.hookspecs import KINDS
from placekit_core.registry import Registry, installed

_EXTERNAL = {
    "joblib": "'placekit[sweep]'",
    "submitit_local": "hydra-submitit-launcher",
    "submitit_slurm": "hydra-submitit-launcher",
    "ray": "hydra-ray-launcher",
    "optuna": "hydra-optuna-sweeper",
}
"""Hydra's launchers and sweepers that are packages of their own, by the option that chooses them."""

_HELP = """\
placekit run [OPTION=VALUE ...] - place a program on a machine

Groups take both forms: policy=NAME and +policy=NAME. Sweep with -m and commas: -m policy=a,b seed=1,2,3.
backend@proxy=NAME picks the proxy's backend; cluster=FILE.yaml is a machine of your own. Show the composed
configuration with --cfg job. docs/command-line.md has the meaning of every option.

== Components of the core and the installed plugins, with their options ==
{components}
== All groups, with presets ==
$APP_CONFIG_GROUPS
== Configuration (override with section.option=value) ==
$CONFIG
== Hydra ==
-m | --multirun, --cfg job, --info, --config-dir DIR, --hydra-help
"""


class _Presets(SearchPathPlugin):
    """Puts the presets of every plugin on Hydra's search path, as folders: nothing is imported."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        for plugin, folder in installed().conf_folders():
            search_path.append(provider=f"placekit-{plugin}", path=f"file://{folder}")


def register(argv: Sequence[str] = ()) -> None:
    """Store every component's defaults, and the help text, in Hydra; with components in `argv`, the help is on those."""
    registry, store = installed(), ConfigStore.instance()
    for group, name, node in component_nodes(registry):
        store.store(group=group, name=name, node=_opened(node), provider="placekit")
    for group, name in (("trainer", AUTO), ("trainer", NONE), ("cluster", AUTO)):
        store.store(group=group, name=name, node={"name": name}, provider="placekit")
    store.store(group="cluster", name="file", node={"name": "file", "path": "???"}, provider="placekit")
    text = _HELP.replace("{components}", _list_components(registry, chosen(list(argv))))
    node = {"app_name": "placekit run", "header": "", "footer": "", "template": text}
    store.store(group="hydra/help", name="placekit", node=node, provider="placekit")
    Plugins.instance().register(_Presets)


def _opened(node: dict[str, Any]) -> DictConfig:
    """A component's defaults, whose dicts take new keys as if they had always had them."""
    config = OmegaConf.create(node)
    for key, value in node.items():
        if isinstance(value, dict):
            OmegaConf.set_struct(config[key], False)
    return config


def folder_name(overrides: str) -> str:
    """One folder name for a job of a sweep, from its overrides: no separators, no quotes, no `..`, not too long."""
    name = re.sub(r"[^\w.,=+@\-]+", "_", overrides.replace("'", "").replace('"', "")).replace("..", "_") or "defaults"
    if len(name) <= 150:
        return name
    return f"{name[:130]}-{hashlib.sha256(overrides.encode()).hexdigest()[:12]}"


# here rather than in register(): the processes of launchers import this module and call none of its functions
OmegaConf.register_new_resolver("placekit_folder", folder_name, replace=True)


def _list_components(registry: Registry, wanted: list[tuple[str, str]]) -> str:
    lines = []
    shown = [e for e in registry.all() if (e.kind, e.component.name) in wanted] or registry.all()
    for kind in KINDS:
        lines += [f"{kind}:"] if any(e.kind == kind for e in shown) else []
        for e in shown:
            if e.kind == kind:
                lines.append(f"  {e.component.name:18} {e.component.summary}")
                for key, option in e.component.config.model_fields.items():
                    default = json.dumps(option.get_default(call_default_factory=True), default=str)
                    lines.append(f"    {kind}.{key}={default}  {option.description or ''}".rstrip())
    return "\n".join(lines).replace("$", "$$") + "\n"


class SweepBegins(Callback):
    """Notes in the folder of a sweep how it was started, in the process that starts it."""

    arguments: ClassVar[list[str]] = []
    directory: ClassVar[Path | None] = None

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        """Write sweep.json."""
        directory = Path(str(config.hydra.sweep.dir))
        with suppress(OSError, HydraException):  # which the sweeper meets again, and is heard
            sweep.begin(directory, SweepBegins.arguments, _job_folders(config))
            SweepBegins.directory = directory


def _job_folders(config: DictConfig) -> list[str] | None:
    """The folders of a sweep's jobs; None for sweepers that choose the next jobs by the results of others."""
    if not str(config.hydra.sweeper._target_).endswith(".BasicSweeper"):
        return None
    given = [f"{k}={v}" for k, v in (config.hydra.sweeper.params or {}).items()]
    parser = OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())
    overrides = parser.parse_overrides([*given, *config.hydra.overrides.task])
    folders = []
    for number, job in enumerate(BasicSweeper.split_arguments(overrides, None)[0]):
        own = copy.deepcopy(config)
        with open_dict(own):
            settings = own.hydra.job.config.override_dirname
            own.hydra.job.num = number
            own.hydra.job.override_dirname = get_overrides_dirname(
                parser.parse_overrides(job), settings.exclude_keys, settings.item_sep, settings.kv_sep
            )
        folders.append(str(own.hydra.sweep.subdir))
    return folders


def launch(argv: list[str], job: Callable[[dict[str, Any], str, bool], float | None]) -> None:
    """Run `job(config, output directory, whether of a sweep)` for the configuration(s) that `argv` describes.

    A sweep ends with the comparison of its runs. Raises PlacekitError.
    """
    register(argv)
    for b in installed().broken:
        print(f"placekit: warning: plugin {b.distribution} {b.version} is broken: {b.reason}", file=sys.stderr)
    failed: list[PlacekitError] = []

    def task(config: DictConfig) -> float | None:  # a launcher may pickle it and call it in another process
        own = HydraConfig.get()
        directory = str(own.runtime.output_dir)

        def checked(swept: bool) -> float | None:
            installed().check_choices(own.runtime.choices)
            return job(to_dict(config), directory, swept)

        if own.mode is RunMode.MULTIRUN:
            return sweep.run_job(own.job.override_dirname, sweep.shown(directory), lambda: checked(True))
        try:
            return checked(False)
        except PlacekitError as e:
            failed.append(e)
            return None  # raised below; Hydra would add lines of its own

    SweepBegins.arguments, SweepBegins.directory = argv, None
    sweep.forget_programs()
    previous = sys.argv
    sys.argv = [previous[0], *normalise(argv, swept_by_experiment(argv))]
    # Hydra prints tracebacks, trims them, and exits by itself unless told that somebody else reads the exceptions
    full = os.environ.get("HYDRA_FULL_ERROR")
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        with translated(argv), _ending():
            hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name="config")(task)()
            if failed:
                raise failed[0]
    finally:
        sys.argv = previous
        os.environ.pop("HYDRA_FULL_ERROR")
        if full is not None:
            os.environ["HYDRA_FULL_ERROR"] = full


@contextmanager
def _ending() -> Iterator[None]:
    """The end of a sweep, however it ends: its table, and what failed or is missing."""
    stopped = None
    try:
        yield
    except KeyboardInterrupt:
        if SweepBegins.directory is not None:
            print(f"interrupted: continue with `placekit run resume={SweepBegins.directory}`")
        raise
    except (PlacekitError, HydraException, OmegaConfBaseException):  # before the first job
        raise
    except Exception as e:
        if SweepBegins.directory is None:
            raise
        stopped = e
    if SweepBegins.directory is not None:
        from placekit_core.cli.compare import end_of_sweep

        end_of_sweep(SweepBegins.directory, stopped)


def jobs(argv: list[str]) -> list[list[str]]:
    """The options of each job of the sweep that `argv` describes: `a=1,2 b=glob(*)` and the like. Raises PlacekitError."""
    register(argv)
    with translated(argv), hydra.initialize_config_dir(str(conf_dir()), version_base="1.3"):
        parser = OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())
        overrides = parser.parse_overrides([o for o in normalise(["-m", *argv]) if o != "-m"])
        return [list(job) for job in BasicSweeper.split_arguments(overrides, None)[0]]


def compose(argv: list[str]) -> dict[str, Any]:
    """The configuration that `argv` describes, without running anything. Raises PlacekitError."""
    register(argv)
    with translated(argv), hydra.initialize_config_dir(str(conf_dir()), version_base="1.3"):
        config = hydra.compose("config", overrides=normalise(argv), return_hydra_config=True)
        installed().check_choices(config.hydra.runtime.choices)
        with open_dict(config):
            del config.hydra
        config.run_dir = ""
        return to_dict(config)


def to_dict(config: DictConfig) -> dict[str, Any]:
    """Plain data. Raises ConfigError for a value that is missing or an interpolation that does not resolve."""
    try:
        return OmegaConf.to_container(config, resolve=True, throw_on_missing=True)  # type: ignore[return-value]
    except OmegaConfBaseException as e:
        raise ConfigError(_first_line(e)) from None


@contextmanager
def translated(argv: list[str]) -> Iterator[None]:
    """Hydra's errors as one or two lines that name the thing and say what exists."""
    for kind, name in chosen(argv):
        if (kind, name) not in installed().entries and any(b.answers(name) for b in installed().broken):
            installed().get(kind, name)  # raises, with the reason why the plugin is broken
        installed().check_choices({kind: name})
    try:
        yield
    except PlacekitError:
        raise
    except MissingConfigException as e:
        group, _, name = str(e.missing_cfg_file).rpartition("/")
        if group and e.options is not None:
            if group.startswith("hydra/") and name in _EXTERNAL:
                raise ConfigError(f"no {group} named {name!r}", f"install it: pip install {_EXTERNAL[name]}") from None
            raise installed().mention_broken(unknown(group, name, e.options, ConfigError)) from None
        raise ConfigError(_first_line(e)) from None
    except (HydraException, OmegaConfBaseException) as e:
        cause = e.__cause__ if isinstance(e.__cause__, OmegaConfBaseException) else None
        detail = f" ({_first_line(cause)})" if cause else ""
        raise ConfigError(_first_line(e) + detail, _hint(str(e), argv)) from None
    except YAMLError as e:
        raise ConfigError(f"a preset is not valid YAML: {' '.join(str(e).split())}", "correct the file") from None
    except BrokenPipeError:  # `placekit run --help | head`
        raise
    except OSError as e:
        where = e.filename or next((a for a in argv if "run_dir=" in a), "the run directory")
        raise ConfigError(f"cannot write to {where}: {e.strerror}", "choose another: run_dir=PATH") from None


def _hint(message: str, argv: list[str]) -> str:
    """What to do about an error of Hydra's."""
    if "Ambiguous" in message:
        return "sweep over it with -m, or quote it"
    everything = "`placekit run --help` lists all options"
    found = re.match(r"Could not override '([^']+)'", message)
    if not found:
        return everything
    section, _, option = found[1].rpartition(".")
    if "." in section:
        return f"to add a new key, write +{found[1]}=..."
    owner, known = _options(section, option, argv) if section else ("", list(RunConfig.model_fields))
    if owner == f"trainer={AUTO}":
        named = ", ".join(f"trainer={name}" for name in installed().names("trainer"))
        return f"{owner} takes the own trainer of a policy that learns, as it is; name one to set its options: {named}"
    close = difflib.get_close_matches(option, known, 1)
    if close:
        return f"did you mean {'.'.join(filter(None, [section, close[0]]))!r}? {everything}"
    return f"options of {owner}: {', '.join(known) or 'none'}" if owner else everything


def _options(section: str, option: str, argv: list[str]) -> tuple[str, list[str]]:
    """The component in `section`, and its options, of the first job of `argv` whose component lacks `option`."""
    if section in swept_by_experiment(argv):
        return "", []
    decide = {section, "importer", "workload", "experiment"}
    choices = [o for o in argv if (m := re.match(r"\+*(?:\w+@)?(\w+)=", o)) and m[1] in decide]
    with suppress(PlacekitError):  # a second mistake, which is told when this one is corrected
        for job in jobs(choices):
            options = compose(job).get(section)
            if isinstance(options, dict) and option not in options:
                name = options.pop("name", "")
                return f"{section}={name}" if name else section, list(options)
    return "", []


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
