"""Writes cluster files: device kinds with their sources as comments, devices, links."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from placekit_core import Cluster, Efficiency
from placekit_core.contracts.cluster import DeviceKind
from placekit_core.contracts.files import parse_yaml
from placekit_inspect.data_sheets import HostPart

WIDTH = 120  # of a line of the file


class KindEntry(NamedTuple):
    """A device kind in a cluster file: its figures, the number of devices, and a comment with the sources."""

    kind: DeviceKind
    number: int
    comment: str


def cluster_text(
    head: Iterable[str], name: str, description: str, kinds: Mapping[str, KindEntry], links: Iterable[str],
    hosts: Iterable[str],
) -> str:  # fmt: skip
    """The content of a cluster file.

    Args:
        head: comments at the top, one paragraph each.
        description: as YAML.
        links, hosts: lines from `link`, `host` and `comment`.

    Raises ClusterError if the file would be invalid.
    """
    lines = [line for text in head for line in comment(text, "")]
    lines += [f"name: {name}", f"description: {description}", "kinds:"]
    for key, entry in kinds.items():
        lines += kind_lines(key, entry.kind, entry.comment)
    lines.append("devices:")
    lines += [f"  - {{kind: {key}{f', count: {e.number}' if e.number > 1 else ''}}}" for key, e in kinds.items()]
    links = list(links)
    lines += [*(["links:", *links] if links else []), "hosts:", *hosts]
    content = "\n".join(lines) + "\n"
    Cluster.parse(parse_yaml(content.encode()), f"the new file {name}.yaml")
    return content


def kind_lines(name: str, kind: DeviceKind, about: str) -> list[str]:
    """A device kind as lines of a cluster file, with `about` as a comment above it."""
    rates = ", ".join(f"{dtype}: {figure(rate)}" for dtype, rate in kind.flops_per_s.items())
    written = {"type", "flops_per_s", "memory_bytes", "memory_bytes_per_s", "launch_overhead_s", "efficiency"}
    efficiency = [f"      {c}: {_row(e)}" for c, e in kind.efficiency.items()]
    others = kind.model_dump(exclude=written | {"reserve_bytes", "headroom"}, exclude_defaults=True)
    kept = {key: getattr(kind, key) for key in ("reserve_bytes", "headroom") if getattr(kind, key)}
    return [
        *comment(about, "  "),
        f"  {name}:",
        *(["    type: cpu"] if kind.type == "cpu" else []),
        f"    flops_per_s: {{{rates}}}",
        f"    memory_bytes: {kind.memory_bytes}",
        *(f"    {key}: {value}" for key, value in kept.items()),
        f"    memory_bytes_per_s: {figure(kind.memory_bytes_per_s)}",
        f"    launch_overhead_s: {figure(kind.launch_overhead_s)}",
        *(f"    {key}: {json.dumps(value)}" for key, value in others.items()),
        *(["    efficiency:", *efficiency] if efficiency else []),
    ]


def _row(fractions: Efficiency) -> str:
    """A row of `efficiency`."""
    return f"{{{', '.join(f'{name}: {value:g}' for name, value in fractions if value is not None)}}}"


def withheld_note(sources: Iterable[str]) -> str:
    """A comment that says where `reserve_bytes` and `headroom` come from."""
    return f"Not for placements (reserve_bytes, headroom): {'. '.join(dict.fromkeys(sources))}."


def link(ends: str, bytes_per_s: float, latency_s: float = 0.0, duplex: str = "full", concurrent: int = 1) -> str:
    """A link as a line of the file; `ends` is `mesh: ...` or `a: ..., b: ...`."""
    text = f"{ends}, bytes_per_s: {figure(bytes_per_s)}"
    text += f", latency_s: {figure(latency_s)}" if latency_s else ""
    text += f", duplex: {duplex}" if duplex != "full" else ""
    text += f", concurrent: {concurrent}" if concurrent > 1 else ""
    return f"  - {{{text}}}"


def host(known: HostPart, devices: Iterable[str] = ()) -> str:
    """A host as a line of the file; without `devices`, of all of them."""
    patterns = [json.dumps(d) for d in devices]
    text = f"devices: [{', '.join(patterns)}], " if patterns else ""
    text += f"launch_s: {figure(known.launch_s)}, handover_s: {figure(known.handover_s)}"
    return f"  - {{{text}, graph_handover_s: {figure(known.graph_handover_s)}}}"


def comment(text: str, indent: str = "  ") -> list[str]:
    """`text` as lines of a comment; line breaks stay."""
    start = f"{indent}# "
    return [line for part in text.split("\n") for line in textwrap.wrap(
        part, WIDTH, initial_indent=start, subsequent_indent=start, break_long_words=False, break_on_hyphens=False
    )]  # fmt: skip


def figure(value: float) -> str:
    """A number in engineering notation, written so that YAML reads a number: 1008.0e+9 as 1.008e+12."""
    exponent = 3 * math.floor(math.log10(value) / 3)
    mantissa = f"{value / 10.0**exponent:.10g}"
    return f"{mantissa}{'' if '.' in mantissa else '.0'}e{exponent:+d}"
