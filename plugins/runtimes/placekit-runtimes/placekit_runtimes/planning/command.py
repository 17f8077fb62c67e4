"""`placekit plan MODEL MACHINE`: prints a plan."""

from __future__ import annotations

from pathlib import Path

from placekit_core import ConfigError, Registry, write_atomically
from placekit_core.cli.parser import Parser
from placekit_runtimes.planning.page import page
from placekit_runtimes.planning.plan import plan
from placekit_runtimes.planning.question import PlanOptions
from placekit_runtimes.planning.text import show


def main(argv: list[str], registry: Registry) -> int:
    """Print a plan. Raises PlacementError if nothing fits."""
    own = "\n".join(f"  {name:10} {field.description}" for name, field in PlanOptions.model_fields.items())
    parser = Parser(
        "plan", "Which of your devices should run which part of a language model, how fast that is, and the lines to paste.",
        options="OPTION=VALUE", epilog=f"options:\n{own}",
    )  # fmt: skip
    parser.add_argument("model", metavar="MODEL", help="hf:NAME, a folder with config.json, or a GGUF file")
    how = "in words and quotes ('rtx4090 + rtx3060 + 64GB ddr5-5600'), a preset or a YAML file; auto: this computer"
    parser.add_argument("machine", metavar="MACHINE", nargs="?", default="auto", help=how)
    parser.add_argument("--html", type=Path, metavar="FILE", help="also write the plan as a page")
    arguments = parser.read(argv)
    words = [arguments.model, arguments.machine, *arguments.options]
    options = dict(w.partition("=")[::2] for w in words if "=" in w)
    positional = [w for w in words if "=" not in w]
    if not positional:
        raise ConfigError("no model is named", "placekit plan hf:Qwen3-14B 'rtx4090 + rtx3060' weights=q4_k_m")
    if len(positional) > 3 or (len(positional) == 3 and positional[2] != "auto"):
        raise ConfigError(f"{positional[2]!r} is one word too many", "put the machine in quotes")
    found = plan(positional[0], positional[1] if len(positional) > 1 else "auto", registry=registry, **options)
    show(found)
    if arguments.html is not None:
        write_atomically(arguments.html, page(found).encode())
    _ = found.best  # raises if nothing fits
    return 0
