"""`placekit apply RUN_DIR`: writes the placement of a run for runtimes and other programs."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from placekit_core import (
    Backend,
    BackendError,
    ConfigError,
    Placement,
    PlacementError,
    Placements,
    PluginError,
    Problem,
    Program,
    ProgramSummary,
    Registry,
    RunError,
    Summary,
    load_placement,
    unknown,
    write_atomically,
)
from placekit_core.cli import console
from placekit_core.cli.parser import Parser
from placekit_core.contracts.files import checked, reading
from placekit_core.contracts.placement_file import read_placement
from placekit_core.contracts.units import format_value, percent, seconds
from placekit_core.run.assembly import Assembly
from placekit_core.run.config import RunConfig
from placekit_core.run.run_directory import PLACEMENT, RESULT, load_summary
from placekit_runtimes import runtime, runtimes
from placekit_runtimes.accelerate import Accelerate
from placekit_runtimes.interface import Runtime, RuntimeCost, RuntimeMap, lacking_memory, memory_text, warn_of

OWN_MAP = "accelerate's own map"
_WORSE = 1e-3  # a map that is slower by a smaller share counts as equally fast
_JSON = "`--format json` prints the placement as it was found"


def main(argv: list[str], registry: Registry) -> int:
    """Print a placement in another form, or write it to `--out`. Its costs and warnings go to standard error."""
    formats = (*runtimes(), "msr", "json")
    parser = Parser("apply", "The placement that a run found, in the form that other code needs.")
    parser.add_argument("folder", metavar="RUN_DIR", type=Path, help="the run_dir of the run")
    parser.add_argument(
        "--format", default=formats[0], metavar="FORMAT",
        help="device_map (the default): a device for each module; pipeline: stages of modules; msr: a graph file with devices;"
        " json: the device of each operation, as in placement.json; for a runtime, the device of each layer: "
        + ", ".join(f for f in formats if f not in ("device_map", "pipeline", "msr", "json")),
    )  # fmt: skip
    parser.add_argument("--out", type=Path, metavar="FILE", help="write it to this file instead of printing it")
    arguments = parser.read(argv)
    name, out = arguments.format, arguments.out
    if name not in formats:
        raise unknown("format", name, formats, ConfigError)
    text = _json(arguments.folder) if name == "json" else _evaluated(name, arguments.folder, registry)
    if out is None:
        print(text)
        return 0
    try:
        write_atomically(out, f"{text}\n".encode())
    except OSError as e:
        raise RunError(f"cannot write {out}: {e.strerror or e}", "choose another: --out FILE") from None
    return 0


def _evaluated(name: str, folder: Path, registry: Registry) -> str:
    """The text of a map. Its costs and warnings go to standard error."""
    run = _Run(folder, registry)
    if name == "msr":
        found, made = None, run.msr()
    else:
        if "tower" in run.problem.graph.columns:
            raise PlacementError(
                f"--format {name} cannot express data parallelism: every device has the whole module and a part of the batch",
                "run a process per device under torch.nn.parallel.DistributedDataParallel (docs/training.md)",
            )
        found = runtime(name)
        try:
            written: Any = found.write(run.problem, run.placement)
        except PlacementError as e:
            backend, _, _ = run.simulator()
            if backend is None:
                raise
            advice = e.hint.partition("; ")[2]
            used = "policy=chain" in advice and run.config.policy["name"] == "chain"
            way = _way_out(run, name, backend)
            raise PlacementError(e.message, way.replace(_JSON, advice) if advice and not used else way) from None
        if not isinstance(written, RuntimeMap):
            returned = f"{type(found).__name__}.write returned a {type(written).__name__}"
            raise PluginError(f"runtime {name!r} is broken: {returned}, not a RuntimeMap", "see Stages.map")
        made = written
    warn_of(name, made)
    backend, bound_s, why = run.simulator()
    if backend is None:
        warnings.warn(f"the map is not simulated: {why}", stacklevel=1)
        return made.text
    lines = [] if not why else [f"simulated by {backend.name!r}: {why}"]
    lines += _simulated(run, name, made, backend, bound_s)
    lines += [] if found is None else _by_runtime(run, found, made)
    for line in lines:
        print(console.wrapped(line), file=sys.stderr)
    return made.text


def _simulated(run: _Run, name: str, made: RuntimeMap, backend: Backend, bound_s: float | None) -> list[str]:
    """Lines with the values of the map and of the placement, and the map's memory. Warns if the map is slower.

    Raises PlacementError if the map cannot run or does not fit, with the bytes that each full device needs.
    """
    problem, both = run.problem, (made.placement, run.placement)
    session = backend.open(problem)
    try:
        priority = None if run.placement.priority is None else np.stack([run.placement.priority] * 2)
        measured = session.evaluate(Placements(np.stack([p.device for p in both]), priority))
        own_s, bound_s = bound_s, session.lower_bound() if bound_s is None else bound_s
    finally:
        session.close()
    if measured.error[0] is not None:
        raise PlacementError(
            f"as {name} this placement does not run: {measured.error[0]}", _way_out(run, name, backend)
        )
    if lacking := lacking_memory(problem, measured.peak_bytes[0]):
        raise PlacementError(f"as {name} this placement does not fit: {lacking}", _way_out(run, name, backend))
    map_s = float(measured.value_s[0])
    placed_s = float(measured.value_s[1]) if measured.error[1] is None else math.nan
    shown_map, shown_placed = (format_value(value_s, backend.unit) for value_s in (map_s, placed_s))
    if placed_s > 0 and map_s / placed_s - 1 > _WORSE:
        remedy = ""
        if made.conflicts and run.config.grouper["name"] != "module":
            remedy = "; grouper=module places whole modules, and placekit_cuda.PlacedStep runs this placement as it is"
        warnings.warn(
            f"{name} is {percent(map_s / placed_s - 1)} {'slower' if backend.unit == 's' else 'worse'} than the placement:"
            f" {shown_map} instead of {shown_placed}{remedy}",
            stacklevel=1,
        )
    values = [f"{shown_map} as {name}", f"{shown_placed} as placed"]
    if bound_s is not None:
        groups = "" if own_s is None or run.own.groups == problem.g else f" for the run's {run.own.groups} groups"
        values.append(f"proven bound {format_value(bound_s, backend.unit)}{groups}")
    return [f"{backend.objective}: {', '.join(values)}", f"peak memory: {memory_text(problem, measured.peak_bytes[0])}"]


def _way_out(run: _Run, name: str, backend: Backend) -> str:
    """A hint for a format that does not run or fit: the formats that do, or a policy that the run did not use."""
    works, session = [], backend.open(run.problem)
    try:
        for other in [r for r in runtimes() if r != name]:
            with contextlib.suppress(Exception):  # one of another package may be broken
                made = runtime(other).write(run.problem, run.placement)
                measured = session.evaluate(made.placement.batch())
                if measured.error[0] is None and not lacking_memory(run.problem, measured.peak_bytes[0]):
                    works.append(other)
    finally:
        session.close()
    if works:
        return f"`--format {' or '.join(filter(None, [', '.join(works[:-1]), works[-1]]))}` can express it; {_JSON}"
    chain = "place it for this runtime, e.g. policy=chain for stages; " if run.config.policy["name"] != "chain" else ""
    return f"{chain}{_JSON}"


def _by_runtime(run: _Run, found: Runtime, made: RuntimeMap) -> list[str]:
    """Lines about the cost of the map in its runtime, and about accelerate's own map. Warns if one device is faster.

    Raises PlacementError if the map does not fit.
    """
    problem = run.problem
    cost = found.cost(problem, made)
    if cost is None:
        return []
    if cost.value_s is None:
        return [cost.error]
    if cost.error:
        raise PlacementError(cost.error, "place on devices with more memory, or use `--format json`")
    names, used = problem.cluster.device_names, problem.expand(made.placement.device)[problem.graph.kernel]
    here = {names[d] for d in np.unique(used)}
    others = [b for b in run.own.baselines if b.device and b.fits and {b.device} != here and run.own.unit == "s"]
    alone = [b for b in others if b.value_s and b.value_s * (1 + _WORSE) < cost.value_s]
    for b in sorted(alone, key=lambda b: b.value_s or 0.0)[:1]:
        map_s = f"{cost.text} of this map, run by {found.title}"
        warnings.warn(f"{b.device} alone takes {seconds(b.value_s or 0.0)}, less than the {map_s}", stacklevel=1)
    lines = [*cost.details]
    if isinstance(found, Accelerate):
        name = found.default_rule.name
        as_baseline = [b for b in run.own.baselines if b.policy == name and b.value_s]
        lines.append(own_map_line(*found.own_cost(problem)))
        for b in as_baseline:  # the run has shown this number
            value = format_value(b.value_s or 0.0, run.own.unit)
            lines[-1] += f", {value} in the machine model (baseline {name})"
    return lines


def own_map_line(placement: Placement | None, cost: RuntimeCost) -> str:
    """A line about the map that accelerate would choose, or about why it chooses none."""
    if placement is None:
        return f"{OWN_MAP} is not compared: {cost.error}"
    return f"{OWN_MAP}: {cost.text} run by accelerate" + (f" ({cost.error})" if cost.error else "")


def _json(folder: Path) -> str:
    """placement.json with the value of the placement added; it stays a placement file."""
    run, program = _found(folder)[1:]
    value = {"objective": run.objective, "simulated": run.simulated, "value_s": program.value_s}
    return json.dumps({**read_placement(folder / PLACEMENT).model_dump(exclude_unset=True), **value}, indent=1)


def _found(folder: Path) -> tuple[Path, Summary, ProgramSummary]:
    """The run directory, its summary, and the program of `folder`. Raises RunError if `folder` has no such placement."""
    if os.path.isfile(folder):
        raise RunError(f"{folder} is a file", f"give the directory of the run: {folder.parent}")
    for run_dir in (folder, *folder.absolute().parents[:2]):  # DIR, or DIR/programs/NAME of a family
        if os.path.isfile(run_dir / RESULT):
            break
    else:
        runs = sorted(p.parent for p in folder.rglob(RESULT)) if os.path.isdir(folder) else []
        there = f"give one of the {len(runs)} below it, e.g. {runs[0]}" if runs else "give the run_dir of a run"
        raise RunError(f"{folder} is not the directory of a run: it has no {RESULT}", there)
    summary = load_summary(run_dir)
    one = len(summary.programs) == 1
    own = [p for p in summary.programs if (run_dir / p.directory).resolve() == folder.resolve()]
    if not own:
        places = [str(run_dir / p.directory) for p in summary.programs]
        raise RunError(
            f"{folder} holds no program" if one or run_dir != folder else f"{folder} holds {len(places)} programs",
            f"give the directory of one, e.g. {places[0]}",
        )
    if own[0].value_s is None:
        raise RunError(
            f"the run in {run_dir} found no placement of {own[0].program!r} that fits"
            if own[0].error is None
            else f"the run in {run_dir} could not measure a placement of {own[0].program!r}: {own[0].error}",
            "there is nothing to apply",
        )
    return run_dir, summary, own[0]


class _Run:
    """A run: its placement, and its program, which is imported again.

    Raises RunError if the program or the machine has changed. Of the run's plugins, only the importer must be installed.
    """

    def __init__(self, folder: Path, registry: Registry) -> None:
        run_dir, summary, self.own = _found(folder)
        self.registry = registry
        with reading(run_dir / RESULT, RunError):
            self.config = checked(summary.config, RunConfig)
        if "programs" in self.config.python_objects:
            raise RunError(
                f"{run_dir} was placed from Python, and only that script has its programs",
                "call placekit_runtimes.device_map or pipeline there, with result.problem and result.placement; or use"
                " `--format json`",
            )
        self.parts = Assembly(self.config, registry)
        programs = self.parts.programs
        if len(programs) != len(summary.programs):
            raise RunError(
                f"the importer of {run_dir} gives {len(programs)} programs now, not {len(summary.programs)}",
                f"place it again; {_JSON}",
            )
        self.problem = self._problem(programs[summary.programs.index(self.own)], run_dir)
        for what, now, then in (
            ("program", self.problem.graph.fingerprint, self.own.graph_fingerprint),
            ("machine", self.problem.cluster.fingerprint, summary.cluster_fingerprint),
        ):
            if now != then:
                raise RunError(
                    f"the {what} of {run_dir} has changed since it was placed: its fingerprint was {then} and is {now}",
                    f"place it again; {_JSON}",
                )
        self.placement = load_placement(folder / PLACEMENT, self.problem)

    def _problem(self, program: Program, run_dir: Path) -> Problem:
        try:
            return self.parts.problem(program, grouped=False)  # any grouping's placement fits the finest one
        except BackendError as e:
            raise RunError(
                f"{run_dir} was placed on another machine, which backend {self.config.backend['name']!r} found there:"
                f" {e.message}",
                f"apply it there; {_JSON}",
            ) from None

    def msr(self) -> RuntimeMap:
        """The program with costs, machine and devices, as importer `msr` reads it. Raises PlacekitError."""
        names = self.problem.cluster.device_names
        devices = [names[d] for d in self.problem.expand(self.placement.device).tolist()]
        program = Program(self.problem.graph, self.problem.costs, self.problem.cluster)
        text = self.registry.get("importer", "msr").load().placed_text(program, devices)
        return RuntimeMap(text.rstrip("\n"), self.placement)

    def simulator(self) -> tuple[Backend | None, float | None, str]:
        """The run's backend, or its proxy if the backend measures; the run's bound; and why it is not the run's backend.

        The backend is None if neither can simulate.
        """
        own, why = self._backend("backend")
        if own is not None:
            return own, self.own.bound_s, ""
        proxy, as_well = self._backend("proxy")
        return proxy, None, why if proxy is not None else f"{why}; {as_well}"

    def _backend(self, section: str) -> tuple[Backend | None, str]:
        """The simulator in a section of the configuration; or None, and why it cannot simulate."""
        name = getattr(self.config, section)["name"]
        if section in self.config.python_objects:
            return None, f"{section} {name!r} was an object of a Python program"
        try:
            found: Backend = self.parts.build(section)
        except PluginError as e:
            return None, e.message
        return (found, "") if found.simulated else (None, f"{section} {name!r} measures")
