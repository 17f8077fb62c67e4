"""`placekit run`: compose, run the pipeline, show the result."""

from __future__ import annotations

import multiprocessing
import os
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from placekit_core.cli.arguments import quoted, take
from placekit_core.contracts.errors import ConfigError, RunError
from placekit_core.run import run_directory
from placekit_core.run.assembly import Assembly, PythonObjects, assemble
from placekit_core.run.checkpoint import CHECKPOINT
from placekit_core.run.entries import plugin_output
from placekit_core.run.failures import Interrupted
from placekit_core.run.lifecycle import check_loggers, next_steps
from placekit_core.run.registry import Registry
from placekit_core.run.request import Request

if TYPE_CHECKING:
    from placekit_core.contracts.result import Result
    from placekit_core.run.current_run import Observer


def main(argv: list[str], registry: Registry) -> int:
    """Run what the arguments describe, or continue a run or sweep with `resume=DIR`. Returns the exit code."""
    if {"-h", "--help"} & set(argv):
        from placekit_core.cli.help import help_text

        print(help_text([a for a in argv if a not in ("-h", "--help")], registry))
        return 0
    for b in registry.broken:
        print(f"placekit: warning: plugin {b.distribution} {b.version} is broken: {b.reason}", file=sys.stderr)
    directory, rest = take(argv, "resume")
    if directory is None:
        _launch(argv, registry)
    elif rest:
        raise ConfigError(
            f"a resumed run keeps its configuration, so {rest[0]!r} cannot be given",
            "give `resume=RUN_DIR` alone, or start a new run",
        )
    elif not directory:
        raise ConfigError("option 'resume' has no value", "write `placekit run resume=RUN_DIR`")
    else:
        _resume(Path(directory), registry)
    return 0


def _launch(argv: list[str], registry: Registry) -> None:
    """Run what `argv` describes: one run, or a sweep. With `--cfg job`, print its configuration."""
    from placekit_core.cli.compose import compose_all, is_multirun, own_part

    printed = "--cfg" in argv
    if printed:
        i = argv.index("--cfg")
        if argv[i + 1 : i + 2] != ["job"]:
            raise ConfigError("--cfg needs `job`", "`placekit run --cfg job OPTION=...` prints the configuration")
        argv = [*argv[:i], *argv[i + 2 :]]
    composed = compose_all(argv, registry)
    if not str(composed.run_dir).strip():
        raise ConfigError("option 'run_dir' has no value", "write run_dir=PATH")
    if not printed and (is_multirun(argv) or str(composed.hydra.mode).endswith("MULTIRUN")):
        from placekit_core.cli.sweep import sweep

        check_loggers([composed.log] if isinstance(composed.log, str) else composed.log or (), registry)
        sweep(argv, composed, _job, registry)
        return
    assembly = assemble(Request.of(own_part(composed)), registry)
    if printed:
        import yaml

        print(yaml.safe_dump(assembly.config.model_dump(mode="json"), sort_keys=False), end="")
        return
    _run(assembly, Path(assembly.config.run_dir), resume=False)


def _job(data: dict[str, Any], run_dir: Path, registry: Registry) -> float | None:
    """Run one job of a sweep; skip it if it has finished already, continue it if it was interrupted."""
    from placekit_core.cli import sweep
    from placekit_core.cli.main import show_warning
    from placekit_core.run.progress import Progress

    warnings.showwarning = show_warning  # a launcher may run this in another process
    assembly = assemble(Request.of({**data, "run_dir": str(run_dir)}), registry)
    before = sweep.finished(run_dir, assembly.config, registry)
    if before is not None:
        (run_dir / CHECKPOINT).unlink(missing_ok=True)  # it was killed between writing the result and this
        sweep.say(f"{run_dir}: skipped, it has finished already")
        if not before.fits:
            raise sweep.why_failed(run_dir)
        return before.value_s
    if (run_dir / CHECKPOINT).is_file():
        sweep.say(f"{run_dir}: continued from its checkpoint")
    try:
        with Progress(multiprocessing.parent_process() is None) as progress:
            progress.stage(f"importing {assembly.config.importer['name']}")
            assembly.objects = PythonObjects(sweep.programs(assembly.config, registry))
            result = _place(assembly, run_dir, run_directory.holds_run(run_dir), progress).summary
    except Interrupted as e:
        sweep.say(f"{run_dir}: {e.result.summary.line}")
        raise KeyboardInterrupt from None  # ends the sweep, not only this job
    sweep.say(f"{run_dir}: {result.line}")
    return result.value_s


def _resume(run_dir: Path, registry: Registry) -> None:
    """Continue a run or a sweep."""
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
    if run_directory.has_finished(run_dir):
        from placekit_core.cli.console import show_result

        result = run_directory.load_summary(run_dir)
        (run_dir / CHECKPOINT).unlink(missing_ok=True)  # it was killed between writing the result and this
        print(f"{run_dir} has finished; nothing is left to do")
        show_result(result, run_dir)
        return
    _run(assemble(Request.of(config.model_dump(mode="json")), registry), run_dir, resume=True)


def _place(assembly: Assembly, run_dir: Path, resume: bool, observer: Observer) -> Result:
    """Run the pipeline. What plugins and programs print goes to standard error."""
    from placekit_core.run.pipeline import run

    with plugin_output():
        return run(assembly, run_dir, resume=resume, observer=observer)


def _run(assembly: Assembly, run_dir: Path, resume: bool) -> None:
    """Run and show the result."""
    from placekit_core.cli.console import show_next, show_result
    from placekit_core.cli.main import open_streams
    from placekit_core.run import terminal
    from placekit_core.run.progress import Progress

    try:
        with Progress(lines=True) as progress:
            result = _place(assembly, run_dir, resume, progress)
    except Interrupted as e:
        show_result(e.result.summary, run_dir)
        if e.result.summary.status == "finished":  # Ctrl-C came after the search
            print(f"interrupted after the search: its result in {run_dir} is complete, but baselines may be missing")
            raise KeyboardInterrupt from None
        kept = "the best so far" if e.result.summary.fits else "what was tried"
        start = "" if (run_dir / CHECKPOINT).is_file() else " (from the beginning: there was no checkpoint yet)"
        again = run_directory.resume_command(run_dir)
        print(f"interrupted: {kept} is in {run_dir}; continue with `{again}`{start}")
        raise KeyboardInterrupt from None
    open_streams()  # a plugin may have closed them
    show_result(result.summary, run_dir)
    if not terminal.quiet():
        sys.stdout.flush()
        show_next(next_steps(assembly.registry, run_dir, result))
