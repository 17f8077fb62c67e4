"""The pictures of the documents: makes them again, and compares or replaces them.

    python docs/pictures.py [--write] [NAME ...]

timeline: docs/pictures/timeline.svg, a training step before and after.
accuracy: docs/pictures/accuracy.svg, predicted against published speeds.
training: docs/pictures/training-*.svg, the best stages of three models on two boxes of unlike GPUs.
papers: docs/pictures/paper-*.svg, where methods of papers place the parts of networks, from the recorded runs.
report: docs/pictures/report*.png, screenshots of a report. Needs chromium. They are never compared.

All but the first are made only if they are named.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
import tempfile
from pathlib import Path

import numpy as np

DOCS = Path(__file__).resolve().parent
PICTURES = DOCS / "pictures"
TO_TIMELINE = "document.querySelector('[role=toolbar]').closest('section').scrollIntoView()"


def timeline(folder: Path) -> None:
    """A training step of GPT-2 with eight micro-batches: on one GPU, divided by a rule, divided by placekit; simulated."""
    from placekit_report.svg import Panel, write

    from placekit_core import place

    backend = {"name": "pipeline", "microbatches": 8, "checkpointing": "block"}
    results = {
        policy: place("gpt", cluster="rtx5090_3080x2", policy=policy, backend=backend)
        for policy in ("single_device", "torchtitan_weights", "chain")
    }
    value = {policy: result.value_s or np.nan for policy, result in results.items()}
    titles = {
        "single_device": "One GPU: all layers on the RTX 5090",
        "torchtitan_weights": "Three GPUs, equal stages (the rule of torchtitan)",
        "chain": f"Three GPUs, placekit: {1 - value['chain'] / value['single_device']:.0%} less time than one GPU, "
        f"{1 - value['chain'] / value['torchtitan_weights']:.0%} less than equal stages",
    }
    panels = [Panel(r.problem, r.schedule, titles[policy]) for policy, r in results.items() if r.schedule is not None]
    note = (
        "A training step of GPT-2 small, 8 micro-batches of 8 sequences, on one RTX 5090 and two RTX 3080; simulated."
    )
    write(folder / "timeline.svg", panels, links=False, note=note)


def accuracy(folder: Path) -> None:
    """Every published speed that is predicted, against the prediction."""
    from placekit_accuracy.command import main

    from placekit_core import installed

    with contextlib.redirect_stdout(io.StringIO()):
        main(["--svg", str(folder / "accuracy.svg")], installed())


def training(folder: Path) -> None:
    """For each of three models, the best split into stages on two boxes of unlike GPUs; simulated."""
    from placekit_report.svg import Panel, write
    from placekit_training.plan import plan

    sys.path.insert(0, str(DOCS.parent / "benchmarks"))
    from training_models import MACHINES, gpt2_medium, unet, vit_large

    for make in (gpt2_medium, vit_large, unet):
        panels = []
        for machine in ("rtx4090_3090", "rtx5090_3080x2"):
            batch = MACHINES[machine]
            found = plan(f"{DOCS.parent}/benchmarks/training_models.py:{make.__name__}", machine, batch=batch)
            stages = next(row.outcome for row in found.rows if row.family == "stages")
            if stages is not None and found.one is not None:
                gain = found.one.step_s / stages.step_s
                title = f"{machine}, batch {batch}, {stages.strategy.schedule}: {gain:.2f} times as fast as one device"
                panels.append(Panel(*found.steps.schedule(stages.strategy), title))
        note = f"A training step of {make.__name__} in the best stages that placekit finds; simulated."
        write(folder / f"training-{make.__name__}.svg", panels, links=False, note=note)


def papers(folder: Path) -> None:
    """Where methods of papers place the parts of networks; simulated, from the recorded runs."""
    from placekit_papers.command import main

    from placekit_core import installed

    for paper, item in (("mirhoseini2017", "placements"), ("post", "figure3"), ("doppler", "figures13_16")):
        with contextlib.redirect_stdout(io.StringIO()):
            main([paper, item, "--svg", str(folder / f"paper-{paper}.svg")], installed())


def report(folder: Path) -> None:
    """Screenshots of the report of a language model on two unlike GPUs: on a wide screen and on a phone, light and dark."""
    from placekit_inspect.described import described_machine

    from placekit_core import installed, load_programs, place

    [model] = load_programs(checkpoint="hf:Qwen/Qwen3-30B-A3B", weights="q8_0", context=16384)
    machine = described_machine("rtx4090 + rtx3060 pcie3 x4 + 64GB ddr5-5600", installed())
    with tempfile.TemporaryDirectory() as work, contextlib.ExitStack() as stack:
        stack.callback(os.chdir, Path.cwd())
        os.chdir(work)  # the page shows the folder of the run as a user would write it
        run_dir = Path("Qwen3-30B-A3B-q8_0")
        place(model, cluster=machine, policy="portfolio", run_dir=run_dir, log=["csv", "report"])
        for screen, (width, height, scale) in {"desktop": (1280, 1600, 1.0), "phone": (360, 740, 1.0)}.items():
            for dark in (False, True):
                picture = folder / f"report-{screen}{'-dark' * dark}.png"
                begin = TO_TIMELINE if screen == "phone" else ""
                screenshot(run_dir / "report.html", picture, width, height, scale, dark, begin)


def screenshot(
    page: Path, picture: Path, width: int, height: int, scale: float, dark: bool, begin: str = ""
) -> None:  # fmt: skip
    """A screenshot of a page in a window of this size, after a script if there is one."""
    from PIL import Image

    sys.path.insert(0, str(DOCS.parent / "plugins" / "reporting" / "placekit-report" / "tests"))
    from headless_chromium import Browser

    with Browser(width, height) as browser:
        browser.emulate(width, height, dark=dark, scale=scale)
        browser.open(page)
        if begin:
            browser.evaluate(begin)
        browser.settle()
        browser.screenshot(picture)
    with Image.open(picture) as image:  # 256 colours are enough, and a third of the bytes
        small = image.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    small.save(picture, optimize=True)


MADE = {"timeline": timeline, "accuracy": accuracy, "report": report, "training": training, "papers": papers}
SCREENSHOTS = ("report",)
"""Pictures that are never compared: a browser of another version draws other pixels."""


def differing(folder: Path) -> list[Path]:
    """The pictures that differ from those just made in `folder`."""
    places = ((path, PICTURES / path.name) for path in sorted(folder.iterdir()))
    return [old for new, old in places if not old.is_file() or old.read_bytes() != new.read_bytes()]


def main(arguments: list[str] | None = None) -> int:
    """Make the named pictures, or the timeline; returns 1 if a compared picture differs."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", default=["timeline"], help=", ".join(MADE))
    parser.add_argument("--write", action="store_true", help="replace the pictures")
    given = parser.parse_args(arguments)
    if unknown := sorted({*given.names} - {*MADE}):
        parser.error(f"no picture {unknown[0]}; there are {', '.join(MADE)}")
    differences = []
    for name in given.names:
        with tempfile.TemporaryDirectory() as made:
            MADE[name](Path(made))
            different = differing(Path(made)) if given.write or name not in SCREENSHOTS else []
            for path in different:
                print(f"{path.relative_to(DOCS)} {'written' if given.write else 'differs'}")
                if given.write:
                    path.parent.mkdir(exist_ok=True)
                    path.write_bytes((Path(made) / path.name).read_bytes())
        differences += different
    return int(bool(differences) and not given.write)


if __name__ == "__main__":
    sys.exit(main())
