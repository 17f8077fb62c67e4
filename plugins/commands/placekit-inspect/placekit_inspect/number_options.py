"""The arguments of a command that takes whole numbers, NAME=NUMBER, besides the options of a run."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Mapping
from typing import NamedTuple

from placekit_core import ConfigError
from placekit_core.cli.arguments import take
from placekit_core.cli.parser import Parser
from placekit_core.run.config import RunConfig, default_groups


class Number(NamedTuple):
    """An option NAME=NUMBER, a whole number."""

    default: int
    meaning: str
    least: int = 1


class NumbersParser(Parser):
    """The arguments of a command with the options of a run and with `numbers`; these are in `arguments.numbers`."""

    def __init__(self, command: str, description: str, numbers: Mapping[str, Number]) -> None:
        lines = [f"  {f'{name}={n.default}':12}  {n.meaning}" for name, n in numbers.items()]
        epilog = "\n".join([f"OPTION=VALUE of `placekit {command}` itself:", *lines])
        super().__init__(command, description, options=True, epilog=epilog)
        self.numbers = numbers

    def read(self, arguments: list[str]) -> argparse.Namespace:
        """The arguments, options and positional ones in any order. Raises ConfigError; `--help` raises SystemExit."""
        found = super().read(arguments)
        found.numbers = {}
        for key, number in self.numbers.items():
            value, found.options = take(found.options, key)
            if value is not None and (not value.isdecimal() or int(value) < number.least):
                raise ConfigError(f"{key}={value}: it must be a whole number, {number.least} at least")
            found.numbers[key] = number.default if value is None else int(value)
        for key in (o.partition("=")[0] for o in found.options if "=" in o):
            close = difflib.get_close_matches(key, [*self.numbers, *RunConfig.model_fields, *default_groups()], 1)
            if close and key != close[0] and close[0] in self.numbers:
                raise ConfigError(f"no option {key!r}", f"did you mean {close[0]!r}?")
        return found
