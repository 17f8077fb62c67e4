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

from placekit_core import BackendError, ConfigError, Problem, Registry, RunError, write_atomically
from placekit_core.cli.compose import assembled
from placekit_core.cli.console import table
from placekit_core.contracts.files import write_json
from placekit_core.contracts.units import percent
from placekit_core.run.assembly import Assembly, distributions
from placekit_inspect.agreement import RANDOM, SEARCH, Fidelity, compare
from placekit_inspect.cluster_profile import new_folder, out_dir
from placekit_inspect.number_options import Number, NumbersParser

_LEAST, _FEW = 4, 10
CSV, JSON = "fidelity.csv", "fidelity.json"


def main(argv: list[str], registry: Registry) -> int:
    """Simulate on `backend@proxy`, measure on `backend`, print how they agree, and write the results."""
    parser = NumbersParser(
        "fidelity",
        "How well the simulator predicts what a backend measures, over good and random placements.",
        {
            "placements": Number(30, "how many placements are compared", _LEAST),
            "passes": Number(9, "how often each of them is measured"),
        },
    )
    parser.add_argument("out", metavar="OUT_DIR", type=Path, help=f"a new folder, for {CSV} and {JSON}")
    arguments = parser.read(argv)
    out = out_dir(arguments.out)
    placements, passes = arguments.numbers["placements"], arguments.numbers["passes"]
    parts = assembled(arguments.options, registry)
    about: dict[str, Any] = {
        "command": shlex.join(["placekit", "fidelity", *argv]),
        "seed": parts.config.seed,
        "passes": passes,
        "load_before": os.getloadavg()[0],
        "versions": registry.versions(distributions(parts.config, registry)),
        "config": parts.config.model_dump(mode="json"),
    }
    with new_folder(out):
        found = measured(parts, placements, passes, about)
        show(found)
        write(found, out, about)
    print(f"written to {out}")
    if found.interrupted:
        raise KeyboardInterrupt
    return 0


def measured(parts: Assembly, placements: int, passes: int, about: dict[str, Any]) -> Fidelity:
    """Compare placements of the one named program on both backends. Raises PlacekitError.

    Adds to `about` the hardware that measured, and fingerprints of the simulated machine and costs.
    """
    backend, proxy = parts.backend, parts.proxy
    if backend.simulated:
        raise BackendError(
            f"backend {backend.name!r} measures nothing",
            "choose a backend that measures; `placekit plugins` lists them",
        )
    if not proxy.simulated:
        raise ConfigError(
            f"the proxy {proxy.name!r} simulates nothing", "leave out backend@proxy, or choose a simulator"
        )
    if backend.objective != proxy.objective:
        raise ConfigError(
            f"backend {backend.name!r} gives the {backend.objective}, and the proxy {proxy.name!r} the {proxy.objective}",
            "choose a proxy for the same objective, such as backend@proxy=simulator",
        )
    program = parts.one_program("this comparison")
    problem = parts.problem(program)
    about |= {"measured_on": backend.hardware(), **_simulated(problem)}
    machine = backend.open(problem, program.executable)
    try:
        simulator = proxy.open(problem, program.executable)
        try:
            return compare(problem, simulator, machine, placements, passes, parts.streams("fidelity"))
        finally:
            simulator.close()
    finally:
        machine.close()


def _simulated(problem: Problem) -> dict[str, Any]:
    """Fingerprints of the simulated machine and costs, and the share of the costs that was measured."""
    return {
        "cluster_fingerprint": problem.cluster.fingerprint,
        "problem_fingerprint": problem.fingerprint,
        "costs_fingerprint": problem.costs_fingerprint,
        "measured_costs": float(problem.costs.measured[problem.graph.kernel].mean()),
    }


def write(found: Fidelity, out: Path, about: dict[str, Any]) -> None:
    """Write fidelity.csv and fidelity.json into folder `out`. Raises RunError."""
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
    except OSError as e:
        raise RunError(f"cannot write {out}: {e.strerror or e}") from None


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
        print(f"{strange} that ran {_be(strange)} too large for a device's memory, according to the simulator")
    if found.compared.sum() < _FEW:
        print(f"{found.compared.sum()} placements say little about a correlation: 30 are usual")


def _be(number: int) -> str:
    return "is" if number == 1 else "are"


def _share(value: float) -> str:
    return "-" if math.isnan(value) else percent(value)


def _correlation(value: float, interval: tuple[float, float]) -> str:
    if math.isnan(value):
        return "-"
    low, high = interval
    return f"{value:.3f}" if math.isnan(low) else f"{value:.3f} [{low:.2f}, {high:.2f}]"
