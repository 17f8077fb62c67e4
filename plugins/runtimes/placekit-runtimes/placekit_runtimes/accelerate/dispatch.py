"""`placekit_runtimes.dispatch`: spreads a model over the devices of this computer by the faster of two device maps."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from placekit_torch import Step

import placekit_core
from placekit_core import PlacekitError, Problem, units
from placekit_runtimes.accelerate import RUNTIME
from placekit_runtimes.accelerate.device_map import device_map
from placekit_runtimes.accelerate.fitting import fitted
from placekit_runtimes.accelerate.reading import check_map
from placekit_runtimes.interface import DeviceName
from placekit_runtimes.layers import device_numbers

OURS, DEFAULT = "placekit", "accelerate"


@dataclass(frozen=True)
class Candidate:
    """A device map and its cost.

    Attributes:
        devices: devices by module.
        simulated_s: simulated seconds of a forward pass in accelerate; None if the map cannot be simulated.
        measured_s: median seconds of a forward pass in each turn, on the devices; empty if nothing was measured.
        why: why the map was not simulated or measured, or failed.
    """

    devices: Mapping[str, DeviceName]
    simulated_s: float | None = None
    measured_s: tuple[float, ...] = ()
    why: str = ""

    @property
    def text(self) -> str:
        """The seconds as text."""
        parts = [f"simulated {units.seconds(self.simulated_s)}"] if self.simulated_s is not None else []
        if self.measured_s:
            parts.append(f"measured {units.seconds(min(self.measured_s))} to {units.seconds(max(self.measured_s))}")
        return ", ".join([*parts, *([self.why] if self.why else [])])


@dataclass(frozen=True)
class DispatchReport:
    """The maps that `dispatch` compared, and its choice. `print(report)` shows it.

    Attributes:
        devices: names of the machine's devices.
        candidates: the maps of `placekit` and `accelerate`; a single one if the machine has a single device.
        chosen: the name of the chosen map.
        dispatched: whether the model was moved; False if the machine's devices are not on this computer.
        note: one sentence about the choice.
    """

    devices: tuple[str, ...]
    candidates: Mapping[str, Candidate] = field(default_factory=dict)
    chosen: str = ""
    dispatched: bool = False
    note: str = ""

    def __str__(self) -> str:
        lines = [f"devices: {', '.join(self.devices)}"]
        lines += [f"{name}: {c.text}" for name, c in self.candidates.items()]
        return "\n".join([*lines, self.note])


def dispatch(
    model: torch.nn.Module,
    example: Any,
    *,
    cluster: Any = "auto",
    policy: Any = None,
    budget: Any = None,
    turns: int = 3,
    calls: int = 5,
    seed: int = 0,
) -> tuple[torch.nn.Module, DispatchReport]:
    """Put a model on the devices of this computer, for inference, by the faster of two device maps.

    One map is placekit's, the other is that of `device_map="auto"`. Both are simulated as accelerate runs them. If this computer
    has the machine's GPUs, both are also measured, in turns, so that disturbances affect both; the faster one stays.

    Args:
        model: the model, with its weights; it is moved, not copied.
        example: its arguments, as `Step.inputs`.
        cluster: the machine, as for `placekit_core.place`; `auto` is this computer.
        policy, budget: how to place, as for `placekit_core.place`.
        turns: how often each map is measured.
        calls: forward passes per turn; their median counts.
        seed: seed of the placement.

    Returns the model and a report. With a single device, the whole model is put there.

    Raises PlacekitError if the model cannot be imported or does not fit, or if accelerate is needed and not installed.
    """
    options = {"cluster": cluster, "policy": policy, "budget": budget, "seed": seed}
    here = Here(model, example, calls)
    source = Step(model, example)
    result = placekit_core.place(source, mode="inference", **options)
    if result.placement is None:
        raise PlacekitError(
            f"no placement of {type(model).__name__} on {result.problem.cluster.name} was found",
            "use a machine with more memory, or a smaller model",
        )
    problem, names = result.problem, device_numbers(result.problem)
    devices = problem.cluster.device_names
    if problem.cluster.size == 1:
        return _single(here, problem, names[0])
    made = fitted(problem, device_map(problem, result.placement))
    candidates = {OURS: _simulated(problem, made.devices)}
    candidates[DEFAULT] = _default(source, options, here, problem)
    missing = [name for name in names if isinstance(name, int) and name >= here.gpus]
    if missing:
        chosen = _fastest({n: c.simulated_s for n, c in candidates.items()})
        note = f"not dispatched: this computer has no GPU {missing[0]}; in the simulation, {chosen} is faster"
        return model, DispatchReport(devices, candidates, chosen, False, note)
    candidates = here.in_turns(candidates, turns)
    chosen = _fastest({n: min(c.measured_s, default=None) for n, c in candidates.items()})
    here.put(candidates[chosen].devices)
    note = f"dispatched by the map of {chosen}: the fastest median in {turns} turns of {calls} forward passes each"
    return model, DispatchReport(devices, candidates, chosen, True, note)


class Here:
    """A model on the devices of this computer.

    Attributes:
        gpus: the number of GPUs that torch sees.
    """

    def __init__(self, model: torch.nn.Module, example: Any, calls: int) -> None:
        self.model, self.calls = model, calls
        self.args, self.kwargs = Step(model, example).arguments
        self.gpus = torch.cuda.device_count()
        self._hooked = False

    def in_turns(self, candidates: Mapping[str, Candidate], turns: int) -> dict[str, Candidate]:
        """The candidates with their measurements; later turns leave out candidates that fail."""
        measured: dict[str, list[float]] = {name: [] for name in candidates}
        why = {name: c.why for name, c in candidates.items()}
        for _ in range(turns):
            for name, c in candidates.items():
                if not why[name]:
                    try:
                        self.put(c.devices)
                        measured[name].append(self.seconds())
                    except (RuntimeError, ValueError) as e:  # out of memory; tensors on different devices
                        why[name] = f"failed: {str(e).strip().partition(chr(10))[0]}"
        if all(why.values()):
            raise PlacekitError("; ".join(f"the map of {name} {text}" for name, text in why.items()))
        return {n: Candidate(c.devices, c.simulated_s, tuple(measured[n]), why[n]) for n, c in candidates.items()}

    def put(self, devices: Mapping[str, DeviceName]) -> None:
        """Dispatch the model by a map, also if another map was dispatched before."""
        accelerate = _accelerate()
        if self._hooked:
            accelerate.hooks.remove_hook_from_submodules(self.model)
            self.model.to("cpu")
        self._hooked = True
        accelerate.dispatch_model(self.model, device_map=dict(devices), force_hooks=True)

    def to(self, name: DeviceName) -> None:
        """Put the whole model on one device."""
        self.model.to(f"cuda:{name}" if isinstance(name, int) else name)
        device = next(iter(self.model.parameters()), torch.empty(0)).device
        move = torch.utils._pytree.tree_map_only
        self.args, self.kwargs = move(torch.Tensor, lambda t: t.to(device), (self.args, self.kwargs))

    def seconds(self) -> float:
        """Median seconds of a forward pass, after a warm-up."""
        found = []
        training = self.model.training
        self.model.eval()
        try:
            with torch.no_grad():
                for _ in range(self.calls + 1):
                    self._wait()
                    start = time.perf_counter()
                    self.model(*self.args, **self.kwargs)
                    self._wait()
                    found.append(time.perf_counter() - start)
        finally:
            self.model.train(training)
        return statistics.median(found[1:])

    def _wait(self) -> None:
        for i in range(self.gpus):
            torch.cuda.synchronize(i)


def _single(here: Here, problem: Problem, name: DeviceName) -> tuple[torch.nn.Module, DispatchReport]:
    """The model on the only device of a machine, measured there if the device is here."""
    [device] = problem.cluster.device_names
    value_s = RUNTIME.cost(problem, check_map(problem, {"": name}, "the map")).value_s
    if isinstance(name, int) and name >= here.gpus:
        only = Candidate({"": name}, value_s)
        note = f"not dispatched: this computer lacks {device}, the machine's only device"
        return here.model, DispatchReport((device,), {OURS: only}, OURS, False, note)
    here.to(name)
    only = Candidate({"": name}, value_s, (here.seconds(),))
    note = f"the whole model is on {device}, the only device"
    return here.model, DispatchReport((device,), {OURS: only}, OURS, True, note)


def _simulated(problem: Problem, devices: Mapping[str, DeviceName]) -> Candidate:
    """A map as accelerate would run it."""
    try:
        cost = RUNTIME.cost(problem, check_map(problem, devices, "the map"))
    except PlacekitError as e:
        return Candidate(devices, None, (), e.message)
    return Candidate(devices, None if cost.error else cost.value_s, (), cost.error)


def _default(source: Step, options: Mapping[str, Any], here: Here, problem: Problem) -> Candidate:
    """accelerate's own map: by accelerate if the GPUs are here, else by the rule in policy `accelerate_auto`."""
    names = device_numbers(problem)
    gpus = {name: bytes_ for name, bytes_ in zip(names, problem.cluster.memory_bytes, strict=True) if name != "cpu"}
    if gpus and max(n for n in gpus if isinstance(n, int)) < here.gpus:
        utils = _accelerate().utils
        paths = problem.graph.attributes.get("unsplit", ())
        whole = sorted({type(source.module.get_submodule(path)).__name__ for path in paths})
        memory = {n: int(b) for n, b in zip(names, problem.cluster.memory_bytes, strict=True)}
        memory = utils.get_balanced_memory(source.module, max_memory=memory, no_split_module_classes=whole)
        return _simulated(problem, utils.infer_auto_device_map(source.module, memory, no_split_module_classes=whole))
    try:
        found = placekit_core.place(
            source, mode="inference", **{**options, "policy": "accelerate_auto", "budget": None}
        )
    except PlacekitError as e:
        return Candidate({}, None, (), e.message)
    assert found.placement is not None
    return _simulated(found.problem, device_map(found.problem, found.placement).devices)


def _fastest(seconds: Mapping[str, float | None]) -> str:
    known = {name: s for name, s in seconds.items() if s is not None}
    return min(known or {OURS: 0.0}, key=lambda name: known.get(name, 0.0))


def _accelerate() -> Any:
    try:
        import accelerate
        import accelerate.hooks
        import accelerate.utils
    except ImportError as e:
        raise PlacekitError(
            f"dispatching over several devices needs accelerate, which cannot be imported: {e}",
            "pip install accelerate",
        ) from None
    return accelerate
