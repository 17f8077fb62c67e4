"""The command line: `placekit <command>`. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
import warnings

USAGE = """\
usage: placekit COMMAND ...

  run [OPTION=VALUE ...]     place a program on a machine; `placekit run --help` lists every option
  run resume=DIR             continue a run, or a sweep, that was interrupted
  compare DIR ...            a table over runs
  compare --profile DIR ... [--png FILE]   where the time of their placements goes, side by side
  apply RUN_DIR [--format device_map|pipeline|json] [--out FILE]   its placement, as other code takes it
  plugins                    what is installed: kind, name, distribution, version, or why it is broken
  new-plugin KIND NAME       write a package with a working importer, grouper, policy, trainer or backend
  graph show [OPTION=VALUE ...]          a program's graph in numbers
  graph export OUT [OPTION=VALUE ...]    write it to a file
  graph import FILE [OUT]                read a graph file, check it, and write it as OUT
  cluster show [NAME|FILE.yaml]          machines, or one of them in detail
  cluster profile OUT_DIR [repeats=9] [OPTION=VALUE ...]   measure a machine and a program's operations
  fidelity OUT_DIR [placements=30] [passes=9] [OPTION=VALUE ...]   simulated beside measured seconds of placements
  doctor                     check this installation: versions, devices, plugins, caches, a self-test
  completion bash|zsh|fish   print what makes the shell complete commands and options
  --version
"""


COMMANDS = {
    "run": "run",
    "compare": "compare",
    "apply": "apply",
    "plugins": "plugins",
    "new-plugin": "new_plugin",
    "graph": "graph",
    "cluster": "cluster",
    "fidelity": "fidelity",
    "doctor": "doctor",
    "completion": "completion",
}
"""Command, and the module of this package whose `main(argv)` it is."""


def main() -> int:
    """Entry point of the console script; returns the exit code."""
    argv = sys.argv[1:]
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(USAGE, end="")
        return 0
    if argv[0] in ("-V", "--version") or argv[1:] == ["--version"]:
        from placekit_core import __version__

        print(f"placekit {__version__}")
        return 0
    if argv[0] not in COMMANDS:
        from placekit_core.errors import unknown

        return fail(unknown("command", argv[0], COMMANDS))
    if argv[0] != "run" and any(a in ("-h", "--help") for a in argv[1:]):
        print(usage(argv))
        return 0
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _terminated)  # schedulers end jobs by it: keep the best so far, as on Ctrl-C
    warnings.showwarning = show_warning
    try:
        command = importlib.import_module(f"placekit_core.cli.{COMMANDS[argv[0]]}")
        return int(command.main(argv[1:]))
    except KeyboardInterrupt:
        print("placekit: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `placekit ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as e:
        from placekit_core.errors import PlacekitError

        if os.environ.get("HYDRA_FULL_ERROR"):
            raise
        if isinstance(e, PlacekitError):
            return fail(e)
        from placekit_core.registry import where

        if not (place := where(e)):
            raise
        return fail(Exception(f"{type(e).__name__}: {e}\n  at {place}; HYDRA_FULL_ERROR=1 shows the whole traceback"))


def usage(argv: list[str]) -> str:
    """What the command of `argv` takes: its lines of the usage, or that of its subcommand where it names one."""
    own = [line.strip() for line in USAGE.splitlines() if line.split()[:1] == argv[:1]]
    named = [line for line in own if line.split()[1] in argv[1:]] or own
    about = "OPTION=VALUE are the options of a run: `placekit run --help`; " if "OPTION=" in "".join(named) else ""
    return (
        "\n".join(f"usage: placekit {line}" for line in named) + f"\n{about}docs/command-line.md has the meaning of all"
    )


def _terminated(*_: object) -> None:
    raise KeyboardInterrupt


def show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """A warning in one line, without the place in the code."""
    print(f"placekit: warning: {message}", file=sys.stderr)


def fail(error: Exception) -> int:
    """Show an error that was raised on purpose."""
    print(f"placekit: {error}", file=sys.stderr)
    return 1
