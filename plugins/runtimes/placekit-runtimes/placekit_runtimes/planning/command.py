"""`placekit plan MODEL MACHINE`: prints a plan."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from placekit_inspect.what_if import changed_machine, show_changes
from placekit_models.shape import shapes
from placekit_training import command as training

from placekit_core import ConfigError, Registry, units, write_atomically
from placekit_core.cli.console import wrapped
from placekit_core.cli.parser import Parser
from placekit_core.contracts.progress import listening
from placekit_runtimes.planning.page import page
from placekit_runtimes.planning.plan import plan
from placekit_runtimes.planning.planned import Planned
from placekit_runtimes.planning.question import SYNONYMS, PlanOptions
from placekit_runtimes.planning.text import recommended, show

EXAMPLE = "placekit plan Qwen3-14B 'rtx4090 + 64GB ddr5-5600' weights=q4_k_m"
MACHINE = "in words and quotes ('rtx4090 + rtx3060 + 64GB ddr5-5600'), a preset or a YAML file; left out: this computer"
_OPTION = re.compile(r"([a-zA-Z_][\w.-]*)=(.*)", re.S)


def main(argv: list[str], registry: Registry) -> int:
    """Print a plan. Raises PlacementError if nothing fits."""
    parser = Parser("plan", "", usage="placekit plan MODEL [MACHINE] [OPTION=VALUE ...] [--if WORDS]")
    parser.description = f"example:\n  {EXAMPLE}\n\n" + wrapped(
        "Prints which of your devices should run which part of a language model, how fast that is, and the command lines"
        " to paste. With FILE.py:FUNCTION batch=N, compares ways to run a training step (docs/training.md).", "")  # fmt: skip
    names = ", ".join(sorted(shapes(), key=str.lower))
    parser.epilog = f"{option_help()}\n\nmodels that need no files:\n{wrapped(names, first='  ')}"
    how = "a name (Qwen3-14B, qwen3:14b), a folder with config.json, or a GGUF file"
    parser.add_argument("words", metavar="MODEL", nargs="*", help=how)
    parser.add_argument("unused", metavar="MACHINE", nargs="*", help=MACHINE)
    more = "also plan with more words for the machine: --if nvlink --if '+ rtx3060'"
    parser.add_argument("--if", dest="changes", action="append", default=[], metavar="WORDS", help=more)
    parser.add_argument("--html", type=Path, metavar="FILE", help="also write the plan as a page")
    parser.add_argument("--scripts", type=Path, metavar="DIR", help="for a training step: write a script for each row")
    arguments = parser.read(refuse_flags(argv))
    words, options = divided(arguments.words)
    model = options.pop("model", "") or (words.pop(0) if words else "")
    if not model:
        raise ConfigError(
            "no model is named", f"for example {EXAMPLE}; `placekit plan --help` lists models and options"
        )
    machine = machine_of(words, options)
    step, unused = training.takes(model), arguments.html if training.takes(model) else arguments.scripts
    if unused is not None:
        raise ConfigError(
            "placekit writes no page for a training step"
            if step
            else f"{model} is a language model to run: it has no scripts",
            "leave out --html" if step else "leave out --scripts, or name a training step: train.py:make",
        )
    changes = {words: changed_machine(machine, words, registry) for words in arguments.changes}
    if step:
        with announcing():
            return training.main(model, machine, options, registry, arguments.scripts, changes)
    with announcing():
        found = plan(model, machine, registry=registry, **options)
    show_machine(machine, found)
    show(found)
    write_page(arguments.html, found)
    if changes:
        others = {words: plan(model, other, registry=registry, **options) for words, other in changes.items()}
        changed = {words: recommended(other) for words, other in others.items()}
        show_changes(["tokens/s", "answer"], recommended(found), changed)
    _ = found.best  # raises if nothing fits
    return 0


def announcing() -> contextlib.AbstractContextManager[None]:
    """Within the block, say why a first plan takes longer than others."""
    return listening(lambda text, share: None, lambda text: print(text, file=sys.stderr, flush=True))


def option_help() -> str:
    """The options with their defaults, for `--help`."""
    rows = []
    for name, field in PlanOptions.model_fields.items():
        number = isinstance(field.default, int | float)
        default = f" (default {field.default:,})" if number else f" (default {field.default})" if field.default else ""
        rows.append(wrapped(f"{field.description}{default}", " " * 16, f"  {name:13} "))
    return "\n".join(["options, as NAME=VALUE:", *rows])


def divided(words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The words that are not options, and the options."""
    matches = [(word, _OPTION.fullmatch(word)) for word in words]
    return [word for word, match in matches if match is None], {m[1]: m[2] for _, m in matches if m is not None}


def machine_of(words: Sequence[str], options: dict[str, str]) -> str:
    """The machine, which is a word or, taken out of them, an option. Raises ConfigError if several words are left."""
    named = [options.pop(name) for name in ("machine", "cluster") if name in options]
    found = [*words, *named] or ["auto"]
    if len(found) > 1:
        raise ConfigError(f"{found[1]!r} is one word too many", "put the machine in quotes")
    return found[0]


def refuse_flags(argv: list[str]) -> list[str]:
    """The arguments. Raises ConfigError for options that are written as flags, and for flags that are written as options."""
    for i, word in enumerate(argv):
        name, equals, value = word.partition("=")
        if name in ("html", "if"):
            raise ConfigError(f"{name} is a flag, not an option", f"write --{name} {value or '...'}")
        flag = name.lstrip("-").replace("-", "_")
        own = SYNONYMS.get(flag, flag)
        if word.startswith("-") and (own in PlanOptions.model_fields or own in ("model", "machine", "cluster")):
            value = value if equals else next(iter(argv[i + 1 : i + 2]), "VALUE")
            raise ConfigError(f"{name} is an option, not a flag", f"write {own}={value}")
    return argv


def show_machine(machine: str, found: Planned) -> None:
    """If the plan is for this computer, print its devices."""
    if machine == "auto":
        cluster = found.question.cluster
        own = zip(cluster.device_names, cluster.memory_bytes.tolist(), strict=True)
        print(wrapped(f"on this computer: {', '.join(f'{name} ({units.mebibytes(size)})' for name, size in own)}"))


def write_page(file: Path | None, found: Planned) -> None:
    """Write a plan as a page, if a file is named."""
    if file is not None:
        write_atomically(file, page(found).encode())
        print(f"written to {file}")
