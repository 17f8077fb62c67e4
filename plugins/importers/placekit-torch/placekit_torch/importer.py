"""Importer `torch`, and `import_program`, which other importers of torch modules use."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, get_args

import torch
from pydantic import ValidationError

from placekit_core import Importer, ImporterError, Program, report_progress, unknown
from placekit_torch.attention import attention_as
from placekit_torch.capture import Captured, Mode, capture
from placekit_torch.data_parallel import import_towers, shares_of
from placekit_torch.executable import TorchExecutable
from placekit_torch.factory import Builder, Given, Made, find_factory, folder_of
from placekit_torch.fusion import fuse_chains
from placekit_torch.lowering import lower
from placekit_torch.options import Kernels, TorchOptions
from placekit_torch.step import Step

TRACING = threading.RLock()
"""Held by the thread that traces: meanwhile functions of torch and transformers are replaced for all threads."""


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Disable garbage collection: walking all traced nodes would take a third of an import's time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def import_program(
    builder: Builder,
    *,
    name: str,
    mode: Mode = "train",
    seed: int = 0,
    recipe: Mapping[str, Any] | None = None,
    kernels: Kernels | None = None,
) -> Program:
    """Trace the step of `builder`, without allocating memory for its tensors. Raises ImporterError."""
    kernels = kernels or Kernels()  # type: ignore[call-arg]

    def trace(built: Builder) -> Captured:
        report_progress(f"building {name}")
        captured = capture(built, mode, name, seed, kernels)
        if kernels.fusion == "pointwise":
            fuse_chains(captured)
        return captured

    with TRACING, _no_garbage_collection(), attention_as(kernels.attention):
        if len(shares_of(kernels)) > 1:
            return import_towers(builder, name, mode, seed, recipe or {}, kernels, trace)
        captured = trace(builder)
        report_progress("making a graph of the trace")
        lowered = lower(captured, name, {"mode": mode, "torch": torch.__version__})
    executable = TorchExecutable(lowered, builder, captured.constants, mode, seed, recipe or {})
    return Program(lowered.graph, executable=executable)


def import_given(step: Step, *, mode: Mode, name: str | None, **kernels: Any) -> Program:
    """Import a step whose objects exist already; see `import_module`."""
    if mode not in get_args(Mode):
        raise unknown("mode", str(mode), get_args(Mode), ImporterError)
    for key in (k for k in kernels if k not in Kernels.model_fields):
        raise unknown("option", key, list(Kernels.model_fields), ImporterError)
    try:
        chosen = Kernels(**kernels)
    except ValidationError as e:
        raise ImporterError(f"{e.errors()[0]['loc'][0]}: {e.errors()[0]['msg']}") from None
    return import_program(Given(step), name=name or type(step.module).__name__, mode=mode, kernels=chosen)


class TorchImporter(Importer):
    """A module from a factory: `importer.module=package.module:factory`."""

    name = "torch"
    options_class = TorchOptions

    @classmethod
    def convert(cls, source: Any, **about: Any) -> list[Program]:
        """Import a `Step`, or a module with `inputs=` and, for training, `loss=`, `targets=` and `optimizer=`.

        `mode`, `name` and the options of `Kernels` are as in `import_module`; a module with neither loss nor optimizer is
        imported for inference. Raises ImporterError.
        """
        mode: Any = about.pop("mode", None)
        name = about.pop("name", None)
        takes = () if isinstance(source, Step) else ("inputs", "loss", "targets", "optimizer")
        kernels = {key: about.pop(key) for key in Kernels.model_fields if key in about}
        for key in (k for k in about if k not in takes):
            raise ImporterError(
                f"importing a {type(source).__name__} takes no {key!r}",
                f"it takes {', '.join([*takes, 'mode', 'name', *Kernels.model_fields])}",
            )
        if isinstance(source, Step):
            return [import_given(source, mode=mode or "train", name=name, **kernels)]
        if "inputs" not in about:
            raise ImporterError(
                f"a {type(source).__name__} needs inputs to be traced",
                "give inputs=..., and for a training step loss=..., targets=..., optimizer=...",
            )
        mode = mode or ("train" if {"loss", "optimizer"} & about.keys() else "inference")
        return [import_given(Step(source, **about), mode=mode, name=name, **kernels)]

    def load(self) -> list[Program]:
        """One program, named after module and factory; or one for each of `batches`."""
        o: TorchOptions = self.options
        name = o.module.replace(":", ".")
        if not o.batches:
            return [self._program(name, o.arguments)]
        return [self._program(f"{name}.batch{batch}", {**o.arguments, "batch": batch}) for batch in o.batches]

    def _program(self, name: str, arguments: dict[str, Any]) -> Program:
        o: TorchOptions = self.options
        path = folder_of(o.path)
        factory = find_factory(o.module, path)
        builder = Made(lambda: factory(**arguments), o.module, path)
        options = {**o.model_dump(mode="json"), "arguments": arguments, "batches": []}
        recipe = {"importer": self.name, "options": options}
        return import_program(builder, name=name, mode=o.mode, seed=o.seed, recipe=recipe, kernels=o)


def import_module(
    module: Any,
    inputs: Any,
    *,
    loss: Callable[..., Any] | None = None,
    targets: Any = (),
    optimizer: Callable[[Any], Any] | None = None,
    mode: Literal["train", "inference"] = "train",
    name: str | None = None,
    **kernels: Any,
) -> Program:
    """Import an existing `torch.nn.Module`, which is not modified; the arguments are those of `Step`.

    `kernels` are the importer's options, such as `attention`, `optimizer_kernels` and `fusion`.

    `program.executable.initial()` gives copies of the module's own weights and of these inputs. The program has no recipe:
    another process cannot rebuild it. Raises ImporterError that names the line if the module cannot be traced.
    """
    return import_given(Step(module, inputs, loss, targets, optimizer), mode=mode, name=name, **kernels)
