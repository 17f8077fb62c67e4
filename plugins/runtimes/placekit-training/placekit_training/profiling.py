"""The command `placekit profile`: measures each layer of a model on this computer, and writes the CSV of importer `profile`."""

from __future__ import annotations

import csv
import inspect
import io
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch
import yaml
from placekit_layers.blocks import NUMBERED
from placekit_torch import Step
from placekit_torch.capture import own_loss
from placekit_torch.factory import Made, find_factory, folder_of
from torch.utils._pytree import tree_leaves, tree_map

from placekit_core import ConfigError, ImporterError, Registry, write_atomically
from placekit_core.cli.console import table
from placekit_core.cli.parser import Parser
from placekit_core.contracts.units import mebibytes, seconds

BEFORE, AFTER = "before", "after"  # what the model does before the first element of its lists, and after the last one
WARM_UP, RUNS = 2, 7
Row = dict[str, str | int | float]
"""One layer: the columns of the CSV, which docs/formats.md describes."""


def main(argv: list[str], registry: Registry) -> int:
    """Measure the layers of a model, and write them."""
    about = (
        "Measure seconds and bytes of each layer of a training step on this computer, for plans and importer `profile`."
    )
    parser = Parser("profile", about)
    parser.add_argument("model", metavar="FILE.py:FUNCTION", help="a function that returns a placekit_torch.Step")
    parser.add_argument("arguments", nargs="*", metavar="KEY=VALUE", help="its arguments; batch=1,2,4: micro-batches")
    parser.add_argument("--device", help="cpu or cuda; cuda if there is a GPU")
    parser.add_argument("--kind", help="the kind of this device in the machine; else its name")
    parser.add_argument("--out", type=Path, default=Path("profile.csv"), metavar="FILE", help="default: profile.csv")
    given = parser.read(argv)
    device = torch.device(given.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    kind, out = given.kind or _kind(device), given.out
    if out.exists():
        raise ConfigError(f"{out} exists", "give another file with --out")
    factory, name, folder, arguments = _factory(given.model, given.arguments)
    rows = list[Row]()
    for batch in arguments.pop("batch"):
        step = Made(partial(factory, batch=batch, **arguments), name, folder).build()
        rows += [{"layer": r.pop("layer"), "kind": kind, "microbatch": batch, **r} for r in measure(step, device)]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(out, text.getvalue().encode())
    show(rows)
    print(f"{kind}: medians of {RUNS} steps, written to {out}")
    return 0


def show(rows: Sequence[Row]) -> None:
    """Print the sums over the layers of each micro-batch."""
    sums: dict[Any, Counter[str]] = {}
    for row in rows:
        sums.setdefault(row["microbatch"], Counter()).update(
            {"layers": 1, **{k: v for k, v in row.items() if "_" in k}}
        )
    head = ["micro-batch", "layers", "forward", "backward", "update", "parameters", "saved"]
    times, sizes = ("forward_s", "backward_s", "update_s"), ("parameter_bytes", "saved_bytes")
    table(head, [
        [str(batch), str(of["layers"]), *(seconds(of[k]) for k in times), *(mebibytes(of[k]) for k in sizes)]
        for batch, of in sums.items()
    ])  # fmt: skip


def _kind(device: torch.device) -> str:
    """The name that backend `cuda` gives this GPU's kind; `cpu` for the CPU."""
    if device.type != "cuda":
        return device.type
    name = torch.cuda.get_device_name(device).lower().removeprefix("nvidia")
    return re.sub(r"[^a-z0-9]+", "_", name).strip("_")


def _factory(model: str, words: Sequence[str]) -> tuple[Callable[..., Any], str, Path, dict[str, Any]]:
    """The function `FILE.py:FUNCTION`, its name and folder, and its arguments, with all sizes of `batch`.

    Raises PlacekitError.
    """
    file, _, attribute = model.rpartition(":")
    path = Path(file).expanduser()
    if path.suffix != ".py" or not path.is_file():
        raise ConfigError(f"no file {file or model}", "the model is FILE.py:FUNCTION")
    folder = folder_of(str(path.parent))
    factory = find_factory(f"{path.stem}:{attribute}", folder)
    takes, arguments = inspect.signature(factory).parameters, dict[str, Any]()
    for key, equals, value in (word.partition("=") for word in words):
        if not equals or key not in takes:
            raise ConfigError(f"{model} takes no {key!r}", f"its arguments, as KEY=VALUE: {', '.join(takes) or 'none'}")
        arguments[key] = yaml.safe_load(f"[{value}]" if key == "batch" else value)
    sizes = arguments.get("batch", [])
    if not sizes or not all(type(size) is int and size > 0 for size in sizes):
        raise ConfigError("a profile is for one or more micro-batches", f"give batch=1,2,4; {attribute} takes `batch`")
    return factory, f"{path.stem}.{attribute}", folder, arguments


def measure(step: Step, device: torch.device) -> list[Row]:
    """One row for each layer of a training step. Raises ImporterError if the module has no chain of layers.

    Layers are the elements of the module's outermost lists, in the order of their calls, and what the step does `before` the
    first and `after` the last one; what it does between two layers belongs to the second. Parameters and tensors that several
    layers use count for the first one. Seconds are medians. Gradients are added to those of the micro-batch before.
    """
    module: torch.nn.Module = step.module.to(device).train()
    inputs = tree_map(
        lambda value: value.to(device) if isinstance(value, torch.Tensor) else value,
        (*step.arguments, step.loss_arguments),
    )
    layers = _layers(module)
    first = _Pass(device, layers)
    own = {t.untyped_storage().data_ptr() for t in (*module.parameters(), *module.buffers())}
    saved: dict[int, tuple[int, int]] = {}  # the layer and the bytes of each storage, by its address

    def save(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            saved.setdefault(storage.data_ptr(), (len(first.names) - 1, storage.nbytes()))
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
        first.run(step, module, inputs, [path for path, _ in module.named_modules()])
    count = len(first.names)
    if count < 3:
        raise ImporterError(f"{type(module).__name__} calls no module that is in a list", _HINT)
    homes = _homes(module, first.home)
    trained = [[p for p, i in homes.items() if i == layer and p.requires_grad] for layer in range(count)]
    optimizers = [step.optimizer(p) if step.optimizer and p else None for p in trained]
    runs = list[list[tuple[float, float, float]]]()
    for _ in range(WARM_UP + RUNS):
        module.zero_grad(set_to_none=False)
        one = _Pass(device, layers)
        one.run(step, module, inputs, layers)
        marks = [one.now()]
        for optimizer in optimizers:
            if optimizer is not None:
                optimizer.step()
            marks.append(one.now())
        runs.append(list(zip(*one.seconds(), one.between(marks), strict=True)))
    rows = list[Row]()
    for i, layer in enumerate(first.names):
        forward_s, backward_s, update_s = (
            median(values) for values in zip(*(run[i] for run in runs[WARM_UP:]), strict=True)
        )
        state = tree_leaves(dict(optimizers[i].state)) if optimizers[i] else []
        rows.append({
            "layer": layer, "forward_s": forward_s, "backward_s": backward_s, "update_s": update_s,
            "parameter_bytes": sum(t.nbytes for t, home in homes.items() if home == i),
            "gradient_bytes": sum(t.nbytes for t in trained[i]),
            "state_bytes": sum(t.nbytes for t in state if isinstance(t, torch.Tensor)),
            "output_bytes": first.written[i], "saved_bytes": sum(size for home, size in saved.values() if home == i),
        })  # fmt: skip
    return rows


_HINT = "a profile is of layers in a list, such as h.0, h.1, that are called one after another"


def _layers(module: torch.nn.Module) -> set[str]:
    """Paths of the elements of the module's outermost lists, if they have several."""
    found = {m[0]: m[1] for path, _ in module.named_modules() if (m := NUMBERED.match(f"root.{path}"))}
    lengths = Counter(found.values())
    return {path.removeprefix("root.") for path, of in found.items() if lengths[of] > 1}


def _homes(module: torch.nn.Module, called: Mapping[str, int]) -> dict[torch.Tensor, int]:
    """The layer of each parameter and buffer: that of the first call of its module, or of the module that contains it."""
    homes: dict[torch.Tensor, int] = {}
    for path, owner in module.named_modules():
        while path not in called:
            path = path.rpartition(".")[0]
        for tensor in (*owner.parameters(recurse=False), *owner.buffers(recurse=False)):
            homes.setdefault(tensor, called[path])
    return homes


class _Pass:
    """A forward and backward pass, divided where layers begin and end.

    Attributes:
        names: `before`, the layers in the order of their calls, and `after`.
        starts: when the forward pass of each of them began.
        arrived: when the backward pass had the gradient of what the layer reads; nothing if that needs no gradient.
        written: [names] bytes of a layer's output that need a gradient.
        home: for the path of each hooked module, the layer of its first call.
    """

    def __init__(self, device: torch.device, layers: Collection[str]) -> None:
        self.device, self.layers = device, layers
        self.names, self.starts, self.written = [BEFORE], [self.now()], list[int]()
        self.arrived: dict[int, Any] = {}
        self.home: dict[str, int] = {}

    def now(self) -> Any:
        """A mark in time, on a GPU in its queue of kernels."""
        if self.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self, marks: Sequence[Any]) -> list[float]:
        """Seconds from each mark to the next."""
        if self.device.type != "cuda":
            return [b - a for a, b in pairwise(marks)]
        torch.cuda.synchronize(self.device)
        return [a.elapsed_time(b) / 1e3 for a, b in pairwise(marks)]

    def run(self, step: Step, module: torch.nn.Module, inputs: Any, hooked: Collection[str]) -> None:
        """Run the pass. `inputs` are positional and keyword arguments of the module, and further ones of the loss."""
        handles = list[Any]()
        for path in hooked:
            inner = module.get_submodule(path)
            handles.append(inner.register_forward_pre_hook(partial(self._call, path), with_kwargs=True))
            if path in self.layers:
                handles.append(inner.register_forward_hook(self._leave))
        try:
            output = module(*inputs[0], **inputs[1])
        finally:
            for handle in handles:
                handle.remove()
        self.names[-1] = AFTER
        loss = own_loss(output) if step.loss is None else step.loss(output, *inputs[2])
        self.turned = self.now()
        loss.backward()
        self.ended = self.now()
        self.written.append(loss.nbytes)

    def seconds(self) -> tuple[list[float], list[float]]:
        """Seconds of each layer's forward and backward pass."""
        last = len(self.names) - 1
        arrived = [self.turned, *(self.arrived.get(i, self.ended) for i in range(last, 0, -1)), self.ended]
        return self.between([*self.starts, self.turned]), self.between(arrived)[::-1]

    def _call(self, path: str, module: Any, args: Any, keywords: Any) -> None:
        """Forward pre-hook."""
        if path in self.layers:
            if path in self.names:
                raise ImporterError(f"{path} is called twice", _HINT)
            if len(self.names) == 1:
                self._begin((args, keywords))
            self.names[-1] = path
        self.home.setdefault(path, len(self.names) - 1)

    def _leave(self, module: Any, args: Any, output: Any) -> None:
        """Forward hook of a layer: what follows belongs to the next one."""
        self._begin(output)

    def _begin(self, values: Any) -> None:
        """The layer before has written `values`, and the next one begins; its name comes with its call."""
        self.names.append("")
        self.starts.append(self.now())
        tensors = [t for t in tree_leaves(values) if isinstance(t, torch.Tensor) and t.requires_grad]
        self.written.append(sum(t.nbytes for t in tensors))
        for tensor in tensors:
            tensor.register_hook(partial(self._arrive, len(self.names) - 1))

    def _arrive(self, i: int, gradient: torch.Tensor) -> None:
        self.arrived[i] = self.now()
