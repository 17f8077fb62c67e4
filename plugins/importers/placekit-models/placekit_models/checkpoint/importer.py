"""Importer `checkpoint`."""

from __future__ import annotations

import warnings

from placekit_core import GraphError, Importer, ImporterError, Program, shortened
from placekit_models.checkpoint.gguf_header import bits_of
from placekit_models.checkpoint.options import CheckpointOptions
from placekit_models.checkpoint.sources import find
from placekit_models.checkpoint.towers import check_room, with_tower
from placekit_models.decoder import Use, program


class CheckpointImporter(Importer):
    """A decoder from the tensors of its files, as inference runtimes run it."""

    name = "checkpoint"
    options_class = CheckpointOptions

    def load(self) -> list[Program]:
        """One program, named after the model and the mode. Raises ImporterError."""
        o: CheckpointOptions = self.options
        if o.checkpoint and o.path:
            raise ImporterError(f"checkpoint={o.checkpoint} and path={o.path} both name a model", "give one of them")
        model = o.checkpoint or o.path
        checkpoint = with_tower(find(model, o.weights), model, o.mmproj, o.images, o.image)
        prompt = min(o.prompt or o.context, o.context)
        check_room(checkpoint, o.images, prompt)
        use = Use(
            o.mode, o.context - 1 if o.mode == "decode" else 0, o.batch, prompt if o.mode == "prompt" else 1, o.ubatch,
            cache_bytes=1.0 if o.cache == "fp8" else bits_of(o.cache.upper()) / 8, flash=o.flash, room=o.context,
            images=o.images,
        )  # fmt: skip
        try:
            graph = program(f"{checkpoint.name}.{o.mode}", checkpoint, use)
        except (GraphError, OverflowError) as e:
            raise ImporterError(f"{checkpoint.name} has sizes that no graph can hold: {shortened(str(e))}") from None
        layers = dict.fromkeys(
            t.module.partition(f".{t.layer}.")[0] + f".{t.layer}" for t in checkpoint.tensors if t.layer >= 0
        )
        attributes = {**graph.attributes, "context": o.context, "launching": "graph", "unsplit": list(layers)}
        for note in checkpoint.notes:
            warnings.warn(note, stacklevel=2)
        return [Program(graph.replace(attributes=attributes))]
