"""What the tests of the page's data share: a small network with modules, and the rules that all data follows."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from placekit_core import Graph, GraphBuilder

DATA = re.compile(r'<script type="application/json" id="placekit-data">(.*?)</script>', re.S)


def network(layers: int = 3, name: str = "net", odd: str = "") -> Graph:
    """A step of `layers` layers of attention and mlp: forward, backward and update; `odd` is a part of all names."""
    b = GraphBuilder(name)
    t = b.source(f"x{odd}", 40_000, op_type="input")
    saved: list[tuple[str, int, int]] = []
    for i in range(layers):
        for part in ("attention", "mlp"):
            module = f"layers{odd}.{i}.{part}"
            w = b.source(f"w.{module}", 1_000_000, module=module)
            [t] = b.add(f"{module}.mm", op_type="mm", inputs=[t, w], outputs=[40_000], flops=3e9, module=module)
            [t] = b.add(f"{module}.act", op_type="act", inputs=[t], outputs=[40_000], flops=1e9, module=module)
            saved.append((module, t, w))
    [g] = b.add("loss", inputs=[t], outputs=[40_000], flops=1e8, module="")
    for module, t, w in reversed(saved):
        [g, d] = b.add(f"{module}.grad", op_type="grad", inputs=[g, t, w], outputs=[40_000, 1_000_000], flops=6e9,
                       phase="backward", module=module)  # fmt: skip
        b.add(f"{module}.step", op_type="step", inputs=[d, w], outputs=[1_000_000], flops=1e8, phase="update",
              module=module)  # fmt: skip
    return b.build()


def embedded(page: Path) -> dict[str, Any]:
    """The data in a page."""
    text = page.read_text()
    found = DATA.findall(text)
    assert len(found) == 1
    data: dict[str, Any] = json.loads(found[0])
    return data


def check(data: dict[str, Any]) -> None:
    """The rules of the data that hold whatever was placed."""
    assert (data["format"], data["version"]) == ("placekit-report", 1)
    run = data["run"]
    assert [p["program"] for p in run["programs"]] == [p["program"] for p in run["summary"]["programs"]]
    for program, summary in zip(run["programs"], run["summary"]["programs"], strict=True):
        check_numbers(program, summary)
        if program["timeline"] is not None:
            check_timeline(program["timeline"], len(program["devices"]["name"]))
        check_modules(program)


def check_numbers(program: dict[str, Any], summary: dict[str, Any]) -> None:
    """The numbers of result.json, to the last bit."""
    for key in ("program", "value_s", "bound_s", "gap", "spread_s", "fits", "evaluations", "seconds"):
        assert program[key] == summary[key], key
    peaks = dict(zip(program["devices"]["name"], program["devices"]["peak_bytes"], strict=True))
    assert {k: v for k, v in peaks.items() if v is not None} == summary["peak_bytes"]
    baselines = summary["baselines"]
    assert program["baselines"]["value_s"] == [b["value_s"] for b in baselines]
    assert program["baselines"]["name"] == [b["policy"] + f" on {b['device']}" * bool(b["device"]) for b in baselines]
    own = program["search"]
    if own["best_s"] and summary["value_s"] is not None and own["best_s"][-1] is not None:
        assert own["evaluations"][-1] == summary["evaluations"]


def check_timeline(t: dict[str, Any], devices: int) -> None:
    events, tracks = t["events"], t["tracks"]
    count = len(events["track"])
    assert {len(column) for column in events.values()} == {count}
    order = list(zip(events["track"], events["start_s"], strict=True))
    assert order == sorted(order)
    assert all(0 <= x < len(tracks["name"]) for x in events["track"])
    assert all(
        (kind == "device") == (d >= 0) and d < devices for kind, d in zip(tracks["kind"], tracks["device"], strict=True)
    )
    for column in ("name", "type", "why"):
        assert all(0 <= i < len(t["texts"]) for i in events[column])
    assert all(-1 <= i < len(t["texts"]) for i in events["module"])
    assert all(-1 <= i < len(t["colours"]["module"]) for i in events["colour"])
    assert all(-1 <= i < count for i in events["cause"])
    assert all(0 <= p <= 2 for p in events["phase"])
    assert min(events["duration_s"], default=0) >= 0
    for track in set(events["track"]):  # nothing overlaps on a link
        if tracks["kind"][track] == "link":
            rows = [i for i in range(count) if events["track"][i] == track]
            ends = [events["start_s"][i] + events["duration_s"][i] for i in rows]
            assert all(events["start_s"][b] >= end - 3e-9 for b, end in zip(rows[1:], ends, strict=False))
    chain = t["critical"]
    if chain:
        assert events["start_s"][chain[-1]] + events["duration_s"][chain[-1]] == pytest.approx(t["end_s"], abs=3e-9)
        for before, after in pairwise(chain):
            assert events["cause"][after] == before
    assert sum(t["critical_parts"]["seconds"]) == pytest.approx(t["end_s"], abs=1e-8)
    assert t["complete"] == (t["left_out"] == 0)


def check_modules(program: dict[str, Any]) -> None:
    m, cut, devices = program["modules"], program["cut"], program["devices"]
    assert all(-1 <= parent < i for i, parent in enumerate(m["parent"]))
    assert all(m["depth"][i] == m["depth"][p] + 1 for i, p in enumerate(m["parent"]) if p >= 0)
    for i, row in enumerate(m["device_seconds"]):
        assert sum(row) == pytest.approx(m["seconds"][i], abs=1e-8)
    if m["name"] and program["timeline"] is not None:
        assert m["parent"].count(-1) == 1
        assert m["seconds"][0] == pytest.approx(sum(devices["compute_s"]), abs=1e-8)
        assert m["operations"][0] == sum(devices["operations"])
        if not program["timeline"]["micro_batches"]:
            events, kind = program["timeline"]["events"], program["timeline"]["tracks"]["kind"]
            links = [i for i, track in enumerate(events["track"]) if kind[track] == "link"]
            on_devices = [i for i, track in enumerate(events["track"]) if kind[track] == "device"]
            ran = sum(events["duration_s"][i] for i in on_devices)
            assert m["seconds"][0] == pytest.approx(ran, abs=1e-6)
            assert sum(cut["bytes"]) + cut["left_out_bytes"] == sum(events["bytes"][i] for i in links)
            assert sum(cut["bytes"]) + cut["left_out_bytes"] == sum(devices["bytes_in"]) == sum(devices["bytes_out"])
            assert sum(cut["transfers"]) == len(links) or cut["left_out_bytes"]
    assert (cut is None) == (program["devices"]["compute_s"] == [None] * len(devices["name"]))
    assert cut is None or len(cut["bytes"]) <= 200
    assert cut is None or cut["bytes"] == sorted(cut["bytes"], reverse=True)
