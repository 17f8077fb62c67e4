"""`placekit fidelity`: how well the simulator predicts what the measuring backend measures."""

from __future__ import annotations

import csv
import dataclasses
import io
import math
import os
import platform
import shlex
from pathlib import Path
from typing import Any

from placekit_core.cli.arguments import take
from placekit_core.cli.calibrate import whole
from placekit_core.cli.console import table
from placekit_core.config import RunConfig, Streams, validate
from placekit_core.cores import usable_cores
from placekit_core.errors import BackendError, ConfigError, RunError
from placekit_core.fidelity import RANDOM, SEARCH, Fidelity, compare
from placekit_core.graph_file import write_atomically
from placekit_core.interfaces import Backend
from placekit_core.opening import choose_cluster, make_problem
from placekit_core.problem import Program
from placekit_core.registry import installed
from placekit_core.results import versions, write_json
from placekit_core.units import percent

USAGE = "placekit fidelity OUT_DIR [placements=30] [passes=9] [OPTION=VALUE ...]"
CSV, JSON, PNG = "fidelity.csv", "fidelity.json", "fidelity.png"


def main(argv: list[str]) -> int:
    """Simulate on `backend@proxy`, measure on `backend`, print how they agree, and write what was found."""
    from placekit_core.cli.hydra_app import compose

    if not argv or "=" in argv[0] or argv[0].startswith("-"):
        raise ConfigError(f"usage: {USAGE}")
    out = Path(argv[0])
    placements_given, options = take(argv[1:], "placements")
    passes_given, options = take(options, "passes")
    placements, passes = whole("placements", placements_given, 30, 4), whole("passes", passes_given, 9)
    config = validate(compose(options))
    if out.exists():  # before minutes of measuring
        raise RunError(f"{out} exists already", "remove it, or choose another folder")
    found = measured(config, placements, passes)
    about = {
        "command": shlex.join(["placekit", "fidelity", *argv]),
        "seed": config.seed,
        "passes": passes,
        "machine": {"processor": processor(), "cores": usable_cores(), "load": os.getloadavg()[0]},
        "versions": versions([*config.distributions(), "torch"]),
        "config": config.model_dump(mode="json"),
    }
    write(found, out, about)
    show(found)
    print(f"written to {out}")
    return 0


def measured(config: RunConfig, placements: int, passes: int) -> Fidelity:
    """Placements of the one program that `config` names, on both of its backends. Raises PlacekitError."""
    backend: Backend = config.build("backend")
    proxy: Backend = config.build("proxy")
    if backend.simulated:
        raise BackendError(f"backend {backend.name!r} measures nothing", "use backend=cpu or backend=cuda")
    if backend.objective != proxy.objective:
        raise ConfigError(
            f"backend {backend.name!r} says the {backend.objective}, and the proxy {proxy.name!r} the {proxy.objective}",
            "choose a proxy for the same objective, such as backend@proxy=simulator",
        )
    programs: list[Program] = config.build("importer").load()
    if len(programs) != 1:
        raise ConfigError(f"importer {config.importer['name']!r} gave {len(programs)} programs", "choose one of them")
    streams = Streams(config.seed)
    cluster = choose_cluster(config, programs[0], backend)
    problem = make_problem(config, programs[0], cluster, config.build("grouper"), "group", streams)
    machine = backend.open(problem, programs[0].executable)
    try:
        simulator = proxy.open(problem, programs[0].executable)
        try:
            return compare(problem, simulator, machine, placements, passes, streams("fidelity"))
        finally:
            simulator.close()
    finally:
        machine.close()


def write(found: Fidelity, out: Path, about: dict[str, Any]) -> None:
    """Write fidelity.csv, fidelity.json, and where a plugin draws it fidelity.png, into `out`. Raises RunError."""
    rows = io.StringIO()
    csv.writer(rows, lineterminator="\n").writerows(
        ["" if isinstance(x, float) and math.isnan(x) else x for x in row] for row in found.rows()
    )
    try:
        out.mkdir(parents=True)
        write_atomically(out / CSV, rows.getvalue().encode())
        write_json(out / JSON, {"program": found.program, "cluster": found.cluster, **figures(found), **about})
        drawn = installed().manager.hook.placekit_draw_fidelity(path=out / PNG, fidelity=found)
    except FileExistsError:
        raise RunError(f"{out} exists already", "remove it, or choose another folder") from None
    except OSError as e:
        raise RunError(f"cannot write {out}: {e.strerror or e}") from None
    if not drawn:
        print("no figure: no plugin that is installed draws it (pip install placekit-report)")


def figures(found: Fidelity) -> dict[str, Any]:
    """The agreement of all placements, and of each kind by itself, as JSON."""
    parts = {"all": found.agreement(), **{made: found.agreement(made) for made in (RANDOM, SEARCH)}}
    return {
        name: {k: None if math.isnan(v) else v for k, v in dataclasses.asdict(part).items()}
        for name, part in parts.items()
    }


def show(found: Fidelity) -> None:
    """Print the agreement."""
    rows = []
    for name, made in (("all", None), (RANDOM, RANDOM), (SEARCH, SEARCH)):
        a = found.agreement(made)
        rows.append(
            [name, f"{a.placements}", f"{a.pearson:.3f}", f"{a.spearman:.3f}", percent(a.mean_error), percent(a.bias)]
        )
    table(["placements", "number", "Pearson", "Spearman", "mean error", "bias"], rows)
    failed = len(found.made) - found.agreement().placements
    if failed:
        print(f"{failed} could not be measured, or did not fit, and are left out")


def processor() -> str:
    """Model of this computer's processor."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    return next((x.split(":")[1].strip() for x in lines if x.startswith("model name")), platform.processor())
