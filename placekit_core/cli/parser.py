"""argparse for commands: mistakes raise ConfigError, and text fits 80 columns."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn

from placekit_core.cli.console import WIDTH
from placekit_core.contracts.errors import ConfigError

OPTIONS = "what to place and how; `placekit run --help` lists the options"
"""Help text of OPTION=VALUE, for commands that take the options of a run."""


class Number(NamedTuple):
    """An option NAME=NUMBER (a whole number) of a command that also takes the options of a run."""

    default: int
    meaning: str
    least: int = 1


class Parser(argparse.ArgumentParser):
    """The arguments of `placekit COMMAND`; with `options=True` also those of a run, as `arguments.options`.

    `numbers` are the command's own options of this form; their values are in `arguments.numbers`.
    """

    def __init__(
        self,
        command: str,
        description: str,
        options: bool = False,
        numbers: Mapping[str, Number] = MappingProxyType({}),
        **more: Any,
    ) -> None:
        self.takes_options, self.numbers = options, numbers
        lines = [f"  {f'{name}={n.default}':12}  {n.meaning}" for name, n in numbers.items()]
        epilog = "\n".join([f"OPTION=VALUE of `placekit {command}` itself:", *lines]) if lines else None
        super().__init__(
            prog=f"placekit {command}", description=textwrap.fill(description, WIDTH), epilog=epilog, allow_abbrev=False,
            formatter_class=_Help, **more,
        )  # fmt: skip

    def error(self, message: str) -> NoReturn:
        """Raise ConfigError with the usage."""
        usage = " ".join(self.format_usage().split()).removeprefix("usage: ")
        raise ConfigError(f"{self.prog.removeprefix('placekit ')}: {message}", f"usage: {usage}; see --help")

    def read(self, arguments: list[str]) -> argparse.Namespace:
        """The arguments, options and positional ones in any order. Raises ConfigError; `--help` raises SystemExit."""
        if self.takes_options:
            self.add_argument("options", nargs="*", default=[], metavar="OPTION=VALUE", help=OPTIONS)
        found = self.parse_intermixed_args(arguments)
        if self.numbers:
            limits = {name: (n.default, n.least) for name, n in self.numbers.items()}
            from placekit_core.cli.arguments import take_numbers

            found.numbers, found.options = take_numbers(found.options, limits)
        return found


class _Help(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=24, width=WIDTH)
