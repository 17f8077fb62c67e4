"""A training step that runs under a placement, for a training loop in Python.

Parameters, buffers and the optimiser's state live on their devices from step to step; inputs go in, the loss comes out.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from placekit_core import (
    PLACEMENT_FILE,
    Assignment,
    Executable,
    Graph,
    Grouping,
    PlacekitError,
    Placement,
    PlacementError,
    ProgramResult,
    Result,
    load_assignment,
    load_programs,
)
from placekit_cuda.engine import Engine, Tensors
from placekit_cuda.machine import CPUMachine, Machine, copied
from placekit_cuda.plan import plan, priorities

_ROUNDING_ONLY = frozenset({"params", "foreach", "fused", "capturable", "differentiable"})
"""Entries of an optimiser's parameter group that change its results by rounding only."""


class PlacedStep:
    """A training step of `module` under a placement. Call it for each batch::

        result = placekit_core.place(module, inputs=x, targets=y, loss=loss, optimizer=Adam, cluster="h200x8")
        with PlacedStep(module, Adam, loss, result, inputs=x, targets=y) as step:
            for x, y in batches:
                value = step(x, y)
            step.copy_to(module)

    Under any placement, its results equal those on one device to the last bit (on GPUs, if torch's kernels are deterministic:
    `torch.use_deterministic_algorithms`). It begins with the values of `module`, which it does not change before `copy_to`,
    and with a new optimiser. Shapes, learning rates and other settings that are Python numbers are fixed when the step is
    traced.

    Args:
        module, optimizer, loss, inputs, targets: as in `placekit_core.place`; `inputs` and `targets` are examples.
        placement: a result of `place`, a placement that it found, a run directory, or a `placement.json`.
        machine: the devices that the placement is for; the caller closes it. None: threads of this process.
        timeout_s: seconds after which a step counts as hanging; None: never.

    Raises:
        PlacekitError: the step cannot be imported, or the placement is for another step.

    Attributes:
        steps: number of steps done so far. It seeds the random operations: set it when you continue from a checkpoint.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        optimizer: Callable[[Any], torch.optim.Optimizer],
        loss: Callable[..., Any] | None,
        placement: Result | ProgramResult | Placement | str | Path,
        *,
        inputs: Any,
        targets: Any = (),
        machine: Machine | None = None,
        timeout_s: float | None = None,
    ) -> None:
        if optimizer is None:
            raise PlacekitError("a training step needs an optimizer", "give a function of a list of parameters")
        about = {"inputs": inputs, "targets": targets, "loss": loss, "optimizer": optimizer}
        [program] = load_programs(module, **about)
        assert program.executable is not None, "importers of modules know how to run them"
        self.steps = 0
        self._module, self._optimizer, self._timeout_s = module, optimizer, timeout_s
        graph, executable = self._graph, self._executable = program.graph, program.executable
        where = self._where = _by_operation(placement, graph)
        if machine is not None and not isinstance(machine, Machine):
            raise PlacekitError(
                f"machine={machine!r} is not a machine", "give placekit_cuda.cuda.CUDAMachine(gpus), or leave it out"
            )
        if machine is not None and machine.size != len(where.devices):
            raise PlacekitError(
                f"the placement is for {len(where.devices)} devices, but the machine has {machine.size}",
                "give a machine with the devices of the placement",
            )
        initial = executable.initial()
        self._arguments = _Arguments(graph, initial, inputs, targets)
        self._tensor = {graph.op_name[v]: graph.outputs(v)[0] for v in np.flatnonzero(~graph.kernel).tolist()}
        self._state: dict[str, dict[str, int]] = {}  # the optimiser's, by parameter and key
        for name in (graph.op_name[v] for v in np.flatnonzero(graph.op_type.is_value("state"))):
            owner, _, key = name.rpartition("/")
            self._state.setdefault(owner, {})[key] = self._tensor[name]
        self._names = {key: self._tensor[own] for key, own in _own_names(module) if own in self._tensor}
        self._owns_machine = machine is None
        machine = machine or CPUMachine(len(where.devices))
        self._machine: Machine | None = machine
        if self._owns_machine:
            weakref.finalize(self, machine.close)
        self._engine = _engine(graph, executable, where, machine)
        self._sources: list[Tensors] = [{} for _ in where.devices]
        self._put(initial)

    def __call__(self, inputs: Any, targets: Any = ()) -> torch.Tensor:
        """Do one step, and return the loss before it.

        `inputs` and `targets` have the nesting, shapes and types of the examples; others raise PlacekitError. An exception
        of an operation is raised unchanged. A step that fails changes nothing.
        """
        if self._machine is None:
            raise PlacekitError("this step is closed", "make another one")
        self._put(self._arguments.values(inputs, targets))
        kept = self._engine.run(self._sources, self.steps, "dynamic", self._timeout_s).kept
        for old, new in self._executable.updates.items():
            self._sources[self._device(old)][old] = kept[new]
        self.steps += 1
        loss: torch.Tensor = self._executable.result("loss", kept)
        return loss

    @property
    def devices(self) -> dict[str, str]:
        """Name of the device on which each parameter, buffer and tensor of the optimiser's state (`NAME/KEY`) lives."""
        return {name: self._where.devices[self._device(t)] for name, t in self._tensor.items()}

    def state_dict(self) -> dict[str, Any]:
        """The current values as a `state_dict` of the plain module: copies on the CPU."""
        state: dict[str, Any] = self._module.state_dict()
        for key in state:
            if key in self._names:
                state[key] = self._value(self._names[key])
            elif not key.endswith("_extra_state"):  # data of `get_extra_state`, which are not tensors
                raise PlacekitError(
                    f"the module has {key!r} in its state_dict, but no parameter or buffer of that name"
                )
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with the values of a `state_dict` of the module. Raises PlacekitError if an entry does not fit."""
        known = [key for key in self._module.state_dict() if key in self._names]
        missing = [key for key in known if key not in state]
        strange = [key for key in state if key not in known and not key.endswith("_extra_state")]
        if missing or strange:
            what = f"lacks {missing[0]!r}" if missing else f"has {strange[0]!r}, which the module does not have"
            raise PlacekitError(f"this state_dict {what}", "give a state_dict of the same module")
        self._put({self._names[key]: self._fitting(self._names[key], state[key], key) for key in known})

    def optimizer_state_dict(self) -> dict[str, Any]:
        """The optimiser's current state as the `state_dict` of `optimizer(parameters)`: copies on the CPU.

        The parameters are those of the module that require a gradient, in their order.
        """
        plain, names = self._plain_optimizer()
        state = {
            i: {key: self._value(t) for key, t in self._state[name].items()}
            for i, name in enumerate(names)
            if name in self._state
        }
        return {**plain, "state": state}

    def load_optimizer_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with the state of an optimiser of the same kind; missing entries begin with zeros.

        This step keeps its own settings, and warns if those in `state` differ. Raises PlacekitError if the state is
        for other parameters.
        """
        plain, names = self._plain_optimizer()
        if not {"state", "param_groups"} <= state.keys():
            raise PlacekitError("this is not the state of an optimizer", "give what `optimizer.state_dict()` returns")
        sizes = [[len(g["params"]) for g in groups] for groups in (plain["param_groups"], state["param_groups"])]
        if sizes[0] != sizes[1]:
            raise PlacekitError(
                f"this state has {sizes[1]} parameters by group, but the optimizer has {sizes[0]}",
                "give the state of an optimizer of the same parameters",
            )
        for own, given in zip(plain["param_groups"], state["param_groups"], strict=True):
            for key in sorted(own.keys() - _ROUNDING_ONLY):
                if key in given and given[key] != own[key]:
                    warnings.warn(
                        f"this optimizer has {key}={given[key]}; the step keeps its own {key}={own[key]}",
                        stacklevel=2,
                    )
        values: Tensors = {}
        for i, name in enumerate(names):
            found = state["state"].get(i, {})
            for key, t in self._state.get(name, {}).items():
                value = found.get(key)
                values[t] = self._fitting(t, 0 if value is None else value, f"{name}/{key}", value is None)
        self._put(values)

    def copy_to(self, module: torch.nn.Module | None = None) -> torch.nn.Module:
        """Write the current values into `module`, by default the one that the step was made from. Returns it."""
        module = self._module if module is None else module
        module.load_state_dict(self.state_dict())
        with torch.no_grad():
            for key, buffer in module.named_buffers():  # also buffers that a state_dict leaves out
                if key in self._names:
                    buffer.copy_(self._value(self._names[key]))
        return module

    def close(self) -> None:
        """Release the devices. The values can still be read."""
        if self._owns_machine and self._machine is not None:
            self._machine.close()
        self._machine = None

    def __enter__(self) -> PlacedStep:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _device(self, tensor: int) -> int:
        return int(self._where.device[self._graph.tensor_producer[tensor]])

    def _value(self, tensor: int) -> torch.Tensor:
        return self._sources[self._device(tensor)][tensor].detach().to("cpu", copy=True)

    def _put(self, values: Tensors) -> None:
        """Copy values of sources to their devices, and wait, because links read them, too, and would not wait."""
        if self._machine is None:
            raise PlacekitError("this step is closed", "make another one")
        self._machine.follow()
        events, errors = [], list[BaseException]()
        with self._machine.launching():
            for device in range(self._machine.size):
                own = {t: v for t, v in values.items() if self._device(t) == device}
                stream = self._machine.compute(device)
                stream.launch(partial(_copy, own, self._sources[device], self._machine.torch_device(device), errors))
                events.append(stream.record())
        if not all(event.wait(self._timeout_s) for event in events):
            raise PlacekitError("a device has not finished its earlier work", "make another step")
        if errors:
            raise errors[0]

    def _fitting(self, tensor: int, given: Any, name: str, fill: bool = False) -> torch.Tensor:
        """Convert `given` to a source's type and layout. Raises PlacekitError for another shape."""
        old = self._sources[self._device(tensor)][tensor]
        value = torch.as_tensor(given)
        if value.shape != old.shape and not fill:
            raise PlacekitError(f"{name} has shape {tuple(value.shape)} here, but {tuple(old.shape)} in the step")
        return torch.empty_strided(old.shape, old.stride(), dtype=old.dtype).copy_(value.detach())

    def _plain_optimizer(self) -> tuple[dict[str, Any], list[str]]:
        """The state_dict of a new optimiser of the plain module, and the names of its parameters."""
        made = self._optimizer([p for p in self._module.parameters() if p.requires_grad])
        first = {id(p): name for name, p in self._module.named_parameters()}
        plain: dict[str, Any] = made.state_dict()
        return plain, [first[id(p)] for group in made.param_groups for p in group["params"]]


class _Arguments:
    """The inputs and targets of a step: where each tensor goes, and which values are constants."""

    def __init__(self, graph: Graph, initial: Tensors, inputs: Any, targets: Any) -> None:
        sources = np.flatnonzero(graph.op_type.is_value("input") & ~graph.kernel).tolist()
        self.leaves, self.spec = pytree.tree_flatten((inputs, targets))
        # the importer makes one source for each distinct tensor, in the order in which it meets them
        distinct = list(dict.fromkeys(id(x) for x in self.leaves if isinstance(x, torch.Tensor)))
        assert len(distinct) == len(sources), "each tensor among the inputs is a source"
        self.source = [sources[distinct.index(id(x))] if isinstance(x, torch.Tensor) else -1 for x in self.leaves]
        self.tensor = {v: graph.outputs(v)[0] for v in sources}
        self.name = {v: graph.op_name[v] for v in sources}
        self.like = {v: _meta(initial[t]) for v, t in self.tensor.items()}

    def values(self, inputs: Any, targets: Any) -> Tensors:
        """The sources' values. Raises PlacekitError unless they are nested, shaped and typed as in the example."""
        leaves, spec = pytree.tree_flatten((inputs, targets))
        if spec != self.spec:
            raise PlacekitError(
                "the inputs and targets are nested in another way than the step's examples",
                "give the same tuples, lists and keys, in their order",
            )
        given: dict[int, torch.Tensor] = {}
        for leaf, example, v in zip(leaves, self.leaves, self.source, strict=True):
            if v < 0:
                if leaf is not example and leaf != example:
                    raise PlacekitError(
                        f"an input of the step is {example!r}, and cannot become {leaf!r}",
                        "only tensors can change from call to call: make another step",
                    )
                continue
            self._check(v, leaf)
            if given.setdefault(v, leaf) is not leaf and not torch.equal(given[v], leaf):
                raise PlacekitError(
                    f"{self.name[v]!r} and another input were one tensor when the step was made, but are two here",
                    "make the step with two tensors if they are not always the same",
                )
        return {self.tensor[v]: _laid_out(x, self.like[v]) for v, x in given.items()}

    def _check(self, source: int, value: Any) -> None:
        like = self.like[source]
        if not isinstance(value, torch.Tensor) or value.shape != like.shape or value.dtype != like.dtype:
            found = f"{value.dtype} {tuple(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
            raise PlacekitError(
                f"{self.name[source]!r} is {found}, but the step was made for {like.dtype} {tuple(like.shape)}",
                "make another step for this shape, or leave out a last batch that is smaller",
            )


def _meta(value: torch.Tensor) -> torch.Tensor:
    """Shape, strides and type of a tensor."""
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")


def _laid_out(value: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """`value` with the strides of `like`: views in the traced step rely on them."""
    if value.stride() == like.stride():
        return value.detach()
    return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=value.device).copy_(value.detach())


def _copy(values: Tensors, into: Tensors, device: torch.device, errors: list[BaseException]) -> None:
    """Work of a stream, which must not raise."""
    try:
        into.update({t: copied(v, device) for t, v in values.items()})
    except Exception as e:  # out of memory
        errors.append(e)


def _own_names(module: torch.nn.Module) -> Iterator[tuple[str, str]]:
    """Every name of a parameter or buffer, with the first name of the same tensor, which the graph uses."""
    for named in (module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False)):
        first: dict[int, str] = {}
        for name, value in named:
            yield name, first.setdefault(id(value), name)


def _by_operation(placement: Result | ProgramResult | Placement | str | Path, graph: Graph) -> Assignment:
    """Devices of the operations. Raises PlacementError if the placement is for another graph."""
    if isinstance(placement, str | Path):
        path = Path(placement)
        return load_assignment(path / PLACEMENT_FILE if path.is_dir() else path, graph)
    names: tuple[str, ...] = ()
    if isinstance(placement, Placement):
        found, grouping = placement, Grouping.colocated(graph)
    else:
        if placement.placement is None:
            raise PlacementError("this result has no placement that fits", "its notes say why")
        found, grouping = placement.placement, placement.problem.grouping
        names = placement.problem.cluster.device_names
    if found.graph != graph.fingerprint:
        raise PlacementError(
            f"the placement is of another step (fingerprint {found.graph}, this one has {graph.fingerprint})",
            "give the module, loss, optimizer, inputs and targets the shapes and settings that were placed; a tensor given"
            " twice is one input",
        )
    if len(found.device) != grouping.count:
        raise PlacementError(
            f"the placement has {len(found.device)} groups, but does not say which operations they hold",
            "give the result that it comes from, or its placement.json",
        )
    names = names or tuple(f"device {d}" for d in range(int(found.device.max()) + 1))
    of = grouping.group_of
    return Assignment(found.device[of], None if found.priority is None else found.priority[of], names)


def _engine(graph: Graph, executable: Executable, where: Assignment, machine: Machine) -> Engine:
    """The step, compiled for the machine."""
    order = graph.topological_order[graph.kernel[graph.topological_order]].tolist()
    keep = executable.results.values()
    made = plan(graph, executable, where.device, len(where.devices), order, fixed=False, keep=keep)
    rank = None if where.priority is None else priorities(made, graph, where.priority)
    return Engine(made, executable, machine, rank)
