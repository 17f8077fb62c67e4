"""Importer `model`."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import importlib
import os
import re
from typing import Any, Literal

from placekit_torch.factory import Made
from placekit_torch.importer import TRACING, import_program

from placekit_core import Importer, ImporterError, Program
from placekit_models.experts import read_chosen
from placekit_models.extras import offline
from placekit_models.network import Network
from placekit_models.options import Asked, ModelOptions
from placekit_models.shipped import shipped

WEIGHTS: tuple[Literal["int8", "int4"], ...] = ("int8", "int4")
SOURCES = {"hf": "language", "timm": "images", "torchvision": "images", "diffusers": "diffusion"}
"""Module of this package for each prefix of names."""


class ModelImporter(Importer):
    """Imports a network by its name."""

    name = "model"
    options_class = ModelOptions

    def load(self) -> list[Program]:
        """One program, named after the network and the mode. Raises ImporterError.

        Models by name never use the internet; a user's function may.
        """
        own = split(self.options.model)[0] == "file"
        with TRACING, contextlib.nullcontext() if own else offline():
            return [self._load(own)]

    def _load(self, own: bool) -> Program:
        o: ModelOptions = self.options
        source, name = split(o.model)
        weights = next((w for w in WEIGHTS if w == o.weights), None)
        if weights is None and o.weights is not None:
            raise ImporterError(
                f"importer model stores weights in {' or '.join(WEIGHTS)}, not in {o.weights!r:.40}",
                f"formats of files belong to importer checkpoint: checkpoint={o.model} weights={o.weights:.40}",
            )
        asked = Asked(
            name=name, mode=o.mode, batch=o.batch, context=o.context, dtype=o.dtype, weights=weights, image=o.image
        )
        module = importlib.import_module(f"placekit_models.{SOURCES.get(source, 'files')}")
        found: Network = module.network(asked, source)
        recipe = {"importer": self.name, "options": o.model_dump(mode="json")}
        traced: Any = "train" if found.mode == "train" else "inference"
        builder = Made(found.make, f"model={o.model}", found.path)
        title = f"{found.name}.{found.mode}"
        program = import_program(builder, name=title, mode=traced, seed=o.seed, recipe=recipe, kernels=o)
        graph = program.graph if found.routing is None else read_chosen(program.graph, *found.routing)
        attributes = {**graph.attributes, "mode": found.mode}
        if not own or o.batch != 1:  # otherwise the function chooses its batch
            attributes["work"] = [o.batch, "tokens" if found.mode == "decode" else "samples"]
        if found.context:
            kept = [name for name in graph.op_name if name.endswith(("key_cache", "value_cache"))]
            attributes |= {"context": found.context, "cache": kept}
        if found.mode == "decode":  # runtimes record the step of a token once, and run it as a graph
            attributes["launching"] = "graph"
        return dataclasses.replace(program, graph=graph.replace(attributes=attributes))


def split(model: str) -> tuple[str, str]:
    """Split a model into its prefix and the rest; the prefix of FILE.py:FACTORY is `file`. Raises ImporterError with a hint."""
    known = ", ".join([*(f"{p}:NAME" for p in SOURCES), "FILE.py:FACTORY", "FILE.onnx"])
    if not model:
        raise ImporterError("no model is named", f"give model=NAME: {known}")
    if re.search(r"\.py:[\w.]+$", model):
        return "file", model
    prefix, colon, name = model.partition(":")
    if colon and prefix in SOURCES:
        if "," in name:
            raise ImporterError(f"model={model!r} has several names", "a sweep over several needs -m")
        if not name:
            raise ImporterError(f"model={model!r} has no name", f"give {prefix}:NAME")
        return prefix, name
    if os.path.isfile(os.path.join(os.path.expanduser(model), "config.json")):
        return "hf", model
    if colon and re.fullmatch(r"\w\w+", prefix):
        close = difflib.get_close_matches(prefix, SOURCES, 1)
        guess = f"did you mean {close[0]}:{name}? " if close else ""
        raise ImporterError(f"model={model!r} has an unknown prefix, {prefix}:", f"{guess}a model is {known}")
    if model.endswith(".py"):
        raise ImporterError(f"model={model!r} names a file, but no function in it", f"give model={model}:FUNCTION")
    if model.endswith((".pt", ".pth", ".safetensors")):
        hint = (
            "give FILE.py:FUNCTION, a function that builds the module; a language model's folder is checkpoint=FOLDER"
        )
        raise ImporterError(f"model={model!r} is a file of weights, which holds no graph", hint)
    guess = next((f"did you mean hf:{n}? " for n in shipped() if model.lower() in n.lower()), "")
    raise ImporterError(f"model={model!r} does not say where the model comes from", f"{guess}a model is {known}")
