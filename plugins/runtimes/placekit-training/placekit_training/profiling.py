"""The command `placekit profile`: measures each layer of a model on this computer, and writes the CSV of importer `profile`."""

from __future__ import annotations

import csv
import inspect
import io
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch
from placekit_layers.blocks import NUMBERED
from placekit_torch import Step
from placekit_torch.capture import own_loss
from placekit_torch.factory import Made, find_factory, folder_of
from placekit_torch.tracing import explain
from torch.utils._pytree import tree_leaves, tree_map

from placekit_core import PHASES, ConfigError, ImporterError, Registry, parse_yaml, reading, write_atomically
from placekit_core.cli.parser import Parser
from placekit_core.contracts.units import mebibytes, seconds

WARM_UP, RUNS = 2, 7
Row = dict[str, Any]
"""One layer: the columns of the CSV, which docs/formats.md describes."""
_HINT = "a profile is of layers in a list, such as h.0, h.1, that are called one after another"


def main(argv: list[str], registry: Registry) -> int:
    """Measure the layers of a training step for each micro-batch, and write them."""
    about = "Measure seconds and bytes of each layer of a training step on this computer's first GPU, else on its CPU."
    parser = Parser("profile", about)
    parser.add_argument("model", metavar="FILE.py:FUNCTION", help="a function that returns a placekit_torch.Step")
    parser.add_argument(
        "arguments",
        nargs="*",
        metavar="KEY=VALUE",
        help="arguments of the function; batch=1,2,4 measures each of these sizes",
    )
    parser.add_argument("--kind", help="name of this kind of device in machines; default: cuda or cpu")
    parser.add_argument("--out", type=Path, default=Path("profile.csv"), metavar="FILE", help="default: profile.csv")
    given = parser.read(argv)
    if given.out.exists():
        raise ConfigError(f"{given.out} exists", "give another file with --out")
    rows, device = list[Row](), "cuda" if torch.cuda.is_available() else "cpu"
    for batch, made in _steps(given.model, given.arguments):
        step = made.build()
        try:
            found = measure(step, device, {"kind": given.kind or device, "microbatch": batch})
        except (RuntimeError, TypeError, ValueError, AttributeError, LookupError) as e:  # of the user's code
            raise ImporterError(*explain(e, f"a step of {made.name} failed")) from e
        times = ", ".join(f"{phase} {seconds(sum(row[f'{phase}_s'] for row in found))}" for phase in PHASES)
        saved = mebibytes(sum(row["saved_bytes"] for row in found))
        print(f"micro-batch {batch}: {len(found)} layers, {times}, saved {saved}")
        rows += found
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(given.out, text.getvalue().encode())
    print(f"written to {given.out}")
    return 0


def _steps(model: str, words: Sequence[str]) -> list[tuple[int, Made]]:
    """The sizes of `batch`, and the step of `FILE.py:FUNCTION` for each. Raises PlacekitError."""
    file, _, attribute = model.rpartition(":")
    path = Path(file).expanduser()
    if path.suffix != ".py" or not path.is_file():
        raise ConfigError(f"there is no file {file or model}", "give the model as FILE.py:FUNCTION")
    folder = folder_of(str(path.parent))
    factory, arguments = find_factory(f"{path.stem}:{attribute}", folder), dict[str, Any]()
    takes = inspect.signature(factory).parameters
    for key, equals, value in (word.partition("=") for word in words):
        if not equals or key not in takes:
            raise ConfigError(f"{model} takes no {key!r}", f"its arguments, as KEY=VALUE: {', '.join(takes) or 'none'}")
        with reading(f"{key}={value}", ConfigError, "argument"):
            arguments[key] = parse_yaml((f"[{value}]" if key == "batch" else value).encode())
    sizes = arguments.pop("batch", [])
    if not sizes or not all(type(size) is int and size > 0 for size in sizes):
        raise ConfigError(
            "the micro-batches to measure are not given", f"add the values of {attribute}'s argument batch: batch=1,2,4"
        )
    return [
        (size, Made(partial(factory, batch=size, **arguments), f"{path.stem}.{attribute}", folder)) for size in sizes
    ]


def measure(step: Step, device: str, about: Row) -> list[Row]:
    """One row for each layer of a training step, with the columns of `about`.

    Raises ImporterError if the module has no chain of layers.

    Layers are the elements of the module's outermost lists, in the order of their calls; `before` is the work before the first
    one, `after` the work after the last one. Work between two layers belongs to the second. Parameters and tensors that several
    layers use count for the first one. Seconds are medians. Gradients are added to those of the micro-batch before.
    """
    module: torch.nn.Module = step.module.to(device).train()
    inputs = tree_map(
        lambda value: value.to(device) if isinstance(value, torch.Tensor) else value,
        (*step.arguments, step.loss_arguments),
    )
    first = _Pass(device, module)
    saved: dict[int, tuple[int, int]] = {}  # layer and bytes of each storage, by its address
    own = {tensor.untyped_storage().data_ptr() for tensor in (*module.parameters(), *module.buffers())}

    def save(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            saved.setdefault(storage.data_ptr(), (len(first.names) - 1, storage.nbytes()))
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
        first.run(step, inputs, every_module=True)
    homes = first.homes()
    trained = [[p for p, i in homes.items() if i == layer and p.requires_grad] for layer in range(len(first.names))]
    optimizers = [step.optimizer(p) if step.optimizer and p else None for p in trained]
    runs = [_run(_Pass(device, module), step, inputs, optimizers) for _ in range(WARM_UP + RUNS)][WARM_UP:]
    rows = list[Row]()
    for i, layer in enumerate(first.names):
        times = (median(values) for values in zip(*(run[i] for run in runs), strict=True))
        optimizer = optimizers[i]
        state = tree_leaves(list(optimizer.state.values())) if optimizer is not None else []
        rows.append({
            "layer": layer, **about, **{f"{phase}_s": round(s, 9) for phase, s in zip(PHASES, times, strict=True)},
            "parameter_bytes": sum(t.nbytes for t, home in homes.items() if home == i),
            "gradient_bytes": sum(t.nbytes for t in trained[i]),
            "state_bytes": sum(t.nbytes for t in state if isinstance(t, torch.Tensor)),
            "output_bytes": first.written[i], "saved_bytes": sum(size for home, size in saved.values() if home == i),
        })  # fmt: skip
    return rows


def _run(one: _Pass, step: Step, inputs: Any, optimizers: Sequence[Any]) -> list[tuple[float, ...]]:
    """Seconds of each layer by phase, in one step."""
    one.module.zero_grad(set_to_none=False)
    one.run(step, inputs)
    marks = [one.now()]
    for optimizer in optimizers:
        if optimizer is not None:
            optimizer.step()
        marks.append(one.now())
    arrived = [one.ended, *(one.arrived.get(i, one.ended) for i in range(1, len(optimizers))), one.turned]
    forward_s = [b - a for a, b in pairwise([*one.starts, one.turned])]
    backward_s = [a - b for a, b in pairwise(arrived)]
    return list(zip(forward_s, backward_s, [b - a for a, b in pairwise(marks)], strict=True))


class _Pass:
    """A forward and backward pass, divided where layers begin and end.

    Attributes:
        names: `before`, the layers in the order of their calls, and `after`.
        starts: when the forward pass of each of them began.
        arrived: when the backward pass had the first gradient of layer i's inputs; nothing if they need no gradient.
        turned, ended: when the backward pass began and ended.
        written: bytes of each layer's output that need a gradient.
        called: the layer of the first call of each module, by its path.
    """

    def __init__(self, device: str, module: torch.nn.Module) -> None:
        self.device, self.module = device, module
        self.names, self.starts, self.written = ["before"], list[float](), list[int]()
        self.arrived, self.called = dict[int, float](), dict[str, int]()
        found = {m[0]: m[1] for path, _ in module.named_modules() if (m := NUMBERED.match(f"root.{path}"))}
        lengths = Counter(found.values())
        self.layers = {path.removeprefix("root.") for path, of in found.items() if lengths[of] > 1}

    def now(self) -> float:
        """Seconds on a clock, after the device has finished all its work."""
        if self.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def run(self, step: Step, inputs: Any, every_module: bool = False) -> None:
        """Run the pass; with `every_module`, note the layer of each module's first call.

        `inputs` are positional and keyword arguments of the module, and further arguments of the loss.
        """
        handles = list[Any]()
        for path, inner in self.module.named_modules():
            if path in self.layers or every_module:
                handles.append(inner.register_forward_pre_hook(partial(self._call, path), with_kwargs=True))
            if path in self.layers:
                handles.append(inner.register_forward_hook(lambda module, arguments, output: self._begin(output)))
        self.starts.append(self.now())
        try:
            output = self.module(*inputs[0], **inputs[1])
        finally:
            for handle in handles:
                handle.remove()
        if len(self.names) == 1:
            raise ImporterError(f"{type(self.module).__name__} calls no module that is in a list", _HINT)
        self.names[-1] = "after"
        loss = own_loss(output) if step.loss is None else step.loss(output, *inputs[2])
        self.written.append(loss.nbytes)
        self.turned = self.now()
        loss.backward()
        self.ended = self.now()

    def homes(self) -> dict[torch.Tensor, int]:
        """The layer of each parameter and buffer: that of the first call of its module, or of the module that contains it."""
        homes: dict[torch.Tensor, int] = {}
        for path, owner in self.module.named_modules():
            while path not in self.called:
                path = path.rpartition(".")[0]
            for tensor in (*owner.parameters(recurse=False), *owner.buffers(recurse=False)):
                homes.setdefault(tensor, self.called[path])
        return homes

    def _call(self, path: str, module: Any, arguments: Any, keywords: Any) -> None:
        """Forward pre-hook."""
        if path in self.layers:
            if path in self.names:
                raise ImporterError(f"{path} is called twice", _HINT)
            if len(self.names) == 1:
                self._begin((arguments, keywords))
            self.names[-1] = path
        self.called.setdefault(path, len(self.names) - 1)

    def _begin(self, values: Any) -> None:
        """The last layer has written `values`. The next one begins; its name comes with its call."""
        self.names.append("")
        self.starts.append(self.now())
        tensors = [t for t in tree_leaves(values) if isinstance(t, torch.Tensor) and t.requires_grad]
        self.written.append(sum(t.nbytes for t in tensors))
        for tensor in tensors:
            tensor.register_hook(partial(self._arrive, len(self.names) - 1))  # type: ignore[no-untyped-call]

    def _arrive(self, i: int, gradient: torch.Tensor) -> None:
        self.arrived.setdefault(i, self.now())  # what all layers read, such as a bias of positions, comes last
