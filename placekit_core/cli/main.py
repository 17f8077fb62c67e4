"""The command line: `placekit COMMAND`. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import threading
import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # `placekit --version` imports nothing of this
    from placekit_core.run.entries import CommandEntry
    from placekit_core.run.registry import Registry

GROUPS = ("place", "look", "measure", "install and extend")
"""Headings of `placekit --help`, in this order; other headings of plugins follow."""


def script() -> int:
    """Entry point of the console script."""
    # imports allocate much and leave little garbage: collecting it took a tenth of the time of a small run
    gc.set_threshold(100_000, 50, 100)
    code = main(keep_imports=True)
    gc.freeze()  # else Python looks through all objects for garbage as it ends: a fifth of the time of a small run
    return code


def main(keep_imports: bool = False) -> int:
    """Run the command line in `sys.argv`; returns the exit code. `keep_imports` is for a process in which nothing else ran."""
    argv = sys.argv[1:]
    before = sys.stdout, sys.stderr
    open_streams()
    if argv[:1] in (["-V"], ["--version"]) or argv[1:] == ["--version"]:
        from placekit_core.contracts.version import __version__

        print(f"placekit {__version__}")
        return 0
    try:
        return _run(argv, keep_imports)
    except SystemExit as e:  # argparse after --help, or the file of a model
        if e.code is None or isinstance(e.code, int):
            return e.code or 0
        print(e.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        from placekit_core.run.interruption import tell

        tell("placekit: interrupted")
        return 130
    except BrokenPipeError:  # `placekit ... | head`: results are written before anything is printed
        return 0
    except Exception as e:
        if os.environ.get("HYDRA_FULL_ERROR"):
            raise
        from placekit_core.run.registry import installed

        return fail(e, installed())
    finally:
        open_streams()  # a plugin may have closed them
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except OSError:  # nobody reads it any more, or its disk is full
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        sys.stdout, sys.stderr = before


def open_streams() -> None:
    """Open standard output or error if it is closed (`placekit ... >&-`), and let both escape control characters."""
    from placekit_core.run.terminal import Harmless

    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None or stream.closed:
            stream = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
        setattr(sys, name, stream if isinstance(stream, Harmless) else Harmless(stream))


def _run(argv: list[str], keep_imports: bool) -> int:
    """Run the command that `argv` names, or print an overview."""
    from placekit_core.contracts.errors import RunError
    from placekit_core.run.interruption import end_signals
    from placekit_core.run.registry import installed

    try:
        os.getcwd()
    except FileNotFoundError:
        raise RunError("the working directory does not exist any more", "change to another one") from None
    if threading.current_thread() is threading.main_thread():
        for number in set(end_signals()) - {signal.SIGINT}:  # keep the best so far, as on Ctrl-C
            signal.signal(number, _terminated)
    warnings.showwarning = show_warning
    registry = installed()
    registry.keeps_imports = keep_imports
    if argv[:1] == ["help"]:  # `placekit help run` is `placekit run --help`
        argv = [*(word for word in argv if word not in ("help", "-h", "--help")), "--help"]
    if not argv or argv[0] in ("-h", "--help"):
        print(overview(registry))
        return 0
    if argv[1:] in (["-h"], ["--help"]) and (family := _family(argv[0], registry)):
        print(family_help(argv[0], family, registry))
        return 0
    entry, arguments = find(argv, registry)
    return entry.run(arguments, registry)


def find(argv: list[str], registry: Registry) -> tuple[CommandEntry, list[str]]:
    """The command of `argv` (one word or two) and its arguments. Raises PluginError."""
    from placekit_core.contracts.errors import PluginError, unknown

    two = " ".join(argv[:2])
    if two in registry.commands:
        return registry.command(two), argv[2:]
    if family := _family(argv[0], registry):
        if argv[1:]:
            raise registry.mention_broken(unknown("command", two, family))
        raise PluginError(f"{argv[0]!r} is not a command by itself", f"available: {', '.join(family)}")
    return registry.command(argv[0]), argv[1:]


def _family(word: str, registry: Registry) -> list[str]:
    """The commands of two words that begin with `word`; empty if it is a command itself."""
    return [] if word in registry.commands else [n for n in sorted(registry.commands) if n.startswith(f"{word} ")]


def family_help(word: str, family: list[str], registry: Registry) -> str:
    """The commands that share their first word."""
    from placekit_core.cli.console import wrapped

    lines = [f"usage: placekit {word} COMMAND ...", f"`placekit {word} COMMAND --help` describes one"]
    for name in family:
        command = registry.command(name).command
        lines += [wrapped(command.usage, " " * 6, f"  {name} "), wrapped(command.summary, " " * 6, " " * 6)]
    return "\n".join(lines)


def overview(registry: Registry) -> str:
    """The commands that are installed, in groups."""
    from placekit_core.cli.console import wrapped

    lines = [wrapped("`placekit COMMAND --help` describes one", "  ", f"{'usage: placekit COMMAND ...':32}")]
    commands = [found[0].command for _, found in sorted(registry.commands.items()) if len(found) == 1]
    width = max((len(c.name) for c in commands), default=0)
    for group in [*GROUPS, *sorted({c.group for c in commands} - set(GROUPS))]:
        rows = [wrapped(c.summary, " " * (width + 4), f"  {c.name:{width}}  ") for c in commands if c.group == group]
        lines += [f"{group}:", *rows] if rows else []
    twins = [name for name, found in sorted(registry.commands.items()) if len(found) > 1]
    lines += [f"defined by several plugins, so that none can be used: {', '.join(twins)}"] if twins else []
    lines += [wrapped(registry.names_of_broken)] if registry.broken else []
    return "\n".join([*lines, "placekit --version prints the version"])


def _terminated(*_: object) -> None:
    raise KeyboardInterrupt


def show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """Print a warning in one line, without its place in the code. A stream that is gone must not cost a result."""
    from placekit_core.run.terminal import harmless

    with contextlib.suppress(OSError, ValueError):
        print(f"placekit: warning: {harmless(str(message))}", file=sys.stderr)  # bars of progress write past the filter


def fail(error: Exception, registry: Registry) -> int:
    """Show an error for the user, or one in the code of a plugin; raise any other. Returns the exit code."""
    from placekit_core.contracts.errors import PlacekitError
    from placekit_core.run.failures import RunFailed, reason
    from placekit_core.run.run_directory import resume_command

    text = str(error)
    failed = error if isinstance(error, RunFailed) else None
    cause: BaseException | None = failed.__cause__ if failed else error
    if cause is not None and not isinstance(cause, PlacekitError):
        if not (place := registry.where(cause)):
            raise cause
        who = f", while {failed.who} worked" if failed and failed.who else ""
        text = f"{reason(cause)}{who}\n  at {place}; HYDRA_FULL_ERROR=1 shows the whole traceback"
    print(f"placekit: {text}", file=sys.stderr)
    if failed and failed.kept and any(p.fits for p in failed.result.summary.programs):
        best = f"the best so far, {failed.result.summary.outcome}," if failed.result.summary.fits else "what was found"
        print(f"  {best} is in {failed.kept}; continue with `{resume_command(failed.kept)}`", file=sys.stderr)
    return 1
