"""`placekit fidelity`: compares simulated with measured seconds of placements."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import io
import math
import shlex
from pathlib import Path
from typing import Any

from placekit_core import BackendError, ConfigError, Registry, RunError, write_atomically
from placekit_core.cli.compose import assembled
from placekit_core.cli.console import table
from placekit_core.cli.parser import Parser
from placekit_core.contracts.files import write_json
from placekit_core.contracts.units import percent
from placekit_core.run.assembly import Assembly, distributions
from placekit_inspect.agreement import RANDOM, SEARCH, Fidelity, compare
from placekit_inspect.cluster_profile import add_number, new_folder, out_dir

_LEAST, _FEW = 4, 10
CSV, JSON = "fidelity.csv", "fidelity.json"


def main(argv: list[str], registry: Registry) -> int:
    """Simulate on `backend@proxy`, measure on `backend`, print the agreement, and write the results."""
    what = "How well the simulator predicts the measurements of a backend, over good and random placements."
    parser = Parser("fidelity", what, options=True)
    add_number(parser, "--placements", 30, "placements to compare", _LEAST)
    add_number(parser, "--passes", 9, "measurements of each placement")
    parser.add_argument("out", metavar="OUT_DIR", type=Path, help=f"a new folder, for {CSV} and {JSON}")
    arguments = parser.read(argv)
    out = out_dir(arguments.out)
    parts = assembled(arguments.options, registry)
    about: dict[str, Any] = {
        "command": shlex.join(["placekit", "fidelity", *argv]),
        "seed": parts.config.seed,
        "passes": arguments.passes,
        "versions": registry.versions(distributions(parts.config, registry)),
    }
    with new_folder(out):
        found = measured(parts, arguments.placements, arguments.passes, about)
        show(found)
        write(found, out, about)
    print(f"written to {out}")
    return 0


def measured(parts: Assembly, placements: int, passes: int, about: dict[str, Any]) -> Fidelity:
    """Compare placements of one program on both backends. Raises PlacekitError.

    Adds to `about` the hardware that measured, and the share of the simulated costs that were measured.
    """
    backend, proxy = parts.backend, parts.proxy
    if backend.simulated:
        raise BackendError(
            f"backend {backend.name!r} does not measure",
            "choose a backend that measures; `placekit plugins` lists them",
        )
    if not proxy.simulated:
        raise ConfigError(
            f"the proxy {proxy.name!r} does not simulate", "leave out backend@proxy, or choose a simulator"
        )
    if backend.objective != proxy.objective:
        raise ConfigError(
            f"backend {backend.name!r} gives the {backend.objective}, but the proxy {proxy.name!r} the {proxy.objective}",
            "choose a proxy for the same objective, such as backend@proxy=simulator",
        )
    program = parts.one_program("this comparison")
    problem = parts.problem(program)
    about["measured_on"] = backend.hardware()
    about["measured_costs"] = float(problem.costs.measured[problem.graph.kernel].mean())
    with (
        contextlib.closing(backend.open(problem, program.executable)) as machine,
        contextlib.closing(proxy.open(problem, program.executable)) as simulator,
    ):
        return compare(problem, simulator, machine, placements, passes, parts.streams("fidelity"))


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
        "scale": found.scale.tolist(),
        "samples_s": found.samples_s.tolist(),
    }
    try:
        write_atomically(out / CSV, rows.getvalue().encode())
        write_json(out / JSON, data)
    except OSError as e:
        raise RunError(f"cannot write {out}: {e.strerror or e}", "choose another folder") from None


def show(found: Fidelity) -> None:
    """Print the agreement, and the limits of the comparison."""
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
        print(f"{strange} ran, although {_be(strange)} too large for a device's memory in the simulator")
    if found.compared.sum() < _FEW:
        print(f"{found.compared.sum()} placements are too few to judge a correlation: 30 are usual")


def _be(number: int) -> str:
    return "is" if number == 1 else "are"


def _share(value: float) -> str:
    return "-" if math.isnan(value) else percent(value)


def _correlation(value: float, interval: tuple[float, float]) -> str:
    if math.isnan(value):
        return "-"
    low, high = interval
    return f"{value:.3f}" if math.isnan(low) else f"{value:.3f} [{low:.2f}, {high:.2f}]"
