"""The colours of two runs in one page: a module has the same colour in both timelines."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from placekit_core import Labels
from placekit_report.modules import coloured
from placekit_report.page import pairs


def colour_together(data: dict[str, Any]) -> None:
    """Colours the timelines of programs that stand beside each other by the mean of both runs' seconds.

    Programs that have no module in common keep their own colours; so do an operation's timeline and a pipeline's.
    """
    for of in pairs(data):
        both = [data["runs"][r]["programs"][p]["timeline"] for r, p in of]
        if len(both) == 2 and None not in both:
            _colour(both)


def _colour(both: list[Any]) -> None:
    computed = [np.asarray(t["events"]["colour"], np.int64) >= 0 for t in both]
    modules = [any(module >= 0 for module in t["events"]["module"]) for t in both]
    if modules[0] != modules[1] or both[0]["micro_batches"] != both[1]["micro_batches"]:
        return
    labels = [_labels(t, own, modules[0]) for t, own in zip(both, computed, strict=True)]
    if not {*labels[0]} & {*labels[1]} - {""}:
        return
    seconds = [np.asarray(t["events"]["duration_s"], np.float64)[own] for t, own in zip(both, computed, strict=True)]
    mean_s = np.concatenate(seconds) / 2
    names, colour = coloured(Labels.of([*labels[0], *labels[1]]), mean_s, np.ones(len(mean_s), np.bool_), modules[0])
    for t, own, part in zip(both, computed, np.split(colour, [len(labels[0])]), strict=True):
        found = np.full(len(own), -1)
        found[own] = part
        t["colours"] = {"module": names}
        t["events"] = {**t["events"], "colour": found.tolist()}


def _labels(t: dict[str, Any], computed: NDArray[np.bool_], modules: bool) -> list[str]:
    """The module of each event that computes, or its type in a network without modules."""
    texts, column = t["texts"], np.asarray(t["events"]["module" if modules else "type"], np.int64)
    return [texts[i] if i >= 0 else "" for i in column[computed].tolist()]
