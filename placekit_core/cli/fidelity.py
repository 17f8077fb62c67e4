"""`placekit fidelity`: how well the simulator predicts what the measuring backend measures."""

from __future__ import annotations

import csv
import dataclasses
import io
import math
import os
import shlex
from pathlib import Path
from typing import Any

from placekit_core.cli.arguments import take_numbers
from placekit_core.cli.console import table
from placekit_core.config import RunConfig, Streams, validate
from placekit_core.errors import BackendError, ConfigError, RunError
from placekit_core.fidelity import RANDOM, SEARCH, Fidelity, compare
from placekit_core.graph_file import write_atomically
from placekit_core.interfaces import Backend
from placekit_core.opening import choose_cluster, make_problem
from placekit_core.problem import Problem, Program
from placekit_core.registry import installed
from placekit_core.results import new_folder, versions, write_json
from placekit_core.units import percent

USAGE = "placekit fidelity OUT_DIR [placements=30] [passes=9] [OPTION=VALUE ...]"
_LEAST, _FEW = 4, 10
CSV, JSON, PNG = "fidelity.csv", "fidelity.json", "fidelity.png"


def main(argv: list[str]) -> int:
    """Simulate on `backend@proxy`, measure on `backend`, print how they agree, and write what was found."""
    from placekit_core.cli.hydra_app import compose

    if not argv or "=" in argv[0] or argv[0].startswith("-"):
        raise ConfigError(f"usage: {USAGE}")
    out = Path(argv[0])
    numbers, options = take_numbers(argv[1:], {"placements": 30, "passes": 9})
    placements, passes = numbers["placements"], numbers["passes"]
    if placements < _LEAST:
        raise ConfigError(f"placements={placements}: it must be a whole number, {_LEAST} at least")
    config = validate(compose(options))
    about: dict[str, Any] = {
        "command": shlex.join(["placekit", "fidelity", *argv]),
        "seed": config.seed,
        "passes": passes,
        "load_before": os.getloadavg()[0],
        "versions": versions([*config.distributions(), "torch"]),
        "config": config.model_dump(mode="json"),
    }
    with new_folder(out):
        found = measured(config, placements, passes, about)
        show(found)
        write(found, out, about)
    print(f"written to {out}")
    if found.interrupted:
        raise KeyboardInterrupt
    return 0


def measured(config: RunConfig, placements: int, passes: int, about: dict[str, Any]) -> Fidelity:
    """Placements of the one program that `config` names, on both of its backends. Raises PlacekitError.

    Adds to `about` what was measured on, and what was simulated.
    """
    backend: Backend = config.build("backend")
    proxy: Backend = config.build("proxy")
    if backend.simulated:
        raise BackendError(f"backend {backend.name!r} measures nothing", "use backend=cpu or backend=cuda")
    if not proxy.simulated:
        raise ConfigError(
            f"the proxy {proxy.name!r} simulates nothing", "leave out backend@proxy, or choose a simulator"
        )
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
    about |= {"measured_on": backend.hardware(), **_simulated(problem)}
    machine = backend.open(problem, programs[0].executable)
    try:
        simulator = proxy.open(problem, programs[0].executable)
        try:
            return compare(problem, simulator, machine, placements, passes, streams("fidelity"))
        finally:
            simulator.close()
    finally:
        machine.close()


def _simulated(problem: Problem) -> dict[str, Any]:
    """What was simulated: which machine and costs, and which share of these was measured."""
    return {
        "cluster_fingerprint": problem.cluster.fingerprint,
        "problem_fingerprint": problem.fingerprint,
        "costs_fingerprint": problem.costs_fingerprint,
        "measured_costs": float(problem.costs.measured[problem.graph.kernel].mean()),
    }


def write(found: Fidelity, out: Path, about: dict[str, Any]) -> None:
    """Write fidelity.csv, fidelity.json, and where a plugin draws it fidelity.png, into folder `out`. Raises RunError."""
    rows = io.StringIO()
    csv.writer(rows, lineterminator="\n").writerows(
        ["" if isinstance(x, float) and math.isnan(x) else x for x in row] for row in found.rows()
    )
    kinds = {"all": None, RANDOM: RANDOM, SEARCH: SEARCH}
    data = {
        "program": found.program,
        "cluster": found.cluster,
        **{name: dataclasses.asdict(found.agreement(made)) for name, made in kinds.items()},
        **about,
        "interrupted": found.interrupted,
        "scale": found.scale.tolist(),
        "samples_s": found.samples_s.tolist(),
    }
    try:
        write_atomically(out / CSV, rows.getvalue().encode())
        write_json(out / JSON, data)
        drawn = installed().manager.hook.placekit_draw_fidelity(path=out / PNG, fidelity=found)
    except OSError as e:
        raise RunError(f"cannot write {out}: {e.strerror or e}") from None
    if not drawn:
        print("no figure: no plugin that is installed draws it (pip install placekit-report)")


def show(found: Fidelity) -> None:
    """Print the agreement, and what limits it."""
    rows = []
    for name, made in (("all", None), (RANDOM, RANDOM), (SEARCH, SEARCH)):
        a = found.agreement(made)
        rows.append(
            [
                name,
                f"{a.placements}",
                _correlation(a.pearson, a.pearson_interval),
                _correlation(a.spearman, a.spearman_interval),
                _share(a.mean_error),
                _share(a.bias),
            ]
        )
    table(["placements", "number", "Pearson [95%]", "Spearman [95%]", "mean error", "bias"], rows)
    if len(found.scale) > 1:
        print(f"{len(found.scale)} passes, scaled to one another by {found.scale.min():.3f} to {found.scale.max():.3f}")
    for reason in dict.fromkeys(e for e in found.error if e):
        print(
            f"{found.error.count(reason)} could not be measured and {_be(found.error.count(reason))} left out: {reason}"
        )
    strange = int((found.compared & ~found.simulated_fits).sum())
    if strange:
        print(f"{strange} that ran {_be(strange)} too large for the memory of a device, says the simulator")
    if found.compared.sum() < _FEW:
        print(f"{found.compared.sum()} placements say little of a correlation: 30 are usual")


def _be(number: int) -> str:
    return "is" if number == 1 else "are"


def _share(value: float) -> str:
    return "-" if math.isnan(value) else percent(value)


def _correlation(value: float, interval: tuple[float, float]) -> str:
    if math.isnan(value):
        return "-"
    low, high = interval
    return f"{value:.3f}" if math.isnan(low) else f"{value:.3f} [{low:.2f}, {high:.2f}]"
