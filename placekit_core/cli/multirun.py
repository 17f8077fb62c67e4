"""Sweeps: Hydra starts the jobs, with the launcher and the sweeper that the command line names."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn
from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from placekit_core.cli import sweep
from placekit_core.cli.arguments import quoted
from placekit_core.cli.compose import job_name, key_of, opened, parse, split, to_dict
from placekit_core.cli.parser import FOLDER, Parser
from placekit_core.contracts.errors import ConfigError, PlacekitError, RunError
from placekit_core.run.registry import Registry

Job = Callable[[dict[str, Any], Path, Registry], float | None]
"""`job(configuration, folder, registry)` returns the value in seconds; the launcher may call it in another process."""


def multirun(argv: list[str], config: DictConfig, job: Job, registry: Registry) -> None:
    """Run `job` for each configuration that `argv` describes, then list failed and missing jobs. Raises PlacekitError.

    `config` is the result of `compose_all` for `argv`.
    """
    directory = Path(str(config.hydra.sweep.dir))
    with opened(argv, registry) as found:
        shared, folders = _plan(found, config)
    registry.programs.clear()  # files may have changed since the last sweep

    def task(config: DictConfig) -> float:  # a launcher may pickle it, with the registry, for another process
        own = HydraConfig.get()
        folder = sweep.shown(str(own.runtime.output_dir))

        def checked() -> float | None:
            registry.check_choices(own.runtime.choices)
            return job(to_dict(config), folder, registry)

        return sweep.run_job(folder.name, folder, checked, registry)

    stopped = None
    try:
        sweep.begin(directory, argv, folders)
        # the folder as composed above, so that a time in its name stays the same
        keys = ",".join(f"'{key}'" for key in shared)
        forget = f"+hydra.callbacks.placekit._target_={Forget.__module__}.{Forget.__qualname__}"
        own = [f"run_dir={quoted(str(directory))}", f"{_EXCLUDED}=[{keys}]", "hydra.mode=MULTIRUN", forget]
        with opened(argv, registry) as found:
            _hydra().multirun("config", task, [*(o for o in found if key_of(o) != "run_dir"), *own])
    except KeyboardInterrupt:
        print(f"interrupted: continue with `placekit run resume={directory}`")
        raise
    except PlacekitError:  # before the first job
        raise
    except OSError as e:
        where = e.filename or directory
        raise ConfigError(f"cannot write to {where}: {e.strerror}", "choose another: run_dir=PATH") from None
    except Exception as e:
        stopped = e
    _end(directory, stopped, registry)


class Forget(Callback):
    """Drops the configuration of a finished job, which Hydra keeps to the end of a sweep: 0.2 MB for each."""

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **_: Any) -> None:
        """Hydra calls it where the job ran."""
        job_return.cfg = job_return.hydra_cfg = None


_EXCLUDED = "hydra.job.config.override_dirname.exclude_keys"


def _plan(found: Sequence[str], config: DictConfig) -> tuple[list[str], list[str] | None]:
    """The options that all jobs share, and the folders of the jobs; None for a sweeper that chooses jobs as it goes."""
    params = [f"{k}={v}" for k, v in (config.hydra.sweeper.params or {}).items()]
    own = [o for o in found if not key_of(o).startswith("hydra") or key_of(o) in params]
    last = {key_of(o): o for o in [*params, *own]}  # for two overrides of one key, the later one counts
    varying = {key for key, override in last.items() if parse([override])[0].is_sweep_override()}
    known = list[str](config.hydra.job.config.override_dirname.exclude_keys)
    basic = str(config.hydra.sweeper._target_).endswith(".BasicSweeper")
    varying |= set() if basic else {key_of(p) for p in params}  # in whatever form its values are given
    shared = sorted({*known, *(key for key in last if key not in varying)})
    if not basic:
        return shared, None
    return shared, [job_name(job, shared) for job in split([*params, *own])]


def print_with_hydra(argv: list[str], registry: Registry) -> None:
    """Let Hydra print for `--cfg`, `--info` and `--hydra-help`; runs nothing. Raises PlacekitError."""
    with opened(argv, registry) as found:
        flags = _flags()
        arguments = flags.read(argv)
        arguments.overrides = found
        if arguments.hydra_help:
            _hydra().hydra_help("config", flags, arguments)
        elif arguments.info:
            _hydra().show_info(arguments.info, "config", found)
        else:
            _hydra().show_cfg("config", found, arguments.cfg, None, arguments.resolve)


def _flags() -> Parser:
    """The flags of `placekit run` with which Hydra prints something; `--hydra-help` lists them."""
    parser = Parser("run", "What Hydra prints.", add_help=False)
    one = parser.add_mutually_exclusive_group()
    one.add_argument("--cfg", "-c", choices=["job", "hydra", "all"], help="print the configuration")
    information = ["all", "config", "defaults", "defaults-tree", "plugins", "searchpath"]
    one.add_argument(
        "--info", "-i", nargs="?", const="all", choices=information, help="print how the configuration is composed"
    )
    one.add_argument("--multirun", "-m", action="store_true", help="run a sweep")
    parser.add_argument("--resolve", action="store_true", help="with --cfg: resolve interpolations")
    parser.add_argument("--config-dir", "-cd", help=FOLDER)
    parser.add_argument("--hydra-help", action="store_true", help="print launchers, sweepers, Hydra's own options")
    parser.add_argument("overrides", nargs="*", help="OPTION=VALUE; `placekit run --help` lists the options")
    return parser


def _hydra() -> Any:
    """The object that `opened` has initialised. `hydra.main` uses it, too, but reads `sys.argv` and ends the process."""
    return GlobalHydra.instance().hydra


def _end(directory: Path, stopped: Exception | None, registry: Registry) -> None:
    """Tell the plugins, and list failed and missing jobs. Raises RunError if there are any."""
    try:
        registry.manager.hook.placekit_sweep_finished(directory=directory, registry=registry)
    except Exception as e:  # it must not hide what failed
        warnings.warn(f"a plugin failed at the end of the sweep: {type(e).__name__}: {e}", stacklevel=2)
    failed, missing = sweep.troubles(directory)
    sweep.show_troubles(failed, missing)
    sys.stdout.flush()  # before the error, which goes to standard error
    counts = [
        f"{n} {'job' if n == 1 else 'jobs'} of the sweep {what}"
        for n, what in ((len(failed), "failed"), (len(missing), "did not finish")) if n
    ]  # fmt: skip
    damaged = sweep.damaged(directory)
    counts += [f"{len(damaged)} of its results cannot be read: {damaged[0]}"] if damaged else []
    hint = f"the others are written; `placekit run resume={directory}` tries again what is not finished"
    if stopped is not None:
        reason = f"{type(stopped).__name__}: {stopped}".strip().splitlines()[0]
        raise RunError("; ".join([f"the sweep stopped: {reason}", *counts]), hint)
    if counts:
        raise RunError("; ".join(counts), hint)
