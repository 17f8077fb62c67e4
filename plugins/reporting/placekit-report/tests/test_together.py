"""Names and colours that two runs, or two groups, share."""

from __future__ import annotations

from typing import Any

import numpy as np
from placekit_report.document import group_name
from placekit_report.shared_colours import colour_together
from placekit_testing.small import machine

from placekit_core import GraphBuilder, Grouping, Problem


def timeline(modules: list[str], seconds: list[float], micro_batches: bool = False) -> dict[str, Any]:
    """An event for each module, with colours of its own, and a transfer after them."""
    texts = [*modules, "mm", "transfer"]
    return {
        "texts": texts,
        "micro_batches": micro_batches,
        "colours": {"module": list(modules)},
        "events": {
            "module": [i if name else -1 for i, name in enumerate(modules)] + [-1],
            "type": [len(modules)] * len(modules) + [len(modules) + 1],
            "duration_s": [*seconds, 9.0],
            "colour": [*range(len(modules)), -1],
        },
    }


def coloured(*timelines: dict[str, Any] | None) -> list[dict[str, str]]:
    """The colour of each module in each timeline, after both were coloured together."""
    data = {"runs": [{"programs": [{"program": "p", "timeline": t}]} for t in timelines]}
    colour_together(data)
    found = []
    for t in timelines:
        events: Any = {} if t is None else t["events"]
        names = [""] if t is None else [*t["colours"]["module"], ""]
        rows = zip(events.get("module", ()), events.get("colour", ()), strict=True)
        found.append({t["texts"][m]: names[c] for m, c in rows if m >= 0} if t is not None else {})
    return found


def test_a_module_has_one_colour_in_both_runs() -> None:
    a, b = timeline(["x", "y", "z"], [3.0, 2.0, 0.5]), timeline(["y", "x"], [8.0, 1.0])
    assert coloured(a, b) == [{"x": "x", "y": "y", "z": "z"}, {"y": "y", "x": "x"}]
    assert a["colours"] == b["colours"] == {"module": ["y", "x", "z"]}, "by the seconds of both"
    assert (a["events"]["colour"], b["events"]["colour"]) == ([1, 0, 2, -1], [0, 1, -1])


def test_equal_runs_are_coloured_as_one() -> None:
    names, seconds = [f"m{i}" for i in range(14)], [14.0 - i for i in range(14)]
    a, b = timeline(names, seconds), timeline(names, seconds)
    coloured(a, b)
    assert a == b
    assert a["colours"]["module"] == [*names[:9], "other"]


def test_programs_with_nothing_in_common_keep_their_colours() -> None:
    for other in (timeline(["q"], [1.0]), timeline([""], [1.0]), timeline(["x"], [1.0], micro_batches=True), None):
        own = timeline(["y", "x"], [1.0, 5.0])
        coloured(own, other)
        assert own == timeline(["y", "x"], [1.0, 5.0])


def test_a_group_inside_which_are_others_is_the_module_itself() -> None:
    b = GraphBuilder("nested")
    for module in ("texts", "texts.embed", "text"):
        b.add(f"{module}/op", flops=1.0, module=module)
    graph = b.build()
    problem = Problem.of(graph, machine(), Grouping(np.arange(3, dtype=np.int32), ("texts", "texts.embed", "text")))
    assert [group_name(problem, g) for g in range(3)] == ["texts (its own operations)", "texts.embed", "text"]
