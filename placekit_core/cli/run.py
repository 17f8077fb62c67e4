"""`placekit run`: compose, validate, run the pipeline, show what came out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from placekit_core.cli.arguments import take
from placekit_core.errors import ConfigError, RunError

_QUIET = ("--cfg", "-c", "--info", "-i", "--help", "-h", "--hydra-help")


def main(argv: list[str]) -> int:
    """Run, in every form that Hydra knows, or continue with `resume=RUN_DIR`. Returns the exit code."""
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


def _job(data: dict[str, Any], run_dir: str) -> float | None:
    from placekit_core.config import validate

    path = Path(run_dir)
    if path.is_relative_to(Path.cwd()):  # Hydra makes it absolute; show what was asked for
        path = path.relative_to(Path.cwd())
    config = validate({**data, "run_dir": str(path)})
    return _run(config, path, resume=False)


def _resume(run_dir: Path) -> int:
    from placekit_core import results
    from placekit_core.config import validate

    path = run_dir / results.CONFIG
    try:
        data = json.loads(path.read_text())
        if not isinstance(data, dict) or "policy" not in data:
            raise RunError(f"{path} is damaged", "start a new run")
    except (OSError, json.JSONDecodeError) as e:
        jobs = sorted(p.parent.name for p in run_dir.glob(f"*/{results.CHECKPOINT}"))
        hint = f"it is a sweep; unfinished runs in it: {', '.join(jobs)}" if jobs else "give what a run called run_dir"
        raise RunError(f"cannot resume {run_dir}: {e}", hint) from None
    if (run_dir / results.RESULT).is_file() and not (run_dir / results.CHECKPOINT).is_file():
        result = results.load_result(run_dir)
        if result.status == "finished":
            from placekit_core.cli.console import show_result

            print(f"{run_dir} has finished; nothing is left to do")
            show_result(result, run_dir)
            return 0
    _run(validate(data), run_dir, resume=True)
    return 0


def _run(config: Any, run_dir: Path, resume: bool) -> float | None:
    from placekit_core.cli.console import Progress, show_result
    from placekit_core.pipeline import Interrupted, run
    from placekit_core.results import CHECKPOINT

    try:
        with Progress() as progress:
            result = run(config, run_dir, resume=resume, observer=progress)
    except Interrupted as e:
        show_result(e.result, run_dir)
        kept = "the best so far" if e.result.fits else "what was tried"
        start = "" if (run_dir / CHECKPOINT).is_file() else " (from the beginning: there was no checkpoint yet)"
        print(f"interrupted: {kept} is in {run_dir}; continue with `placekit run resume={run_dir}`{start}")
        raise KeyboardInterrupt from None  # ends a sweep, not only the job that it meets
    show_result(result, run_dir)
    return result.value_s
