"""`placekit apply RUN_DIR`: the placement that a run found, in the form that other code needs."""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

from placekit_core import (
    Backend,
    BackendError,
    ConfigError,
    Placement,
    PlacementError,
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
from placekit_core.contracts.units import percent, seconds
from placekit_core.run.assembly import Assembly
from placekit_core.run.config import RunConfig
from placekit_core.run.run_directory import PLACEMENT, RESULT, load_summary
from placekit_torch import runtimes
from placekit_torch.beside import by_accelerate, run_lines
from placekit_torch.evaluate import own_map
from placekit_torch.export import DeviceMap, device_map, device_names, pipeline
from placekit_torch.fitting import fitting_map
from placekit_torch.forms import Conflict, Form
from placekit_torch.simulated import cost, lines

FORMATS = ("device_map", "pipeline", "vllm", "torchtitan", "megatron", "exo", "llamacpp", "msr", "json")
_SHOWN = 3  # number of modules that a warning names


def main(argv: list[str], registry: Registry) -> int:
    """Print a placement in another form, or write it to `--out`; on standard error, what the form costs and cannot hold."""
    parser = Parser("apply", "The placement that a run found, in the form that other code needs.")
    parser.add_argument("folder", metavar="RUN_DIR", type=Path, help="the run_dir of the run")
    parser.add_argument(
        "--format", default=FORMATS[0], metavar="FORMAT",
        help="device_map: devices of modules (the default); pipeline: the stages of one; vllm, torchtitan, megatron, exo,"
        " llamacpp: layers, as the runtime takes them; msr: a graph file with devices; json: the device of every operation, as"
        " in placement.json",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, metavar="FILE", help="write it to this file instead of printing it")
    arguments = parser.read(argv)
    name, out = arguments.format, arguments.out
    if name not in FORMATS:
        raise unknown("format", name, FORMATS, ConfigError)
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
    """The text of a form. What the form cannot hold, and what it costs, is said on standard error."""
    run, made = _Run(folder, registry), None
    if name != "msr" and "tower" in run.problem.graph.columns:
        raise PlacementError(
            f"a placement of towers is no {name}: every device has the whole module, and a part of the batch",
            "run a process per device under torch.nn.parallel.DistributedDataParallel (docs/data-parallel.md)",
        )
    if name == "device_map":
        made, moved = fitting_map(run.problem, device_map(run.problem, run.placement))
        form = _map_form(run.problem, made, moved)
    else:
        form = run.msr() if name == "msr" else _FORMS[name](run.problem, run.placement)
    _warn_of_conflicts(form)
    for note in form.notes:
        warnings.warn(note, stacklevel=1)
    backend, bound_s, why = run.simulator()
    if backend is None:
        warnings.warn(f"the form is not simulated: {why}", stacklevel=1)
        return form.text
    found = cost(run.problem, backend, form, run.placement, bound_s)
    if found.worse is not None:
        remedy = ""
        if form.conflicts and run.config.grouper["name"] != "module":
            remedy = "; grouper=module places whole modules, and placekit_cuda.PlacedStep trains with this placement"
        warnings.warn(
            f"{name} is {percent(found.worse)} slower than the placement:"
            f" {seconds(found.form_s)} instead of {seconds(found.placed_s)}{remedy}",
            stacklevel=1,
        )
    if why:
        print(console.wrapped(f"simulated by {backend.name!r}: {why}"), file=sys.stderr)
    said = lines(run.problem, name, found)
    if made is not None:
        said += _by_accelerate(run, made, backend)
    for line in said:
        print(console.wrapped(line), file=sys.stderr)
    return form.text


def _by_accelerate(run: _Run, made: DeviceMap, backend: Backend) -> list[str]:
    """What the map costs where accelerate runs it, beside accelerate's own map. Raises PlacementError if it does not fit."""
    found = by_accelerate(run.problem, made.located)
    if found.found is None:
        return [found.why]
    if found.why:
        raise PlacementError(found.why, "place with less memory, or use `--format json`")
    session = backend.open(run.problem)
    try:
        own = own_map(run.problem, backend, session, run.registry)
    finally:
        session.close()
    return [*run_lines(run.problem, found.found), own.line]


def _map_form(problem: Problem, made: DeviceMap, moved: Sequence[str]) -> Form:
    notes = []
    if moved:
        shown = "; ".join(moved[:_SHOWN]) + (f"; and {len(moved) - _SHOWN} more" if len(moved) > _SHOWN else "")
        notes.append(
            f"so that it fits where accelerate runs it, which streams weights through the main device: {shown}"
        )
    others = [n for n, d in zip(problem.cluster.device_names, device_names(problem), strict=True) if d == "cpu"]
    if len(others) > 1:
        notes.append(f"a device_map knows one 'cpu': it is all of {', '.join(others)}")
    if made.loose:
        notes.append(
            f"accelerate.dispatch_model does not move {made.loose[0]!r}, which belongs to a split module; from_pretrained does"
        )
    text = json.dumps(made.devices, indent=1)
    return Form("device_map", text, made.placement, made.conflicts, made.elsewhere, tuple(notes))


def _pipeline(problem: Problem, placement: Placement) -> Form:
    made = pipeline(problem, placement)
    data = {
        "stages": [{"device": stage.device, "begins": stage.begins} for stage in made.stages],
        "split_spec": made.split_spec,
    }
    return Form("pipeline", json.dumps(data, indent=1), made.placement, made.conflicts, made.elsewhere)


def _json(folder: Path) -> str:
    """placement.json with the value of the placement; the result is again a placement file."""
    run, program = _found(folder)[1:]
    value = {"objective": run.objective, "simulated": run.simulated, "value_s": program.value_s}
    return json.dumps({**read_placement(folder / PLACEMENT).model_dump(exclude_unset=True), **value}, indent=1)


_FORMS: dict[str, Callable[[Problem, Placement], Form]] = {
    "pipeline": _pipeline,
    "vllm": runtimes.vllm,
    "torchtitan": runtimes.torchtitan,
    "megatron": runtimes.megatron,
    "exo": runtimes.exo,
    "llamacpp": runtimes.llamacpp,
}


def _warn_of_conflicts(form: Form) -> None:
    conflicts = form.conflicts
    if conflicts:
        shown = "; ".join(map(_conflict, conflicts[:_SHOWN]))
        more = f"; and {len(conflicts) - _SHOWN} more" if len(conflicts) > _SHOWN else ""
        number = "a module" if len(conflicts) == 1 else f"{len(conflicts)} modules"
        splits = all(c.elsewhere < 1 for c in conflicts)
        name = f"a {form.name}" if form.name in ("device_map", "pipeline") else form.name
        what = f"the placement splits {number}, which {name} cannot" if splits else f"{name} moves {number}"
        warnings.warn(
            f"{what}, so {percent(form.elsewhere)} of the step's seconds move to other devices than they were placed on:"
            f" {shown}{more}",
            stacklevel=1,
        )


def _conflict(conflict: Conflict) -> str:
    device = f"GPU {conflict.device}" if isinstance(conflict.device, int) else conflict.device
    return f"{_named([conflict.module])} is on {device} as a whole, {percent(conflict.elsewhere)} of it moves there"


def _named(modules: Sequence[str]) -> str:
    """The first of some modules, and the number of others."""
    first = f"module {modules[0]!r}" if modules[0] else "the network"
    return first if len(modules) == 1 else f"{first} (and {len(modules) - 1} more)"


def _found(folder: Path) -> tuple[Path, Summary, ProgramSummary]:
    """The run directory, its summary, and the program of `folder`. Raises RunError if `folder` has no such placement."""
    for run_dir in (folder, *folder.absolute().parents[:2]):  # DIR, or DIR/programs/NAME of a family
        if os.path.isfile(run_dir / RESULT):
            break
    else:
        runs = sorted(p.parent for p in folder.rglob(RESULT)) if os.path.isdir(folder) else []
        there = f"give one of the {len(runs)} below it, e.g. {runs[0]}" if runs else "give the run_dir of a run"
        raise RunError(f"{folder} is no directory of a run: it has no {RESULT}", there)
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
    """A run: its program, imported again, and its placement.

    Raises RunError if the program or the machine has changed. Only the importer of the run must be installed.
    """

    def __init__(self, folder: Path, registry: Registry) -> None:
        run_dir, summary, self.own = _found(folder)
        self.registry = registry
        with reading(run_dir / RESULT, RunError):
            self.config = checked(summary.config, RunConfig)
        if "programs" in self.config.python_objects:
            raise RunError(
                f"{run_dir} was placed from Python, with programs that only its script has",
                "call placekit_torch.device_map or pipeline there, with result.problem and result.placement; or use"
                " `--format json`",
            )
        self.parts = Assembly(self.config, registry)
        programs = self.parts.programs
        if len(programs) != len(summary.programs):
            raise RunError(f"the importer of {run_dir} gives {len(programs)} programs now, not {len(summary.programs)}")
        self.problem = self._problem(programs[summary.programs.index(self.own)], run_dir)
        for what, now, then in (
            ("program", self.problem.graph.fingerprint, self.own.graph_fingerprint),
            ("machine", self.problem.cluster.fingerprint, summary.cluster_fingerprint),
        ):
            if now != then:
                raise RunError(
                    f"the {what} of {run_dir} has changed since it was placed: fingerprint {now}, it was {then}",
                    "place it again; `--format json` prints the placement as it was found",
                )
        self.placement = load_placement(folder / PLACEMENT, self.problem)

    def _problem(self, program: Program, run_dir: Path) -> Problem:
        try:
            return self.parts.problem(program, grouped=False)  # any grouping's placement fits the finest one
        except BackendError as e:
            raise RunError(
                f"{run_dir} was placed on the machine that backend {self.config.backend['name']!r} found, which is not this"
                f" one: {e.message}",
                "apply it there; `--format json` prints the placement as it was found",
            ) from None

    def msr(self) -> Form:
        """The program with costs, machine and devices, as importer `msr` reads it. Raises PlacekitError."""
        names = self.problem.cluster.device_names
        devices = [names[d] for d in self.problem.expand(self.placement.device).tolist()]
        program = Program(self.problem.graph, self.problem.costs, self.problem.cluster)
        text = self.registry.get("importer", "msr").load().placed_text(program, devices)
        return Form("msr", text.rstrip("\n"), self.placement)

    def simulator(self) -> tuple[Backend | None, float | None, str]:
        """A backend that simulates, a bound that the run has proven for it, and why it is not the run's own.

        It is the run's proxy if its own backend measures; None if there is neither.
        """
        own, why = self._backend("backend")
        if own is not None:
            return own, self.own.bound_s, ""
        proxy, as_well = self._backend("proxy")
        return proxy, None, why if proxy is not None else f"{why}; {as_well}"

    def _backend(self, section: str) -> tuple[Backend | None, str]:
        """The backend that a section of the configuration names, or None and why it cannot simulate."""
        name = getattr(self.config, section)["name"]
        if section in self.config.python_objects:
            return None, f"{section} {name!r} was an object of a Python program"
        try:
            found: Backend = self.parts.build(section)
        except PluginError as e:
            return None, e.message
        return (found, "") if found.simulated else (None, f"{section} {name!r} measures")
