"""`placekit run`: compose, validate, run the pipeline, show what came out."""

from __future__ import annotations

import json
import multiprocessing
import warnings
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from placekit_core.cli.arguments import quoted, take
from placekit_core.errors import ConfigError, RunError

if TYPE_CHECKING:
    from placekit_core.config import RunConfig


def main(argv: list[str]) -> int:
    """Run, in every form that Hydra knows, or continue a run or a sweep with `resume=DIR`. Returns the exit code."""
    directory, rest = take(argv, "resume")
    if directory is not None:
        if rest:
            raise ConfigError(
                f"a resumed run keeps its configuration, so {rest[0]!r} has no place here",
                "give `resume=RUN_DIR` alone, or start a new run",
            )
        return _resume(Path(directory))
    from placekit_core.cli.hydra_app import launch

    launch(argv, _job)
    return 0


def _job(data: dict[str, Any], run_dir: str, of_sweep: bool) -> float | None:
    from placekit_core.cli.sweep import shown
    from placekit_core.config import validate

    path = shown(run_dir)
    config = validate({**data, "run_dir": str(path)})
    return _sweep_job(config, path) if of_sweep else _run(config, path, resume=False)


def _sweep_job(config: RunConfig, run_dir: Path) -> float | None:
    """One job of a sweep, unless it has finished already; continued if it was interrupted."""
    from placekit_core.cli import show_warning, sweep
    from placekit_core.cli.console import Progress, line
    from placekit_core.pipeline import Interrupted, run
    from placekit_core.results import CHECKPOINT, holds_run

    warnings.showwarning = show_warning  # this may be the process of a launcher
    sweep.end_with_parent()
    before = sweep.held(run_dir, config)
    if before is not None:
        (run_dir / CHECKPOINT).unlink(missing_ok=True)  # it was killed between writing the result and this
        sweep.say(f"{run_dir}: skipped, it has finished already{sweep.other_versions(before)}")
        if not before.fits:
            raise sweep.reason(run_dir)
        return before.value_s
    if (run_dir / CHECKPOINT).is_file():
        sweep.say(f"{run_dir}: continued from its checkpoint")
    try:
        with Progress(multiprocessing.parent_process() is None) as progress:
            resume, load = holds_run(run_dir), partial(sweep.programs, config)
            result = run(config, run_dir, resume=resume, observer=progress, load=load).summary
    except Interrupted as e:
        sweep.say(line(e.result.summary, run_dir))
        raise KeyboardInterrupt from None  # ends the sweep, not only the job that it meets
    sweep.say(line(result, run_dir))
    return result.value_s


def _resume(run_dir: Path) -> int:
    from placekit_core import results
    from placekit_core.config import validate

    if (run_dir / results.SWEEP).is_file():
        from placekit_core.cli import sweep
        from placekit_core.cli.hydra_app import launch

        _, arguments = take(sweep.arguments(run_dir), "run_dir")
        launch([*arguments, f"run_dir={quoted(str(run_dir))}"], _job)
        return 0
    path = run_dir / results.CONFIG
    try:
        data = json.loads(path.read_text())
        if not isinstance(data, dict) or "policy" not in data:
            raise RunError(f"{path} is damaged", "start a new run")
    except (OSError, json.JSONDecodeError) as e:
        raise RunError(f"cannot resume {run_dir}: {e}", "give what a run or a sweep called run_dir") from None
    if data.get("given"):
        raise RunError(
            f"{run_dir} was started from Python, with objects ({', '.join(data['given'])}) that only its script has",
            f"call place(..., run_dir={str(run_dir)!r}, resume=True) there",
        )
    if (run_dir / results.RESULT).is_file():
        result = results.load_summary(run_dir)
        if result.status == "finished":
            from placekit_core.cli.console import show_result

            (run_dir / results.CHECKPOINT).unlink(missing_ok=True)  # it was killed between writing the result and this
            print(f"{run_dir} has finished; nothing is left to do")
            show_result(result, run_dir)
            return 0
    _run(validate(data), run_dir, resume=True)
    return 0


def _run(config: RunConfig, run_dir: Path, resume: bool) -> float | None:
    from placekit_core.cli.console import Progress, show_result
    from placekit_core.pipeline import Interrupted, run
    from placekit_core.results import CHECKPOINT

    try:
        with Progress() as progress:
            result = run(config, run_dir, resume=resume, observer=progress).summary
    except Interrupted as e:
        show_result(e.result.summary, run_dir)
        if e.result.summary.status == "finished":  # it came while the results were written
            raise KeyboardInterrupt from None
        kept = "the best so far" if e.result.summary.fits else "what was tried"
        start = "" if (run_dir / CHECKPOINT).is_file() else " (from the beginning: there was no checkpoint yet)"
        print(f"interrupted: {kept} is in {run_dir}; continue with `placekit run resume={run_dir}`{start}")
        raise KeyboardInterrupt from None
    show_result(result, run_dir)
    return result.value_s
