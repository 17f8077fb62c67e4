"""Kinds of devices whose figures stand in the words of a machine: `rtx4090 + mycard(24GB 900GB/s 80TFLOPS)`."""

from __future__ import annotations

import re
from statistics import median

from placekit_core import ClusterError
from placekit_inspect.data_sheets import Part, Parts

EXAMPLE = "(.. GB, .. GB/s, .. TFLOPS), its TFLOPS those of 16-bit numbers on tensor cores"
_KIND = re.compile(r"(?:(?<![\w.-])|(?<=\dx))(?!(?:x|of|nodes?|box|boxes)\b)([a-z][\w-]*) ?\(([^()]*)\)")
_FIGURE = re.compile(
    r"(\d{1,6}(?:\.\d{1,6})?) ?(gi?b/s|tb/s|gi?b|tflops?|tflop/s|pflops?)(?=[ ,]|$)|pcie ?([345])(?:\.0)?(?=[ ,]|$)"
)
_UNITS = {"gb": 2.0**30, "gb/s": 1e9, "tb/s": 1e12, "tflop": 1e12, "pflop": 1e15}
_FIELDS = {"gb": "memory", "gb/s": "bandwidth", "tb/s": "bandwidth", "tflop": "arithmetic", "pflop": "arithmetic"}


def with_own_kinds(words: str, known: Parts) -> tuple[str, Parts]:
    """The words without figures, and the parts with the kinds that they describe. Raises ClusterError.

    Such a kind is a GPU whose peak rate is the same for all types of numbers. It copies to other GPUs through host memory, in a
    slot of PCIe 4.0 unless the figures have another; its memory that programs cannot use is as for other GPUs.
    """
    found: dict[str, Part] = {}
    for name, figures in _KIND.findall(words):
        part = _part(name, figures, known)
        if name in known.kinds or found.get(name, part) != part:
            raise ClusterError(f"{name} has other figures, too", f"give it a name of its own: my_{name}{EXAMPLE}")
        found[name] = part
    return _KIND.sub(r"\1", words), known.model_copy(update={"kinds": known.kinds | found})


def _part(name: str, figures: str, known: Parts) -> Part:
    how = f"write {name}{EXAMPLE}"
    if rest := re.sub(r"[ ,]+", " ", _FIGURE.sub("", figures)).strip():
        raise ClusterError(f"{rest!r} of {name} is neither a size of memory, a bandwidth nor a rate", how)
    given: dict[str, float] = {}
    pcie = 4
    for number, unit, slot in _FIGURE.findall(figures):
        if slot:
            pcie = int(slot)
            continue
        unit = re.sub(r"flop.*", "flop", unit.replace("i", ""))
        if _FIELDS[unit] in given:
            raise ClusterError(f"{name} has two figures of its {_FIELDS[unit]}", how)
        given[_FIELDS[unit]] = float(number) * _UNITS[unit]
    if missing := [field for field in dict.fromkeys(_FIELDS.values()) if not given.get(field)]:
        raise ClusterError(f"{name} lacks its {' and '.join(missing)}", how)
    overheads = [known.rates(k).launch_s for k, part in known.kinds.items() if part.type == "gpu"]
    return Part(
        title=f"{name} {given['memory'] / 2**30:g} GB",
        source="Figures as given",
        generation="own",
        nominal="launch overhead, the median of all GPUs; one rate for all types of numbers",
        flops_per_s={"float32": given["arithmetic"]},
        memory_bytes=round(given["memory"]),
        memory_bytes_per_s=given["bandwidth"],
        launch_overhead_s=median(overheads),
        pcie=pcie,
        peer_to_peer=False,
    )
