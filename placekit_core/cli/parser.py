"""argparse for commands: mistakes raise ConfigError, and text fits 80 columns."""

from __future__ import annotations

import argparse
import textwrap
from typing import Any, NoReturn

from placekit_core.cli.console import columns
from placekit_core.contracts.errors import ConfigError

OPTIONS = "what to place and how; `placekit run --help` lists the options"
"""Help text of OPTION=VALUE, for commands that take the options of a run."""
FOLDER = "a folder of your own presets"


class Parser(argparse.ArgumentParser):
    """The arguments of `placekit COMMAND`; with `options` also those of a run, as `arguments.options`.

    The usage shows these as OPTION=VALUE, or as the text of `options`.
    """

    def __init__(self, command: str, description: str, options: bool | str = False, **more: Any) -> None:
        self.takes_options = options
        super().__init__(
            prog=f"placekit {command}", description=textwrap.fill(description, columns()), allow_abbrev=False,
            formatter_class=_Help, **more,
        )  # fmt: skip

    def error(self, message: str) -> NoReturn:
        """Raise ConfigError with the usage."""
        usage = " ".join(self.format_usage().split()).removeprefix("usage: ")
        raise ConfigError(f"{self.prog.removeprefix('placekit ')}: {message}", f"usage: {usage}; see --help")

    def read(self, arguments: list[str]) -> argparse.Namespace:
        """The arguments, options and positional ones in any order. Raises ConfigError; `--help` raises SystemExit."""
        if self.takes_options:
            shown = "OPTION=VALUE" if self.takes_options is True else self.takes_options
            self.add_argument("--config-dir", "-cd", action="append", default=[], metavar="DIR", help=FOLDER)
            self.add_argument("options", nargs="*", default=[], metavar=shown, help=OPTIONS)
        found = self.parse_intermixed_args(arguments)
        if self.takes_options:
            found.options = [*found.options, *(f"--config-dir={folder}" for folder in found.config_dir)]
        return found


class _Help(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=24, width=columns())
