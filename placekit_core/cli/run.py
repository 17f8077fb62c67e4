"""`placekit run`: compose, validate, run the pipeline, show the result."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from placekit_core.cli.arguments import quoted, take
from placekit_core.cli.completion import Completion
from placekit_core.contracts.errors import ConfigError, RunError
from placekit_core.run import run_directory, terminal
from placekit_core.run.assembly import PythonObjects, validate
from placekit_core.run.checkpoint import CHECKPOINT
from placekit_core.run.config import RunConfig
from placekit_core.run.lifecycle import check_loggers, next_steps
from placekit_core.run.registry import Registry

HELP = {"-h", "--help"}
PRINTING = {"--cfg", "-c", "--info", "-i", "--hydra-help"}
"""Flags with which Hydra only prints."""


def main(argv: list[str], registry: Registry) -> int:
    """Run in any form that Hydra knows, or continue a run or sweep with `resume=DIR`. Returns the exit code."""
    if HELP & set(argv):
        from placekit_core.cli.run_help import help_text

        print(help_text([a for a in argv if a not in HELP], registry))
        return 0
    for b in registry.broken:
        print(f"placekit: warning: plugin {b.distribution} {b.version} is broken: {b.reason}", file=sys.stderr)
    directory, rest = take(argv, "resume")
    if directory == "":
        raise ConfigError("option 'resume' has no value", "write `placekit run resume=RUN_DIR`")
    if directory is not None:
        if rest:
            raise ConfigError(
                f"a resumed run keeps its configuration, so {rest[0]!r} cannot be given",
                "give `resume=RUN_DIR` alone, or start a new run",
            )
        _resume(Path(directory), registry)
    else:
        _launch(argv, registry)
    return 0


def _launch(argv: list[str], registry: Registry) -> None:
    """Run what `argv` describes: one run, or a sweep."""
    from placekit_core.cli.compose import compose_all, own_part
    from placekit_core.cli.multirun import multirun, print_with_hydra
    from placekit_core.cli.presets import naming_presets

    with naming_presets(argv, registry):
        if any(a.partition("=")[0] in PRINTING for a in argv):
            print_with_hydra(argv, registry)
            return
        composed = compose_all(argv, registry)
        if {"-m", "--multirun"} & set(argv) or str(composed.hydra.mode).endswith("MULTIRUN"):
            check_loggers([composed.log] if isinstance(composed.log, str) else composed.log or (), registry)
            multirun(argv, composed, _job, registry)
            return
        config = validate(own_part(composed), registry)
    _run(config, Path(config.run_dir), registry, resume=False)


def _job(data: dict[str, Any], run_dir: Path, registry: Registry) -> float | None:
    """Run one job of a sweep; skip it if it has finished already, continue it if it was interrupted."""
    from placekit_core.cli import sweep
    from placekit_core.cli.main import show_warning
    from placekit_core.run.failures import Interrupted
    from placekit_core.run.pipeline import run
    from placekit_core.run.progress import Progress

    warnings.showwarning = show_warning  # this may be the process of a launcher
    sweep.end_with_parent()
    config = validate({**data, "run_dir": str(run_dir)}, registry)
    before = sweep.held(run_dir, config, registry)
    if before is not None:
        (run_dir / CHECKPOINT).unlink(missing_ok=True)  # it was killed between writing the result and this
        sweep.say(f"{run_dir}: skipped, it has finished already{sweep.other_versions(before, registry)}")
        if not before.fits:
            raise sweep.reason(run_dir)
        return before.value_s
    if (run_dir / CHECKPOINT).is_file():
        sweep.say(f"{run_dir}: continued from its checkpoint")
    try:
        with Progress(multiprocessing.parent_process() is None) as progress:
            progress.stage(f"importing {config.importer['name']}")
            objects, resume = PythonObjects(sweep.programs(config, registry)), run_directory.holds_run(run_dir)
            with contextlib.redirect_stdout(sys.stderr):  # what plugins and programs print
                result = run(config, run_dir, registry, resume=resume, observer=progress, objects=objects).summary
    except Interrupted as e:
        sweep.say(f"{run_dir}: {e.result.summary.line}")
        raise KeyboardInterrupt from None  # ends the sweep, not only this job
    sweep.say(f"{run_dir}: {result.line}")
    return result.value_s


def _resume(run_dir: Path, registry: Registry) -> None:
    if os.path.isfile(run_dir / run_directory.SWEEP):
        from placekit_core.cli import sweep

        _, arguments = take(sweep.arguments(run_dir), "run_dir")
        _launch([*arguments, f"run_dir={quoted(str(run_dir))}"], registry)
        return
    run_directory.check_begun(run_dir)
    config = run_directory.load_config(run_dir)
    if config.python_objects:
        raise RunError(
            f"{run_dir} was started from Python, with objects ({', '.join(config.python_objects)}) that only its script has",
            f"call place(..., run_dir={str(run_dir)!r}, resume=True) there",
        )
    if (run_dir / run_directory.RESULT).is_file():
        result = run_directory.load_summary(run_dir)
        if result.status == "finished":
            from placekit_core.cli.console import show_result

            (run_dir / CHECKPOINT).unlink(missing_ok=True)  # it was killed between writing the result and this
            print(f"{run_dir} has finished; nothing is left to do")
            show_result(result, run_dir)
            return
    _run(validate(config.model_dump(mode="json"), registry), run_dir, registry, resume=True)


def _run(config: RunConfig, run_dir: Path, registry: Registry, resume: bool) -> None:
    from placekit_core.cli.console import show_next, show_result
    from placekit_core.run.failures import Interrupted
    from placekit_core.run.pipeline import run
    from placekit_core.run.progress import Progress

    try:
        # stdout has the result alone, whatever plugins and programs print
        with Progress(lines=True) as progress, contextlib.redirect_stdout(sys.stderr):
            result = run(config, run_dir, registry, resume=resume, observer=progress)
    except Interrupted as e:
        show_result(e.result.summary, run_dir)
        if e.result.summary.status == "finished":  # Ctrl-C came after the search
            print(f"interrupted after the search: its result in {run_dir} is whole, but baselines may be missing")
            raise KeyboardInterrupt from None
        kept = "the best so far" if e.result.summary.fits else "what was tried"
        start = "" if (run_dir / CHECKPOINT).is_file() else " (from the beginning: there was no checkpoint yet)"
        print(f"interrupted: {kept} is in {run_dir}; continue with `placekit run resume={run_dir}`{start}")
        raise KeyboardInterrupt from None
    show_result(result.summary, run_dir)
    if not terminal.quiet():
        sys.stdout.flush()
        show_next(next_steps(registry, run_dir, result))


def complete(words: list[str], word: str, completion: Completion) -> Iterator[str]:
    """Candidates for the shell; see `Command.completer`."""
    yield from completion.options(words, word)
    if "=" not in word:
        yield from completion.paths(word, tuple(f for c in completion.registry.importers() for f in c.files))
    yield from completion.whole(("-m", "--multirun", "--cfg", "--help", "--config-dir", "--info"))
